"""Answers with one version: a user, by its model over the arrays of a night, or rows, by the model alone.

An answer to a user depends on nothing but model and arrays (pipeline/contract/workload.py), so it is kept
until either changes: a returning user costs one look into a dict. The answers of the most recent users are
kept. What a model predicts of rows is not kept.
"""

import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pipeline.evaluation.scoring import declared
from pipeline.workloads.served_rows import ServedRows

log = logging.getLogger(__name__)

MAX_KEPT = 100_000  # characters of an answer's predictions that the log keeps


@dataclass(frozen=True, slots=True)
class Answer:
    """Items for a user, best first."""

    items: tuple[str, ...]
    text: str  # the same as JSON
    fallback: bool  # these are the popular items, since the user is not known


def answer_of(items: Sequence[str], *, fallback: bool) -> Answer:
    """Returns the answer with these items."""
    return Answer(tuple(items), json.dumps(list(items)), fallback)


class Answers:
    """A loaded version and its cache of answers; threads may share it."""

    def __init__(
        self, version: int, *, night: str, workload: Any, model: Any, samples: Any, top: int, keep: int
    ) -> None:
        self.version, self.night = version, night  # the night whose arrays it answers from
        self._workload, self._model, self._samples = workload, model, samples
        self._top, self._keep = top, keep
        self._cache: OrderedDict[str, Answer] = OrderedDict()  # oldest first
        self.popular = answer_of(workload.popular(samples, top), fallback=True)

    def cached(self, user: str) -> Answer | None:
        """Returns the cached answer for the user; None if there is none."""
        answer = self._cache.get(user)
        if answer is not None:
            with contextlib.suppress(KeyError):  # another thread may have dropped it
                self._cache.move_to_end(user)
        return answer

    def of(self, users: Sequence[str]) -> list[Answer]:
        """Returns the answers to these users, computed by the model now, with as many items as allowed."""
        lists = self._workload.recommend(self._model, self._samples, users, self._top)
        answers = [answer_of(items, fallback=False) if items else self.popular for items in lists]
        for user, answer in zip(users, answers, strict=True):
            self._cache[user] = answer
        while len(self._cache) > self._keep:
            self._cache.popitem(last=False)
        return answers

    def likely(self, num: int) -> list[str]:
        """Returns the users who are likely to come first; none if the workload does not say."""
        likely = getattr(self._workload, "likely", None)
        return list(likely(self._samples, num)) if likely else []

    def newest_users(self, num: int) -> list[str]:
        """Returns the most recent users, newest first."""
        return list(islice(reversed(list(self._cache)), num))


class Predictor:
    """A loaded version that predicts rows; threads may share it."""

    night = ""  # of no night but its own: it has all that it needs

    def __init__(self, version: int, served: ServedRows) -> None:
        self.version = version
        self._served = served
        self._judged = {metric.prediction for metric in declared(served.workload)}
        self.unit: str = served.workload.table.unit  # column of it; "": each request is a unit

    def warm(self, example: Sequence[Any]) -> None:
        """Predicts rows that the version carries, together and alone, so that no user is the first."""
        try:
            for rows in (example, example[:1]):
                if rows:
                    self.of(rows)
        except Exception:  # it was tried before it was released; users are answered, if later
            log.exception("version %d does not predict its own example", self.version)

    def of(self, rows: Sequence[Any]) -> tuple[str, str | None]:
        """Returns what the model predicts of the rows as JSON, and what of it the log is to keep.

        The first is an object for each row. The second is a list for each prediction that a metric is of;
        None where there is none, or MAX_KEPT is passed. Raises DataError where they are not rows of the
        table, ValueError where a prediction is not finite.
        """
        columns = {name: values.tolist() for name, values in self._served.predict(rows).items()}
        answers = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        text = json.dumps(answers, allow_nan=False)
        kept = json.dumps({name: values for name, values in columns.items() if name in self._judged})
        return text, kept if self._judged and len(kept) <= MAX_KEPT else None
