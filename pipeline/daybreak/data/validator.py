"""Decides whether tonight's data can be trusted, and quarantines bad rows (the stage `validate`).

Tonight's partitions of `data/raw` are judged by the rules of the workload's table and of the reviewed suite,
one at a time. A row that fails a row rule goes to `data/quarantine` with the name of the first rule that it
failed, the others to `data/clean`: clean + quarantined = rows in, always. A changed schema, a day with
impossible figures, too many bad rows, a day unlike its weekdays or outside the limits that are learned from
the days before it (daybreak/data/day_history.py) stop the night; then neither folder is touched, and the
bad rows of tonight are kept in `data/run/bad_rows` to be looked at (daybreak/report/bad_rows.py). Great
Expectations judges how many rows of each partition failed each rule, and the figures.

A day that was restated to no rows leaves both folders when the night goes on, and is judged by no rule.

A day that never passed, since its night refused it or was ended, is judged again by itself: it comes in, or a
warning says why it stays out of training. The same holds for a day that passed, but was restated or got
labels in a night that did not pass: until the new rows pass, the old rows stay.

`data/clean` is a function of raw, table, rules and which days passed; if the rules differ, all days that
passed are validated again (daybreak/data/agenda.py).
"""

import logging
import shutil
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Drift, Expectation
from daybreak.contract.record_types import Batch, Champion, Distributions, Night, Report
from daybreak.contract.sections import PrepareParams, ValidateParams
from daybreak.contract.table import Table
from daybreak.data import day_history, distributions, drift, findings, quarantine, slow_drift
from daybreak.data.agenda import Agenda, agenda_of, labelled_since, note_passed
from daybreak.data.day_sample import columns_of
from daybreak.data.features import is_ripe
from daybreak.data.findings import Findings
from daybreak.data.partition_scan import PartitionFindings, PartitionScan
from daybreak.data.partitions import CLEAN, partitions
from daybreak.data.quarantine import REFUSED, clean_rows
from daybreak.data.suite import Judge, Rule, RuleResult, Suite, load, rules_digest, rules_of
from daybreak.storage import known_digests
from daybreak.storage.home import Home

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


def validate(
    home: Home,
    night: Night,
    batch: Batch,
    table: Table,
    *,
    params: ValidateParams,
    prepare: PrepareParams,
    champion: Champion | None = None,
) -> Report:
    """Judges tonight's rows, separates the clean from the bad, and returns the findings.

    The counts are of the rows judged tonight: those that came in, and those of all days that passed before
    when the rules have changed. Raises DataError if the night must stop, ParamsError for a wrong rule.
    """
    shutil.rmtree(REFUSED, ignore_errors=True)  # of a call before
    records.path_of(Distributions, records.LOOKS).unlink(missing_ok=True)
    suite = load(Path(params.suite))
    rules, digest = rules_of(suite, table), rules_digest(suite, table)
    agenda = agenda_of(home, night, batch, rules=digest)
    judge = Judge()
    of_schema = findings.of_schema(judge, [*agenda.tonight, *agenda.pending], table)
    scan = PartitionScan(table, suite, rules, engine=prepare.engine)
    checks = _Checks(table=table, suite=suite, rules=rules, digest=digest, params=params, agenda=agenda)
    judged = {day: scan.judge(day) for day in agenda.tonight}
    again, refused = _judged_again(scan, checks, judge, night, agenda.pending, beside=judged)
    mislabelled = _mislabelled(checks, night, labelled_since(agenda, night, table))
    agenda = agenda.without(mislabelled)
    checks = replace(checks, agenda=agenda)
    judged = dict(sorted((judged | again).items()))
    found = Findings.of(judge, judged, suite, rules, of_schema=of_schema)
    found.write_docs()
    try:
        passed = checks.expect(judged, found.of_days, night, came_in=agenda.came_in, by=night.day, show=True)
        trends, figures = slow_drift.judged(night, passed.figures, table, suite=suite, params=params)
        unlike = slow_drift.since_anchor(home, night, champion, judged, table, suite=suite, params=params)
    except DataError as error:
        if params.slow_drift == "hold" and night.day not in params.accepted_days:
            error.args = (f"{error}; a night that accepts the day accepts slow drift up to it, too",)
        quarantine.keep_refused({day: judged[day] for day in agenda.came_in}, table, rules)
        raise
    quarantine.separate(judged, table, rules)
    note_passed(agenda, judged, rules=digest)
    day_history.write(figures)
    num_rows, num_bad = found.num_rows, sum(len(one.bad) for one in judged.values())
    of_days = counted(len(judged), "day")
    log.info("%s of %s, %s quarantined; %s", counted(num_rows, "row"), of_days, f"{num_bad:,}", findings.PAGE)
    return Report(
        num_rows=num_rows,
        num_clean=num_rows - num_bad,
        num_quarantined=num_bad,
        expectations=(
            *found.expectations(),
            *passed.note,
            *passed.unusual,
            *day_history.unknown_limits(suite, params, figures),
            *map(slow_drift.warning, trends),
            *unlike,
            *refused.values(),
            *mislabelled.values(),
        ),
        drift=passed.drift,
        digest=known_digests.digest(home, CLEAN),
        trends=trends,
    )


@dataclass(frozen=True, kw_only=True)
class _Passed:
    """What the report says of days that passed as a whole, and their figures."""

    drift: tuple[Drift, ...]
    note: tuple[Expectation, ...]
    figures: dict[date, day_history.Known]
    unusual: tuple[Expectation, ...]


@dataclass(frozen=True, kw_only=True)
class _Checks:
    """What days have to pass as a whole."""

    table: Table
    suite: Suite
    rules: Sequence[Rule]
    digest: str  # of the rules
    params: ValidateParams
    agenda: Agenda

    def expect(
        self,
        judged: Mapping[date, PartitionFindings],
        of_days: Sequence[RuleResult],
        night: Night,
        *,
        came_in: Sequence[date],
        by: date,
        show: bool = False,
    ) -> _Passed:
        """Returns what the report says of days that came in; DataError where they have to stop the night.

        Labels that are known by the end of the day `by` are judged, too. With `show`, what the day looks
        like is written to be shown, also where it stops the night.
        """
        params, suite, agenda = self.params, self.suite, self.agenda
        if any(not finding.success for finding in of_days):
            raise DataError(findings.broken_days(of_days, judged))
        findings.refuse_bad_rows([judged[day] for day in came_in], self.rules, limit=params.max_quarantined)
        distances, num_before = _drift(night, judged, self.table, here=agenda.raw, suite=suite, params=params)
        kept, figures = _history(
            night,
            judged,
            self.table,
            by=by,
            suite=suite,
            rules=self.digest,
            params=params,
            of_rows={**agenda.split_from, **{day: agenda.raw[day] for day in judged}},
        )
        unusual_days = _unusual(
            night, figures, kept, self.table, came_in=came_in, by=by, suite=suite, params=params
        )
        if show and day_history.has_limits(suite, params):
            distributions.write(
                night, figures, unusual_days, distances, self.table, suite=suite, params=params
            )
        note = _judge_drift(night, distances, num_before, suite=suite, params=params)
        unusual = day_history.expectations(unusual_days, night, suite, params, is_first=not kept)
        return _Passed(drift=distances, note=note, figures=figures, unusual=unusual)


def _judged_again(
    scan: PartitionScan,
    checks: _Checks,
    judge: Judge,
    night: Night,
    days: Sequence[date],
    *,
    beside: Mapping[date, PartitionFindings],
) -> tuple[dict[date, PartitionFindings], dict[date, Expectation]]:
    """Judges days that came in before; returns those that pass now, and of each other a line for the report.

    Each day is judged by the days before, some of which are judged anew too (`beside`), and by the labels
    that are known tonight.
    """
    passed: dict[date, PartitionFindings] = {}
    refused = {}
    for day in days:
        judged = {day: scan.judge(day)}
        try:
            of_days = judge.findings(checks.suite.days, findings.figures_of_days(judged))
            alone = replace(night, day=day, id=str(day))
            earlier = {other: one for other, one in beside.items() if other < day}
            checks.expect(judged | earlier, of_days, alone, came_in=[day], by=night.day)
            passed |= judged
        except DataError as error:
            stays = (
                "is trained on as it was before" if day in checks.agenda.restated else "stays out of training"
            )
            log.warning("%s %s: %s", day, stays, error)
            rule = f"{day} came in before and {stays}: {error}"
            refused[day] = Expectation(rule=rule, column="(day)", num_failed=1, success=False)
    return passed, refused


def _mislabelled(checks: _Checks, night: Night, days: Sequence[date]) -> dict[date, Expectation]:
    """Judges days that passed by the labels that are known now; returns a line for each that is unlike."""
    refused: dict[date, Expectation] = {}
    table, suite, params = checks.table, checks.suite, checks.params
    for day in days if day_history.has_limits(suite, params) else ():
        alone = replace(night, day=day, id=str(day))
        kept, figures = _history(
            alone,
            {},
            table,
            by=night.day,
            suite=suite,
            rules=checks.digest,
            params=params,
            of_rows=checks.agenda.without(refused).split_from,
        )
        unusual = _unusual(
            alone, figures, kept, table, came_in=[day], by=night.day, suite=suite, params=params
        )
        try:
            day_history.expectations(unusual, alone, suite, params, is_first=False)
        except DataError as error:
            rule = f"{day} came in before and stays out of training, by labels known since: {error}"
            log.warning(rule)
            refused[day] = Expectation(rule=rule, column="(day)", num_failed=1, success=False)
    return refused


def _drift(
    night: Night,
    judged: Mapping[date, PartitionFindings],
    table: Table,
    *,
    here: Container[date],
    suite: Suite,
    params: ValidateParams,
) -> tuple[tuple[Drift, ...], int]:
    """Returns the distances from the last same weekdays, and how many of these there are."""
    if suite.drift == "off":
        return (), 0
    day = night.day
    earlier = sorted({*judged, *(other for other in partitions(CLEAN) if other in here)})
    earlier = [other for other in earlier if other < day and other.weekday() == day.weekday()]
    before = [clean_rows(other, judged) for other in earlier[-drift.SAME_WEEKDAYS :]]
    limit = params.max_drift
    distances = drift.distances(clean_rows(day, judged), before, table, limits=suite.drift, limit=limit)
    return distances, len(before)


def _judge_drift(
    night: Night, distances: Sequence[Drift], num_before: int, *, suite: Suite, params: ValidateParams
) -> tuple[Expectation, ...]:
    """Returns a note where there are too few days to measure drift from, or the day is too far from them.

    Raises DataError where a day is too far that no person has accepted.
    """
    day = night.day
    if suite.drift == "off":
        return ()
    if not distances:
        note = f"drift: skipped, {num_before} of {drift.LEAST_WEEKDAYS} earlier {day:%A}s to compare with"
        log.info(note)
        return (Expectation(rule=note, column="(table)", num_failed=0, success=True),)
    over = [f"{d.column} {d.value:.2f} (limit {d.limit:g})" for d in distances if d.value > d.limit]
    if not over:
        return ()
    unlike = f"{day} is unlike the last {num_before} {day:%A}s: {', '.join(over)}"
    if day not in params.accepted_days:
        raise DataError(
            f"{unlike}; fix the source and ingest again, raise the limit under drift in the suite or "
            f"validate.max_drift, {day_history.acceptance(day, night)}"
        )
    return (Expectation(rule=unlike, column="(day)", num_failed=len(over), success=False),)


def _history(
    night: Night,
    judged: Mapping[date, PartitionFindings],
    table: Table,
    *,
    by: date,
    suite: Suite,
    rules: str,
    params: ValidateParams,
    of_rows: Mapping[date, str],
) -> "tuple[dict[date, day_history.Known], dict[date, day_history.Known]]":
    """Returns the figures of days as they were kept, and those of all days up to tonight's and kept later."""
    import pyarrow as pa

    kept = day_history.read()
    if not day_history.has_limits(suite, params):
        return kept, kept
    columns = list(dict.fromkeys([*columns_of(table), table.time, *filter(None, [table.unit])]))

    def rows(day: date) -> "pa.Table":
        values = clean_rows(day, judged)
        return pa.table({name: values(name) for name in columns})

    here = {*judged, *(day for day in partitions(CLEAN) if day in of_rows)}  # others were emptied since
    history = day_history.completed(
        kept,
        [day for day in sorted(here) if day <= night.day],
        table,
        by=by,
        rules=rules,
        of_rows=of_rows,
        rows=rows,
        bad_hours=partial(quarantine.bad_hours, judged=judged, table=table),
    )
    return kept, history | {day: known for day, known in kept.items() if day > night.day}


def _unusual(
    night: Night,
    figures: "Mapping[date, day_history.Known]",
    kept: "Mapping[date, day_history.Known]",
    table: Table,
    *,
    came_in: Sequence[date],
    by: date,
    suite: Suite,
    params: ValidateParams,
) -> "list[day_history.JudgedDay]":
    """Returns the days to be judged by their figures, with the limits of these."""
    if not day_history.has_limits(suite, params):
        return []
    history = {day: known for day, known in figures.items() if day <= night.day}
    labelled = [day for day in history if is_ripe(table, day, by=by)][-1:]  # its labels are known now
    return day_history.judged(
        history,
        kept,
        {*labelled, *(day for day in came_in if day <= night.day)},
        night=night.day,
        label=table.label.column if table.label else "",
        false_alarms_per_year=params.false_alarms_per_year,
        off=day_history.figures_off(suite),
    )
