"""Simulates a shop's data with a seed; this is the default `Source`.

A day is a pure function of (seed, day): no state is kept between days, so that days can be fetched in any
order, and the range (`start`, and yesterday) is only a limit. Properties that last over days are therefore
hashed rather than drawn: a customer has an assortment of items, mostly of a few groups, whose places are
refilled every few months, each at its own time; an item is wanted again after its place's number of weeks. So
most purchases are repeats, recent purchases predict more than old ones, and items of one group are bought
together; a model that sees the customer's own history, its recency and such neighbours beats plain counts,
which beat popularity.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from daybreak import DataError, ParamsError, write_partition
from daybreak.examples.shop.sold_lines import LINES

EPOCH = date(2000, 1, 1)
OPENED = date(2000, 2, 1)  # cancellations look back at the days before a day
DEFAULT_DAYS = 180
PLACES = 14  # of a customer's assortment
GROUP = 8  # items
WEEK = (1.0, 0.95, 1.05, 1.2, 1.1, 0.8, 0.7)  # orders, Monday first
PACKS = np.array([1, 2, 3, 4, 6, 8, 10, 12, 24, 48])
PACK_SHARES = np.array([0.3, 0.17, 0.09, 0.08, 0.11, 0.04, 0.04, 0.1, 0.05, 0.02])
GUESTS, OWN, COMPANION = 0.2, 0.66, 0.7  # share of orders; of a known order's lines; of the other lines
CANCELLED, DOUBLED, UNKNOWN = 0.02, 0.004, 0.01  # shares of lines
WITHOUT_PRICE, WRONG_PRICE, WRONG_SIGN, TESTS, NAMELESS = 0.004, 0.001, 0.001, 0.001, 0.003
COLOURS = ("RED", "WHITE", "BLUE", "PINK", "GREEN", "IVORY", "BLACK", "SILVER")
THINGS = ("TEA CUP", "LANTERN", "CANDLE", "BUNTING", "LUNCH BAG", "CAKE STAND", "CLOCK", "DOORMAT")
COUNTRIES = ("United Kingdom", "Germany", "France", "EIRE", "Spain", "Netherlands", "Belgium", "Norway")

Lines = dict[str, Any]  # arrays by column, of one length


class Shop:
    """A shop whose customers have tastes, and whose data has the features and faults of real data.

    These are seasons, growth and drift, a closed weekday, power laws, new customers and items, guests,
    cancellations of earlier purchases, duplicates, wrong prices and signs, postage and test lines, and
    days that come in late.

    Args:
        seed: each seed gives another shop.
        start: first day; 180 days before `today` if None. The data of a day does not depend on it.
        today: the last day is the one before; the clock's date (UTC) if None.
        num_customers: customers at any one time; they come and go.
        num_items: items at any one time; they come and go.
        orders_per_day: on an average day.
        closed_weekday: 0 is Monday; None: open all week.
        late_days: day to the number of days that it comes in late; one day in thirty if None.
        empty_days: days that are delivered without a row.
        schema_change: a day that is delivered with other columns, which `ingest` refuses.
        poisoned_day: a day whose items are shuffled among its customers: valid, but wrong.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        start: date | str | None = None,
        today: date | str | None = None,
        num_customers: int = 600,
        num_items: int = 400,
        orders_per_day: float = 120,
        closed_weekday: int | None = 6,
        late_days: Mapping[date, int] | None = None,
        empty_days: Collection[date | str] = (),
        schema_change: date | str | None = None,
        poisoned_day: date | str | None = None,
    ) -> None:
        for name, value in (("customers", num_customers), ("items", num_items), ("orders", orders_per_day)):
            if value < 1:
                raise ParamsError(f"source has {value} {name}; give the shop at least one")
        self._seed = seed
        self._today = _day(today) or datetime.now(UTC).date()
        self._start = _day(start) or self._today - timedelta(days=DEFAULT_DAYS)
        if self._start < OPENED:
            raise ParamsError(f"source.start is {self._start}; the shop opened on {OPENED}")
        self._num_customers, self._num_items, self._orders = num_customers, num_items, orders_per_day
        self._closed_weekday, self._late = closed_weekday, late_days
        self._empty = {_day(day) for day in empty_days}
        self._schema_change, self._poisoned = _day(schema_change), _day(poisoned_day)
        rng = np.random.default_rng([seed, 1])
        num_groups = -(-num_items // GROUP)
        self._activity = _shares(rng.permutation(_power(num_customers, 0.7)))
        self._within = np.cumsum(_shares(_power(GROUP, 0.8)))  # of the items of a group
        groups = _shares(rng.permutation(_power(num_groups, 0.8)))
        self._groups = np.cumsum(groups)
        self._popularity = (groups[:, None] * _power(GROUP, 0.8)).ravel()[:num_items]
        self._peak = rng.random(num_items)  # time of the year, of each item
        self._sales = lru_cache(maxsize=16)(self._draw)  # cancellations look back

    def days(self) -> list[date]:
        """Returns the days of trade from `start` to yesterday that have come in."""
        span = (self._start + timedelta(days=n) for n in range((self._today - self._start).days))
        return [day for day in span if self._open(day) and self._comes_in(day) < self._today]

    def fetch(self, day: date, folder: Path) -> None:
        """Writes the lines of `day` by time; DataError for a day without trade."""
        if not (self._start <= day and self._open(day) and self._comes_in(day) < self._today):
            raise DataError(f"the shop has nothing for {day}; ask for one of its days")
        rows = self._deliver(day)
        schema = LINES.schema()
        table = pa.table([pa.array(rows[field.name], field.type) for field in schema], schema=schema)
        if day in self._empty:
            table = table.slice(0, 0)
        if day == self._schema_change:
            table = table.rename_columns({"price": "unit_price", "customer": "client"})
        write_partition(table, folder)

    def _open(self, day: date) -> bool:
        holiday = (day.month, day.day) in {(12, 25), (12, 26), (1, 1)}
        return not holiday and day.weekday() != self._closed_weekday

    def _comes_in(self, day: date) -> date:
        """The day on whose evening `day` is delivered."""
        if self._late is not None:
            return day + timedelta(days=self._late.get(day, 0))
        chance = float(self._hash(2, day.toordinal())[0])
        return day + timedelta(days=1 + int(chance * 60) if chance < 1 / 30 else 0)

    def _hash(self, *keys: Any) -> np.ndarray[Any, Any]:
        """Uniform numbers in [0, 1), the same for the same keys (SplitMix64, Steele et al. 2014)."""
        mixed = np.full(1, self._seed % 2**63, dtype=np.uint64)
        for key in keys:
            mixed = mixed ^ np.asarray(key, dtype=np.int64).astype(np.uint64)
            mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
        return (mixed >> np.uint64(11)) / 2.0**53

    def _generation(self, age: int, tag: int, number: Any, *, least: int, most: int) -> Any:
        """How often the item or customer at place `number` has been replaced by day `age`."""
        life = least + (most - least) * self._hash(tag, 0, number) ** 2
        return np.floor(age / life + self._hash(tag, 1, number)).astype(np.int64)

    def _assortment(self, age: int, customers: Any, generations: Any) -> tuple[Any, Any]:
        """Items [n, PLACES] that each customer likes on that day, and how much the customer wants each."""
        who, life, place = customers[:, None], generations[:, None], np.arange(PLACES)[None, :]
        stays = 30 + 80 * self._hash(3, who, life, place)
        filled = np.floor(age / stays + self._hash(4, who, life, place))
        favourite = np.floor(3 * self._hash(5, who, life, place, filled) ** 1.5)
        group = np.searchsorted(self._groups, self._hash(6, who, life, favourite), side="right")
        item = self._in_group(group, self._hash(7, who, life, place, filled))
        period = 7.0 * (1 + np.floor(4 * self._hash(8, who, life, place)))
        due = (age / period + self._hash(9, who, life, place)) % 1 < 0.35
        return item, np.where(due, 6.0, 1.0) / (1 + place) ** 0.7

    def _in_group(self, group: Any, chance: Any) -> Any:
        item = group * GROUP + np.minimum(np.searchsorted(self._within, chance, side="right"), GROUP - 1)
        return np.minimum(item, self._num_items - 1)

    def _demand(self, age: int) -> Any:
        """Cumulative shares of all items on that day: their seasons, and a surge now and then."""
        items = np.arange(self._num_items)
        season = 1 + 0.6 * np.cos(2 * np.pi * (age / 365.25 - self._peak))
        surge = np.where(self._hash(10, items, (age + items) // 14) < 0.04, 8.0, 1.0)
        return np.cumsum(_shares(self._popularity * season * surge))

    def _draw(self, day: date) -> Lines:
        """The lines sold on `day`: codes as numbers, customer -1 for a guest."""
        age = (day - EPOCH).days
        rng = np.random.default_rng([self._seed, 2, age])
        season = 1 + 0.15 * np.cos(2 * np.pi * (age / 365.25 - 0.9)) + 0.05 * (age / 365.25 - 25)
        num = 1 + int(rng.poisson(self._orders * max(season, 0.2) * WEEK[day.weekday()]))
        customer = rng.choice(self._num_customers, size=num, p=self._activity)
        generation = self._generation(age, 11, customer, least=200, most=1200)
        lines = np.minimum(rng.geometric(0.21, size=num), 20)
        known = rng.random(num) >= GUESTS
        own = np.where(known, np.minimum(rng.binomial(lines, OWN), PLACES), 0)
        liked, wanted = self._assortment(age, customer, generation)
        ranked = np.argsort(-np.log(wanted) - rng.gumbel(size=wanted.shape), axis=1)
        order = np.repeat(np.arange(num), lines)
        rank = np.arange(len(order)) - np.repeat(np.cumsum(lines) - lines, lines)
        mine = liked[order, ranked[order, np.minimum(rank, PLACES - 1)]]
        theme = np.where(own > 0, liked[np.arange(num), ranked[:, 0]] // GROUP, 0)
        popular = np.minimum(
            np.searchsorted(self._demand(age), rng.random(len(order)), side="right"), self._num_items - 1
        )
        guided = (own[order] > 0) & (rng.random(len(order)) < COMPANION)
        other = np.where(guided, self._in_group(theme[order], rng.random(len(order))), popular)
        item = np.where(rank < own[order], mine, other)
        kept = np.sort(
            np.unique(order * self._num_items + item, return_index=True)[1]
        )  # each item once per order
        order, item = order[kept], item[kept]
        if day == self._poisoned:
            item = rng.permutation(item)
        item = 20000 + item + self._num_items * self._generation(age, 12, item, least=200, most=2500)
        code = 10000 + customer + self._num_customers * generation
        quantity = rng.choice(PACKS, size=len(order), p=PACK_SHARES)
        price = np.exp(0.8 + 0.9 * (2 * self._hash(13, item) - 1)) * 1.03 ** (age / 365.25 - 25)
        country = np.floor(len(COUNTRIES) * np.maximum(self._hash(14, code) - 0.85, 0) / 0.15).astype(int)
        minutes = np.sort(rng.triangular(8 * 60, 12.5 * 60, 18 * 60, size=num)).astype(np.int64)
        return {
            "invoice": age * self._most_invoices() + order,
            "item": item,
            "quantity": quantity,
            "minute": minutes[order],
            "price": np.round(price * np.where(quantity >= 12, 0.85, 1), 2),
            "customer": np.where(known, code, -1)[order],
            "country": country[order],
        }

    def _cancelled(self, day: date, rng: np.random.Generator) -> Lines:
        """Lines of earlier days that are cancelled on `day`."""
        back = day - timedelta(days=int(rng.integers(1, 7)))
        while not self._open(back):
            back -= timedelta(days=1)
        sold = self._sales(back)
        taken = np.flatnonzero(rng.random(len(sold["item"])) < CANCELLED)
        lines = {name: column[taken] for name, column in sold.items()}
        first = int(((day - EPOCH).days + 0.5) * self._most_invoices())
        minutes = rng.integers(9 * 60, 18 * 60, size=len(taken))
        lines |= {"invoice": first + np.arange(len(taken)), "minute": minutes, "quantity": -lines["quantity"]}
        return lines

    def _most_invoices(self) -> int:
        """Number of invoice numbers reserved for a day, half of them for cancellations."""
        return int(10 ** len(str(int(20 * self._orders))))

    def _deliver(self, day: date) -> Lines:
        """The day's rows as an export has them, with their errors."""
        rng = np.random.default_rng([self._seed, 3, day.toordinal()])
        sold, back = self._sales(day), self._cancelled(day, rng)
        lines = {name: np.concatenate([sold[name], back[name]]) for name in sold}
        num = len(lines["item"])
        invoice = np.where(lines["quantity"] < 0, "C", "") + lines["invoice"].astype(str).astype(object)
        unknown = (lines["customer"] < 0) | (rng.random(num) < UNKNOWN)
        price, quantity = lines["price"].copy(), lines["quantity"].copy()
        price[rng.random(num) < WITHOUT_PRICE] = 0.0
        price[rng.random(num) < WRONG_PRICE] *= -1
        quantity[rng.random(num) < WRONG_SIGN] *= -1
        item = lines["item"].astype(str).astype(object)
        item[rng.random(num) < TESTS] = "TEST001"
        abroad = (lines["country"] > 0) & np.r_[True, lines["invoice"][1:] != lines["invoice"][:-1]]
        item[abroad & (rng.random(num) < 0.3)] = "POST"
        names = [f"{COLOURS[n % 8]} {THINGS[n // 8 % 8]} {n % 97}" for n in lines["item"]]
        name = np.array(names, dtype=object)
        name[rng.random(num) < NAMELESS] = None
        time = np.datetime64(day, "us") + lines["minute"].astype("timedelta64[m]")
        customer = lines["customer"].astype(str).astype(object)
        customer[unknown] = None
        rows = {
            "invoice": invoice,
            "item": item,
            "description": np.where(item == "POST", "POSTAGE", name),
            "quantity": quantity,
            "time": time,
            "price": price,
            "customer": customer,
            "country": np.array(COUNTRIES, dtype=object)[lines["country"]],
        }
        kept = np.repeat(np.argsort(time, kind="stable"), 1 + (rng.random(num) < DOUBLED))
        return {column: values[kept] for column, values in rows.items()}


def _day(value: date | str | None) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ParamsError(f"source: {value!r} is not a date; write it as 2025-01-31") from None


def _power(num: int, exponent: float) -> Any:
    return 1.0 / np.arange(1, num + 1) ** exponent


def _shares(weights: Any) -> Any:
    return weights / weights.sum()
