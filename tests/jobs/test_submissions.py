"""What a job has taken is kept as often as it counts."""

from datetime import UTC, datetime
from pathlib import Path

from daybreak.contract.record_parts import Taken
from daybreak.jobs.submissions import JobAttempts


def test_each_batch_that_a_trigger_asks_for_is_kept_and_other_fallbacks_once(tmp_path: Path) -> None:
    """So that hysteresis begins anew with each, and the limit of how many are followed holds."""
    attempts = JobAttempts(tmp_path)
    for hour in (1, 2, 3):
        time = datetime(2026, 1, 2, hour, tzinfo=UTC)
        attempts.take(Taken(time=time, name="triggered batch", usd=0.0, reason="asked"), once=False)
        attempts.take(Taken(time=time, name="finish early", usd=0.0, reason="late"))
    kept = [(each.name, each.time.hour) for each in JobAttempts(tmp_path).taken]
    assert kept == [
        ("triggered batch", 1),
        ("finish early", 1),
        ("triggered batch", 2),
        ("triggered batch", 3),
    ]
