"""A cloud that machines are lost in, and the nights in it: real launcher, real trainer, a clock of its own.

The worker is the real loop over an engine that counts; what it leaves is what the real one leaves. Its steps
move the clock on, and whenever a tick has gone by, the launcher is called from within.
"""

import json
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from math import exp, inf, log
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.backend import Backend, Job, JobState, LiveJob
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import JobForecast, Placement, PlanReasons, Portion, Rental, Strategy
from daybreak.contract.record_types import Night, Plan, Training
from daybreak.contract.sections import Params
from daybreak.jobs import launcher
from daybreak.jobs.cost_tracker import JOBS
from daybreak.machines.startup import BEFORE_WORK
from daybreak.storage import jsonl
from daybreak.storage.home import Home
from daybreak.training import checkpoint
from daybreak.training.recipe import END_BY, Recipe, Result
from daybreak.training.supervision import ended_early_by
from daybreak.training.trained_model import write_facts
from daybreak.training.trainer import Trainer
from tests.fakes import AtOnce, CountingEngine
from tests.jobs import plans, stock
from tests.jobs.stock import LATE_S, Stock
from tests.minimal_records import minimal_night
from tests.training import nights

HOUR_S = 3600.0
TICK_S = 120.0
KERNEL_S = 10.0  # from a machine being there, and billed, to its kernel
KILL_S = 30.0  # from a request to end that is not heard to the end
BEGUN = datetime(2026, 1, 2, tzinfo=UTC)
EPOCH = 1000  # samples


class Killed(BaseException):
    """The launcher's process was killed."""


class Gone(Exception):
    """The machines of the worker are gone."""


@dataclass(frozen=True, kw_only=True)
class Luck:
    """What a night brings; times in seconds from its beginning."""

    seed: int = 0
    factors: dict[str, float] = field(default_factory=dict)  # speed of a machine over the plan's; 1
    life_s: float = inf  # mean of spot
    queue_s: float = 60.0
    no_spot: Sequence[tuple[float, float]] = ()  # when there is none to be had
    # Until when machines do not come, and until when the cloud does not even queue for them: by machine, by
    # region, or "a us-east4".
    stocked_out: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    hangs_at: float = inf  # samples seen, once
    fails_at: Sequence[float] = ()  # samples seen, each once
    user_error: bool = False
    kills: float = 0.0  # chance that the launcher dies in a call to the backend
    asleep: Sequence[tuple[float, float]] = ()  # when the launcher is not called
    stock: Stock | None = None  # when which place has machines; None: always
    lists_nothing: bool = False  # the cloud does not list its jobs yet
    noise: tuple[float, float] | None = None  # |g|^2 and tr(Sigma), as each update measures them


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a look of the launcher met; seconds from the beginning of the night."""

    at: float
    running: bool
    seen: int
    billed_usd: float


@dataclass
class Live:
    """A job in the cloud."""

    job: Job
    handle: str
    asked: float
    granted: float = inf  # when the machines are there
    begins: float = inf  # when training goes on
    lost: float = inf
    refused: float = inf  # when the cloud says that there is no machine
    state: JobState = "queued"
    told_at: float = inf  # when it was told to end
    ended: float = inf


class Cloud(Backend):
    """Backend and world: `run` plays a night to its decision."""

    def __init__(self, night: Night, plan: Plan, luck: Luck, params: Params) -> None:
        self.night, self.plan, self.luck, self.params = night, plan, luck, params
        self.random = random.Random(luck.seed)
        self.now = night.started_at.timestamp()
        self.began = self.now
        self.next_tick = self.now
        self.jobs: list[Live] = []
        self.billed_usd = 0.0  # as a provider bills: from machines being there to their end
        self.most_live = self.dearest = 0.0
        self.looks: list[Look] = []
        self.seen = 0
        self.hangs_at, self.fails_at = luck.hangs_at, list(luck.fails_at)
        self.decision: Training | JobError | None = None
        self.decided_at = inf
        self.running: Live | None = None  # whose steps move the clock

    # Backend

    def submit(self, job: Job) -> str:
        """Start the job, or attach to the live one of that name."""
        for live in self.jobs:
            if live.job.name == job.name and live.ended == inf:
                return live.handle
        live = Live(job=job, handle=f"{job.name}/{len(self.jobs)}", asked=self.now)
        live.granted = self._granted(job)
        self.jobs.append(live)
        if self.now - self.began < _until(self.luck.refused, job):
            self._finish(live, "refused")
        here, since = self.luck.stock, self.now - self.began
        if here and not here.up(job.rental, since) and here.shown != "never":
            live.granted, live.refused = inf, self.now + (LATE_S if here.shown == "late" else 0.0)
            if here.shown == "at once":
                self._finish(live, "refused")
        self.most_live = max(self.most_live, sum(each.ended == inf for each in self.jobs))
        self._perhaps_killed()
        return live.handle

    def state(self, handle: str) -> JobState:
        """What the job is doing."""
        return self._live(handle).state

    def cancel(self, handle: str) -> None:
        """Tell the job to end; it takes a while, unless it only waits."""
        live = self._live(handle)
        if live.state == "queued":
            self._finish(live, "preempted")
        elif live.ended == inf:
            live.told_at = min(live.told_at, self.now)
        self._perhaps_killed()

    def live(self) -> Sequence[LiveJob]:
        """The jobs that have not ended, unless the cloud is slow to list them."""
        if self.luck.lists_nothing:
            return ()
        return [
            LiveJob(
                handle=live.handle,
                job=live.job.name,
                night=self.night.id,
                state=live.state,
                created_at=datetime.fromtimestamp(live.asked, UTC),
            )
            for live in self.jobs
            if live.ended == inf
        ]

    def machines(self) -> Sequence[Machine]:
        """The machines of the plans."""
        return stock.machines() if self.luck.stock else plans.rented()

    def logs(self, handle: str) -> str:
        """Of no job."""
        return "nowhere"

    # World

    @property
    def fallbacks_taken(self) -> list[str]:
        """Names of the fallbacks that training took, in order; it has to have ended with a model."""
        assert isinstance(self.decision, Training)
        return [fallback.name for fallback in self.decision.fallbacks]

    def run(self) -> None:
        """Play on until there is a decision."""
        while self.decision is None:
            live = next((each for each in self.jobs if each.ended == inf), None)
            if live and live.begins <= self.now:
                self._work(live)
            else:
                events = [self.next_tick]
                if live:
                    events += [live.granted if live.state == "queued" else live.begins, live.lost]
                    events += [live.told_at + KILL_S, live.refused]
                self.pass_to(min(events))

    def pass_to(self, now: float) -> None:
        """Let time go by, and the launcher be called where it is due."""
        while self.next_tick <= now and self.decision is None:
            self._let_happen(self.next_tick)
            self.next_tick += TICK_S
            runs = any(live.state == "running" for live in self.jobs)
            since = self.now - self.began
            self.looks.append(Look(at=since, running=runs, seen=self.seen, billed_usd=self.billed_usd))
            self._call()
        self._let_happen(now)

    def _let_happen(self, now: float) -> None:
        """Machines come and go, and are paid for."""
        self.now = max(self.now, now)
        for live in self.jobs:
            if live.ended < inf:
                continue
            if live.state == "queued" and live.granted <= self.now:
                live.state = "running"
                live.begins = live.granted + self._start_s()
                if live.job.rental.is_spot and self.luck.life_s < inf:
                    live.lost = live.granted + self.random.expovariate(1 / self.luck.life_s)
                if live.job.rental.is_spot and self.luck.stock:
                    since = live.granted - self.began
                    live.lost = self.began + self.luck.stock.until(live.job.rental, since, up=False)
            if live.refused <= self.now:
                self._finish(live, "refused", at=live.refused)
            elif live.lost <= self.now:
                self._finish(live, "preempted", at=live.lost)
            elif live.told_at + KILL_S <= self.now:
                self._finish(live, "preempted", at=live.told_at + KILL_S)

    def _call(self) -> None:
        """The launcher, as often as it is killed."""
        since = self.now - self.began
        if any(low <= since < high for low, high in self.luck.asleep) and since < self._window_s():
            return
        for _ in range(9):
            try:
                self.decision = launcher.look_after(
                    Home(Path.cwd()),
                    self.night,
                    nights.dataset(),
                    self.plan,
                    None,
                    backend=self,
                    **nights.sections(self.params),
                    clock=lambda: self.now,
                )
                self.decided_at = self.now
            except Killed:
                continue
            except JobError as error:
                self.decision, self.decided_at = error, self.now
            except NotYet:
                pass
            return

    def _work(self, live: Live) -> None:
        """Training on the machines of a job, until it ends or they do."""
        folder = Path(live.job.folder)
        recipe = records.loads(Recipe, (folder / "job.json").read_text())
        booted_at = datetime.fromtimestamp(live.granted + KERNEL_S, UTC).isoformat()
        line = {"time": datetime.fromtimestamp(self.now, UTC).isoformat(), "booted_at": booted_at}
        jsonl.append(folder / "starts.jsonl", {**line, "attempt": live.handle})
        if self.luck.user_error:
            self._fault(live, folder, "the loss has shape [32, 1]; return one value per sample", final=True)
            return
        engine = Counting(self, live, recipe)
        trainer = Trainer(
            engine,
            recipe,
            folder=folder / "checkpoints",
            epoch_samples=EPOCH,
            told_to_stop=lambda: live.told_at <= self.now,
            report=lambda beat: jsonl.append(folder / "progress.jsonl", json.loads(records.dumps(beat))),
            clock=lambda: self.now,
            end_by=lambda: _end_by(folder),
            executor=AtOnce(),
        )
        engine.trainer = trainer
        newest = checkpoint.take_over(trainer.saver.folder, identity=recipe.identity)
        if newest:
            trainer.resume(newest)
        self.running = live
        try:
            outcome = trainer.run()
        except Gone:
            return
        finally:
            self.running = None
        if live.ended < inf or self.decision is not None:
            return
        if outcome.stopped_by == "terminated":
            self._finish(live, "preempted")
            return
        trainer.save()
        trainer.saver.wait()
        leave_result(folder, recipe, trainer, outcome.stopped_by, now=self.now)
        self._finish(live, "succeeded")

    def after_step(self, live: Live, recipe: Recipe, seen: int, step_s: float) -> None:
        """A step was taken on those machines; raises Gone where it was the last."""
        folder = Path(live.job.folder)
        self.seen = max(self.seen, seen)
        if seen >= self.hangs_at:
            self.hangs_at = inf
            while live.ended == inf and self.decision is None:
                self.pass_to(self.next_tick)
        self.pass_to(min(self.now + step_s, live.lost))
        if live.ended < inf or self.decision is not None:
            raise Gone
        if self.fails_at and seen >= self.fails_at[0]:
            self.fails_at.pop(0)
            self._fault(live, folder, "RuntimeError: a device fell off the bus", final=False)
            raise Gone

    def step_s(self, live: Live, batch_size: int) -> float:
        """Returns the seconds of a step on the job's machine; other batch sizes take as long as planned."""
        machine, plan = live.job.rental.machine, self.plan
        placements = [
            placement for placement in (*plan.fallbacks, *plan.cheaper) if placement.rental.machine == machine
        ]
        own_s = plan.forecast.expected_s - plan.rental.max_wait_s
        expected_s = placements[0].expected_s if placements else own_s
        work_s = expected_s - _before_s(self.plan)
        noise = exp(self.random.gauss(0, 0.05))
        factor = self.luck.factors.get(machine, 1.0)
        sizes = {each.batch_size: each.update_s for each in (placements[0] if placements else plan).sizes}
        times = sizes[batch_size] / sizes[plan.batch_size] if batch_size in sizes else 1.0
        return work_s * plan.batch_size / plan.num_samples * times / factor * noise

    def _fault(self, live: Live, folder: Path, error: str, *, final: bool) -> None:
        line = {"attempt": live.handle, "restart": "0", "rank": 0, "error": error, "final": final}
        jsonl.append(folder / "errors.jsonl", line)
        self._finish(live, "failed")

    def _finish(self, live: Live, state: JobState, *, at: float | None = None) -> None:
        live.state, live.ended = state, self.now if at is None else at
        if live.granted < live.ended:
            usd = self.usd_per_s(live) * (live.ended - live.granted)
            self.billed_usd += usd
            self.dearest = max(self.dearest, self.usd_per_s(live))

    def usd_per_s(self, live: Live) -> float:
        """The price of its machines."""
        prices = {
            each.rental: each.usd_per_hour for each in (*self.plan.fallbacks, *self.plan.cheaper, self.plan)
        }
        return float(prices[live.job.rental] or 0.0) / HOUR_S

    def _granted(self, job: Job) -> float:
        at = self.now + self.random.expovariate(1 / self.luck.queue_s)
        if job.rental.is_spot:
            for low, high in self.luck.no_spot:
                if self.began + low <= at < self.began + high:
                    at = self.began + high
        if self.luck.stock:
            at = self.began + self.luck.stock.until(job.rental, at - self.began, up=True)
        return max(at, self.began + _until(self.luck.stocked_out, job))

    def _start_s(self) -> float:
        median_s = _before_s(self.plan)
        return median_s * exp(self.random.gauss(0, log(2) / 1.645))

    def _live(self, handle: str) -> Live:
        return next(live for live in self.jobs if live.handle == handle)

    def _window_s(self) -> float:
        return (self.night.train_until - self.night.started_at).total_seconds()

    def _perhaps_killed(self) -> None:
        if self.random.random() < self.luck.kills:
            raise Killed


class Counting(CountingEngine):
    """The engine of a worker in the cloud."""

    def __init__(self, cloud: Cloud, live: Live, recipe: Recipe) -> None:
        super().__init__(num_samples=EPOCH)
        self.noise = cloud.luck.noise
        self.cloud, self.live, self.recipe = cloud, live, recipe
        self.trainer: Trainer | None = None

    def step(self, indices, *, batch_size, rate, signals):
        """Count, and let as much time go by as it takes."""
        assert self.trainer
        done = super().step(indices, batch_size=batch_size, rate=rate, signals=signals)
        self.cloud.after_step(
            self.live, self.recipe, self.trainer.seen, self.cloud.step_s(self.live, batch_size)
        )
        return done


def leave_result(folder: Path, recipe: Recipe, trainer: Trainer, how: str, *, now: float) -> None:
    """What a worker leaves at its end."""
    model = folder / "model"
    with suppress(FileExistsError):
        model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    write_facts(model, recipe, seen=trainer.seen)
    result = Result(
        model_digest=records.digest(model),
        num_samples=trainer.seen,
        num_updates=trainer.num_updates,
        stopped_by="finished" if how == "finished" else ended_early_by(folder, recipe),
        warm=False,
        ended_at=datetime.fromtimestamp(now, UTC),
        epochs=trainer.audit.proven(),
    )
    records.write(result, folder)


def _until(luck: dict[str, float], job: Job) -> float:
    machine, region = job.rental.machine, job.rental.region
    return max(luck.get(key, 0.0) for key in (machine, region, f"{machine} {region}"))


def _before_s(plan: Plan) -> float:
    return sum(portion.expected_s for portion in plan.forecast.portions if portion.name in BEFORE_WORK)


def _end_by(folder: Path) -> float:
    path = folder / END_BY
    return float(json.loads(path.read_text())["time"]) if path.exists() else inf


def plan_of(
    *,
    strategy: Strategy = "on-demand",
    window_s: float = 4 * HOUR_S,
    share: float = 0.5,
    spread: float = 0.08,
) -> Plan:
    """A plan that takes `share` of the window on machine a; b is 1.8 times as fast, c three times."""
    until = BEGUN + timedelta(seconds=window_s)
    whole_s = share * window_s
    prices = {"a": 3.0, "b": 7.0, "c": 14.0}

    def placement(machine: str, faster: float) -> Placement:
        expected_s = 240 + (whole_s - 240) / faster
        return Placement(
            rental=Rental(machine=machine, region="us-central1"),
            expected_s=expected_s,
            expected_usd=expected_s / HOUR_S * prices[machine],
            usd_per_hour=prices[machine],
            latest_start=until - timedelta(seconds=expected_s * exp(2.326 * spread)),
        )

    usd = {"spot": 1.0, "on-demand": prices["a"], "flex-start": 2.0}[strategy]
    fallbacks = (placement("b", 1.8), placement("c", 3.0))
    rental = Rental(
        machine="a",
        region="us-central1",
        strategy=strategy,
        max_wait_s=HOUR_S if strategy == "flex-start" else 0.0,
    )
    return Plan(
        rental=rental,
        batch_size=32,
        micro_batch_size=32,
        num_samples=240 * 32,
        checkpoint_every_s=900,
        fallbacks=fallbacks if strategy == "on-demand" else (placement("a", 1.0), *fallbacks),
        usd_per_hour=usd,
        forecast=JobForecast(
            expected_s=whole_s,
            expected_usd=whole_s / HOUR_S * usd,
            interval=(whole_s * exp(-1.645 * spread), whole_s * exp(1.645 * spread)),
            portions=(
                Portion(name="queue", expected_s=60, expected_usd=0),
                Portion(name="start-up", expected_s=150, expected_usd=0),
                Portion(name="data", expected_s=30, expected_usd=0),
            ),
        ),
        reasons=PlanReasons(runner_up=""),
    )


def night_of(*, budget_usd: float, window_s: float = 4 * HOUR_S, name: str = "n") -> Night:
    """A night that begins at `BEGUN`."""
    until = BEGUN + timedelta(seconds=window_s)
    return minimal_night(
        BEGUN,
        id=name,
        day=date(2026, 1, 2),
        train_until=until,
        decide_until=until + timedelta(hours=1),
        budget_usd=budget_usd,
        code_commit="c",
    )


def play(
    plan: Plan,
    luck: Luck,
    *,
    budget_usd: float = 100.0,
    window_s: float = 4 * HOUR_S,
    name: str = "n",
    params: Params | None = None,
) -> Cloud:
    """A night in the current folder, to its decision."""
    night = night_of(budget_usd=budget_usd, window_s=window_s, name=name)
    cloud = Cloud(
        night, plan, luck, params or nights.make_params(checkpoint_every_s=None, use=plans.WORKLOAD)
    )
    cloud.run()
    return cloud


def bad_night(seed: int, folder: Path) -> Cloud:
    """A bad night in a folder of its own, to its decision."""
    (folder / JOBS).mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        plan, luck, budget_usd, sections = bad_luck(seed)
        return play(plan, luck, budget_usd=budget_usd, params=sections)
    finally:
        os.chdir(before)


def bad_luck(seed: int) -> tuple[Plan, Luck, float, Params]:
    """The plan, luck, budget and params of a bad night: of everything that goes wrong, some."""
    draw = random.Random(f"bad night {seed}")
    strategy = draw.choices(["spot", "on-demand", "flex-start"], [5, 3, 2])[0]
    window_s = 4 * HOUR_S
    sections = plans.make_params(strategy=strategy)
    share = draw.uniform(0.3, 0.7)
    cheapest = plans.planned(night_of(budget_usd=1000, window_s=window_s), sections, share=share)
    # What waits in a queue needs something that is rented at once within the budget, too.
    at_once = (placement.expected_usd for placement in cheapest.fallbacks if not placement.rental.is_spot)
    least_usd = min(at_once) if strategy == "flex-start" else cheapest.forecast.expected_usd
    budget_usd = least_usd * draw.choice([1.05, 1.5, 3, 10])
    plan = plans.planned(night_of(budget_usd=budget_usd, window_s=window_s), sections, share=share)
    everywhere = 0.5 if draw.random() < 0.1 else exp(draw.gauss(0, 0.08))
    slow = {plan.rental.machine: 0.5 if draw.random() < 0.1 else 1.0}
    down = draw.uniform(0, window_s)
    luck = Luck(
        seed=seed,
        factors={machine: everywhere * slow.get(machine, 1.0) for machine in plans.PRICES},
        life_s=draw.choice([0.7, 2, 17]) * HOUR_S,
        queue_s=draw.choice([20.0, 60.0, 300.0]),
        no_spot=[(down, down + draw.uniform(0, window_s))] if draw.random() < 0.5 else [],
        stocked_out=_gone(draw, dict.fromkeys(plans.PRICES, 0.12), window_s),
        refused=_gone(
            draw,
            {plan.rental.region: 0.3, **{f"{m} {r}": 0.15 for m in plans.PRICES for r in plans.REGIONS}},
            window_s,
        ),
        hangs_at=draw.uniform(0, plan.num_samples) if draw.random() < 0.15 else inf,
        fails_at=sorted(draw.uniform(0, plan.num_samples) for _ in range(draw.choice([0, 0, 0, 1, 3]))),
        user_error=draw.random() < 0.03,
        kills=draw.choice([0.0, 0.02, 0.2]),
        asleep=[(down, down + draw.uniform(0, HOUR_S))] if draw.random() < 0.1 else [],
    )
    return plan, luck, budget_usd, sections


def _gone(draw: random.Random, chances: dict[str, float], window_s: float) -> dict[str, float]:
    """Until when what is not to be had is not to be had: part of the night, or all of it."""
    return {
        key: draw.uniform(0, window_s) if draw.random() < 0.7 else inf
        for key, chance in chances.items()
        if draw.random() < chance
    }
