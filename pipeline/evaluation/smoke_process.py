"""Loads and scores a version in a process that has nothing but its files: a script, run by the smoke test.

    echo CASE | python -I pipeline/evaluation/smoke_process.py

The script imports nothing of the pipeline: the version brings the code that it was registered with, as it
does to a server. The script imports what any version needs while it waits for its case, a line of JSON; its
results are the last line that it prints, as JSON.
"""

import importlib
import json
import math
import sys
import time
from typing import Any

import numpy as np

SINGLES = 100  # samples scored one by one, to time a request


def measure() -> dict[str, Any]:
    """Loads the version, answers once, then scores all samples together and some one by one.

    The start is measured in seconds of this process's CPU, since the machine may be busy.
    """
    import mlflow.pyfunc
    import pandas as pd
    import psutil

    importlib.import_module("torch")  # every workload's model needs it
    case = json.loads(sys.stdin.readline())
    model = mlflow.pyfunc.load_model(case["version"])
    params = {"folder": case["folder"], "split": "test"}
    numbers = case["numbers"]
    model.predict(pd.DataFrame({"sample": numbers[:1]}), params=params)
    start_cpu_s = time.process_time()
    if not case["scored"]:
        return {"start_cpu_s": start_cpu_s}
    scores = model.predict(pd.DataFrame({"sample": numbers}), params=params)
    took = []
    for number in numbers[:SINGLES]:
        began = time.perf_counter()
        model.predict(pd.DataFrame({"sample": [number]}), params=params)
        took.append(time.perf_counter() - began)
    return {
        "start_cpu_s": start_cpu_s,
        "scores": [float(score) if math.isfinite(score) else None for score in scores],
        "p50_s": float(np.quantile(took, 0.5)),
        "p99_s": float(np.quantile(took, 0.99)),
        "memory_bytes": psutil.Process().memory_info().rss,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")
