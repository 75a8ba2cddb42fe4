"""Holds a team's triggers (`plan.triggers`) against the heartbeats of a job.

A trigger holds where its figure was beyond the limit in every heartbeat of its minutes, none of them from
before the last move or change of the batch: so after a change it has to be seen anew for as long. What it
then leads to: moves.py.
"""

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from daybreak.contract import code_path
from daybreak.contract.trigger_lines import MEASURED, Trigger
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.training.recipe import Progress

log = logging.getLogger(__name__)

LEAST_BEATS = 5  # in the minutes of a trigger
COVERED = 0.9  # of these minutes that the heartbeats have to span


@dataclass(frozen=True, kw_only=True)
class Fired:
    """A trigger that holds, and the figure."""

    trigger: Trigger
    lowest: float
    highest: float

    @property
    def why(self) -> str:
        """What was measured, and for how long."""
        values = f"{self.lowest:.3g} to {self.highest:.3g}"
        return f"{self.trigger.signal} was {values} for {self.trigger.minutes:g} min ({self.trigger.text})"


def fired(
    triggers: Sequence[Trigger], heartbeats: Heartbeats, *, since: float, now: float
) -> tuple[Fired, ...]:
    """Returns the triggers that hold now by the heartbeats since a time, in their order."""
    held = []
    for trigger in triggers:
        lasts_s = 60 * trigger.minutes
        beats = heartbeats.since(max(since, now - lasts_s))
        if len(beats) < LEAST_BEATS or now - beats[0].time.timestamp() < COVERED * lasts_s:
            continue
        measure = _measure(trigger.signal)
        values = [value for beat in beats if (value := measure(beat)) is not None]
        if len(values) == len(beats) and all(map(trigger.is_beyond, values)):
            held.append(Fired(trigger=trigger, lowest=min(values), highest=max(values)))
    return tuple(held)


def _measure(signal: str) -> Callable[[Progress], float | None]:
    """Returns what reads a figure from a heartbeat; a team's function that fails is logged, and says None."""
    if signal in MEASURED:
        return lambda beat: getattr(beat, signal)
    module, _, name = signal.partition(":")

    def own(beat: Progress) -> float | None:
        try:
            code_path.find_teams()
            value = getattr(importlib.import_module(module), name)(asdict(beat))
            return None if value is None else float(value)
        except Exception as error:  # noqa: BLE001 the function is the team's, and no reason to end training
            log.warning("trigger %s says nothing: %s: %s", signal, type(error).__name__, error)
            return None

    return own
