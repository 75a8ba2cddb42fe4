"""Which forces act on the atoms of a cluster? A small network in place of a reference potential."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from copper import FRAMES, NUM_ATOMS
from molecular_dynamics import drift
from numpy.typing import NDArray
from pair_potential import PairPotential
from potential import Potential
from torch import Tensor, nn

from daybreak import Batch, Float, Id, Int, Label, Past, Samples, Split, State, Table, Time

if TYPE_CHECKING:
    import ibis.expr.types as ir

SIZE = 3 * NUM_ATOMS
ENERGY_WEIGHT = 0.1  # of the error of an energy, 1/Angstrom^2, beside that of a force
MEV = 1000.0  # of an eV
MOST_DRIFT = 1e4  # meV an atom; a cluster that flies apart has this


class Molecules:
    """Energy and forces of copper clusters, held against a pair potential and in a roll-out."""

    table: ClassVar[Table] = Table(
        time="time",
        unit="trajectory",
        key=("trajectory", "frame"),
        columns={
            "trajectory": Id(),
            "time": Time(),
            "frame": Int(min=0, max=FRAMES - 1),
            "temperature": Float(min=0),
            "positions": Float(size=SIZE),
            "velocities": Float(size=SIZE),
            "energy_and_forces": Float(size=1 + SIZE),
        },
        label=Label("energy_and_forces"),
    )

    def fit(self, rows: "ir.Table") -> State:
        """Returns the mean energy, eV, and the root mean square force, eV per Angstrom."""
        labels = matrix(rows.select("energy_and_forces").to_pyarrow()["energy_and_forces"])
        force = np.sqrt(np.square(labels[:, 1:]).mean())
        return {"energy": np.array(labels[:, 0].mean()), "force": np.array(force)}

    def features(self, rows: pa.Table, state: State, past: Past) -> Mapping[str, NDArray[Any]]:
        """Returns positions, Angstrom, velocities in ASE's unit, the temperature and the frame's number."""
        return {
            "positions": matrix(rows["positions"]),
            "velocities": matrix(rows["velocities"]),
            "temperature": rows["temperature"].to_numpy(),
            "frame": rows["frame"].to_numpy(),
        }

    def dataset(self, folder: Path, split: Split) -> Samples:
        """Returns the frames of a split."""
        return Samples(folder, split)

    def model(self, state: State) -> nn.Module:
        """Returns the network."""
        network: nn.Module = Potential(energy=float(state["energy"]), force=float(state["force"]))
        return network

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns Adam: weight decay would pull a potential towards a constant."""
        return torch.optim.Adam(parameters)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the members' mean squared error of forces and energy, over that of no force, [b]."""
        energies, forces = model(atoms(batch["positions"]))
        off_energy, off_forces = errors(batch, energies, forces)
        squares = off_forces.square().mean(dim=(2, 3)) + ENERGY_WEIGHT * off_energy.square()
        scale: Any = model.force
        out: Tensor = squares.mean(dim=0) / scale**2
        return out

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns energy, eV, forces, eV per Angstrom, [b, 3 n], and how far apart members are in these."""
        energies, forces = model(atoms(batch["positions"]))
        spread = forces.var(dim=0).mean(dim=(1, 2)).sqrt()
        return {"energy": energies.mean(dim=0), "forces": forces.mean(dim=0).flatten(1), "spread": spread}

    def score(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns minus the mean absolute error of the components of forces, meV per Angstrom."""
        return -self._errors(model, batch)[1]

    def metrics(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the error of the energy, meV an atom, and the drift of a roll-out of 1,000 steps.

        A trajectory is rolled out from its first frame; that frame has the drift times the number of frames,
        and the others have 0, so that the mean over frames is that over trajectories.
        """
        first = batch["frame"] == 0
        drifts = torch.zeros(len(first), device=first.device)
        if first.any():
            begin = atoms(batch["positions"][first]), atoms(batch["velocities"][first])
            drifts[first] = FRAMES * (MEV * drift(model, *begin)).clamp(max=MOST_DRIFT)
        return {"energy error": self._errors(model, batch)[0], "energy drift": drifts}

    def slices(self, batch: Batch) -> dict[str, Tensor]:
        """Returns which frames are of cold and of hot trajectories."""
        return {"below 750 K": batch["temperature"] < 750, "from 750 K": batch["temperature"] >= 750}

    def baselines(self, folder: Path) -> dict[str, Tensor]:
        """Returns the score of a linear model of the same distances, on the test split."""
        train, test = (every(self.dataset(folder, split)) for split in ("train", "test"))
        pair = PairPotential.fitted(atoms(train["positions"]), train["energy_and_forces"])
        forces = pair.forces(atoms(test["positions"])).flatten(1)
        return {"pair potential": -MEV * (forces - test["energy_and_forces"][:, 1:]).abs().mean(dim=1)}

    def _errors(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the absolute errors of energies, meV an atom, and of forces, meV per Angstrom, [b]."""
        energies, forces = (each.mean(dim=0, keepdim=True) for each in model(atoms(batch["positions"])))
        off_energy, off_forces = errors(batch, energies, forces)
        return MEV / NUM_ATOMS * off_energy[0].abs(), MEV * off_forces[0].abs().mean(dim=(1, 2))


def matrix(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Returns a column of vectors as an array, shape [b, size]."""
    values: NDArray[np.float64] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


def atoms(vectors: Tensor) -> Tensor:
    """Returns vectors of shape [b, 3 n] by atom, [b, n, 3]."""
    return vectors.reshape(len(vectors), -1, 3)


def errors(batch: Batch, energies: Tensor, forces: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how far energies, [m, b], and forces, [m, b, n, 3], are from the reference."""
    reference = batch["energy_and_forces"]
    return energies - reference[:, 0], forces - atoms(reference[:, 1:])


def every(samples: Samples) -> dict[str, Tensor]:
    """Returns all samples as one batch."""
    return samples.__getitems__(range(len(samples)))
