"""Writes the morning's digest: one message on all models of a fleet, those that need a person first.

It says what the page of what stands now says (on_call.py), in a few lines a model, with the scores of its
newest nights as a row of bars.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from daybreak.contract import formats
from daybreak.contract.record_parts import Event
from daybreak.extensions.pages import fleet_rows, on_call
from daybreak.extensions.pages.fleet_rows import FleetRows
from daybreak.extensions.pages.on_call import CardFact, Facts
from daybreak.extensions.pages.settings import DigestParams
from daybreak.report import links, summary
from daybreak.report.night_rows import NightRow
from daybreak.storage import homes
from daybreak.storage.home import Home

BARS = "▁▂▃▄▅▆▇█"
NIGHTS = 14  # newest, whose scores are drawn
SHOWN = ("Serves", "Predictions", "Last night")  # facts of each model, beside those that are due
LAST_DAY = timedelta(days=1)


def digest(home: Home, *, told: Sequence[str]) -> Event | None:
    """Returns today's digest once its hour has come, for the home that leads a fleet or is alone.

    `told` has the days of digests that were sent.
    """
    params = home.last_params(home.folder)
    hour, now = params.section(DigestParams).digest_at, datetime.now(UTC)
    local = now.astimezone(ZoneInfo(params.night.time_zone))
    day = str(last_due(hour, local)) if hour else ""
    named = params.notify.command or params.notify.urls or params.notify.urgent_urls
    if not day or day in told or not named:  # without anybody it would be made at each look, for nobody
        return None
    lead = homes.lead_of(home.folder)
    if lead.resolve() != home.folder.resolve():
        return None
    return Event(kind="digest", at=now, night="", subject=day, reason=_text(lead, at=now, local=local))


def last_due(hour: str, local: datetime) -> date:
    """Returns the day whose digest was due last by a local time: an hour before midnight is told after it.

    >>> [str(last_due("23:45", datetime(2026, 11, 30, hour, 50))) for hour in (22, 23)]
    ['2026-11-29', '2026-11-30']
    """
    return local.date() - timedelta(days=local.time() < time.fromisoformat(hour))


def _text(lead: Path, *, at: datetime, local: datetime) -> str:
    return text(fleet_rows.standing(FleetRows(), lead, at=at), at=local)


def text(models: Sequence[Facts], *, at: datetime) -> str:
    """Returns the digest of all models at a local time, those that need a person first."""
    cards = [(on_call.card(facts, at=at), facts.rows) for facts in models]
    num_due = sum(card.is_due for card, _ in cards)
    waits = f"{num_due} of {formats.counted(len(cards), 'model')} need{'s' * (num_due == 1)} a person"
    first = waits if num_due else f"nothing waits for a person, {formats.counted(len(cards), 'model')}"
    lines = [f"Daybreak, {at:%Y-%m-%d}: {first}; {_last_day(models, at=at)}"]
    for card, rows in sorted(cards, key=lambda pair: not pair[0].is_due):
        facts = sorted(card.facts, key=lambda fact: not fact.is_due)
        shown = (*SHOWN, "Next") if card.is_due else SHOWN
        chosen = [fact for fact in facts if fact.is_due or fact.name in shown]
        lines.append(f"\n{card.model}{' needs a person' if card.is_due else ''}")
        lines += [f"{fact.name}: {_brief(fact)}" for fact in chosen]
        lines += _scores(rows)
    # The address may be one of this machine alone, as that of `make up` is.
    lines.append(f"\nMore: daybreak status --all, and {links.now() or '/now of daybreak pages'}")
    return "\n".join(lines)


def _brief(fact: CardFact) -> str:
    """Returns the text of a fact in short; what a person has to do, its last clause, stays whole."""
    text = formats.one_line(fact.text)
    reason, _, to_do = text.rpartition("; ")
    if not (fact.is_due and reason):
        return summary.brief(text)
    words = reason.split()
    cut = " …" if len(words) > summary.WORDS else ""
    return f"{' '.join(words[: summary.WORDS])}{cut}; {to_do}"


def _last_day(models: Sequence[Facts], *, at: datetime) -> str:
    """Returns how many nights ended in the last 24 hours, and how."""
    since = (at - LAST_DAY).timestamp()
    ended = [row for facts in models for row in facts.rows if row.closed_at >= since]
    nights = [row for row in ended if not row.is_rollback]
    counts = {
        "promoted": sum(row.outcome == "promoted" for row in nights),
        "kept": sum(row.outcome == "kept" for row in nights),
        "failed": sum(row.outcome == "failed" for row in nights),
        "rolled back": len(ended) - len(nights),
    }
    shown = [f"{num} {word}" for word, num in counts.items() if num]
    usd = formats.dollars(sum(row.usd or 0.0 for row in nights))
    return f"in the last 24 hours {', '.join([*shown, usd]) if shown else 'no night ended'}"


def _scores(rows: Sequence[NightRow]) -> Iterator[str]:
    """Yields the scores of what served after each of the newest nights, as bars, the oldest first."""
    newest = [row for row in rows if not row.is_rollback][:NIGHTS]
    scores = [row.served_score for row in reversed(newest)]
    known = [score for score in scores if score is not None]
    if len(known) < 2:
        return
    drawn = bars(scores)
    yield f"Score, {len(scores)} nights: {formats.quantity(known[0])} {drawn} {formats.quantity(known[-1])}"


def bars(values: Sequence[float | None]) -> str:
    """Returns values as a row of bars between the least and the most of them; a dot where one is not known.

    >>> bars([0.1, None, 0.2, 0.3])
    '▁·▅█'
    """
    known = [value for value in values if value is not None]
    low, span = min(known), (max(known) - min(known)) or 1.0
    top = len(BARS) - 1
    return "".join("·" if value is None else BARS[round((value - low) / span * top)] for value in values)
