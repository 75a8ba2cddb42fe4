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
    airflow = _airflow(home, params)
    if airflow is None:
        return False
    uri = uri_of(event["model"], event["event"])
    try:
        path = f"/api/v2/assets?uri_pattern={urllib.parse.quote(uri, safe='')}"
        for asset in airflow.ask(path)["assets"]:
            if asset["uri"] == uri:
                airflow.ask("/api/v2/assets/events", {"asset_id": asset["id"], "extra": event})
    except (OSError, ValueError, KeyError) as error:
        raise PipelineError(f"Airflow at {airflow.url} did not take it: {error}") from None
    return True


def _airflow(home: Home, params: DownstreamParams) -> airflow_api.Airflow | None:
    """Returns a team's Airflow, or that of `make up`; None where there is neither."""
    if params.airflow_url:
        return airflow_api.Airflow(params.airflow_url.rstrip("/"), os.environ.get(TOKEN, ""))
    return airflow_api.of_home(home)


def checks(home: Home, params: "Params") -> Iterator[tuple[str, bool, str]]:
    """Yields whether webhooks and assets follow each release and predictions, for `daybreak check`."""
    given, what = params.section(DownstreamParams), "downstream"
    url = given.airflow_url
    for number, webhook_url in enumerate(given.webhooks, start=1):
        fault = webhook.unset(webhook_url, given.webhook_secret)
        yield what, not fault, fault or f"webhook {number} hears of each release, and of predictions"
    if url and not os.environ.get(TOKEN):
        text = f"${TOKEN} is not set, so that no asset of {url} follows a release of a terminal; set it"
        yield what, False, text
    elif url or airflow_health.address(home):
        yield what, True, f"the asset {uri_of(params.register_.name, 'champion')} follows each release"
    else:
        text = "no asset of Airflow follows a release of a terminal; make up, or set notify.airflow_url"
        yield what, True, text
