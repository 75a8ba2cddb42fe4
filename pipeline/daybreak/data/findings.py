"""Puts what Great Expectations found in the days of a night into pages, lines of the report and errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from daybreak.contract.errors import DataError
from daybreak.contract.formats import percents
from daybreak.contract.record_parts import Expectation
from daybreak.contract.table import Table
from daybreak.data import data_docs
from daybreak.data.bad_cells import AS_DELIVERED
from daybreak.data.data_docs import DOCS
from daybreak.data.partition_scan import PartitionFindings
from daybreak.data.partitions import RAW, part_of
from daybreak.data.suite import Judge, Rule, RuleResult, Suite, schema_rules

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE = DOCS / data_docs.INDEX


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The findings of Great Expectations in the days that are judged together."""

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
    ) -> "Findings":
        """Returns the findings on the figures of days, and on how many of their rows fail each rule."""
        figures, counts = figures_of_days(judged), _counts(judged, rules)
        return cls(
            rules=rules,
            figures=figures,
            counts=counts,
            days=list(judged),
            num_rows=sum(one.num_rows for one in judged.values()),
            of_schema=of_schema,
            of_days=judge.findings(suite.days, figures),
            of_rows=judge.findings([no_row_fails(rule) for rule in rules], counts),
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


def of_schema(judge: Judge, days: Sequence[date], table: Table) -> list[RuleResult]:
    """Returns what the rules on the columns of partitions say; DataError where one fails."""
    types = _types(days, table)
    findings = judge.findings(schema_rules(table), types)
    if any(not finding.success for finding in findings):
        data_docs.write(DOCS, {"schema": data_docs.of_types(findings)}, days)
        raise DataError(_broken_schema(findings, types, days))
    return findings


def broken_days(findings: Sequence[RuleResult], judged: Mapping[date, PartitionFindings]) -> str:
    """Returns the error of days whose figures cannot be right, by the rules of the suite that fail."""
    figures, days, failures = figures_of_days(judged), list(judged), []
    for finding in (finding for finding in findings if not finding.success):
        figure = finding.rule.kwargs.get("column")
        where = [f"{figure} {figures[figure].iloc[i]:g} on {days[i]}" for i in finding.rows[:3]]
        failures.append(f"{finding.rule.name!r} fails ({', '.join(where) or 'all days'})")
    return (
        f"the day cannot be right: {' and '.join(failures)}; fix the source and ingest again, or change "
        f"the group days of the suite (validate.suite); see {PAGE}"
    )


def refuse_bad_rows(judged: Sequence[PartitionFindings], rules: Sequence[Rule], *, limit: float) -> None:
    """Raises DataError where more than that share of the rows of these days fail a rule."""
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


def figures_of_days(judged: Mapping[date, PartitionFindings]) -> "DataFrame":
    """Returns the figures of each day, one line per partition."""
    import pandas as pd

    return pd.DataFrame([one.figures for one in judged.values()])


def no_row_fails(rule: Rule) -> Rule:
    """Returns the expectation that no row fails the rule."""
    kwargs = {"column": rule.name, "min_value": 0, "max_value": 0}
    return Rule(name=rule.name, type="expect_column_sum_to_be_between", kwargs=kwargs)


def _counts(judged: Mapping[date, PartitionFindings], rules: Sequence[Rule]) -> "DataFrame":
    """One line per partition: how many of its rows fail each rule."""
    import pandas as pd

    counts = [one.failed.sum(axis=0) for one in judged.values()]
    return pd.DataFrame(counts, columns=[rule.name for rule in rules]).astype("int64")


def _expectation(finding: RuleResult) -> Expectation:
    num_failed = len(finding.rows) or int(not finding.success)
    return Expectation(
        rule=finding.rule.name, column=finding.rule.blamed, num_failed=num_failed, success=finding.success
    )


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
