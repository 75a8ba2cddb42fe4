"""A real PostgreSQL for the tests that need one."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def postgresql(*databases: str) -> Iterator[str]:
    """Starts a PostgreSQL on a unix socket, with these databases of user airflow, and yields its folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not programs:
        pytest.skip("no PostgreSQL here; install Debian's package postgresql")
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        drop: list[str] = []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            drop = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
            shutil.chown(name, "nobody", "nogroup")

        def run(program: str, *arguments: str) -> None:
            call = [*drop, str(programs[-1] / program), *arguments]
            subprocess.run(call, check=True, cwd=name, stdout=subprocess.DEVNULL, timeout=300)

        data = f"{name}/data"
        run("initdb", "--pgdata", data, "--auth=trust", "--username=airflow", "--no-sync")
        options = f"-c listen_addresses='' -c fsync=off -k {name}"
        run("pg_ctl", "--pgdata", data, "--log", f"{name}/log", "--options", options, "--wait", "start")
        try:
            for database in databases:
                run("createdb", "--host", name, "--username=airflow", database)
            yield name
        finally:
            run("pg_ctl", "--pgdata", data, "--mode=fast", "--wait", "stop")
