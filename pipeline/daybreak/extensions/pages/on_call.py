"""Draws the page of what stands now, for the person on call: one screen for all models. Pure.

It is made of the rows of nights, the states of nights that run and the messages of each home. It is served,
and written to a file (fleet_rows.py), which is there when no server is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

from daybreak.contract import formats
from daybreak.contract.record_types import Night
from daybreak.extensions.pages.running import RunningNight
from daybreak.report import outcome
from daybreak.report.message_log import Messages, Sent
from daybreak.report.night_rows import NightRow
from daybreak.report.templates import render

TOLD = 5  # of the newest messages of each model that are shown
GAPS = 10  # between the newest nights, by which the next one is missed
DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A model with what its home has on record, newest first."""

    model: str
    rows: Sequence[NightRow]
    running: Sequence[RunningNight] = ()
    overdue: Sequence[Night] = ()  # past their deadline, not closed, and silent for an hour
    predict_skipped: str = ""  # why the newest night, running or closed, had nothing to predict
    notices: Sequence[str] = ()  # recipes that a person holds, served rows unlike training: a sentence each
    held_until: Sequence[date] = ()  # last nights of the holds that end by themselves
    messages: Messages = field(default_factory=Messages)
    notifies: bool = True  # does params.yaml name anybody who hears of events?
    fault: str = ""  # why what its home has on record cannot be read


@dataclass(frozen=True, kw_only=True)
class CardFact:
    """A line of a model's card; `is_due` where a person has to act."""

    name: str
    text: str
    is_due: bool = False


@dataclass(frozen=True, kw_only=True)
class Card:
    """A model as it is now."""

    model: str
    facts: Sequence[CardFact]

    @property
    def is_due(self) -> bool:
        """Returns whether a person has to act."""
        return any(fact.is_due for fact in self.facts)


def page(models: Sequence[Facts], *, at: datetime, by: str = "") -> str:
    """Returns the page of all models at a moment; `by` is the model whose night writes the file."""
    cards = [card(facts, at=at) for facts in models]
    return render(
        "pages/on_call.html",
        cards=sorted(cards, key=lambda each: not each.is_due),
        num_due=sum(each.is_due for each in cards),
        at=at,
        by=by,
    )


def card(facts: Facts, *, at: datetime) -> Card:
    """Returns a model as it is at a moment."""
    if facts.fault:
        return Card(model=facts.model, facts=[CardFact(name="Fault", text=facts.fault, is_due=True)])
    lines = [_serves(facts.rows, at=at), _predictions(facts, at=at), *_running(facts.running)]
    lines += [*_overdue(facts.overdue), *_missed(facts, at=at)]
    notices = [CardFact(name="Notice", text=sentence) for sentence in facts.notices]
    lines += [*_last(facts), *notices, _told(facts), _next(facts, at=at)]
    return Card(model=facts.model, facts=lines)


def _serves(rows: Sequence[NightRow], *, at: datetime) -> CardFact:
    name = "Serves"
    if not rows or not rows[0].serves:
        return CardFact(name=name, text="no version yet", is_due=True)
    version = rows[0].serves
    since = next((row.closed_at for row in rows if row.release), 0.0)
    promoted = [row for row in rows if row.release and not row.is_rollback]
    made = next((row for row in promoted if row.release and row.release[0] == version), None)
    text = f"version {version}"
    if made:
        text += f", of the night of {made.day}"
    if since:
        age = formats.duration(max(0.0, at.timestamp() - since))
        text += f", since {formats.clock(datetime.fromtimestamp(since, UTC))} ({age})"
    return CardFact(name=name, text=text)


def _predictions(facts: Facts, *, at: datetime) -> CardFact:
    """Returns whether the predictions of the newest night, running or closed, are there."""
    state = facts.running[0] if facts.running else None
    last = next((row for row in facts.rows if not row.is_rollback), None)
    written = None
    if state and state.night.predict_until:
        day, until = state.night.day, state.night.predict_until
        if any(link.stage == "predict" and link.state == "done" for link in state.chain):
            written = ""
    elif last and (last.predict_until or last.num_predicted is not None):
        day, until = date.fromisoformat(last.day), datetime.fromtimestamp(last.predict_until, UTC)
        if last.num_predicted is not None:
            written = outcome.rows_predicted(last.num_predicted, last.predicted_by, older=last.predicted_of)
    else:
        return CardFact(name="Predictions", text="none are asked for")
    known = outcome.predictions(day, until=until, at=at, written=written, skipped=facts.predict_skipped)
    return CardFact(name="Predictions", text=known.text, is_due=known.is_late)


def _running(running: Sequence[RunningNight]) -> Iterator[CardFact]:
    for state in running:
        failed = any(link.state == "failed" for link in state.chain)
        text = f"night of {state.night.day}, {state.stage or 'close'}: {state.text}"
        text += "; it is late" if state.is_late else ""
        text += f"; go on with: daybreak night --night {state.night.id}" if failed else ""
        name = "Waits for a person" if state.asked_until else "Runs"
        yield CardFact(name=name, text=text, is_due=state.is_late or failed or state.asked_until is not None)


def _overdue(nights: Sequence[Night]) -> Iterator[CardFact]:
    for night in nights:
        until = formats.clock(night.decide_until)
        text = (
            f"night of {night.day} had to be decided by {until} and is not closed; "
            f"close it with: daybreak close --night {night.id}"
        )
        yield CardFact(name="Hangs", text=text, is_due=True)


def _missed(facts: Facts, *, at: datetime) -> Iterator[CardFact]:
    """Yields that no night was opened for much longer than usual, as where the scheduler is down.

    The second longest of the newest gaps is usual: it spans the weekends of nights on weekdays, and one
    outage does not stretch it. Nights in quick succession, as by hand, count as daily ones.
    """
    opened = {row.started_at for row in facts.rows if row.started_at}
    opened |= {night.started_at.timestamp() for night in facts.overdue}
    opened |= {state.night.started_at.timestamp() for state in facts.running}
    newest = sorted(opened, reverse=True)[: GAPS + 1]
    gaps = sorted(later - before for later, before in pairwise(newest))
    if len(gaps) < 2:
        return
    usual_s, passed_s = max(DAY_S, gaps[-2]), at.timestamp() - newest[0]
    if passed_s > 1.5 * usual_s:
        since = formats.clock(datetime.fromtimestamp(newest[0], UTC))
        text = f"none was opened since {since} ({formats.duration(passed_s)}); "
        text += "see which processes of Airflow are not alive: daybreak status"
        yield CardFact(name="No night", text=text, is_due=True)


def _last(facts: Facts) -> Iterator[CardFact]:
    """Yields how the last closed night ended, and the rollback that followed it."""
    last = next((row for row in facts.rows if not row.is_rollback), None)
    if last is None:
        yield CardFact(name="Last night", text="none yet; run one with: make night")
        return
    if facts.rows[0].is_rollback:
        back = facts.rows[0]
        closed = formats.clock(datetime.fromtimestamp(back.closed_at, UTC))
        yield CardFact(name="Since", text=f"{closed}: {back.sentence} {_capital(back.reason)}")
    text = f"{last.day}: {last.sentence} {_capital(last.reason)}"
    failed = last.outcome == "failed"
    if failed and not facts.running:
        text += f"; go on with: daybreak night --night {last.night}"
    yield CardFact(name="Last night", text=text, is_due=failed and not facts.running)


def _told(facts: Facts) -> CardFact:
    """Returns which messages were sent last, to whom, and which wait."""
    name, messages = "Told", facts.messages
    if not facts.notifies:
        return CardFact(name=name, text="nobody; name somebody under notify in params.yaml")
    waiting = [f"{one.event.kind} waits since {formats.clock(one.since)}" for one in messages.waiting]
    failed = any(one.tried_at for one in messages.waiting)
    if failed:
        waiting.append("no notifier took it; look at notify in params.yaml")
    newest = messages.sent[-1] if messages.sent else None
    if newest and newest.refused and not failed:
        waiting.append("the newest message was refused; look at notify in params.yaml")
        failed = True
    text = "; ".join([*waiting, *map(_sent, reversed(messages.sent[-TOLD:]))]) or "no message was sent yet"
    return CardFact(name=name, text=text, is_due=failed)


def _sent(message: Sent) -> str:
    refused = f", refused by {', '.join(message.refused)}" if message.refused else ""
    took = ", ".join(message.to) or "nobody"
    return f"{message.kind} to {took}{refused} at {formats.clock(message.at)}"


def _next(facts: Facts, *, at: datetime) -> CardFact:
    """Returns the next times at which something is due or ends, the first one first."""
    times = sorted((moment, what) for moment, what in _times(facts) if moment > at)
    shown = [f"{formats.clock(moment)} {what}" for moment, what in times]
    return CardFact(name="Next", text="; ".join(shown) or "nothing is due until a night opens")


def _times(facts: Facts) -> Iterator[tuple[datetime, str]]:
    for state in facts.running:
        night = state.night
        done = {link.stage for link in state.chain if link.state == "done"}
        if "train" not in done:
            yield night.train_until, "training has to end"
        if night.predict_until and "predict" not in done and not facts.predict_skipped:
            yield night.predict_until, "predictions are due"
        yield night.decide_until, "the night has to be decided"
        if state.asked_until:
            yield state.asked_until, "the time to answer ends"
    last = next((row for row in facts.rows if not row.is_rollback), None)
    if last and last.predict_until and last.num_predicted is None and not facts.predict_skipped:
        yield datetime.fromtimestamp(last.predict_until, UTC), f"predictions of {last.day} are due"
    for day in facts.held_until:
        yield datetime.combine(day + timedelta(days=1), time(), UTC), "a hold has ended"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
