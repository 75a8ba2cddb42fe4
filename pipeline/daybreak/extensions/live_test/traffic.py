"""Moves the traffic row, and ends experiments in it: what gate, close and watch share."""

from typing import TYPE_CHECKING

from daybreak.contract.errors import NotYet, ReleaseError
from daybreak.contract.record_types import Release
from daybreak.contract.sections import LiveSections
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.rollout.targets import endpoint
from daybreak.storage import traffic_log
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import existing_log, log_url

if TYPE_CHECKING:
    from daybreak.storage.traffic_log import Log
    from daybreak.storage.traffic_row import Traffic


def serving_log(home: Home, params: LiveSections) -> "Log | None":
    """Returns the log of serving; None where nobody has ever served from this home.

    The log is created where users are served elsewhere, and a source delivers observations.
    """
    if params.section(LiveTestParams).observations:
        return traffic_log.open_log(log_url(params.serving, home.folder))
    return existing_log(params.serving, home.folder)


def move(log: "Log", traffic: "Traffic") -> "Traffic":
    """Moves the traffic; NotYet where somebody else moved it meanwhile."""
    try:
        return log.traffic.set(traffic)
    except ReleaseError as error:
        if log.traffic.read().revision == traffic.revision:
            raise
        raise NotYet(str(error)) from None


def share_out(home: Home, params: LiveSections) -> None:
    """Makes an endpoint share its requests out as the traffic row says; routers read the row themselves.

    NotYet where it does not answer, ReleaseError where it cannot.
    """
    with endpoint(home, params.register_.name) as there:
        if there:
            there.split()


def take_down(home: Home, version: int, params: LiveSections) -> None:
    """Takes a version down from an endpoint, once nobody meets it."""
    with endpoint(home, params.register_.name) as there:
        if there:
            there.discard(Release(version=version, replaced=0))


def end(home: Home, experiment: str, params: LiveSections, *, keep: bool = False) -> bool:
    """Ends the experiment, so that nobody meets its challenger any more; returns whether it was on.

    With `keep` an endpoint holds the challenger deployed, since it is about to be promoted. Raises
    ReleaseError where the experiment is on again when read back, NotYet where an endpoint does not answer.
    """
    log = serving_log(home, params)
    if log is None:
        return False
    before = log.traffic.read().of(experiment)
    was_on = bool(before.experiment)
    log.traffic.change(lambda traffic: traffic.without(experiment))
    if (left := log.traffic.read().of(experiment)).experiment:
        raise ReleaseError(f"experiment {experiment} is on again at {left.share:.0%}; see who else moves it")
    share_out(home, params)
    if was_on and not keep:
        take_down(home, before.challenger, params)
    return was_on
