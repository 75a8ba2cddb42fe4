"""Scores exposures by their outcomes: lists by the items taken, predictions by labels.

A list is scored by its NDCG@20. Clients may post what was taken alone: so a visit without an outcome has
taken nothing and scores 0, as has a user without any, and a challenger cannot win because fewer of its visits
end in a take.

Predictions of rows are scored by the workload's first metric of single samples: each user meets one model
only, so that a metric of a set, such as the area under a curve, would compare rows of different users
(`LiveMetric` in daybreak/contract/record_parts.py). The score of a user is the mean over all rows with a
label, negated where lower is better. A row without a label is left out, and so is a user without any label; a
guardrail checks that both arms miss the same share of labels.

Where a team serves by itself, a user's score is the mean of the metric that it reports.

Reported outcomes may hold anything, and one label of 1e200 would drown all others. So values are clipped, at
bounds that are fixed before the test: one width beyond either end of the range that the champion's values had
on held-out samples, or that params.yaml has for a team's metric. Bets need a score in [0, 1]
(daybreak/statistics/e_process.py), so for them values are clipped at the range itself. Pure.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.formats import decimals
from daybreak.statistics.ranking import TOP, ndcg

Floats = NDArray[np.float64]
LEAST_MARGIN = 1e-9
METRIC = '{"metric"'  # begins the value of a team's metric in the log; no item that a client tells may


class ShownExposure(Protocol):
    """An exposure with its outcome, as the traffic log has both (daybreak/storage/exposures.py)."""

    @property
    def time(self) -> float:
        """Seconds since 1970."""

    @property
    def unit(self) -> str:
        """The user, as the log knows them."""

    @property
    def arm(self) -> str:
        """Who answered: champion or challenger."""

    @property
    def share(self) -> float:
        """The challenger's share of the traffic when the arm was drawn."""

    @property
    def items(self) -> Sequence[str]:
        """What was shown, best first."""

    @property
    def predicted(self) -> str | None:
        """What was predicted of rows, as JSON: a list by the name of the prediction."""

    @property
    def latency_s(self) -> float:
        """Time that the answer took, in seconds."""

    @property
    def error(self) -> str:
        """Why the model did not answer; "" where it did."""

    @property
    def fallback(self) -> bool:
        """Whether popular items were shown in place of the model's."""

    @property
    def attributes(self) -> Sequence[tuple[str, str]]:
        """What the client said of the user, such as the device, by name."""

    @property
    def taken(self) -> Sequence[str] | None:
        """What the user took, or the labels of the rows as JSON; None without an outcome."""

    @property
    def taken_at(self) -> float | None:
        """When the outcome came, in seconds since 1970."""


class LiveScore(Protocol):
    """How a user's exposures are scored; higher is better."""

    @property
    def of_lists(self) -> bool:
        """Whether lists are shown, rather than predictions of rows."""

    @property
    def has_label(self) -> bool:
        """Whether a score needs an outcome."""

    @property
    def windows(self) -> int:
        """Windows for outcomes after a user's first exposure by which the score is settled."""

    def of(self, exposures: Sequence[ShownExposure], *, window_s: float) -> float | None:
        """Returns the score of a user's exposures, oldest first, by their outcomes; None without any.

        Args:
            exposures: within a window after the first.
            window_s: seconds in which outcomes count.
        """

    def answered(self, exposures: Sequence[ShownExposure], *, window_s: float) -> float:
        """Returns the share of exposures with an outcome, 0 of none; 1 where a score leaves out others."""

    def losses(self, scores: Floats) -> Floats:
        """Returns users' scores as losses in [0, 1], shape [n]."""

    def margin(self, margin: float) -> float:
        """Returns a margin of scores as one of losses, between 0 and 1."""

    def in_words(self, ours: float, theirs: float) -> str:
        """Says what the mean scores of challenger and champion are."""


class ListScore:
    """Scores lists by their NDCG@20.

    An outcome counts within a window after its own exposure, so that no visit has less time than another: a
    user's last ones are settled two windows after the first.
    """

    of_lists = True
    has_label = True
    windows = 2

    def of(self, exposures: Sequence[ShownExposure], *, window_s: float) -> float | None:
        """Returns the mean over the exposures, of which those without an outcome score 0."""
        reported = _reported(exposures, window_s)
        if not reported:
            return None
        return sum(list_score(shown.items, shown.taken or ()) for shown in reported) / len(exposures)

    def answered(self, exposures: Sequence[ShownExposure], *, window_s: float) -> float:
        """Returns the share of the exposures with an outcome."""
        return len(_reported(exposures, window_s)) / len(exposures) if exposures else 0.0

    def losses(self, scores: Floats) -> Floats:
        """Returns 1 - score."""
        return 1 - scores

    def margin(self, margin: float) -> float:
        """Returns the margin."""
        return margin

    def in_words(self, ours: float, theirs: float) -> str:
        """Says both means."""
        return _with(*decimals(ours, theirs))


def _with(ours: str, theirs: str) -> str:
    return f"{ours} with the challenger and {theirs} with the champion"


def _reported(exposures: Sequence[ShownExposure], window_s: float) -> list[ShownExposure]:
    """Returns the exposures whose outcome was told within so many seconds."""
    return [
        one for one in exposures if one.taken is not None and (one.taken_at or 0.0) <= one.time + window_s
    ]


def list_score(items: Sequence[str], taken: Sequence[str]) -> float:
    """Returns the NDCG@20 of a list that was shown against what was taken; 0 where nothing was."""
    wanted = set(taken)
    return ndcg([item in wanted for item in dict.fromkeys(items[:TOP])], num_relevant=len(wanted))


LISTS = ListScore()


@dataclass(frozen=True, kw_only=True)
class RowScore:
    """Scores predictions of rows by a metric (daybreak/workloads/metrics.py).

    Args:
        metric: whose values are of single samples.
        has_label: whether rows have a label; else the metric is of the prediction alone.
        classes: names of the labels 0, 1, ..., by which labels may come.
        low: of the range that the champion's held-out values are in.
        high: its end; the same where these values were all alike.
    """

    metric: Any
    has_label: bool
    low: float
    high: float
    classes: tuple[str, ...] = ()
    of_lists = False
    windows = 1

    def of(self, exposures: Sequence[ShownExposure], *, window_s: float) -> float | None:
        """Returns the mean over the rows that have a label within a window after the first exposure."""
        until = exposures[0].time + window_s
        values = np.concatenate([np.zeros(0), *(self._values(shown, until) for shown in exposures)])
        return self._sign * float(values.mean()) if values.size else None

    def answered(self, exposures: Sequence[ShownExposure], *, window_s: float) -> float:
        """Returns 1."""
        return 1.0

    def losses(self, scores: Floats) -> Floats:
        """Returns where scores are in the range, from its better end to its worse."""
        better = self.low if self._sign < 0 else -self.high
        return np.clip((-scores - better) / self._width, 0.0, 1.0)

    def margin(self, margin: float) -> float:
        """Returns the margin as a share of the range."""
        return min(max(margin, LEAST_MARGIN) / self._width, 1 - LEAST_MARGIN)

    def in_words(self, ours: float, theirs: float) -> str:
        """Says both means, in the metric's own unit."""
        return f"{self.metric.name} {_with(*decimals(self._sign * ours, self._sign * theirs))}"

    @property
    def _sign(self) -> int:
        return 1 if self.metric.higher_is_better else -1

    @property
    def _width(self) -> float:
        return max(self.high - self.low, LEAST_MARGIN)

    def _clipped(self, values: Floats) -> Floats:
        """Returns the values that are numbers, clipped at the range's width beyond either of its ends."""
        beyond = self.high - self.low or max(abs(self.low), 1.0)
        return np.clip(values[~np.isnan(values)], self.low - beyond, self.high + beyond)

    def labelled(
        self, exposures: Sequence[ShownExposure], *, window_s: float, delay_s: float = 0.0
    ) -> float | None:
        """Returns the share of the rows that have a label by then; None where nothing was predicted.

        Rows whose label cannot be told by then, as labels take `delay_s`, are left out: else more late visits
        would look like fewer labels.
        """
        until, num_rows, num_labelled = exposures[0].time + window_s, 0, 0
        for shown in exposures:
            if shown.time <= until - delay_s and (predicted := self._predicted(shown)):
                labels = self._labels(shown, until)
                num_rows += len(predicted)
                num_labelled += int((~np.isnan(labels)).sum()) if len(labels) == len(predicted) else 0
        return num_labelled / num_rows if num_rows else None

    def _predicted(self, shown: ShownExposure) -> Any:
        return json.loads(shown.predicted).get(self.metric.prediction) if shown.predicted else None

    def _labels(self, shown: ShownExposure, until: float) -> Floats:
        """Returns the labels told by then, NaN for one that is none; empty where none was told."""
        texts = shown.taken if shown.taken is not None and (shown.taken_at or 0.0) <= until else ()
        return np.array([self._label(text) for text in texts], dtype=np.float64)

    def _values(self, shown: ShownExposure, until: float) -> Floats:
        """Returns the metric's values of the rows of an exposure whose label is known by then, clipped."""
        nothing = np.zeros(0)
        predicted = self._predicted(shown)
        if predicted is None:
            return nothing
        labels = self._labels(shown, until) if self.has_label else np.zeros(len(predicted))
        if len(labels) != len(predicted):  # no labels, or labels that cannot be matched to predictions
            return nothing
        known = ~np.isnan(labels)
        with np.errstate(over="ignore", invalid="ignore"):  # of labels that are too large to be squared
            values = self.metric.sample_values(np.array(predicted)[known], labels[known])
        return self._clipped(np.asarray(values, dtype=np.float64))

    def _label(self, text: str) -> float:
        """Returns a label, kept as JSON, as a number; NaN where it is none, or not of a class."""
        try:
            value = json.loads(text)
        except ValueError:
            return np.nan
        if value in self.classes:
            return float(self.classes.index(value))
        is_number = isinstance(value, int | float) and (not self.classes or value in range(len(self.classes)))
        try:
            return float(value) if is_number else np.nan
        except OverflowError:  # a whole number of hundreds of digits
            return np.nan


@dataclass(frozen=True, kw_only=True)
class OwnScore(RowScore):
    """Scores users by the values of the metric that a team reports (own_serving.py).

    A value counts whenever it was reported, as the team's exports may be hours late.
    """

    has_label: bool = True

    def _values(self, shown: ShownExposure, until: float) -> Floats:
        values = [value for text in shown.taken or () if (value := reported(text)) is not None]
        return self._clipped(np.array(values, dtype=np.float64))


def report(value: float) -> tuple[str]:
    """Returns the value of a team's metric as the log keeps it, unlike any item or label."""
    return (f"{METRIC}: {value!r}}}",)


def reported(text: str) -> float | None:
    """Returns the value of a team's metric; None where it is of something else, or not a finite number.

    >>> reported(*report(0.5)), reported("22423")
    (0.5, None)
    """
    try:
        value = json.loads(text)["metric"] if text.startswith(METRIC) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)
    except (ValueError, OverflowError):
        return None
