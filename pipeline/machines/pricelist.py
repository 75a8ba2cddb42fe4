"""What does a machine cost, rented where and how? `prices.csv`, and what was read from the provider since.

One row per machine, region and strategy, with whose price it is and of which day. A machine is offered where
it has a row. An empty price is not known: the row is listed and not planned. Prices are Compute Engine's;
Vertex AI adds a fee to some. Prices that were read later (`prices --refresh`) are kept in a file of the same
form and go before these.
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

from pipeline.contract.errors import ParamsError
from pipeline.contract.machine import Price
from pipeline.contract.records import Strategy

STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
REFRESHED = Path("var/prices.csv")  # under the home of the nights
COLUMNS = ("name", "region", "strategy", "usd_per_hour", "source", "dated")


def prices(refreshed: Path | None = None) -> tuple[Price, ...]:
    """All prices, in the order of `prices.csv`, those in the file `refreshed` in the place of ours."""
    return _prices(refreshed, changed(refreshed))


def changed(path: Path | None) -> int:
    """When the file was written, in nanoseconds; 0 where there is none."""
    return path.stat().st_mtime_ns if path is not None and path.exists() else 0


@cache
def _prices(refreshed: Path | None, written: int) -> tuple[Price, ...]:
    text = files("pipeline.machines").joinpath("prices.csv").read_text()
    ours = {price.key: price for price in read(text, source="pipeline/machines/prices.csv")}
    if refreshed is not None and written:
        newer = read(refreshed.read_text(), source=str(refreshed))
        ours |= {price.key: price for price in newer if price.key in ours}
    return tuple(ours.values())


def read(text: str, *, source: str) -> Iterator[Price]:
    """The prices of a table; ParamsError naming the line and the column that cannot be."""
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ParamsError(f"{source} has not the columns {','.join(COLUMNS)}; mend it, or remove it")
    for row in reader:
        yield _price(row, where=f"{source}, line {reader.line_num}")


def _price(row: dict[str, str], *, where: str) -> Price:
    if None in row.values() or None in row:
        raise ParamsError(f"{where} has not one cell for each of {','.join(COLUMNS)}; mend it, or remove it")
    text, strategy = row["usd_per_hour"], row["strategy"]
    try:
        usd = float(text) if text else None
        dated = date.fromisoformat(row["dated"])
    except ValueError as error:
        raise ParamsError(f"{where}: {error}; mend that row, or remove it") from None
    if usd is not None and not (usd > 0 and isfinite(usd)):
        raise ParamsError(
            f"{where}: usd_per_hour of {row['name']} is {text}, which is no price; "
            f"mend it, or leave it empty where it is not known"
        )
    for known in STRATEGIES:
        if strategy == known:
            return Price(
                name=row["name"], region=row["region"], strategy=known, usd_per_hour=usd,
                source=row["source"], dated=dated,
            )  # fmt: skip
    raise ParamsError(f"{where}: strategy is {strategy!r}; it is one of {', '.join(STRATEGIES)}")


def as_table(found: Iterable[Price]) -> str:
    """The prices as the text of a file that `read` reads."""
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for p in found:
        usd = "" if p.usd_per_hour is None else round(p.usd_per_hour, 6)
        rows.writerow([p.name, p.region, p.strategy, usd, p.source, p.dated])
    return text.getvalue()
