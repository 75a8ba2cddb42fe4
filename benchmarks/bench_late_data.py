"""Does each night train on its own day, whole and in time, however late the day is delivered?

Mornings in three homes, whose sources say in their own ways that a day is whole: by a `_SUCCESS` file, by the
file of its last hour, or by files that have not changed for half an hour. A night opens at 03:00 and has to
train until 21:00; an hour goes by before the plan, and the job takes five hours on the cheapest of three
machines, and 1.7 on the fastest. With a sixth more for what a plan is not sure of, a day that is there by
18:00 can be trained on in time. The two faster machines have had a night each before the first that counts:
of a machine without a night a plan is less sure, so that waiting ends earlier.

    on time     before the night opens
    late        1 to 20 hours after the opening, spread evenly, in pieces over an hour
    partial     some of it in the morning, the rest with the next day
    twice       on time, and again in the afternoon with other rows
    never       no file before the next day's come

The schedule asks for the nights. One whose day comes too late is of the newest day that no night has had,
where there is one. Each has to have all rows of all days that were whole by its last look, and to tell people
once, by `notify.command`.

The stages `open`, `ingest`, `plan`, `train` and `close` are the real ones, in a real repository, by a clock
that the benchmark moves on by ten minutes between two calls of `ingest`. What a step takes is written into
the profile; the job is one of tests/jobs/cloud.py, whose machines wait in a queue, and whose steps are a
little faster or slower than those of their machine, which no forecast changes.
QUICK=1: a fifth of the mornings.
"""

import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from math import exp
from pathlib import Path
from statistics import mean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import frame
from daybreak import runner
from daybreak.contract import clock, params, records
from daybreak.contract.errors import NothingToDo, NotYet, PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import SCHEDULE, Batch, Night, Plan, Training
from daybreak.data.partitions import RAW, partitions
from daybreak.examples.shop.sold_lines import LINES
from daybreak.storage import checkout, ledger, snapshots
from daybreak.storage.home import Home
from tests.fakes import ScriptedBackend
from tests.jobs import cloud, plans
from tests.jobs.cloud import Cloud, Live, Luck
from tests.planning import jobs
from tests.training import nights

NUM_MORNINGS = 4 if frame.QUICK else 20  # of each home
FIRST = date(2025, 3, 1)
KINDS = ("on time", "late", "partial", "twice", "never", "late")
FASTER = ("b", "c")  # machines that have a night each before the others, as `a` has its own
HOUR_S, STEP_S, SETTLE_MINUTES = 3600.0, 600.0, 30
OPENS, WHOLE = time(3), 24  # rows of a day
OVERHEAD_H, PLANNED_H, FASTEST_H, TRAIN_H, WAIT_H = 1.0, 5.0, 2.0, 18.0, 16.0
SAMPLE_S = (PLANNED_H * HOUR_S - 240) / plans.NUM_SAMPLES  # of a step on the cheapest machine
RENTING = (
    "backend=benchmarks.bench_late_data:Rented",
    "plan.machines=[a,b,c]",
    f"plan.regions=[{','.join(plans.REGIONS)}]",
    "plan.max_machines=1",
    "plan.explore_usd=0",
    "plan.spot=false",
    "night.budget_usd=1000",
    "train.num_workers=1",
    f"train.batch_size={plans.BATCH_SIZE}",
    f"train.epochs={plans.NUM_SAMPLES / nights.dataset().num_samples}",
)
LAST_H = TRAIN_H - OVERHEAD_H - FASTEST_H  # after the opening, at which a day can still be trained on in time


class Clock:
    """The time of the benchmark, in seconds since 1970, which nothing else moves."""

    def __init__(self) -> None:
        self.now = datetime.combine(FIRST, OPENS, UTC).timestamp()
        self.started = self.now
        clock._CLOCK = clock.Clock(wall=lambda: self.now, passed=lambda: self.now - self.started)


class Rented(ScriptedBackend):
    """What a plan chooses from."""

    def machines(self) -> Sequence[Machine]:
        """The machines of tests/jobs/plans.py."""
        return plans.rented()


class CloudByClock(Cloud):
    """A cloud whose time is that of the benchmark."""

    def __init__(self, ticks: Clock, *given: Any) -> None:
        self.ticks, at = ticks, ticks.now
        super().__init__(*given)
        self.now = self.began = self.next_tick = at

    @property
    def now(self) -> float:
        return self.ticks.now

    @now.setter
    def now(self, now: float) -> None:
        self.ticks.now = now

    def step_s(self, live: Live, batch_size: int) -> float:
        """Returns the seconds of a step on the job's machine, whatever the plan expects of it."""
        noise = exp(self.random.gauss(0, 0.05))
        return SAMPLE_S * batch_size / plans.SPEEDS[live.job.rental.machine] * noise


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Rows of a day, from one hour of the day to another, that are written at a moment."""

    at: float
    day: date
    first: int
    last: int  # exclusive
    is_whole: bool  # with it the day is
    quantity: int = 1


@dataclass
class Shop:
    """A home, and where its days are delivered."""

    home: Path
    sales: Path
    say: Callable[["Shop", Delivery], None]
    keys: tuple[str, ...]  # of params.yaml
    settles: float = 0.0  # seconds
    kinds: tuple[str, ...] = KINDS
    waiting: list[Delivery] = field(default_factory=list)
    whole: dict[date, float] = field(default_factory=dict)  # delivered days, and since when each is whole
    had: set[date] = field(default_factory=set)  # days that nights are of

    def deliver(self, now: float) -> None:
        """Writes what is due by now."""
        for one in [one for one in self.waiting if one.at <= now]:
            self.waiting.remove(one)
            self.say(self, one)
            if one.is_whole:
                self.whole.setdefault(one.day, one.at)

    @property
    def told(self) -> list[str]:
        """The messages that people had, a line each."""
        path = self.home.with_name("told")
        return path.read_text().splitlines() if path.exists() else []


def rows(one: Delivery, hours: range) -> pa.Table:
    """Returns a row for each hour."""
    lines = [
        {
            "invoice": str(500000 + hour),
            "item": "71053",
            "description": "LANTERN",
            "quantity": one.quantity,
            "time": datetime.combine(one.day, time(hour)),
            "price": 3.39,
            "customer": "17850",
            "country": "EIRE",
        }
        for hour in hours
    ]
    return pa.Table.from_pylist(lines, schema=LINES.schema())


def by_success(shop: Shop, one: Delivery) -> None:
    """Writes pieces into the day's folder, and `_SUCCESS` once it is whole."""
    folder = shop.sales / str(one.day)
    if not one.first:  # in place of what came before
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(one, range(one.first, one.last)), folder / f"{one.first:02}.parquet")
    if one.is_whole:
        (folder / "_SUCCESS").touch()


def by_hour(shop: Shop, one: Delivery) -> None:
    """Writes a file for each hour."""
    for hour in range(one.first, one.last):
        folder = shop.sales / f"day={one.day}" / f"hour={hour:02}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(one, range(hour, hour + 1)), folder / "part.parquet")


def by_growth(shop: Shop, one: Delivery) -> None:
    """Writes the day's only file anew, with all rows so far."""
    shop.sales.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows(one, range(one.last)), shop.sales / f"{one.day}.parquet")


def deliveries(kind: str, day: date, *, late_h: float) -> Iterator[Delivery]:
    """Yields what comes of a day, whose night opens at 03:00 of the day after."""
    opens = datetime.combine(day + timedelta(days=1), OPENS, UTC).timestamp()
    end = opens + {"late": late_h, "never": 23.0}.get(kind, -1.0) * HOUR_S
    if kind == "partial":
        yield Delivery(at=end, day=day, first=0, last=13, is_whole=False)
        yield Delivery(at=opens + 23 * HOUR_S, day=day, first=13, last=WHOLE, is_whole=True)
        return
    yield Delivery(at=end - HOUR_S, day=day, first=0, last=9, is_whole=False)
    yield Delivery(at=end - HOUR_S / 2, day=day, first=9, last=17, is_whole=False)
    yield Delivery(at=end, day=day, first=17, last=WHOLE, is_whole=True)
    if kind == "twice":
        yield Delivery(at=opens + 11 * HOUR_S, day=day, first=0, last=WHOLE, is_whole=True, quantity=2)


@dataclass(frozen=True, kw_only=True)
class Morning:
    """How a morning ended."""

    kind: str
    late_h: float  # hours after the opening at which its day was there
    could: bool  # its day was whole early enough
    older: bool  # it was not, but there was another day that no night had had
    trained: bool  # on the day that it had to
    trained_any: bool
    whole: bool  # all rows of all days that were there
    in_time: bool
    messages: int


def morning(shop: Shop, day: date, kind: str, ticks: Clock, *, machine: str = "") -> Morning:
    """Runs the night of a day, on a machine or on what its plan chooses."""
    opens = ticks.now = datetime.combine(day + timedelta(days=1), OPENS, UTC).timestamp()
    is_there = next(one.at for one in shop.waiting if one.day == day and one.is_whole)
    could = max(is_there, opens) + shop.settles <= opens + LAST_H * HOUR_S
    home, num_told = Home(shop.home), len(shop.told)
    os.chdir(shop.home)
    shop.deliver(ticks.now)
    due = datetime.fromtimestamp(opens, UTC).isoformat()
    keys = [f"plan.machines=[{machine}]"] if machine else []
    night = runner.run(home, "open", due=due, trigger=SCHEDULE, set=keys)
    assert isinstance(night, Night)
    snapshots.record(home, "open")
    records.write(LINES, home.records)
    batch = _ingested(shop, home, ticks)
    night = records.read(Night, home.records)  # of another day, where its own did not come in time
    looked = ticks.now
    waiting = [one for one in shop.whole if one < day and one not in shop.had]
    ended = _train(home, night, ticks) if batch else None
    os.chdir(home.nights / night.id)
    counts = {of: len(pq.read_table(RAW / f"day={of}" / "part.parquet")) for of in partitions(RAW)}
    runner.run(home, "close")
    entries = [entry for entry in ledger.history(home) if entry.night.id == night.id]
    older = max(waiting, default=None)
    wanted = day if could else older
    there = [of for of, at in shop.whole.items() if batch and of <= batch.day and at <= looked - shop.settles]
    if batch:
        shop.had |= {batch.day, *batch.late_days}
    return Morning(
        kind=kind,
        late_h=(is_there - opens) / HOUR_S,
        could=could,
        older=not could and older is not None,
        trained=ended is not None and batch is not None and batch.day == wanted and len(entries) == 1,
        trained_any=ended is not None,
        whole=all(count == WHOLE for count in counts.values()) and counts.keys() >= {*there},
        in_time=ended is None or ended <= night.train_until,
        messages=len(shop.told) - num_told,
    )


def _ingested(shop: Shop, home: Home, ticks: Clock) -> Batch | None:
    """Calls `ingest` until it is done; returns None where there is nothing to do."""
    while True:
        try:
            batch = runner.run(home, "ingest")
            for stage in ("ingest", "open"):  # the latter again, where the night is of another day since
                snapshots.record(home, stage)
            assert isinstance(batch, Batch)
            return batch
        except NotYet:
            ticks.now += STEP_S
            shop.deliver(ticks.now)
        except NothingToDo:
            return None


def _train(home: Home, night: Night, ticks: Clock) -> datetime | None:
    """Plans and trains; returns when training has ended, or None where it came to no model."""
    ticks.now += OVERHEAD_H * HOUR_S  # of the stages before
    profile = replace(jobs.profile(step_s=SAMPLE_S), noise_scale=plans.BATCH_SIZE)
    for record in (nights.dataset(), profile):
        records.write(record, home.records)
    try:
        plan = runner.run(home, "plan")
    except PlanError:
        return None
    assert isinstance(plan, Plan)
    luck = Luck(seed=night.day.toordinal())
    world = CloudByClock(ticks, night, plan, luck, home.params_of(home.tonight))
    world.run()
    if not isinstance(world.decision, Training):
        return None
    records.write(world.decision, home.records)
    return world.decision.ended_at


def mornings(number: int) -> list[Morning]:
    """Runs the nights of a home whose source says in one way what is whole."""
    logging.disable(logging.WARNING)
    cloud.KILL_S = 2 * plans.BATCH_SIZE * SAMPLE_S  # a job that is told to end saves after its step
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with frame.home() as home:
        os.environ["DAYBREAK_HOME"] = str(home)
        shop = SHOPS[number](home, home.parent / "sales")
        keys = [f"ingest.wait_hours={WAIT_H:g}", f"night.train_hours={TRAIN_H:g}", *RENTING, *shop.keys]
        told = home.with_name("told")
        keys.append(f"notify.command=(tr '\\n' ' '; echo) >> {told}")
        params.override(home, keys, into=home)
        checkout.git("commit", "--quiet", "--all", "--message=Have days delivered", folder=home)
        ticks, draw = Clock(), random.Random(number)
        before = [FIRST + timedelta(days=n) for n in range(len(FASTER))]
        days = [before[-1] + timedelta(days=n + 1) for n in range(NUM_MORNINGS)]
        kinds = [shop.kinds[n % len(shop.kinds)] for n in range(NUM_MORNINGS)]
        draw.shuffle(kinds)
        num_late = kinds.count("late")
        hours = [1 + 19 * (n + (number + 0.5) / len(SHOPS)) / num_late for n in range(num_late)]
        draw.shuffle(hours)
        for day in before:
            shop.waiting += deliveries("on time", day, late_h=0.0)
        for day, kind in zip(days, kinds, strict=True):
            shop.waiting += deliveries(kind, day, late_h=hours.pop() if kind == "late" else 0.0)
        for day, machine in zip(before, FASTER, strict=True):
            first = morning(shop, day, "on time", ticks, machine=machine)
            assert first.trained, first
        ended = [morning(shop, day, kind, ticks) for day, kind in zip(days, kinds, strict=True)]
        os.chdir("/")
    return ended


def files(sales: Path, url: str, **given: str) -> str:
    """Returns the assignment of a source to params."""
    arguments = {"use": "daybreak:Files", "url": f"{sales}{url}", **given}
    return f"source={json.dumps(arguments)}"


SHOPS: list[Callable[[Path, Path], Shop]] = [
    lambda home, sales: Shop(
        home=home,
        sales=sales,
        say=by_success,
        keys=(files(sales, "/{day}/*.parquet", success_file="_SUCCESS"),),
    ),
    lambda home, sales: Shop(home=home, sales=sales, say=by_hour, keys=(files(sales, ""),)),
    lambda home, sales: Shop(
        home=home,
        sales=sales,
        say=by_growth,
        keys=(files(sales, "/{day}.parquet"), f"ingest.settle_minutes={SETTLE_MINUTES}"),
        settles=SETTLE_MINUTES * 60.0,
        kinds=tuple(kind for kind in KINDS if kind != "partial"),  # half a day that lies still looks whole
    ),
]


def main() -> None:
    """Runs the three homes, and counts."""
    with ProcessPoolExecutor(2) as pool:
        ended = [one for of_home in pool.map(mornings, range(len(SHOPS))) for one in of_home]
    frame.table(
        [
            {
                "morning": kind,
                "nights": len(of_kind),
                "early enough": sum(one.could for one in of_kind),
                "trained": sum(one.trained for one in of_kind),
            }
            for kind in dict.fromkeys(KINDS)
            if (of_kind := [one for one in ended if one.kind == kind])
        ]
    )
    could, older = ([one for one in ended if getattr(one, way)] for way in ("could", "older"))
    for one in ended:
        if not (one.in_time and one.whole and one.messages == 1 and one.trained is (one.could or one.older)):
            print(f"not as it has to be: {one}")
    share = {
        "trained on their day, of those whose day was there early enough": mean(one.trained for one in could),
        "trained on the newest day that no night had had, of those whose day came too late": (
            mean(one.trained for one in older) if older else 1.0
        ),
        "trained in time": mean(one.in_time for one in ended if one.trained_any),
        "nights with one message": mean(one.messages == 1 for one in ended),
    }
    count = {
        "trained on a day that was there too late": sum(
            one.trained_any and not one.could and not one.trained for one in ended
        ),
        "nights without all rows of all days that were there": sum(not one.whole for one in ended),
    }
    counts = {
        "nights": len(ended),
        "nights whose day was there early enough": len(could),
        "nights whose day came too late, with another day to take": len(older),
        **count,
    }
    figures = {name: float(value) for name, value in counts.items()} | share
    targets: dict[str, frame.Target] = {name: ("==", 1.0) for name in share}
    targets |= {name: ("==", 0.0) for name in count}
    frame.finish("late_data", figures, targets)


if __name__ == "__main__":
    main()
