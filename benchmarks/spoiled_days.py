"""Lists what can go wrong with a day of a shop's invoice lines before they are delivered.

The list was fixed before any limit was written that is to notice it. A fault takes a delivered day and
returns its rows as they would have come with the fault: in the columns and types of the table, so that no
change of the schema gives it away. Some are harmless, and some rows are refused by rules on rows; both are
part of what a shop meets. They are drawn with the day's own generator, so that they can be repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

Rows = pd.DataFrame
QUARTER = 60  # trading days
WEEK = 6  # trading days of a shop that closes on Saturdays
HOME = "United Kingdom"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A day's rows, and those of the trading days before it, the newest last."""

    rows: Rows
    before: list[Rows]
    draw: np.random.Generator

    def sample(self, share: float) -> pd.Index:
        """Returns the labels of that share of the rows, drawn at random."""
        return self.rows.index[self.draw.random(len(self.rows)) < share]


Fault = Callable[[Delivery], Rows]


def _kept(chosen: Callable[[Rows], "pd.Series[bool]"]) -> Fault:
    """Keeps the rows that are chosen."""
    return lambda day: day.rows[chosen(day.rows)]


def _lost(share: float) -> Fault:
    return lambda day: day.rows.drop(day.sample(share))


def _with(column: str, value: Callable[[Rows], object], *, share: float = 1) -> Fault:
    """Sets a column, of all rows or of a share of them."""

    def fault(day: Delivery) -> Rows:
        rows = day.rows.copy()
        chosen = day.sample(share) if share < 1 else rows.index
        rows[column] = rows[column].where(~rows.index.isin(chosen), pd.Series(value(rows), index=rows.index))
        return rows.astype(day.rows.dtypes)

    return fault


def _times(column: str, factor: float, *, share: float = 1) -> Fault:
    return _with(column, lambda rows: (rows[column] * factor).round(2), share=share)


def _renamed(column: str) -> Fault:
    """Exchanges the values of a column among each other, so that each still has rows that belong together."""

    def fault(day: Delivery) -> Rows:
        values = day.rows[column].dropna().unique()
        others = dict(zip(values, day.draw.permutation(values), strict=True))
        return day.rows.assign(**{column: day.rows[column].map(others)}).astype(day.rows.dtypes)

    return fault


def _shuffled(*columns: str) -> Fault:
    """Deals the values of columns out to the rows anew."""

    def fault(day: Delivery) -> Rows:
        order = day.draw.permutation(len(day.rows))
        return day.rows.assign(**{name: day.rows[name].to_numpy()[order] for name in columns})

    return fault


def _shifted(column: str, *, by: int = 1) -> Fault:
    """Moves a column by some rows, as a join by position does that misses one."""
    return lambda day: day.rows.assign(**{column: np.roll(day.rows[column].to_numpy(), by)})


def _sorted(column: str) -> Fault:
    """Sorts a column while the others stay."""
    return lambda day: day.rows.assign(**{column: day.rows[column].sort_values().to_numpy()})


def _later(hours: float) -> Fault:
    return _with("time", lambda rows: rows["time"] + pd.Timedelta(hours=hours))


def _moved_to(rows: Rows, other: Rows) -> Rows:
    """Returns rows with their times moved to the day of others."""
    by = other["time"].iloc[0].normalize() - rows["time"].iloc[0].normalize()
    return rows.assign(time=rows["time"] + by)


def _again(place: int) -> Fault:
    """Delivers an earlier day as if it were this one."""
    return lambda day: _moved_to(day.before[max(-len(day.before), -place)], day.rows)


def _renumbered(rows: Rows) -> Rows:
    """Returns rows under invoice numbers that were not seen before."""
    letters = rows["invoice"].str.extract(r"^([CA]?)")[0]
    digits = rows["invoice"].str.replace(r"^[CA]", "", regex=True).astype("int64") + 400_000
    return rows.assign(invoice=letters + digits.astype(str))


def _twice(chosen: Callable[[Delivery], Rows]) -> Fault:
    """Delivers some rows once more under new invoice numbers."""
    return lambda day: pd.concat([day.rows, _renumbered(chosen(day))], ignore_index=True)


def _share(rows: Rows, part: float) -> Rows:
    return rows.iloc[: round(part * len(rows))]


def _is_cancelled(rows: Rows) -> "pd.Series[bool]":
    return rows["invoice"].str.startswith("C")


def _largest_abroad(rows: Rows) -> str:
    abroad = rows["country"][rows["country"] != HOME]
    return str(abroad.mode().iloc[0]) if len(abroad) else ""


def _bot(day: Delivery) -> Rows:
    """One customer buys five hundred lines of what the day sold."""
    sold = day.rows[day.rows["quantity"] > 0]
    lines = sold.iloc[day.draw.integers(len(sold), size=500)].assign(
        customer="18999", country=HOME, invoice="599999"
    )
    lines["quantity"] = day.draw.integers(1, 50, size=len(lines))
    return pd.concat([day.rows, lines], ignore_index=True).astype(day.rows.dtypes)


def _with_replacement(day: Delivery) -> Rows:
    chosen = day.rows.iloc[day.draw.integers(len(day.rows), size=len(day.rows))]
    return chosen.sort_values("time").reset_index(drop=True)


def _best_seller_reused(day: Delivery) -> Rows:
    """The three best-selling codes of the last week stand for other items now."""
    best = pd.concat(day.before[-WEEK:])["item"].value_counts().index[:3]
    others = day.rows[~day.rows["item"].isin(best)]
    rows = day.rows.copy()
    for code in best:
        rows.loc[rows["item"] == others["item"].iloc[int(day.draw.integers(len(others)))], "item"] = code
    return rows


def _merged_invoices(rows: Rows) -> object:
    """All sales of an hour are one invoice."""
    first = rows.groupby(rows["time"].dt.hour)["invoice"].transform("first")
    return rows["invoice"].where(_is_cancelled(rows), first.str.lstrip("CA"))


def _quantity_and_price(day: Delivery) -> Rows:
    return day.rows.assign(
        quantity=day.rows["price"].round().astype("int64").clip(1), price=day.rows["quantity"].astype(float)
    )


def _mojibake(text: object) -> object:
    return "£" + text.encode().decode("latin-1") + "Â£" if isinstance(text, str) else text


FAULTS: dict[str, Fault] = {
    # rows that are lost
    "80 % of the rows lost": _lost(0.8),
    "half of the rows lost": _lost(0.5),
    "5 % of the rows lost": _lost(0.05),
    "afternoon lost": _kept(lambda rows: rows["time"].dt.hour < 12),
    "morning lost": _kept(lambda rows: rows["time"].dt.hour >= 12),
    "two hours lost": _kept(lambda rows: ~rows["time"].dt.hour.isin([12, 13])),
    "home country lost": _kept(lambda rows: rows["country"] != HOME),
    "largest country abroad lost": _kept(lambda rows: rows["country"] != _largest_abroad(rows)),
    "cancellations lost": _kept(lambda rows: ~_is_cancelled(rows)),
    "guests lost": _kept(lambda rows: rows["customer"].notna()),
    "first line of each invoice alone": _kept(lambda rows: ~rows["invoice"].duplicated()),
    "ten largest customers alone": _kept(
        lambda rows: rows["customer"].isin(rows["customer"].value_counts().index[:10])
    ),
    # rows that come twice, or are another day's
    "every row twice under new invoices": _twice(lambda day: day.rows),
    "half of the rows twice under new invoices": _twice(lambda day: _share(day.rows, 0.5)),
    "largest country abroad twice": _twice(
        lambda day: day.rows[day.rows["country"] == _largest_abroad(day.rows)]
    ),
    "half of the file twice": lambda day: pd.concat([day.rows, _share(day.rows, 0.5)], ignore_index=True),
    "yesterday again, as it was": lambda day: day.before[-1],
    "yesterday again, dated today": _again(1),
    "last week again, dated today": _again(WEEK),
    "last quarter again, dated today": _again(QUARTER),
    "yesterday again under new invoices": lambda day: _renumbered(_again(1)(day)),
    "yesterday's rows added": lambda day: pd.concat([day.rows, _again(1)(day)], ignore_index=True),
    "rows drawn with replacement": _with_replacement,
    "one customer buys 500 lines": _bot,
    # columns that no longer belong to their rows
    "item codes permuted": _renamed("item"),
    "customers permuted": _renamed("customer"),
    "countries permuted": _renamed("country"),
    "items dealt out anew": _shuffled("item"),
    "items and descriptions dealt out anew": _shuffled("item", "description"),
    "customers dealt out anew": _shuffled("customer"),
    "prices of other items": _shuffled("price"),
    "descriptions of other items": _shuffled("description"),
    "customers shifted by one row": _shifted("customer"),
    "items shifted by one row": _shifted("item"),
    "items sorted": _sorted("item"),
    "quantities sorted": _sorted("quantity"),
    "quantity and price exchanged": _quantity_and_price,
    # keys by other names
    "item codes with a new prefix": _with("item", lambda rows: "N" + rows["item"]),
    "item codes in lower case": _with("item", lambda rows: rows["item"].str.lower()),
    "item codes hashed": _with(
        "item", lambda rows: pd.util.hash_pandas_object(rows["item"], index=False).astype(str).str[:10]
    ),
    "item codes cut to four characters": _with("item", lambda rows: rows["item"].str[:4]),
    "best-selling codes reused": _best_seller_reused,
    "a tenth of the items wrong": lambda day: _with(
        "item", lambda rows: _shuffled("item")(day)["item"], share=0.1
    )(day),
    "customers renumbered": _with(
        "customer", lambda rows: (rows["customer"].astype("Int64") + 100_000).astype("string")
    ),
    "customers with leading zeros": _with("customer", lambda rows: "000" + rows["customer"]),
    "all customers missing": _with("customer", lambda rows: None),
    "half of the customers missing": _with("customer", lambda rows: None, share=0.5),
    "1 % of the customers missing": _with("customer", lambda rows: None, share=0.01),
    "guests are one customer": _with("customer", lambda rows: rows["customer"].fillna("99999")),
    "all from the home country": _with("country", lambda rows: HOME),
    "descriptions missing": _with("description", lambda rows: None),
    "descriptions decoded wrongly": _with("description", lambda rows: rows["description"].map(_mojibake)),
    "an invoice for each line": _with(
        "invoice",
        lambda rows: rows["invoice"] + pd.Series(range(len(rows)), rows.index).astype(str).str.zfill(4),
    ),
    "invoices of an hour merged": _with("invoice", _merged_invoices),
    # numbers in other units
    "prices in pence": _times("price", 100),
    "prices in another currency": _times("price", 1.17),
    "a third of the prices shifted by a digit": _times("price", 10, share=0.33),
    "prices without decimals": _with("price", lambda rows: np.ceil(rows["price"])),
    "one price for all": _with("price", lambda rows: rows["price"].median()),
    "prices of the whole line": _with("price", lambda rows: rows["price"] * rows["quantity"].abs()),
    "quantities times ten": _times("quantity", 10),
    "quantities all one": _with("quantity", lambda rows: np.sign(rows["quantity"])),
    "quantities in dozens": _with("quantity", lambda rows: -(-rows["quantity"].abs() // 12)),
    "cancellations as sales": lambda day: day.rows.assign(
        quantity=day.rows["quantity"].abs(), invoice=day.rows["invoice"].str.lstrip("C")
    ),
    "signs of quantities lost": _with("quantity", lambda rows: rows["quantity"].abs()),
    # times
    "times an hour later": _later(1),
    "times five hours earlier": _later(-5),
    "times at midnight": _with("time", lambda rows: rows["time"].dt.normalize()),
}
NAMED = (  # by whoever asked for this list
    "80 % of the rows lost",
    "item codes permuted",
    "every row twice under new invoices",
    "yesterday again, dated today",
    "customers permuted",
)
