"""How well is the time of an update predicted in a laboratory that no prior has seen?

Three laboratories (step_times.py): Pollux' T4, Sia's RTX 2080 Ti and A100, Gavel's K80 and P100. Priors are
fitted to the other two, and each network is predicted on each cluster of the third as a plan predicts it
(`update_time.at`, as in bench_throughput.py):

    seven    from a profile and seven steps at random
    new N    on another device of the laboratory, from a profile and seven steps on the first, and N there;
             Pollux has one, so its first are Sia's
    1 to 8   on up to eight devices, from a profile and one step on one device

A plain fit is Pollux' form with seven constants, by least squares of logarithms, to the same steps; elsewhere
it is scaled by the roofline, by the geometric mean of what the steps there took over the forecast, or,
after seven, fitted to these. Errors are medians over steps, then means over networks, devices and draws.

Steps of one network, between one pair of devices, are not independent. So a cell's coverage is the mean over
these groups, its variance that between them, and its interval that of Clopper and Pearson for as many
independent steps as have that variance. It passes if the interval of 90 % meets 85 to 95 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.stats import beta

from benchmarks import frame
from benchmarks.bench_throughput import NIGHTS, Z90, after, nights, predicted, some
from benchmarks.fit_priors import ALL_CELLS, Cell, without
from benchmarks.step_times import DEVICES, LABORATORY, steps
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.measurements import Measurement
from daybreak.prediction.priors import Priors
from daybreak.prediction.step_time import Points

DRAWS = 1 if frame.QUICK else 3
MOST = 60  # steps of a draw that are predicted
SEVEN = 7
NOISE = 0.03  # error that one night may add to a pair: steps that were repeated differ by 2 to 6 %


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Forecasts of some steps of one network against what they took."""

    group: str  # of draws that are not independent
    error: float  # median
    plain_error: float  # of the plain fit
    covered: float  # share


class PlainFit:
    """Pollux' form with seven constants, by least squares of logarithms."""

    def __init__(self, rows: Sequence[Measurement]) -> None:
        at, log = Points.of(rows, [0] * len(rows)), np.log([row.step_s for row in rows])
        pass_s, per_sample = log.mean() - 1, log.mean() - np.log(at.micro).mean() - 0.7
        start = np.array([pass_s, per_sample, pass_s - 1, pass_s - 3, pass_s - 1, pass_s - 3, -2])

        def loss(constants: np.ndarray) -> float:
            # The second term only keeps constants that no step shows where they began.
            squares = np.mean(np.square(self._log_s(constants, at) - log))
            return float(squares + 1e-4 * np.mean(np.square(constants - start)))

        bounds = [(each - 8, each + 8) for each in start]
        self._constants = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x

    def predict(self, rows: Sequence[Measurement]) -> np.ndarray:
        """Seconds of updates in these settings."""
        return np.exp(self._log_s(self._constants, Points.of(rows, [0] * len(rows))))

    @staticmethod
    def _log_s(constants: np.ndarray, at: Points) -> np.ndarray:
        a, b, one, one_more, many, many_more = np.exp(constants[:6])
        power = 1 + 9 / (1 + np.exp(-constants[6]))
        more = np.maximum(at.workers - 2, 0)
        sync = np.where(at.machines == 1, one + one_more * more, many + many_more * more) * (at.workers > 1)
        compute = a + b * at.micro
        return np.log(compute) + np.log1p((sync / compute) ** power) / power


def judged(
    cell: Cell, rows: Sequence[Measurement], known: CostCalibration, plain_s: np.ndarray, *, on: str
) -> Judged:
    """Forecasts of these steps by the profile of a cell, beside those of a plain fit."""
    forecasts = np.array([predicted(cell, row, on=on, known=known) for row in rows])
    took = np.array([row.step_s for row in rows])
    return Judged(
        group=f"{cell[0]} {cell[1]} {on}",
        error=float(np.median(np.abs(forecasts[:, 0] / took - 1))),
        plain_error=float(np.median(np.abs(plain_s / took - 1))),
        covered=float(np.mean(np.abs(np.log(took / forecasts[:, 0])) <= Z90 * forecasts[:, 1])),
    )


def in_one_device(cell: Cell, priors: Priors, rng: np.random.Generator) -> dict[str, Judged]:
    """Forecasts by a profile of the cell itself: from seven steps, and from one on one device."""
    rows = some(steps()[cell], SEVEN + MOST, rng)
    first, rest = rows[:SEVEN], rows[SEVEN:]
    alone = some([row for row in steps()[cell] if row.num_workers == 1], 1, rng)
    more = some([row for row in steps()[cell] if 1 < row.num_workers <= 8], MOST, rng)
    return {
        way: judged(
            cell,
            others,
            after(nights(cell, known, priors, on=cell[1]), priors),
            PlainFit(known).predict(others),
            on=cell[1],
        )
        for way, known, others in (("seven", first, rest), ("1 to 8", alone, more))
    }


def on_another(cell: Cell, here: str, priors: Priors, rng: np.random.Generator) -> dict[str, Judged]:
    """Forecasts of another device after a profile and seven steps in a cell, by steps there."""
    first, second = (some(steps()[each], SEVEN, rng) for each in (cell, (cell[0], here)))
    rest = some([row for row in steps()[cell[0], here] if row not in second], MOST, rng)
    before, there = nights(cell, first, priors, on=cell[1]), nights(cell, second, priors, on=here)
    plain = PlainFit(first)
    by_nights = {}
    for number in NIGHTS:
        took = np.array([row.step_s for row in second[:number]])
        scale = (
            np.exp(np.mean(np.log(took / plain.predict(second[:number])))) if number else roofline(cell, here)
        )
        plain_s = PlainFit(second).predict(rest) if number == SEVEN else scale * plain.predict(rest)
        known = after([*before, *there[:number]], priors)
        by_nights[f"new {number}"] = judged(cell, rest, known, plain_s, on=here)
    return by_nights


def roofline(cell: Cell, here: str) -> float:
    """Slowdown between two devices by their data sheets."""
    there, new = DEVICES[cell[1]], DEVICES[here]
    by_bandwidth = there.bandwidth_bytes_per_s / new.bandwidth_bytes_per_s
    return float(np.sqrt(there.flops_per_s / new.flops_per_s * by_bandwidth))


def pairs(laboratory: str) -> list[tuple[Cell, str]]:
    """The cells whose network was measured on another device of the laboratory, each with that device."""
    from_ = {"Pollux": "Sia"}.get(laboratory, laboratory)
    return [
        (cell, here)
        for cell in ALL_CELLS
        for app, here in ALL_CELLS
        if (app, LABORATORY[cell[1]], LABORATORY[here]) == (cell[0], from_, laboratory) and here != cell[1]
    ]


def coverage(cell: Sequence[Judged]) -> tuple[float, float, float]:
    """Coverage of a cell, and its exact interval of 90 %, as in the module docstring."""
    names = sorted({each.group for each in cell})
    groups = np.array([np.mean([each.covered for each in cell if each.group == name]) for name in names])
    share, most = float(groups.mean()), len(cell) * MOST
    variance = float(groups.var(ddof=1)) / len(groups)
    number = min(most, max(len(groups), share * (1 - share) / variance)) if variance > 0 else most
    held = share * number
    low = beta.ppf(0.05, held, number - held + 1) if held > 0 else 0.0
    high = beta.ppf(0.95, held + 1, number - held) if held < number else 1.0
    return share, float(low), float(high)


def main() -> None:
    """Predict each laboratory by priors of the others, and hold errors and coverage against their targets."""
    cells: dict[tuple[str, str], list[Judged]] = {}
    for laboratory in dict.fromkeys(LABORATORY.values()):
        priors, rng = without(laboratory=laboratory), np.random.default_rng(0)
        own = [cell for cell in ALL_CELLS if LABORATORY[cell[1]] == laboratory]
        for _ in range(DRAWS):
            found = [in_one_device(cell, priors, rng) for cell in own]
            found += [on_another(cell, here, priors, rng) for cell, here in pairs(laboratory)]
            for each in found:
                for way, result in each.items():
                    cells.setdefault((laboratory, way), []).append(result)
    table: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    for (laboratory, way), cell in sorted(cells.items()):
        share, low, high = coverage(cell)
        error, plain = (
            100 * float(np.mean([getattr(each, name) for each in cell])) for name in ("error", "plain_error")
        )
        name = f"{laboratory}, {way}"
        passes = low <= 0.95 and high >= 0.85
        table.append(
            {
                "laboratory": laboratory,
                "by": way,
                "error %": error,
                "plain fit %": plain,
                "covered %": 100 * share,
                "from %": 100 * low,
                "to %": 100 * high,
                "least covered %": 100 * min(each.covered for each in cell),
                "holds": passes,
            }
        )
        figures |= {
            f"{name}: error %": error,
            f"{name}: plain fit %": plain,
            f"{name}: coverage %": 100 * share,
        }
    frame.table(table)
    figures["cells whose coverage holds %"] = 100 * float(np.mean([bool(row["holds"]) for row in table]))
    figures["cells with at most the plain fit's error %"] = 100 * float(
        np.mean(
            [figures[f"{lab}, {way}: error %"] <= figures[f"{lab}, {way}: plain fit %"] for lab, way in cells]
        )
    )
    changes = np.array(
        [
            one.error - none.error
            for laboratory in dict.fromkeys(LABORATORY.values())
            for none, one in zip(cells[laboratory, "new 0"], cells[laboratory, "new 1"], strict=True)
        ]
    )
    figures["draws that one night makes worse %"] = 100 * float(np.mean(changes > NOISE))
    figures["most that one night adds to an error %"] = 100 * float(changes.max())
    targets: dict[str, frame.Target] = {
        "cells whose coverage holds %": ("==", 100),
        "cells with at most the plain fit's error %": ("==", 100),
        "draws that one night makes worse %": ("==", 0),
    }
    frame.finish("laboratories", figures, targets)


if __name__ == "__main__":
    main()
