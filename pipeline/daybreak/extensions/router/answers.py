"""Answers with one version: a user, by its model over the arrays of a night, or rows, by the model alone.

An answer to a user depends on nothing but model and arrays (daybreak/contract/workload.py), so it is kept
until either changes: a returning user costs one look into a dict. The answers of the most recent users are
kept, predictions for rows are not: MAX_WAITING_BYTES of rows wait, each for as long as its client does, as
text, since the objects of a megabyte of JSON may take 24. The version runs in a separate process
(daybreak/serving/version_process.py), and its replies are checked, since their form is not trusted.
"""

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from json.encoder import encode_basestring_ascii
from typing import Any

from daybreak.contract.errors import DataError
from daybreak.contract.workload import MAX_NAME
from daybreak.registry.host import MAX_BYTES, NoAnswer
from daybreak.serving.version_process import VersionProcess

log = logging.getLogger(__name__)

MAX_KEPT = 100_000  # characters of an answer's predictions that the log keeps
MAX_WAITING_BYTES = 64_000_000  # of rows, as JSON, that wait for a version
KEPT_PER_ITEM = 64  # characters of the answers that are kept: of longer items, fewer users' answers are
BYTES_PER_ITEM = 12 * MAX_NAME + 4  # of a reply: as JSON, a character may take 12
MAX_JUDGED = 1_000  # predictions that metrics judge
AT_ONCE = 2  # requests in the version's thread: one that computes, and the next one

Predictions = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """Items for a user, best first."""

    items: tuple[str, ...]
    text: str  # the same as JSON
    fallback: bool  # these are the popular items, since the user is not known


def list_of(texts: Sequence[str]) -> str:
    r"""Returns texts as a list in JSON, as json.dumps does, in less than half of its time.

    >>> list_of(("1", "Tür"))
    '["1", "T\\u00fcr"]'
    """
    return f"[{', '.join(map(encode_basestring_ascii, texts))}]"


def answer_of(items: Sequence[str], *, fallback: bool) -> Answer:
    """Returns the answer with these items."""
    return Answer(tuple(items), list_of(items), fallback)


class Answers:
    """A loaded version and its cache of answers; threads may share it."""

    def __init__(
        self,
        version: int,
        *,
        night: str,
        process: VersionProcess,
        popular: Sequence[str],
        top: int,
        keep: int,
    ) -> None:
        self.version, self.night = version, night  # the night whose arrays it answers from
        self.process = process
        self._top, self._keep = top, keep
        self._cache: OrderedDict[str, Answer] = OrderedDict()  # oldest first
        self._num_kept = 0  # characters of them
        self.popular = answer_of(popular, fallback=True)

    def cached(self, user: str) -> Answer | None:
        """Returns the cached answer for the user; None if there is none."""
        answer = self._cache.get(user)
        if answer is not None:
            with contextlib.suppress(KeyError):  # another thread may have dropped it
                self._cache.move_to_end(user)
        return answer

    def of(self, users: Sequence[str]) -> list[Answer | NoAnswer]:
        """Returns the answers to these users, computed by the model now, with as many items as allowed.

        For a user whose list has more or longer items it is a NoAnswer, which is raised where the version
        answers none of them.
        """
        most = bytes_of(len(users) * self._top)
        lists = self.process.ask("recommend", most=most, users=list(users), top=self._top).get("items")
        if not isinstance(lists, list) or len(lists) != len(users):
            raise NoAnswer(f"it has no list of items for each of {len(users)} users")
        answers = [self._answer(items) for items in lists]
        for user, answer in zip(users, answers, strict=True):
            if isinstance(answer, Answer):
                self._num_kept += _kept(answer) - _kept(self._cache.get(user))
                self._cache[user] = answer
        while len(self._cache) > self._keep or self._num_kept > self._keep * self._top * KEPT_PER_ITEM:
            _, dropped = self._cache.popitem(last=False)
            self._num_kept -= _kept(dropped)
        return answers

    def _answer(self, items: Any) -> Answer | NoAnswer:
        try:
            return answer_of(texts(items, most=self._top), fallback=False) if items else self.popular
        except NoAnswer as error:
            return error

    def likely(self, num: int) -> list[str]:
        """Returns the users who are likely to come first; none if the workload does not say."""
        try:
            return texts(self.process.ask("likely", most=bytes_of(num), num=num).get("users"), most=num)
        except NoAnswer as error:
            log.warning("version %d does not say who is likely to come first: %s", self.version, error)
            return []

    def newest_users(self, num: int) -> list[str]:
        """Returns the most recent users, newest first."""
        return list(islice(reversed(list(self._cache)), num))


def _kept(answer: Answer | None) -> int:
    """Returns the characters that keeping an answer takes; the popular items are kept once for all users."""
    return 0 if answer is None or answer.fallback else len(answer.text)


def bytes_of(num: int) -> int:
    """Returns how many bytes a reply of so many texts may have."""
    return min(MAX_BYTES, 10_000 + num * BYTES_PER_ITEM)


def texts(values: Any, *, most: int) -> list[str]:
    """Returns a list of at most so many texts as it is; NoAnswer where it is none, or has a long one."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise NoAnswer(f"it has {values!r:.50} where a list of texts is due")
    if len(values) > most:
        raise NoAnswer(f"it has a list of {len(values):,} texts, at most {most:,} are due")
    if (longest := max(map(len, values), default=0)) > MAX_NAME:
        raise NoAnswer(f"it has a text of {longest:,} characters, at most {MAX_NAME} are taken")
    return values


class Busy(NoAnswer):
    """As many rows as may wait for the version already do; it was not asked."""


class Predictor:
    """A loaded version that predicts rows; threads may share it."""

    night = ""  # needs no night's arrays

    def __init__(self, version: int, *, process: VersionProcess) -> None:
        self.version, self.process = version, process
        self._judged = frozenset(texts(process.about.get("judged"), most=MAX_JUDGED))
        self.unit = str(process.about.get("unit"))  # column of the table; "": each request is a unit
        self.zone = str(process.about.get("zone"))  # in which a day begins
        self._turns, self._num_bytes_waiting = asyncio.Semaphore(AT_ONCE), 0

    async def in_turn(self, rows: str) -> Predictions:
        """Returns the predictions for rows, a list as JSON, from an event loop; Busy if too many wait.

        Rows wait here and not in the queue of the version's thread, which keeps them after a timeout. As
        `of` otherwise.
        """
        if self._turns.locked():
            await self._wait(len(rows))
        else:
            await self._turns.acquire()
        computed = asyncio.get_running_loop().run_in_executor(self.process.thread, self._of_text, rows)
        computed.add_done_callback(self._end_turn)
        return await asyncio.shield(computed)  # the turn goes on until the thread is free

    async def _wait(self, num_bytes: int) -> None:
        if self._num_bytes_waiting + num_bytes > MAX_WAITING_BYTES:
            raise Busy(f"{self._num_bytes_waiting / 1e6:.0f} MB of rows wait for it")
        self._num_bytes_waiting += num_bytes
        try:
            await self._turns.acquire()
        finally:
            self._num_bytes_waiting -= num_bytes

    def _end_turn(self, computed: "asyncio.Future[Predictions]") -> None:
        if not computed.cancelled():
            computed.exception()  # is read, where nobody waits for it any more
        self._turns.release()

    def _of_text(self, rows: str) -> Predictions:
        return self.of(json.loads(rows))

    def of(self, rows: Sequence[Any]) -> Predictions:
        """Returns the predictions for the rows as JSON, and the part of them to log.

        The first is an object for each row. The second is a list for each prediction that a metric judges;
        None where there is none, or MAX_KEPT is passed. Raises DataError where the rows are not rows of the
        table, NoAnswer where the version gives no answer, or a prediction is not finite.
        """
        try:
            columns = self.process.ask("predict", rows=list(rows)).get("columns")
        except NoAnswer as error:
            if error.is_sentence:
                raise DataError(error.message) from None
            raise
        if not isinstance(columns, dict) or not all(
            isinstance(values, list) and len(values) == len(rows) for values in columns.values()
        ):
            raise NoAnswer(f"it has no prediction for each of {len(rows)} rows")
        answers = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        try:
            text = json.dumps(answers, allow_nan=False)
        except ValueError as error:
            raise NoAnswer(str(error), kind="ValueError") from None
        kept = json.dumps({name: values for name, values in columns.items() if name in self._judged})
        return text, kept if self._judged and len(kept) <= MAX_KEPT else None
