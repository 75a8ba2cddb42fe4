"""Maps the shop's codes of customers and items to numbers, for the samples of every customer tomorrow.

The arrays contain numbers; online requests contain the codes of the shop. Each code has one number, since the
tables of codes that `prepare` writes are distinct.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from daybreak import Split
from daybreak.examples.shop.candidate_items import CandidateDataset


class Catalogue(CandidateDataset):
    """The split `serve`: sample `customers[code]` is that customer on the day after the newest line."""

    def __init__(self, folder: Path, split: Split, **arguments: Any) -> None:
        super().__init__(folder, split, **arguments)
        self.customers = {code: number for number, code in enumerate(_codes(folder, "customers"))}
        self.items = _codes(folder, "items")

    def newest_customers(self, num: int) -> list[int]:
        """Returns the numbers of the customers that bought last, newest first; from the newest lines only."""
        newest = self.lines.customer[-100 * num :][::-1]
        return list(dict.fromkeys(newest[newest >= 0].tolist()))[:num]


def _codes(folder: Path, name: str) -> list[str]:
    codes: list[str] = pq.read_table(folder / f"{name}.parquet", columns=["code"])["code"].to_pylist()
    return codes
