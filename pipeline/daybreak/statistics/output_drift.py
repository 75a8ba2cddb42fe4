"""Measures how far the challenger's lists are from the champion's, so that a broken model is noticed.

Of two models, draw a list each, and an item of each list. For every set W of items,

    P(ours is in W) - P(theirs is in W) <= total variation distance of the two

with equality where W holds the items that the challenger shows more often. W is learned from earlier lists
and tested on later ones, so for any W, `e_process` is a valid test of "the distance is at most the margin"
(Shekhar & Ramdas 2024). W is learned anew whenever there are twice as many lists. An item never shown by the
champion is in W. A refresh moves lists a little; a broken model, or another shop's model, moves them far.

Where two models gave lists to the same users, a coin picks one list per user, which makes a live test after
the fact (`shifted`). Pure.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from daybreak.statistics.e_process import alarm
from daybreak.statistics.result import Conclusion

CHANCE = 0.5  # of a user's list being the other model's


def witnessed(treated: ArrayLike, lists: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Returns the share of each list that is in W as learned before it, shape [n]; 0 for an empty list.

    Args:
        treated: which lists are the challenger's, in order of time.
        lists: items of each.
    """
    arm = np.asarray(treated, dtype=bool)
    shares = np.zeros(len(lists))
    shown: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    usual: frozenset[str] = frozenset()  # what is not in W
    learn_at = 1
    for number, items in enumerate(lists):
        if number == learn_at:
            usual, learn_at = _usual(shown), 2 * learn_at
        shares[number] = sum(item not in usual for item in items) / len(items) if items else 0.0
        shown[bool(arm[number])].update(items)
    return shares


def shifted(judged: Sequence[Sequence[str]], other: Sequence[Sequence[str]], *, margin: float) -> Conclusion:
    """Returns WORSE where the other model's lists are proven further away than the margin, else OPEN.

    Both are of the same users, in the same order; NO_DATA where there are none.
    """
    treated = np.random.default_rng(0).random(len(judged)) < CHANCE
    lists = [list(other[place] if one else judged[place]) for place, one in enumerate(treated)]
    chance = np.full(len(judged), CHANCE)
    return alarm(treated, chance, witnessed(treated, lists), margin=margin)


def _usual(shown: dict[bool, Counter[str]]) -> frozenset[str]:
    """Returns the items that the challenger shows no more often than the champion, by share."""
    ours, theirs = shown[True], shown[False]
    num_ours, num_theirs = max(ours.total(), 1), max(theirs.total(), 1)
    return frozenset(item for item, count in theirs.items() if ours[item] * num_theirs <= count * num_ours)
