"""Takes one day through each integration check of a team's code with Daybreak (rehearsal.py).

A check prints a line with its result; a fault is one sentence that names the method to fix.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from daybreak.contract import records
from daybreak.contract.days import newest_over
from daybreak.contract.errors import DataError, ParamsError, PipelineError
from daybreak.contract.table import Table
from daybreak.contract.workload import ARRAYS, GROUP, UNIT, State, predicts_nothing, write_state
from daybreak.data import casts, drift, prepare, source, suite
from daybreak.data.bad_cells import without_texts
from daybreak.data.corrections import corrects, sample_rows
from daybreak.data.dialects import DUCKDB
from daybreak.data.engines import read_parts
from daybreak.data.features import Past, is_ripe, past_of, samples_of, unripe
from daybreak.data.partition_scan import PartitionScan
from daybreak.data.partitions import CLEAN, PART, part_of, partitions
from daybreak.data.row_rules import failing
from daybreak.extensions.trial import night_preview, trial_version
from daybreak.extensions.trial.model_checks import ModelChecks, in_words, shapes
from daybreak.extensions.trial.rehearsal import CODE, DOUBTS, FAULT
from daybreak.extensions.trial.trial_updates import close

MOST_ROWS = 2000  # of the day
FEW_ROWS = 16  # as users send


class RowChecks(ModelChecks):
    """Takes one day of rows through all integration checks, in a temporary folder."""

    def run(self, day: date | None) -> None:
        """Runs all checks; `doubts` are sentences on what a night would refuse, or not be able to judge."""
        self.doubts: list[str] = []
        torch.manual_seed(self._params.train.seed)
        with self._opened.watched():
            self.workload = self._workload()
        self.name = type(self.workload).__name__
        self.table: Table = self.workload.table
        self._compile_rules()
        day = self._rows(day)
        self._preview(day)
        state = self._samples(day)
        self.try_model(state)
        print(f"{'ok':9} {time.process_time() - self._cpu:.1f} s of CPU beside imports")

    def _workload(self) -> Any:
        plug = self._params.workload
        try:
            workload = plug.make()
        except ParamsError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError):
                raise ParamsError(
                    f"{plug.use} needs the module {missing.name}, which a rented machine would not have; put "
                    f"it into {self._home}, where git must not ignore it, or install it in the job's image"
                ) from None
            raise
        table = getattr(workload, "table", None)
        if not isinstance(table, Table):
            raise ParamsError(
                f"{plug.use} has no table; declare `table = Table(...)` in the class (docs/own-data.md)"
            )
        if hasattr(workload, "arrays"):
            raise ParamsError(
                f"{plug.use} makes arrays of a whole window, not of a day; "
                f"try it with: daybreak night --here --until evaluate"
            )
        if self._params.predict.to and (fault := predicts_nothing(workload)):
            self.doubts.append(fault)
        self._began, self._cpu = time.monotonic(), time.process_time()  # what came before was imports
        return workload

    def _compile_rules(self) -> None:
        """Compiles the rules on rows; raises ParamsError with the name of one that is wrong."""
        path = self._folder / CODE / self._params.validate_.suite
        if not path.exists():
            raise ParamsError(
                f"the suite {self._params.validate_.suite} is missing; name another in validate.suite, or "
                f"write it to {self._home}, where git must not ignore it"
            )
        self.suite = suite.load(path)
        self.rules = suite.rules_of(self.suite, self.table)
        self.scan = PartitionScan(self.table, self.suite, self.rules)

    def _judged(self, rows: pa.Table, day: date, *, quiet: bool = False) -> pa.Table:
        """Returns the rows that fail no rule, and says which rules the others and the day fail."""
        source.write_partition(rows, part_of(day).parent)
        try:
            judged = self.scan.judge(day)
        except Exception:  # of SQL, or whatever a rule in Python raises
            self._blame(day)
            raise
        if not quiet:
            counts = dict(
                zip([rule.name for rule in self.rules], judged.failed.sum(axis=0).tolist(), strict=True)
            )
            failed = [f"{name!r} {num:,}" for name, num in counts.items() if num]
            of_rows = (
                f"{len(judged.bad):,} of {len(rows):,} rows fail: {', '.join(failed)}"
                if failed
                else (f"no row of {len(rows):,} fails")
            )
            of_days = _failing_days(self.suite.days, judged.figures)
            wrong = ", ".join(name for name, fails in of_days.items() if fails)
            untried = ", ".join(name for name, fails in of_days.items() if fails is None)
            of_day = f"; the day fails {wrong}" if wrong else ""
            of_day += f"; only a night tries {untried}" if untried else ""
            self._say("rules", f"{len(self.rules)} rules, {of_rows}{of_day}")
            self.doubts += night_preview.refused_rows(
                num_bad=len(judged.bad),
                num_rows=len(rows),
                failed=counts,
                limit=self._params.validate_.max_quarantined,
            )
            self.doubts += night_preview.refused_figures([name for name, fails in of_days.items() if fails])
        clean = without_texts(rows).filter(pa.array(judged.good()))
        if not len(clean) and not quiet:
            raise DataError(f"all rows of {day} fail the rules; look at the source, or at the suite")
        return clean

    def _blame(self, day: date) -> None:
        """Raises ParamsError with the name of the first rule that cannot be computed on the day."""
        for rule in self.rules:
            named = f"rule {rule.name!r}"
            try:
                PartitionScan(self.table, self.suite, [rule]).judge(day)
            except PipelineError as error:
                raise ParamsError(str(error) if named in str(error) else f"{named}: {error}") from None
            except Exception as error:  # whatever the team's code raises
                raise ParamsError(f"{named}: {rule.python} fails: {in_words(error)}; fix it") from error

    def _rows(self, wanted: date | None) -> date:
        """Fetches the day and the days that features look back on, and writes a sample of each."""
        with contextlib.chdir(self._home):  # where relative paths of params.yaml lead
            plug = self._params.source.make()
            newest = newest_over(self.table.zone, at=datetime.now(UTC))
            days = sorted(day for day in plug.days() if day <= newest or day == wanted)
        self.plug, self.days = plug, days
        day = wanted or self._newest_ripe(days)
        if day not in days:
            raise DataError(f"the source has nothing of {day}; leave --day out, or name one of {_told(days)}")
        back: timedelta = getattr(self.workload, "looks_back", timedelta())
        rows = self.clean = self._judged(self._fetched(plug, day), day)
        taken = _some(rows, self.table, day=day)
        _write(taken, day)
        before = [other for other in days if day - back <= other < day]
        for other in before:
            some = _of_same_units(self._fetched(plug, other, quiet=True), taken, self.table)
            _write(self._judged(some, other, quiet=True), other)
        text = f"{len(taken):,} of {len(rows):,} rows" if len(taken) < len(rows) else f"{len(rows):,} rows"
        looked = f", and {len(before)} days before" if before else ""
        self._say("table", f"{text} in {len(self.table.columns)} columns{looked}")
        return day

    def _preview(self, day: date) -> None:
        """Compares the day with earlier days, and counts the samples for the gate."""
        before = [other for other in self.days if other < day and other.weekday() == day.weekday()]
        before = before[-drift.SAME_WEEKDAYS :] if self.suite.drift != "off" else []
        clean = {
            other: self._judged(self._fetched(self.plug, other, quiet=True), other, quiet=True)
            for other in before
        }
        limit = self._params.validate_.max_drift
        text, doubts = night_preview.drift_of(
            day, {**clean, day: self.clean}, self.table, self.suite, limit=limit
        )
        self._say("drift", text)
        ripe = [other for other in self.days if other <= day and is_ripe(self.table, other, by=self.days[-1])]
        needed = [each for each in (self.table.label and self.table.label.column, self.table.unit) if each]
        held_out = {
            other: self._fetched(self.plug, other, quiet=True).select(needed or [self.table.time])
            for other in ripe[-self._params.prepare.test_days :]
        }
        text, of_gate = night_preview.held_out(
            held_out, self.table, min_samples=self._params.gate.min_samples
        )
        self._say("held out", text)
        self.doubts += [*doubts, *of_gate]

    def _newest_ripe(self, days: list[date]) -> date:
        if not days:
            raise DataError(
                f"the source has no day with data that is over in {self.table.zone}; "
                f"look at source in params.yaml"
            )
        ripe = [day for day in days if is_ripe(self.table, day, by=days[-1])]
        if not ripe:
            after = self.table.label.ripe_after.days if self.table.label else 0
            raise DataError(
                f"the labels of none of {len(days)} days are known, as they take {after} days; "
                f"wait, or lower ripe_after of the table's label"
            )
        return ripe[-1]

    def _fetched(self, plug: Any, day: date, *, quiet: bool = False) -> pa.Table:
        """Returns a day's rows in the columns of the table, as `ingest` has them."""
        with tempfile.TemporaryDirectory() as scratch:
            with contextlib.chdir(self._home):
                plug.fetch(day, Path(scratch))
            path = Path(scratch) / PART
            if not path.exists():
                raise DataError(f"the source's fetch({day}, folder) writes no {PART}; write the rows there")
            rows = pq.read_table(path, partitioning=None, page_checksum_verification=True)
        if not quiet:
            self._say("source", f"{day}: {len(rows):,} rows, columns {', '.join(rows.column_names)}")
        if rows.schema.equals(self.table.schema()):
            return rows
        table: Any = self.table
        omits_nulls = getattr(plug, "omits_nulls", False)
        return casts.conform(rows, table, origin=f"{day}", absent_is_null=omits_nulls)

    def _samples(self, day: date) -> State:
        """Makes the samples of the day, by `fit` and `features`."""
        state: State = {}
        self._day = day
        ARRAYS.mkdir(parents=True)
        if hasattr(self.workload, "fit"):
            with self._method("fit"):
                state = prepare.fitted(self.workload, read_parts({day: part_of(day, CLEAN)}, engine=DUCKDB))
            write_state(ARRAYS, state)
            self._say("fit", shapes(state) or "nothing")
        rows = pq.read_table(part_of(day, CLEAN), partitioning=None, page_checksum_verification=True)
        if corrects(self.workload):
            with self._method("corrected"):
                rows = sample_rows(self.workload, rows, [])
            self._say("corrected", f"{len(rows):,} rows stay")
        past = past_of(self.workload, day, partitions(CLEAN))
        with self._method("features"):
            arrays = self._made(self.workload, rows, state, past)
        prepare.write_samples(ARRAYS / f"day={day}", arrays)
        self.again = partial(self._made, rows=rows, state=state, past=past), arrays
        self._try_features(rows, state, past, arrays)
        meta = {"first_day": str(day), "last_day": str(day), "test_days": [str(day)]}
        records.replace_text(ARRAYS / "meta.json", json.dumps(meta))
        self._say("features", shapes(arrays))
        unknown = unripe(self.table, day, by=self.days[-1])
        for name in (each.column for each in self.table.auxiliary if each.column in unknown):
            self._note(
                f"the auxiliary label {name} is not known of {day} yet, so the loss gets nan for it; a night "
                f"learns by it where its newest samples (train.warm_share) reach back further"
            )
        return state

    def _made(self, workload: Any, rows: pa.Table, state: State, past: Past) -> dict[str, Any]:
        """Returns the samples of a day's rows, with the labels that are known on the newest day."""
        unknown = unripe(self.table, past.day, by=self.days[-1])
        return samples_of(workload, rows, state, past, unknown=unknown)

    def _try_features(self, rows: pa.Table, state: State, past: Past, arrays: Mapping[str, Any]) -> None:
        """Makes samples of a few of the rows as a new process does, in which `fit` did not run.

        Raises ParamsError where those of all rows are others there, and notes where only those of a few are.
        """
        num = min(FEW_ROWS, len(rows))
        others: list[str] = []
        with trial_version.imported_anew(self._folder / CODE), self._method("features"):
            workload = self._params.workload.make()
            for start in (len(rows) - num, 0):
                alone = self._made(workload, rows.slice(start, num), state, past)
                others += _different(
                    alone, {name: values[start : start + num] for name, values in arrays.items()}
                )
            again = self._made(workload, rows, state, past) if others else arrays
        others = list(dict.fromkeys(others))
        if different := _different(again, arrays):
            raise self._wrong(
                "features",
                f"gives another {', '.join(different)} of the same rows in another process, which has seen "
                f"other rows before and has not run fit",
                "return from fit what it learns, keep nothing between calls, and draw nothing at random",
            )
        if others:
            self._note(
                f"features gives another {', '.join(others)} of {num} rows alone than among the "
                f"{len(rows):,} of their day, and users send a few rows; take what is of other rows from fit "
                f"or from past"
            )


def _failing_days(rules: Sequence[suite.Rule], figures: Mapping[str, float]) -> dict[str, bool | None]:
    """Returns whether a day with these figures fails each rule on them, by the rule's name in quotes.

    None for a type of rule that only Great Expectations knows, which takes seconds to import.
    """
    fails: dict[str, bool | None] = {}
    row = pa.table({name: [value] for name, value in figures.items()})
    with duckdb.connect() as connection:  # other users of the module's own may have left a result in it
        for rule in rules:
            try:
                predicate = failing(rule.name, type=rule.type, kwargs=rule.kwargs)
                own = row.select(
                    [name for name in dict.fromkeys(rule.columns) if name in figures] or row.column_names[:1]
                )
                fails[f"{rule.name!r}"] = bool(connection.from_arrow(own).filter(predicate).fetchall())
            except ParamsError:
                fails[f"{rule.name!r}"] = None
            except duckdb.Error as error:
                why = str(error).splitlines()[0]
                raise ParamsError(
                    f"rule {rule.name!r} cannot be judged: {why}; fix it in the suite"
                ) from None
    return fails


def _different(some: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Returns the names of arrays that differ by more than rounding, among those of features.

    The number of a row without a unit or a group says where it is among the rows of its day.
    """
    return [
        name
        for name, values in others.items()
        if name not in (UNIT, GROUP)
        and (name not in some or not close(torch.from_numpy(some[name]), torch.from_numpy(values.copy())))
    ]


def _told(days: list[date]) -> str:
    return f"{days[0]} to {days[-1]}" if days else "none"


def _some(rows: pa.Table, table: Table, *, day: date) -> pa.Table:
    """Returns a fixed sample of the rows with known labels, in order."""
    known = rows.filter(pc.is_valid(rows[table.label.column])) if table.label else rows
    if not len(known):
        raise DataError(f"no row of {day} has a label; name another day, or look at the source")
    if len(known) <= MOST_ROWS:
        return known
    rng = np.random.default_rng(0)
    return known.take(np.sort(rng.choice(len(known), MOST_ROWS, replace=False)))


def _of_same_units(rows: pa.Table, taken: pa.Table, table: Table) -> pa.Table:
    """Returns the rows of the units that were taken; without units, the first ones."""
    if not table.unit:
        return rows.slice(0, MOST_ROWS)
    units = pc.unique(taken[table.unit])
    return rows.filter(pc.is_in(rows[table.unit], value_set=units))


def _write(rows: pa.Table, day: date) -> None:
    source.write_partition(rows, part_of(day, CLEAN).parent)


def main(home: Path, day: str) -> int:
    """Rehearses in the current folder; leaves the fault, if there is one, and the doubts as files."""
    torch.set_num_threads(1)
    checks = RowChecks(home)
    try:
        checks.run(date.fromisoformat(day) if day else None)
    except PipelineError as error:
        records.replace_text(Path(FAULT), json.dumps({"kind": type(error).__name__, "text": str(error)}))
        return 1
    finally:
        records.replace_text(Path(DOUBTS), json.dumps(checks.doubts))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
