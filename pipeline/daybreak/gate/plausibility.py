"""Decides whether tonight's evaluation is plausible, before any model is judged by it.

Wrong labels or a broken day make both models look equally bad, so that a comparison shows nothing. But the
champion, its anchor (daybreak/gate/chain.py) and the baselines have scores from earlier nights: tonight's
scores must be within the bands that these predict (daybreak/statistics/control_chart.py). All bands together
may fail on `gate.false_alarms_per_year` sound nights a year. Nights that share a held-out day with a later
one are left out, as they would hardly differ. The names of the failing models show where to
look. Implausible nights count among the earlier ones once there are three in a row, so that a lasting change
of the data is then taken for normal. Pure.
"""

from collections.abc import Iterator, Sequence
from datetime import date
from itertools import takewhile
from math import sqrt

import numpy as np

from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Evaluation
from daybreak.evaluation.scores import Columns, with_prefix
from daybreak.statistics.control_chart import RECENT, ControlBand, Mean, expected
from daybreak.storage.ledger import Entry

NAME = "plausible"
NIGHTS = RECENT  # that tonight is held against; how skewed nights are is known of a year
LEAST_NIGHTS = 7
NIGHTS_PER_YEAR = 365


def plausible(
    scores: Columns,
    evaluation: Evaluation,
    past: Sequence[Entry],
    *,
    false_alarms_per_year: float,
    anchor: int | None = None,
) -> Check | None:
    """Returns a check that fails where tonight's scores are unlike those of the last nights.

    Returns None where there are fewer than `LEAST_NIGHTS` to compare with.

    Args:
        scores: the columns of tonight's scores.npy.
        evaluation: tonight's.
        past: entries of the ledger of a year, newest first.
        false_alarms_per_year: sound nights a year that may fail; 0: nothing is checked.
        anchor: version whose scores are the column `anchor`; other nights may have had another.
    """
    nights = list(_comparable(past, evaluation))
    tonight: Columns = {name: scores[name] for name in ("champion", "anchor") if name in scores}
    tonight |= with_prefix(scores, "baseline")
    tonight = {name: values for name, values in tonight.items() if np.isfinite(values).all()}
    same = [one for one in nights if (chain := one[0].chain) and chain.anchor == anchor]
    series = {
        name: _series(name, same if name == "anchor" else nights, float(np.std(values)))
        for name, values in tonight.items()
    }
    series = {name: past_means for name, past_means in series.items() if len(past_means) >= LEAST_NIGHTS}
    if not series or not false_alarms_per_year:
        return None
    alpha = false_alarms_per_year / NIGHTS_PER_YEAR / len(series)
    bands = {
        name: expected(past_means, error=_standard_error(tonight[name]), alpha=alpha)
        for name, past_means in series.items()
    }
    means = {name: float(np.mean(tonight[name])) for name in bands}
    outside = [name for name, band in bands.items() if means[name] not in band]
    compared = "; ".join(_comparison(name, means[name], bands[name]) for name in outside or list(bands)[:1])
    return Check(name=NAME, ok=not outside, text=f"{compared}{_suspects(outside, list(bands))}")


def _comparable(past: Sequence[Entry], evaluation: Evaluation) -> Iterator[tuple[Entry, float]]:
    """Yields nights since the last rollback of the same metric, on days of their own, newest days first.

    Beside each is by how much the champion was proven better since: had tonight's served, it would have
    scored so much better.
    """
    raised, judged = 0.0, list[tuple[Entry, float, Evaluation]]()
    for entry in takewhile(lambda entry: not entry.rollback, past):
        if (own := entry.evaluation) and _metric(own) == _metric(evaluation):
            effect = entry.verdict.effect if entry.verdict else None
            if entry.release and effect and effect.is_proven:
                raised += effect.mean
            judged.append((entry, raised, own))
    # By their days, as a night for an older day than those before it would hide all of these.
    judged.sort(key=lambda one: max(one[2].days, default=date.max), reverse=True)
    oldest = min(evaluation.days, default=date.max)
    for entry, raised, own in judged:
        if max(own.days, default=date.min) < oldest:
            oldest = min(own.days, default=oldest)
            yield entry, raised


def _metric(evaluation: Evaluation) -> str:
    return evaluation.judged[0].name if evaluation.judged else ""


def _series(name: str, nights: Sequence[tuple[Entry, float]], deviation: float) -> list[Mean]:
    """Returns the means of earlier nights; those of the champion as if tonight's had served."""
    key = f"{name}_score" if name in ("champion", "anchor") else f"baseline/{name}"
    means = []
    for entry, raised in nights:
        assert entry.evaluation
        if key in entry.evaluation.metrics and entry.evaluation.num_samples:
            value = entry.evaluation.metrics[key] + (raised if name == "champion" else 0.0)
            means.append(Mean(value=value, error=deviation / sqrt(entry.evaluation.num_samples)))
    return means


def _standard_error(values: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> float:
    return float(np.std(values)) / sqrt(len(values))


def _comparison(name: str, value: float, band: ControlBand) -> str:
    who = f"the {name}" if name in ("champion", "anchor") else f"the baseline {name}"
    return (
        f"{who} scores {value:.4g}, where {band.num_nights} nights lead one to expect {band.low:.4g} to "
        f"{band.high:.4g}"
    )


def _suspects(outside: Sequence[str], all_names: Sequence[str]) -> str:
    """Returns where to look, by which of the scores are unlike those of before."""
    if not outside:
        return ""
    if outside == ["champion"]:
        alone = "; the others score as before" if len(all_names) > 1 else ""
        return f"{alone}; look at the champion's code, its features and its state, and at the day's labels"
    if "champion" in outside:
        return "; look at the day's rows and labels: champion and baselines depend on both"
    return "; look at the day's rows, on which the baseline depends"
