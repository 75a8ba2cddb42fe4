"""Loads and scores a version in a process that has nothing but its files: a script, run by the smoke test.

The script imports nothing of the pipeline: the version brings the code that it was registered with, as on a
server. Before it reads its request (daybreak/registry/host.py), it imports the libraries that any version
needs.
"""

import contextlib
import importlib
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

SINGLES = 100  # samples or rows one by one, to time a request


def measure(
    *, version: str, folder: str, numbers: list[int], rows: list[dict[str, Any]], scored: bool
) -> dict[str, Any]:
    """Loads the version, answers once, then scores all samples together and some one by one.

    The start is measured in CPU seconds of this process, and a request without waiting for a CPU, since the
    machine may be busy.
    """
    import mlflow.pyfunc
    import pandas as pd
    import psutil
    from mlflow.types import DataType

    # It warns of packages of other versions, for which it reads what each has installed; the scores decide.
    model = mlflow.pyfunc.load_model(version, suppress_warnings=True)
    if model.metadata.saved_input_example_info is None:  # it takes the numbers of samples
        sent = pd.DataFrame({"sample": numbers})
        params = {"folder": folder, "split": "test"}
    else:
        example = model.metadata.load_input_example(version)
        sent, params = pd.DataFrame(rows, dtype=object) if rows else example, None
        for column in model.metadata.signature.inputs.inputs:
            if column.type == DataType.datetime and column.name in sent:
                sent[column.name] = pd.to_datetime(sent[column.name], format="ISO8601")

    def answered(first: int, last: int) -> list[float]:
        # A column that may be null may be left out; one that is all null has no type that MLflow knows.
        answers = model.predict(sent.iloc[first:last].dropna(axis=1, how="all"), params=params)
        columns = (
            [answers[name] for name in sorted(map(str, answers))]
            if isinstance(answers, pd.DataFrame)
            else [answers]
        )
        return [float(value) for column in columns for value in np.asarray(list(column)).ravel()]

    answered(0, 1)
    start_cpu_s = time.process_time()
    if not scored:
        return {"start_cpu_s": start_cpu_s}
    scores = answered(0, len(sent))
    took = []
    for number in range(min(SINGLES, len(sent))):
        took.append(unhindered_s(partial(answered, number, number + 1)))
    return {
        "start_cpu_s": start_cpu_s,
        "scores": [float(score) if math.isfinite(score) else None for score in scores],
        "p50_s": float(np.quantile(took, 0.5)),
        "p99_s": float(np.quantile(took, 0.99)),
        "memory_bytes": psutil.Process().memory_info().rss,
    }


def unhindered_s(request: Callable[[], Any]) -> float:
    """Returns the seconds that a request takes where no other process wants the CPU.

    This is elapsed time less the time that threads waited for a CPU, but at least the CPU time used, since
    several threads may wait at once.
    """
    began, cpu, waited = time.perf_counter(), time.process_time(), _waited_s()
    request()
    waited = max(_waited_s() - waited, 0.0)
    return max(time.perf_counter() - began - waited, time.process_time() - cpu)


def _waited_s() -> float:
    """Returns the seconds that the threads of this process could have run and did not; 0 but on Linux."""
    total = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has ended
            total += int(path.read_text().split()[1])
    return total / 1e9


VERBS = {"smoke": measure}

if __name__ == "__main__":  # what every version needs, before there is a request
    for library in ("mlflow.pyfunc", "pandas", "psutil", "torch"):
        importlib.import_module(library)
