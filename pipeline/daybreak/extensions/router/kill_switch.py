"""Stops a challenger within a minute, where its answers fail or are slow and the champion's are not.

Guardrails of the live test (`readout`) are exact, and looked at every few minutes. This looks at every answer
of the last minute, of at most ten minutes where these are few. A user is bad where any of the answers failed,
or was slower by `max_rise_s` than nine of ten users of the champion. With k of n users of the challenger bad,
and a share of q of the champion's, the chance of that many by accident is at most
exp(-n KL(k/n | q + margin)) (Chernoff 1952), where q is raised by one user, and the margin is `max_errors`,
or a tenth for slow answers. Below `CHANCE` the challenger is stopped. Pure.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from daybreak.contract.formats import counted
from daybreak.statistics.assignment import CHALLENGER, CHAMPION
from daybreak.storage.exposures import Exposure

WINDOW_S = 60.0
LEAST_ANSWERS = 500  # with fewer in it, the window is longer
MOST_ANSWERS = 4096  # that are looked at, since the event loop waits meanwhile
LONGEST_S = 600.0
LOOK_S = 1.0  # between two looks
CHANCE = 1e-7  # of a false stop, at a look
LEAST_USERS = 20  # of the champion within the window
SLOW = 0.1  # of the champion's users are slower than what counts as slow, but for the rise


@dataclass
class _Latest:
    """The latest answers of an experiment."""

    answers: deque[Exposure] = field(default_factory=lambda: deque(maxlen=MOST_ANSWERS))
    looked_at: float = -math.inf

    def add(self, answer: Exposure) -> bool:
        """Adds an answer; returns whether a look is due, for which old ones are dropped."""
        self.answers.append(answer)
        if answer.time < self.looked_at + LOOK_S:
            return False
        self.looked_at = answer.time
        while self._is_old(self.answers[0].time, answer.time):
            self.answers.popleft()
        return True

    def _is_old(self, time: float, now: float) -> bool:
        if len(self.answers) > LEAST_ANSWERS:
            return time < now - WINDOW_S
        return time < now - LONGEST_S


class KillSwitch:
    """Remembers the latest answers of each experiment that is on."""

    def __init__(self, *, max_errors: float, max_rise_s: float) -> None:
        self._max_errors, self._max_rise_s = max_errors, max_rise_s
        self._latest: dict[str, _Latest] = {}

    def why_stop(self, answer: Exposure) -> str:
        """Adds an answer, and returns why its challenger has to be stopped; "" where it need not be."""
        if not answer.experiment:
            return ""
        if answer.experiment not in self._latest:
            self._latest = {  # without those that are over
                name: latest
                for name, latest in self._latest.items()
                if latest.answers[-1].time > answer.time - LONGEST_S
            } | {answer.experiment: _Latest()}
        latest = self._latest[answer.experiment]
        return self._why(latest.answers) if latest.add(answer) else ""

    def _why(self, answers: Iterable[Exposure]) -> str:
        users: dict[str, dict[str, tuple[bool, float]]] = {CHALLENGER: {}, CHAMPION: {}}
        for answer in answers:
            of_arm = users[answer.arm]
            failed, latency_s = of_arm.get(answer.unit, (False, 0.0))
            of_arm[answer.unit] = failed or bool(answer.error), max(latency_s, answer.latency_s)
        ours, theirs = list(users[CHALLENGER].values()), list(users[CHAMPION].values())
        if not ours or len(theirs) < LEAST_USERS:
            return ""
        bad, others = sum(failed for failed, _ in ours), sum(failed for failed, _ in theirs)
        usual = (others + 1) / (len(theirs) + 1)
        if is_more(bad, len(ours), than=usual + self._max_errors):
            of_theirs = f"{others} of {len(theirs)} of the champion"
            return f"{_share_of_users(bad, len(ours))} met an error, and {of_theirs}"
        usual_s = sorted(latency_s for _, latency_s in theirs)
        slow_s = usual_s[int((1 - SLOW) * (len(usual_s) - 1))] + self._max_rise_s
        slow = sum(latency_s > slow_s for _, latency_s in ours)
        if is_more(slow, len(ours), than=2 * SLOW + 1 / len(theirs)):
            return f"{_share_of_users(slow, len(ours))} waited for more than {slow_s:.2g} s"
        return ""


def _share_of_users(number: int, users: int) -> str:
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
