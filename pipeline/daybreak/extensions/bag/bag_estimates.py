"""Estimates the runs and machines of a bag, by expectations first and by measurements later."""

from collections.abc import Sequence
from dataclasses import dataclass

from daybreak.contract.backend import Backend
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.extensions.bag.bag_forecast import BagForecast, BagScenario, forecast
from daybreak.extensions.bag.folder import Bag
from daybreak.extensions.bag.reuse import Reuse, Runs, reuse
from daybreak.extensions.bag.state import BagState
from daybreak.extensions.spot.hazard import PRIOR_LOSSES, learned
from daybreak.extensions.spot.survival import Exponential, Lifetime
from daybreak.machines import startup
from daybreak.machines.losses import MEAN_TIME_TO_FAILURE_S, MEAN_TIME_TO_INTERRUPTION_S

POLL_S, POLL_REMOTE_S = 0.2, 5.0  # between looks at machines that see this disk, and at others
ENOUGH_RUNS = 3  # after which the mean of finished runs is used for all
LOCAL_START_S = 1.0  # until a process of this machine takes its first seed
Lives = Sequence[tuple[float, bool]]  # seconds, and whether a preemption ended each


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Where a bag runs, and what is known of its runs and machines beforehand."""

    backend: Backend
    machine: Machine
    num_machines: int
    poll_s: float = POLL_S  # between looks at machines
    run_s: float = 0.0  # of a run, as a person expects it; 0: as the first runs take
    lives: Lives = ()  # of spot machines of earlier nights
    lifetime: Lifetime | None = None  # of machines, if known; None: fitted to `lives`


class BagEstimates:
    """What is known of the runs and the machines of a bag."""

    def __init__(self, bag: Bag, setup: Setup) -> None:
        self._bag, self._setup = bag, setup
        self._rule: tuple[tuple[bool, int], Reuse] | None = None

    def forecast(self, state: BagState) -> BagForecast | None:
        """Returns what the runs that are left take; None if nobody knows how long one is."""
        bag, durations_s = self._bag, self.durations_s(state)
        if not durations_s or state.enough:
            return None
        setting = BagScenario(
            num_runs=bag.num_runs - len(state.done) - len(state.given_up),
            num_needed=bag.num_needed - len(state.done),
            num_machines=self._setup.num_machines,
            durations_s=durations_s,
            lifetime=self._lifetime(state),
            reuse=self.reuse(state),
            boot_s=self.boot_s(state),
            save_s=bag.save_s,
            num_losses=self._num_losses(state),
        )
        return forecast(setting)

    def durations_s(self, state: BagState) -> tuple[float, ...]:
        """Returns the seconds of runs, as measured, or as expected until enough are done; () if not known."""
        if self._setup.run_s and len(state.done) < ENOUGH_RUNS:
            return (self._setup.run_s,)
        return tuple(state.done.values()) if len(state.done) >= ENOUGH_RUNS else ()

    def boot_s(self, state: BagState) -> float:
        """Returns the mean seconds from asking for a machine to its first run; as listed until measured."""
        if measured := state.start_s():
            return sum(measured) / len(measured)
        if self._bag.rental.is_local:
            return LOCAL_START_S
        return startup.wait(self._setup.machine, num_bytes=0).start_s

    def reuse(self, state: BagState) -> Reuse:
        """Returns the rule for machines, computed anew once runs are measured, or ten machines have ended."""
        bag, durations_s = self._bag, self.durations_s(state)
        if not durations_s:
            return Reuse(num_runs=bag.num_runs, replace_at_s=float("inf"))
        based_on = len(state.done) >= ENOUGH_RUNS, len(state.lives()) // 10
        if self._rule is None or self._rule[0] != based_on:
            run_s = sum(durations_s) / len(durations_s)
            runs = Runs(run_s=run_s, save_s=bag.save_s, boot_s=self.boot_s(state))
            self._rule = based_on, reuse(self._lifetime(state), runs, num_runs=bag.num_runs)
        return self._rule[1]

    def _lives(self, state: BagState) -> Lives:
        return [*self._setup.lives, *state.lives()]

    def _lifetime(self, state: BagState) -> Lifetime:
        return self._setup.lifetime or lifetime_of(self._bag.rental, lives=self._lives(state))

    def _num_losses(self, state: BagState) -> float:
        if self._setup.lifetime:
            return float("inf")
        return PRIOR_LOSSES + sum(preempted for _, preempted in self._lives(state))


def lifetime_of(rental: Rental, *, lives: Lives) -> Lifetime:
    """Returns how long such a machine lives: a spot machine as `lives` say, others by what is published."""
    if rental.is_spot:
        return learned(lives).lifetime
    return Exponential(mean_s=MEAN_TIME_TO_INTERRUPTION_S if rental.is_local else MEAN_TIME_TO_FAILURE_S)
