"""How well is the time of an update predicted? On 10,584 steps that others measured, by the model of nights.

Four networks on three clusters (step_times.py): each is profiled on one device, and steps are fed in as
nights that took so long; `update_time.at` predicts the rest, as it does for a plan. Priors never saw the
network (leave one application out), or never saw the cluster (leave one cluster out); each cell is predicted
under both. From a random fifth of its steps, from seven at random (the profile has seen the ends of the
batch on one device), from at most 8 devices to more, and from another kind of device, with seven nights
there and 0, 1, 3, or 7 here. Errors are medians over steps, an interval covers if the time is in it.

A cell is non-smooth if, by the measured fifth alone, a step differs by more than ROUGH from what the others
predict for it, in the median.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from benchmarks import frame
from benchmarks.fit_priors import CELLS, Cell, without
from benchmarks.step_times import APPS, CLUSTERS, DEVICES, PARAMETERS, line, steps
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Line
from daybreak.contract.record_types import Profile
from daybreak.machines.catalog import rented
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime
from daybreak.prediction.measurements import Measurement, StepSetting
from daybreak.prediction.priors import Priors
from daybreak.prediction.update_time import at, by_profile
from tests.planning.jobs import with_speeds

DRAWS_OF_SEVEN = 2 if frame.QUICK else 4
DRAWS_ELSEWHERE = 1 if frame.QUICK else 2
MOST = 60 if frame.QUICK else 120  # steps of each draw that are predicted
MOST_KNOWN = 200  # nights of a draw
NIGHTS = (0, 1, 3, 7)
ROUGH = 0.045
Z90 = 1.6449


@cache
def machine(cluster: str) -> Machine:
    """A machine of a cluster."""
    device = DEVICES[cluster]
    return with_speeds(
        next(iter(rented())),
        name=cluster,
        device=device.name,
        num_devices=device.per_machine,
        vcpus=96,
        flops_per_s=device.flops_per_s,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        link_bytes_per_s=device.link_bytes_per_s,
        network_bytes_per_s=device.network_bytes_per_s,
    )


@cache
def profile(cell: Cell) -> Profile:
    """What a night measures of a network on one device of a cluster: the ends of the batch."""
    fixed, per_sample = line(steps()[cell])
    nothing = Line(fixed=0.0, per_sample=0.0, fixed_error=0.0, per_sample_error=0.0)
    return Profile(
        device=DEVICES[cell[1]].name,
        load_s=nothing,
        step_s=Line(fixed=fixed, per_sample=per_sample, fixed_error=0.0, per_sample_error=0.0),
        memory_bytes=nothing,
        sync_bytes=Line(fixed=4 * PARAMETERS[cell[0]], per_sample=0.0, fixed_error=0.0, per_sample_error=0.0),
        flops_per_sample=0.0,
        noise_scale=1000.0,
        bound="compute",
        evidence={},
        remedies=(),
    )


def predicted(cell: Cell, setting: StepSetting, *, on: str, known: CostCalibration) -> tuple[float, float]:
    """Seconds of an update and the deviation of their logarithm, by the profile of that cell."""
    timed = at(
        profile(cell),
        machine(on),
        measured=machine(cell[1]),
        known=known,
        setting=StepSetting(workers=setting.workers, micro_batch_size=setting.micro_batch_size),
    )
    high = sum(part.seconds * np.exp(Z90 * part.spread) for part in timed.parts)
    return timed.seconds, float(np.log(high / timed.seconds)) / Z90


def after(nights: Sequence[PastUpdateTime], priors: Priors) -> CostCalibration:
    """What is known after some nights of a trainer that sums gradients while it computes others."""
    return CostCalibration.of(nights, priors=priors, overlapped=True, night=priors.residual.noise)


def nights(cell: Cell, rows: Sequence[Measurement], priors: Priors, *, on: str) -> list[PastUpdateTime]:
    """The nights that took as long as these steps, as the ledger's reader would tell them."""
    there, here = machine(on), machine(cell[1])
    plain = by_profile(profile(cell), there, measured=here, roofline=priors.roofline)
    return [
        PastUpdateTime(
            machine=on,
            device=DEVICES[on].name,
            measured_here=on == cell[1],
            update=plain,
            setting=StepSetting(workers=row.workers, micro_batch_size=row.micro_batch_size),
            ratio=row.step_s / predicted(cell, row, on=on, known=after((), priors))[0],
        )
        for row in rows
    ]


def judged(
    cell: Cell, rest: Sequence[Measurement], known: CostCalibration, *, on: str, rng: np.random.Generator
) -> np.ndarray:
    """Median error, coverage and half-width of intervals on some of the rest."""
    chosen = [rest[k] for k in rng.permutation(len(rest))[:MOST]]
    forecasts = np.array([predicted(cell, row, on=on, known=known) for row in chosen])
    actual = np.array([row.step_s for row in chosen])
    covered = np.abs(np.log(actual / forecasts[:, 0])) <= Z90 * forecasts[:, 1]
    return np.array(
        [
            np.median(np.abs(forecasts[:, 0] / actual - 1)),
            covered.mean(),
            np.median(np.expm1(Z90 * forecasts[:, 1])),
        ]
    )


def split(
    cell: Cell, chosen: np.ndarray, priors: Priors, rng: np.random.Generator
) -> tuple[np.ndarray, float]:
    """Fits the chosen steps of a cell; returns judgements of its other steps, and the misfit."""
    rows = steps()[cell]
    measured = [row for row, known in zip(rows, chosen, strict=True) if known]
    measured = [measured[k] for k in rng.permutation(len(measured))[:MOST_KNOWN]]
    known = after(nights(cell, measured, priors, on=cell[1]), priors)
    rest = [row for row, taken in zip(rows, chosen, strict=True) if not taken]
    return judged(cell, rest, known, on=cell[1], rng=rng), known.misfit


def elsewhere(app: str, there: str, here: str, priors: Priors, rng: np.random.Generator) -> np.ndarray:
    """What is judged of another cluster after a profile and seven nights there, by the nights here."""
    cell = (app, there)
    first = nights(cell, some(steps()[cell], max(NIGHTS), rng), priors, on=there)
    rows = steps()[app, here]
    second = nights(cell, some(rows, max(NIGHTS), rng), priors, on=here)
    return np.stack(
        [judged(cell, rows, after([*first, *second[:number]], priors), on=here, rng=rng) for number in NIGHTS]
    )


def some(rows: Sequence[Measurement], number: int, rng: np.random.Generator) -> list[Measurement]:
    """So many of them at random."""
    return [rows[k] for k in rng.permutation(len(rows))[:number]]


def fold(cell: Cell, priors: Priors) -> dict[str, np.ndarray | float]:
    """What is judged of a cell with priors that have not seen it."""
    rows, rng = steps()[cell], np.random.default_rng(0)
    fifth, misfit = split(cell, rng.random(len(rows)) < 0.2, priors, rng)
    small = np.array([row.num_workers <= 8 for row in rows])
    sevens = []
    for _ in range(DRAWS_OF_SEVEN):
        chosen = np.zeros(len(rows), bool)
        chosen[rng.permutation(len(rows))[:7]] = True
        sevens.append(split(cell, chosen, priors, rng)[0])
    return {
        "a fifth": fifth,
        "misfit": misfit,
        "beyond": split(cell, small, priors, rng)[0],
        "seven": np.mean(sevens, axis=0),
    }


def main() -> None:
    """Predict each cell under both folds, and hold errors and coverage against their targets."""
    table: list[dict[str, object]] = []
    folds: list[tuple[Cell, dict[str, np.ndarray | float]]] = []
    moved = []
    for cell in CELLS:
        for left_out, priors in (
            ("application", without(app=cell[0])),
            ("cluster", without(cluster=cell[1])),
        ):
            result = fold(cell, priors)
            folds.append((cell, result))
            table.append(
                {"cell": " ".join(cell), "left out": left_out, "non-smooth": bool(result["misfit"] > ROUGH)}
                | {
                    f"{way}, {name} %": 100 * value
                    for way in ("a fifth", "seven", "beyond")
                    for name, value in zip(("error", "covered"), result[way], strict=False)
                }
            )
    frame.table(table)
    rng = np.random.default_rng(0)
    for app in APPS:
        for there in CLUSTERS:
            for here in CLUSTERS:
                if there != here:
                    moved += [
                        elsewhere(app, there, here, without(app=app), rng) for _ in range(DRAWS_ELSEWHERE)
                    ]
    figures: dict[str, float] = {}
    targets: dict[str, frame.Target] = {}
    rough = {cell for cell, result in folds if result["misfit"] > ROUGH}
    smooth = [result for cell, result in folds if cell not in rough]
    wild = [result for cell, result in folds if cell in rough]
    figures["non-smooth cells %"] = 100 * len(rough) / len(CELLS)
    figures["a fifth, worst error of a smooth cell %"] = 100 * max(result["a fifth"][0] for result in smooth)
    figures["a fifth, worst error of a non-smooth cell %"] = 100 * max(
        (result["a fifth"][0] for result in wild), default=0.0
    )
    for way in ("a fifth", "seven", "beyond"):
        every = np.array([result[way] for _, result in folds])
        figures[f"{way}, error %"] = 100 * every[:, 0].mean()
        figures[f"{way}, worst cell's error %"] = 100 * every[:, 0].max()
        figures[f"{way}, coverage %"] = 100 * every[:, 1].mean()
        figures[f"{way}, least coverage %"] = 100 * every[:, 1].min()
    for number, each in zip(NIGHTS, np.mean(moved, axis=0), strict=True):
        figures[f"another device, {number} nights, error %"] = 100 * each[0]
        figures[f"another device, {number} nights, coverage %"] = 100 * each[1]
        targets[f"another device, {number} nights, coverage %"] = (">=", 80)
    errors = [figures[f"another device, {number} nights, error %"] for number in NIGHTS]
    figures["another device, error falls with each"] = float(errors == sorted(errors, reverse=True))
    targets |= {
        "non-smooth cells %": ("<=", 25),
        "a fifth, worst error of a smooth cell %": ("<=", 5),
        "a fifth, worst error of a non-smooth cell %": ("<=", 8),
        "seven, error %": ("<=", 8),
        "seven, coverage %": (">=", 85),
        "beyond, error %": ("<=", 10),
        "another device, error falls with each": ("==", 1),
    }
    frame.finish("throughput", figures, targets)


if __name__ == "__main__":
    main()
