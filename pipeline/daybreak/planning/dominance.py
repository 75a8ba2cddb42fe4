"""Drops numbers of machines from a search that another number beats in every way.

A number of machines is dominated by another number of the same machine, region, strategy and batch size if
the other costs no more, takes no longer in the median, and no longer at the chance that the plan asks for.
Under any limits and objective, the other is then feasible too, and ranks first. All regions have the same
machine at different prices, and the price of a machine is a factor of the cost, so one comparison of
machine-seconds holds for all of them.
"""

from daybreak.prediction.costs import Estimates


def undominated(estimates: Estimates, *, confidence: float) -> list[int]:
    """Returns the places of the numbers of machines that no other one dominates, ascending.

    Of two that are equal in all, the smaller number stays, as the search prefers it.
    """
    import numpy as np

    criteria = np.array([estimates.machine_s, estimates.expected_s, estimates.time_s(confidence)])
    kept: list[int] = []
    # In this order, a number comes after every number that dominates it.
    left = np.lexsort((estimates.counts, *criteria[::-1]))
    while len(left):
        kept.append(int(left[0]))
        left = left[(criteria[:, left] < criteria[:, left[:1]]).any(axis=0)]
    return sorted(kept)
