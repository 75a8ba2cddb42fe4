"""Gives MLflow an account that only reads, for routers: `python -m daybreak.storage.mlflow_reader`.

It needs MLFLOW_TRACKING_URI with the name and password of an administrator, and READER_PASSWORD. An account
that is there already gets that password. What it may read is MLflow's `default_permission`.
"""

import os
import sys

import requests

from daybreak.contract.errors import JobError, PipelineError, without_password

NAME = "reader"
USERS = "/api/2.0/mlflow/users"
TIMEOUT_S = 30


def make_reader(uri: str, *, admin: tuple[str, str], password: str) -> None:
    """Makes the account or sets its password; JobError if MLflow does neither."""
    account = {"username": NAME, "password": password}
    try:
        made = requests.post(f"{uri}{USERS}/create", json=account, auth=admin, timeout=TIMEOUT_S)
        if "RESOURCE_ALREADY_EXISTS" in made.text:
            made = requests.patch(
                f"{uri}{USERS}/update-password", json=account, auth=admin, timeout=TIMEOUT_S
            )
    except requests.RequestException as error:
        problem = type(error).__name__
        raise JobError(f"MLflow at {without_password(uri)} is not reached: {problem}; start it") from None
    if not made.ok:
        raise JobError(
            f"MLflow at {without_password(uri)} refuses the account {NAME} (status {made.status_code}); "
            f"look at MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD and READER_PASSWORD"
        )


if __name__ == "__main__":
    try:
        make_reader(
            os.environ["MLFLOW_TRACKING_URI"],
            admin=(os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]),
            password=os.environ["READER_PASSWORD"],
        )
    except PipelineError as error:
        sys.exit(str(error))
