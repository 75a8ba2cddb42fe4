"""Asks a challenger in the shadow of the champion: its answers are logged beside those that users are shown.

Before the first user meets a challenger (share 0), a part `live_test.shadow` of the requests is put to it as
well, once the champion has answered. Nobody waits for its answer. As many as MAX_ASKED requests are put to it
at a time; others are dropped, and the log counts them, so that a slow challenger costs its own process
and not the router. The difference of two answers is in [0, 1]:

    lists        the share of the champion's items that the challenger does not show
    predictions  the mean of |a - b| / (|a| + |b|) over all numbers (Canberra); texts are alike or not
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from daybreak.contract.errors import DataError
from daybreak.extensions.router.answers import Answers, Busy, Predictor
from daybreak.extensions.router.batcher import Batcher
from daybreak.extensions.router.model_manager import ServedVersions
from daybreak.extensions.router.writer import NoLog, Writer
from daybreak.registry.host import NoAnswer
from daybreak.storage.exposures import Exposure, Shadow

log = logging.getLogger(__name__)

MAX_ASKED = 16  # at a time


class ShadowRequests:
    """Puts requests to a challenger that nobody is shown the answers of, from the event loop."""

    def __init__(self, share: float, batcher: Batcher, writer: Writer | NoLog, *, timeout_s: float) -> None:
        self._share, self._batcher, self._writer, self._timeout_s = share, batcher, writer, timeout_s
        self._asked: set[asyncio.Task[None]] = set()
        self._draw = random.Random()

    def recommend(self, now: ServedVersions, shown: Exposure, user: str) -> None:
        """Asks the challenger for items for a user, if it is this request's turn."""
        challenger = now.challenger
        if isinstance(challenger, Answers) and self._is_due(now):
            self._ask(shown, challenger, lambda: self._recommended(challenger, shown, user))

    def predict(self, now: ServedVersions, shown: Exposure, rows: str, text: str) -> None:
        """Asks the challenger for predictions of rows, a list as JSON, if it is this request's turn.

        `text` has the champion's as JSON, "" where it gave none.
        """
        challenger = now.challenger
        if isinstance(challenger, Predictor) and self._is_due(now):
            self._ask(shown, challenger, lambda: self._predicted(challenger, shown, rows, text))

    async def close(self) -> None:
        """Waits for no answer any more."""
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    def _is_due(self, now: ServedVersions) -> bool:
        return now.share == 0 and self._draw.random() < self._share

    def _ask(
        self, shown: Exposure, challenger: Answers | Predictor, ask: Callable[[], Awaitable[Shadow]]
    ) -> None:
        shadow = Shadow(exposure=shown.id, version=challenger.version)
        if len(self._asked) >= MAX_ASKED:
            self._writer.shadow(replace(shadow, dropped=True))
            return
        task = asyncio.get_running_loop().create_task(self._record(shadow, ask))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _record(self, shadow: Shadow, ask: Callable[[], Awaitable[Shadow]]) -> None:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                shadow = await ask()
        except TimeoutError:
            shadow = replace(shadow, error=f"no answer within {self._timeout_s:g} s")
        except Busy:
            shadow = replace(shadow, dropped=True)
        except (NoAnswer, DataError) as failed:  # rows that the champion takes are no fault of the client
            shadow = replace(shadow, error=str(failed)[:200])
        self._writer.shadow(replace(shadow, latency_s=time.perf_counter() - began))

    async def _recommended(self, challenger: Answers, shown: Exposure, user: str) -> Shadow:
        answer = challenger.cached(user) or await self._batcher.ask(challenger, user)
        known = shown.items and not shown.fallback and not shown.error and not answer.fallback
        items = set(answer.items[: len(shown.items)])
        return Shadow(
            exposure=shown.id,
            version=challenger.version,
            fallback=answer.fallback,
            difference=1 - len(items & {*shown.items}) / len(shown.items) if known else None,
        )

    async def _predicted(self, challenger: Predictor, shown: Exposure, rows: str, text: str) -> Shadow:
        ours, _ = await challenger.in_turn(rows)
        return Shadow(
            exposure=shown.id,
            version=challenger.version,
            difference=difference(json.loads(ours), json.loads(text)) if text else None,
        )


def difference(ours: Any, theirs: Any) -> float:
    """Returns the mean difference of two predictions as JSON has them, in [0, 1].

    >>> difference([{"chance": 0.75}], [{"chance": 0.25}])
    0.5
    """
    pairs = list(_pairs(ours, theirs))
    return sum(_of_values(*pair) for pair in pairs) / len(pairs) if pairs else 0.0


def _pairs(ours: Any, theirs: Any) -> "list[tuple[Any, Any]]":
    """Returns the values of either that stand at the same place; what has no counterpart meets None."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = {**ours, **theirs}
        return [pair for name in names for pair in _pairs(ours.get(name), theirs.get(name))]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [pair for mine, other in zip(ours, theirs, strict=True) for pair in _pairs(mine, other)]
    return [(ours, theirs)]


def _of_values(ours: Any, theirs: Any) -> float:
    if ours == theirs:
        return 0.0
    if all(isinstance(one, int | float) and not isinstance(one, bool) for one in (ours, theirs)):
        return float(abs(ours - theirs) / (abs(ours) + abs(theirs)))
    return 1.0
