"""Holds a team's triggers (`plan.triggers`) against the heartbeats of a job.

A trigger holds where its figure was beyond the limit in every heartbeat of its minutes, and in the newest
`LEAST_BEATS` where updates are so slow that the minutes have fewer. None of them is from before the last move
or change of the batch: so after a change it has to be seen anew for as long. What it then leads to: moves.py.
"""

import importlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from daybreak.contract import code_path
from daybreak.contract.trigger_lines import MEASURED, Trigger
from daybreak.jobs.heartbeats import Heartbeats
from daybreak.training.recipe import Progress

log = logging.getLogger(__name__)

LEAST_BEATS = 5  # that a trigger is judged by
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
        if beats and len(beats) < LEAST_BEATS:
            beats = heartbeats.since(since)[-LEAST_BEATS:]
        if len(beats) < LEAST_BEATS or now - beats[0].time.timestamp() < COVERED * lasts_s:
            continue
        measure = _measure(trigger.signal)
        values: list[float] = []
        # Newest first: a function of the team that is slow or fails is called once where that tells enough.
        for beat in reversed(beats):
            value = measure(beat)
            if value is None or not trigger.is_beyond(value):
                break
            values.append(value)
        if len(values) == len(beats):
            held.append(Fired(trigger=trigger, lowest=min(values), highest=max(values)))
    return tuple(held)


def _measure(signal: str) -> Callable[[Progress], float | None]:
    """Returns what reads a figure from a heartbeat; a team's function that fails is logged, and says None."""
    if signal in MEASURED:
        return lambda beat: getattr(beat, signal)

    def own(beat: Progress) -> float | None:
        try:
            value = _function(signal)(asdict(beat))
            return None if value is None else float(value)
        except Exception as error:  # noqa: BLE001 the function is the team's, and no reason to end training
            log.warning("trigger %s says nothing: %s: %s", signal, type(error).__name__, error)
            return None

    return own


def faults(triggers: Sequence[Trigger]) -> Iterator[str]:
    """Yields a sentence for each function of the team that is not there, so that its trigger never holds."""
    for signal in dict.fromkeys(trigger.signal for trigger in triggers if trigger.signal not in MEASURED):
        try:
            is_function = callable(_function(signal))
        except Exception as error:  # noqa: BLE001 a module of the team may raise anything
            yield f"{signal} of plan.triggers cannot be imported: {type(error).__name__}: {error}; fix it"
            continue
        if not is_function:
            yield f"{signal} of plan.triggers is no function; name one as module:function"


def _function(signal: str) -> Callable[..., float | None]:
    module, _, name = signal.partition(":")
    code_path.find_teams()
    function: Callable[..., float | None] = getattr(importlib.import_module(module), name)
    return function
