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

`data/clean` is a function of raw, table, rules and which days passed: the digests of the rules, and of the
raw rows of each day, are kept beside the partitions; if the rules differ, all days that passed are validated
again. Partitions are replaced by a rename and never written to, since they may be links into a cache.
"""

import json
import logging
import shutil
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract import disk, records
from daybreak.contract.errors import DataError
from daybreak.contract.formats import counted, percents
from daybreak.contract.record_parts import Drift, Expectation, Trend
from daybreak.contract.record_types import Batch, Champion, Dataset, Distributions, Night, Report
from daybreak.contract.sections import PrepareParams, ValidateParams
from daybreak.contract.table import Table
from daybreak.data import (
    daily_limits,
    data_docs,
    day_figures,
    day_history,
    distributions,
    drift,
    slow_drift,
)
from daybreak.data.bad_cells import AS_DELIVERED, without_texts
from daybreak.data.day_sample import columns_of, hours_of
from daybreak.data.features import is_ripe
from daybreak.data.partition_scan import PartitionFindings, PartitionScan
from daybreak.data.partitions import PART, RAW, part_of, partitions
from daybreak.data.suite import Judge, Rule, RuleResult, Suite, load, rules_digest, rules_of, schema_rules
from daybreak.storage import erasures, known_digests, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from pandas import DataFrame

WEEKS = timedelta(days=14)  # each weekday twice
LOOKED_AT = 28  # newest entries of the ledger, for a look at the anchor's weeks
SLOW_DRIFT = "slow drift"
CLEAN, QUARANTINE = Path("data/clean"), Path("data/quarantine")
RULES = CLEAN / "RULES.txt"
OF_RAW = CLEAN / "RAW.json"  # digest of the raw rows that each day's were split from
DOCS = records.RUN / "docs"
RULE = "(rule)"  # column of a bad row with the name of the first rule that it failed
PAGE = DOCS / data_docs.INDEX
REFUSED = records.RUN / "bad_rows"  # those of a night that is stopped here

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
    agenda = _agenda(home, night, batch, digest)
    judge = Judge()
    of_schema = _of_schema(judge, [*agenda.tonight, *agenda.pending], table)
    scan = PartitionScan(table, suite, rules, engine=prepare.engine)
    checks = _Checks(table=table, suite=suite, rules=rules, digest=digest, params=params, agenda=agenda)
    judged = {day: scan.judge(day) for day in agenda.tonight}
    again, refused = _judged_again(scan, checks, judge, night, agenda.pending, beside=judged)
    labelled = _labelled_since(agenda, night, table, suite, params)
    mislabelled = _mislabelled(checks, night, labelled)
    agenda = agenda.without(mislabelled)
    checks = replace(checks, agenda=agenda)
    judged = dict(sorted((judged | again).items()))
    findings = _Findings.of(judge, judged, suite, rules, of_schema=of_schema)
    findings.write_docs()
    try:
        passed = checks.expect(
            judged, findings.of_days, night, came_in=agenda.came_in, by=night.day, show=True
        )
        trends, figures = _slow_drift(night, passed.figures, table, suite, checks.params)
        unlike = _since_anchor(home, night, champion, judged, table, suite=suite, params=params)
    except DataError as error:
        if checks.params.slow_drift == "hold" and night.day not in checks.params.accepted_days:
            error.args = (f"{error}; a night that accepts the day accepts slow drift up to it, too",)
        for day in agenda.came_in:
            path = part_of(day, REFUSED)
            _write_bad(_rows(day, table), judged[day], [rule.name for rule in rules], path, key=table.key)
        raise
    _separate(judged, table, rules)
    _forget_gone(judged, agenda)
    _note_split_from({**agenda.split_from, **{day: agenda.raw[day] for day in judged}})
    if agenda.is_anew:
        disk.sync(CLEAN)
        records.replace_text(RULES, digest + "\n")  # last: a killed call is repeated in full
    day_history.write(figures)
    num_rows, num_bad = findings.num_rows, sum(len(one.bad) for one in judged.values())
    of_days = counted(len(judged), "day")
    log.info("%s of %s, %s quarantined; %s", counted(num_rows, "row"), of_days, f"{num_bad:,}", PAGE)
    return Report(
        num_rows=num_rows,
        num_clean=num_rows - num_bad,
        num_quarantined=num_bad,
        expectations=(
            *findings.expectations(),
            *passed.note,
            *passed.unusual,
            *(
                Expectation(rule=f"{SLOW_DRIFT}: {one.words}", column="(day)", num_failed=0, success=False)
                for one in trends
            ),
            *unlike,
            *refused.values(),
            *mislabelled.values(),
        ),
        drift=passed.drift,
        digest=known_digests.digest(home, CLEAN),
        trends=trends,
    )


@dataclass(frozen=True, kw_only=True)
class _Agenda:
    """Which days are judged tonight, and of which rows."""

    raw: Mapping[date, str]  # digest of the rows of each day that has some, as they came in
    split_from: Mapping[date, str]  # digest of the raw rows behind the present clean rows
    is_anew: bool  # by other rules than before, or for the first time
    came_in: Sequence[date]  # since the night before, in order
    tonight: Sequence[date]  # these, and all that passed before where the rules are others
    pending: Sequence[date]  # came in before and have not passed as they are: each is judged by itself
    restated: Set[date]  # passed with other rows than those that are here now

    def without(self, days: Container[date]) -> "_Agenda":
        """Returns the agenda of a home that does not have these days."""
        raw, split_from = (
            {day: digest for day, digest in digests.items() if day not in days}
            for digests in (self.raw, self.split_from)
        )
        return replace(self, raw=raw, split_from=split_from)


def _agenda(home: Home, night: Night, batch: Batch, digest: str) -> _Agenda:
    """Returns the days to judge by the rules of that digest."""
    here = [day for day in partitions(RAW) if _num_rows(part_of(day))]
    passed = set(partitions(CLEAN)) if RULES.exists() else set()
    raw = _raw_digests(home, here)
    split_from = _split_from(home, raw)
    is_anew = not RULES.exists() or RULES.read_text().strip() != digest
    # By other rules or columns all days that passed are judged together, so that no clean row is compared.
    restated = {day for day in passed & raw.keys() if split_from[day] != raw[day] and not is_anew}
    late = passed.intersection(batch.late_days, here) if passed else here  # others are judged by themselves
    came_in = {batch.day, *(day for day in late if day <= night.day)}
    pending = [day for day in here if day < night.day and day not in came_in and day not in passed - restated]
    passed_as_is = passed.intersection(here) - set(pending)
    return _Agenda(
        raw=raw,
        split_from=split_from,
        is_anew=is_anew,
        came_in=sorted(came_in),
        tonight=sorted(came_in | passed_as_is if is_anew else came_in),
        pending=pending,
        restated=restated,
    )


def _labelled_since(
    agenda: _Agenda, night: Night, table: Table, suite: Suite, params: ValidateParams
) -> list[date]:
    """Returns the days that passed without labels, and whose labels came since the last night.

    The newest day with labels is not among them: its wrong labels stop the night. The labels of the others
    were judged by no night, as theirs was left out or stopped; wrong ones keep the day out of training.
    """
    known = [day for day in day_history.days() if day <= night.day]
    if not known or agenda.is_anew or not params.false_alarms_per_year or suite.limits == "off":
        return []
    before = {*agenda.came_in, *agenda.pending}
    days = [day for day in agenda.raw if day not in before and is_ripe(table, day, by=night.day)]
    return [day for day in days[:-1] if not is_ripe(table, day, by=known[-1])]


@dataclass(frozen=True, kw_only=True)
class _Findings:
    """What Great Expectations found in the days that are judged together."""

    rules: Sequence[Rule]
    figures: "DataFrame"  # a line for each day
    counts: "DataFrame"  # how many rows of each day fail each rule
    days: Sequence[date]
    num_rows: int
    of_schema: Sequence[RuleResult]
    of_days: Sequence[RuleResult]
    of_rows: Sequence[RuleResult]

    @classmethod
    def of(
        cls,
        judge: Judge,
        judged: Mapping[date, PartitionFindings],
        suite: Suite,
        rules: Sequence[Rule],
        *,
        of_schema: Sequence[RuleResult],
    ) -> "_Findings":
        """Returns the findings on the figures of days, and on how many of their rows fail each rule."""
        figures, counts = _figures(judged), _counts(judged, rules)
        return cls(
            rules=rules,
            figures=figures,
            counts=counts,
            days=list(judged),
            num_rows=sum(one.num_rows for one in judged.values()),
            of_schema=of_schema,
            of_days=judge.findings(suite.days, figures),
            of_rows=judge.findings([_of_count(rule) for rule in rules], counts),
        )

    def write_docs(self) -> None:
        """Writes the pages of what was found."""
        sections = {
            "schema": data_docs.of_types(self.of_schema),
            "days": data_docs.of_figures(self.of_days, self.figures, self.days),
            "rows": data_docs.of_rows(self.of_rows, self.counts, self.days, num_rows=self.num_rows),
        }
        data_docs.write(DOCS, sections, self.days)

    def expectations(self) -> list[Expectation]:
        """Returns the lines of the report: of the schema, of the days, and of each rule on rows."""
        return [
            *(_expectation(finding) for finding in (*self.of_schema, *self.of_days)),
            *(
                Expectation(
                    rule=rule.name,
                    column=rule.blamed,
                    num_failed=int(self.counts[rule.name].sum()),
                    success=finding.success,
                )
                for rule, finding in zip(self.rules, self.of_rows, strict=True)
            ),
        ]


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
    agenda: _Agenda

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
            raise DataError(_broken_day(of_days, _figures(judged), list(judged)))
        _refuse_bad_rows([judged[day] for day in came_in], self.rules, limit=params.max_quarantined)
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
        if show and params.false_alarms_per_year and suite.limits != "off":
            _show(night, figures, unusual_days, distances, self.table, params=params, suite=suite)
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
            of_days = judge.findings(checks.suite.days, _figures(judged))
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
    for day in days:
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


def _figures(judged: Mapping[date, PartitionFindings]) -> "DataFrame":
    """One line per partition: the figures of the day."""
    import pandas as pd

    return pd.DataFrame([one.figures for one in judged.values()])


def _raw_digests(home: Home, days: Sequence[date]) -> dict[date, str]:
    """Returns the digest of the rows of each day, as they came in."""
    digests = known_digests.digests(home, (part_of(day) for day in days))
    return {day: digests[part_of(day)] for day in days}


def _split_from(home: Home, raw: Mapping[date, str]) -> dict[date, str]:
    """Returns the digest of the raw rows that each clean day was split from, as noted, or of those now."""
    if not OF_RAW.exists():
        return dict(raw)
    rewritten = erasures.changed(home)  # without the rows of units that were erased
    noted = json.loads(OF_RAW.read_text())
    before = {day: noted.get(str(day), now) for day, now in raw.items()}
    return {day: rewritten.get(of, of) for day, of in before.items()}


def _note_split_from(digests: Mapping[date, str]) -> None:
    """Notes what each clean day was split from, by the digests of the raw rows."""
    noted = {str(day): digests[day] for day in partitions(CLEAN) if day in digests}
    records.replace_text(OF_RAW, json.dumps(noted, indent=0) + "\n")


def _of_schema(judge: Judge, days: Sequence[date], table: Table) -> list[RuleResult]:
    """Returns what the rules on the columns of partitions say; DataError where one fails."""
    types = _types(days, table)
    findings = judge.findings(schema_rules(table), types)
    if any(not finding.success for finding in findings):
        data_docs.write(DOCS, {"schema": data_docs.of_types(findings)}, days)
        raise DataError(_broken_schema(findings, types, days))
    return findings


def _types(days: Sequence[date], table: Table) -> "DataFrame":
    """One line per partition: the type of each column, `absent` if it is missing."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    declared = {field.name: field.type for field in table.schema()}
    types = []
    for day in days:
        path = part_of(day)
        try:
            schema = pq.read_schema(path)
        except FileNotFoundError:
            raise DataError(f"{path} is missing; run ingest for {day} first") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} is not a parquet file: {error}; ingest {day} again") from None
        same = {field.name for field in schema if field.type == declared.get(field.name)}  # if not in words
        types.append(
            {
                field.name: str(declared[field.name] if field.name in same else field.type)
                for field in schema
                if field.name != AS_DELIVERED
            }
        )
    names = dict.fromkeys([*declared, *(name for line in types for name in line)])
    return pd.DataFrame(types, columns=list(names)).fillna("absent")


def _broken_schema(findings: Sequence[RuleResult], types: "DataFrame", days: Sequence[date]) -> str:
    changes = []
    for finding in findings:
        if finding.success:
            continue
        if "column" not in finding.rule.kwargs:  # the rule on the set of columns
            new = finding.details.get("details", {}).get("mismatched", {}).get("unexpected", [])
            changes += [f"{name} is new" for name in new]
            continue
        name = finding.rule.blamed
        row = int((~types[name].isin(finding.rule.kwargs["value_set"])).to_numpy().argmax())
        changes.append(f"{name} is {types[name].iloc[row]} on {days[row]}")
    return (
        f"the schema has changed: {', '.join(changes)}; declare the columns in the workload's table as they "
        f"are, or remove {RAW} and run ingest again for rows as the table has them"
    )


def _of_count(rule: Rule) -> Rule:
    """The expectation that no row fails the rule."""
    kwargs = {"column": rule.name, "min_value": 0, "max_value": 0}
    return Rule(name=rule.name, type="expect_column_sum_to_be_between", kwargs=kwargs)


def _counts(judged: Mapping[date, PartitionFindings], rules: Sequence[Rule]) -> "DataFrame":
    """One line per partition: how many of its rows fail each rule."""
    import pandas as pd

    counts = [one.failed.sum(axis=0) for one in judged.values()]
    return pd.DataFrame(counts, columns=[rule.name for rule in rules]).astype("int64")


def _broken_day(findings: Sequence[RuleResult], figures: "DataFrame", days: Sequence[date]) -> str:
    failures = []
    for finding in (finding for finding in findings if not finding.success):
        figure = finding.rule.kwargs.get("column")
        where = [f"{figure} {figures[figure].iloc[i]:g} on {days[i]}" for i in finding.rows[:3]]
        failures.append(f"{finding.rule.name!r} fails ({', '.join(where) or 'all days'})")
    return (
        f"the day cannot be right: {' and '.join(failures)}; fix the source and ingest again, or change "
        f"the group days of the suite (validate.suite); see {PAGE}"
    )


def _refuse_bad_rows(judged: Sequence[PartitionFindings], rules: Sequence[Rule], *, limit: float) -> None:
    num_bad, num_rows = sum(len(one.bad) for one in judged), sum(one.num_rows for one in judged)
    if num_bad <= limit * num_rows:
        return
    of_column: dict[str, list[int]] = {}  # the numbers of its rules
    for number, rule in enumerate(rules):
        of_column.setdefault(rule.blamed, []).append(number)
    bad = {  # rows that fail a rule of the column
        column: sum(int(one.failed[:, numbers].any(axis=1).sum()) for one in judged)
        for column, numbers in of_column.items()
    }
    worst = sorted(bad, key=lambda column: (-bad[column], column))[:3]
    counts = ", ".join(f"{column} {bad[column]:,}" for column in worst if bad[column])
    share, most = percents(num_bad / num_rows, limit)
    raise DataError(
        f"{num_bad:,} of {num_rows:,} rows ({share}) fail the rules, more than {most}; worst columns: "
        f"{counts}; fix the source and ingest again, or raise validate.max_quarantined; see {PAGE}"
    )


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
    before = [_clean_rows(other, judged) for other in earlier[-drift.SAME_WEEKDAYS :]]
    limit = params.max_drift
    distances = drift.distances(_clean_rows(day, judged), before, table, limits=suite.drift, limit=limit)
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


def _since_anchor(
    home: Home,
    night: Night,
    champion: Champion | None,
    judged: Mapping[date, PartitionFindings],
    table: Table,
    *,
    suite: Suite,
    params: ValidateParams,
) -> tuple[Expectation, ...]:
    """Returns a warning where the last weeks are unlike those that the chain's anchor was trained on.

    Looks once a week, as it reads four weeks, and as a season would be told each night.
    """
    if champion is None or champion.anchor is None or params.slow_drift == "off":
        return ()
    anchor = champion.anchor.release.version
    if was_looked_at(ledger.history(home, LOOKED_AT), night, anchor):
        return ()
    (made,) = ledger.promotions(home, anchor)
    if made is None or made.dataset is None:
        return ()
    return unlike_anchor(night.day, anchor, made.dataset, judged, table, suite=suite, params=params)


def was_looked_at(past: Sequence[Entry], night: Night, anchor: int) -> bool:
    """Returns whether an earlier night held the weeks before it against this anchor, within a week."""
    begins = f"{SLOW_DRIFT}: the last {WEEKS.days} days are "
    of_anchor = f"those that version {anchor}, the anchor,"
    reports = [
        one.report
        for one in past
        if not one.rollback
        and one.night.id != night.id
        and timedelta(0) <= night.day - one.night.day < timedelta(weeks=1)
    ]
    rules = [one.rule for report in reports if report for one in report.expectations]
    return any(rule.startswith(begins) and of_anchor in rule for rule in rules)


def unlike_anchor(
    today: date,
    anchor: int,
    dataset: Dataset,
    judged: Mapping[date, PartitionFindings],
    table: Table,
    *,
    suite: Suite,
    params: ValidateParams,
) -> tuple[Expectation, ...]:
    """Returns whether the weeks up to today are unlike the last of a version's training; () if not known.

    The limits of a day follow the weeks before it, and so never see what many of them add up to.
    """
    if suite.drift == "off":
        return ()
    known = sorted({*judged, *partitions(CLEAN)})
    newest = [day for day in known if dataset.last_day < day <= today][-WEEKS.days :]
    trained_on = [day for day in known if dataset.first_day <= day <= dataset.last_day][-WEEKS.days :]
    if min(len(newest), len(trained_on)) < WEEKS.days or newest[-1] - newest[0] >= 2 * WEEKS:
        return ()
    unlike = drift.of_weeks(
        [_clean_rows(day, judged) for day in newest],
        [_clean_rows(day, judged) for day in trained_on],
        table,
        limits=suite.drift,
        limit=params.max_drift,
    )
    how = "unlike" if unlike else "like"
    words = f"the last {WEEKS.days} days are {how} those that version {anchor}, the anchor, learned from"
    rule = f"{SLOW_DRIFT}: {': '.join([words, *filter(None, ['; '.join(unlike)])])}"
    if unlike:
        log.warning("%s", rule)
    return (Expectation(rule=rule, column="(day)", num_failed=0, success=not unlike),)


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
    if not params.false_alarms_per_year or suite.limits == "off":
        return kept, kept
    columns = list(dict.fromkeys([*columns_of(table), table.time, *filter(None, [table.unit])]))

    def rows(day: date) -> "pa.Table":
        values = _clean_rows(day, judged)
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
        bad_hours=partial(_bad_hours, judged=judged, table=table),
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
    if not params.false_alarms_per_year or suite.limits == "off":
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
        off=[name for name, how in suite.limits.items() if how == "off"],
    )


def _show(
    night: Night,
    figures: "Mapping[date, day_history.Known]",
    unusual_days: "Sequence[day_history.JudgedDay]",
    distances: Sequence[Drift],
    table: Table,
    *,
    params: ValidateParams,
    suite: Suite,
) -> None:
    """Writes what the day looks like, for its page."""
    label = table.label.column if table.label else ""
    history = {day: known.figures for day, known in figures.items() if day <= night.day}
    of_night = next((one.known for one in unusual_days if one.day == night.day), None)
    if of_night is None:  # was judged by a call before
        limited = suite.limits if isinstance(suite.limits, dict) else {}
        off = [name for name, how in limited.items() if how == "off"]
        rate = params.false_alarms_per_year
        of_night = daily_limits.learn(history, night.day, false_alarms_per_year=rate, label=label, off=off)
    outside = [(one.day, limit) for one in unusual_days for limit in one.outside]
    stopping = [
        (one.day, limit) for one in unusual_days for limit in day_history.stopping(one, suite, params)
    ]
    days = sorted(history)[-day_figures.WINDOW - 1 :]
    looks = distributions.distributions(
        night.day,
        day_history.samples(figures, [*distributions.compared(night.day, days), *days[-1:]]),
        history,
        columns=columns_of(table),
        label=label,
        limits=of_night,
        outside=sorted(outside, key=lambda pair: (pair not in stopping, -pair[1].excess)),
        num_stopping=len(stopping),
        drifted=[one.column.removesuffix(" nulls") for one in distances if one.value > one.limit],
    )
    records.LOOKS.mkdir(parents=True, exist_ok=True)
    records.write(looks, records.LOOKS)


def _slow_drift(
    night: Night,
    figures: "dict[date, day_history.Known]",
    table: Table,
    suite: Suite,
    params: ValidateParams,
) -> "tuple[tuple[Trend, ...], dict[date, day_history.Known]]":
    """Returns the figures that drift slowly, and the figures of all days, with what a person has accepted.

    Raises DataError where slow drift has to stop the night, and no person has accepted it.
    """
    if params.slow_drift == "off" or not params.false_alarms_per_year or suite.limits == "off":
        return (), figures
    trends = slow_drift.drifting(
        {day: known.figures for day, known in figures.items()},
        night.day,
        false_alarms_per_year=params.false_alarms_per_year,
        label=table.label.column if table.label else "",
        off=[name for name, how in suite.limits.items() if how == "off"],
        since={name: day for day, known in sorted(figures.items()) for name in known.accepted_drift},
    )
    for one in trends:
        log.warning("slow drift: %s", one.words)
    severities = suite.limits if isinstance(suite.limits, dict) else {}
    stopping = [one for one in trends if severities.get(one.figure) != "warn"]
    if not stopping or params.slow_drift != "hold":
        return tuple(trends), figures
    if night.day not in params.accepted_days:
        raise DataError(
            f"the data drifts slowly up to {night.day}: {'; '.join(one.words for one in stopping)}; fix the "
            f"source and ingest again, change validate.slow_drift, {day_history.acceptance(night.day, night)}"
        )
    accepted = tuple(one.figure for one in stopping)
    return tuple(trends), figures | {night.day: replace(figures[night.day], accepted_drift=accepted)}


def _clean_rows(day: date, judged: Mapping[date, PartitionFindings]) -> "drift.Rows":
    """The clean values of a column of the day, which may not yet be in `data/clean`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Opened once: the footer describes every column, so reading it for each column would cost quadratic time.
    part = pq.ParquetFile(part_of(day, RAW if day in judged else CLEAN), page_checksum_verification=True)
    good = pa.array(judged[day].good()) if day in judged else None

    def values(column: str) -> "pa.ChunkedArray":
        rows = part.read(columns=[column])[column]
        return rows if good is None else rows.filter(good)

    return values


def _bad_hours(day: date, *, judged: Mapping[date, PartitionFindings], table: Table) -> "NDArray[np.float64]":
    """Returns the hour of each row of the day that is in quarantine, or will be."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = part_of(day, RAW if day in judged else QUARANTINE)
    if not part.exists():
        return np.zeros(0)
    times = pq.read_table(part, columns=[table.time], partitioning=None)[table.time]
    return hours_of(day, times.take(pa.array(judged[day].bad)) if day in judged else times)


def _separate(judged: Mapping[date, PartitionFindings], table: Table, rules: Sequence[Rule]) -> None:
    """Writes the clean and the bad rows of each day."""
    for torn in (*CLEAN.glob(f"day=*/.{PART}"), *QUARANTINE.glob(f"day=*/.{PART}")):
        torn.unlink()  # left by a call that was killed while it wrote
    names = [rule.name for rule in rules]
    for day, one in judged.items():
        _split(day, one, table, names)


def _forget_gone(judged: Mapping[date, PartitionFindings], agenda: _Agenda) -> None:
    """Removes days that have no rows any more, and by other rules those that did not pass."""
    for gone in set(partitions(CLEAN)) - (judged.keys() if agenda.is_anew else agenda.raw.keys()):
        shutil.rmtree(part_of(gone, CLEAN).parent)
        shutil.rmtree(part_of(gone, QUARANTINE).parent, ignore_errors=True)


def _split(day: date, judged: PartitionFindings, table: Table, names: Sequence[str]) -> None:
    """Writes the day's clean rows, and the others with the rule that they failed."""
    import pyarrow as pa

    rows = _rows(day, table)
    _replace(
        without_texts(rows).filter(pa.array(judged.good())),
        part_of(day, CLEAN),
        dictionaries=_repeated(without_texts(rows), table.key),
    )
    _write_bad(rows, judged, names, part_of(day, QUARANTINE), key=table.key)


def _num_rows(part: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(part).num_rows)


def _rows(day: date, table: Table) -> "pa.Table":
    """Returns the rows of a day as they came in, with the texts of bad cells if there are any."""
    import pyarrow.parquet as pq

    rows = pq.read_table(part_of(day), partitioning=None, page_checksum_verification=True)
    names = [*table.columns, *([AS_DELIVERED] if AS_DELIVERED in rows.column_names else [])]
    return rows.select(names).combine_chunks()


def _write_bad(
    rows: "pa.Table", judged: PartitionFindings, names: Sequence[str], path: Path, *, key: tuple[str, ...]
) -> None:
    """Writes the day's bad rows, each with the first rule that it failed; where there is none, no file."""
    import pyarrow as pa

    if not len(judged.bad):
        shutil.rmtree(path.parent, ignore_errors=True)
        return
    first = pa.array([names[number] for number in judged.failed.argmax(axis=1)], pa.string())
    bad = rows.take(pa.array(judged.bad)).append_column(RULE, first)
    _replace(bad, path, dictionaries=[*_repeated(rows, key), RULE])


def _repeated(rows: "pa.Table", key: tuple[str, ...]) -> list[str]:
    """Returns the columns of texts that come again; a dictionary of others is only work for the writer."""
    return [name for name in rows.column_names if _is_text(rows, name) and (name,) != key]


def _is_text(rows: "pa.Table", name: str) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(rows.schema.field(name).type))


def _replace(table: "pa.Table", path: Path, *, dictionaries: list[str]) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{PART}")
    pq.write_table(
        table, unfinished, compression="zstd", write_page_checksum=True, use_dictionary=dictionaries
    )
    unfinished.replace(path)


def _expectation(finding: RuleResult) -> Expectation:
    num_failed = len(finding.rows) or int(not finding.success)
    return Expectation(
        rule=finding.rule.name, column=finding.rule.blamed, num_failed=num_failed, success=finding.success
    )
