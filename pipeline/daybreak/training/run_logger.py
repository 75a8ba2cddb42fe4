"""Logs training metrics to MLflow: `python -m daybreak.training.run_logger FOLDER NIGHT`, beside worker 0.

A separate process follows `progress.jsonl`, so a slow, full or unreachable MLflow costs training nothing. It
ends when its standard input is closed, that is with the worker, however the worker ends. After a restart all
lines are sent again from the first: MLflow keeps one value per metric, time and step.
"""

import logging
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from daybreak.contract.errors import PipelineError
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.jsonl import after

log = logging.getLogger(__name__)

METRICS = ("loss", "rate", "samples_per_s", "memory_bytes")
EVERY_S = 2.0
AT_ONCE = 200  # lines per request; MLflow takes 1000 metrics in one
DRAIN_S = 5.0  # to deliver the rest after training has ended


def follow(path: Path, *, night: str) -> None:
    """Sends the lines of `path` as metrics `train/...`, with samples seen as step, and system metrics."""
    os.nice(10)  # the cores are for training
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    run_id, monitor, until = os.environ.get("MLFLOW_RUN_ID", ""), None, float("inf")
    position, waiting = 0, list[dict[str, Any]]()
    while time.monotonic() < until:
        if until == float("inf") and _ended(EVERY_S):
            until = time.monotonic() + DRAIN_S
        try:
            run_id = run_id or mlflow_client.run_of(Home.here(), night)
            monitor = monitor or _monitor(run_id)
            lines, position = after(path, position)
            waiting += lines
            while waiting:
                metrics = [metric for line in waiting[:AT_ONCE] for metric in _metrics(line)]
                MlflowClient().log_batch(run_id, metrics=metrics)
                del waiting[:AT_ONCE]
            if until < float("inf"):
                break
        except (MlflowException, PipelineError, OSError) as error:
            log.warning("MLflow does not take the metrics (%s); trying again", str(error)[:200])
            if until < float("inf"):
                time.sleep(EVERY_S)
    if monitor:
        monitor.finish()


def _monitor(run_id: str) -> Any:
    from mlflow.system_metrics import system_metrics_monitor as metrics

    make: Any = metrics.SystemMetricsMonitor
    monitor = make(run_id, sampling_interval=EVERY_S, resume_logging=True)
    monitor.start()
    return monitor


def _metrics(line: dict[str, Any]) -> list[Any]:
    from datetime import datetime

    from mlflow.entities import Metric

    stamp = int(datetime.fromisoformat(line["time"]).timestamp() * 1000)
    return [Metric(f"train/{name}", line[name], stamp, line["seen"]) for name in METRICS]


def _ended(timeout_s: float) -> bool:
    """Returns whether standard input was closed, after waiting for that up to a limit."""
    ready, _, _ = select.select([sys.stdin], [], [], timeout_s)
    return bool(ready)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    follow(Path(sys.argv[1]) / "progress.jsonl", night=sys.argv[2])
