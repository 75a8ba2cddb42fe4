"""Writes the suite of a new home: limits that the history keeps with room to spare."""

import contextlib
import math
from typing import TYPE_CHECKING

from daybreak.contract.table import Float, Int
from daybreak.extensions.init.names import literal
from daybreak.extensions.init.survey_days import A_YEAR

if TYPE_CHECKING:
    from daybreak.extensions.init.survey import Survey


def expectations_text(survey: "Survey") -> str:
    """Returns the suite: limits that the history keeps with room to spare, each to be reviewed.

    Less than a year of history has not seen all seasons, so that room is ten times as much.
    """
    room = 1 if (survey.days[-1] - survey.days[0]).days >= A_YEAR else 10
    usual = {"low": survey.least_rows // (2 * room), "high": _rounded_up(2.0 * room * survey.most_rows)}
    days = [_rule("a day has as many rows as usual", "num_rows", column="(rows)", **usual)]
    figures = []
    for name, share in survey.nulls.items():
        figure = f"nulls_of_{name}"
        quoted = name.replace('"', '""')
        share_of_nulls = f'avg(("{quoted}" IS NULL)::INT)'
        figures.append(f"  {literal(figure)}: {literal(share_of_nulls)}")
        high = min(1.0, _rounded_up(2 * share + 0.01 * room))
        days.append(_rule(f"{name} is null no more than usual", figure, column=name, high=high))
    rows = []
    for name, (low, high) in survey.ranges.items():
        column = survey.table.columns[name]
        span = room * ((high - low) or abs(high) or 1.0)
        bounded = isinstance(column, Int | Float) and column.min is not None
        below, above = _bound(span - low), _bound(high + span)
        least = None if bounded or below is None else -below
        if least is not None or above is not None:
            rows.append(_rule(f"{name} is in the range seen, widened", name, low=least, high=above))
    drift = [
        f"  {literal(name)}: {'off' if limit is None else f'{limit:g}'}  # review"
        for name, limit in survey.drift.items()
    ]
    if survey.images:
        rows.append('  - {name: "the images decode", python: "daybreak:decodes"}')
    seen = f"{len(survey.days)} days, {survey.days[0]} to {survey.days[-1]}"
    groups = {"figures": figures, "days": days, "rows": rows, "drift": drift}
    written = "\n\n".join(f"{group}:\n" + "\n".join(lines) for group, lines in groups.items() if lines)
    return f"""\
# What must be true of the data before a model may learn from it. What follows from the types of the table
# (nulls, least values, known values) needs no rule. These limits are proposals from {seen}:
# look at each, then take its `# review` away. A rule is an expectation of Great Expectations.
#
#   figures  of a day, in SQL; num_rows is there anyway
#   days     rules on figures; a failure stops the night
#   rows     rules on rows; one that fails goes to quarantine
#   drift    how far a day may be from the last four same weekdays, from 0 (alike) to 1; more stops the night;
#            off where sound days are so far apart that no limit would hold at the stated rate of false alarms

{written}
"""


def _rule(
    name: str, of: str, *, column: str = "", low: float | None = None, high: float | None = None
) -> str:
    kwargs = {"column": of, "min_value": low, "max_value": high}
    given = ", ".join(f"{key}: {literal(value)}" for key, value in kwargs.items() if value is not None)
    blamed = f" column: {literal(column)}," if column else ""
    return (
        f"  - {{name: {literal(name)}, type: expect_column_values_to_be_between,{blamed}\n"
        f"     kwargs: {{{given}}}}}  # review"
    )


def _rounded_up(value: float) -> float:
    """Returns the value, up to two digits; 0 for one that is next to nothing.

    >>> _rounded_up(1234), _rounded_up(0.0321), _rounded_up(-17.2), _rounded_up(5e-324)
    (1300, 0.033, -17, 0)
    """
    if abs(value) < 1e-300:  # a tenth of it might be no number any more
        return 0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    rounded = math.ceil(value / step - 1e-9) * step
    return round(rounded) if abs(rounded) >= 10 else float(f"{rounded:.2g}")


def _bound(value: float) -> float | None:
    """Returns the value up to two digits; None where that is no finite number."""
    with contextlib.suppress(OverflowError, ValueError):
        return _rounded_up(value)
    return None
