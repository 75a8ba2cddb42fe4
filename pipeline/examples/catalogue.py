"""What are customers and items called outside? Every customer tomorrow, found by its code.

The arrays know numbers; who asks online knows the codes of the shop. A code that several numbers stood for
would be an error of `prepare`, whose tables of codes are distinct.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.contract.workload import Split
from pipeline.examples.candidate_items import CandidateDataset


class Catalogue(CandidateDataset):
    """The split `serve`: sample `customers[code]` is that customer on the day after the newest line."""

    def __init__(self, folder: Path, split: Split, **arguments: Any) -> None:
        super().__init__(folder, split, **arguments)
        self.customers = {code: number for number, code in enumerate(_codes(folder, "customers"))}
        self.items = _codes(folder, "items")

    def newest_customers(self, num: int) -> list[int]:
        """Numbers of the customers that bought last, the last one first; of the newest lines only."""
        newest = self.lines.customer[-100 * num :][::-1]
        return list(dict.fromkeys(newest[newest >= 0].tolist()))[:num]


def _codes(folder: Path, name: str) -> list[str]:
    codes: list[str] = pq.read_table(folder / f"{name}.parquet", columns=["code"])["code"].to_pylist()
    return codes
