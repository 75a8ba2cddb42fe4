"""Implements baseline policies to compare `policies.decide` with, of the same signature.

All on demand; greedy; Uniform Progress of Can't Be Late (NSDI'24), as in the published simulations; the
utility of SkyNomad (NSDI'27) by its formula.
"""

from math import ceil, floor, inf

from daybreak.contract.units import HOUR_S
from daybreak.extensions.spot.policies import MARGIN, cheapest_on_demand
from daybreak.extensions.spot.states import Place, SpotState, Zone

ROUNDING = 1e-9


def on_demand(state: SpotState) -> Place | None:
    """Returns the cheapest place on demand, always."""
    return cheapest_on_demand(state)


def greedy(state: SpotState) -> Place | None:
    """Returns the cheapest spot there is; without any, waits until only on demand to the end is in time."""
    here = state.place
    if here is not None and not here.spot:
        return here
    if _must_buy(state, restarts=1):
        return here if here is not None and _runs(state) else cheapest_on_demand(state)
    return here or _cheapest_spot(state)


def uniform_progress(state: SpotState) -> Place | None:
    """Returns spot if there is any; else waits, or buys if progress is below the straight line."""
    here, d = state.place, state.restart_s
    pace = state.work_s / state.deadline_s
    spot = here if here is not None and here.spot else _cheapest_spot(state)
    buy = here if here is not None and not here.spot else cheapest_on_demand(state)
    place = spot
    if spot is None and state.done_s - state.now_s * pace < 0:
        place = buy
    bought = here is not None and not here.spot
    if bought and (spot is None or state.done_s <= (state.now_s + 2 * d) * pace):
        place = buy
    if (here is None or bought) and _must_buy(state, restarts=2):
        place = buy
    if _must_buy(state, restarts=1):
        place = here if here is not None and here.spot and _runs(state) else buy
    return place


def skynomad(state: SpotState) -> Place | None:
    """Returns the place of highest utility; V = C_od (t / (T - t)) ((P - p) / p) looks back on progress."""
    here = state.place
    if here is not None and not here.spot and _must_buy(state, restarts=1):
        return here
    if _must_buy(state, restarts=1):
        return cheapest_on_demand(state)
    on_demand_price = state.on_demand_usd_per_hour
    value = on_demand_price
    if state.done_s > 0:
        value = on_demand_price * state.now_s / state.left_s * state.todo_s / state.done_s
    elif state.now_s > 0:
        value = inf
    options = [
        (_worth(state, zone, value=min(value, 1e6)), Place(zone.name, spot=True))
        for zone in state.zones
        if zone.name not in state.refused and Place(zone.name, spot=True) != here
    ]
    buy = cheapest_on_demand(state)
    options.append((min(value, 1e6) - state.zone(buy.zone).on_demand_usd_per_hour, buy))
    best, place = max(options, key=lambda option: option[0])
    if here is None:
        return place if best > 0 else None
    zone = state.zone(here.zone)
    now = min(value, 1e6) - (zone.spot_usd_per_hour if here.spot else zone.on_demand_usd_per_hour)
    return place if best > max(now, 0.0) + MARGIN * on_demand_price else here


BASELINES = {
    "all on-demand": on_demand,
    "greedy": greedy,
    "Uniform Progress": uniform_progress,
    "SkyNomad": skynomad,
}


def _worth(state: SpotState, zone: Zone, *, value: float) -> float:
    """Returns the dollars per hour that spot in a zone gains over waiting: U = V (L - d)+ / L - C - E / L.

    A job that runs nowhere yet has to start once, so a machine that outlives it is not charged its start.
    """
    life_s = min(zone.capacity.lifetime_s(now_s=state.now_s), state.todo_s + state.restart_s)
    outlives = state.place is None and life_s >= state.todo_s + state.restart_s
    share = 1.0 if outlives else max(0.0, life_s - state.restart_s) / life_s
    return value * share - zone.spot_usd_per_hour - state.egress(zone) / (life_s / HOUR_S)


def _cheapest_spot(state: SpotState) -> Place | None:
    there = [zone for zone in state.zones if zone.name not in state.refused]
    hours = max(state.todo_s / HOUR_S, ROUNDING)
    if not there:
        return None
    best = min(there, key=lambda zone: zone.spot_usd_per_hour + state.egress(zone) / hours)
    return Place(best.name, spot=True)


def _must_buy(state: SpotState, *, restarts: int) -> bool:
    """Whether whole ticks of work and `restarts` restarts take all whole ticks that are left."""
    need = ceil((state.todo_s + restarts * state.restart_s) / state.tick_s - ROUNDING)
    return need >= floor(state.left_s / state.tick_s + ROUNDING)


def _runs(state: SpotState) -> bool:
    """Whether the machine has started, so that work goes on."""
    return state.starting_s < 1e-3
