"""Draws running nights: a part of the board, which a stream sends anew, and a page of one night."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from markupsafe import Markup

from daybreak.contract.record_types import Cards
from daybreak.extensions.pages import night_charts
from daybreak.extensions.pages.running import RunningNight
from daybreak.planning.rationale import chance_in_percent
from daybreak.report import outcome
from daybreak.report.templates import render


@dataclass(frozen=True, kw_only=True)
class RunningPage:
    """A running night, with model and address of the page; "" where unnamed or without a page."""

    state: RunningNight
    model: str = ""
    href: str = ""

    @property
    def curve(self) -> Markup:
        """Returns the loss curve."""
        return night_charts.loss_curve(self.state.loss, end=self.state.num_samples)


def part(running: Sequence[RunningPage], *, at: datetime) -> Markup:
    """Returns the running nights as a part of a page, as they are at a moment; "" where none runs."""
    return Markup(
        render(
            "pages/running.html",
            running=running,
            clock_of=lambda moment: _clock(moment, at),
            chance=chance_in_percent,
            waits=outcome.waits,
        )
    )


def page(shown: RunningPage, *, cards: Cards | None, source: str, at: datetime) -> str:
    """Returns the page of a running night, which goes on by the stream at the address `source`.

    New cards are shown by asking for the page anew, as the stream would send their images with each figure.
    """
    return render(
        "pages/live.html",
        model=shown.model,
        night=shown.state.night,
        running=part([shown], at=at),
        page=page_of(shown.state),
        cards=cards,
        source=source,
        script=script(),
    )


def evidence(page: str, *, source: str) -> str:
    """Returns a night's own page, which is asked for anew once the stream at `source` has another for it."""
    before, end, after = page.rpartition("</main>")
    return f"{before}{render('pages/live_watch.html', source=source, script=script())}{end}{after}"


def page_of(state: RunningNight | None) -> str:
    """Returns which page a night has now: `live`, the `evidence` for a person, or its own as `closed`.

    A live page is another one once there are other cards.
    """
    if state is None:
        return "closed"
    if state.shows_evidence:
        return "evidence"
    return f"live {state.cards}".strip()


@cache
def script() -> Markup:
    """Returns the script of the board and of this page, which both hold."""
    return Markup(Path(__file__).with_name("board.js").read_text())


def _clock(moment: datetime, at: datetime) -> str:
    """Returns a time in UTC, with its day unless that is today."""
    return f"{moment:%H:%M}" if moment.date() == at.date() else f"{moment:%H:%M} on {moment:%d %b}"
