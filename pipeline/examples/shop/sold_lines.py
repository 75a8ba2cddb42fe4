"""Turns a shop's clean invoice lines into arrays: one row per line that was truly sold, in columns.

The cleaning rules of retail are pure functions from table to table, in Ibis: they run on DuckDB here
and compile to BigQuery and Spark SQL. The lines are sorted by (day, invoice, item), with the same bytes for
the same rows.

Cancellations are netted as a stack. Per customer and item, in order of time, a purchase pushes its
pieces and a cancellation pops the most recent ones; a cancellation that has nothing to pop is ignored. With W
the running sum of signed quantities, the height of the stack is D = W - min(0, running minimum of W), and of
a purchase of q pieces there remain min(D from here on) - (D - q), between 0 and q. Each held-out day is
netted by itself: a cancellation there must not change earlier days, which the model may see.
"""

import hashlib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pipeline.contract.table import Category, Float, Id, Int, Table, Text, Time
from pipeline.contract.units import DAY_S
from pipeline.contract.workload import EPOCH, Prepared, Window

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa
    from numpy.typing import NDArray

LINES = Table(
    time="time",
    unit="customer",
    columns={
        "invoice": Id(),  # begins with C: a cancellation; with A: an adjustment
        "item": Category(),
        "description": Text(nullable=True, off=("drift", "null drift")),
        "quantity": Int(min=-100_000, max=100_000),
        "time": Time(),
        "price": Float(min=0, max=100_000),  # of one piece
        "customer": Id(nullable=True),  # null: a guest
        "country": Category(),
    },
)
# Postage, fees, discounts, samples, manual entries and vouchers, as shops of this kind code them.
NOT_PRODUCTS = frozenset({
    "POST", "DOT", "D", "M", "S", "B", "C2", "CRUK", "PADS", "AMAZONFEE", "BANK CHARGES",
    "ADJUST", "ADJUST2", "SP1002",
})  # fmt: skip
NOT_PRODUCT_PREFIXES = ("GIFT_", "TEST")


class SoldLines:
    """What the shop's workloads have in common: their rows, and how these become arrays.

    Args:
        leave_out_items: codes of items that are no products, besides the usual ones: postage, fees, tests.
    """

    table = LINES

    def __init__(self, *, leave_out_items: Collection[str] = ()) -> None:
        self.leave_out_items = tuple(leave_out_items)

    def arrays(self, rows: "ir.Table", window: Window) -> Prepared:
        """Returns the columns of the lines, the samples, and the tables customers, items and countries."""
        held_out = (window.test[0] - EPOCH).days
        sold, codes = tables(rows, held_out=held_out, leave_out=self.leave_out_items)
        arrays = _arrays(sold)
        num_train = int((arrays["samples_day"] <= (window.train[-1] - EPOCH).days).sum())
        facts = {
            "num_lines": len(arrays["day"]), "num_customers": len(codes["customers"]),
            "num_items": len(codes["items"]), "num_countries": len(codes["countries"]),
        }  # fmt: skip
        return Prepared(
            arrays=arrays, tables=codes, facts=facts, num_train=num_train,
            num_test=len(arrays["samples_day"]) - num_train,
        )  # fmt: skip


def products(lines: "ir.Table", *, leave_out: Collection[str] = ()) -> "ir.Table":
    """Returns the lines of products, with item codes in upper case and stripped of spaces.

    Drops postage, fees, vouchers, test codes, the items of `leave_out`, and invoices of adjustments (A...).
    """
    lines = lines.mutate(item=lines.item.strip().upper())
    others = sorted(NOT_PRODUCTS | {code.strip().upper() for code in leave_out})
    kept = lines.item.notin(others) & ~lines.invoice.startswith("A")
    for prefix in NOT_PRODUCT_PREFIXES:
        kept &= ~lines.item.startswith(prefix)
    return lines.filter(kept)


def dated(lines: "ir.Table") -> "ir.Table":
    """Returns the lines with the column `day`: days since 1970-01-01, int32."""
    return lines.mutate(day=(lines.time.epoch_seconds() // DAY_S).cast("int32"))


def netted(lines: "ir.Table", *, held_out: int) -> "ir.Table":
    """Returns the lines that remain sold, with the pieces that cancellations left of them.

    `held_out` is the first held-out day, in days since 1970-01-01. Guests cannot be matched: their
    purchases stay and their cancellations are dropped.
    """
    import ibis

    lines = lines.mutate(
        period=ibis.ifelse(lines.day < held_out, 0, lines.day),
        cancels=ibis.ifelse(lines.quantity < 0, 1, 0),
    )
    known, guests = lines.filter(lines.customer.notnull()), lines.filter(lines.customer.isnull())
    group = ["customer", "item", "period"]
    # Rows that tie in all of these are the same row twice, so that the order is total in effect.
    order = ["time", "cancels", "invoice", "quantity", "price", "country"]
    so_far = ibis.window(group_by=group, order_by=order, rows=(None, 0))
    from_here = ibis.window(group_by=group, order_by=order, rows=(0, None))
    known = known.mutate(walk=known.quantity.sum().over(so_far))
    known = known.mutate(low=known.walk.min().over(so_far))
    known = known.mutate(height=known.walk - ibis.least(known.low, 0))
    known = known.mutate(lowest=known.height.min().over(from_here))
    known = known.mutate(left=known.lowest - (known.height - known.quantity))
    known = known.mutate(quantity=ibis.greatest(ibis.least(known.left, known.quantity), 0).cast("int64"))
    columns = ["day", "invoice", "item", "customer", "country", "quantity", "price", "time", "description"]
    both = known.select(columns).union(guests.select(columns), distinct=False)
    return both.filter(both.quantity > 0)


def coded(lines: "ir.Table", column: str) -> "ir.Table":
    """Returns the sorted codes of the column, numbered from 0: columns code, index."""
    import ibis

    codes = lines.filter(lines[column].notnull()).select(code=column).distinct()
    return codes.mutate(index=ibis.row_number().over(order_by=codes.code).cast("int32"))


def described(lines: "ir.Table") -> "ir.Table":
    """Returns the newest description of each item: columns code, description."""
    import ibis

    lines = lines.filter(lines.description.notnull())
    newest = ibis.window(group_by="item", order_by=[ibis.desc("time"), "description"])
    lines = lines.mutate(place=ibis.row_number().over(newest))
    return lines.filter(lines.place == 0).select(code="item", description="description")


def numbered(lines: "ir.Table", codes: "dict[str, ir.Table]") -> "ir.Table":
    """Returns the lines with numbers for codes, -1 for a guest, sorted by (day, invoice, item).

    `codes` are the results of `coded` by column.
    """
    import ibis

    for column, table in codes.items():
        index = table.select(**{column: "code", f"{column}_index": "index"})
        lines = lines.left_join(index, column).drop(f"{column}_right")
    indices = {column: ibis.coalesce(lines[f"{column}_index"], -1).cast("int32") for column in codes}
    numbers = lines.select(
        day=lines.day.cast("int32"), **indices,
        quantity=lines.quantity.cast("float32"), price=lines.price.cast("float32"),
    )  # fmt: skip
    return numbers.order_by(["day", "invoice", "item", "quantity", "price", "customer", "country"])


def stable_key(code: str) -> int:
    """Returns a number from 0 to 2^63 - 1, the same for a code on every night: the head of its md5."""
    return int.from_bytes(hashlib.md5(code.encode(), usedforsecurity=False).digest()[:8]) >> 1


def tables(
    lines: "ir.Table", *, held_out: int, leave_out: Collection[str]
) -> "tuple[pa.Table, dict[str, pa.Table]]":
    """Returns the numbered lines and the tables customers, items and countries, run on the lines' backend."""
    from ibis.util import gen_name

    backend: Any = lines.get_backend()

    def kept(table: "ir.Table", name: str) -> "ir.Table":
        """Runs the expression once, for all expressions that read it."""
        return backend.create_table(gen_name(name), table, temp=True)

    sold = kept(netted(dated(products(lines, leave_out=leave_out)), held_out=held_out), "sold")
    codes = {name: kept(coded(sold, name), name) for name in ("invoice", "customer", "item", "country")}
    items = codes["item"].left_join(described(sold), "code").drop("code_right")
    wanted = {"customers": codes["customer"], "items": items, "countries": codes["country"]}
    return (
        numbered(sold, codes).to_pyarrow(),
        {name: _keyed(table.order_by("index").to_pyarrow()) for name, table in wanted.items()},
    )


def _keyed(codes: "pa.Table") -> "pa.Table":
    import pyarrow as pa

    keys = pa.array([stable_key(code) for code in codes["code"].to_pylist()], pa.int64())
    columns = {"index": codes["index"].cast(pa.int32()), "code": codes["code"].cast(pa.string()), "key": keys}
    if "description" in codes.column_names:
        columns["description"] = codes["description"].cast(pa.string())
    return pa.table(columns)


def _arrays(sold: "pa.Table") -> "dict[str, NDArray[Any]]":
    """The columns, the lines of each customer, and the samples: each day on which a customer bought."""
    import numpy as np

    whole = ("day", "invoice", "customer", "item", "country")
    kinds: dict[str, Any] = {name: np.int32 for name in whole} | {"quantity": np.float32, "price": np.float32}
    arrays = {name: sold[name].to_numpy().astype(kind) for name, kind in kinds.items()}
    day, customer = arrays["day"].astype(np.int64), arrays["customer"].astype(np.int64)
    known = np.flatnonzero(customer >= 0)
    by_customer = known[np.argsort(customer[known], kind="stable")]  # lines are in order of days
    counts = np.bincount(customer[known])
    samples = np.unique(day[known] << 32 | customer[known])
    return arrays | {
        "by_customer": by_customer.astype(np.int64),
        "customer_start": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "samples_day": (samples >> 32).astype(np.int32),
        "samples_customer": (samples & 0xFFFFFFFF).astype(np.int32),
    }
