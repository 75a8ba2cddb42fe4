"""Makes the DAGs of a home with a team's names, schedule, pools, callbacks and secrets.

`daybreak dags` writes it, and all that it imports, into one file. Airflow leaves it out here
(.airflowignore): it would find in it, a second time, the DAGs of the modules that it imports.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from airflow.sdk import DAG
from airflow_versions import AIRFLOW
from audit import audit_of
from home import Home
from retrain import UNSAID, nights_of
from rollback import drill_of, rollback_of
from watch import watch_of

log = logging.getLogger(__name__)

MAKERS = {
    "retrain": nights_of,
    "watch": watch_of,
    "rollback": rollback_of,
    "drill": drill_of,
    "audit": audit_of,
}
NOT_FOR_ALL = {"default_args", "params", "schedule", "user_defined_filters"}  # each DAG has its own


def dags(
    home: Home,
    *,
    dag_ids: Mapping[str, str] | None = None,
    tags: Collection[str] = (),
    owner: str = "",
    pool: str = "",
    queue: str = "",
    priority_weight: int = 0,
    schedule: Any = UNSAID,
    deadline: Any = UNSAID,
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> list[DAG]:
    """Returns the DAGs of a home: the nights, the watch, rollbacks, drills and audits.

    Args:
        home: the home.
        dag_ids: other names, by the words `retrain`, `watch`, `rollback`, `drill` and `audit`.
        tags: other tags.
        owner: the owner of all tasks, as `default_args` has it; so are `pool`, `queue` and `priority_weight`.
        pool: the pool.
        queue: the queue, of the CeleryExecutor.
        priority_weight: the priority.
        schedule: when nights start, in any form that a DAG takes, instead of what params.yaml says; a cron
            expression is in `night.time_zone`, None only by hand.
        deadline: alerts of Airflow 3.1 and newer for the nights, instead of the one that notifies of a night
            that is late; None for none.
        default_args: arguments of all tasks that do not set their own. Callbacks are called beside ours.
        dag_args: arguments of all DAGs, such as callbacks, `access_control` or `owner_links`.
        env: environment variables of the stages.
        secrets: environment variables of the stages whose values Airflow keeps, each with its place:
            `variable:KEY`, `connection:ID` as a URI, or `connection:ID.password`. The task reads them when it
            runs, and nothing keeps them.

    Raises ValueError for a key of `dag_ids` that is no DAG's, and for arguments that no `dag_args` can set.
    """
    if unknown := sorted(set(dag_ids or {}) - set(MAKERS)):
        raise ValueError(f"dag_ids has {', '.join(unknown)}; its keys are {', '.join(MAKERS)}")
    if refused := sorted(NOT_FOR_ALL & set(dag_args or {})):
        raise ValueError(f"dag_args has {', '.join(refused)}; name schedule and default_args beside it")
    of_tasks = {"owner": owner, "pool": pool, "queue": queue, "priority_weight": priority_weight}
    wished = {"schedule": schedule, "deadline": deadline}
    of_nights = {name: value for name, value in wished.items() if value is not UNSAID}
    if AIRFLOW < (3, 1) and of_nights.pop("deadline", None):
        log.warning("Airflow %s.%s has no deadline alerts; `deadline` is left out", *AIRFLOW)
    due = home.due
    if isinstance(schedule, str) and schedule not in (UNSAID, "@once", "@continuous"):
        due = replace(due, cron=of_nights.pop("schedule"), assets=())  # in our zone, without data intervals
    home = replace(
        home,
        due=due,
        dag_ids=dag_ids or {},
        default_args={name: value for name, value in of_tasks.items() if value} | dict(default_args or {}),
        dag_args=({"tags": list(tags)} if tags else {}) | dict(dag_args or {}),
        night_args=of_nights,
        env={**home.env, **(env or {})},
        secrets=secrets or {},
    )
    return [make(home) for make in MAKERS.values()]
