"""Tells how long each stage of a night worked and waited, and why a stage took longer than planned.

Training is held against the 90 % interval of the plan, evaluation and refit against what the plan keeps for
them. No plan says how long the other stages take; these are held against the median of earlier nights. A
stage took longer if it took more than `SLOWER` times as long, and `LEAST_S` more; the causes are those that
the records of the night name. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from daybreak.contract.formats import count, counted, dollars, duration, percent, quantity
from daybreak.contract.record_parts import JobSpan, StageSpan
from daybreak.contract.record_types import LIVE_TEST, Plan, Training
from daybreak.jobs.heartbeats import LOW_USE
from daybreak.machines.startup import BEFORE_WORK, IN_RUN_S
from daybreak.planning.considered import UP_TO
from daybreak.prediction.scorecard import has_moved
from daybreak.prediction.time_budget import EVALUATION, REFIT
from daybreak.storage.ledger import Entry

SLOWER = 1.5
LEAST_S = 30.0
NIGHTS, FEWEST = 30, 3  # earlier nights whose median is usual: the most, and the fewest
MUCH = 0.1  # share of the time beyond the plan that is a cause
PLANNED = {"evaluate": EVALUATION, "refit": REFIT}
OF_JOBS = ("train", "refit")
NO_STEPS = (UP_TO, *BEFORE_WORK)  # portions of a plan in which nothing is trained


@dataclass(frozen=True, kw_only=True)
class TimeBar:
    """A part of a stage's time: work, waiting, or a call that failed."""

    began_at: datetime
    ended_at: datetime
    kind: str  # "work", "wait" or "failed"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A restart of the training, or a fallback that it took."""

    at: datetime
    what: str


@dataclass(frozen=True, kw_only=True)
class StageTime:
    """The time of a stage, or of a request for machines, which is `of` a stage."""

    name: str
    bars: tuple[TimeBar, ...]
    took_s: float
    waited_s: float
    marks: tuple[Mark, ...] = ()
    of: str = ""
    expected_s: float | None = None  # None: neither the plan nor earlier nights tell
    expected: str = ""  # in words, with whose
    usd: float | None = None
    end: str = ""
    why: str = ""  # it took longer; "": it did not

    @property
    def began_at(self) -> datetime:
        """Returns when it was first called."""
        return self.bars[0].began_at

    @property
    def ended_at(self) -> datetime:
        """Returns when the last call ended."""
        return max(bar.ended_at for bar in self.bars)


def stage_times(entry: Entry, history: Sequence[Entry]) -> list[StageTime]:
    """Returns the times of the stages in the order of their first calls; none where they were not kept."""
    spans = entry.spans.stages if entry.spans else ()
    usual = _usual(entry, history)
    times: list[StageTime] = []
    for stage in dict.fromkeys(span.stage for span in spans):
        own = [span for span in spans if span.stage == stage]
        times += _of_stage(stage, own, entry, usual.get(stage))
    return times


def _usual(entry: Entry, history: Sequence[Entry]) -> dict[str, float]:
    """Returns the median time of each stage over the nights before, where enough of them kept it."""
    took: dict[str, list[float]] = {}
    before = [
        one
        for one in history
        if one.spans and not one.rollback and one.night.started_at < entry.night.started_at
    ]
    for one in before[:NIGHTS]:
        for span in one.spans.stages if one.spans else ():
            if span.end == "done":
                began_at = span.last_call_at if span.stage == "gate" else span.began_at  # of users' hours
                took.setdefault(span.stage, []).append(_seconds(began_at, span.ended_at))
    return {stage: median(times) for stage, times in took.items() if len(times) >= FEWEST}


def _seconds(began_at: datetime, ended_at: datetime) -> float:
    return max(0.0, (ended_at - began_at).total_seconds())


def _of_stage(
    stage: str, spans: Sequence[StageSpan], entry: Entry, usual_s: float | None
) -> Iterator[StageTime]:
    refitted = entry.refit.training if entry.refit else None
    training = {"train": entry.training, "refit": refitted}.get(stage)
    attempts = training.attempts if training else ()
    bars = tuple(_bars_of_job(spans, attempts) if attempts else _bars(spans, of_job=stage in OF_JOBS))
    took_s = sum(_seconds(span.began_at, span.ended_at) for span in spans)
    waited_s = sum(_seconds(bar.began_at, bar.ended_at) for bar in bars if bar.kind == "wait")
    plan, planned = entry.plan, PLANNED.get(stage)
    portions = {part.name: part.expected_s for part in plan.after} if plan else {}
    expected_s, most_s, words = usual_s, None, "usually"
    compared_s = took_s
    if stage == "train" and plan and training:
        expected_s, words = plan.forecast.expected_s, "planned"
        most_s = None if has_moved(plan, training) else plan.forecast.interval[1]
        compared_s = training.took_s
    elif planned in portions:
        expected_s, words = portions[planned], "planned"
    elif stage == "gate" and entry.verdict and entry.verdict.live and usual_s is not None:
        expected_s = usual_s + portions.get(LIVE_TEST, 0.0)
    if most_s is None and expected_s is not None:
        most_s = max(SLOWER * expected_s, expected_s + LEAST_S)
    why = ""
    if expected_s is not None and most_s is not None and compared_s > most_s:
        why = " ".join(
            _why(stage, spans, entry, training, beyond_s=compared_s - expected_s, waited_s=waited_s)
        )
    yield StageTime(
        name=stage,
        bars=bars,
        took_s=compared_s,
        waited_s=waited_s,
        marks=tuple(_marks(training)) if training else (),
        expected_s=expected_s,
        expected=f"{duration(expected_s)} {words}" if expected_s is not None else "",
        usd=training.cost_usd if training and stage == "train" else None,
        end=spans[-1].end,
        why=why,
    )
    if len(attempts) > 1:
        yield from (_of_attempt(stage, one) for one in attempts)


def _bars(spans: Sequence[StageSpan], *, of_job: bool) -> Iterator[TimeBar]:
    """Yields the bars of a stage's calls; a call that waits for the stage's job counts as work."""
    for span in spans:
        works = of_job and (span.num_waits or span.end == "waits")
        if span.last_call_at > span.began_at:
            yield TimeBar(
                began_at=span.began_at, ended_at=span.last_call_at, kind="work" if works else "wait"
            )
        kind = {"failed": "failed", "waits": "work" if works else "wait"}.get(span.end, "work")
        yield TimeBar(began_at=max(span.began_at, span.last_call_at), ended_at=span.ended_at, kind=kind)


def _bars_of_job(spans: Sequence[StageSpan], attempts: Sequence[JobSpan]) -> Iterator[TimeBar]:
    """Yields the bars of a job's machines, and of the calls after the job's end."""
    at = spans[0].began_at
    for one in attempts:
        runs_at = one.ran_at or one.ended_at
        if runs_at > at:
            yield TimeBar(began_at=at, ended_at=runs_at, kind="wait")
        if one.ran_at:
            failed = one.end in ("failed", "hung")
            yield TimeBar(began_at=one.ran_at, ended_at=one.ended_at, kind="failed" if failed else "work")
        at = one.ended_at
    for span in spans:
        if span.ended_at > at:  # brings the model back, or was called once more
            kind = "failed" if span.end == "failed" else "work"
            yield TimeBar(began_at=max(at, span.began_at), ended_at=span.ended_at, kind=kind)


def _of_attempt(stage: str, one: JobSpan) -> StageTime:
    waits = TimeBar(began_at=one.asked_at, ended_at=one.ran_at or one.ended_at, kind="wait")
    runs = [TimeBar(began_at=one.ran_at, ended_at=one.ended_at, kind="work")] if one.ran_at else []
    return StageTime(
        name=str(one.rental),
        of=stage,
        bars=(waits, *runs),
        took_s=_seconds(one.asked_at, one.ended_at),
        waited_s=_seconds(waits.began_at, waits.ended_at),
        usd=one.usd,
        end=one.end,
    )


def _marks(training: Training) -> Iterator[Mark]:
    yield from (Mark(at=at, what="restart") for at in training.restarted_at)
    yield from (Mark(at=taken.time, what=taken.name) for taken in training.fallbacks)


def _why(
    stage: str,
    spans: Sequence[StageSpan],
    entry: Entry,
    training: Training | None,
    *,
    beyond_s: float,
    waited_s: float,
) -> Iterator[str]:
    """Yields the causes that the records name, a sentence each; one that says so where they name none."""
    causes = [*_of_calls(spans)]
    if training and entry.plan:
        causes += _of_training(training, entry.plan, beyond_s=beyond_s)
    elif waited_s > MUCH * beyond_s:
        said = next((span.why for span in reversed(spans) if span.why and span.end != "failed"), "")
        causes.append(f"It waited {duration(waited_s)}{f': {said}' if said else ''}.")
    if stage == "ingest" and entry.batch and entry.batch.waited_hours:
        causes.append(f"The day was there {duration(entry.batch.waited_hours * 3600)} after the opening.")
    if causes:
        yield from causes
        return
    began, ended = spans[0].began_at, spans[-1].ended_at
    yield f"No record says why; look at its log of {began:%H:%M:%S} to {ended:%H:%M:%S} UTC."


def _of_calls(spans: Sequence[StageSpan]) -> Iterator[str]:
    *before, last = spans
    failed = [span for span in before if span.end == "failed"]
    if failed:
        num = sum(span.num_calls - span.num_waits for span in failed)
        yield f"It failed {counted(num, 'time')} before: {failed[-1].why}."
    if last.end == "failed":
        num = last.num_calls - last.num_waits
        yield f"It failed{f' {count(num)} times' if num > 1 else ''}: {last.why}."


def _of_training(training: Training, plan: Plan, *, beyond_s: float) -> Iterator[str]:
    start_s = training.start_s or 0.0
    if start_s > MUCH * beyond_s:
        yield f"Its machines ran {duration(start_s)} after they were asked for."
    lost = [one for one in training.attempts if one.end == "preempted"]
    if lost:
        yield f"It lost its machines {counted(len(lost), 'time')}, {lost[-1].rental} at last."
    if training.num_restarts:
        yield f"Its workers were restarted {counted(training.num_restarts, 'time')}."
    for taken in training.fallbacks:
        more = "more" if taken.usd >= 0 else "less"
        yield f"{taken.name.capitalize()}, for {dollars(abs(taken.usd))} {more}: {taken.reason}."
    if training.short_of_memory:
        num = sum(training.short_of_memory.values())
        yield f"Memory was short in {count(num)} updates, which were taken in smaller parts."
    if training.device_use is not None and training.device_use < LOW_USE:
        yield f"Its device waited for samples for {percent(1 - training.device_use)} of the time."
    # Of several attempts or starts, no record says how long the steps themselves took.
    steps_s = sum(part.expected_s for part in plan.forecast.portions if part.name not in NO_STEPS)
    if steps_s and training.num_samples and len(training.attempts) <= 1 and not training.num_restarts:
        took_s = max(0.0, training.elapsed_s - IN_RUN_S) / training.num_samples
        ratio = took_s / (steps_s / plan.num_samples)
        if ratio > 1 + MUCH:
            times = quantity(float(f"{ratio:.2g}"))
            yield f"Its steps took {times} times as long for each sample as planned."
