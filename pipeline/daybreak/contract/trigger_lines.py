"""Reads triggers: what a job does where a measured figure stays beyond a limit (`plan.triggers`)."""

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, cast, get_args

Action = Literal["step up", "step down", "larger batch", "smaller batch"]
OPPOSITES = ({"step up", "step down"}, {"larger batch", "smaller batch"})
MEASURED = ("device_use", "memory_use", "queue_length")  # signals of a heartbeat; others are functions
MOST_MINUTES = 20.0  # of heartbeats are kept at hand
FORM = re.compile(
    r"(?P<signal>\w+|[\w.]+:\w+) *(?P<side>[<>]) *(?P<limit>-?[\d.]+(?:e[+-]?\d+)?) "
    r"for (?P<minutes>[\d.]+) min: "
    rf"(?P<action>{'|'.join(get_args(Action))})(?: for \$(?P<usd>[\d.]+))?"
)
EXAMPLE = "device_use < 0.3 for 10 min: step down"


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """One line of `plan.triggers`."""

    text: str
    signal: str  # of `MEASURED`, or MODULE:FUNCTION of a team
    is_upper: bool  # the limit is one to stay below
    limit: float
    minutes: float  # for which the figure has to be beyond the limit
    action: Action
    most_usd: (
        float | None
    )  # that the rest may cost more; None: nothing for a step down, else within the budget

    def is_beyond(self, value: float) -> bool:
        """Returns whether a figure is beyond the limit."""
        return value > self.limit if self.is_upper else value < self.limit


def parse(text: str) -> Trigger:
    """Returns the trigger that a line says; raises ValueError where it says none.

    >>> parse("device_use < 0.3 for 10 min: step down").action
    'step down'
    >>> parse("own.signals:backlog > 1e3 for 5 min: step up for $2").most_usd
    2.0
    """
    match = FORM.fullmatch(" ".join(text.split()))
    try:
        if match is None:
            raise ValueError
        limit, minutes = float(match["limit"]), float(match["minutes"])
        most_usd = float(match["usd"]) if match["usd"] else None
    except ValueError:
        raise ValueError(f"{text!r} is not a trigger; write one such as `{EXAMPLE}`") from None
    if ":" not in match["signal"] and match["signal"] not in MEASURED:
        raise ValueError(
            f"{text!r}: heartbeats have no {match['signal']}; name one of {', '.join(MEASURED)}, or a "
            f"function of yours as module:function"
        )
    if not 0 < minutes <= MOST_MINUTES:
        raise ValueError(f"{text!r}: its minutes are not above 0 and at most {MOST_MINUTES:g}")
    return Trigger(
        text=text,
        signal=match["signal"],
        is_upper=match["side"] == ">",
        limit=limit,
        minutes=minutes,
        action=cast(Action, match["action"]),
        most_usd=most_usd,
    )


def opposed(triggers: tuple[Trigger, ...]) -> str:
    """Returns why two triggers would undo each other for ever; "" where none do.

    Two of the same figure that ask for opposite things need opposite sides, and a distance between them.
    """
    for one, other in combinations(triggers, 2):
        if one.signal != other.signal or {one.action, other.action} not in OPPOSITES:
            continue
        both = f"{one.text!r} and {other.text!r}"
        if one.is_upper == other.is_upper:
            return f"{both} ask for opposite things on the same side of a limit; turn one of them round"
        upper, lower = (one, other) if one.is_upper else (other, one)
        if upper.limit <= lower.limit:
            return f"{both} ask for opposite things; leave a distance between their limits"
    return ""
