"""One day goes through every step, as `daybreak try` shows it."""

from pathlib import Path

from daybreak import rehearse


def test_one_day_goes_through_every_step() -> None:
    rehearse(Path(__file__).parent)
