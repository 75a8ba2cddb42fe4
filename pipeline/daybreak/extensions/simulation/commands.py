"""Implements the command `simulate` (daybreak/cli.py)."""

import sys
from pathlib import Path


def simulate(
    *,
    nights: int = 365,
    traces: str = "",
    seed: int = 0,
    work_hours: float = 12.0,
    deadline_hours: float = 18.0,
    json_: bool = False,
    plot: str = "",
) -> int:
    """Replay nights on spot machines: misses, dollars and preemptions of our policy and of others.

    Args:
        nights: how many nights
        traces: table of spot capacity and prices; drawn from measured lifetimes if left out
        seed: of the draw; another seed draws other nights
        work_hours: hours of training on a machine that is never lost
        deadline_hours: hours from the start of a night until training must be done
        json_: as JSON: the settings, a row for each policy, and one for each of its nights
        plot: file to draw them into, as nights.svg or nights.png
    """
    from rich.console import Console
    from tqdm import tqdm

    from daybreak.extensions.simulation import simulated, simulator
    from daybreak.extensions.simulation import traces as market

    simulated.check_picture(plot)
    job = simulator.nightly_job(work_hours=work_hours, deadline_hours=deadline_hours)
    zones = market.read(Path(traces)) if traces else market.draw(seed=seed, num_ticks=366 * 24 * 6)
    played = simulator.simulate(job, zones, num_nights=nights, seed=seed)
    shown = tqdm(played, desc="simulate", unit="night", total=nights, disable=not sys.stderr.isatty())
    policy_nights = [each for night in shown for each in night]
    summaries = simulated.rows(policy_nights)
    places = f"{', '.join(zone.zone for zone in zones)}{'' if traces else ' (drawn)'}"
    about: dict[str, object] = {
        "traces": traces,
        "seed": seed,
        "nights": nights,
        "work_hours": work_hours,
        "deadline_hours": deadline_hours,
    }
    if json_:
        print(simulated.document(summaries, policy_nights, about=about))
    else:
        print(f"{nights} nights, {work_hours:g} hours of work in {deadline_hours:g}; {places}")
        Console().print(simulated.table(summaries), simulated.LEGEND, sep="\n")
    if plot:
        simulated.plot(policy_nights, Path(plot))
    return 0
