"""Makes the sight of a job (`escalation`) from its files: who looks on sees what the launcher sees. Pure."""

from dataclasses import dataclass
from math import inf

from daybreak.contract.backend import LIVE, JobState
from daybreak.contract.record_types import Plan, Rung
from daybreak.jobs import escalation
from daybreak.jobs.escalation import Sight, Standing
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.jobs.submissions import JobAttempts
from daybreak.machines.startup import start_s
from daybreak.training.recipe import Recipe

CHANGES = ("on-demand", "next rung", "scale up", "step down", "undo")  # of machines


def sight_of(
    recipe: Recipe,
    plan: Plan,
    *,
    first: Rung,
    attempts: JobAttempts,
    heartbeats: Heartbeats,
    state: JobState | None,
    now: float,
    confidence: float,
    left_usd: float,
    to_save: bool = False,
) -> Sight:
    """Returns what is known of a job.

    Args:
        recipe: of the job.
        plan: by which it runs.
        first: what the plan itself names, as a rung.
        attempts: its requests for machines.
        heartbeats: its newest ones.
        state: of the job that lives; None where none does.
        now: seconds since 1970.
        confidence: the required chance that it is done in time.
        left_usd: of the budget of the night.
        to_save: whether the plan was to be cheap, and the job moves to cheaper machines where it is ahead.
    """
    last, here = attempts.last, attempts.on_this_rung
    began = now
    if last and state in LIVE:
        began = last.run_at if state == "running" else last.at
    match state:
        case "queued" | "running":
            at: Standing = state
        case _:
            at = "refused" if was_refused(attempts, now) else "none"
    stays = _stays(attempts)
    changes = [taken.name for taken in attempts.taken if taken.name in CHANGES]
    by_choice = bool(changes) and changes[-1] in ("scale up", "step down")
    before = stays[-2] if len(stays) > 1 and by_choice else None
    heard = last is not None and bool(heartbeats.since(last.at))
    return Sight(
        now=now,
        deadline=recipe.train_until.timestamp(),
        confidence=confidence,
        left_usd=left_usd,
        decay=recipe.decay,
        rung=last.rung if last else first,
        state=at,
        since=began,
        seen=heartbeats.seen,
        starting_s=0.0 if heard else max(0.0, start_s(plan) - (now - began)),
        rate=heartbeats.rate(since=here[0].at) if here else None,
        device_use=heartbeats.device_use(since=here[0].at) if here else None,
        batch_size=heartbeats.batch_sizes[-1],
        largest_batch_size=max(heartbeats.batch_sizes),
        noise_scale=heartbeats.last.noise_scale if heartbeats.last else None,
        attempts=attempts.all,
        refused=attempts.refused(since=now - escalation.FORGET_S),
        earlier={
            stay.rung.rental: rate
            for stay in stays[:-1]
            if (rate := heartbeats.rate(since=stay.since, until=stay.until))
        },
        left={stay.rung.rental for stay in stays[:-1]},
        before=before.rung if before else None,
        num_moves=sum(taken.name in ("step down", "undo") for taken in attempts.taken),
        to_save=to_save,
        loss_rose=before is not None and heartbeats.loss_rose(since=before.since, at=stays[-1].since),
    )


@dataclass(frozen=True, kw_only=True)
class Stay:
    """The time that a job ran on a rung, however often it was restarted there."""

    rung: Rung
    since: float
    until: float


def _stays(attempts: JobAttempts) -> list[Stay]:
    """Returns the rungs that machines came for, in order; the last one lasts."""
    ran = [each for each in attempts.all if each.run_at]
    changes = [n for n, each in enumerate(ran) if not n or each.rung.rental != ran[n - 1].rung.rental]
    begins = [(ran[n].rung, ran[n].at) for n in changes]
    ends = [*(at for _, at in begins), inf][1:]
    return [Stay(rung=rung, since=at, until=end) for (rung, at), end in zip(begins, ends, strict=True)]


def was_refused(attempts: JobAttempts, now: float) -> bool:
    """Returns whether the last request for machines was refused a short time ago."""
    last = attempts.last
    return last is not None and last.ended == "refused" and now < last.ended_at + escalation.PATIENCE_S


def state_of(attempts: JobAttempts) -> JobState | None:
    """Returns the state of the job that lives, as the newest look wrote it down; None where none does."""
    last = attempts.last
    if last is None or not last.live:
        return None
    return "running" if last.run_at else "queued"
