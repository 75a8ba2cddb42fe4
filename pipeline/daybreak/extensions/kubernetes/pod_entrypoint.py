"""Runs the module of a job in a pod of an Indexed Job: the command of its container.

Its index among the pods is JOB_COMPLETION_INDEX, which Kubernetes sets. The others are met at the name of the
first, by the headless service that has the name of the job. Machines of another kind are the pods of a second
Job and come after those of the first. The Jobs of a JobSet have the names that its controller gives them.
"""

import os
import sys
from collections.abc import Mapping

from daybreak.backends import entrypoint
from daybreak.backends.torchrun import NodeRank

NUM_PODS, NAME = "DAYBREAK_NUM_PODS", "DAYBREAK_JOB_NAME"  # set by the backend
MIN_PODS = "DAYBREAK_MIN_PODS"  # by the manifest of a job that goes on with fewer
FIRST_POD = "DAYBREAK_FIRST_POD"  # for machines of another kind: the number of pods before theirs
STEM = "daybreak-"  # of the name of a job, before its token
SET_STEM = f"{STEM}set-"  # of the name of a JobSet
PORT = 29_400


def is_job_set(name: str) -> bool:
    """Returns whether the job of that name is a JobSet."""
    return name.startswith(SET_STEM)


def replicated_job(*, first: int) -> str:
    """Returns the name, in a JobSet, of the Job whose first pod has that place among all."""
    return "others" if first else "first"


def job_name(name: str, *, first: int) -> str:
    """Returns the name of the Job whose first pod has that place among all."""
    if is_job_set(name):
        return f"{name}-{replicated_job(first=first)}-0"  # the first of one replica
    return f"{name}-others" if first else name


def place(variables: Mapping[str, str]) -> NodeRank | None:
    """Returns the place of this pod among the pods of the Job; None for a single pod.

    >>> place({"DAYBREAK_NUM_PODS": "2", "DAYBREAK_JOB_NAME": "j", "JOB_COMPLETION_INDEX": "1"})
    NodeRank(num_nodes=2, rank=1, host='j-1.j', master='j-0.j:29400', min_nodes=0)
    >>> place({"DAYBREAK_NUM_PODS": "3", "DAYBREAK_JOB_NAME": "j", "JOB_COMPLETION_INDEX": "0",
    ...        "DAYBREAK_FIRST_POD": "2"})
    NodeRank(num_nodes=3, rank=2, host='j-others-0.j', master='j-0.j:29400', min_nodes=0)
    >>> place({"DAYBREAK_NUM_PODS": "2", "DAYBREAK_JOB_NAME": "daybreak-set-1",
    ...        "JOB_COMPLETION_INDEX": "1"}).host
    'daybreak-set-1-first-0-1.daybreak-set-1'
    """
    count, name = int(variables.get(NUM_PODS, "1")), variables.get(NAME, "")
    if count == 1:
        return None
    index, first = int(variables["JOB_COMPLETION_INDEX"]), int(variables.get(FIRST_POD, "0"))
    return NodeRank(
        num_nodes=count,
        rank=first + index,
        host=f"{job_name(name, first=first)}-{index}.{name}",
        master=f"{job_name(name, first=0)}-0.{name}:{PORT}",
        min_nodes=int(variables.get(MIN_PODS, "0")),
    )


if __name__ == "__main__":
    sys.exit(entrypoint.main(sys.argv[1:], here=place(os.environ)))
