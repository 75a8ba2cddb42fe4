"""Finds the held-out days that models may be compared on: those after all days that either has seen.

`meta.json` of the arrays names the held-out days of a workload's split `test`. So some of these days are
selected by a folder with links to the same arrays and a `meta.json` of its own.
"""

import json
import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from daybreak.contract import records
from daybreak.contract.workload import ARRAYS
from daybreak.data.partitions import held_out_days

META = "meta.json"
LATER = Path("data/work/held-out")  # links to the arrays, of fewer held-out days


def arrays_of(days: Sequence[date]) -> Path:
    """Returns the folder of arrays held out on `days`, all by default: the night's own, or links to them."""
    if not days or tuple(days) == held_out_days():
        return ARRAYS
    folder = LATER / "_".join((str(days[0]), str(days[-1])))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in ARRAYS.iterdir():
        (folder / path.name).symlink_to(path.resolve())
    (folder / META).unlink()
    keep(days, folder, meta=json.loads((ARRAYS / META).read_text()))
    return folder


def keep(days: Sequence[date], folder: Path, *, meta: dict[str, Any] | None = None) -> None:
    """Writes `meta.json` of the folder, with no held-out days but these."""
    facts = meta or json.loads((folder / META).read_text())
    records.replace_text(folder / META, json.dumps({**facts, "test_days": [str(day) for day in days]}) + "\n")


def comparable_days(workload: Any, *, seen_until: date) -> tuple[date, ...]:
    """Returns the held-out days after `seen_until`; none where the workload does not tell days apart.

    That is where its split `test` has as many samples without the days before as with them.
    """
    everything = held_out_days()
    days = tuple(day for day in everything if day > seen_until)
    if not days or days == everything:
        return days
    whole, part = (len(workload.dataset(folder, "test")) for folder in (ARRAYS, arrays_of(days)))
    return days if 0 < part < whole else ()
