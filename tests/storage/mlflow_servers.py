"""Real servers of MLflow on loopback, of any version, with a login or without."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.dags.servers import environment, free_port, server

LOGIN = """\
[mlflow]
default_permission = READ
database_uri = postgresql+psycopg2://mlflow@postgres/mlflow
auth_cache_ttl_seconds = 60
"""


def log_in(patch: pytest.MonkeyPatch, url: str, name: str, password: str) -> None:
    """Has this process use a server by this account."""
    patch.setenv("MLFLOW_TRACKING_URI", url)
    patch.setenv("MLFLOW_TRACKING_USERNAME", name)
    patch.setenv("MLFLOW_TRACKING_PASSWORD", password)


@contextmanager
def mlflow_served(
    folder: Path,
    *,
    login: str = "",
    admin: tuple[str, str] = ("", ""),
    direct: bool = False,
    python: str = sys.executable,
) -> Iterator[str]:
    """Address of a server of the MLflow beside `python`; its log is `mlflow.log` in the folder.

    With `login`, the settings of its login, it asks for one, and `admin` is name and password of who may do
    everything. `direct`: its clients read and write artifacts by themselves.
    """
    url = f"http://127.0.0.1:{free_port()}"
    command = [str(Path(python).with_name("mlflow")), "server", "--host=127.0.0.1", "--workers=1"]
    command += [f"--port={url.rpartition(':')[2]}"]
    command += ["--app-name=basic-auth"] if login else []
    artifacts = (folder / "artifacts").as_uri()
    where = "--default-artifact-root" if direct else "--artifacts-destination"
    command += [f"{where}={artifacts}", "--no-serve-artifacts" if direct else "--serve-artifacts"]
    given = environment(folder) | {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "of a test",
        "MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX": "^(mlflow-artifacts|file|runs):/",
    }
    given.pop("PYTHONPATH", None)  # of this environment, whose packages are others
    if login:
        settings = folder / "login.ini"
        database = f"sqlite:///{folder}/login.db"
        settings.write_text(login.replace("postgresql+psycopg2://mlflow@postgres/mlflow", database))
        given |= {
            "MLFLOW_AUTH_CONFIG_PATH": str(settings),
            "MLFLOW_AUTH_ADMIN_USERNAME": admin[0],
            "MLFLOW_AUTH_ADMIN_PASSWORD": admin[1],
        }
        if python != sys.executable:  # before 3.10, name and password stand in the file alone
            with settings.open("a") as file:
                file.write(f"admin_username = {admin[0]}\nadmin_password = {admin[1]}\n")

    def up() -> bool:
        try:
            return requests.get(f"{url}/health", timeout=5).ok
        except requests.RequestException:
            return False

    with server(command, given=given, folder=folder, up=up):
        yield url
