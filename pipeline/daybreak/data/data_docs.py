"""Writes what Great Expectations found tonight as pages, the Data Docs: one for each group of rules.

The pages that Great Expectations writes load Bootstrap, jQuery and icons from other hosts, show names as
markup, and know neither days nor rows: a line of the frames that are judged here is a day. These are ours,
of its results: a first page, and one table for a group, what fails first.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader

from daybreak.contract import formats, records
from daybreak.data.suite import RuleResult

if TYPE_CHECKING:
    from pandas import DataFrame, Series

DOCS, INDEX = records.RUN / "docs", "index.html"
SHOWN = 20  # days of a rule that fails


@dataclass(frozen=True, kw_only=True)
class RuleLine:
    """A rule of a group, whether the rule holds, and the observed values."""

    rule: str
    holds: bool
    found: str


def of_types(findings: Sequence[RuleResult]) -> list[RuleLine]:
    """Returns the lines of rules on the columns of partitions."""

    def found(finding: RuleResult) -> str:
        if finding.success:
            return ""
        mismatched = finding.details.get("details", {}).get("mismatched", {})
        names = [
            *(f"{name} is new" for name in mismatched.get("unexpected", ())),
            *(f"{name} is missing" for name in mismatched.get("missing", ())),
        ]
        return ", ".join(names) or _in_words(finding.details.get("partial_unexpected_list", []))

    return _lines(findings, found)


def of_figures(findings: Sequence[RuleResult], figures: "DataFrame", days: Sequence[date]) -> list[RuleLine]:
    """Returns the lines of rules on figures of days; `figures` has a line for each day."""

    def found(finding: RuleResult) -> str:
        column = finding.rule.kwargs.get("column")
        if finding.details.get("observed_value") is not None:  # of a rule on all days together
            return _in_words(finding.details["observed_value"])
        if column not in figures:
            return ", ".join(str(days[row]) for row in finding.rows[:SHOWN])
        if finding.rows:
            return _by_day(figures[column], figures.index.isin(finding.rows), days)
        ends = [_in_words(end) for end in (figures[column].min(), figures[column].max())]
        return " to ".join(dict.fromkeys(ends))

    return _lines(findings, found)


def of_rows(
    findings: Sequence[RuleResult], counts: "DataFrame", days: Sequence[date], *, num_rows: int
) -> list[RuleLine]:
    """Returns the lines of rules on rows; `counts` has a line for each day: how many rows fail each rule."""

    def found(finding: RuleResult) -> str:
        of_rule = counts[finding.rule.name]
        num_bad = int(of_rule.sum())
        if not num_bad:
            return ""
        share = formats.percent(num_bad / num_rows)
        by_day = f": {_by_day(of_rule, of_rule > 0, days)}" if len(days) > 1 else ""
        return f"{num_bad:,} of {formats.counted(num_rows, 'row')} ({share}){by_day}"

    return _lines(findings, found)


def write(folder: Path, groups: Mapping[str, Sequence[RuleLine]], days: Sequence[date]) -> None:
    """Writes the pages of what was judged on these days, by the names of the groups, and the first page."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    page = environment.get_template("data_docs.html")
    judged = f"{min(days)} to {max(days)}, {len(days):,} days" if len(days) > 1 else f"{days[0]}"
    failed = {name: [line for line in lines if not line.holds] for name, lines in groups.items()}
    shown = {name: lines for name, lines in groups.items() if lines}
    (folder / INDEX).write_text(page.render(groups=shown, failed=failed, days=judged, group=""))
    for name, lines in shown.items():
        first = sorted(lines, key=lambda line: line.holds)
        text = page.render(lines=first, failed=failed, days=judged, group=name)
        (folder / f"{name}.html").write_text(text)


def _lines(findings: Sequence[RuleResult], found: Callable[[RuleResult], str]) -> list[RuleLine]:
    return [RuleLine(rule=one.rule.name, holds=one.success, found=found(one)) for one in findings]


def _by_day(values: "Series", shown: Any, days: Sequence[date]) -> str:
    """Returns the values of the days that are to be shown, or of the first of them where there are many."""
    import numpy as np

    rows = np.flatnonzero(shown)
    texts = [f"{_in_words(values.iloc[row])} on {days[row]}" for row in rows[:SHOWN]]
    more = [f"and on {formats.counted(len(rows) - SHOWN, 'more day')}"] if len(rows) > SHOWN else []
    return ", ".join([*texts, *more])


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_in_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value))
    plain = value.item() if hasattr(value, "item") else value
    is_missing = plain is None or (isinstance(plain, float) and isnan(plain))
    return "no value" if is_missing else formats.quantity(plain)
