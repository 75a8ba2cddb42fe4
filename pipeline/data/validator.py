"""Decides whether tonight's data can be trusted, and quarantines bad rows (the stage `validate`).

Tonight's partitions of `data/raw` are judged by the reviewed suite. A row that fails a row rule goes
to `data/quarantine` with the name of the first rule that it failed, the others to `data/clean`:
clean + quarantined = rows in, always. A changed schema, a day with impossible figures, too many bad
rows or a day unlike its weekdays stop the night, and then neither folder is touched.

`data/clean` is a function of (raw, rules) alone: the digest of the rules is kept beside the partitions,
and if it differs all of `data/raw` is validated again. Partitions are replaced by a rename and never
written to, since they may be links into a cache.
"""

import logging
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.contract import records
from pipeline.contract.errors import DataError
from pipeline.contract.params import ValidateParams
from pipeline.contract.records import Batch, Drift, Expectation, Night, Report
from pipeline.data import drift
from pipeline.data.ingest import RAW, part_of
from pipeline.data.source import PART, SCHEMA
from pipeline.data.suite import Finding, Judge, Suite, load

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pandas import DataFrame

CLEAN, QUARANTINE = Path("data/clean"), Path("data/quarantine")
RULES = CLEAN / "RULES.txt"
DOCS = records.RUN / "docs"

log = logging.getLogger(__name__)


def validate(night: Night, batch: Batch, params: ValidateParams) -> Report:
    """Judges tonight's rows, separates the clean from the bad, and returns the findings.

    The counts are of the rows judged tonight: those that came in, and all of `data/raw` when the rules
    have changed. Raises DataError if the night must stop and ParamsError for a rule that is wrong.
    """
    suite = load(Path(params.suite))
    tonight = sorted({batch.day, *batch.late_days})
    changed = not RULES.exists() or RULES.read_text().strip() != suite.digest()
    days = sorted({*tonight, *partitions(RAW)}) if changed else tonight
    judge = Judge(suite, docs=DOCS)
    types = _types(days, suite)
    of_schema = judge.findings("schema", types)
    if any(not finding.success for finding in of_schema):
        judge.publish()
        raise DataError(_broken_schema(of_schema, types, days))
    rows = [_read(day) for day in days]
    frame = _frame(rows, days)
    figures = _figures(frame, num_days=len(days))
    of_days, of_rows = judge.findings("days", figures), judge.findings("rows", frame)
    docs = judge.publish()
    if any(not finding.success for finding in of_days):
        raise DataError(_broken_day(of_days, figures, days, docs))
    failed = _first_failed(of_rows, num_rows=len(frame))
    came_in = frame["part"].isin([days.index(day) for day in tonight]).to_numpy()
    _refuse_bad_rows(of_rows, failed=failed, came_in=came_in, limit=params.max_quarantined, docs=docs)
    distances, note = _drift(night.day, frame[failed < 0], days, suite=suite, limit=params.max_drift)
    for torn in (*CLEAN.glob(f"day=*/.{PART}"), *QUARANTINE.glob(f"day=*/.{PART}")):
        torn.unlink()  # left by a call that was killed while it wrote
    names = [finding.rule.name for finding in of_rows]
    for part, (day, table) in enumerate(zip(days, rows, strict=True)):
        _split(day, table, failed[frame["part"].to_numpy() == part], names)
    if changed:
        for gone in set(partitions(CLEAN)) - set(days):
            shutil.rmtree(part_of(gone, CLEAN).parent)
            shutil.rmtree(part_of(gone, QUARANTINE).parent, ignore_errors=True)
        records.replace_text(RULES, suite.digest() + "\n")  # last: a killed call is repeated in full
    num_bad = int((failed >= 0).sum())
    log.info("%d rows of %d days, %d quarantined; %s", len(frame), len(days), num_bad, docs)
    expectations = [_expectation(finding) for finding in (*of_schema, *of_days, *of_rows)]
    return Report(
        num_rows=len(frame), num_clean=len(frame) - num_bad, num_quarantined=num_bad,
        expectations=(*expectations, *note), drift=distances, digest=records.digest(CLEAN),
    )  # fmt: skip


def partitions(folder: Path) -> list[date]:
    """Returns the days that have a partition in the folder, in order."""
    return sorted(date.fromisoformat(path.parent.name[4:]) for path in folder.glob(f"day=*/{PART}"))


def _types(days: Sequence[date], suite: Suite) -> "DataFrame":
    """One line per partition: the type of each column, `absent` if it is missing."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = []
    for day in days:
        path = part_of(day)
        try:
            types.append({column.name: str(column.type) for column in pq.read_schema(path)})
        except FileNotFoundError:
            raise DataError(f"{path} is missing; run ingest for {day} first") from None
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} is not a parquet file: {error}; ingest {day} again") from None
    judged = [rule.kwargs["column"] for rule in suite.schema_ if "column" in rule.kwargs]
    names = dict.fromkeys([*judged, *SCHEMA.names, *(name for line in types for name in line)])
    return pd.DataFrame(types, columns=list(names)).fillna("absent")


def _broken_schema(findings: Sequence[Finding], types: "DataFrame", days: Sequence[date]) -> str:
    changes = []
    for finding in findings:
        if finding.success:
            continue
        if "column" not in finding.rule.kwargs:  # the rule on the set of columns
            new = finding.details.get("details", {}).get("mismatched", {}).get("unexpected", [])
            changes += [f"{name} is new" for name in new]
            continue
        name = finding.rule.blamed
        changes.append(f"{name} is {types[name].iloc[finding.rows[0]]} on {days[finding.rows[0]]}")
    return (
        f"the schema has changed: {', '.join(changes)}; fix the source's columns (source in params.yaml), "
        f"or the group schema of the suite (validate.suite)"
    )


def _read(day: date) -> "pa.Table":
    import pyarrow.parquet as pq

    return (
        pq.read_table(part_of(day), partitioning=None)
        .select(SCHEMA.names)
        .cast(SCHEMA, safe=False)
        .combine_chunks()
    )


def _frame(rows: "Sequence[pa.Table]", days: Sequence[date]) -> "DataFrame":
    """All rows, with the columns that the row rules need: part (number of the day), hour, pieces, copies."""
    import numpy as np
    import pandas as pd
    import pyarrow as pa

    frame: DataFrame = pa.concat_tables(rows).to_pandas()
    frame["part"] = np.repeat(np.arange(len(days)), [len(table) for table in rows])
    frame["copies"] = frame.duplicated().astype("int64")
    midnight = pd.Series(pd.to_datetime(list(days)))[frame["part"]].to_numpy()
    frame["hour"] = (frame["time"] - midnight) / pd.Timedelta(hours=1)
    cancels = frame["invoice"].str.startswith("C", na=False)
    frame["pieces"] = frame["quantity"].where(~cancels, -frame["quantity"])
    return frame


def _figures(frame: "DataFrame", *, num_days: int) -> "DataFrame":
    """One line per partition, with the figures that the day rules judge."""
    import pandas as pd

    cancels, guests = frame["invoice"].str.startswith("C", na=False), frame["customer"].isna()
    by_day = frame.groupby("part")
    sold = frame[~cancels].groupby("part")
    figures = pd.DataFrame({
        "num_rows": by_day.size(), "num_invoices": by_day["invoice"].nunique(),
        "num_items": by_day["item"].nunique(), "guests": guests.groupby(frame["part"]).mean(),
        "cancelled": cancels.groupby(frame["part"]).mean(),
        "median_price": sold["price"].median(), "median_quantity": sold["quantity"].median(),
    })  # fmt: skip
    figures = figures.reindex(range(num_days)).rename_axis(None)  # a named index comes back as dicts
    return figures.fillna({"num_rows": 0, "num_invoices": 0, "num_items": 0})


def _broken_day(findings: Sequence[Finding], figures: "DataFrame", days: Sequence[date], docs: Path) -> str:
    failures = []
    for finding in (finding for finding in findings if not finding.success):
        figure = finding.rule.kwargs.get("column")
        where = [f"{figure} {figures[figure].iloc[i]:g} on {days[i]}" for i in finding.rows[:3]]
        failures.append(f"{finding.rule.name!r} fails ({', '.join(where) or 'all days'})")
    return (
        f"the day cannot be right: {' and '.join(failures)}; fix the source and ingest again, or change "
        f"the group days of the suite (validate.suite); see {docs}"
    )


def _first_failed(findings: Sequence[Finding], *, num_rows: int) -> "np.ndarray[Any, Any]":
    """Number of the first rule that each row fails, -1 where it fails none; shape [num_rows]."""
    import numpy as np

    failed = np.full(num_rows, -1, dtype=np.int16)
    for number in reversed(range(len(findings))):
        failed[list(findings[number].rows)] = number
    return failed


def _refuse_bad_rows(
    findings: Sequence[Finding], *, failed: "np.ndarray[Any, Any]", came_in: "np.ndarray[Any, Any]",
    limit: float, docs: Path,
) -> None:  # fmt: skip
    num_bad, num_rows = int((failed[came_in] >= 0).sum()), int(came_in.sum())
    if num_bad <= limit * num_rows:
        return
    bad: dict[str, set[int]] = {}
    for finding in findings:
        bad.setdefault(finding.rule.blamed, set()).update(i for i in finding.rows if came_in[i])
    worst = sorted(bad, key=lambda column: (-len(bad[column]), column))[:3]
    counts = ", ".join(f"{column} {len(bad[column]):,}" for column in worst if bad[column])
    raise DataError(
        f"{num_bad:,} of {num_rows:,} rows ({num_bad / num_rows:.1%}) fail the rules, more than "
        f"{limit:.1%}; worst columns: {counts}; fix the source and ingest again, or raise "
        f"validate.max_quarantined; see {docs}"
    )


def _drift(
    day: date, clean: "DataFrame", days: Sequence[date], *, suite: Suite, limit: float
) -> tuple[tuple[Drift, ...], tuple[Expectation, ...]]:
    """Distances from the last same weekdays, or a note where there are too few of them."""
    import pandas as pd

    def rows_of(other: date) -> "DataFrame":
        if other in days:
            return clean[clean["part"] == days.index(other)]
        return pd.read_parquet(part_of(other, CLEAN), partitioning=None)

    earlier = sorted({*days, *partitions(CLEAN)})
    earlier = [other for other in earlier if other < day and other.weekday() == day.weekday()]
    before = [rows_of(other) for other in earlier[-drift.SAME_WEEKDAYS :]]
    distances = drift.distances(rows_of(day), before, limits=suite.drift, limit=limit)
    if not distances:
        note = f"drift: skipped, {len(before)} of {drift.LEAST_WEEKDAYS} earlier {day:%A}s to compare with"
        log.info(note)
        return (), (Expectation(rule=note, column="(table)", num_failed=0, success=True),)
    over = [f"{d.column} {d.value:.2f} (limit {d.limit:g})" for d in distances if d.value > d.limit]
    if over:
        raise DataError(
            f"{day} is unlike the last {len(before)} {day:%A}s: {', '.join(over)}; fix the source and "
            f"ingest again, or raise the limit under drift in the suite or validate.max_drift"
        )
    return distances, ()


def _split(day: date, table: "pa.Table", failed: "np.ndarray[Any, Any]", names: Sequence[str]) -> None:
    """Writes the day's clean rows, and the others with the rule that they failed."""
    import pyarrow as pa

    bad = failed >= 0
    _replace(table.filter(pa.array(~bad)), part_of(day, CLEAN))
    if not bad.any():
        shutil.rmtree(part_of(day, QUARANTINE).parent, ignore_errors=True)
        return
    rules = pa.array([names[number] for number in failed[bad]], pa.string())
    _replace(table.filter(pa.array(bad)).append_column("rule", rules), part_of(day, QUARANTINE))


def _replace(table: "pa.Table", path: Path) -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{PART}")
    pq.write_table(table, unfinished, compression="zstd")
    unfinished.replace(path)


def _expectation(finding: Finding) -> Expectation:
    num_failed = len(finding.rows) or int(not finding.success)
    return Expectation(
        rule=finding.rule.name, column=finding.rule.blamed, num_failed=num_failed, success=finding.success
    )
