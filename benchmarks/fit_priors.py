"""Fits the priors of update times, pipeline/daybreak/prediction/priors.json, to measurements of others.

    python -m benchmarks.fit_priors     writes that file, from all cells of step_times.py

A cell is a network on a cluster. The constants of each cell give the priors' means and deviations, and the
amplitudes of the residual are those under which all cells are most likely (empirical Bayes). `without` fits
to the cells of other networks, or of other clusters, only: bench_throughput.py predicts with these.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from functools import cache

import numpy as np
from scipy.optimize import minimize

from benchmarks import frame
from benchmarks.step_times import APPS, CLUSTERS, DEVICES, PARAMETERS, line, middle, steps
from daybreak.prediction.priors import NAMES, Constants, Priors, Residual
from daybreak.prediction.priors import priors as shipped
from daybreak.prediction.step_time import FIXED, MANY, MIX, ONE, PER_SAMPLE
from daybreak.prediction.throughput import MachineKind, StepTime

MOST = 60 if frame.QUICK else 100  # steps of each cell
ROUNDS = 2
# Before any job is known; deviations of scales are wide enough for any.
UNINFORMED = Constants(
    mean=(0.0, 0.0, 0.0, 0.4, 0.2, 0.4, 0.0, 0.3, 0.5, 0.1),
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
AMPLITUDES = tuple(name for name in Residual.__annotations__ if not name.endswith("reach"))
LEAST, AROUND = 0.003, 1.0  # of an amplitude, and the deviation of its logarithm from START

Cell = tuple[str, str]
CELLS: tuple[Cell, ...] = tuple((app, cluster) for app in APPS for cluster in CLUSTERS)


@cache
def machine(cell: Cell, profiled_on: str) -> MachineKind:
    """Returns the machines of a cell as the model sees them, by a profile on a device of the cluster."""
    app, cluster = cell
    rows = steps()[app, profiled_on]
    fixed, per_sample = line(rows)
    fixed = max(fixed, 0.02 * per_sample * middle(rows))
    here, there = DEVICES[cluster], DEVICES[profiled_on]
    by_flops = there.flops_per_s / here.flops_per_s
    by_bandwidth = there.bandwidth_bytes_per_s / here.bandwidth_bytes_per_s
    num_bytes = 4 * PARAMETERS[app]
    within = np.log(num_bytes / here.link_bytes_per_s)
    across = np.log(num_bytes / here.network_bytes_per_s)
    constants = np.zeros(len(NAMES))
    constants[FIXED] = np.log(fixed)
    constants[PER_SAMPLE] = np.log(per_sample) + np.log(by_flops * by_bandwidth) / 2
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
    return StepTime(rows, machine_of=[0] * len(rows), machines=[machine(cell, cell[1])], priors=priors)


def learn(cells: Sequence[Cell]) -> Priors:
    """The priors that these cells have in common."""
    priors = replace(shipped(), constants=UNINFORMED, residual=START)
    for _ in range(ROUNDS):
        models = [fitted(cell, priors) for cell in cells]
        constants = _constants(cells, [model.constants for model in models])
        priors = replace(priors, constants=constants, residual=_residual(models, constants))
    return priors


def _constants(cells: Sequence[Cell], fits: Sequence[np.ndarray]) -> Constants:
    """Means and deviations of the cells' constants, relative to profile and roofline.

    One pseudo-cell of UNINFORMED keeps few cells from looking too alike.
    """
    relative = np.stack(
        [
            np.linalg.solve(MIX, fit - np.array(machine(cell, cell[1]).constants))
            for cell, fit in zip(cells, fits, strict=True)
        ]
    )
    number = len(cells)
    mean = (relative.sum(axis=0) + UNINFORMED.mean) / (number + 1)
    mean[[FIXED, PER_SAMPLE]] = 0.0  # a profile is not biased
    squares = np.sum(np.square(relative - mean), axis=0) + np.square(UNINFORMED.profiled)
    spread = np.sqrt(squares / (number + 1))
    # Between machines of one job, and between devices: constants of both against the roofline of the other.
    apart = [
        (fits[k][:2] - fits[j][:2])
        - (np.array(machine((app, one), two).constants) - np.array(machine((app, two), two).constants))[:2]
        for k, (app, one) in enumerate(cells)
        for j, (other, two) in enumerate(cells)
        if app == other and one < two
    ]
    wild = [*np.abs(apart), np.array(UNINFORMED.machine[:2])]
    machines = 1.4826 * np.median(wild, axis=0)  # one network gains far more from tensor cores than others
    half = spread / np.sqrt(2)  # of the job and of the machine, for want of many of either
    job, own, device = half.copy(), half.copy(), np.zeros(len(NAMES))
    job[[FIXED, PER_SAMPLE]] = spread[[FIXED, PER_SAMPLE]] / np.sqrt(2)
    own[:2] = device[:2] = machines / np.sqrt(2)
    return Constants(
        mean=tuple(mean), job=tuple(job), device=tuple(device), machine=tuple(own), profiled=tuple(half)
    )


def _residual(models: Sequence[StepTime], constants: Constants) -> Residual:
    """The amplitudes under which the cells are most likely, not far from START."""
    start = np.log([getattr(START, name) for name in AMPLITUDES])

    def loss(amplitudes: np.ndarray) -> float:
        values = np.maximum(LEAST, np.exp(amplitudes))
        residual = replace(START, **dict(zip(AMPLITUDES, map(float, values), strict=True)))
        priors = replace(shipped(), constants=constants, residual=residual)
        apart = np.sum(np.square((amplitudes - start) / AROUND)) / 2
        return float(sum(model.evidence(priors) for model in models) + apart)

    best = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 12, "eps": 0.02})
    values = np.maximum(LEAST, np.exp(best.x))
    return replace(START, **dict(zip(AMPLITUDES, map(float, values), strict=True)))


@cache
def without(*, app: str = "", cluster: str = "") -> Priors:
    """The priors of the cells of other networks and other clusters."""
    return learn([cell for cell in CELLS if cell[0] != app and cell[1] != cluster])


def text(priors: Priors, cells: Collection[Cell], assumed: object) -> str:
    """The file of priors: constants by name, amplitudes, where they come from, and what is assumed."""
    constants = {
        key: {name: round(value, 3) for name, value in zip(NAMES, values, strict=True)}
        for key, values in asdict(priors.constants).items()
    }
    residual = {key: round(value, 4) for key, value in asdict(priors.residual).items()}
    source = (
        f"python -m benchmarks.fit_priors: {len(cells)} cells, {', '.join(APPS)} on T4 "
        "(Pollux, OSDI'21) and on RTX 2080 Ti and A100 (Sia, SOSP'23)"
    )
    return (
        json.dumps(
            {"source": source, "constants": constants, "residual": residual, "assumed": assumed}, indent=1
        )
        + "\n"
    )


def main() -> None:
    """Fit to all cells, and write the file."""
    path = frame.ROOT / "pipeline" / "daybreak" / "prediction" / "priors.json"
    assumed = json.loads(path.read_text())["assumed"]
    path.write_text(text(learn(CELLS), CELLS, assumed))
    print(path.read_text())


if __name__ == "__main__":
    main()
