"""Reads the prices of machines: `prices.csv`, and newer prices from the provider.

There is one row per machine, region and strategy, with the source and the date of its price. A machine is
offered where it has a row. Machines without a price are listed and never planned. Prices are Compute
Engine's; `fees` has Vertex AI's charges. Newer prices (`prices --refresh`) are kept in a file of the same
form and take precedence; there a row may have two more cells, the fee that was read with the price, and its
source.
"""

import csv
from collections.abc import Iterable, Iterator
from datetime import date
from functools import cache
from importlib.resources import files
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import get_args

from daybreak.contract.errors import ParamsError
from daybreak.contract.machine import Charge, Price
from daybreak.contract.record_parts import Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
REFRESHED = Path("var/prices.csv")  # under the home of the nights
COLUMNS = ("name", "region", "strategy", "usd_per_hour", "source", "dated")
FEE_COLUMNS = ("fee_usd_per_hour", "fee_source")  # only where they were read


def prices(refreshed: Path | None = None) -> tuple[Price, ...]:
    """Returns all prices in the order of `prices.csv`; those in the file `refreshed` replace ours."""
    return _prices(refreshed, changed(refreshed))


def changed(path: Path | None) -> int:
    """Returns when the file was written, in nanoseconds; 0 where there is no file."""
    return path.stat().st_mtime_ns if path is not None and path.exists() else 0


@cache
def _prices(refreshed: Path | None, written: int) -> tuple[Price, ...]:
    text = files("daybreak.machines").joinpath("prices.csv").read_text()
    ours = {price.key: price for price in read(text, source="daybreak/machines/prices.csv")}
    if refreshed is not None and written:
        newer = read(refreshed.read_text(), source=str(refreshed))
        ours |= {price.key: price for price in newer if price.key in ours}
    return tuple(ours.values())


def read(text: str, *, source: str) -> Iterator[Price]:
    """Yields the prices of a table; raises ParamsError naming the line and column that is not valid."""
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) not in (COLUMNS, COLUMNS + FEE_COLUMNS):
        raise ParamsError(f"{source} does not have the columns {','.join(COLUMNS)}; fix it, or remove it")
    for row in reader:
        yield _price(row, where=f"{source}, line {reader.line_num}")


def _price(row: dict[str, str], *, where: str) -> Price:
    if None in row.values() or None in row:
        raise ParamsError(
            f"{where} does not have one cell for each of {','.join(COLUMNS)}; fix it, or remove it"
        )
    strategy = row["strategy"]
    usd, fee_usd = (_usd(row, column, where=where) for column in ("usd_per_hour", FEE_COLUMNS[0]))
    try:
        dated = date.fromisoformat(row["dated"])
    except ValueError as error:
        raise ParamsError(f"{where}: {error}; fix that row, or remove it") from None
    for valid in STRATEGIES:
        if strategy == valid:
            return Price(
                name=row["name"],
                region=row["region"],
                strategy=valid,
                usd_per_hour=usd,
                source=row["source"],
                dated=dated,
                fee=None if fee_usd is None else Charge(usd_per_hour=fee_usd, source=row[FEE_COLUMNS[1]]),
            )
    raise ParamsError(f"{where}: strategy is {strategy!r}; it is one of {', '.join(STRATEGIES)}")


def _usd(row: dict[str, str], column: str, *, where: str) -> float | None:
    text = row.get(column, "")
    try:
        usd = float(text) if text else None
    except ValueError as error:
        raise ParamsError(f"{where}: {error}; fix that row, or remove it") from None
    if usd is not None and not (usd > 0 and isfinite(usd)):
        raise ParamsError(
            f"{where}: {column} of {row['name']} is {text}, which is not a valid price; "
            f"fix it, or leave it empty if unknown"
        )
    return usd


def as_table(priced: Iterable[Price]) -> str:
    """Returns the prices as the text of a file that `read` reads."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS + FEE_COLUMNS)
    for p in priced:
        usd = "" if p.usd_per_hour is None else round(p.usd_per_hour, 6)
        fee = (round(p.fee.usd_per_hour, 6), p.fee.source) if p.fee else ("", "")
        rows.writerow([p.name, p.region, p.strategy, usd, p.source, p.dated, *fee])
    return text.getvalue()
