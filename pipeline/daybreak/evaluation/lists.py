"""Compares the lists that two versions of a recommender give to the users who are likely to come.

Coverage and novelty are of all lists, and go to the ledger; no verdict rests on them. The lists that changed
most are what single persons would see, so they stay in the night's folder, without whose they are.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from daybreak.contract.record_parts import ListChange, ListReach, RecommendedLists
from daybreak.contract.record_types import ChangedLists
from daybreak.contract.workload import ARRAYS, MAX_NAME
from daybreak.evaluation.scoring import ScoredModel

log = logging.getLogger(__name__)

NUM_USERS, TOP = 1000, 20
MOST_CHANGED = 10
Lists = Sequence[Sequence[str]]


def recommends(workload: Any) -> bool:
    """Returns whether a workload gives lists, and says who is likely to get one."""
    return all(hasattr(workload, name) for name in ("recommend", "likely", "popular"))


def compare(arms: Sequence[ScoredModel]) -> tuple[RecommendedLists | None, ChangedLists]:
    """Returns what the lists reach and those that changed most; none where no likely user gets a list."""
    workload = arms[0].workload
    samples = workload.dataset(ARRAYS, "serve")
    users = workload.likely(samples, NUM_USERS)
    popular = workload.popular(samples, TOP)
    given = {
        arm.name: workload.recommend(arm.model, samples, users, TOP)
        for arm in arms
        if arm.name in ("challenger", "champion")
    }
    _warn_of_long_names([*given.values(), [popular]])
    return compared(given["challenger"], given.get("champion"), popular=popular)


def _warn_of_long_names(lists: Iterable[Lists]) -> None:
    longest = max((len(item) for some in lists for one in some for item in one), default=0)
    if longest > MAX_NAME:
        log.warning(
            "the class recommends an item whose name has %s characters, and `daybreak serve` takes no more "
            "than %d; recommend shorter names, and look the items up by these",
            f"{longest:,}",
            MAX_NAME,
        )


def compared(
    after: Lists, before: Lists | None, *, popular: Sequence[str]
) -> tuple[RecommendedLists | None, ChangedLists]:
    """Returns what `compare` does, of lists user by user; those of users without a list are left out.

    Args:
        after: of the challenger.
        before: of the champion; None where there is none to compare with.
        popular: the items that most buy.
    """
    known = [at for at, one in enumerate(after) if one and (before is None or before[at])]
    if not known:
        return None, ChangedLists(lists=())
    ours = [after[at] for at in known]
    theirs = None if before is None else [before[at] for at in known]
    changes = [] if theirs is None else [*zip(theirs, ours, strict=True)]
    changes = sorted(changes, key=lambda one: _kept(*one))
    found = RecommendedLists(
        num_users=len(known),
        top=TOP,
        challenger=_reach(ours, popular),
        champion=_reach(theirs, popular) if theirs else None,
        kept=sum(_kept(*one) for one in changes) / len(changes) if changes else None,
    )
    most = [ListChange(before=tuple(old), after=tuple(new)) for old, new in changes[:MOST_CHANGED]]
    return found, ChangedLists(lists=tuple(one for one in most if one.before != one.after))


def _kept(before: Sequence[str], after: Sequence[str]) -> float:
    """Returns the share of the items of a list that are in the other one, too."""
    return len(set(before) & set(after)) / len(set(before))


def _reach(lists: Lists, popular: Sequence[str]) -> ListReach:
    places = [item for one in lists for item in one]
    return ListReach(
        num_items=len(set(places)),
        beyond_popular=sum(item not in set(popular) for item in places) / len(places),
    )
