"""Replays one night under a policy: runs a job through a stretch of spot capacity and adds up the cost.

The rules are those of the published simulations (Can't Be Late, NSDI'24; SkyNomad, NSDI'27): time advances in
ticks, a machine that is held at a tick is paid for the whole tick, each start takes `restart_s` before work
goes on, spot that is gone at a tick was lost there, and a checkpoint that moves to another region is paid for
once. Added to these are throughput that is noisy and not as planned, losses without notice (work done since
the last checkpoint before a moment within the tick is repeated), and on-demand machines that fail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from daybreak.contract.units import HOUR_S
from daybreak.extensions.simulation.traces import Trace
from daybreak.extensions.spot.states import CapacityHistory, Place, Policy, SpotState, Zone, look, refuse

ENOUGH_S = 1e-3  # less work than this left counts as none


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """The work of a night: seconds at the planned throughput, until `deadline_s` after the start."""

    work_s: float
    deadline_s: float
    restart_s: float  # 95th percentile, which is also what a policy knows
    egress_usd: float = 1.0  # for moving the checkpoint to another region
    egress_between: Mapping[tuple[str, str], float] = field(default_factory=dict)  # where it costs otherwise
    checkpoint_every_s: float = 0.0
    notice: bool = True
    doubt: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Luck:
    """Random events of each tick beside the traces, the same for all policies. Empty: all goes as planned."""

    throughput: Sequence[float] = ()  # of a machine that works throughout the tick
    restart_s: Sequence[float] = ()  # of a start in that tick
    lost_at: Sequence[float] = ()  # share of the tick before a loss at which it happened
    failed: Sequence[bool] = ()  # whether a machine on demand is gone at that tick


@dataclass(frozen=True, kw_only=True)
class ReplayedNight:
    """The result of a night."""

    usd: float
    finished_s: float | None  # None: not by the deadline
    num_losses: int
    num_moves: int
    on_demand_s: float
    waited_s: float
    places: tuple[Place | None, ...] = field(repr=False)  # one per tick

    @property
    def missed(self) -> bool:
        """Returns whether the deadline was missed."""
        return self.finished_s is None


def replay(
    policy: Policy, job: SimulatedJob, traces: Sequence[Trace], *, start: int = 0, luck: Luck | None = None
) -> ReplayedNight:
    """Returns the result of following `policy` at each tick from tick `start` of the traces."""
    return _Night(job, traces, start=start, luck=luck or Luck()).run(policy)


class _Night:
    """One replay: the state that the policy sees, and the bill."""

    def __init__(self, job: SimulatedJob, traces: Sequence[Trace], *, start: int, luck: Luck) -> None:
        self.job, self.traces, self.start, self.luck = job, {t.zone: t for t in traces}, start, luck
        self.tick_s = traces[0].tick_s
        self.state = SpotState(
            now_s=0.0,
            deadline_s=job.deadline_s,
            tick_s=self.tick_s,
            work_s=job.work_s,
            done_s=0.0,
            zones=tuple(
                Zone(
                    name=t.zone,
                    spot_usd_per_hour=t.spot_usd_per_hour[start],
                    on_demand_usd_per_hour=t.on_demand_usd_per_hour,
                    capacity=CapacityHistory(),
                )
                for t in traces
            ),
            restart_s=job.restart_s,
            egress_usd=job.egress_usd,
            egress_between=job.egress_between,
            doubt=job.doubt,
            at_risk_s=0.0 if job.notice else self.tick_s + job.checkpoint_every_s,
        )
        self.unsaved_s = 0.0  # the part of `done_s` not in a checkpoint when the last tick began
        self.made_s = 0.0  # work done in the last tick
        self.usd = self.on_demand_s = self.waited_s = 0.0
        self.num_losses = self.num_moves = 0
        self.places: list[Place | None] = []

    def run(self, policy: Policy) -> ReplayedNight:
        num_ticks = int(self.job.deadline_s / self.tick_s + 1e-9)
        finished_s: float | None = None
        for tick in range(num_ticks):
            self._begin(tick)
            place = self._ask(policy, tick)
            finished_s = self._work(place, tick)
            if finished_s is not None:
                break
        return ReplayedNight(
            usd=self.usd,
            finished_s=finished_s,
            num_losses=self.num_losses,
            num_moves=self.num_moves,
            on_demand_s=self.on_demand_s,
            waited_s=self.waited_s,
            places=tuple(self.places),
        )

    def _up(self, zone: str, tick: int) -> bool:
        return bool(self.traces[zone].up[self.start + tick])

    def _begin(self, tick: int) -> None:
        """Updates the prices, and whether the machine is still there."""
        state, now_s = self.state, tick * self.tick_s
        zones = state.zones
        for index, zone in enumerate(zones):
            price = self.traces[zone.name].spot_usd_per_hour[self.start + tick]
            if price != zone.spot_usd_per_hour:
                zones = (*zones[:index], replace(zone, spot_usd_per_hour=price), *zones[index + 1 :])
        place, lost, refused = state.place, False, frozenset[str]()
        if place is not None and place.spot:
            up = self._up(place.zone, tick)
            zones = look(zones, place.zone, up=up, now_s=now_s)
            lost = not up
            refused = frozenset((place.zone,)) if lost else refused
        elif place is not None:
            lost = bool(self.luck.failed) and self.luck.failed[tick]
        done_s = state.done_s
        if lost:
            self.num_losses += 1
            if not (self.job.notice and place is not None and place.spot):
                done_s -= self._taken_back_s(tick)
        self.state = replace(
            state,
            now_s=now_s,
            zones=zones,
            refused=refused,
            done_s=done_s,
            place=None if lost else place,
            starting_s=0.0 if lost else state.starting_s,
        )

    def _taken_back_s(self, tick: int) -> float:
        """Work that is lost with a machine that was lost at a moment within the last tick."""
        share = self.luck.lost_at[tick] if self.luck.lost_at else 0.0
        every_s = self.job.checkpoint_every_s
        by_then_s = self.unsaved_s + self.made_s * share
        return self.unsaved_s + self.made_s - (by_then_s - by_then_s % every_s if every_s else by_then_s)

    def _ask(self, policy: Policy, tick: int) -> Place | None:
        while True:
            place = policy(self.state)
            if place is None or place == self.state.place or not place.spot:
                return place
            if self._up(place.zone, tick):
                self.state = replace(
                    self.state, zones=look(self.state.zones, place.zone, up=True, now_s=self.state.now_s)
                )
                return place
            self.state = refuse(self.state, place.zone)

    def _work(self, place: Place | None, tick: int) -> float | None:
        """Spends the tick at a place; returns the time at which the work is done, if it is."""
        state, tick_s = self.state, self.tick_s
        self.places.append(place)
        every_s = self.job.checkpoint_every_s
        moved = place != state.place  # a job that leaves saves first
        self.unsaved_s = (self.unsaved_s + self.made_s) % every_s if every_s and not moved else 0.0
        self.made_s = 0.0
        if place is None:
            self.waited_s += tick_s
            self.state = replace(state, place=None, starting_s=0.0)
            return None
        zone = state.zone(place.zone)
        starting_s = state.starting_s
        if moved:
            starting_s = self.luck.restart_s[tick] if self.luck.restart_s else self.job.restart_s
            self.num_moves += bool(state.home) and state.home != place.zone
            self.usd += state.egress(zone)
        price = zone.spot_usd_per_hour if place.spot else zone.on_demand_usd_per_hour
        self.usd += price * tick_s / HOUR_S
        self.on_demand_s += 0.0 if place.spot else tick_s
        ran_s = max(0.0, tick_s - starting_s)
        speed = self.luck.throughput[tick] if self.luck.throughput else 1.0
        made_s = min(ran_s * speed, state.todo_s)
        self.made_s = made_s
        self.state = replace(
            state,
            place=place,
            home=place.zone,
            starting_s=max(0.0, starting_s - tick_s),
            done_s=state.done_s + made_s,
            ran_s=state.ran_s + ran_s,
            made_s=state.made_s + made_s,
        )
        if self.state.todo_s > ENOUGH_S:
            return None
        return state.now_s + min(tick_s, starting_s + made_s / speed)
