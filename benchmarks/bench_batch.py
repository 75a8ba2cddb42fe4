"""Is a model as good from batches eight times as large, if the rate follows by the rule of its optimizer?

Three workloads, held-out scores sample by sample: the recommender (AdamW) and the regression (Adam) on the
embedded shop, a week held out, and scikit-learn's digits (SGD with momentum). Each run trains on the same
samples in the same order; eight times the batch is an eighth of the updates. The rate left as it was stands
beside it. A difference is the mean over held-out samples and seeds, held against the gate's margin.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks import frame
from benchmarks.eightfold import Trial, train
from daybreak.examples.shop.recommender import Recommender
from daybreak.examples.shop.regression import Regression
from tests.examples.digits import Digits

TIMES = 8
SEEDS = 1 if frame.QUICK else 3
DAY = "2026-03-04"
SHOP = ["source.start=2025-11-15", "ingest.history_days=120", "prepare.test_days=7"]


def main() -> None:
    """Train each workload three ways, and hold the differences against the margin."""
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    with shop() as arrays:
        for name, trial in trials(arrays).items():
            ruled, fixed = [], []
            for seed in range(SEEDS):
                one = train(trial, seed=seed)
                many = train(trial, times=TIMES, seed=seed)
                same = train(trial, times=TIMES, scaling="fixed", seed=seed)
                ruled.append(float((many.scores - one.scores).mean()))
                fixed.append(float((same.scores - one.scores).mean()))
                rows.append(
                    {
                        "workload": name,
                        "seed": seed,
                        "score at 1x": float(one.scores.mean()),
                        "8x by rule": ruled[-1],
                        "8x, rate as it was": fixed[-1],
                        "updates": f"{one.num_updates} -> {many.num_updates}",
                        "seconds": f"{one.seconds:.1f} -> {many.seconds:.1f}",
                    }
                )
            figures[f"{name}: 8x by rule - 1x"] = sum(ruled) / SEEDS
            figures[f"{name}: 8x, rate as it was - 1x"] = sum(fixed) / SEEDS
    frame.table(rows)
    frame.finish("batch", figures, {key: (">=", -frame.MARGIN) for key in figures if "by rule" in key})


@contextmanager
def shop() -> Iterator[Path]:
    """Arrays of the embedded shop, as its night makes them."""
    with frame.home() as home:
        frame.pipeline(home, "night", "--day", DAY, "--until", "prepare", *frame.sets(SHOP))
        yield home / "nights" / DAY / "data" / "arrays"


def trials(arrays: Path) -> dict[str, Trial]:
    """The workloads, and the batch that their rate is for."""
    return {
        "digits": DIGITS,
        "regression": Trial(Regression(), arrays, 32, 2e-3, 5),
        "recommender": Trial(Recommender(num_candidates=100, num_popular=50), arrays, 64, 2e-3, 2),
    }


DIGITS = Trial(Digits(), Path(tempfile.gettempdir()), 16, 0.02, 15)


if __name__ == "__main__":
    main()
