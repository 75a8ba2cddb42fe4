"""Makes the sight of a job (`escalation`) from its files: who looks on sees what the launcher sees. Pure."""

from pipeline.contract.backend import LIVE, State
from pipeline.contract.records import Plan, Rung
from pipeline.jobs import escalation
from pipeline.jobs.escalation import Sight, Standing
from pipeline.jobs.heartbeats import Heartbeats
from pipeline.jobs.submissions import Attempts
from pipeline.spot import steering
from pipeline.training.recipe import Recipe


def sight_of(
    recipe: Recipe,
    plan: Plan,
    *,
    first: Rung,
    attempts: Attempts,
    heartbeats: Heartbeats,
    state: State | None,
    now: float,
    confidence: float,
    left_usd: float,
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
        starting_s=0.0 if heard else max(0.0, escalation.start_s(plan) - (now - began)),
        rate=heartbeats.rate(since=here[0].at) if here else None,
        attempts=[
            steering.Attempt(
                at=each.at,
                strategy=each.rung.rental.strategy,
                zone=steering.zone_of(each.rung.rental),
                came=bool(each.run_at),
            )
            for each in attempts.all
        ],
        refused=attempts.refused(since=now - escalation.FORGET_S),
    )


def was_refused(attempts: Attempts, now: float) -> bool:
    """Returns whether the last request for machines was refused a short time ago."""
    last = attempts.last
    return last is not None and last.ended == "refused" and now < last.ended_at + escalation.PATIENCE_S


def state_of(attempts: Attempts) -> State | None:
    """Returns the state of the job that lives, as the newest look wrote it down; None where none does."""
    last = attempts.last
    if last is None or not last.live:
        return None
    return "running" if last.run_at else "queued"
