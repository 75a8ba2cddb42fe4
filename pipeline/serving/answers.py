"""What does a version answer to a user? Its model over the arrays of a night, and the answers given before.

An answer depends on nothing but model and arrays (pipeline/contract/workload.py), so it is kept until either
changes: a user who comes back costs a look into a dict. Kept are the answers of the users that came last.
"""

import contextlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """Items for a user, best first."""

    items: tuple[str, ...]
    text: str  # the same as JSON
    fallback: bool  # the popular ones: the user is not known


def answer_of(items: Sequence[str], *, fallback: bool) -> Answer:
    """The answer with these items."""
    return Answer(tuple(items), json.dumps(list(items)), fallback)


class Answers:
    """A loaded version; threads may share it."""

    def __init__(
        self, version: int, *, night: str, workload: Any, model: Any, samples: Any, top: int, keep: int
    ) -> None:
        self.version, self.night = version, night  # whose arrays it answers from
        self._workload, self._model, self._samples = workload, model, samples
        self._top, self._keep = top, keep
        self._kept: OrderedDict[str, Answer] = OrderedDict()  # the newest last
        self.popular = answer_of(workload.popular(samples, top), fallback=True)

    def kept(self, user: str) -> Answer | None:
        """The answer, if it was given before."""
        found = self._kept.get(user)
        if found is not None:
            with contextlib.suppress(KeyError):  # another thread may have dropped it
                self._kept.move_to_end(user)
        return found

    def of(self, users: Sequence[str]) -> list[Answer]:
        """The answers to these users, made by the model now, with as many items as may be asked for."""
        found = self._workload.recommend(self._model, self._samples, users, self._top)
        answers = [answer_of(items, fallback=False) if items else self.popular for items in found]
        for user, answer in zip(users, answers, strict=True):
            self._kept[user] = answer
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)
        return answers

    def likely(self, num: int) -> list[str]:
        """Users that will come first, as the workload knows them; none where it does not say."""
        likely = getattr(self._workload, "likely", None)
        return list(likely(self._samples, num)) if likely else []

    def newest_users(self, num: int) -> list[str]:
        """The users that came last, the last one first."""
        return list(islice(reversed(list(self._kept)), num))
