"""Fits the priors of update times, pipeline/daybreak/prediction/priors.json, to measurements of others.

    python -m benchmarks.fit_priors     writes that file, from all cells of step_times.py

A cell is a network on a cluster of a laboratory. The constants of each cell give the priors' means and
deviations, between laboratories and within them; steps on one device and a profile on another give how the
fixed part of a pass scales between GPUs. The amplitudes of the residual are those under which the
cells of a laboratory are most likely (empirical Bayes), widened by what sets laboratories apart. `without`
fits to the cells of other networks, clusters, or laboratories only: bench_throughput.py predicts with these.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import cache

import numpy as np
from scipy.optimize import minimize, minimize_scalar

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
from daybreak.prediction.step_time import (
    FIXED,
    MANY,
    MANY_POWER,
    MIX,
    ONE,
    PER_SAMPLE,
    TWO,
    TWO_POWER,
)
from daybreak.prediction.throughput import MachineKind, StepTime

MOST = 60 if frame.QUICK else 100  # steps of each cell
ROUNDS = 2
# Before any job is known; deviations of scales are wide enough for any.
UNINFORMED = Constants(
    mean=(0.0, 0.0, 0.0, 0.4, 0.2, 0.4, 0.0, 0.3, 0.5, 0.05),
    laboratory=(0.0,) * len(NAMES),
    job=(1.0, 0.5, 1.0, 0.2, 0.4, 0.2, 1.5, 0.15, 0.6, 0.05),
    device=(0.0,) * len(NAMES),
    machine=(1.0, 0.7, 1.0, 0.2, 0.4, 0.2, 1.5, 0.15, 0.6, 0.05),
    profiled=(0.7, 0.3, 1.0, 0.2, 0.4, 0.2, 1.5, 0.15, 0.6, 0.05),
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
NONE = 0.0  # roofline of such a GPU where the whole fixed part is the host's
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
def machine(cell: Cell, profiled_on: str, even: float) -> MachineKind:
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
    constants[FIXED] = np.log(fixed * (1 + even / here.roofline) / (1 + even / there.roofline))
    constants[PER_SAMPLE] = np.log(per_sample * there.roofline / here.roofline)
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
        rows,
        machine_of=[0] * len(rows),
        machines=[machine(cell, cell[1], priors.roofline.even)],
        priors=priors,
    )


def learn(cells: Sequence[Cell]) -> Priors:
    """The priors of another laboratory, by the means of these cells and the variance between their own."""
    even = even_of(cells)
    roofline = Roofline(even=even, cpu_fixed=0.0)
    priors = replace(shipped(), constants=UNINFORMED, residual=START, roofline=roofline)
    for _ in range(ROUNDS):
        models = [fitted(cell, priors) for cell in cells]
        fits = [model.constants for model in models]
        constants = _constants(cells, fits, even)
        # From a CPU, of which there are no steps, the fixed part stays: as far off as that is between GPUs.
        squares = np.square(_elsewhere(cells, fits, NONE)) - np.square(_elsewhere(cells, fits, even))
        cpu_fixed = float(np.sqrt(max(0.0, squares[FIXED])))
        priors = replace(
            priors,
            constants=constants,
            roofline=Roofline(even=even, cpu_fixed=cpu_fixed),
            residual=_residual(cells, models, constants),
        )
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


def device_pairs(cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Cells of one network on two devices of a laboratory, there and back."""
    return [
        (one, other)
        for one in cells
        for other in cells
        if one[0] == other[0] and one[1] != other[1] and LABORATORY[one[1]] == LABORATORY[other[1]]
    ]


def passes_apart(pair: tuple[Cell, Cell], even: float) -> float:
    """Mean of |log| of a pass in the second cell over what a profile in the first says of it."""
    fixed, per_sample = line(steps()[pair[0]])
    here, there = (DEVICES[cluster].roofline for _, cluster in pair)
    sizes, log_s = _alone(pair[1])
    forecast = fixed * (1 + even / there) / (1 + even / here) + per_sample * sizes * here / there
    return float(np.mean(np.abs(log_s - np.log(forecast))))


def even_of(cells: Sequence[Cell]) -> float:
    """Roofline of a GPU on which host and device share the fixed part of a pass evenly.

    Deviations count by their size, not their square, as one network gains far more from tensor cores.
    """
    pairs = device_pairs(cells)

    def loss(log_even: float) -> float:
        apart = sum(passes_apart(pair, float(np.exp(log_even))) for pair in pairs) / ELSEWHERE
        return float((log_even - EVEN) ** 2 / EVEN_SPREAD**2 + apart) / 2  # half: there and back is one pair

    return float(np.exp(minimize_scalar(loss, bounds=(EVEN - 5, EVEN + 5)).x))


def _alone(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a pass on one device, each size once, and the mean of the logarithm of its seconds."""
    rows = [row for row in steps()[cell] if row.num_workers == 1]
    sizes, place = np.unique([row.micro_batch_size for row in rows], return_inverse=True)
    return sizes, np.bincount(place, np.log([row.step_s for row in rows])) / np.bincount(place)


def _constants(cells: Sequence[Cell], fits: Sequence[np.ndarray], even: float) -> Constants:
    """Means and deviations of the cells' constants, relative to profile and roofline.

    One pseudo-cell of UNINFORMED keeps few cells from looking too alike.
    """
    relative = np.stack(
        [
            np.linalg.solve(MIX, fit - np.array(machine(cell, cell[1], even).constants))
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
    mean = means.mean(axis=0)
    mean[[FIXED, PER_SAMPLE]] = 0.0  # a profile is not biased
    # A sum over more machines sends no less over each, so a third does not make it faster. On Pollux' T4 it
    # did: that counts as how far off a laboratory may be.
    mean[TWO], mean[TWO_POWER] = min(mean[TWO], 0.0), min(mean[TWO_POWER], mean[MANY_POWER])
    moved = mean - means.mean(axis=0)
    moved[[FIXED, PER_SAMPLE]] = 0.0
    laboratory = np.sqrt(between(means, np.square(spread)) + np.square(moved))
    half = spread / np.sqrt(2)  # of the job and of the machine, for want of many of either
    job, own, device = half.copy(), half.copy(), np.zeros(len(NAMES))
    own[:2] = device[:2] = _elsewhere(cells, fits, even) / np.sqrt(2)
    return Constants(
        mean=tuple(mean),
        laboratory=tuple(laboratory),
        job=tuple(job),
        device=tuple(device),
        machine=tuple(own),
        profiled=tuple(half),
    )


def _elsewhere(cells: Sequence[Cell], fits: Sequence[np.ndarray], even: float) -> np.ndarray:
    """Deviations of both parts of a pass on another device of a job, from profile and roofline.

    Constants of both devices are held against the roofline of the other. Another laboratory has another
    trainer too, so it says nothing of devices.
    """
    apart = [
        (fits[k] - fits[j])[:2]
        - np.subtract(machine((app, one), two, even).constants, machine((app, two), two, even).constants)[:2]
        for k, (app, one) in enumerate(cells)
        for j, (other, two) in enumerate(cells)
        if app == other and one < two and LABORATORY[one] == LABORATORY[two]
    ]
    wild = [*np.abs(apart), np.array(UNINFORMED.machine[:2])]
    deviations: np.ndarray = 1.4826 * np.median(wild, axis=0)  # one network gains far more from tensor cores
    return deviations


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
