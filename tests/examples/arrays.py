"""Arrays of a small random shop, as `prepare` writes them, with nothing of `prepare` in them."""

import json
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

FIRST = date(2011, 3, 1)
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Shop:
    """Lines of a shop, sorted by day, invoice and item; customer -1 is a guest."""

    day: NDArray[Any]  # number of the day in the shop's life
    customer: NDArray[Any]
    item: NDArray[Any]
    quantity: NDArray[Any]
    num_customers: int
    num_items: int
    num_days: int

    def altered_from(self, day: int, seed: int) -> "Shop":
        """The same shop with other items, quantities and buyers from `day` on."""
        generator = np.random.default_rng(seed)
        late = self.day >= day
        lines = int(late.sum())
        item, quantity = self.item.copy(), self.quantity.copy()
        item[late] = generator.integers(0, self.num_items, lines)
        quantity[late] = generator.integers(1, 50, lines)
        return replace(self, item=item, quantity=quantity)


def make_shop(
    *, seed: int = 0, num_days: int = 40, num_customers: int = 15, num_items: int = 30, num_lines: int = 600
) -> Shop:
    """A shop in which customers like some items more than others."""
    generator = np.random.default_rng(seed)
    customer = generator.integers(-2, num_customers, num_lines).clip(-1)
    liked = (customer * 7 + (generator.exponential(3, num_lines)).astype(int)) % num_items
    columns = np.stack(
        [generator.integers(0, num_days, num_lines), customer, liked, generator.integers(1, 9, num_lines)]
    )
    _, kept = np.unique(columns[:3], axis=1, return_index=True)
    day, customer, item, quantity = columns[:, kept]
    return Shop(day, customer, item, quantity, num_customers, num_items, num_days)


def write(shop: Shop, folder: Path, *, num_test_days: int = 2) -> Path:
    """Write the arrays; an invoice is a customer's day, so guests of a day share one."""
    folder.mkdir(parents=True, exist_ok=True)
    order = np.lexsort((shop.item, shop.customer, shop.day))
    day = (shop.day[order] + (FIRST - EPOCH).days).astype(np.int32)
    customer = shop.customer[order].astype(np.int32)
    visits, invoice = np.unique(np.stack([day, customer]), axis=1, return_inverse=True)
    lines = np.flatnonzero(customer >= 0)
    by_customer = lines[np.lexsort((lines, day[lines], customer[lines]))]
    samples = visits[:, visits[1] >= 0]
    arrays = {
        "day": day,
        "invoice": invoice.ravel().astype(np.int32),
        "customer": customer,
        "item": shop.item[order].astype(np.int32),
        "country": (customer % 3).clip(0).astype(np.int32),
        "quantity": shop.quantity[order].astype(np.float32),
        "price": (1 + shop.item[order] % 5).astype(np.float32),
        "by_customer": by_customer.astype(np.int64),
        "customer_start": np.searchsorted(customer[by_customer], np.arange(shop.num_customers + 1)),
        "samples_day": samples[0].astype(np.int32),
        "samples_customer": samples[1].astype(np.int32),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    for name, count in (("customers", shop.num_customers), ("items", shop.num_items), ("countries", 3)):
        codes = (
            ["United Kingdom", "France", "EIRE"] if name == "countries" else [str(i) for i in range(count)]
        )
        table = {"index": list(range(count)), "code": codes, "key": [i * 7919 + 5 for i in range(count)]}
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    last = shop.num_days - num_test_days - 1
    test = samples[0] > last + (FIRST - EPOCH).days
    meta = {
        "first_day": FIRST.isoformat(),
        "last_day": (FIRST + timedelta(last)).isoformat(),
        "test_days": [(FIRST + timedelta(last + 1 + d)).isoformat() for d in range(num_test_days)],
        "num_lines": len(day),
        "num_customers": shop.num_customers,
        "num_items": shop.num_items,
        "num_countries": 3,
        "num_samples_train": int((~test).sum()),
        "num_samples_test": int(test.sum()),
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder
