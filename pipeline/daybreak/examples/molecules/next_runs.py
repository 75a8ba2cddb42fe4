"""Asks for the simulations of a day's bag: those that begin where the champion is unsure of the forces.

    python next_runs.py --day 2026-11-25 --runs 6

The champion moves clusters from frames of the newest bag, at several temperatures. Where its members first
disagree more than on nearly all of these frames, a run of the reference is to begin (query by committee;
Seung et al. 1992): next_runs/DAY.json lists these starts for `simulate.py`. Where there are fewer starts than
runs of the bag, the other runs begin as usual. The module also reports the cost of a step by the reference
and by the network.
"""

import argparse
import json
import time
from dataclasses import dataclass
from datetime import date

import numpy as np
import torch
from copper import STEP, Floats, thermal
from molecular_dynamics import rolled_out
from molecules import Molecules
from simulate import NEXT_RUNS, cluster
from torch import Tensor, nn
from trajectories import Trajectories, frames

import daybreak

TEMPERATURES = (300.0, 600.0, 900.0, 1200.0, 1500.0)  # K; the last is hotter than any run begins by itself
ROLLOUTS_PER_RUN, STEPS, LOOK_EVERY = 3, 300, 10
USUAL = 0.95  # quantile of the spread on frames of the reference, above which the champion is unsure
TIMED_STEPS, TOGETHER = 100, 64


@dataclass(frozen=True, kw_only=True)
class Unsure:
    """A moment of a roll-out at which the members first disagreed."""

    temperature: float  # K
    positions: Floats  # Angstrom, [n, 3]
    spread: float  # of forces, eV per Angstrom


def champion() -> nn.Module:
    """Returns the network that serves: with the weights that the ledger names, and this folder's code."""
    return daybreak.open(daybreak.home_folder()).version().load(Molecules())


def unsure(model: nn.Module, positions: Tensor, *, num_runs: int, seed: int) -> tuple[list[Unsure], float]:
    """Returns at most `num_runs` moments, the largest spread first, and the spread from which they count.

    `positions` are of frames of the reference, [b, n, 3].
    """
    rng = np.random.default_rng(seed)
    limit = float(np.quantile(spread(model, positions), USUAL))
    number = ROLLOUTS_PER_RUN * num_runs
    temperatures = np.resize(TEMPERATURES, number)
    place = positions[rng.integers(0, len(positions), number)].double()
    speed = np.stack(
        [thermal(heat, each.numpy(), rng) for heat, each in zip(temperatures, place, strict=True)]
    )
    met: dict[int, Unsure] = {}
    for step, moment in enumerate(rolled_out(model, place, torch.from_numpy(speed), steps=STEPS)):
        if step % LOOK_EVERY:
            continue
        for which in np.flatnonzero(moment.spread.numpy() > limit).tolist():
            met.setdefault(
                which,
                Unsure(
                    temperature=float(temperatures[which]),
                    positions=moment.positions[which].numpy(),
                    spread=float(moment.spread[which]),
                ),
            )
    return sorted(met.values(), key=lambda each: -each.spread)[:num_runs], limit


def spread(model: nn.Module, positions: Tensor) -> Floats:
    """Returns how far the members' forces are apart, eV per Angstrom, [b]."""
    first = next(rolled_out(model, positions, torch.zeros_like(positions), steps=0))
    return first.spread.double().numpy()


def step_ms(model: nn.Module, positions: Tensor) -> tuple[float, float, float]:
    """Returns ms of CPU of a step of one cluster: by the reference, the network, and it with many at once."""
    from ase.md.verlet import VelocityVerlet

    atoms = cluster(300.0, positions[0].double().numpy(), np.random.default_rng(0))
    began = time.process_time()
    VelocityVerlet(atoms, timestep=STEP).run(TIMED_STEPS)
    took = [1000 * (time.process_time() - began) / TIMED_STEPS]
    for number in (1, TOGETHER):
        place = positions[np.resize(np.arange(len(positions)), number)]
        began = time.process_time()
        for _ in rolled_out(model, place, torch.zeros_like(place), steps=TIMED_STEPS):
            pass
        took.append(1000 * (time.process_time() - began) / TIMED_STEPS / number)
    return took[0], took[1], took[2]


def main() -> None:
    """Writes what a day's bag is to simulate, and prints how sure the champion is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--day", type=date.fromisoformat, required=True)
    parser.add_argument("--runs", type=int, required=True)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    days = Trajectories().days()
    if not days:
        parser.error("no bag is closed yet; run one as README.md says")
    newest = frames(days[-1])["positions"].to_pylist()
    model, positions = champion(), torch.tensor(newest).reshape(len(newest), -1, 3)
    runs, limit = unsure(model, positions, num_runs=chosen.runs, seed=chosen.day.toordinal())
    document = [{"temperature": each.temperature, "positions": each.positions.tolist()} for each in runs]
    asked = daybreak.home_folder() / NEXT_RUNS
    asked.mkdir(exist_ok=True)
    (asked / f"{chosen.day}.json").write_text(json.dumps(document))
    print(
        f"{len(runs)} of {chosen.runs} runs of {chosen.day} begin where the members' forces are more than "
        f"{1000 * limit:.1f} meV/A apart, up to {1000 * max((each.spread for each in runs), default=0):.1f}"
    )
    reference, alone, together = step_ms(model, positions)
    print(
        f"a step takes {reference:.2f} ms of CPU by the reference, {alone:.2f} by the network, and "
        f"{together:.2f} with {TOGETHER} clusters at once: {reference / alone:.1f} and "
        f"{reference / together:.1f} times as fast"
    )


if __name__ == "__main__":
    main()
