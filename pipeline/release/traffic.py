"""Who moves the traffic row, and how does an experiment leave it? What gate, close and watch share."""

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline import ledger
from pipeline.errors import NotYet, ReleaseError
from pipeline.params import Params
from pipeline.release.routers import existing_log

if TYPE_CHECKING:
    from pipeline.serving.log import Log, Traffic

HOLDBACK = "holdback-"  # how experiments begin that are not a night's


def open_log(params: Params) -> "Log | None":
    """The log of serving; None where nobody has ever served from this home."""
    return existing_log(params.serving, ledger.home())


def move(log: "Log", traffic: "Traffic") -> "Traffic":
    """Move the traffic; NotYet where somebody else moved it meanwhile."""
    try:
        return log.set_traffic(traffic)
    except ReleaseError as error:
        if log.traffic().revision == traffic.revision:
            raise
        raise NotYet(str(error)) from None


def end(experiment: str, params: Params) -> bool:
    """Let nobody meet the challenger of this experiment any more; was it on?

    Raises ReleaseError where it is on again when read back.
    """
    log = open_log(params)
    if log is None or log.traffic().experiment != experiment:
        return False

    def ended(traffic: "Traffic") -> "Traffic":
        if traffic.experiment != experiment:
            return traffic
        return replace(traffic, challenger=0, share=0.0, experiment="")

    log.change_traffic(ended)
    if (left := log.traffic()).experiment == experiment:
        raise ReleaseError(f"experiment {experiment} is on again at {left.share:.0%}; see who else moves it")
    return True
