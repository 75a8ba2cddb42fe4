"""Formats numbers and words for people: one function a kind, the same on every page and in the terminal.

An unknown number is an en dash; the minus is a true minus sign, so that columns of figures line up.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from statistics import median_low

NONE = "–"
FAR = 5.0  # times the median of bars, beyond which a bar is cut off
LEAST_SHARE = 1e-6  # that is shown as a figure
LEAST_OF_FOUR, MOST_DECIMALS = 1e-3, 8  # least score that four decimals show, and the most of them
LONGEST_ID = 20  # characters of a night's id that people read as it is
SHORT_ID = r".{1,12}-[0-9a-f]{4}"
_DURATIONS = (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))


def one_line(text: str) -> str:
    r"""Returns words that came from elsewhere on one line, without characters that steer a terminal or a log.

    >>> one_line("late\r\n\nServes: 7\x1b[2J")
    'late Serves: 7 [2J'
    """
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def short_id(night: str) -> str:
    """Returns a short form of a night's id: of a long id, such as Airflow's, the kind and a digest.

    `--night` takes either form.

    >>> short_id("2026-11-18"), short_id("manual__2026-11-21T20-26-01.192720-00-00")
    ('2026-11-18', 'manual-57b6')
    """
    if len(night) <= LONGEST_ID:
        return night
    return f"{night.partition('__')[0][:12]}-{hashlib.sha256(night.encode()).hexdigest()[:4]}"


def night_name(night: str, day: date | str) -> str:
    """Returns the name of a night in a list: the day, with the id if the id is not just the day.

    >>> night_name("manual__2026-11-21T20-26-01.192720-00-00", date(2026, 11, 18))
    '2026-11-18 manual-57b6'
    """
    return str(day) if night == str(day) else f"{day} {short_id(night)}"


def count(number: float | None) -> str:
    """Returns a count with its thousands apart.

    >>> count(1234567)
    '1,234,567'
    """
    return NONE if number is None else f"{number:,.0f}".replace("-", "−")


def counted(number: int, noun: str) -> str:
    """Returns a count with its noun.

    >>> counted(1, "night"), counted(1200, "night")
    ('1 night', '1,200 nights')
    """
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """Returns seconds in the two largest units that matter.

    >>> duration(0.00123), duration(12.34), duration(4800), duration(64800)
    ('1.23 ms', '12.3 s', '1 h 20 min', '18 h')
    """
    if seconds is None:
        return NONE
    sign, seconds = ("−", -seconds) if seconds < 0 else ("", seconds)
    for name, size, small_name, small_size in _DURATIONS:
        rounded = round(seconds / small_size) * small_size
        if rounded >= size:
            large, small = divmod(rounded, size)
            rest = f" {small // small_size} {small_name}" if small else ""
            return f"{sign}{large} {name}{rest}"
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * least or seconds == 0:  # which three digits round to 1
            return f"{sign}{seconds / least:.3g} {unit}"
    return f"{sign}{seconds * 1e6:.3g} µs"


def dollars(amount: float | None) -> str:
    """Returns US dollars; an amount below a cent keeps two digits.

    >>> dollars(0.42), dollars(0), dollars(0.00421), dollars(1234.5)
    ('$0.42', '$0.00', '$0.0042', '$1,234.50')
    """
    if amount is None:
        return NONE
    sign, amount = ("−", -amount) if amount < 0 else ("", amount)
    return f"{sign}${amount:.2g}" if 1e-4 <= amount < 0.00995 else f"{sign}${amount:,.2f}"


def told_apart(one: float, other: float) -> tuple[str, ...]:
    """Returns two amounts of US dollars with as many digits as tell them apart, six at most.

    >>> told_apart(2, 4), told_apart(0.7068, 0.7045), told_apart(1, 1)
    (('$2.00', '$4.00'), ('$0.71', '$0.70'), ('$1.00', '$1.00'))
    """
    if one == other:
        return dollars(one), dollars(other)
    return _distinct((one, other), lambda amount, digits: f"${amount:,.{digits}f}", digits=range(2, 7))


def _distinct(
    values: Sequence[float], show: Callable[[float, int], str], *, digits: range, others: Sequence[float] = ()
) -> tuple[str, ...]:
    """Returns numbers with as many of the digits as tell them apart, and from others; else with the least."""
    different = {*values, *others}
    for number in digits:
        if len({show(value, number) for value in different}) == len(different):
            return tuple(show(value, number) for value in values)
    return tuple(show(value, digits[0]) for value in values)


def size(num_bytes: float | None) -> str:
    """Returns bytes in decimal units.

    >>> size(512), size(1_230_000)
    ('512 B', '1.23 MB')
    """
    if num_bytes is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if abs(num_bytes) < 999.5 or unit == "PB":
            break
        num_bytes /= 1000
    digits = ",.0f" if abs(num_bytes) >= 999.5 else ".3g"  # beyond the largest unit
    return f"{num_bytes:{digits}} {unit}".replace("-", "−")


def decimals(*values: float, signed: bool = False) -> tuple[str, ...]:
    """Returns scores that are read together, with as many decimals as tell them apart.

    These are four, as of a share or a logarithm; fewer of large scores, and more where the scores, or what
    they are apart by, are small. Very small ones are written by a power of ten.

    >>> decimals(0.0013, -0.0015, 0.004, signed=True)
    ('+0.0013', '-0.0015', '+0.0040')
    >>> decimals(14524.7906, 13546.1323), decimals(0.0000021, 0.0000018)
    (('14,525', '13,546'), ('0.00000210', '0.00000180'))
    >>> decimals(2.73e-13, -2.9e-14)
    ('2.73e-13', '-2.90e-14')
    """
    finite = [abs(value) for value in values if math.isfinite(value)]
    largest = max(finite, default=0.0)
    apart = max(values) - min(values) if len(finite) == len(values) else 0.0
    scale = apart or largest
    num_decimals = 4
    if 0 < scale < LEAST_OF_FOUR:
        num_decimals = math.ceil(-math.log10(scale)) + 1
    elif largest >= 100:
        num_decimals = 1 if largest < 10_000 else 0
    sign = "+" if signed else ""
    form = f"{sign},.{num_decimals}f" if num_decimals <= MOST_DECIMALS or largest > 1 else f"{sign}.2e"
    return tuple(f"{value:{form}}" for value in values)


def score(value: float | None) -> str:
    """Returns a score with three decimals, or as many as it needs.

    >>> score(0.35), score(8654.21), score(0.0000021)
    ('0.350', '8,654.2', '0.0000021')
    """
    if value is None:
        return NONE
    text = f"{value:.3f}" if LEAST_OF_FOUR <= abs(value) < 100 or not value else decimals(value)[0]
    return text.replace("-", "−")


def effect(value: float | None) -> str:
    """Returns a difference of scores, with its sign and four decimals, or as many as it needs.

    >>> effect(-0.0123), effect(0.002), effect(-0.00001), effect(0.0)
    ('−0.0123', '+0.0020', '−0.000010', '0.0000')
    """
    if value is None:
        return NONE
    return decimals(value, signed=True)[0].replace("-", "−") if value else "0.0000"


def percent(share: float | None) -> str:
    """Returns a share of one, in percent; none but 0 and 1 is shown as 0 % or 100 %.

    >>> percent(0.1234), percent(0.0003), percent(1e-9), percent(0), percent(0.9998), percent(1)
    ('12.3 %', '0.03 %', '< 0.0001 %', '0 %', '99.98 %', '100 %')
    """
    return NONE if share is None else percents(share)[0]


def percents(*shares: float) -> tuple[str, ...]:
    """Returns shares of 1 in percent, with enough digits to distinguish them.

    >>> percents(0.0104, 0.0001), percents(0.0501, 0.05), percents(0.2, 0.1)
    (('1.04 %', '0.01 %'), ('5.01 %', '5 %'), ('20 %', '10 %'))
    """

    def show(share: float, digits: int) -> str:
        text = f"{share * 100:.{digits}f}"
        return text.rstrip("0").rstrip(".").replace("-", "−") + " %"

    shown = [share for share in shares if not 0 < share < LEAST_SHARE]
    texts = dict(zip(shown, _distinct(shown, show, digits=range(1, 5), others=(0.0, 1.0)), strict=True))
    return tuple(texts.get(share, "< 0.0001 %") for share in shares)


def quantity(value: object) -> str:
    """Returns any figure of which only the value is known, to four digits.

    >>> quantity(12345.678), quantity(0.01234), quantity(True), quantity("cpu")
    ('12,346', '0.01234', 'yes', 'cpu')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        plain = f"{value:,.0f}" if 1e3 <= abs(value) < 1e15 else f"{value:.4g}"
        return plain.replace("-", "−")
    # Arrays compare by element.
    return NONE if value is None or (isinstance(value, str) and not value) else str(value)


def operations(value: float) -> str:
    """Returns a large number by its prefix: mega, giga, tera.

    >>> operations(27_117_360.0), operations(12.0)
    ('27.1 M', '12')
    """
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}".replace("-", "−")
    return quantity(value)


def clock(moment: datetime | None) -> str:
    """Returns a time in UTC.

    >>> clock(datetime(2011, 9, 1, 2, 30))
    '2011-09-01 02:30 UTC'
    """
    return NONE if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"


def days(dates: Iterable[date], most: int = 3) -> str:
    """Returns days as ranges, the newest `most` of them, and how many days there are where it has more.

    >>> days([date(2011, 9, 1), date(2011, 9, 2), date(2011, 9, 5)])
    '2011-09-05, 2011-09-01 to 2011-09-02'
    >>> days([date(2011, 9, day) for day in range(1, 30, 2)], most=1)
    '2011-09-29 and 14 more'
    """
    ranges: list[tuple[date, date]] = []
    for day in sorted(set(dates), reverse=True):
        if ranges and ranges[-1][0] - day == timedelta(days=1):
            ranges[-1] = (day, ranges[-1][1])
        else:
            ranges.append((day, day))
    shown = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:most])
    more = sum((last - first).days + 1 for first, last in ranges[most:])
    return f"{shown} and {count(more)} more" if more else shown


def top_of(values: Sequence[float | None]) -> float | None:
    """Returns the highest value that a chart from 0 need show; None for none.

    A value far beyond the others, as of a first night that takes in all of the past, would flatten them.
    """
    known = [v for v in values if v is not None]
    if not known:
        return None
    usual = median_low(v for v in known if v > 0) if any(known) else 0.0
    return max(v for v in known if v <= FAR * usual)
