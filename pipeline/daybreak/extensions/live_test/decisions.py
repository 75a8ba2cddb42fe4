"""Decides after a look whether a challenger goes on, takes the next share, is promoted or rejected.

If the arms were not as drawn, nothing else is believed: no data. Any other broken guardrail rejects the
challenger. Without proof at the end of the night the champion stays. Pure.
"""

from dataclasses import dataclass
from typing import Literal

from daybreak.contract.record_types import Action
from daybreak.extensions.live_test.ramp import Pace, RampStep, step
from daybreak.extensions.live_test.readout import Readout
from daybreak.statistics.paired import Rules

Mode = Literal["live", "both"]


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do with the challenger, and why."""

    action: Action
    reason: str
    inconclusive: bool = False  # rejected for want of proof only


def decide(
    finding: Readout,
    *,
    rules: Rules,
    mode: Mode,
    pace: Pace,
    share: float,
    units: int,
    hours: float,
    over: bool,
) -> tuple[Decision, RampStep]:
    """Returns what to do with challenger and share now.

    Args:
        finding: what the log says.
        rules: `refresh` asks for no worse than the margin, else better.
        mode: whether live traffic must prove it, or only not reject it.
        pace: of the ramp.
        share: that the challenger has.
        units: that met it at this share.
        hours: that it has had this share.
        over: whether the night has come to its end.
    """
    next_step = step(pace, share=share, units=units, hours=hours, broken=finding.broken)
    decision = _decision(finding, rules=rules, mode=mode, done=next_step.action == "done", over=over)
    if decision.action != "wait":
        ended: Literal["stop", "done"] = "stop" if finding.broken else "done"
        return decision, RampStep(action=ended, share=0.0, reason=decision.reason)
    return decision, next_step


def _decision(finding: Readout, *, rules: Rules, mode: Mode, done: bool, over: bool) -> Decision:
    """Returns the decision of one look; `done`: the last share was held as long as it has to be."""
    broken, measured = "; ".join(finding.broken), finding.result.sentence
    if not finding.is_trusted:
        return Decision(action="no data", reason=f"nothing that the log says is believed: {broken}")
    if broken:
        return Decision(action="reject", reason=f"stopped by {broken}")
    if finding.result.effect is None:
        return Decision(action="no data" if over else "wait", reason=measured)
    goal = f"no worse than the champion by the margin {rules.margin:g}" if rules.refresh else "better"
    proven = finding.result.status.is_proof
    if done and (proven or mode == "both"):
        why = f"proven {goal}" if proven else "live traffic does not object"
        return Decision(action="promote", reason=f"{why}: {measured}")
    if over:
        why = f"not proven {goal}" if done else "the night ended before the last share was held"
        return Decision(action="reject", reason=f"inconclusive: {why}: {measured}", inconclusive=True)
    return Decision(action="wait", reason=f"{'proven' if proven else 'not yet proven'} {goal}: {measured}")
