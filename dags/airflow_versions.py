"""Imports names whose place depends on the version of Airflow, and lists the gaps of older versions.

The DAGs run on Airflow 3.0 and newer.
"""

import logging
from importlib import import_module
from importlib.metadata import version
from typing import Any

log = logging.getLogger(__name__)

AIRFLOW = tuple(int(part) for part in version("apache-airflow-core").split(".")[:2])

# Before a version, what does not work.
LACKING = {
    (3, 1): "nobody is asked to approve: promote waits for daybreak approve, in a terminal",
    (3, 3): "no alert of Airflow's tells that a night is late (the hourly watch does), and a night that "
    "watch starts is recorded as started by hand",
}
LACKS = [sentence for since, sentence in LACKING.items() if since > AIRFLOW]
for sentence in LACKS:
    log.info("In Airflow %s.%s, %s.", *AIRFLOW, sentence)


def documented(doc: str) -> str:
    """Returns the documentation of a DAG, with what this version of Airflow lacks."""
    lacks = [f"- In Airflow {AIRFLOW[0]}.{AIRFLOW[1]}, {sentence}." for sentence in LACKS]
    return "\n".join([doc.rstrip(), "", *lacks, ""]) if lacks else doc


def since(first: tuple[int, int], path: str, *, before: str = "") -> Any:
    """Returns what Airflow has by an import path since a version, and has by another, or not, before."""
    module, _, name = (path if first <= AIRFLOW else before).rpartition(".")
    return getattr(import_module(module), name) if module else None


def _exception(name: str) -> Any:
    return since((3, 2), f"airflow.sdk.exceptions.{name}", before=f"airflow.exceptions.{name}")


AirflowException, AirflowFailException, AirflowSkipException = map(
    _exception, ("AirflowException", "AirflowFailException", "AirflowSkipException")
)
CronTriggerTimetable = since(
    (3, 2), "airflow.sdk.CronTriggerTimetable", before="airflow.timetables.trigger.CronTriggerTimetable"
)
