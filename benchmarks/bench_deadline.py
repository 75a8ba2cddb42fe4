"""Is there a decision by the deadline, and a model in it, on nights on which everything goes wrong?

500 nights by a clock of their own, through the real launcher and the real trainer, by plans and fallbacks
that the real planner made of three machines in three regions (tests/jobs/plans.py), in a cloud that loses
machines, refuses them in a region for hours or all night, is slow, hangs and fails, while the launcher itself
is killed and not called (tests/jobs/cloud.py), and 20 small nights of real processes that are slowed, stopped
and killed (tests/jobs/trouble.py). Cost is what the cloud bills, and may pass the budget by one tick.
"""

import logging
import time
from collections import Counter

from benchmarks import frame
from daybreak.contract.record_types import Training
from daybreak.jobs.reconciler import ENDING_S, GRACE_S
from tests.jobs import cloud, trouble

NIGHTS = 60 if frame.QUICK else 500
REAL = 4 if frame.QUICK else 20


def main() -> None:
    """Play both kinds of nights."""
    with frame.memory() as folder:
        began = time.monotonic()
        nights = [cloud.bad_night(seed, folder / str(seed)) for seed in range(NIGHTS)]
        took_s = time.monotonic() - began
    ends = Counter(
        night.decision.stopped_by if isinstance(night.decision, Training) else "champion kept"
        for night in nights
    )
    fallbacks = Counter(
        fallback.name
        for night in nights
        if isinstance(night.decision, Training)
        for fallback in night.decision.fallbacks
    )
    frame.table([{"how nights ended": name, "nights": count} for name, count in ends.most_common()])
    frame.table([{"fallbacks taken": name, "times": count} for name, count in fallbacks.most_common()])
    late_s = [night.decided_at - night.night.train_until.timestamp() for night in nights]
    over_ticks = [
        (night.billed_usd - night.night.budget_usd) / (night.dearest * cloud.TICK_S) if night.dearest else 0.0
        for night in nights
    ]
    refused = [night for night in nights if night.jobs[0].state == "refused"]
    logging.disable(logging.NOTSET)
    logging.getLogger("daybreak").setLevel(logging.ERROR)
    real = [trouble.real_night(number) for number in range(REAL)]
    frame.table([each.row() for each in real])
    frame.finish(
        "deadline",
        {
            "nights": NIGHTS,
            "decided in time, share": _share(late <= GRACE_S + ENDING_S + cloud.TICK_S for late in late_s),
            "a trained candidate, share": _share(isinstance(n.decision, Training) for n in nights),
            "trained to the end, share": ends["finished"] / NIGHTS,
            "refused where planned, nights": len(refused),
            "of those a trained candidate, share": _share(isinstance(n.decision, Training) for n in refused),
            "fallbacks of a plan, mean": sum(len(night.plan.fallbacks) for night in nights) / NIGHTS,
            "most over the budget, ticks": max(0.0, *over_ticks),
            "meter below the bill, nights": sum(
                isinstance(n.decision, Training) and n.decision.cost_usd < n.billed_usd - 1e-6 for n in nights
            ),
            "most live jobs at once": max(night.most_live for night in nights),
            "seconds a night": took_s / NIGHTS,
            "real nights": REAL,
            "real decided in time, share": _share(each.in_time for each in real),
            "real with a candidate, share": _share(each.trained for each in real),
            "most processes left behind": max(each.num_left for each in real),
        },
        {
            "decided in time, share": ("==", 1.0),
            "a trained candidate, share": (">=", 0.9),
            "of those a trained candidate, share": (">=", 0.9),
            "most over the budget, ticks": ("<=", 1.0),
            "meter below the bill, nights": ("==", 0),
            "most live jobs at once": ("<=", 1),
            "real decided in time, share": ("==", 1.0),
            "real with a candidate, share": (">=", 0.9),
            "most processes left behind": ("==", 0),
        },
    )


def _share(held: object) -> float:
    flags = list(held)  # type: ignore[call-overload]
    return sum(map(bool, flags)) / len(flags)


if __name__ == "__main__":
    main()
