"""A recipe to try things with."""

from datetime import UTC, date, datetime
from typing import Any

from daybreak.training.recipe import Recipe

NEVER = datetime(2100, 1, 1, tzinfo=UTC)


def recipe(**changed: Any) -> Recipe:
    """That of a hundred samples in batches of eight, with some of it changed."""
    values: dict[str, Any] = {
        "night": "n",
        "code_commit": "c",
        "workload": "a:A",
        "arguments": {},
        "arrays": "a",
        "data_digest": "d",
        "last_day": date(2026, 1, 1),
        "warm_from": "",
        "warm_digest": "",
        "seed": 7,
        "num_samples": 100,
        "batch_size": 8,
        "micro_batch_size": 8,
        "rate": 1.0,
        "warmup": 0.1,
        "decay": 0.3,
        "checkpoint_every_s": 1e9,
        "train_until": NEVER,
    }
    return Recipe(**{**values, **changed})
