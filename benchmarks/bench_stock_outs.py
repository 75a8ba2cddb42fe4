"""Is a job trained in time on nights of stock-outs, wherever a place that is feasible has machines?

200 nights by a clock of their own, through the real planner, whose fallbacks are its own, the real launcher
and the real trainer, where zones, regions and kinds of machines run out of stock for part of the night
(tests/jobs/stock.py), and a place that is out refuses at once, after minutes, or never answers.

A place is feasible at a look if what is left to train fits there into the time and the money that are left,
by the true speeds, with a tenth and two slow starts to spare. It was left if it was up and feasible for an
hour of looks at which the job had no machine, and the night was not trained to its end: in that hour each of
the places can be asked once. The launcher, which does not know what is up, is judged by who does.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks import frame
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental, Strategy
from daybreak.contract.record_types import Training
from daybreak.contract.units import HOUR_S
from daybreak.jobs import launcher
from daybreak.jobs.cost_tracker import JOBS
from tests.jobs import plans, stock
from tests.jobs.cloud import TICK_S, Cloud, Look, Luck, night_of
from tests.jobs.stock import Drawn

NIGHTS = 20 if frame.QUICK else 200
ASKED_S = HOUR_S  # in which each place can be asked once
START_S, SLOWER = 480.0, 1.1  # of the true start and time, that a feasible place has to leave room for


def main() -> None:
    """Play the nights."""
    with frame.memory() as folder:
        began = time.monotonic()
        nights = [(stock.drawn(seed), played(seed, folder / str(seed))) for seed in range(NIGHTS)]
        took_s = time.monotonic() - began
    ends = Counter(_end(cloud) for _, cloud in nights)
    frame.table([{"how nights ended": name, "nights": count} for name, count in ends.most_common()])
    missed = {night.seed: left(night, cloud) for night, cloud in nights if _end(cloud) != "finished"}
    frame.table(
        [
            {
                "night": night.seed,
                "shown": night.stock.shown,
                "strategy": night.strategy,
                "end": _end(cloud),
                "seen": cloud.seen / cloud.plan.num_samples,
                "left": " ".join(f"{rental} {hours:.1f} h" for rental, hours in missed[night.seed].items()),
            }
            for night, cloud in nights
            if missed.get(night.seed)
        ]
        or [{"no night": "had a feasible place left"}]
    )
    with_place = [cloud for night, cloud in nights if _end(cloud) == "finished" or missed[night.seed]]
    refused = [cloud for night, cloud in nights if _end(cloud) == "champion kept" and missed[night.seed]]
    first_out = [cloud for night, cloud in nights if not night.stock.up(cloud.plan.rental, 0.0)]
    frame.finish(
        "stock_outs",
        {
            "nights": NIGHTS,
            "planned place out at the start, nights": len(first_out),
            "a feasible place was up, nights": len(with_place),
            "of those trained in time, share": ends["finished"] / len(with_place),
            "refused with a feasible place left, nights": len(refused),
            "trained in time, nights": ends["finished"],
            "kept the champion, nights": ends["champion kept"],
            "fallbacks of a plan, mean": sum(len(cloud.plan.fallbacks) for _, cloud in nights) / NIGHTS,
            "places asked for, mean": sum(len(_places(cloud)) for _, cloud in nights) / NIGHTS,
            "cost, mean of the trained, dollars": _mean(
                [cloud.billed_usd for _, cloud in nights if _end(cloud) == "finished"]
            ),
            "most over the budget, ticks": max(0.0, *(_over_ticks(cloud) for _, cloud in nights)),
            "most live jobs at once": max(cloud.most_live for _, cloud in nights),
            "seconds a night": took_s / NIGHTS,
        },
        {
            "of those trained in time, share": ("==", 1.0),
            "refused with a feasible place left, nights": ("==", 0),
            "most over the budget, ticks": ("<=", 1.0),
            "most live jobs at once": ("<=", 1),
        },
    )


def played(seed: int, folder: Path) -> Cloud:
    """The night of that number in a folder of its own, to its decision."""
    (folder / JOBS).mkdir(parents=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        night = stock.drawn(seed)
        sections = stock.params_of(night)
        cheapest = _planned(night, budget_usd=1000.0)
        budget_usd = cheapest.forecast.expected_usd * night.budget
        cloud = Cloud(
            night_of(budget_usd=budget_usd, window_s=stock.WINDOW_S),
            _planned(night, budget_usd=budget_usd),
            Luck(seed=seed, stock=night.stock),
            sections,
        )
        cloud.run()
        return cloud
    finally:
        os.chdir(before)


def _planned(night: Drawn, *, budget_usd: float) -> launcher.Plan:
    return plans.planned(
        night_of(budget_usd=budget_usd, window_s=stock.WINDOW_S),
        stock.params_of(night),
        share=night.share,
        available=stock.machines(),
        taught=plans.known(stock.SPEEDS),
    )


def left(night: Drawn, cloud: Cloud) -> dict[Rental, float]:
    """The places that were up and feasible for `ASKED_S` while the job had no machine, and for how long."""
    most: dict[Rental, float] = {}
    for machine, rental in _all(night):
        since: float | None = None
        for look in cloud.looks:
            if look.running or not _feasible(night, cloud, machine, rental, look):
                since = None
                continue
            since = look.at if since is None else since
            if look.at + TICK_S - since >= ASKED_S:
                most[rental] = max(most.get(rental, 0.0), (look.at + TICK_S - since) / HOUR_S)
    return most


def _all(night: Drawn) -> Iterator[tuple[Machine, Rental]]:
    """Each place of the night: those of the cloud, and the team's own cluster."""
    strategies: tuple[Strategy, ...] = ("on-demand", "spot") if night.strategy == "spot" else ("on-demand",)
    for machine in stock.rented():
        for strategy in strategies:
            yield machine, Rental(machine=machine.name, region=machine.region, strategy=strategy)
    yield stock.own(), Rental(machine=stock.own().name, backend=stock.own().backend)


def _feasible(night: Drawn, cloud: Cloud, machine: Machine, rental: Rental, look: Look) -> bool:
    """Whether what is left fits there into the time and the money that are left; on spot, without a loss."""
    if not night.stock.up(rental, look.at):
        return False
    whole_s = (night.share * stock.WINDOW_S - 240) / stock.SPEEDS[machine.name]
    rest_s = START_S + SLOWER * whole_s * (1 - look.seen / cloud.plan.num_samples)
    if look.at + rest_s > stock.WINDOW_S:
        return False
    usd = (machine.price(rental.strategy) or 0.0) * (rest_s + TICK_S) / HOUR_S
    if usd > cloud.night.budget_usd - look.billed_usd:
        return False
    return not rental.is_spot or night.stock.until(rental, look.at, up=False) >= look.at + rest_s


def _end(cloud: Cloud) -> str:
    return cloud.decision.stopped_by if isinstance(cloud.decision, Training) else "champion kept"


def _places(cloud: Cloud) -> set[Rental]:
    return {replace(live.job.rental, num_machines=1) for live in cloud.jobs}


def _over_ticks(cloud: Cloud) -> float:
    over_usd = cloud.billed_usd - cloud.night.budget_usd
    return over_usd / (cloud.dearest * TICK_S) if cloud.dearest else 0.0


def _mean(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)


if __name__ == "__main__":
    main()
