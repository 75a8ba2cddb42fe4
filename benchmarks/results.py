"""Reads and writes results.csv: what benchmarks measured, a row a figure.

    bench, figure      measured again by `make bench NAME=bench`, with QUICK=1 where `quick` says yes
    unit, value        a figure without a unit is a count, a ratio or what its name says
    target, met        such as `<= 180`, and yes or no; empty where a figure has no target
    date, commit       of the newest value, in UTC; the commit that ran
    machine            what it ran on
    note               what has to be known to read it
    first, first_...   the first value of the figure, the same of it; empty if it is the newest too

What was measured between the first and the newest is in git's history. A quick value stands in a row of its
own, until the figure is measured in full again.
"""

import csv
from collections.abc import Iterable
from pathlib import Path

RESULTS = Path(__file__).with_name("results.csv")
NEWEST = ("value", "date", "commit", "note")
FIRST = ("first", "first_date", "first_commit", "first_note")
COLUMNS = (
    *("bench", "figure", "unit", "value", "target", "met", "date", "commit", "machine"),
    *("quick", "note", *FIRST),
)
UNITS = ("CPU s", "s", "ms", "us", "h", "%", "$", "GiB", "MiB", "MB", "meV/A", "Mrows/s")

Row = dict[str, str]


def split_unit(name: str) -> tuple[str, str]:
    """Returns the name and the unit of a figure; the unit is empty if the name ends with none."""
    for unit in UNITS:
        if name.endswith(f" {unit}"):
            return name.removesuffix(f" {unit}").rstrip(","), unit
    return name, ""


def read(path: Path = RESULTS) -> list[Row]:
    """Returns the rows in the order of the file, or none where there is no file yet."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def add(measured: Iterable[Row], path: Path = RESULTS) -> None:
    """Writes newer values over those in the file; a figure's first value stays beside its newest."""
    rows = {_key(row): row for row in read(path)}
    for row in measured:
        earlier = rows.get(_key(row))
        rows[_key(row)] = {**dict.fromkeys(COLUMNS, ""), **row, **_first(earlier)}
        if not row["quick"]:
            rows.pop((*_key(row)[:-1], "yes"), None)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows.values(), key=lambda row: row["bench"]))  # the figures in their order


def _key(row: Row) -> tuple[str, ...]:
    return row["bench"], row["figure"], row["unit"], row["quick"]


def _first(earlier: Row | None) -> Row:
    """Returns the columns of the first value, beside a newer one."""
    if earlier is None:
        return {}
    kept = FIRST if earlier["first"] else NEWEST
    return {column: earlier[key] for column, key in zip(FIRST, kept, strict=True)}
