"""Batches the users who wait for a model: requests that arrive while it computes are answered together next.

One thread computes: what arrived meanwhile becomes one batch, so batches grow with the load and no request
waits for a batch to fill. The event loop never computes.
"""

import asyncio
import contextlib
import logging
import threading
from queue import Empty, SimpleQueue

from pipeline.serving.answers import Answer, Answers

log = logging.getLogger(__name__)

MAX_BATCH = 32  # users at once; a larger batch is no faster per user, and delays the first ones
Request = tuple[Answers, str, "asyncio.Future[Answer]"]
Result = tuple["asyncio.Future[Answer]", Answer | str]  # or why there is no answer


class NoAnswer(Exception):
    """The model raised an error, given in one line."""


class Batcher:
    """Takes requests from the event loop that it is created in, and answers them in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def ask(self, answers: Answers, user: str) -> "asyncio.Future[Answer]":
        """Returns a future of the version's answer to the user, or of NoAnswer.

        The answer is not computed if the future is cancelled first.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._requests.put((answers, user, future))
        return future

    def close(self) -> None:
        """Answers the requests that wait, then ends the thread."""
        self._requests.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._requests.get()) is not None:
            batch, ended = [first], False
            with contextlib.suppress(Empty):
                while len(batch) < MAX_BATCH and not ended:
                    more = self._requests.get_nowait()
                    ended = more is None
                    batch += [more] if more else []
            results: list[Result] = []
            waiting = [request for request in batch if not request[2].done()]
            for answers in dict.fromkeys(request[0] for request in waiting):
                results += _answered(answers, [request for request in waiting if request[0] is answers])
            self._loop.call_soon_threadsafe(_hand_over, results)
            if ended:
                return


def _answered(answers: Answers, requests: list[Request]) -> list[Result]:
    users = list(dict.fromkeys(user for _, user, _ in requests))
    try:
        by_user = dict(zip(users, answers.of(users), strict=True))
    except Exception as error:  # whatever a workload raises is the version's fault, not the router's
        log.exception("version %d does not answer %d users", answers.version, len(users))
        return [(future, in_a_line(error)) for _, _, future in requests]
    return [(future, by_user[user]) for _, user, future in requests]


def in_a_line(error: Exception) -> str:
    """Returns an error as the log of serving takes it: short, and in ASCII, which any database takes."""
    message = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()
    return message[:200].replace("\0", " ")


def _hand_over(results: list[Result]) -> None:
    for future, answer in results:
        if future.done():
            continue  # the client has gone
        if isinstance(answer, str):
            future.set_exception(NoAnswer(answer))
        else:
            future.set_result(answer)
