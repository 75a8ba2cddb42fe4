"""Puts the outcome of a night into words: the verdict as one sentence, and how far the stages got."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Literal

from daybreak.contract import records
from daybreak.contract.formats import clock, count, counted, effect, one_line, percent
from daybreak.contract.record_parts import Epoch, Live, MeasuredEffect, Segment
from daybreak.contract.record_types import Verdict
from daybreak.jobs.heartbeats import LOW_USE
from daybreak.registry import approval
from daybreak.storage.ledger import Entry
from daybreak.storage.night_folders import entry_of

State = Literal["done", "failed", "skipped", "not reached"]
Outcome = Literal["promoted", "kept", "failed", "rollback", "open"]
CHAIN = (
    ("open", "night"),
    ("ingest", "batch"),
    ("validate", "report"),
    ("prepare", "dataset"),
    ("profile", "profile"),
    ("plan", "plan"),
    ("train", "training"),
    ("evaluate", "evaluation"),
    ("register", "version"),
    ("gate", "verdict"),
    ("refit", "refit"),
    ("promote", "release"),
    ("predict", "predictions"),
)
SHOWN = 4  # digests
NIGHTS = 400  # of the ledger, the newest, that pages look back on


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The outcome in one sentence, and its reason."""

    outcome: Outcome
    sentence: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Link:
    """One stage of the chain, and how far it got."""

    stage: str
    state: State


@dataclass(frozen=True, kw_only=True)
class NightView:
    """A night as all pages show it: records, and the sentences of stages that failed, skipped or wait."""

    entry: Entry
    errors: Mapping[str, str] = field(default_factory=dict)
    skips: Mapping[str, str] = field(default_factory=dict)
    waits: Mapping[str, str] = field(default_factory=dict)
    history: Sequence[Entry] = ()  # the ledger, newest first
    new_night: str = ""  # command for another night of its day, where this one was overtaken

    @property
    def asked_until(self) -> datetime | None:
        """Returns until when a person may answer; None where nobody is waited for."""
        entry, verdict = self.entry, self.entry.verdict
        if verdict is None or entry.release or entry.commit or "promote" in self.skips:
            return None
        return None if approval.answer_to(verdict, entry.approval) else verdict.approve_until

    @property
    def nothing_to_judge(self) -> str:
        """Returns why a stage before the verdict had nothing to do; "" where none said so."""
        return next((text for stage, text in self.skips.items() if stage != "predict"), "")


def view_of(folder: Path, history: Sequence[Entry] = ()) -> NightView:
    """Returns the night in a folder; raises DataError where it has no Night record, or a broken one."""
    return NightView(
        entry=entry_of(folder, history),
        errors=_texts_of(folder, "error"),
        skips=_texts_of(folder, "skipped"),
        waits=_texts_of(folder, "waits"),
        history=history,
    )


def outcome(entry: Entry) -> Outcome:
    """Returns the outcome of a night of the ledger; `kept` also where there was nothing new to judge."""
    verdict = entry.verdict
    if entry.rollback:
        return "rollback"
    if verdict is None:
        return "open"
    if verdict.failed:
        return "failed"
    return "promoted" if entry.release else "kept"


def word(entry: Entry) -> str:
    """Returns the verdict in a word or two, for a table."""
    result = outcome(entry)
    if entry.stopped:
        return "stopped"
    if result == "kept" and entry.verdict:
        return {"reject": "rejected", "wait": "waits", "promote": "not promoted"}.get(
            entry.verdict.action, entry.verdict.action
        )
    return {"rollback": "rolled back", "open": "under way"}.get(result, result)


def rolled_back(history: Sequence[Entry]) -> dict[int, Entry]:
    """Returns the versions that rollbacks took back, as `taken_back` does, each with its rollback.

    `history` is newest first.
    """
    released = [entry for entry in history if entry.release]
    moves = [(e.release.version, e.release.replaced, e.rollback) for e in released if e.release]
    return {version: released[at] for version, at in taken_back(moves).items()}


def taken_back(releases: Sequence[tuple[int, int, bool]]) -> dict[int, int]:
    """Returns the versions that rollbacks took back and that did not serve again, with the rollback's place.

    A rollback over several promotions takes all of them back, also if it restores a version older than these
    releases.

    Args:
        releases: newest first, the version that came to serve, the one before it, and whether by a rollback.
    """
    served: dict[int, None] = {}  # in order, without what was taken back
    taken: dict[int, int] = {}
    for at, (number, replaced, is_rollback) in reversed([*enumerate(releases)]):
        if is_rollback:
            taken[replaced] = at
            while number in served or (number not in taken and served and next(reversed(served)) > number):
                taken[served.popitem()[0]] = at
        taken.pop(number, None)
        served[number] = None
    return taken


def since(entry: Entry, history: Sequence[Entry]) -> str:
    """Returns the rollback that matters to the reader of this night's page, as a sentence; "" without one.

    This is the rollback that took the night's version back, or that followed the newest night.
    """
    taken = rolled_back(history).get(entry.release.version) if entry.release else None
    if entry.release and taken:
        at = f" at {taken.closed_at:%Y-%m-%d %H:%M} UTC" if taken.closed_at else ""
        back = f"rolled back{at} to version {champion(taken)}"
        return f"Version {entry.release.version} was {back}: {_why(taken)}."
    newest = history[0] if history else None
    night = next((one.night.id for one in history if not one.rollback), "")
    if newest is None or not newest.rollback or entry.night.id != night:
        return ""
    at = f"Since {newest.closed_at:%Y-%m-%d %H:%M} UTC" if newest.closed_at else "By now"
    return f"{at}, version {champion(newest)} serves again: {_why(newest)}."


def _why(rollback: Entry) -> str:
    return rollback.verdict.reason if rollback.verdict else rollback.subject


def champion(entry: Entry) -> int:
    """Returns the version that served once the night was over; 0 for none."""
    return entry.serving.version if entry.serving else 0


def headline(view: NightView) -> Headline:
    """Returns the verdict of the night as one sentence, and whether its version was rolled back since."""
    entry, errors, skips = view.entry, view.errors, view.skips
    serving = champion(entry)
    stays = f"version {serving} stays" if serving else "there is no champion yet"
    if errors and not (next(iter(errors)) == "predict" and entry.verdict):  # what was decided holds
        stage, text = next(iter(errors.items()))
        return Headline(outcome="failed", sentence=f"The night failed at {stage}; {stays}.", reason=text)
    verdict = entry.verdict
    what = outcome(entry)
    if stop := entry.stopped:
        return Headline(
            outcome="kept",
            sentence=f"Stopped by {stop.by}; {stays}.",
            reason=stop.reason or "no reason given",
        )
    if verdict is None and (reason := view.nothing_to_judge):
        return Headline(outcome="kept", sentence=f"Nothing new to judge; {stays}.", reason=reason)
    if verdict is None:
        done = [link.stage for link in chain(view) if link.state == "done"]
        sentence = f"The night is under way; {stays}."
        return Headline(outcome=what, sentence=sentence, reason=f"The last stage done is {done[-1]}.")
    over = bool(entry.commit) or "promote" in skips
    reason = approval.reason(verdict, entry.approval, over=over)
    if what == "rollback":
        sentence = f"Rolled back to version {serving}."
    elif what == "failed":
        sentence = f"The night failed; {stays}."
    elif verdict.approve_until and entry.release is None:
        answer = approval.answer_to(verdict, entry.approval)
        sentence = f"Version {verdict.challenger} {approval.answered(verdict, answer, over=over)}; {stays}."
        return Headline(outcome=what, sentence=sentence, reason=reason)
    elif verdict.action == "promote" or entry.release:
        taken = bool(entry.release and entry.release.version in rolled_back(view.history))
        sentence = _promotion(entry, verdict.challenger, rolled_back=taken)
    else:
        sentence = _refusal(verdict, serving, stays)
    return Headline(outcome=what, sentence=sentence, reason=reason)


@dataclass(frozen=True, kw_only=True)
class PredictionsState:
    """Whether the predictions of a night are there, in words that follow "predictions"."""

    text: str  # "" where none are asked for
    is_late: bool = False


def predictions(
    day: date, *, until: datetime, at: datetime, written: str | None, skipped: str = ""
) -> PredictionsState:
    """Returns whether predictions are there at a moment.

    Args:
        day: of the night.
        until: when they are due.
        at: the moment.
        written: what was written, in words that may be empty; None: nothing yet.
        skipped: why there was nothing to predict; "" where there was.
    """
    if written is not None:
        return PredictionsState(text=f"of {day}: there{f', {written}' if written else ''}")
    if skipped:
        return PredictionsState(text=f"of {day}: none, {one_line(skipped)}")
    is_late = at > until
    due = f"{'late since' if is_late else 'due by'} {clock(until)}"
    return PredictionsState(text=f"of {day}: not there, {due}", is_late=is_late)


def predictions_of(view: NightView, *, at: datetime) -> PredictionsState:
    """Returns whether the predictions of a night are there at a moment."""
    night, made = view.entry.night, view.entry.predictions
    if night.predict_until is None:
        return PredictionsState(text="")
    written = rows_predicted(made.num_rows, made.version, older=made.older) if made else None
    skipped = view.skips.get("predict", "")
    return predictions(night.day, until=night.predict_until, at=at, written=written, skipped=skipped)


def rows_predicted(num_rows: int, version: int, *, older: object = None) -> str:
    """Returns how many rows a version predicted, in words, and their day where that is an older one."""
    text = f"{counted(num_rows, 'row')} by version {version}"
    return f"{text}, but of rows of {older}, as the day had none" if older else text


def in_live(live: Live) -> str:
    """Returns the result of an A/B test on live traffic, in a paragraph."""
    shown = _with_interval(live.effect) if live.effect else ""
    measured = f" Their scores differ by {shown}." if shown else ""
    return (
        f"{count(live.num_challenger)} users met the challenger and {count(live.num_champion)} the champion, "
        f"the challenger at last {percent(live.share)} of {tested_traffic(live)}.{measured} "
        f"Foretold: {live.foretold}. In the end: {live.reason}."
    )


def tested_traffic(live: Live) -> str:
    """Returns of which traffic a live test had its users, to end a sentence."""
    return "the traffic" if live.num_slots == 1 else f"its part of the traffic, one of {live.num_slots}"


def segment_effect(segment: Segment) -> str:
    """Returns the difference among the users of a segment of a live test, with its interval."""
    return _with_interval(segment.effect) or "not known"


def _with_interval(seen: MeasuredEffect) -> str:
    """Returns an effect with its interval; "" where an end is not bounded."""
    if seen.low is None or seen.high is None:
        return ""
    return f"{effect(seen.mean)} ({effect(seen.low)} to {effect(seen.high)})"


def waits(device_use: float | None) -> str:
    """Returns that a device was used little, in words that follow its name; "" where it was used enough."""
    if device_use is None or device_use >= LOW_USE:
        return ""
    return f"waited for samples {percent(1 - device_use)} of the time"


def proven(epochs: Sequence[Epoch]) -> str:
    """Returns what the sample audit proves, in a sentence; "" where there was none."""
    if not epochs:
        return ""
    whole = [epoch for epoch in epochs if epoch.whole]
    parts = [f"{count(epoch.num_samples)} of another" for epoch in epochs if not epoch.whole]
    if whole:
        plural = "s" if len(whole) > 1 else ""
        parts.insert(0, f"{count(len(whole))} whole epoch{plural} of {count(whole[0].num_samples)}")
    digests = [epoch.digest for epoch in epochs]
    shown = ", ".join(digests if len(digests) <= SHOWN else [*digests[: SHOWN - 1], "...", digests[-1]])
    return (
        f"The sample audit proves that none came twice or was left out: {', '.join(parts)}; "
        f"digest{'s' if len(digests) > 1 else ''} {shown}."
    )


def _refusal(verdict: Verdict, serving: int, stays: str) -> str:
    number = verdict.challenger
    if verdict.action == "reject" and serving:
        return f"Champion kept: version {number} is rejected, {stays}."
    if verdict.action == "reject":
        return f"Version {number} is rejected; there is no champion yet."
    if verdict.action == "wait":
        return f"No decision yet: version {number} waits for evidence, {stays}."
    return (
        f"Too little evidence for version {number}; {stays}." if number else f"Nothing new to judge; {stays}."
    )


def _promotion(entry: Entry, challenger: int, *, rolled_back: bool) -> str:
    if entry.release is None:
        return f"Version {challenger} is to be promoted; the promotion has not happened yet."
    made = entry.refitted
    version = f"{made.number}, a refit of version {challenger}," if made else f"{challenger}"
    if rolled_back:
        first = (
            f"replaced version {entry.release.replaced}"
            if entry.release.replaced
            else "was the first champion"
        )
        return f"Promoted, then rolled back: version {version} {first}."
    if entry.release.replaced:
        return f"Promoted: version {version} replaces version {entry.release.replaced}."
    return f"Promoted: version {version} is the first champion."


def chain(view: NightView) -> list[Link]:
    """Returns the stages in order, and how far the night got; `approve` where a person is asked."""
    entry, errors, skips = view.entry, view.errors, view.skips
    links = []
    for stage, record in CHAIN:
        state: State = "not reached"
        if getattr(entry, record) is not None:
            state = "done"
        if stage in errors or stage in skips:
            state = "failed" if stage in errors else "skipped"
        if stage == "predict" and state in ("not reached", "skipped") and entry.night.predict_until is None:
            continue  # nothing is asked for
        # a refit that is not asked for leaves no record
        if stage == "refit" and state == "not reached" and (entry.release or "promote" in skips):
            state = "skipped"
        # `close` writes the verdict of a night that never reached its gate
        if stage == "gate" and entry.version is None and state == "done":
            state = "not reached"
        links.append(Link(stage=stage, state=state))
        if stage == "gate" and entry.verdict and entry.verdict.approve_until:
            answered: State = "done" if approval.answer_to(entry.verdict, entry.approval) else "not reached"
            over = answered == "not reached" and (entry.release or "promote" in skips)
            links.append(Link(stage="approve", state="skipped" if over else answered))
    return links


def following(chain: Sequence[Link]) -> str:
    """Returns the stage after the last that ended; "" where a failure, or the end, leaves only `close`."""
    if any(link.state == "failed" for link in chain):
        return ""
    ended = [at for at, link in enumerate(chain) if link.state != "not reached"]
    left = chain[ended[-1] + 1 :] if ended else chain
    return left[0].stage if left else ""


def _texts_of(folder: Path, ending: str) -> dict[str, str]:
    """Returns what stages that failed (`error`) or had nothing to do (`skipped`) wrote, in their order."""
    order = [stage for stage, _ in CHAIN]
    paths = (folder / records.RUN).glob(f"*.{ending}")
    ranked = sorted(paths, key=lambda p: (order.index(p.stem) if p.stem in order else len(order), p.stem))
    return {path.stem: path.read_text(errors="replace").strip() for path in ranked}
