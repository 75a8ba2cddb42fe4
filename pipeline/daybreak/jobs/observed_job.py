"""Describes a running job by its files and its plan. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import exp, inf, log
from typing import Literal

from daybreak.contract.backend import TICK_S, JobState
from daybreak.contract.record_parts import Placement, Rental
from daybreak.contract.record_types import Plan
from daybreak.contract.trigger_lines import Trigger
from daybreak.contract.units import HOUR_S
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.jobs.outlook import NORMAL, Z90, Rate
from daybreak.jobs.submissions import JobAttempt, JobAttempts
from daybreak.jobs.triggers import Fired, fired
from daybreak.machines.startup import start_s
from daybreak.training.recipe import Recipe

Standing = Literal["none", "queued", "running", "refused"]  # refused: a few minutes ago at most
CHANGES = ("on-demand", "next fallback", "scale up", "step down", "undo", "triggered move")  # of machines
TRIGGERED = ("triggered move", "triggered batch")
PATIENCE_S = 2 * TICK_S
FORGET_S = HOUR_S  # after which a refusal no longer counts
LEAST_SPREAD = 0.02  # lower bound of the standard deviation of the logarithm of a time


@dataclass(frozen=True, kw_only=True)
class ObservedJob:
    """What is known of a job when the launcher is called; times in seconds since the same moment."""

    plan: Plan  # by which it runs
    now: float
    deadline: float
    confidence: float  # the required chance that it is done in time
    left_usd: float
    decay: float  # share of the samples over which the rate decays
    placement: Placement  # that it is on, was on last, or starts on
    state: Standing
    since: float  # when it entered that state
    seen: int = 0  # samples trained on, by the last heartbeat
    num_left_out: int = 0  # of the plan's samples, as validation found nothing better for long
    starting_s: float = 0.0  # until its machines have started
    rate: Rate | None = None  # measured on this placement
    whole_rate: Rate | None = None  # while all its machines were there
    device_use: float | None = (
        None  # share of the time that its device did not wait for samples, measured there
    )
    batch_size: int = 0  # of its newest update; 0: none is known
    largest_batch_size: int = 0  # of all its updates
    noise_scale: float | None = None  # of its gradients; None: too few measurements
    attempts: Sequence[JobAttempt] = ()  # all of the job
    refused: Mapping[Rental, float] = field(default_factory=dict)  # when each was last refused
    earlier: Mapping[Rental, Rate] = field(
        default_factory=dict
    )  # measured on placements that it was on before
    left: Collection[Rental] = ()  # that it has run on before
    before: Placement | None = None  # the last of them, if it was left to scale up or to step down
    num_moves: int = 0  # that nothing forced (moves.py)
    to_save: bool = False  # cheaper machines are looked for
    loss_rose: bool = False  # since it left `before`
    fired: Sequence[Fired] = ()  # triggers that hold
    num_triggered: int = 0  # changes by triggers
    is_triggered: bool = False  # a trigger led to its machines
    asked_size: int = 0  # of the batch, by the newest trigger; the trainer may not have taken it up

    @property
    def num_samples(self) -> int:
        """Samples that the job trains on if time suffices.

        Those it has seen at least: a batch that has grown since may go past the end that validation set.
        """
        return max(self.seen, self.plan.num_samples - self.num_left_out)


def observe(
    recipe: Recipe,
    plan: Plan,
    *,
    first: Placement,
    attempts: JobAttempts,
    heartbeats: Heartbeats,
    state: JobState | None,
    now: float,
    confidence: float,
    left_usd: float,
    to_save: bool = False,
    triggers: Sequence[Trigger] = (),
    asked_size: int = 0,
) -> ObservedJob:
    """Returns what is known of a job.

    Args:
        recipe: of the job.
        plan: by which it runs.
        first: what the plan itself names, as a placement.
        attempts: its requests for machines.
        heartbeats: its newest ones.
        state: of the job that lives; None where none does.
        now: seconds since 1970.
        confidence: the required chance that it is done in time.
        left_usd: of the budget of the night.
        to_save: whether the plan was to be cheap, and the job moves to cheaper machines where it is ahead.
        triggers: of the team, by what is measured.
        asked_size: the batch size that a trigger asked for last; 0: none did.
    """
    last, here = attempts.last, attempts.on_this_placement
    standing, began = _standing(attempts, state, now)
    stays = _stays(attempts)
    changes = [taken.name for taken in attempts.taken if taken.name in CHANGES]
    by_choice = bool(changes) and changes[-1] in ("scale up", "step down")
    before = stays[-2] if len(stays) > 1 and by_choice else None
    triggered = [taken.time.timestamp() for taken in attempts.taken if taken.name in TRIGGERED]
    heard = last is not None and bool(heartbeats.since(last.since))
    return ObservedJob(
        plan=plan,
        now=now,
        deadline=recipe.train_until.timestamp(),
        confidence=confidence,
        left_usd=left_usd,
        decay=recipe.rate.decay,
        placement=last.placement if last else first,
        state=standing,
        since=began,
        seen=heartbeats.seen,
        num_left_out=plan.num_samples - heartbeats.num_samples if heartbeats.num_samples else 0,
        starting_s=0.0 if heard else max(0.0, start_s(plan) - (now - began)),
        rate=heartbeats.rate(since=here[0].at) if here else None,
        whole_rate=heartbeats.rate(since=here[0].at, whole=True) if here else None,
        device_use=heartbeats.device_use(since=here[0].at) if here else None,
        batch_size=heartbeats.batch_sizes[-1],
        largest_batch_size=max(heartbeats.batch_sizes),
        noise_scale=heartbeats.last.noise_scale if heartbeats.last else None,
        attempts=attempts.all,
        refused=attempts.refused(since=now - FORGET_S),
        earlier={
            stay.placement.rental: rate
            for stay in stays[:-1]
            if (rate := heartbeats.rate(since=stay.since, until=stay.until, whole=True))
        },
        left={stay.placement.rental for stay in stays[:-1]},
        before=before.placement if before else None,
        num_moves=sum(taken.name in ("step down", "undo") for taken in attempts.taken),
        to_save=to_save,
        loss_rose=before is not None and heartbeats.loss_rose(since=before.since, at=stays[-1].since),
        fired=fired(triggers, heartbeats, since=max([here[0].at, *triggered]), now=now) if here else (),
        num_triggered=len(triggered),
        asked_size=asked_size,
        is_triggered=bool(changes) and changes[-1] == "triggered move",
    )


def _standing(attempts: JobAttempts, state: JobState | None, now: float) -> tuple[Standing, float]:
    """Returns the standing of a job whose newest attempt is in this state, and since when."""
    match state:
        case "queued" | "running":
            assert attempts.last
            last = attempts.last
            times = (last.run_at, last.again_at) if state == "running" else (last.at, last.queued_at)
            return state, max(times)
        case _:
            return "refused" if was_refused(attempts, now) else "none", now


def first(plan: Plan, *, train_until: datetime, confidence: float) -> Placement:
    """Returns what the plan itself names, as a placement."""
    forecast = plan.forecast
    expected_s = forecast.expected_s
    spread = max(LEAST_SPREAD, log(forecast.interval[1] / expected_s) / Z90 if expected_s else 0.0)
    longest_s = expected_s * exp(NORMAL.inv_cdf(max(0.5, confidence)) * spread)
    return Placement(
        rental=plan.rental,
        expected_s=expected_s,
        expected_usd=forecast.expected_usd,
        latest_start=train_until - timedelta(seconds=longest_s),
        usd_per_hour=plan.usd_per_hour,
        gpus=plan.gpus,
        micro_batch_size=plan.micro_batch_size,
        sizes=plan.sizes,
    )


@dataclass(frozen=True, kw_only=True)
class Stay:
    """The time that a job ran on a placement, however often it was restarted there."""

    placement: Placement
    since: float
    until: float


def _stays(attempts: JobAttempts) -> list[Stay]:
    """Returns the placements that machines came for, in order; the last one lasts."""
    ran = [each for each in attempts.all if each.run_at]
    changes = [
        n for n, each in enumerate(ran) if not n or each.placement.rental != ran[n - 1].placement.rental
    ]
    begins = [(ran[n].placement, ran[n].at) for n in changes]
    ends = [*(at for _, at in begins), inf][1:]
    return [
        Stay(placement=placement, since=at, until=end)
        for (placement, at), end in zip(begins, ends, strict=True)
    ]


def was_refused(attempts: JobAttempts, now: float) -> bool:
    """Returns whether the last request for machines was refused a short time ago."""
    last = attempts.last
    return last is not None and last.ended == "refused" and now < last.ended_at + PATIENCE_S


def state_of(attempts: JobAttempts) -> JobState | None:
    """Returns the state of the job that lives, as the newest look wrote it down; None where none does."""
    last = attempts.last
    if last is None or not last.live:
        return None
    return "queued" if last.waits else "running"


def placements(job: ObservedJob) -> Sequence[Placement]:
    """Returns the plan's own machines and its fallbacks, without machines that are queued for."""
    until = datetime.fromtimestamp(job.deadline, UTC)
    ways = (first(job.plan, train_until=until, confidence=job.confidence), *job.plan.fallbacks)
    return [placement for placement in ways if not placement.rental.is_queued]


def plan_with(job: ObservedJob, placement: Placement) -> Plan:
    """Returns the plan as if it named that placement, and had the others to fall back on."""
    return replace(
        job.plan,
        rental=placement.rental,
        usd_per_hour=placement.usd_per_hour,
        forecast=replace(
            job.plan.forecast, expected_s=placement.expected_s, expected_usd=placement.expected_usd
        ),
        fallbacks=tuple(other for other in placements(job) if other.rental != placement.rental),
    )
