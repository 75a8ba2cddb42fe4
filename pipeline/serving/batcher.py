"""How do many users wait for one model? Who comes while it works is answered together with the next.

One thread computes: what was asked meanwhile becomes one batch, so that batches grow with the load and
nobody waits for one to fill. The event loop never computes.
"""

import asyncio
import contextlib
import logging
import threading
from queue import Empty, SimpleQueue

from pipeline.serving.answers import Answer, Answers

log = logging.getLogger(__name__)

MAX_BATCH = 32  # users at once; more are answered no faster, and the first of them later
Asked = tuple[Answers, str, "asyncio.Future[Answer]"]
Found = tuple["asyncio.Future[Answer]", Answer | str]  # or why there is none


class NoAnswer(Exception):
    """What the model raised, in a line."""


class Desk:
    """Takes questions from the event loop that it is made in, and answers them in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: SimpleQueue[Asked | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="desk", daemon=True)
        self._thread.start()

    def ask(self, answers: Answers, user: str) -> "asyncio.Future[Answer]":
        """The version's answer to the user, or NoAnswer. Cancelled, it is not computed."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._asked.put((answers, user, future))
        return future

    def close(self) -> None:
        """End the thread, after what was asked before."""
        self._asked.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (first := self._asked.get()) is not None:
            batch, ended = [first], False
            with contextlib.suppress(Empty):
                while len(batch) < MAX_BATCH and not ended:
                    more = self._asked.get_nowait()
                    ended = more is None
                    batch += [more] if more else []
            found: list[Found] = []
            waiting = [asked for asked in batch if not asked[2].done()]
            for answers in dict.fromkeys(asked[0] for asked in waiting):
                found += _answered(answers, [asked for asked in waiting if asked[0] is answers])
            self._loop.call_soon_threadsafe(_hand_over, found)
            if ended:
                return


def _answered(answers: Answers, asked: list[Asked]) -> list[Found]:
    users = list(dict.fromkeys(user for _, user, _ in asked))
    try:
        found = dict(zip(users, answers.of(users), strict=True))
    except Exception as error:  # whatever a workload raises is the version's fault, not the router's
        log.exception("version %d does not answer %d users", answers.version, len(users))
        # In ASCII, which any database takes.
        told = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()
        return [(future, told[:200].replace("\0", " ")) for _, _, future in asked]
    return [(future, found[user]) for _, user, future in asked]


def _hand_over(found: list[Found]) -> None:
    for future, answer in found:
        if future.done():
            continue  # nobody waits any longer
        if isinstance(answer, str):
            future.set_exception(NoAnswer(answer))
        else:
            future.set_result(answer)
