"""Reads an experiment by groups of users, by what clients say of them: device, country, any attribute.

What a client said with a user's first request counts, since no arm can have changed it. Two things are read:

    as drawn    the users of each value fit the shares of the arms (`srm`): a mismatch that one device has is
                diluted among all users. The k-th value that ever came is tested at alpha / (k (k + 1)), which
                adds up to alpha however many come, so no value has to be named beforehand.
    effect      on the score, of the values that most users have, each interval at gate.alpha divided by the
                number of intervals. It is shown and decides nothing: the test was not made for it.

Pure.
"""

from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Segment
from daybreak.extensions.live_test.observations import Observation, ObservationLog, arms, chances
from daybreak.statistics import srm
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Conclusion, Status
from daybreak.statistics.unpaired import effect

MAX_SEGMENTS = 12  # whose effects are shown
MAX_VALUES = 1_000  # that are tested, should a client send what is different for each user
TUNED_AT = 1_000  # users, as a group has fewer than all of a test
Group = tuple[str, str]  # attribute and value


def attributes_as_drawn(seen: ObservationLog) -> Conclusion | None:
    """Returns MISMATCH where users of an attribute do not fit their chances; None where clients send none."""
    groups = _grouped((*seen.observations, *seen.frequent))
    if not groups:
        return None
    broken = []
    for number, ((name, value), of) in enumerate(islice(groups.items(), MAX_VALUES), 1):
        alpha = srm.ALPHA / (number * (number + 1))
        result = srm.check(arms(of), chances(of), alpha=alpha, tuned_at=TUNED_AT)
        if result.status is Status.MISMATCH:
            broken.append(f"{name} {value}: {result.sentence}")
    if broken:
        return Conclusion(status=Status.MISMATCH, sentence="; ".join(broken))
    held = f"users of {counted(len(groups), 'value')} of attributes fit the shares of the arms"
    return Conclusion(status=Status.OPEN, sentence=held)


def segments(
    observations: Sequence[Observation], scores: NDArray[np.float64], *, rules: Rules
) -> tuple[Segment, ...]:
    """Returns the effect among the users of each value, of those that most users have.

    Args:
        observations: whose scores are settled.
        scores: of these, shape [n].
        rules: alpha, which the intervals share, and how few users of an arm are too few.
    """
    score = {id(one): value for one, value in zip(observations, scores.tolist(), strict=True)}
    groups = sorted(_grouped(observations).items(), key=lambda group: -len(group[1]))
    large = [(group, of) for group, of in groups if min(_sizes(of)) >= rules.min_samples][:MAX_SEGMENTS]
    return tuple(
        _segment(group, of, [score[id(one)] for one in of], alpha=rules.alpha / len(large))
        for group, of in large
    )


def _segment(group: Group, of: Sequence[Observation], scores: Sequence[float], *, alpha: float) -> Segment:
    num_challenger, num_champion = _sizes(of)
    return Segment(
        attribute=group[0],
        value=group[1],
        num_challenger=num_challenger,
        num_champion=num_champion,
        effect=effect(arms(of), chances(of), scores, alpha=alpha).measured,
    )


def _sizes(of: Sequence[Observation]) -> tuple[int, int]:
    """Returns the number of the challenger's users, and of the champion's."""
    num = sum(one.treated for one in of)
    return num, len(of) - num


def _grouped(observations: Sequence[Observation]) -> dict[Group, list[Observation]]:
    """Returns the observations of each value, in the order in which values came."""
    groups: dict[Group, list[Observation]] = {}
    for one in sorted(observations, key=lambda one: one.time):
        for group in one.attributes:
            groups.setdefault(group, []).append(one)
    return groups
