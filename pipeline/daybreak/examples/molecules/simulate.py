"""Simulates a copper cluster by the reference potential: one run of a day's bag.

    python simulate.py --day 2026-11-24 --seed 3 --out FOLDER

The reference is effective medium theory (Jacobsen et al. 1996) as ASE has it. A run is short, needs no other,
and gives the same frames from the same day and seed, so that one that is lost is simply run again. It leaves
`frames.parquet`: FRAMES rows of a trajectory at constant energy, with the reference's energy and forces.

Where and how hot a run begins is what `next_runs.py` has asked for that day, in next_runs/DAY.json, by
its seed. Without that it is the icosahedron, at one temperature of a fixed list.
"""

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from copper import FRAMES, NUM_ATOMS, STEP, Floats, thermal

NEXT_RUNS = Path("next_runs")
TEMPERATURES = (300.0, 600.0, 900.0, 1200.0)  # K
SETTLE_STEPS, STEPS_APART = 100, 20


def begin(day: date, seed: int) -> tuple[float, Floats | None]:
    """Returns temperature, K, and positions, Angstrom, [n, 3], of a run; None: those of the icosahedron."""
    path = NEXT_RUNS / f"{day}.json"
    runs = json.loads(path.read_text()) if path.exists() else []
    if seed < len(runs):
        return float(runs[seed]["temperature"]), np.array(runs[seed]["positions"])
    return TEMPERATURES[seed % len(TEMPERATURES)], None


def cluster(temperature: float, positions: Floats | None, rng: np.random.Generator) -> Any:
    """Returns ASE's atoms that have the reference potential, and move at that temperature.

    The icosahedron gets twice the temperature, half of which becomes potential energy.
    """
    from ase.calculators.emt import EMT
    from ase.cluster import Icosahedron

    atoms = Icosahedron("Cu", 2)
    assert len(atoms) == NUM_ATOMS
    if positions is None:
        temperature *= 2
    else:
        atoms.set_positions(positions)
    atoms.calc = EMT()
    atoms.set_velocities(thermal(temperature, atoms.get_positions(), rng))
    return atoms


def simulate(day: date, seed: int, temperature: float, positions: Floats | None) -> pa.Table:
    """Returns the frames of a run that begins like this."""
    from ase.md.verlet import VelocityVerlet

    atoms = cluster(temperature, positions, np.random.default_rng([day.toordinal(), seed]))
    dynamics = VelocityVerlet(atoms, timestep=STEP)
    dynamics.run(SETTLE_STEPS if positions is None else 0)
    rows = []
    for frame in range(FRAMES):
        seconds = np.timedelta64(seed * FRAMES + frame, "s")
        answer = [atoms.get_potential_energy(), *atoms.get_forces().ravel()]
        rows.append(
            {
                "trajectory": f"{day}-{seed}",
                "time": (np.datetime64(day, "us") + seconds).item(),
                "frame": frame,
                "temperature": temperature,
                "positions": atoms.get_positions().ravel().tolist(),
                "velocities": atoms.get_velocities().ravel().tolist(),
                "energy_and_forces": answer,
            }
        )
        dynamics.run(STEPS_APART)
    return pa.Table.from_pylist(rows)


def main() -> None:
    """Writes the frames of one run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--day", type=date.fromisoformat, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    start = begin(chosen.day, chosen.seed)
    pq.write_table(simulate(chosen.day, chosen.seed, *start), chosen.out / "frames.parquet")


if __name__ == "__main__":
    main()
