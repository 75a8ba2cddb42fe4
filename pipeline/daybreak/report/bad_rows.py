"""Finds the rows of a night that failed rules, and how many rows failed each rule, night by night.

Bad rows that `validate` tolerates are in `data/quarantine`, a file a day; the bad rows of a night that it
stopped are in `data/run/bad_rows`. Each row is there once, under the first rule that it failed, while the
counts of the Report have it under every failed rule. Where the folder of a night is pruned, rows are read
from DVC's cache; where the cache lacks them too, the ledger still has the counts.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from daybreak.contract import formats, records
from daybreak.data.bad_cells import with_delivered_texts
from daybreak.data.partitions import PART, QUARANTINE
from daybreak.data.quarantine import REFUSED, RULE
from daybreak.storage import branch, dvc_cache, erasures
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 20  # rows a rule, unless more are asked for
LONGEST = 80  # characters of a value

Severity = Literal["tolerated", "serious"]  # the night went on, or was stopped by `validate`


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that failed a rule, and where it is."""

    file: str  # in the folder of the night
    number: int  # of the row in the file, from 0
    day: str
    values: dict[str, Any]  # by column, what JSON knows


@dataclass(frozen=True, kw_only=True)
class FailedRule:
    """A rule that rows failed in a night."""

    rule: str
    column: str  # "" where the night has no Report, which names it
    severity: Severity
    num_failed: int | None  # rows, also those that are kept under an earlier rule; None: not counted
    num_kept: int | None  # rows that are kept under this rule; None: the rows are gone
    rows: tuple[BadRow, ...]  # the first of them


@dataclass(frozen=True, kw_only=True)
class BadRows:
    """What failed in a night; `where` says where the rows are, or why they cannot be shown."""

    night: str
    severity: Severity | None  # None: `validate` has not judged
    where: str
    rules: tuple[FailedRule, ...]


@dataclass(frozen=True, kw_only=True)
class RuleNight:
    """How many rows failed a rule in a night."""

    night: str
    severity: Severity | None  # of the night; None: no row failed, or `validate` was not reached
    num_failed: int | None  # None: not counted
    num_rows: int | None  # judged that night


def severity(entry: Entry, *, stopped: bool = False) -> Severity | None:
    """Returns what `validate` made of the night; `stopped` is whether its folder has the stage's error."""
    if entry.report:
        return "tolerated"
    return "serious" if stopped or (entry.verdict and entry.verdict.failed == "validate") else None


def of_night(
    home: Home, entry: Entry, folder: Path, *, rule: str = "", limit: int = SHOWN, stopped: bool = False
) -> BadRows:
    """Returns what failed in the night, all rules or one, with at most `limit` rows of each."""
    made = severity(entry, stopped=stopped or (folder / records.RUN / "validate.error").exists())
    parts, where = _parts(home, entry, folder, made)
    kept: dict[str, list[BadRow]] = {}
    counts: Counter[str] | None = None if parts is None else Counter()
    for file, path in parts or ():
        for name, num, rows in _failed(file, path, rule=rule, limit=limit, known=kept):
            assert counts is not None
            counts[name] += num
            kept.setdefault(name, []).extend(rows)
    reported = {one.rule: one for one in entry.report.expectations} if entry.report else {}
    names = {one.rule for one in reported.values() if one.num_failed or not one.success} | set(counts or ())
    rules = [
        FailedRule(
            rule=name,
            column=reported[name].column if name in reported else "",
            severity=made or "serious",
            num_failed=reported[name].num_failed if name in reported else None,
            num_kept=None if counts is None else counts[name],
            rows=tuple(kept.get(name, ())),
        )
        for name in names
        if not rule or name == rule
    ]
    ranked = sorted(rules, key=lambda one: (-max(one.num_failed or 0, one.num_kept or 0), one.rule))
    return BadRows(night=entry.night.id, severity=made, where=where, rules=tuple(ranked))


def over_nights(rule: str, history: Iterable[Entry]) -> list[RuleNight]:
    """Returns how many rows failed the rule in each night of the ledger that knew it, or was stopped."""
    nights = []
    for entry in history:
        made = severity(entry)
        if entry.rollback or made is None:
            continue
        if entry.report is None:
            nights.append(RuleNight(night=entry.night.id, severity=made, num_failed=None, num_rows=None))
            continue
        for one in entry.report.expectations:
            if one.rule == rule:
                failed = one.num_failed or not one.success
                nights.append(
                    RuleNight(
                        night=entry.night.id,
                        severity=made if failed else None,
                        num_failed=one.num_failed,
                        num_rows=entry.report.num_rows,
                    )
                )
    return nights


def before(rule: str, history: Sequence[Entry], night: str) -> str:
    """Returns in words how the rule fared in the nights of the ledger other than this one.

    >>> before("price is there", [], "2011-11-08")
    ''
    """
    nights = [one for one in over_nights(rule, history) if one.night != night and one.num_failed is not None]
    if not nights:
        return ""
    failed = [one.num_failed for one in nights if one.num_failed]
    most = f", at most {formats.counted(max(failed), 'row')}" if failed else ""
    return f"failed in {formats.count(len(failed))} of {formats.counted(len(nights), 'other night')}{most}"


def texts(values: dict[str, Any]) -> str:
    r"""Returns the values of a row on a line, as `column value`.

    >>> texts({"item": "A\n1", "price": None})
    'item A 1 · price missing'
    """
    return " · ".join(
        f"{formats.one_line(str(name))} {'missing' if value is None else formats.one_line(str(value))}"
        for name, value in values.items()
    )


def lines(bad: BadRows, history: Sequence[Entry], nights: Sequence[RuleNight]) -> "Iterator[str | Table]":
    """Yields what the terminal shows: the rules that failed, their rows, and the nights of a rule."""
    yield formats.one_line(f"Night {formats.short_id(bad.night)}: {bad.where}")
    if bad.rules:
        yield _rules_table(bad, history)
    for one in bad.rules:
        name = formats.one_line(one.rule)
        for row in one.rows:
            yield f"{name}: {row.file}, row {row.number}: {texts(row.values)}"
        if more := (one.num_kept or 0) - len(one.rows):
            yield f"{name}: {formats.counted(more, 'more row')}; show them with --limit {one.num_kept}"
    if nights:
        yield _nights_table(nights)


def _rules_table(bad: BadRows, history: Sequence[Entry]) -> "Table":
    made = _table("rule", "column", "in other nights", numbers=("failed", "kept"))
    for one in bad.rules:
        words = before(one.rule, history, bad.night)
        counts = (formats.count(one.num_failed), formats.count(one.num_kept))
        made.add_row(*map(_text, (one.rule, one.column or formats.NONE, words or formats.NONE, *counts)))
    return made


def _nights_table(nights: Sequence[RuleNight]) -> "Table":
    made = _table("night", "what came of it", numbers=("failed", "rows"))
    for one in nights:
        counts = (formats.count(one.num_failed), formats.count(one.num_rows))
        words = {"tolerated": "tolerated", "serious": "serious: the night was stopped", None: "no row failed"}
        made.add_row(*map(_text, (formats.short_id(one.night), words[one.severity], *counts)))
    return made


def _table(*words: str, numbers: tuple[str, ...]) -> "Table":
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in words:
        made.add_column(name)
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def _text(value: str) -> Any:
    from rich.text import Text

    return Text(formats.one_line(value))  # not markup of rich


def _parts(
    home: Home, entry: Entry, folder: Path, made: Severity | None
) -> tuple[list[tuple[str, Path]] | None, str]:
    """Returns the files of the night's bad rows by name, and a sentence about them.

    None where the files are gone, or `validate` has not separated bad rows.
    """
    if made is None:
        return None, "validate has not judged this night's rows."
    if made == "serious":
        if (folder / REFUSED).is_dir():
            return _here(folder, REFUSED), (
                f"validate stopped the night; the bad rows that came in are in {REFUSED}, each under the "
                f"first rule that it failed."
            )
        why = "or it was stopped before rows were judged" if folder.exists() else "and goes with its folder"
        return None, f"validate stopped the night; no bad row is kept here: {REFUSED} is not there, {why}."
    assert entry.report
    files, where = (
        (_here(folder, QUARANTINE), "")
        if (folder / QUARANTINE).is_dir()
        else (_cached(home, entry), ", read from DVC's cache, as the folder of the night is pruned")
    )
    if files is None:
        return None, (
            "The rows of this night are pruned here (night.keep, night.keep_days); the ledger still says how "
            "many failed each rule."
        )
    parts = _of_tonight(files, entry)
    num = sum(_num_rows(path) for _, path in parts)
    where = (
        f"validate tolerated {formats.counted(entry.report.num_quarantined, 'bad row')} of "
        f"{formats.count(entry.report.num_rows)}; they are in {QUARANTINE}{where}, each under the first rule "
        f"that it failed."
    )
    if num != entry.report.num_quarantined:
        where += f" {formats.count(num)} of them are there now; others were erased or judged again since."
    return parts, where


def _here(folder: Path, under: Path) -> list[tuple[str, Path]]:
    return [(str(path.relative_to(folder)), path) for path in sorted((folder / under).glob(f"day=*/{PART}"))]


def _cached(home: Home, entry: Entry) -> list[tuple[str, Path]] | None:
    """Returns the files of the quarantine in DVC's cache, by the night's dvc.lock; None if one is gone."""
    lock = branch.text_at(home, entry.commit, "dvc.lock") if entry.commit else None
    outs = dvc_cache.outputs(erasures.now_of_lock(home, lock)) if lock else {}
    digest = outs.get(str(QUARANTINE), "")
    if not digest or not dvc_cache.is_intact(home, digest):
        return None
    files = [
        (name, dvc_cache.path_of(home, one))
        for name, one in dvc_cache.files_of(home, {str(QUARANTINE): digest})
    ]
    return sorted(files) if all(path.exists() for _, path in files) else None


def _day(file: str) -> str:
    return Path(file).parent.name.removeprefix("day=")


def _of_tonight(files: list[tuple[str, Path]], entry: Entry) -> list[tuple[str, Path]]:
    """Returns the files of the days that were judged that night: those that came in, or all if rules changed.

    The quarantine has all days of the window. The number of rows tells the two cases apart.
    """
    days: set[date] = {entry.batch.day, *entry.batch.late_days} if entry.batch else set()
    tonight = [(file, path) for file, path in files if _day(file) in set(map(str, days))]
    assert entry.report
    wanted = entry.report.num_quarantined
    as_many = [parts for parts in (tonight, files) if sum(_num_rows(path) for _, path in parts) == wanted]
    return as_many[0] if as_many else tonight


def _num_rows(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _failed(
    file: str, path: Path, *, rule: str, limit: int, known: dict[str, list[BadRow]]
) -> Iterator[tuple[str, int, list[BadRow]]]:
    """Yields each rule of a file, how many rows failed it, and the first of them, up to the limit."""
    import pyarrow.parquet as pq

    names = pq.read_table(path, columns=[RULE], partitioning=None)[RULE].to_pylist()
    numbers: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        if not rule or name == rule:
            numbers.setdefault(name, []).append(number)
    wanted = {name: of_rule[: max(0, limit - len(known.get(name, ())))] for name, of_rule in numbers.items()}
    taken = [number for of_rule in wanted.values() for number in of_rule]
    rows = pq.read_table(path, partitioning=None).drop([RULE]).take(taken).to_pylist() if taken else []
    by_number = dict(zip(taken, rows, strict=True))
    for name, of_rule in numbers.items():
        yield (
            name,
            len(of_rule),
            [
                BadRow(
                    file=file,
                    number=number,
                    day=_day(file),
                    values={
                        column: _plain(value)
                        for column, value in with_delivered_texts(by_number[number]).items()
                    },
                )
                for number in wanted[name]
            ],
        )


def _plain(value: Any) -> Any:
    """Returns a value as JSON knows it: a long text is cut, bytes and lists are told by their size."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return f"{formats.size(len(value))} of bytes"
    if isinstance(value, list):
        return formats.counted(len(value), "value")
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
