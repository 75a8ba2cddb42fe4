"""Provides traces of spot capacity and its price in each zone, read from a file or drawn with a seed.

A file is a table (CSV, also .gz) of runs without a change, as in andylizf/skynomad-artifact: `zone`,
`start_tick_600s` (the tick's length is in the name), `run_ticks`, `available` (1 or 0). Prices are in two
more columns, `spot_usd_h` and `on_demand_usd_h`, or in a table by `zone` beside the file: `..._info.csv` for
`..._rle.csv.gz`.

Drawn traces follow measurements: capacity lasts as long as machines lived in 2019 (`survival.MEASURED`), and
outages are drawn like 789 outages of 13 zones in 2025 (the same artifact): more than half last one tick, one
in twenty most of a day.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import DataError
from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot import survival

if TYPE_CHECKING:
    import numpy as np

COLUMNS = "zone, start_tick_600s, run_ticks, available"
PRICES = ("spot_usd_h", "on_demand_usd_h")
CODING = "utf-8-sig"  # spreadsheets begin a file with a byte order mark
TICK = re.compile(r"start_tick_(\d+)s")
SHORT_S = 0.19 * HOUR_S  # mean outage, of those up to three hours; many fall between two ticks
LONG_S = 21.0 * HOUR_S  # of the others: the zone is out of stock
LONG_SHARE = 0.034
PRICE_CHANGE_S = 30 * 24 * HOUR_S  # mean time between two prices of spot; on-demand prices hardly move
PRICE_SPREAD = 0.4  # standard deviation of the logarithm of a change
CHEAPEST, DEAREST = 0.09, 0.91  # spot is never more than 91 % off, nor less than 9 % (Google's terms)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Capacity and price of spot in one zone, tick by tick."""

    zone: str
    tick_s: float
    up: tuple[bool, ...]
    spot_usd_per_hour: tuple[float, ...]
    on_demand_usd_per_hour: float

    def around(self, num_ticks: int) -> "Trace":
        """Returns the trace with its first ticks repeated at its end: a night may begin at any tick."""
        return replace(
            self,
            up=self.up + self.up[:num_ticks],
            spot_usd_per_hour=self.spot_usd_per_hour + self.spot_usd_per_hour[:num_ticks],
        )


# Zones of three regions with the prices of October 2025 (skynomad_h100_merged_info.csv), for drawn traces.
ZONES = (("us-east4-b", 14.85, 82.53), ("europe-west1-c", 16.36, 90.87), ("us-central1-a", 18.98, 82.53))


def draw(*, seed: int, num_ticks: int, tick_s: float = 600.0) -> tuple[Trace, ...]:
    """Returns random traces of `ZONES`, the same for the same seed."""
    import numpy as np

    rng = np.random.default_rng(seed)
    traces = []
    for zone, spot, on_demand in ZONES:
        ends_s = np.cumsum(_spells(rng, until_s=num_ticks * tick_s))
        at = np.arange(num_ticks) * tick_s
        up = np.searchsorted(ends_s, at, side="right") % 2 == 0
        period = np.cumsum(rng.random(num_ticks) < tick_s / PRICE_CHANGE_S)
        level = np.append(1.0, np.exp(rng.normal(0.0, PRICE_SPREAD, num_ticks)))[period]
        price = np.clip(spot * level, CHEAPEST * on_demand, DEAREST * on_demand)
        traces.append(
            Trace(
                zone=zone,
                tick_s=tick_s,
                up=tuple(map(bool, up)),
                spot_usd_per_hour=tuple(map(float, price)),
                on_demand_usd_per_hour=on_demand,
            )
        )
    return tuple(traces)


def _spells(rng: "np.random.Generator", *, until_s: float) -> list[float]:
    """Seconds with capacity and without, in turn; at the start there has been capacity for a while."""
    spells: list[float] = []
    age_s = rng.exponential(HOUR_S * 12)
    while sum(spells) < until_s:
        lived = survival.draw_s(survival.MEASURED, rng.random(1), longest_s=400 * 24 * HOUR_S)[0]
        long = rng.random() < LONG_SHARE
        spells += [max(1.0, float(lived) - age_s), float(rng.exponential(LONG_S if long else SHORT_S))]
        age_s = 0.0
    return spells


def read(path: Path) -> tuple[Trace, ...]:
    """Returns the traces of a file; DataError names what is wrong with it, and where."""
    rows = list(_rows(path))
    if not rows:
        raise DataError(f"{path} has no runs; give a table with the columns {COLUMNS}")
    named = [TICK.fullmatch(column) for column in rows[0]]
    starts = [match for match in named if match]
    if not starts or not {"zone", "run_ticks", "available"} <= set(rows[0]):
        raise DataError(
            f"{path} has the columns {', '.join(map(str, rows[0]))}; give a table with the columns {COLUMNS}"
        )
    start, tick_s = starts[0].group(), float(starts[0].group(1))
    priced = set(PRICES) <= set(rows[0])
    prices = {} if priced else _prices(path)
    zones: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        zones.setdefault(row["zone"], []).append(row)
    traces = []
    for zone, runs in zones.items():
        if not priced and zone not in prices:
            raise DataError(f"{_info(path)} has no prices of zone {zone}; add a row for it")
        traces.append(_trace(path, zone, runs, start=start, tick_s=tick_s, priced=prices.get(zone)))
    if len({len(trace.up) for trace in traces}) > 1:
        counts = ", ".join(f"{trace.zone} {len(trace.up)}" for trace in traces)
        raise DataError(f"the zones of {path} have different numbers of ticks ({counts}); make them as long")
    return tuple(traces)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One row: a run of ticks without a change."""

    begin: int
    end: int
    up: bool
    spot_usd: float
    on_demand_usd: float


def _trace(
    path: Path,
    zone: str,
    rows: list[dict[str, str]],
    *,
    start: str,
    tick_s: float,
    priced: dict[str, str] | None,
) -> Trace:
    try:
        runs = sorted((_run(row, priced or row, start=start) for row in rows), key=lambda run: run.begin)
    except (TypeError, ValueError) as error:  # a cell that is missing, or not a number
        raise DataError(f"{path}, zone {zone}: {error}; fix that row") from None
    _whole(path, zone, runs, start=start)
    return Trace(
        zone=zone,
        tick_s=tick_s,
        up=tuple(run.up for run in runs for _ in range(run.begin, run.end)),
        spot_usd_per_hour=tuple(run.spot_usd for run in runs for _ in range(run.begin, run.end)),
        on_demand_usd_per_hour=runs[0].on_demand_usd,
    )


def _run(row: dict[str, str], prices: dict[str, str], *, start: str) -> _Run:
    begin, number = int(row[start]), int(row["run_ticks"])
    spot_usd, on_demand_usd = (float(prices[key]) for key in PRICES)
    if number < 1:
        raise ValueError(f"run_ticks {number} at {start} {begin} is below 1")
    if row["available"] not in ("0", "1"):
        raise ValueError(f"available {row['available']!r} at {start} {begin} is neither 0 nor 1")
    if not (0 <= spot_usd < inf and 0 < on_demand_usd < inf):
        raise ValueError(f"{' or '.join(PRICES)} ({spot_usd:g}, {on_demand_usd:g}) is not a valid price")
    return _Run(
        begin=begin,
        end=begin + number,
        up=row["available"] == "1",
        spot_usd=spot_usd,
        on_demand_usd=on_demand_usd,
    )


def _whole(path: Path, zone: str, runs: list[_Run], *, start: str) -> None:
    """Raises DataError if there is a gap between runs, or if they overlap."""
    ends = [0, *(run.end for run in runs)]
    for end, begin in zip(ends, (run.begin for run in runs), strict=False):
        if begin > end:
            raise DataError(
                f"{path} has a gap: nothing is said of zone {zone} from {start} {end} to {begin - 1}; "
                f"fill it, with available 0 if it is not known"
            )
        if begin < end:
            raise DataError(f"{path}: two runs of zone {zone} overlap at {start} {begin}; drop one")


def _prices(path: Path) -> dict[str, dict[str, str]]:
    beside = _info(path)
    if not beside.exists():
        raise DataError(
            f"{path} has no columns {' and '.join(PRICES)}, and no {beside.name} is beside it; add either"
        )
    rows = list(_rows(beside))
    if not rows or not {"zone", *PRICES} <= set(rows[0]):
        raise DataError(f"{beside} lacks one of the columns zone, {', '.join(PRICES)}; add it")
    return {row["zone"]: row for row in rows}


def _info(path: Path) -> Path:
    return path.with_name(re.sub(r"(_rle)?\.csv(\.gz)?$", "", path.name) + "_info.csv")


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if not path.exists():
        raise DataError(
            f"there is no file {path}; give the path of the traces, or leave --traces out to draw some"
        )
    is_packed = path.suffix == ".gz"
    try:
        with gzip.open(path, "rt", encoding=CODING) if is_packed else path.open(encoding=CODING) as file:
            reader = csv.DictReader(file)
            for row in reader:
                if None in row:
                    raise DataError(
                        f"{path}, line {reader.line_num}, has more cells than there are columns; fix that row"
                    )
                yield row
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} is not a table ({error}); give a CSV file with the columns {COLUMNS}"
        ) from None
