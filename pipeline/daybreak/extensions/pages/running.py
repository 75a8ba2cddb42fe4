"""Derives the state of a running night from its records, for pages and `status`. Pure.

Nothing is written for this: stages leave records, the job its heartbeats, requests for machines and cost. How
long training takes is forecast as the launcher does when it decides, from the same facts (daybreak/jobs).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from daybreak.contract import formats
from daybreak.contract.record_parts import Taken
from daybreak.contract.record_types import Night, Plan
from daybreak.jobs import observed_job
from daybreak.jobs.heartbeats import Heartbeats, thinned
from daybreak.jobs.remaining_work import forecast
from daybreak.jobs.submissions import JobAttempts
from daybreak.planning.rationale import chance_in_percent
from daybreak.registry import approval
from daybreak.report import outcome
from daybreak.report.outcome import Link, NightView
from daybreak.training.recipe import Recipe

NEWEST_S = 60.0  # of a job, over which the use of its device is averaged
POINTS = 160  # of a loss curve
QUIET = timedelta(hours=1)  # after its deadline, without a word, a night is given up


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """What the newest job of a night has written."""

    recipe: Recipe
    attempts: JobAttempts
    heartbeats: Heartbeats
    waits: str = ""  # what it waits for, in the words of the place that rents


@dataclass(frozen=True, kw_only=True)
class NightFacts:
    """What a night has written."""

    view: NightView
    job: RunningJob | None
    usd: float  # what its jobs have cost
    confidence: float  # `plan.confidence`
    written_at: datetime  # when it last wrote something
    has_page: bool = False  # which the gate writes for a person who is asked
    cards: str = ""  # when the class gave its cards; "": it has none


@dataclass(frozen=True, kw_only=True)
class RunningNight:
    """The state of a night that runs."""

    night: Night
    chain: Sequence[Link]
    stage: str  # that runs, or comes next; "" once all are done
    text: str  # what happens, in a few words
    share: float | None = None  # of the samples that were trained on; None before training
    trained_at: datetime | None = None  # when training is done, most likely
    interval: tuple[datetime, datetime] | None = None  # 90 %, of that
    chance: float | None = None  # that training is done in time
    samples_per_s: float | None = None
    device: str = ""
    device_use: float | None = None  # of the newest minute; None: not measured
    loss: Sequence[tuple[float, float]] = ()  # samples seen, mean loss since the point before
    num_samples: int = 0  # to train on
    fallbacks: Sequence[Taken] = ()
    usd: float = 0.0
    heard_at: datetime | None = None  # the newest heartbeat
    is_late: bool = False
    asked_until: datetime | None = None  # a person may answer; None: nobody is asked
    shows_evidence: bool = False  # a person is asked, and the page of the night has what they need
    cards: str = ""  # when the class gave its cards; "": it has none


def is_open(facts: NightFacts, *, now: datetime) -> bool:
    """Returns whether a night that was not closed may run: it has time left, or wrote a short while ago."""
    return now < facts.view.entry.night.decide_until or now < facts.written_at + QUIET


def running(facts: NightFacts, *, now: datetime) -> RunningNight:
    """Returns the state of a night by its facts."""
    entry, job = facts.view.entry, facts.job
    chain = outcome.chain(facts.view)
    stage = "" if entry.stopped else outcome.following(chain)
    plan, night = entry.plan, entry.night
    common = RunningNight(
        night=night,
        chain=chain,
        stage=stage,
        text=_text(facts, stage),
        usd=facts.usd,
        is_late=now > (night.train_until if stage == "train" else night.decide_until),
        chance=plan.forecast.chance if plan and entry.training is None else None,
        asked_until=facts.view.asked_until,
        shows_evidence=facts.has_page and facts.view.asked_until is not None,
        cards=facts.cards,
    )
    return _with_job(common, job, plan, facts, now=now) if job and plan else common


def line(state: RunningNight) -> str:
    """Returns the state in a line, for a terminal."""
    words = [f"{state.stage or 'close'}: {state.text}"]
    if state.share is not None and state.stage in ("train", "refit"):
        words.append(f"{state.share:.0%}")
    if state.stage == "train" and state.trained_at:
        words.append(f"trained by {state.trained_at:%H:%M:%S} UTC")
    if state.stage in ("plan", "train") and state.chance is not None:
        words.append(f"in time with a chance of {chance_in_percent(state.chance)}")
    if waits := outcome.waits(state.device_use):
        words.append(f"its device {waits}")
    if state.loss:
        words.append(f"loss {state.loss[-1][1]:.4g}")
    words += [fallback.name for fallback in state.fallbacks]
    words.append(f"{formats.dollars(state.usd)} of {formats.dollars(state.night.budget_usd)}")
    return ", ".join(words)


def _text(facts: NightFacts, stage: str) -> str:
    """Returns what happens now."""
    view, entry = facts.view, facts.view.entry
    if view.errors:
        failed, why = next(iter(view.errors.items()))
        return f"{failed} failed: {formats.one_line(why)}"
    if entry.stopped:
        return f"{approval.stopped(entry.stopped)}; is being closed"
    if until := view.asked_until:
        return f"waits for a person until {formats.clock(until)}: daybreak approve --night {entry.night.id}"
    if stage != "train" and (pending := view.waits.get(stage)):
        return formats.one_line(pending)
    if stage != "train" or facts.job is None:
        return "is under way" if stage else "writes the night to the ledger"
    return _of_job(facts.job)


def _of_job(job: RunningJob) -> str:
    last = job.attempts.last
    if last is None or not last.live:
        return "asks for machines"
    if last.waits:
        return f"waits for {last.placement.rental}" + (f" ({job.waits})" if job.waits else "")
    return (
        f"runs on {last.placement.rental}"
        if job.heartbeats.since(last.since)
        else f"starts on {last.placement.rental}"
    )


def _with_job(
    state: RunningNight, job: RunningJob, plan: Plan, facts: NightFacts, *, now: datetime
) -> RunningNight:
    """Returns the state with how far the job is; a forecast only while training runs, by its own plan."""
    beats, total = job.heartbeats, job.heartbeats.num_samples or job.recipe.num_samples
    last = beats.last
    state = replace(
        state,
        share=min(1.0, beats.seen / max(total, 1)),
        samples_per_s=last.samples_per_s if last else None,
        device=last.device if last else "",
        device_use=beats.device_use(since=last.time.timestamp() - NEWEST_S) if last else None,
        heard_at=last.time if last else None,
        loss=thinned([(float(beat.seen), beat.loss) for beat in beats.beats], most=POINTS),
        num_samples=total,
        fallbacks=tuple(job.attempts.taken),
    )
    if state.stage != "train" or job.recipe.split != "train":
        return state
    first = observed_job.first(plan, train_until=job.recipe.train_until, confidence=facts.confidence)
    observed = observed_job.observe(
        job.recipe,
        plan,
        first=first,
        attempts=job.attempts,
        heartbeats=beats,
        state=observed_job.state_of(job.attempts),
        now=now.timestamp(),
        confidence=facts.confidence,
        left_usd=state.night.budget_usd - facts.usd,
    )
    ahead = forecast(observed, observed.placement)
    low, high = (now + timedelta(seconds=s) for s in ahead.interval)
    return replace(
        state, trained_at=now + timedelta(seconds=ahead.rest_s), interval=(low, high), chance=ahead.chance
    )
