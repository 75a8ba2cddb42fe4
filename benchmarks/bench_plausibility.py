"""Does the gate notice that a day's labels are wrong, and does it leave sound days alone? On real days.

On each trading day of Online Retail, simple rules score what customers bought that day: one stands for the
model that serves, others are the baselines. From the eighth on, each day is held against the up to 28 before
it. On twenty of these days, drawn at random, the day is spoiled before it is scored: the customers of its
lines are permuted, or its item codes are. Sound days that are not believed are counted against the stated
rate, by an exact 90 % interval. The rule was written for the control chart of any mean, nothing of it was
fitted to these days. QUICK=1 takes every day of the last three months, and five spoiled ones.
"""

import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from benchmarks import frame
from benchmarks.bench_nights import SOURCE
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Evaluation
from daybreak.contract.sections import GateParams
from daybreak.contract.workload import Window
from daybreak.data.prepare import write_whole
from daybreak.examples.shop import simple_recommenders
from daybreak.examples.shop.sold_lines import LINES, SoldLines, products
from daybreak.gate.plausibility import LEAST_NIGHTS, NIGHTS, NIGHTS_PER_YEAR, plausible
from daybreak.storage.ledger import Entry

SERVES, BASELINES = "counts_popularity", ("popularity", "counts")
NUM_SPOILED = 5 if frame.QUICK else 20
FIRST = date(2011, 9, 1) if frame.QUICK else date(2011, 1, 4)
NUM_ITEMS = 200  # of the rules that are not looked at
Scores = dict[str, NDArray[np.float64]]


def main() -> None:
    """Score all days, then the spoiled ones, and count which are not believed."""
    lines = sold()
    days = sorted(set(lines["time"].cast(pa.date32()).to_pylist()))
    judged = [day for day in days if day >= FIRST]
    sound = scored(lines, judged)
    checks = {day: judge(sound, judged[:place], sound[day]) for place, day in enumerate(judged)}
    looked_at = [day for day in judged[LEAST_NIGHTS:] if checks[day]]
    alarms = [day for day in looked_at if not ok(checks[day])]
    for day in alarms:
        print(f"{day}: {text(checks[day])}")
    draw = np.random.default_rng(0)
    chosen = sorted(draw.choice(np.array(looked_at[NIGHTS:]), NUM_SPOILED, replace=False).tolist())
    noticed = {"customers": 0, "item": 0}
    for day in chosen:
        for column in noticed:
            spoiled = scored(permuted(lines, day, column, draw), [day])[day]
            check = judge(sound, judged[: judged.index(day)], spoiled)
            noticed[column] += not ok(check)
            print(f"{day}, {column} permuted: {text(check)}")
    rate = GateParams().false_alarms_per_year / NIGHTS_PER_YEAR
    low, high = stats.binomtest(len(alarms), len(looked_at)).proportion_ci(0.9)
    frame.finish(
        "plausibility",
        {
            "sound days": float(len(looked_at)),
            "not believed": float(len(alarms)),
            "stated for so many": rate * len(looked_at),
            "stated rate is above the interval's lower end": float(low <= rate),
            "interval's upper end": high,
            "customers permuted, noticed": noticed["customers"] / NUM_SPOILED,
            "item codes permuted, noticed": noticed["item"] / NUM_SPOILED,
        },
        {
            "stated rate is above the interval's lower end": ("==", 1),
            "customers permuted, noticed": (">=", 0.9),
            "item codes permuted, noticed": (">=", 0.9),
        },
    )


def sold() -> pa.Table:
    """The lines of products that were bought; cancellations are left out."""
    names = {theirs: ours for ours, theirs in SOURCE["columns"].items()}  # type: ignore[attr-defined]
    raw = pq.read_table(str(SOURCE["url"]))
    raw = raw.rename_columns([names.get(name, name) for name in raw.column_names])
    columns = {}
    for field in LINES.schema():
        column = raw[field.name]
        if field.name == "customer" and pa.types.is_floating(column.type):
            column = column.cast(pa.int64())
        columns[field.name] = column.cast(field.type)
    rows = products(pa.table(columns, schema=LINES.schema()))
    return rows.filter(pc.and_(pc.greater(rows["quantity"], 0), pc.is_valid(rows["customer"])))


def scored(lines: pa.Table, days: list[date]) -> dict[date, Scores]:
    """NDCG@20 of each customer of these days, by rule."""
    known = lines.filter(pc.less_equal(lines["time"].cast(pa.date32()), pa.scalar(days[-1])))
    before = [day for day in sorted(set(known["time"].cast(pa.date32()).to_pylist())) if day < days[0]]
    window = Window(train=tuple(before), test=tuple(days))
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        made = SoldLines().arrays(ibis.memtable(known), window)
        write_whole(Path(folder), made, window)
        scores = simple_recommenders.baselines(Path(folder), num_items=NUM_ITEMS)
        numbers = np.load(Path(folder) / "samples_day.npy")
    samples = numbers[np.isin(numbers, [(day - date(1970, 1, 1)).days for day in days])]
    by_day: dict[date, Scores] = {}
    for day in days:
        own = samples == (day - date(1970, 1, 1)).days
        by_day[day] = {name: values.numpy()[own] for name, values in scores.items()}
    return by_day


def permuted(lines: pa.Table, day: date, column: str, draw: np.random.Generator) -> pa.Table:
    """The lines with one column of a day permuted: customers as a whole, so that each keeps a basket."""
    name = "customer" if column == "customers" else column
    on_day = np.flatnonzero(pc.equal(lines["time"].cast(pa.date32()), pa.scalar(day)).to_numpy())
    values = lines[name].to_numpy(zero_copy_only=False).copy()
    there = np.unique(values[on_day])
    others = dict(zip(there, draw.permutation(there), strict=True))
    values[on_day] = [others[value] for value in values[on_day]]
    where = lines.schema.get_field_index(name)
    return lines.set_column(
        where, lines.schema.field(where), pa.array(values, lines.schema.field(where).type)
    )


def judge(sound: Mapping[date, Scores], before: list[date], tonight: Scores) -> Check | None:
    """The gate's check of a day's scores, after these days."""
    columns = {"champion": tonight[SERVES]} | {f"baseline/{name}": tonight[name] for name in BASELINES}
    past = [entry(day, sound[day]) for day in reversed(before)]
    return plausible(
        columns, evaluation(tonight), past, false_alarms_per_year=GateParams().false_alarms_per_year
    )


def evaluation(scores: Scores) -> Evaluation:
    """The record of a night with these scores."""
    means = {"champion_score": float(scores[SERVES].mean())}
    means |= {f"baseline/{name}": float(scores[name].mean()) for name in BASELINES}
    return Evaluation(
        model_digest="", data_digest="", num_samples=len(scores[SERVES]), slices=(), metrics=means
    )


def entry(day: date, scores: Scores) -> Entry:
    """A closed night of the ledger."""
    return Entry(commit="", subject="", rollback=False, night=frame.night(day), evaluation=evaluation(scores))


def ok(check: Check | None) -> bool:
    """Whether a day is believed."""
    return check is None or check.ok


def text(check: Check | None) -> str:
    """What the gate says of a day."""
    return check.text if check else "too few nights"


if __name__ == "__main__":
    main()
