"""Batches the users who wait for a model: requests that arrive while it computes are answered together next.

Requests that arrive while a version computes become the next batch, so batches grow with the load and no
request waits for a batch to fill. Each version has a thread that waits for the version's process, so a slow
version does not hold up users of another. The event loop never computes.
"""

import asyncio
import logging

from daybreak.extensions.router.answers import Answer, Answers
from daybreak.registry.host import NoAnswer

log = logging.getLogger(__name__)

MAX_BATCH = 32  # users at once; a larger batch is no faster per user, and delays the first ones
Request = tuple[str, "asyncio.Future[Answer]"]
Result = tuple["asyncio.Future[Answer]", Answer | NoAnswer]


class Batcher:
    """Takes requests from the event loop that it is created in, and has versions answer them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Answers, list[Request]] = {}  # for each version that computes, who comes next

    def ask(self, answers: Answers, user: str) -> "asyncio.Future[Answer]":
        """Returns a future of the version's answer to the user, or of NoAnswer.

        The answer is not computed if the future is cancelled first.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if answers in self._waiting:
            self._waiting[answers].append((user, future))
        else:
            self._waiting[answers] = []
            answers.process.thread.submit(self._compute, answers, [(user, future)])
        return future

    def _compute(self, answers: Answers, batch: list[Request]) -> None:
        results = _answered(answers, batch)
        self._loop.call_soon_threadsafe(self._hand_over, answers, results)

    def _hand_over(self, answers: Answers, results: list[Result]) -> None:
        for future, answer in results:
            if future.done():
                continue  # the client has gone
            if isinstance(answer, NoAnswer):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        waiting = [request for request in self._waiting[answers] if not request[1].done()]
        batch, self._waiting[answers] = waiting[:MAX_BATCH], waiting[MAX_BATCH:]
        if batch:
            answers.process.thread.submit(self._compute, answers, batch)
        else:
            del self._waiting[answers]


def _answered(answers: Answers, requests: list[Request]) -> list[Result]:
    users = list(dict.fromkeys(user for user, _ in requests))
    try:
        by_user = dict(zip(users, answers.of(users), strict=True))
    except NoAnswer as error:
        log.warning("version %d does not answer %d users: %s", answers.version, len(users), error)
        return [(future, NoAnswer(str(error))) for _, future in requests]
    return [(future, by_user[user]) for user, future in requests]
