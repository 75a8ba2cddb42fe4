"""Says which numbers of machines may be left out of a search, since another one is better in every way.

One number of machines is dominated by another of the same machine, region, strategy and batch size if that
one costs no more, takes no longer by its median, and no longer at the chance that the plan asks for. Whatever
the limits and the objective, the other is then feasible where it is, and ranks before it. All regions have
the same machine at different prices, and the price of a machine is a factor of the cost, so one comparison of
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
    # Whatever dominates one comes before it in this order.
    left = np.lexsort((estimates.counts, *criteria[::-1]))
    while len(left):
        kept.append(int(left[0]))
        left = left[(criteria[:, left] < criteria[:, left[:1]]).any(axis=0)]
    return sorted(kept)
