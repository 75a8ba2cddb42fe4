"""Turns clean partitions into the arrays that training maps into memory (the stage `prepare`).

With `features`, each partition becomes `data/arrays/day=D/samples.npy`, a numpy structure for each sample.
The file is made again only where the day's rows, the rows that features look back on, the code or the state
have changed. So a night touches only new and restated days, and neither disk nor hashing grows with the
window, since old files are links into DVC's cache. The state, which `fit` returns, is in
`data/arrays/state/`; it is fitted again after `prepare.refit_days`, and then all partitions are made again.

By `arrays`, a workload turns the window's rows into arrays of its own all at once, each night.

Where later rows correct earlier ones (daybreak/data/corrections.py), `data/arrays/day=D/rows.parquet` has the
corrected rows of a day, with `features` as with `arrays`. A night corrects again the days that its new days
reach, and makes samples again only for days whose rows changed.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import disk, records
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.formats import counted
from daybreak.contract.record_types import Dataset, Night, Report
from daybreak.contract.sections import PrepareParams, WorkloadPlug
from daybreak.contract.workload import ARRAYS, Prepared, State, Window, read_state, write_state
from daybreak.data.corrections import corrects, later_days, reach
from daybreak.data.dialects import DUCKDB
from daybreak.data.engines import read_parts
from daybreak.data.features import is_ripe, past_of, read_clean, rows_of, samples_of, unripe
from daybreak.data.partitions import CLEAN, part_of, partitions
from daybreak.storage import known_digests
from daybreak.storage.home import Home
from daybreak.storage.source_code import class_digest, running_digest

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

UNFINISHED = Path("data/work/arrays")
SAMPLES, ROWS, KEYS = "samples.npy", "rows.parquet", "keys.json"
SHOW_PROGRESS_FROM = 15  # days


def prepare(
    home: Home, night: Night, report: Report, *, plug: WorkloadPlug, params: PrepareParams
) -> Dataset:
    """Writes `data/arrays/` from the clean partitions of the window, and returns what is in them.

    The newest `test_days` days with rows whose labels are known are held out. Raises DataError if the night's
    day, the days before it or their samples are missing, or data/clean is not the report's.
    """
    if known_digests.digest(home, CLEAN) != report.digest:
        raise DataError(f"{CLEAN} is not what was validated tonight; run validate again")
    workload = plug.make()
    first = night.day - timedelta(days=params.window_days - 1)
    here = partitions(CLEAN)
    days = [day for day in here if first <= day <= night.day]
    if night.day not in days:
        raise DataError(f"{CLEAN} has no rows of {night.day}; run ingest and validate for that day")
    ripe = [day for day in days if is_ripe(workload.table, day, by=night.day)]
    window = _window(ripe, days, params)
    unripe = len(days) - len(ripe)
    num_of_days: dict[str, int] = {}
    known_until: dict[str, str] = {}
    if hasattr(workload, "arrays"):
        _expect_no_later_labels(workload)
        num_train, num_test = _whole_window(home, workload, window, here, plug=plug, params=params)
    elif hasattr(workload, "features"):
        num_train, num_test, num_of_days = _by_partition(
            home, workload, window, here, plug=plug, params=params, by=night.day
        )
        known_until = _known_until(workload, window.train, by=night.day)
        _warn_of_unknown(workload, known_until, params)
    else:
        num_train, num_test = _counted(workload, window)
    for split, number in (("training", num_train), ("held-out", num_test)):
        if number == 0:
            raise DataError(
                f"there is no sample on the {split} days of {days[0]} to {night.day}; look at "
                f"data/quarantine, and at the arguments of the workload"
            )
    return Dataset(
        digest=known_digests.digest(home, ARRAYS),
        num_samples=num_train,
        first_day=window.train[0],
        last_day=window.train[-1],
        num_unripe_days=unripe,
        num_of_days=num_of_days,
        known_until=known_until,
        made_by=class_digest(plug.use, plug.model_extra or {}),
        num_bytes=sum(path.stat().st_size for path in ARRAYS.rglob("*") if path.is_file()),
    )


def remake(workload: Any, model: Path, folder: Path) -> None:
    """Writes the held-out samples of tonight's clean rows by another workload, with the state of its model.

    With `arrays`, DuckDB makes the arrays of the whole window. The arrays in `ARRAYS` are left alone.
    """
    meta = json.loads((ARRAYS / "meta.json").read_text())
    here, state, last = partitions(CLEAN), read_state(model), date.fromisoformat(meta["last_day"])
    test = tuple(map(date.fromisoformat, meta["test_days"]))
    if hasattr(workload, "arrays"):
        train = tuple(day for day in here if date.fromisoformat(meta["first_day"]) <= day <= last)
        parts = {day: part_of(day, CLEAN) for day in (*train, *test)}
        if corrects(workload):
            parts = {day: folder / f"day={day}" / ROWS for day in parts}
            for day, path in parts.items():
                _write_rows(path, rows_of(workload, day, here, last=last))
        window = Window(train=train, test=test)
        write_whole(folder, workload.arrays(read_parts(parts, engine=DUCKDB), window), window)
        return
    for day in test:
        rows = rows_of(workload, day, here, last=last)
        unknown = unripe(workload.table, day, by=max(here))
        made = samples_of(workload, rows, state, past_of(workload, day, here), unknown=unknown)
        write_samples(folder / f"day={day}", made)
    shutil.copy(ARRAYS / "meta.json", folder)


def make_again(
    home: Home, dataset: Dataset, night: Night, *, plug: WorkloadPlug, params: PrepareParams
) -> None:
    """Makes the arrays of a closed night anew from today's clean partitions, with that night's window.

    Makes only the arrays of the whole window, which serving needs; the next night makes the others.
    """
    workload = plug.make()
    if not hasattr(workload, "arrays"):
        shutil.rmtree(ARRAYS, ignore_errors=True)
        return
    here = partitions(CLEAN)
    window = Window(
        train=tuple(day for day in here if dataset.first_day <= day <= dataset.last_day),
        test=tuple(
            day
            for day in here
            if dataset.last_day < day <= night.day and is_ripe(workload.table, day, by=night.day)
        ),
    )
    _whole_window(home, workload, window, here, plug=plug, params=params)


def _window(ripe: Sequence[date], days: Sequence[date], params: PrepareParams) -> Window:
    window = Window(train=tuple(ripe[: -params.test_days]), test=tuple(ripe[-params.test_days :]))
    if not window.train:
        late = f", the labels of {len(days) - len(ripe)} are not yet known" if len(days) > len(ripe) else ""
        what = "raise prepare.window_days or lower prepare.test_days"
        if len(ripe) < 2 and params.window_days > 1:
            what = "a night needs two days whose labels are known, one to train on and one to judge by"
        raise DataError(
            f"the window of {params.window_days} days to {days[-1]} has {counted(len(days), 'day')} with "
            f"rows{late} and {params.test_days} held out; {what}"
        )
    return window


def _table(workload: Any, days: Sequence[date], params: PrepareParams) -> "ir.Table":
    """Returns the rows of these days, as they stand, on the Ibis backend of params."""
    parts = {day: _rows(day) if corrects(workload) else part_of(day, CLEAN) for day in days}
    return read_parts(parts, engine=params.engine)


def _facts(window: Window, *, num_train: int, num_test: int) -> dict[str, Any]:
    return {
        "first_day": str(window.train[0]),
        "last_day": str(window.train[-1]),
        "test_days": [str(day) for day in window.test],
        "num_samples_train": num_train,
        "num_samples_test": num_test,
    }


def _write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    records.replace_text(folder / "meta.json", json.dumps(meta, indent=2, sort_keys=True) + "\n")


def _whole_window(
    home: Home,
    workload: Any,
    window: Window,
    here: Sequence[date],
    *,
    plug: WorkloadPlug,
    params: PrepareParams,
) -> tuple[int, int]:
    """Writes the arrays of all rows to a temporary folder, then moves that folder into place."""
    keys = _keys_of_before(plug)
    if corrects(workload) and "rows" not in keys:  # whatever is here was made by other code
        shutil.rmtree(ARRAYS, ignore_errors=True)
    _correct(home, workload, window, here, keys)
    made: Prepared = workload.arrays(_table(workload, [*window.train, *window.test], params), window)
    shutil.rmtree(UNFINISHED, ignore_errors=True)
    UNFINISHED.mkdir(parents=True)
    write_whole(UNFINISHED, made, window)
    if corrects(workload):
        _write_keys(UNFINISHED, keys)
        for folder in ARRAYS.glob("day=*"):
            folder.replace(UNFINISHED / folder.name)
    shutil.rmtree(ARRAYS, ignore_errors=True)
    UNFINISHED.replace(ARRAYS)
    return made.num_train, made.num_test


def write_whole(folder: Path, made: Prepared, window: Window) -> None:
    """Writes what `arrays` made of a window, and the facts of it, to an empty folder."""
    import numpy as np
    import pyarrow.parquet as pq

    for name, array in made.arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    for name, table in made.tables.items():
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd", write_page_checksum=True)
    facts = _facts(window, num_train=made.num_train, num_test=made.num_test)
    if clash := sorted(facts.keys() & made.facts.keys()):
        raise ParamsError(
            f"`arrays` returns the fact {clash[0]!r}, as one of Daybreak's own is called; give it "
            f"another name"
        )
    _write_meta(folder, {**facts, **made.facts})


def _counted(workload: Any, window: Window) -> tuple[int, int]:
    """Counts the samples of a workload that reads the clean partitions by itself."""
    shutil.rmtree(ARRAYS, ignore_errors=True)
    ARRAYS.mkdir(parents=True)
    _write_meta(ARRAYS, _facts(window, num_train=0, num_test=0))  # which names the days
    num_train, num_test = (len(workload.dataset(ARRAYS, split)) for split in ("train", "test"))
    _write_meta(ARRAYS, _facts(window, num_train=num_train, num_test=num_test))
    return num_train, num_test


def _by_partition(
    home: Home,
    workload: Any,
    window: Window,
    here: Sequence[date],
    *,
    plug: WorkloadPlug,
    params: PrepareParams,
    by: date,
) -> tuple[int, int, dict[str, int]]:
    """Makes the samples of each partition that has changed, or of which more labels are known `by` a day.

    Returns how many the two splits have, and each day of training.
    """
    import numpy as np
    import pyarrow.parquet as pq

    keys = _keys_of_before(plug)
    # A state of a later day, as before a night for an earlier one, has seen days that are held out now.
    if "fitted" not in keys or not 0 <= _age(keys, window) < params.refit_days:
        shutil.rmtree(ARRAYS, ignore_errors=True)
        ARRAYS.mkdir(parents=True)
        keys = {"code": keys["code"], "fitted": str(window.train[-1]), "days": {}}
    _correct(home, workload, window, here, keys)
    if hasattr(workload, "fit") and not keys["days"]:
        write_state(ARRAYS, fitted(workload, _table(workload, window.train, params)))
    state = read_state(ARRAYS)
    wanted = [*window.train, *window.test]
    _remove_all_but(wanted, keys["days"])
    unknown = {day: unripe(workload.table, day, by=by) for day in wanted}
    digests = {
        day: " ".join([digest, *unknown[day]])
        for day, digest in _digests(home, wanted, here, workload).items()
    }
    new = [day for day in wanted if keys["days"].get(str(day)) != digests[day]]
    for day in _with_progress(new):
        rows = (
            pq.read_table(_rows(day), partitioning=None, page_checksum_verification=True)
            if corrects(workload)
            else read_clean(day)
        )
        past = past_of(workload, day, here)
        made = samples_of(workload, rows, state, past, unknown=unknown[day])
        write_samples(_samples(day).parent, made)
        keys["days"][str(day)] = digests[day]
    kinds = {day: np.load(_samples(day), mmap_mode="r") for day in wanted}
    _check_alike(workload, {day: mapped.dtype for day, mapped in kinds.items()})
    _check_labels(workload, window.train)
    num_train, num_test = (sum(len(kinds[day]) for day in split) for split in (window.train, window.test))
    _write_keys(ARRAYS, keys)
    _write_meta(ARRAYS, _facts(window, num_train=num_train, num_test=num_test))
    return num_train, num_test, {str(day): len(kinds[day]) for day in window.train}


def _keys_of_before(plug: WorkloadPlug) -> dict[str, Any]:
    """Returns the digests of what ARRAYS was made of; those of days only if by the code of today."""
    code = f"{plug.use} {json.dumps(plug.model_extra, sort_keys=True)} {running_digest(plug.use)}"
    keys: dict[str, Any] = json.loads(path.read_text()) if (path := ARRAYS / KEYS).exists() else {}
    return keys if keys.get("code") == code else {"code": code}


def _write_keys(folder: Path, keys: Mapping[str, Any]) -> None:
    disk.sync(folder)  # what they are of
    records.replace_text(folder / KEYS, json.dumps(keys, indent=2, sort_keys=True) + "\n")


def _age(keys: Mapping[str, Any], window: Window) -> int:
    """Returns the days that have come since the state was fitted; below 0 for a state of later days."""
    return (window.train[-1] - date.fromisoformat(keys["fitted"])).days


def _correct(home: Home, workload: Any, window: Window, here: Sequence[date], keys: dict[str, Any]) -> None:
    """Writes the corrected rows of each day that changed, or that a changed day may correct.

    A file whose bytes would be the same is left alone.
    """
    if not corrects(workload):
        return
    wanted, last = [*window.train, *window.test], window.train[-1]
    of_rows = keys.setdefault("rows", {})
    _remove_all_but(wanted, of_rows)
    parts = known_digests.digests(home, (part_of(day, CLEAN) for day in here if day >= wanted[0]))
    digests = {day: parts[part_of(day, CLEAN)] for day in here if day >= wanted[0]}
    seen = {day: [day, *later_days(workload, day, digests, last=last)] for day in wanted}
    now = {day: _digest_of(digests[other] for other in seen[day]) for day in wanted}
    new = [day for day in wanted if of_rows.get(str(day)) != now[day] or not _rows(day).exists()]
    read = lru_cache(maxsize=reach(workload).days + 2)(read_clean)  # days in a row have most of it in common
    for day in _with_progress(new):
        _write_rows(_rows(day), rows_of(workload, day, seen[day], last=last, read=read))
        of_rows[str(day)] = now[day]


def _write_rows(path: Path, rows: "pa.Table") -> None:
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}.parquet")
    pq.write_table(
        rows.combine_chunks(), unfinished, compression="zstd", write_page_checksum=True
    )  # chunks would change the bytes
    if path.exists() and records.digest(path) == records.digest(unfinished):
        unfinished.unlink()
    else:
        unfinished.replace(path)


def _remove_all_but(wanted: Sequence[date], digests: dict[str, str]) -> None:
    """Removes the days that have left the window, their digests, and what a killed call was writing."""
    kept = set(map(str, wanted))
    for torn in ARRAYS.glob("day=*/.*"):
        torn.unlink()
    for folder in ARRAYS.glob("day=*"):
        if folder.name[4:] not in kept:
            shutil.rmtree(folder)
    for gone in digests.keys() - kept:
        del digests[gone]


def _with_progress(days: Sequence[date]) -> Iterable[date]:
    from tqdm import tqdm

    silent = len(days) < SHOW_PROGRESS_FROM or None  # None: silent unless on a terminal
    return tqdm(days, desc="prepare", unit="day", disable=silent, file=sys.stderr)


def fitted(workload: Any, rows: "ir.Table") -> State:
    """Returns what `fit` finds in rows, as arrays; ParamsError where it finds something else."""
    import numpy as np

    result: State = workload.fit(rows) or {}
    if not isinstance(result, Mapping):
        raise ParamsError(
            f"{type(workload).__name__}.fit returns {type(result).__name__}; return a dict of arrays by name"
        )
    state = {name: np.asarray(value) for name, value in result.items()}
    for name, array in state.items():
        if array.dtype.kind not in "biufU":
            raise ParamsError(
                f"{type(workload).__name__}.fit: {name!r} is of {array.dtype}; return numbers, bools or text"
            )
    return state


def _samples(day: date) -> Path:
    return ARRAYS / f"day={day}" / SAMPLES


def _rows(day: date) -> Path:
    return ARRAYS / f"day={day}" / ROWS


def _digests(home: Home, wanted: Sequence[date], here: Sequence[date], workload: Any) -> dict[date, str]:
    """Returns the digest of the rows that the samples of each day are made of."""
    back: timedelta = getattr(workload, "looks_back", timedelta())
    seen = {
        day: [
            *(part_of(other, CLEAN) for other in here if day - back <= other <= day),
            *([_rows(day)] if corrects(workload) else []),
        ]
        for day in wanted
    }
    digests = known_digests.digests(home, {path for paths in seen.values() for path in paths})
    return {day: _digest_of(digests[path] for path in paths) for day, paths in seen.items()}


def _digest_of(digests: Iterable[str]) -> str:
    return hashlib.md5("\n".join(digests).encode(), usedforsecurity=False).hexdigest()


def write_samples(folder: Path, arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Writes the samples of a day as one structured array; the file before may be a link into a cache."""
    import numpy as np

    fields = [(name, array.dtype, array.shape[1:]) for name, array in sorted(arrays.items())]
    num_samples = len(next(iter(arrays.values())))
    samples = np.zeros(num_samples, dtype=np.dtype(fields, align=True))
    for name, array in arrays.items():
        samples[name] = array
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{os.getpid()}.npy"
    np.save(unfinished, samples, allow_pickle=False)
    unfinished.replace(folder / SAMPLES)


def _check_alike(workload: Any, kinds: Mapping[date, Any]) -> None:
    """Raises ParamsError where the samples of two days have other fields."""
    first_day, first = next(iter(kinds.items()))
    for day, kind in kinds.items():
        if kind != first:
            raise ParamsError(
                f"{type(workload).__name__}.features makes {_fields(kind)} of {day}, but {_fields(first)} of "
                f"{first_day}; return the same names, types and shapes for all rows"
            )


def _fields(kind: Any) -> str:
    return ", ".join(f"{name} {kind[name]}" for name in kind.names)


def _expect_no_later_labels(workload: Any) -> None:
    """Raises ParamsError for labels that `arrays`, which gets rows as they stand, would see too early."""
    table = workload.table
    for each in table.auxiliary:
        if each.ripe_after > table.label.ripe_after:
            raise ParamsError(
                f"the auxiliary label {each.column} is known later than {table.label.column}, and "
                f"{type(workload).__name__}.arrays gets the early values, too; write features in place of "
                f"arrays, or give {table.label.column} the same ripe_after"
            )


def _known_until(workload: Any, train: Sequence[date], *, by: date) -> dict[str, str]:
    """Returns the last training day on which an auxiliary label has values, by its column; "" for none."""
    import numpy as np

    def is_known(name: str, day: date) -> bool:
        if name in unripe(workload.table, day, by=by):
            return False
        return not np.isnan(np.load(_samples(day), mmap_mode="r")[name]).all()

    return {
        each.column: next((str(day) for day in reversed(train) if is_known(each.column, day)), "")
        for each in workload.table.auxiliary
    }


def _warn_of_unknown(workload: Any, known_until: Mapping[str, str], params: PrepareParams) -> None:
    for name, until in known_until.items():
        if not until:
            log.warning(
                "no training sample has a value of the auxiliary label %s, so nothing is learned by it; "
                "raise prepare.window_days, which is %d, above its ripe_after of %d days, or look at "
                "the source",
                name,
                params.window_days,
                workload.table.labels[name].ripe_after.days,
            )


def _check_labels(workload: Any, train: Sequence[date]) -> None:
    """Raises DataError where all training labels are of one value, which no model can learn from."""
    import numpy as np

    if workload.table.label is None:
        return
    name, seen = workload.table.label.column, set()
    for day in train:
        labels = np.load(_samples(day), mmap_mode="r")[name]  # one day's, as pages that were read stay mapped
        seen |= {labels.min(), labels.max()} if len(labels) else set()
        if len(seen) > 1:
            return
    if seen:
        raise DataError(
            f"the label {name} is {seen.pop():g} in all training rows; there is nothing to learn: "
            f"look at the source, and at ripe_after of the label"
        )
