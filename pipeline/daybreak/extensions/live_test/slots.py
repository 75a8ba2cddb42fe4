"""Gives challengers of nights that overlap slots of the users, so that several are judged at once.

With `live_test.challengers` the next night may open while users judge the challenger of the last, and its own
joins the ramp. Users are divided into as many slots (daybreak/statistics/assignment.py), and each challenger
has one, with users of the champion beside it: a test neither waits for another nor moves its users, and users
of a slot without a test meet the champion.

    one correction   where users have to prove it (`gate.scores: live`), each test has `gate.alpha` divided by
                     the number of slots (Bonferroni), so that any of those that are on is promoted falsely no
                     more often than a test by itself; a veto (`both`) would only become rarer by it
    users by slot    those whom no challenger can meet are as many as of other slots, or nothing is believed
                     (`srm`)
    the first proof  is promoted, and its night overtakes the others (daybreak/storage/ledger.py): they were
                     measured against a champion that serves no more, so they end, and the next nights
                     challenge the new one
"""

import math
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from daybreak.contract.errors import NotYet
from daybreak.contract.sections import LiveSections
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.statistics import srm
from daybreak.statistics.assignment import place, slot_of
from daybreak.statistics.result import Conclusion, Status
from daybreak.storage.traffic_row import SlotTest

if TYPE_CHECKING:
    from daybreak.storage.traffic_log import Log
    from daybreak.storage.traffic_row import Traffic


def num_slots(params: LiveSections) -> int:
    """Returns how many challengers users may meet at once; an endpoint splits its requests between two."""
    return 1 if params.serving.endpoint else params.section(LiveTestParams).challengers


def num_corrected(params: LiveSections) -> int:
    """Returns among how many tests `gate.alpha` is shared out: proofs are, and a mere veto is not."""
    return 1 if params.gate.scores == "both" else num_slots(params)


def joined(traffic: "Traffic", *, challenger: int, experiment: str, num_slots: int) -> "Traffic":
    """Returns the traffic with one more test, of which nobody meets the challenger yet.

    The number of slots stays while a test is on, so that none of its users moves. A holdback ends. Raises
    NotYet while no slot is free.
    """
    on = () if traffic.is_holdback else traffic.tests
    traffic = traffic if on else replace(traffic, num_slots=num_slots)
    taken = {test.slot for test in on}
    free = [slot for slot in range(traffic.num_slots) if slot not in taken]
    if not free:
        names = " and ".join(f"experiment {test.experiment}" for test in on)
        are = "is" if len(on) == 1 else "are"
        raise NotYet(f"{names} {are} on; watch ends one that no night wants")
    return traffic.with_tests((*on, SlotTest(challenger=challenger, experiment=experiment, slot=free[0])))


def users_by_slot(log: "Log", ours: "Traffic", *, since: datetime, ramp: float, own: bool) -> Conclusion:
    """Returns MISMATCH where the users of a test's slot are not as many as those of the others.

    By its arms alone a test does not notice users that both of them lose. Only users whom no challenger of
    these tests can meet are counted, so that one which drives users away voids no test beside it.

    Args:
        log: of serving.
        ours: the traffic of the slot.
        since: before the test was opened.
        ramp: the largest share that a challenger may have.
        own: whether a team serves by itself, which may report users who are in a test only.
    """
    moves = log.traffic.moves(since=since.timestamp())
    first = next(number for number, moved in enumerate(moves) if moved.of(ours.experiment).experiment)
    opened: dict[str, float] = {}
    shares: list[dict[str, float]] = [{} for _ in range(ours.num_slots)]  # by slot and experiment
    for moved in moves[first:]:
        for test in moved.tests:
            opened.setdefault(test.experiment, moved.changed_at)
            most = shares[test.slot].get(test.experiment, ramp)
            shares[test.slot][test.experiment] = max(most, test.share)
    on = [test for test in moves[-1].tests if own]
    of = {test.slot for test in on} if own else set(range(ours.num_slots))
    start = max([opened[ours.experiment], *(opened[test.experiment] for test in on)])
    due = {slot: math.prod(1 - share for share in shares[slot].values()) for slot in of}
    chance = due.get(ours.slot, 0.0) / (sum(due.values()) or 1.0)
    if not 0 < chance < 1:
        return Conclusion(status=Status.NO_DATA, sentence="no other test is on, with whose users to compare")
    slots = [
        slot
        for unit in {one.unit for one in log.exposures.of(None, since=start)}
        if (slot := slot_of(unit, ours.num_slots)) in of
        and all(place(unit, experiment) >= share for experiment, share in shares[slot].items())
    ]
    found = srm.check([slot == ours.slot for slot in slots], [chance] * len(slots))
    if not slots:
        return found
    num, wanted = slots.count(ours.slot), chance * len(slots)
    said = f"{num:,} users who stay with the champion are of this part, {wanted:,.1f} were due"
    return replace(found, sentence=said + "; look at the assignment" * (found.status is Status.MISMATCH))


def held_since(log: "Log", ours: "Traffic", *, since: datetime) -> float:
    """Returns the time of the challenger's newest change of share; changes of other tests do not count.

    Arguments as of `users_by_slot`.
    """
    held = ours.changed_at
    for moved in reversed(log.traffic.moves(since=since.timestamp())):
        then = moved.of(ours.experiment)
        if (then.experiment, then.share) != (ours.experiment, ours.share):
            break
        held = moved.changed_at
    return held
