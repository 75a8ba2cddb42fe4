"""Updates the assets of champion and predictions in Airflow, where no task of Airflow's does.

The tasks `promote` and `rollback` have the champion's asset as an outlet, `predict` and `predict_ahead` that
of the predictions. What a terminal, the hourly `watch` or a stage that waits brings about is told by
Airflow's REST API. An Airflow in which no DAG names an asset has nobody to tell.
"""

import os
import urllib.parse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from daybreak import airflow_api, airflow_health
from daybreak.contract.errors import PipelineError
from daybreak.extensions.downstream import webhook
from daybreak.extensions.downstream.settings import DownstreamParams
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from daybreak.contract.sections import Params

TOKEN = "DAYBREAK_AIRFLOW_TOKEN"
USER, PASSWORD = "DAYBREAK_AIRFLOW_USER", "DAYBREAK_AIRFLOW_PASSWORD"  # since a token may expire
ADVICE = f"set ${USER} and ${PASSWORD}, by which it gives a token each time, or ${TOKEN}, while that holds"
BY_OUTLET = {"champion": ("promote", "rollback"), "predictions": ("predict", "predict_ahead")}  # tasks


def uri_of(model: str, what: str) -> str:
    """Returns the URI of the asset that a model's champion is, or its predictions are.

    >>> uri_of("shop", "champion")
    'daybreak://shop/champion'
    """
    return f"daybreak://{urllib.parse.quote(model, safe='')}/{what}"


def update(home: Home, params: DownstreamParams, event: dict[str, Any]) -> bool:
    """Updates the asset of an event, unless a task does; returns False where there is no Airflow.

    Raises PipelineError where Airflow does not take it.
    """
    if os.environ.get("AIRFLOW_CTX_TASK_ID") in BY_OUTLET[event["event"]]:
        return True
    uri = uri_of(event["model"], event["event"])
    try:
        airflow = _airflow(home, params)
        if airflow is None:
            return False
        path = f"/api/v2/assets?uri_pattern={urllib.parse.quote(uri, safe='')}"
        for asset in airflow.ask(path)["assets"]:
            if asset["uri"] == uri:
                airflow.ask("/api/v2/assets/events", {"asset_id": asset["id"], "extra": event})
    except (OSError, ValueError, KeyError) as error:
        where = f" at {params.airflow_url}" if params.airflow_url else ""
        raise PipelineError(f"Airflow{where} did not take it: {error}; see daybreak check") from None
    return True


def _airflow(home: Home, params: DownstreamParams) -> airflow_api.Airflow | None:
    """Returns a team's Airflow, or that of `make up`; None where there is neither.

    Raises OSError, ValueError or KeyError where it gives no token.
    """
    url, user = params.airflow_url.rstrip("/"), os.environ.get(USER)
    if url and user:
        return airflow_api.logged_in(url, user, os.environ.get(PASSWORD, ""))
    return airflow_api.Airflow(url, os.environ.get(TOKEN, "")) if url else airflow_api.of_home(home)


def checks(home: Home, params: "Params") -> Iterator[tuple[str, bool, str]]:
    """Yields whether webhooks and assets follow each release and predictions, for `daybreak check`."""
    given, what = params.section(DownstreamParams), "downstream"
    url = given.airflow_url
    for number, webhook_url in enumerate(given.webhooks, start=1):
        fault = webhook.unset(webhook_url, given.webhook_secret)
        yield what, not fault, fault or f"webhook {number} hears of each release, and of predictions"
    if fault := _fault(home, given) if url else "":
        yield what, False, f"no asset of {url} follows a release of a terminal or of watch: {fault}"
    elif url or airflow_health.address(home):
        yield what, True, f"the asset {uri_of(params.register_.name, 'champion')} follows each release"
    else:
        text = "no asset of Airflow follows a release of a terminal or of watch"
        yield what, True, f"{text}; make up, or set notify.airflow_url"


def _fault(home: Home, params: DownstreamParams) -> str:
    """Returns why a team's Airflow would not take an update, as it says now; "" if it would."""
    if not (os.environ.get(TOKEN) or os.environ.get(USER)):
        return f"it has no login; {ADVICE}"
    try:
        airflow = _airflow(home, params)
        assert airflow
        airflow.ask("/api/v2/assets?limit=1")
    except (OSError, ValueError, KeyError) as error:
        return f"{error}; see that it is up, and {ADVICE}"
    return ""
