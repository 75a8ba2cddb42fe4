"""Scores a ranking by what of it was relevant."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

TOP = 20


def ndcg(hits: NDArray[np.bool_] | list[bool], *, num_relevant: int, top: int = TOP) -> float:
    """Returns the NDCG@top of a ranking with relevance 0 or 1; 0 where nothing is relevant.

    `hits` has for each rank, best first, whether the item is relevant; shape [n]. `num_relevant`
    counts all relevant items, ranked or not (Järvelin and Kekäläinen 2002).

    >>> ndcg([True, False], num_relevant=1), round(ndcg([False, True], num_relevant=1), 4)
    (1.0, 0.6309)
    """
    if not num_relevant:
        return 0.0
    gains: NDArray[Any] = 1 / np.log2(np.arange(2.0, top + 2))
    first = np.asarray(hits, bool)[:top]
    return float(gains[: len(first)][first].sum() / gains[: min(num_relevant, top)].sum())
