"""Sums a night up for a person who has a minute: the first screen of its page.

From the records of a night it makes the verdict with its reason, the effect, cost and time against their
limits, a line on the data, and the actions possible now. The page of the night, the page of its version in
MLflow and `daybreak report --json` show the same summary. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from daybreak.contract import formats
from daybreak.contract.record_types import Report, Verdict
from daybreak.report import evidence, outcome
from daybreak.report.links import Places
from daybreak.report.outcome import NightView, Outcome
from daybreak.storage.ledger import Entry

WORDS = 30  # of the reason; the checks below it have the whole
BY_HAND = "#by-hand"  # of the page, where the commands are


@dataclass(frozen=True, kw_only=True)
class JudgedEffect:
    """The difference that the gate judged, in units of the score; `margin` is what a refresh may lose.

    An end of the interval that is not bounded is None.
    """

    value: float
    low: float | None
    high: float | None
    margin: float | None
    against: str
    on: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A figure with a reference to compare it to; `value` is the bare figure, None where unknown."""

    name: str
    text: str
    beside: str
    value: float | str | None
    good: bool = True


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that a person may do now: a button, where it leads, and the command that does the same."""

    name: str
    address: str
    command: str = ""
    is_due: bool = False  # the night does not go on without it


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a person reads first."""

    outcome: Outcome
    headline: str
    reason: str
    since: str
    effect: JudgedEffect | None
    facts: tuple[Fact, ...]
    actions: tuple[Action, ...]


def summarize(view: NightView, *, places: Places, margin: float | None = None) -> Summary:
    """Returns the summary of a night.

    Args:
        view: the night.
        places: addresses that actions lead to.
        margin: of a refresh, where the verdict has none.
    """
    headline, entry = outcome.headline(view), view.entry
    reason = entry.verdict.reason if entry.verdict and view.asked_until else headline.reason
    return Summary(
        outcome=headline.outcome,
        headline=headline.sentence,
        reason=brief(reason),
        since=outcome.since(entry, view.history),
        effect=effect(entry, margin),
        facts=(*_facts(entry, stopped="validate" in view.errors), *_predictions(view)),
        actions=tuple(_actions(view, places=places)),
    )


def brief(text: str, most: int = WORDS) -> str:
    """Returns the first clauses of a reason, as many as have `most` words together.

    A first clause that is longer is cut.

    >>> brief("worse by 0.02; 400 samples show 0.03 at 80 % power", most=4)
    'worse by 0.02'
    >>> brief("one two three four", most=3)
    'one two three …'
    """
    lines = text.strip().splitlines()
    clauses = (lines[0] if lines else "").split("; ")
    words = clauses[0].split()
    if len(words) > most:
        return " ".join(words[:most]) + " …"
    shown = clauses[0]
    for clause in clauses[1:]:
        if len(f"{shown} {clause}".split()) > most:
            break
        shown += f"; {clause}"
    return shown


def effect(entry: Entry, margin: float | None = None) -> JudgedEffect | None:
    """Returns the effect that the gate judged; None where there is no evidence."""
    verdict = entry.verdict
    if verdict is None or verdict.effect is None:
        return None
    live = verdict.live is not None and verdict.live.effect == verdict.effect
    allowed = verdict.margin if verdict.margin is not None else margin
    return JudgedEffect(
        value=verdict.effect.mean,
        low=verdict.effect.low,
        high=verdict.effect.high,
        margin=allowed if verdict.champion else None,
        against=f"version {verdict.champion}" if verdict.champion else "a simple rule",
        on=judged_on(verdict, live=live),
    )


def judged_on(verdict: Verdict, *, live: bool) -> str:
    """Returns how many users, or samples and units, an effect is a mean of."""
    if live:
        return f"{formats.counted(verdict.num_samples, 'user')} of live traffic"
    test = verdict.recipe_test
    if test and test.effect is not None and test.effect == verdict.effect:
        return f"{formats.counted(test.num_nights, 'night')}, each on held-out days of its own"
    units = f" of {formats.counted(verdict.num_units, 'unit')}" if verdict.num_units else ""
    return f"{formats.counted(verdict.num_samples, 'held-out sample')}{units}"


def _facts(entry: Entry, *, stopped: bool) -> Iterator[Fact]:
    night, training = entry.night, entry.training
    if training:
        ended = training.ended_at or night.started_at + timedelta(seconds=training.elapsed_s)
        left_s = (night.train_until - ended).total_seconds()
        side = "before" if left_s >= 0 else "after"
        yield Fact(
            name="Model ready",
            text=f"{ended:%H:%M} UTC",
            beside=f"{formats.duration(abs(left_s))} {side} the deadline",
            value=ended.isoformat(),
            good=left_s >= 0,
        )
        within = training.cost_usd <= night.budget_usd
        yield Fact(
            name="Cost",
            text=formats.dollars(training.cost_usd),
            beside=f"{'of' if within else 'over'} {formats.dollars(night.budget_usd)} budget",
            value=training.cost_usd,
            good=within,
        )
    elif not entry.commit:
        yield Fact(
            name="Train until",
            text=f"{night.train_until:%H:%M} UTC",
            beside=f"{night.train_until:%-d %B}, for {formats.dollars(night.budget_usd)} at most",
            value=night.train_until.isoformat(),
        )
    if entry.report:
        yield _data(entry.report)
    elif entry.batch:
        yield Fact(
            name="Data",
            text=f"{formats.count(entry.batch.num_rows)} rows",
            beside="refused" if stopped else "not judged yet",
            value=entry.batch.num_rows,
            good=not stopped,
        )


def _predictions(view: NightView) -> Iterator[Fact]:
    made = view.entry.predictions
    if made is None:
        if fault := view.errors.get("predict"):
            yield Fact(name="Predictions", text="none", beside=brief(fault), value=0, good=False)
        return
    drifted = [one.column for one in made.drift if one.value > one.limit]
    parts = [f"by version {made.version}"]
    parts += [f"ahead of {made.ahead_of}"] if made.ahead_of else []
    if made.until:
        left_s = (made.until - made.written_at).total_seconds()
        parts.append(f"{formats.duration(abs(left_s))} {'after' if made.is_late else 'before'} the deadline")
    parts += [f"drift in {', '.join(drifted)}"] if drifted else []
    yield Fact(
        name="Predictions",
        text=formats.counted(made.num_rows, "row"),
        beside=", ".join(parts),
        value=made.num_rows,
        good=not made.is_late and not drifted,
    )


def _data(report: Report) -> Fact:
    share = report.num_quarantined / report.num_rows if report.num_rows else 0.0
    broken = evidence.broken_rules(report)
    by = sum(one.num_failed > 0 for one in report.expectations)
    drifted = [one.column for one in report.drift if one.value > one.limit]
    rules = formats.counted(len(report.expectations), "rule")
    parts = [f"{formats.percent(share)} quarantined by {by} of {rules}" if by else f"{rules} hold"]
    if broken:
        parts.append(f"{formats.counted(len(broken), 'rule')} broken")
    if drifted:
        more = f" and {len(drifted) - 1} more" if len(drifted) > 1 else ""
        parts.append(f"drift in {drifted[0]}{more}")
    return Fact(
        name="Data",
        text=f"{formats.count(report.num_rows)} rows",
        beside=", ".join(parts),
        value=report.num_rows,
        good=not broken and not drifted,
    )


def _actions(view: NightView, *, places: Places) -> Iterator[Action]:
    """Yields what may be done now, the first thing first."""
    entry, errors = view.entry, view.errors
    night, verdict = entry.night, entry.verdict
    failed = bool(errors) or bool(verdict and verdict.failed)
    if view.asked_until:
        answer, address = f"daybreak approve --night {night.id}", places.review or BY_HAND
        yield Action(name="Approve", address=address, command=f"{answer} --reason TEXT", is_due=True)
        yield Action(name="Reject", address=address, command=f"{answer} --reject --reason TEXT", is_due=True)
    elif failed and view.new_night:
        yield Action(name="Open a new night", address=BY_HAND, command=view.new_night, is_due=True)
    elif failed:
        again = f"daybreak night --night {night.id}"
        address = places.airflow_run or BY_HAND
        yield Action(name="Go on with the night", address=address, command=again, is_due=True)
    elif verdict is None and not view.nothing_to_judge:
        command = "daybreak status"
        yield Action(name="See how far it is", address=places.airflow_run or BY_HAND, command=command)
        if entry.stop is None:
            end = f"daybreak stop --night {night.id} --reason TEXT"
            yield Action(name="Stop it", address=BY_HAND, command=end)
    elif entry.release and entry.release.replaced and _serves(entry, view.history):
        back = f"daybreak rollback --to {entry.release.replaced} --reason TEXT"
        yield Action(name="Roll back", address=places.rollback or BY_HAND, command=back)
    if failed and "validate" in {*errors, verdict.failed if verdict else ""}:
        rows = f"daybreak rows --night {night.id}"
        yield Action(name="Look at the bad rows", address="#bad-rows", command=rows)
    elif verdict and entry.version:
        why = f"daybreak why {entry.version.number}"
        yield Action(name="See the checks", address="#checks", command=why)
    if places.version:
        yield Action(name="Open the version", address=places.version)


def _serves(entry: Entry, history: Sequence[Entry]) -> bool:
    """Returns whether the version that the night promoted is still the one that serves, by the ledger."""
    closed = any(one.night.id == entry.night.id and one.release for one in history)
    newest = next((one.release for one in history if one.release), None) if closed else entry.release
    return bool(newest and entry.release and newest.version == entry.release.version)
