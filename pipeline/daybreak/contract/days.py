"""Says when a day of data is over in a time zone: 23, 24 or 25 hours after it begins."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from daybreak.contract.errors import ParamsError

DAY = timedelta(days=1)
LAST = "Etc/GMT+12"  # the zone in which a day ends last


def check_zone(zone: str, *, of: str) -> None:
    """Raises ParamsError where a time zone is not known, as that of what `of` names."""
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder, as America
        raise ParamsError(f"{of} {zone!r} is not known; name one such as Europe/London") from None


def ends(day: date, zone: str) -> datetime:
    """Returns the moment, in UTC, at which a day is over in a zone.

    >>> (ends(date(2025, 3, 9), "America/New_York") - ends(date(2025, 3, 8), "America/New_York")).seconds
    82800
    """
    return datetime.combine(day + DAY, time(), ZoneInfo(zone)).astimezone(UTC)


def newest_over(zone: str, *, at: datetime) -> date:
    """Returns the newest day that is over in a zone at a moment.

    >>> newest_over("America/Los_Angeles", at=datetime(2025, 1, 3, 3, tzinfo=UTC))
    datetime.date(2025, 1, 1)
    """
    return at.astimezone(ZoneInfo(zone)).date() - DAY


def is_over_everywhere(day: date, *, at: datetime) -> bool:
    """Returns whether a day is over in whatever zone."""
    return day <= newest_over(LAST, at=at)


def check_over(day: date, zone: str, *, at: datetime) -> None:
    """Raises ParamsError where a day is not over in a zone."""
    newest = newest_over(zone, at=at)
    if day <= newest:
        return
    if day > newest + DAY:
        raise ParamsError(
            f"day {day} is in the future, today is {newest + DAY} in {zone}; ask for a day that is over"
        )
    raise ParamsError(
        f"day {day} is not over in {zone} until {ends(day, zone):%Y-%m-%d %H:%M} UTC; "
        f"ask for {newest}, or open the night then"
    )


def hours_of(day: date, zone: str) -> list[int]:
    """Returns the hours that the clocks of a zone show on a day, each once.

    >>> 2 in hours_of(date(2025, 3, 9), "America/New_York")
    False
    """
    end = ends(day, zone)
    moment = ends(day - DAY, zone) if day > date.min + DAY else end - DAY
    shown = set()
    while moment < end:
        shown.add(moment.astimezone(ZoneInfo(zone)).hour)
        moment += timedelta(minutes=15)  # zones change their clocks by quarters of an hour at least
    return sorted(shown)
