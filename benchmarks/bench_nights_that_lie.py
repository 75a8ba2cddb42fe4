"""Is the forecast true again five nights after something lied? 200 histories of nights, one setting each.

A history is of a network on a cluster (step_times.py), by priors that never saw the network. Its true nights
take as long as a measured step, but for a night-to-night deviation of NIGHT. Before or among them lies:

    wrong clocks     one to three nights first that say 1/13, 1/3, 3 or 13 times what they took
    one bad night    among the five, one more that took 1.5 to 5 times as long
    changed batch    five nights first with another batch, as long as those were measured to take
    changed network  five nights first of another network, by its own profile
    nothing          the control

The forecast after five true nights holds if the next true night is in its interval of 90 %. Coverage is also
counted after each of the true nights, as a night is planned after each.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks import frame
from benchmarks.bench_throughput import Z90, nights, predicted
from benchmarks.fit_priors import CELLS, Cell, without
from benchmarks.step_times import APPS, steps
from daybreak.prediction.calibration import CostCalibration, PastUpdateTime
from daybreak.prediction.measurements import Measurement
from daybreak.prediction.priors import priors

HISTORIES = 40 if frame.QUICK else 200
TRUE = 5
NIGHT = priors().assumed.night
LIES = ("wrong clocks", "one bad night", "changed batch", "changed network", "nothing")


def lasting(
    cell: Cell, row: Measurement, rng: np.random.Generator, *, number: int = 1
) -> list[PastUpdateTime]:
    """True nights in the setting of a step: each takes as long, but for what nights differ by."""
    took = np.exp(NIGHT * rng.normal(size=number))
    return nights(cell, [replace(row, step_s=row.step_s * t) for t in took], without(app=cell[0]), on=cell[1])


def lies(kind: str, cell: Cell, row: Measurement, rng: np.random.Generator) -> list[PastUpdateTime]:
    """The nights before the true ones."""
    if kind == "wrong clocks":
        wrong = rng.choice([1 / 13, 1 / 3, 3, 13])
        true = lasting(cell, row, rng, number=int(rng.integers(1, 4)))
        return [replace(each, ratio=each.ratio * wrong) for each in true]
    if kind == "changed batch":
        others = [
            r
            for r in steps()[cell]
            if r.workers == row.workers and r.micro_batch_size != row.micro_batch_size
        ]
        return lasting(cell, others[rng.integers(len(others))], rng, number=TRUE) if others else []
    if kind == "changed network":
        other = (str(rng.choice([app for app in APPS if app != cell[0]])), cell[1])
        rows = steps()[other]
        return lasting(other, rows[rng.integers(len(rows))], rng, number=TRUE)
    return []


def holds(
    known: Sequence[PastUpdateTime], cell: Cell, row: Measurement, rng: np.random.Generator
) -> tuple[bool, float]:
    """Whether the next true night is in the interval, and the error of the forecast."""
    calibration = CostCalibration.of(known, priors=without(app=cell[0]), overlapped=True)
    seconds, spread = predicted(cell, row, on=cell[1], known=calibration)
    took = row.step_s * float(np.exp(NIGHT * rng.normal()))
    return abs(np.log(took / seconds)) <= Z90 * spread, abs(seconds / took - 1)


def history(number: int) -> tuple[str, list[bool], float]:
    """What lied, whether the forecast held after each number of true nights, and the error after all."""
    rng = np.random.default_rng([24, number])
    kind, cell = LIES[number % len(LIES)], CELLS[rng.integers(len(CELLS))]
    row = steps()[cell][rng.integers(len(steps()[cell]))]
    before, true = lies(kind, cell, row, rng), lasting(cell, row, rng, number=TRUE)
    if kind == "one bad night":
        place = int(rng.integers(TRUE + 1))
        bad = replace(true[0], ratio=true[0].ratio * float(rng.uniform(1.5, 5)))
        true = [*true[:place], bad, *true[place:]]
    forecasts = [holds([*before, *true[:count]], cell, row, rng) for count in range(1, len(true) + 1)]
    return kind, [held for held, _ in forecasts], forecasts[-1][1]


def main() -> None:
    """Live through all histories, and hold coverage against its targets."""
    histories = [history(number) for number in range(HISTORIES)]
    frame.table(
        [
            {
                "lie": kind,
                "histories": len(of_kind),
                "held after five %": 100 * float(np.mean([held[-1] for held, _ in of_kind])),
                "held each night %": 100 * float(np.mean([h for held, _ in of_kind for h in held])),
                "median error after five %": 100 * float(np.median([error for _, error in of_kind])),
            }
            for kind in LIES
            for of_kind in [[(held, error) for lie, held, error in histories if lie == kind]]
        ]
    )
    figures = {
        "held after five true nights %": 100 * float(np.mean([held[-1] for _, held, _ in histories])),
        "held on each night %": 100 * float(np.mean([h for _, held, _ in histories for h in held])),
        "median error after five %": 100 * float(np.median([error for _, _, error in histories])),
    }
    for kind in LIES:
        figures[f"{kind}: held after five %"] = 100 * float(
            np.mean([held[-1] for lie, held, _ in histories if lie == kind])
        )
    frame.finish("nights_that_lie", figures, {"held after five true nights %": (">=", 85)})


if __name__ == "__main__":
    main()
