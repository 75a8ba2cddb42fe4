"""Checks that the processes of Airflow are alive, by the heartbeats that its interface reports.

`python -m daybreak.airflow_health --wait SECONDS` exits with 0 once all of them are.
"""

import argparse
import json
import os
import sys
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daybreak.contract import environment
from daybreak.storage.home import Home

PROCESSES = ("scheduler", "dag_processor", "triggerer")
TIMEOUT_S = 10.0


def address(home: Home) -> str:
    """Returns the URL of the Airflow that `make up` keeps running for this home; "" where there is none."""
    return settings(home).get("AIRFLOW__API__BASE_URL", "")


def settings(home: Home) -> dict[str, str]:
    """Returns the environment of the Airflow that `make up` keeps running for this home; {} without one."""
    import psutil

    try:
        supervisor = psutil.Process(int((home.var / "supervisord.pid").read_text()))
        environment = supervisor.environ()
    except (OSError, ValueError, psutil.Error):
        return {}
    up_here = Path(environment.get("DAYBREAK_UP", "/")).resolve() == home.folder  # else a reused id
    return dict(environment) if up_here else {}


def late(url: str) -> list[str]:
    """Returns a sentence for each process whose heartbeat is old; none where all are alive."""
    try:
        with urllib.request.urlopen(f"{url}/api/v2/monitor/health", timeout=TIMEOUT_S) as answer:
            health: dict[str, Any] = json.loads(answer.read())
    except (OSError, ValueError) as error:
        return [f"Airflow's interface at {url} does not answer ({error}); look at var/api-server.log"]
    if health["metadatabase"]["status"] != "healthy":
        return ["Airflow's interface cannot read its database; look at var/api-server.log"]
    return [
        f"the heartbeat of Airflow's {name} is {_age(health[name][f'latest_{name}_heartbeat'])}: no night "
        f"runs without it; look at var/{name.replace('_', '-')}.log, then make down and make up"
        for name in PROCESSES
        if health[name]["status"] != "healthy"
    ]


def _age(heartbeat: str | None) -> str:
    """Returns how old a heartbeat is, in words."""
    if heartbeat is None:
        return "missing"
    age_s = (datetime.now(UTC) - datetime.fromisoformat(heartbeat)).total_seconds()
    return f"{age_s:.0f} s old" if age_s < 120 else f"{age_s / 60:.0f} min old"


def wait(url: str, *, timeout_s: float) -> list[str]:
    """Waits until all processes are alive; returns what `late` says after `timeout_s` at most."""
    end = time.monotonic() + timeout_s
    while (sentences := late(url)) and time.monotonic() < end:
        time.sleep(1)
    return sentences


if __name__ == "__main__":
    environment.spare_loopback(os.environ)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wait", type=float, default=0, metavar="SECONDS")
    sys.exit("\n".join(wait(address(Home.here()), timeout_s=parser.parse_args().wait)) or 0)
