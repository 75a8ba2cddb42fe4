"""A recipe to try things with."""

from datetime import UTC, date, datetime
from typing import Any

from daybreak.training.recipe import LearningRate, Recipe, SaveTimes

NEVER = datetime(2100, 1, 1, tzinfo=UTC)


def recipe(**changed: Any) -> Recipe:
    """That of a hundred samples in batches of eight, with some of it, or of its rate and saves, changed."""
    values: dict[str, Any] = {
        "night": "n",
        "code_commit": "c",
        "workload": "a:A",
        "arguments": {},
        "arrays": "a",
        "data_digest": "d",
        "last_day": date(2026, 1, 1),
        "seed": 7,
        "num_samples": 100,
        "batch_size": 8,
        "micro_batch_size": 8,
        "train_until": NEVER,
    }
    rate = {"peak": 1.0, "warmup": 0.1, "decay": 0.3} | _of(LearningRate, changed)
    saves = {"every_s": 1e9} | _of(SaveTimes, changed)
    others = {name: value for name, value in changed.items() if name not in rate and name not in saves}
    return Recipe(rate=LearningRate(**rate), saves=SaveTimes(**saves), **values | others)


def _of(part: type[LearningRate | SaveTimes], changed: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changed.items() if name in part.__dataclass_fields__}
