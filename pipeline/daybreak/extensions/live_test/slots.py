"""Gives challengers of nights that overlap slots of the users, so that several are judged at once.

With `live_test.challengers` the next night may open while users judge the challenger of the last, and its own
joins the ramp. Users are divided into as many slots (daybreak/statistics/assignment.py), and each challenger
has one, with users of the champion beside it: a test neither waits for another nor moves its users, and users
of a slot without a test meet the champion.

    one correction   where users have to prove it (`gate.scores: live`), each test has `gate.alpha` divided by
                     the number of slots (Bonferroni), so that any of those that are on is promoted falsely no
                     more often than a test by itself; a veto (`both`) would only become rarer by it
    users by slot    as many as those of other slots, or nothing is believed (`srm`)
    the first proof  is promoted, and its night overtakes the others (daybreak/storage/ledger.py): they were
                     measured against a champion that serves no more, so they end, and the next nights
                     challenge the new one
"""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from daybreak.contract.errors import NotYet
from daybreak.contract.sections import LiveSections
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.statistics import srm
from daybreak.statistics.assignment import slot_of
from daybreak.statistics.result import Conclusion
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


def users_by_slot(log: "Log", ours: "Traffic", *, since: datetime) -> Conclusion:
    """Returns MISMATCH where the users of a test's slot are not as many as those of the others.

    By its arms alone a test does not notice users that both of them lose.

    Args:
        log: of serving.
        ours: the traffic of the slot.
        since: before the test was opened.
    """
    moves = log.traffic.moves(since=since.timestamp())
    opened = min(moved.changed_at for moved in moves if moved.of(ours.experiment).experiment)
    units = {one.unit for one in log.exposures.of(None, since=opened)}
    in_slot = [slot_of(unit, ours.num_slots) == ours.slot for unit in units]
    return srm.check(in_slot, [1 / ours.num_slots] * len(in_slot))


def held_since(log: "Log", ours: "Traffic", *, since: datetime) -> float:
    """Returns the time since which the challenger has its share, whatever was moved beside it meanwhile.

    Arguments as of `users_by_slot`.
    """
    held = ours.changed_at
    for moved in reversed(log.traffic.moves(since=since.timestamp())):
        then = moved.of(ours.experiment)
        if (then.experiment, then.share) != (ours.experiment, ours.share):
            break
        held = moved.changed_at
    return held
