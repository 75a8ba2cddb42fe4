"""Fits the priors of update times, pipeline/daybreak/prediction/priors.json, to measurements of others.

    python -m benchmarks.fit_priors     writes that file, from all cells of step_times.py

A cell is a network on a cluster of a laboratory. The constants of each cell give the priors' means and
deviations, between laboratories and within them; steps on one device and a profile on another give how a pass
scales between GPUs. The amplitudes of the residual are those under which the
cells of a laboratory are most likely (empirical Bayes), widened by what sets laboratories apart. `without`
fits to the cells of other networks, clusters, or laboratories only: bench_throughput.py predicts with these.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import cache

import numpy as np
from scipy.optimize import minimize

from benchmarks import frame
from benchmarks.step_times import (
    APPS,
    CLUSTERS,
    DEVICES,
    GAVEL,
    GAVEL_CLUSTERS,
    LABORATORY,
    PARAMETERS,
    line,
    middle,
    steps,
)
from daybreak.prediction.priors import NAMES, Constants, Priors, Residual, Roofline
from daybreak.prediction.priors import priors as shipped
from daybreak.prediction.step_time import FIXED, MANY, MIX, ONE, PER_SAMPLE
from daybreak.prediction.throughput import MachineKind, StepTime

MOST = 60 if frame.QUICK else 100  # steps of each cell
ROUNDS = 2
# Before any job is known; deviations of scales are wide enough for any.
UNINFORMED = Constants(
    mean=(0.0, 0.0, 0.0, 0.4, 0.2, 0.4, 0.0, 0.3, 0.5, 0.1),
    laboratory=(0.0,) * len(NAMES),
    job=(1.0, 0.5, 1.0, 0.2, 0.4, 0.2, 1.5, 0.15, 0.6, 0.07),
    device=(0.0,) * len(NAMES),
    machine=(1.0, 0.7, 1.0, 0.2, 0.4, 0.2, 1.5, 0.15, 0.6, 0.07),
    profiled=(0.7, 0.3, 1.0, 0.2, 0.4, 0.2, 1.5, 0.15, 0.6, 0.07),
)
START = Residual(
    compute=0.04,
    compute_reach=1.0,
    kernel=0.03,
    compute_offset=0.02,
    sync=0.15,
    sync_reach=1.0,
    sync_batch_reach=3.0,
    sync_offset=0.08,
    noise=0.02,
    sync_noise=0.08,
)
EVEN, EVEN_SPREAD = float(np.mean([np.log(each.roofline) for each in DEVICES.values()])), 1.0  # a logarithm
POWER, POWER_SPREAD = 1.0, 0.25  # as the roofline says
ELSEWHERE = 0.4  # mean of |log| of a step on another device over what a profile here says
AMPLITUDES = tuple(name for name in Residual.__annotations__ if not name.endswith("reach"))
DOUBT = 1.0  # laboratories that a prior of their variance weighs
APART = 0.4  # prior deviation between laboratories of the logarithm of an amplitude: a factor of 1.5
LEAST, AROUND = 0.003, 1.0  # of an amplitude, and the deviation of its logarithm from START

Cell = tuple[str, str]
CELLS: tuple[Cell, ...] = tuple((app, cluster) for app in APPS for cluster in CLUSTERS)
GAVEL_CELLS: tuple[Cell, ...] = tuple((app, cluster) for app in GAVEL.values() for cluster in GAVEL_CLUSTERS)
ALL_CELLS = CELLS + GAVEL_CELLS


@cache
def machine(cell: Cell, profiled_on: str, by: Roofline) -> MachineKind:
    """Returns the machines of a cell as the model sees them, by a profile on a device of the cluster."""
    app, cluster = cell
    rows = steps()[app, profiled_on]
    fixed, per_sample = line(rows)
    fixed = max(fixed, 0.02 * per_sample * middle(rows))
    here, there = DEVICES[cluster], DEVICES[profiled_on]
    num_bytes = 4 * PARAMETERS[app]
    within = np.log(num_bytes / here.link_bytes_per_s)
    across = np.log(num_bytes / here.network_bytes_per_s)
    constants = np.zeros(len(NAMES))
    constants[FIXED] = np.log(fixed * (1 + by.even / here.roofline) / (1 + by.even / there.roofline))
    constants[PER_SAMPLE] = np.log(per_sample) + by.power * np.log(there.roofline / here.roofline)
    constants[MANY], constants[ONE] = across, within - across
    return MachineKind(
        name=cluster,
        device=cluster,
        profiled=cluster == profiled_on,
        constants=tuple(MIX @ constants),
        errors=(0.0,) * len(NAMES),
    )


def sample(cell: Cell) -> list:
    """Some steps of a cell, the same at each call."""
    rows = steps()[cell]
    chosen = np.random.default_rng(0).permutation(len(rows))[:MOST]
    return [rows[k] for k in sorted(chosen)]


def fitted(cell: Cell, priors: Priors) -> StepTime:
    """The model of a cell, profiled there, fitted to some of its steps."""
    rows = sample(cell)
    return StepTime(
        rows, machine_of=[0] * len(rows), machines=[machine(cell, cell[1], priors.roofline)], priors=priors
    )


def learn(cells: Sequence[Cell]) -> Priors:
    """The priors of another laboratory, by the means of these cells and the variance between their own."""
    priors = replace(shipped(), constants=UNINFORMED, residual=START, roofline=roofline_of(cells))
    for _ in range(ROUNDS):
        models = [fitted(cell, priors) for cell in cells]
        constants = _constants(cells, [model.constants for model in models], priors.roofline)
        priors = replace(priors, constants=constants, residual=_residual(cells, models, constants))
    return priors


def by_laboratory(cells: Sequence[Cell]) -> list[list[int]]:
    """Places of the cells of each laboratory."""
    names = sorted({LABORATORY[cluster] for _, cluster in cells})
    return [[k for k, cell in enumerate(cells) if LABORATORY[cell[1]] == name] for name in names]


def between(means: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Variance of another laboratory around the mean of these, [laboratories, figures].

    Two or three laboratories hardly show a variance, so its prior is a scaled inverse chi-square with the
    weight of DOUBT laboratories and the scale `before` (weakly informative: Gelman 2006, Prior distributions
    for variance parameters in hierarchical models). The mean of n laboratories is off by a n-th of it.
    """
    number = len(means)
    squares = np.sum(np.square(means - means.mean(axis=0)), axis=0)
    variance: np.ndarray = (squares + DOUBT * before) / (number - 1 + DOUBT) * (1 + 1 / number)
    return variance


def roofline_of(cells: Sequence[Cell]) -> Roofline:
    """How a pass scales between the devices of a laboratory, by steps on one of each.

    Deviations count by their size, not their square, as one network gains far more from tensor cores.
    """
    pairs = [
        (line(steps()[one]), DEVICES[one[1]].roofline, DEVICES[other[1]].roofline, _alone(other))
        for one in cells
        for other in cells
        if one[0] == other[0] and one[1] != other[1] and LABORATORY[one[1]] == LABORATORY[other[1]]
    ]

    def loss(guess: np.ndarray) -> float:
        even, power = np.exp(guess[0]), guess[1]
        apart = (guess[0] - EVEN) ** 2 / EVEN_SPREAD**2 + (power - POWER) ** 2 / POWER_SPREAD**2
        for (fixed, per_sample), here, there, alone in pairs:
            scaled = fixed * (1 + even / there) / (1 + even / here)
            forecast = np.log(scaled + per_sample * (here / there) ** power * alone[0])
            apart += np.mean(np.abs(alone[1] - forecast)) / ELSEWHERE  # half: there and back is one pair
        return float(apart / 2)

    best = minimize(loss, [EVEN, POWER], method="Nelder-Mead")
    return Roofline(even=float(np.exp(best.x[0])), power=float(best.x[1]))


def _alone(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a pass on one device, each size once, and the mean of the logarithm of its seconds."""
    rows = [row for row in steps()[cell] if row.num_workers == 1]
    sizes, place = np.unique([row.micro_batch_size for row in rows], return_inverse=True)
    return sizes, np.bincount(place, np.log([row.step_s for row in rows])) / np.bincount(place)


def _constants(cells: Sequence[Cell], fits: Sequence[np.ndarray], roofline: Roofline) -> Constants:
    """Means and deviations of the cells' constants, relative to profile and roofline.

    One pseudo-cell of UNINFORMED keeps few cells from looking too alike.
    """
    relative = np.stack(
        [
            np.linalg.solve(MIX, fit - np.array(machine(cell, cell[1], roofline).constants))
            for cell, fit in zip(cells, fits, strict=True)
        ]
    )
    means = np.stack([relative[places].mean(axis=0) for places in by_laboratory(cells)])
    within = np.concatenate(
        [relative[places] - m for places, m in zip(by_laboratory(cells), means, strict=True)]
    )
    freedom = len(cells) - len(means)
    squares = np.sum(np.square(within), axis=0) + np.square(UNINFORMED.profiled)
    spread = np.sqrt(squares / (freedom + 1))
    laboratory = np.sqrt(between(means, np.square(spread)))
    mean = means.mean(axis=0)
    mean[[FIXED, PER_SAMPLE]] = 0.0  # a profile is not biased
    # Between machines of one job, and between devices: constants of both against the roofline of the other.
    # Another laboratory has another trainer too, so these say nothing of devices.
    apart = [
        (fits[k][:2] - fits[j][:2])
        - np.subtract(
            machine((app, one), two, roofline).constants, machine((app, two), two, roofline).constants
        )[:2]
        for k, (app, one) in enumerate(cells)
        for j, (other, two) in enumerate(cells)
        if app == other and one < two and LABORATORY[one] == LABORATORY[two]
    ]
    wild = [*np.abs(apart), np.array(UNINFORMED.machine[:2])]
    machines = 1.4826 * np.median(wild, axis=0)  # one network gains far more from tensor cores than others
    half = spread / np.sqrt(2)  # of the job and of the machine, for want of many of either
    job, own, device = half.copy(), half.copy(), np.zeros(len(NAMES))
    job[[FIXED, PER_SAMPLE]] = spread[[FIXED, PER_SAMPLE]] / np.sqrt(2)
    own[:2] = device[:2] = machines / np.sqrt(2)
    return Constants(
        mean=tuple(mean),
        laboratory=tuple(laboratory),
        job=tuple(job),
        device=tuple(device),
        machine=tuple(own),
        profiled=tuple(half),
    )


def _residual(cells: Sequence[Cell], models: Sequence[StepTime], constants: Constants) -> Residual:
    """The amplitudes of another laboratory: root mean squares, as their logarithms differ between these."""
    each = np.stack([_amplitudes([models[k] for k in places], constants) for places in by_laboratory(cells)])
    values = np.exp(each.mean(axis=0) + between(each, np.full(len(AMPLITUDES), APART**2)))
    return replace(START, **dict(zip(AMPLITUDES, map(float, values), strict=True)))


def _amplitudes(models: Sequence[StepTime], constants: Constants) -> np.ndarray:
    """Logarithms of the amplitudes under which some cells are most likely, not far from START."""
    start = np.log([getattr(START, name) for name in AMPLITUDES])

    def loss(amplitudes: np.ndarray) -> float:
        values = np.maximum(LEAST, np.exp(amplitudes))
        residual = replace(START, **dict(zip(AMPLITUDES, map(float, values), strict=True)))
        priors = replace(shipped(), constants=constants, residual=residual)
        apart = np.sum(np.square((amplitudes - start) / AROUND)) / 2
        return float(sum(model.evidence(priors) for model in models) + apart)

    best = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 12, "eps": 0.02})
    return np.log(np.maximum(LEAST, np.exp(best.x)))


@cache
def without(*, app: str = "", cluster: str = "", laboratory: str = "") -> Priors:
    """The priors of the cells of other networks, other clusters and other laboratories."""
    return learn(
        [
            cell
            for cell in ALL_CELLS
            if cell[0] != app and cell[1] != cluster and LABORATORY[cell[1]] != laboratory
        ]
    )


def text(priors: Priors, cells: Collection[Cell], assumed: object) -> str:
    """The file of priors: constants by name, amplitudes, where they come from, and what is assumed."""
    constants = {
        key: {name: round(value, 3) for name, value in zip(NAMES, values, strict=True)}
        for key, values in asdict(priors.constants).items()
    }
    residual = {key: round(value, 4) for key, value in asdict(priors.residual).items()}
    roofline = {key: float(f"{value:.3g}") for key, value in asdict(priors.roofline).items()}
    source = (
        f"python -m benchmarks.fit_priors: {len(cells)} cells, {', '.join(PARAMETERS)} "
        "on T4 (Pollux, OSDI'21), on RTX 2080 Ti and A100 (Sia, SOSP'23), and on K80 and P100 (Gavel, "
        "OSDI'20); between laboratories with a weakly informative prior (Gelman 2006)"
    )
    return (
        json.dumps(
            {
                "source": source,
                "constants": constants,
                "residual": residual,
                "roofline": roofline,
                "assumed": assumed,
            },
            indent=1,
        )
        + "\n"
    )


def main() -> None:
    """Fit to all cells, and write the file."""
    path = frame.ROOT / "pipeline" / "daybreak" / "prediction" / "priors.json"
    assumed = json.loads(path.read_text())["assumed"]
    path.write_text(text(learn(ALL_CELLS), ALL_CELLS, assumed))
    print(path.read_text())


if __name__ == "__main__":
    main()
