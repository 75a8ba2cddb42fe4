"""Stops a challenger within a minute, where its answers fail or are slow and the champion's are not.

Guardrails (pipeline/experiment/readout.py) are exact, and looked at every few minutes. This looks at every
answer of the last minute, of at most ten minutes where these are few. A user is bad where any of the answers
failed, or was slower by `max_rise_s` than nine of ten users of the champion. With k of n users of the
challenger bad, and a share of q of the champion's, the chance of that many by accident is at most
exp(-n KL(k/n | q + margin)) (Chernoff 1952), where q is raised by one user, and the margin is `max_errors`,
or a tenth for slow answers. Below `CHANCE` the challenger is stopped. Pure.
"""

import math
from collections import deque
from dataclasses import dataclass

from pipeline.contract.formats import counted

WINDOW_S = 60.0
LEAST_ANSWERS = 500  # with fewer in it, the window is longer
LONGEST_S = 600.0
LOOK_S = 1.0  # between two looks
CHANCE = 1e-7  # of a false stop, at a look
LEAST_USERS = 20  # of the champion within the window
SLOW = 0.1  # of the champion's users are slower than what counts as slow, but for the rise


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """An answer that a user was given."""

    time: float
    unit: str
    by_challenger: bool
    failed: bool
    latency_s: float


class KillSwitch:
    """Remembers the latest answers of one experiment."""

    def __init__(self, *, max_errors: float, max_rise_s: float) -> None:
        self._max_errors, self._max_rise_s = max_errors, max_rise_s
        self._given: deque[Given] = deque()
        self._experiment, self._looked_at = "", -math.inf

    def stops(self, given: Given, *, experiment: str) -> str:
        """Adds an answer, and returns why the challenger has to be stopped; "" where it need not be."""
        if experiment != self._experiment:
            self._given.clear()
            self._experiment, self._looked_at = experiment, -math.inf
        if not experiment:
            return ""
        self._given.append(given)
        if given.time < self._looked_at + LOOK_S:
            return ""
        self._looked_at = given.time
        while self._is_old(self._given[0].time, given.time):
            self._given.popleft()
        return self._why()

    def _is_old(self, time: float, now: float) -> bool:
        if len(self._given) > LEAST_ANSWERS:
            return time < now - WINDOW_S
        return time < now - LONGEST_S

    def _why(self) -> str:
        users: dict[bool, dict[str, tuple[bool, float]]] = {True: {}, False: {}}
        for one in self._given:
            of = users[one.by_challenger]
            failed, latency_s = of.get(one.unit, (False, 0.0))
            of[one.unit] = failed or one.failed, max(latency_s, one.latency_s)
        ours, theirs = list(users[True].values()), list(users[False].values())
        if not ours or len(theirs) < LEAST_USERS:
            return ""
        bad, others = sum(failed for failed, _ in ours), sum(failed for failed, _ in theirs)
        usual = (others + 1) / (len(theirs) + 1)
        if is_more(bad, len(ours), than=usual + self._max_errors):
            return f"{self._said(bad, len(ours))} met an error, and {others} of {len(theirs)} of the champion"
        latest = sorted(latency_s for _, latency_s in theirs)
        slow_s = latest[int((1 - SLOW) * (len(latest) - 1))] + self._max_rise_s
        slow = sum(latency_s > slow_s for _, latency_s in ours)
        if is_more(slow, len(ours), than=2 * SLOW + 1 / len(theirs)):
            return f"{self._said(slow, len(ours))} waited for more than {slow_s:.2g} s"
        return ""

    def _said(self, number: int, users: int) -> str:
        return f"lately {number} of {counted(users, 'user')} of the challenger"


def is_more(number: int, of: int, *, than: float) -> bool:
    """Returns whether so many of them are more than that share, but for a chance of `CHANCE`.

    >>> is_more(5, 5, than=0.02), is_more(4, 5, than=0.02), is_more(40, 1000, than=0.02)
    (True, False, False)
    """
    share = number / of
    if share <= than or than >= 1:
        return False
    distance = share * math.log(share / than)
    distance += (1 - share) * math.log((1 - share) / (1 - than)) if share < 1 else 0.0
    return of * distance > -math.log(CHANCE)
