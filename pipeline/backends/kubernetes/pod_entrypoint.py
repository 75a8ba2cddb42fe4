"""Runs the module of a job in a pod of an Indexed Job: the command of its container.

Its index among the pods is JOB_COMPLETION_INDEX, which Kubernetes sets. The others are met at the name of the
first, `NAME-0.NAME`, by the headless service of the Job.
"""

import os
import sys
from collections.abc import Mapping

from pipeline.backends.torchrun import Place
from pipeline.backends.vertex import entrypoint

NUM_PODS, NAME = "DAYBREAK_NUM_PODS", "DAYBREAK_JOB_NAME"  # set by the backend
MIN_PODS = "DAYBREAK_MIN_PODS"  # by the manifest of a job that goes on with fewer
PORT = 29_400


def place(variables: Mapping[str, str]) -> Place | None:
    """Returns the place of this pod among those of its Job; None if it is the only one.

    >>> place({"DAYBREAK_NUM_PODS": "2", "DAYBREAK_JOB_NAME": "j", "JOB_COMPLETION_INDEX": "1"})
    Place(num_nodes=2, rank=1, host='j-1.j', master='j-0.j:29400', min_nodes=0)
    """
    count, name = int(variables.get(NUM_PODS, "1")), variables.get(NAME, "")
    if count == 1:
        return None
    index = int(variables["JOB_COMPLETION_INDEX"])
    return Place(
        num_nodes=count, rank=index, host=f"{name}-{index}.{name}", master=f"{name}-0.{name}:{PORT}",
        min_nodes=int(variables.get(MIN_PODS, "0")),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(entrypoint.main(sys.argv[1:], here=place(os.environ)))
