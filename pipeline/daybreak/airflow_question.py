"""Answers the question that Airflow puts to a person, once it was answered or made idle on the command line.

The run of a night waits in the task `review` for an answer in Airflow, until the night is to be decided. A
word on the command line, `approve` or `stop`, is passed on to the Airflow that `make up` runs for the home,
by its interface and with its login; elsewhere a person is told to answer there.
"""

import logging
import time
import urllib.error
import urllib.parse
from datetime import UTC, datetime
from typing import Any

from daybreak import airflow_api
from daybreak.contract.record_parts import Record
from daybreak.contract.record_types import Approval, Night, Stop
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

SETTLED_S = 10.0  # dags/review.py says how Airflow 3.3 loses an answer that comes sooner after its question


def answer(home: Home, night: Night, word: Record) -> None:
    """Passes a person's word on to the task that waits for one, if the night is of Airflow and has one.

    The word counts whether or not Airflow takes it.
    """
    if not night.airflow_run or not isinstance(word, Approval | Stop):
        return
    approved = isinstance(word, Approval) and word.approved
    dag, run = (urllib.parse.quote(part, safe="") for part in night.airflow_run.split("/", 1))
    path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/review/-1/hitlDetails"
    body = {
        "chosen_options": ["Approve" if approved else "Reject"],
        "params_input": {"approval_reason": word.reason},
    }
    try:
        airflow = airflow_api.of_home(home)
        if airflow is None:
            raise OSError("make up does not run it for this home")
        asked = airflow.ask(path)
        if "responded_at" in asked and not asked["responded_at"]:
            _wait_until_settled(asked)
            airflow.ask(path, body, method="PATCH")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in (404, 409):  # it asks nobody, or somebody was quicker
            _advise(night, f"HTTP status {error.code}", body)
    except (OSError, ValueError, KeyError) as error:
        _advise(night, str(error), body)


def _wait_until_settled(asked: dict[str, Any]) -> None:
    age = (datetime.now(UTC) - datetime.fromisoformat(asked["created_at"])).total_seconds()
    if 0 <= age < SETTLED_S:  # else the clocks differ
        log.info("Airflow is told in %.0f s, once it has settled its question", SETTLED_S - age)
        time.sleep(SETTLED_S - age)


def _advise(night: Night, why: str, body: dict[str, Any]) -> None:
    log.warning(
        "Airflow was not told (%s); if its run %s waits for a person, answer %s there",
        why,
        night.airflow_run.partition("/")[2],
        body["chosen_options"][0],
    )
