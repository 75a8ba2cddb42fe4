"""Days of 23 and 25 hours, leap days, ends of years: by real time zones."""

from datetime import UTC, date, datetime, timedelta

import pytest

from daybreak.contract.days import check_over, ends, hours_of, is_over_everywhere, newest_over
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import NightParams

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("zone", "day", "num_hours"),
    [
        ("America/New_York", date(2025, 3, 9), 23),
        ("America/New_York", date(2025, 11, 2), 25),
        ("Africa/Cairo", date(2025, 4, 25), 23),  # begins at 01:00
        ("Africa/Cairo", date(2025, 10, 30), 25),  # its last hour comes twice
        ("Australia/Lord_Howe", date(2025, 4, 6), 24.5),
        ("Pacific/Apia", date(2011, 12, 30), 0),  # never was
        ("Asia/Kolkata", date(2024, 2, 29), 24),
        ("America/St_Johns", date(2024, 12, 31), 24),
    ],
)
def test_days_are_as_long_as_their_zone_has_them_and_over_at_their_end(
    zone: str, day: date, num_hours: float
) -> None:
    begin, end = ends(day - DAY, zone), ends(day, zone)
    assert (end - begin) / timedelta(hours=1) == num_hours
    second = timedelta(seconds=1)
    assert newest_over(zone, at=end - second) < day <= newest_over(zone, at=end)
    check_over(day, zone, at=end)
    if num_hours:
        with pytest.raises(
            ParamsError, match=f"day {day} is not over in {zone} until {end:%Y-%m-%d %H:%M} UTC"
        ):
            check_over(day, zone, at=end - second)


@pytest.mark.parametrize(
    ("zone", "newest"),
    [
        ("America/Los_Angeles", date(2023, 12, 30)),
        ("UTC", date(2023, 12, 31)),
        ("Asia/Tokyo", date(2023, 12, 31)),
    ],
)
def test_at_three_in_the_night_of_utc_a_shop_in_california_is_a_day_behind(zone: str, newest: date) -> None:
    assert newest_over(zone, at=datetime(2024, 1, 1, 3, tzinfo=UTC)) == newest


def test_a_day_is_over_everywhere_at_noon_of_utc() -> None:
    day = date(2024, 2, 29)
    assert not is_over_everywhere(day, at=datetime(2024, 3, 1, 11, 59, tzinfo=UTC))
    assert is_over_everywhere(day, at=datetime(2024, 3, 1, 12, tzinfo=UTC))


def test_the_hours_that_clocks_show_leave_out_the_skipped_one_and_name_a_repeated_one_once() -> None:
    assert set(range(24)) - set(hours_of(date(2025, 3, 30), "Europe/Paris")) == {2}
    assert hours_of(date(2025, 10, 26), "Europe/Paris") == list(range(24))
    assert hours_of(date(2025, 3, 29), "America/Nuuk")[-1] == 22  # clocks go from 23:00 to 00:00


@pytest.mark.parametrize("far", [date(2999, 1, 1), date.max])
def test_a_day_in_the_future_is_refused(far: date) -> None:
    with pytest.raises(ParamsError, match="is in the future, today is 2025-01-02 in Asia/Tokyo; ask"):
        check_over(far, "Asia/Tokyo", at=datetime(2025, 1, 1, 20, tzinfo=UTC))


@pytest.mark.parametrize(
    "values",
    [
        {"time_zone": "Mars/Olympus"},
        {"time_zone": "America"},
        {"schedule": "at three"},
        {"schedule": "0 3 *"},
    ],
)
def test_a_zone_or_a_schedule_that_is_none_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no such time zone|should match pattern"):
        NightParams(**values)
