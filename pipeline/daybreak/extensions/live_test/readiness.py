"""Checks before a night whether users can meet its challenger, and judge it."""

import contextlib
from collections.abc import Iterator

from daybreak.contract.errors import PipelineError
from daybreak.contract.formats import counted
from daybreak.contract.sections import Params, Plug
from daybreak.extensions.live_test.settings import HoldbackParams, LiveTestParams
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import existing_log

Checked = tuple[str, bool, str]  # what was checked, whether it is well, and a sentence


def preflight(home: Home, params: Params) -> Iterator[Checked]:
    """Yields what users need to judge the challenger of a night, with whether it is there."""
    settings, endpoint = params.section(LiveTestParams), params.serving.endpoint
    if settings.metric is None:  # else users are scored by that
        with contextlib.suppress(PipelineError):  # already reported
            yield from live_score(params.workload)
    try:
        log = existing_log(params.serving, home.folder)
        live = log.servers.routers() if log else ()
    except PipelineError as error:
        yield "router", False, str(error)
        return
    if live:
        names = ", ".join(router.id for router in live)
        yield "router", True, f"{len(live)} live{'s' if len(live) == 1 else ''}: {names}"
    elif endpoint:
        yield from _endpoint(params, endpoint)
        if settings.challengers > 1:
            text = f"an endpoint has one challenger at a time, not {settings.challengers}; set it to 1"
            yield "live_test.challengers", False, text
    elif settings.observations:
        yield _own_serving(settings.observations)
    else:
        yield (
            "router",
            False,
            f"gate.scores: {params.gate.scores} asks users, and no router runs; run daybreak serve",
        )


def _own_serving(plug: Plug) -> Checked:
    """Returns whether what users of a team's own serving met can be found."""
    try:
        days = list(plug.make().days())
    except PipelineError as error:
        return "observations", False, f"live_test.observations: {error}"
    newest = f", the newest of {max(days)}" if days else " yet"
    return "observations", True, f"rows of {counted(len(days), 'day')}{newest}"


def live_score(plug: Plug) -> Iterator[Checked]:
    """Yields that users cannot judge a workload of rows, each of whose metrics needs a set of samples."""
    from daybreak.contract.workload import serves_rows
    from daybreak.evaluation.scoring import declared

    workload = plug.make()
    metrics = declared(workload) if serves_rows(workload) else ()
    if metrics and all(metric.sample_values([0.5], [1.0]) is None for metric in metrics):
        names = " and ".join(metric.name for metric in metrics)
        text = (
            f"each user meets one model, and {names} has no value of a single sample; add a metric that "
            f"has, such as LogLoss() or AbsoluteError(), or set gate.scores: replay"
        )
        yield "live score", False, text


def _endpoint(params: Params, plug: Plug) -> Iterator[Checked]:
    """Yields whether an endpoint can split its requests as the gate needs, and log who met what."""
    with contextlib.suppress(PipelineError):  # already reported
        endpoint = plug.make()
        shares = (*params.section(LiveTestParams).ramp, params.section(HoldbackParams).holdback)
        keeps, broken = bool(endpoint.log), [share for share in shares if not endpoint.is_whole(share)]
        text = "the endpoint's containers keep the log of who met what"
        if not keeps:
            text = (
                f"gate.scores: {params.gate.scores} asks users, and the endpoint keeps no log of who met "
                f"what; set serving.endpoint.log, or run daybreak serve"
            )
        elif broken:
            text = (
                f"the endpoint gives whole percent, not {broken[0]:g}; fix live_test.ramp or watch.holdback"
            )
        yield "router", keeps and not broken, text
