"""What does a version do in a process that has nothing but its files? A script, run by `fitness`.

    echo CASE | python -I pipeline/evaluation/smoke_process.py

It imports nothing of the pipeline: the version brings the code that it was registered with, as it does to
whatever serves. It imports what any version needs while it waits for its case, a line of JSON; what it found
is the last line it prints, as JSON.
"""

import importlib
import json
import math
import sys
import time
from typing import Any

import numpy as np

SINGLES = 100  # samples scored one by one, to time a request


def look() -> dict[str, Any]:
    """Load the version, answer once, then score all samples, and some one by one.

    Starting is counted in seconds of this process's CPU, since the machine that judges may be busy.
    """
    import mlflow.pyfunc
    import pandas as pd
    import psutil

    importlib.import_module("torch")  # whose model it is, whatever the workload
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
    sys.stdout.write(json.dumps(look()) + "\n")
