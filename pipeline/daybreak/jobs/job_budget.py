"""Accounts for the money of a job: the cost of its machines, the rest of the budget, and its end."""

import json
from math import inf
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.backend import TICK_S, Backend, JobState
from daybreak.contract.record_parts import Placement
from daybreak.contract.units import HOUR_S
from daybreak.jobs import collector
from daybreak.jobs.cost_tracker import CostTracker, spent_usd, usd_per_hour
from daybreak.jobs.submissions import JobAttempts
from daybreak.training.recipe import END_BY


class JobBudget:
    """The budget of a night, of which a job pays for the machines that it holds."""

    def __init__(
        self,
        folder: Path,
        *,
        night: str,
        budget_usd: float,
        first: Placement,
        attempts: JobAttempts,
        backend: Backend,
    ) -> None:
        self._folder, self._night, self._budget_usd = folder, night, budget_usd
        self._first, self._attempts, self._backend = first, attempts, backend
        self._cost = CostTracker(folder, night=night)

    @property
    def spent_usd(self) -> float:
        """What all jobs of the night have cost."""
        return spent_usd(self._folder.parent, night=self._night)

    @property
    def left_usd(self) -> float:
        """The part of the budget that is not spent."""
        return self._budget_usd - self.spent_usd

    def pay(self, now: float, state: JobState | None) -> None:
        """Updates the cost: what is billed, else that of the machines held until now or the job's end."""
        last = self._attempts.last
        if not self._usd_per_s:
            return  # a machine that is not rented
        is_held = last is not None and last.holds_machines(state)
        until = min(now, collector.ended_at(self._folder)) if collector.has_ended(self._folder) else now
        billed_usd = self._backend.usd(self._folder)
        self._cost.move(until, usd_per_s=self._usd_per_s if is_held else 0.0, billed_usd=billed_usd)

    def send_end_by(self, now: float, *, deadline: float) -> float:
        """Returns when training has to end for the budget: a tick before it is spent on the machines held.

        The job gets this time if it is before the deadline.
        """
        end_by = now + self.left_usd / self._usd_per_s - TICK_S if self._usd_per_s else inf
        path = self._folder / END_BY
        sent = json.loads(path.read_text())["time"] if path.exists() else inf
        if end_by >= deadline:
            path.unlink(missing_ok=True)
        elif abs(end_by - sent) > 1:
            records.replace_text(path, json.dumps({"time": end_by}) + "\n")
        return end_by

    @property
    def _usd_per_s(self) -> float:
        """The price of the machines that the job holds, held last, or will hold first."""
        last = self._attempts.last
        return usd_per_hour(last.placement if last else self._first) / HOUR_S
