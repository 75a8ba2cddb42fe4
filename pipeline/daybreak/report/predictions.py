"""Compares the plans of earlier nights with what came of them: predicted against actual time, by night."""

import math
from collections.abc import Sequence

from daybreak.contract import formats
from daybreak.prediction.scorecard import PredictionOutcome, Scorecard, outcome, scorecard
from daybreak.report.charts import canvas
from daybreak.report.svg import ACCENT, INK, MUTED, RULE, inline, styled
from daybreak.storage.ledger import Entry


def card(entry: Entry, history: Sequence[Entry]) -> Scorecard | None:
    """Returns the scorecard up to this night, which may or may not be in the ledger yet."""
    return scorecard(outcomes(entry, history))


def outcomes(entry: Entry, history: Sequence[Entry]) -> list[PredictionOutcome]:
    """Returns the outcomes of the plans of this night and all before it, oldest first, without rollbacks."""
    at = entry.night.started_at
    earlier = [e for e in history if e.night.id != entry.night.id and e.night.started_at <= at]
    nights = [e for e in (entry, *earlier) if not e.rollback]
    compared = [
        outcome(e.night.id, e.plan, e.training)
        for e in sorted(nights, key=lambda e: e.night.started_at)
        if e.plan and e.training
    ]
    return [each for each in compared if each]


def picture(entry: Entry, history: Sequence[Entry]) -> str | None:
    """Draws actual / predicted of each night with its interval; None for fewer than two nights."""
    plans = card(entry, history)
    return _picture(plans) if plans and plans.num_nights > 1 else None


@styled
def _picture(plans: Scorecard) -> str:
    figure, axes = canvas(height=1.5, left=0.07, right=0.985, bottom=0.12)
    axes.axhline(1, color=INK, lw=1, ls=(0, (2, 2)))
    for x, night in enumerate(plans.outcomes):
        low, high, actual = (s / night.predicted_s for s in (night.low_s, night.high_s, night.actual_s))
        axes.plot([x, x], [low, high], color=RULE, lw=2.2, zorder=1)
        axes.plot([x], [actual], "o", ms=4.5, color=MUTED if night.held else ACCENT, zorder=2)
    axes.set_yscale("log")
    times = [(s, n.predicted_s) for n in plans.outcomes for s in (n.low_s, n.high_s, n.actual_s)]
    reach = max(abs(math.log(seconds / predicted_s)) for seconds, predicted_s in times)
    reach = min(max(reach, math.log(1.1)), math.log(10)) * 1.1
    axes.set_ylim(math.exp(-reach), math.exp(reach))
    axes.set_yticks([math.exp(-reach / 1.1), 1, math.exp(reach / 1.1)])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: formats.quantity(round(value, 2)))
    axes.set_xticks([])
    axes.tick_params(axis="y", labelcolor=MUTED, labelsize=9, length=0)
    axes.spines[:].set_visible(False)
    label = (
        f"Actual over predicted time of {plans.num_nights} nights (those that moved to other machines: "
        f"at their rate before): {formats.percent(plans.coverage)} inside"
    )
    return inline(figure, name="predicted", label=label)
