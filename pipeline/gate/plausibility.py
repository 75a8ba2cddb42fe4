"""Decides whether tonight's evaluation is plausible, before any model is judged by it.

Wrong labels or a broken day make both models look bad alike, so that comparing them says nothing. But the
champion and the baselines have scores of earlier nights: tonight's must be within what those lead one to
expect (pipeline/statistics/control_chart.py), of all of them together but for `gate.false_alarms` nights a
year. Which of them are off says where to look. A night that was not believed counts among the earlier ones,
so that a lasting change of the data is taken for normal after three nights. Pure.
"""

from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np

from pipeline.contract.records import Check, Evaluation
from pipeline.evaluation.scores import Columns, with_prefix
from pipeline.statistics.control_chart import Band, Mean, expected
from pipeline.storage.ledger import Entry

NAME = "plausible"
NIGHTS = 28  # that are looked back on
LEAST_NIGHTS = 7
A_YEAR = 365


def plausible(
    scores: Columns, evaluation: Evaluation, past: Sequence[Entry], *, false_alarms: float
) -> Check | None:
    """Returns a check that fails where tonight's scores are unlike those of the last nights.

    Returns None where there are fewer than `LEAST_NIGHTS` to compare with.

    Args:
        scores: the columns of tonight's scores.npy.
        evaluation: tonight's.
        past: entries of the ledger, newest first.
        false_alarms: sound nights a year that may fail; 0: nothing is checked.
    """
    nights = list(_comparable(past, evaluation))[:NIGHTS]
    tonight = {"champion": scores["champion"]} if "champion" in scores else {}
    tonight |= with_prefix(scores, "baseline")
    tonight = {name: values for name, values in tonight.items() if np.isfinite(values).all()}
    series = {name: _series(name, nights, float(np.std(values))) for name, values in tonight.items()}
    series = {name: means for name, means in series.items() if len(means) >= LEAST_NIGHTS}
    if not series or not false_alarms:
        return None
    alpha = false_alarms / A_YEAR / len(series)
    bands = {
        name: expected(means, error=_error(tonight[name]), alpha=alpha) for name, means in series.items()
    }
    off = [name for name, band in bands.items() if float(np.mean(tonight[name])) not in band]
    shown = off or list(bands)[:1]
    told = "; ".join(_told(name, float(np.mean(tonight[name])), bands[name]) for name in shown)
    return Check(name=NAME, ok=not off, text=f"{told}{_suspects(off, list(bands))}")


def _comparable(past: Sequence[Entry], evaluation: Evaluation) -> Iterator[Entry]:
    """Yields the nights since the last rollback that were judged by the same metric."""
    for entry in past:
        if entry.rollback:
            return
        if entry.evaluation and _metric(entry.evaluation) == _metric(evaluation):
            yield entry


def _metric(evaluation: Evaluation) -> str:
    return evaluation.judged[0].name if evaluation.judged else ""


def _series(name: str, nights: Sequence[Entry], deviation: float) -> list[Mean]:
    """Returns the means of earlier nights; those of the champion as if tonight's had served.

    A version that was promoted as proven better raises what is expected of the nights after it.
    """
    key, raised, means = "champion_score" if name == "champion" else f"baseline/{name}", 0.0, []
    for entry in nights:
        assert entry.evaluation
        verdict = entry.verdict
        if name == "champion" and entry.release and verdict and verdict.low is not None and verdict.low > 0:
            raised += verdict.effect or 0.0
        if key in entry.evaluation.metrics and entry.evaluation.num_samples:
            value = entry.evaluation.metrics[key] + raised
            means.append(Mean(value=value, error=deviation / sqrt(entry.evaluation.num_samples)))
    return means


def _error(values: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> float:
    return float(np.std(values)) / sqrt(len(values))


def _told(name: str, value: float, band: Band) -> str:
    who = "the champion" if name == "champion" else f"the baseline {name}"
    return (
        f"{who} scores {value:.4g}, where {band.num_nights} nights lead one to expect {band.low:.4g} to "
        f"{band.high:.4g}"
    )


def _suspects(off: Sequence[str], looked_at: Sequence[str]) -> str:
    """Returns where to look, by which of the scores are unlike those of before."""
    if not off:
        return ""
    if off == ["champion"]:
        alone = "; the baselines score as before" if len(looked_at) > 1 else ""
        return f"{alone}; look at the champion's code, its features and its state, and at the day's labels"
    if "champion" in off:
        return "; look at the day's rows and labels, which both depend on"
    return "; look at the day's rows, which the baseline depends on"
