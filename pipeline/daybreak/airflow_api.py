"""Asks the REST API of an Airflow: that which `make up` runs for a home, or a team's own by its login."""

import json
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daybreak import airflow_health
from daybreak.storage.home import Home

TIMEOUT_S = 10.0
TRIES = 3  # Airflow on SQLite answers with an error while another of its processes writes
USER = "admin"


@dataclass(frozen=True)
class Airflow:
    """An Airflow and a token of its interface."""

    url: str
    token: str

    def ask(self, path: str, body: object = None, *, method: str = "") -> dict[str, Any]:
        """Returns the answer to a call; OSError where it is refused, or nobody answers."""
        return _ask(self.url + path, body, method=method, headers={"Authorization": f"Bearer {self.token}"})


def of_home(home: Home) -> Airflow | None:
    """Returns the Airflow that `make up` runs for a home, with a token by its login; None without one.

    Raises OSError, ValueError or KeyError where it gives no token.
    """
    settings = airflow_health.settings(home)
    url = settings.get("AIRFLOW__API__BASE_URL", "")
    return Airflow(url, _token(url, settings)) if url else None


def _token(url: str, settings: dict[str, str]) -> str:
    """Returns a token of Airflow's interface, by the login that `make up` keeps."""
    if settings.get("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "").lower() == "true":
        return str(_ask(f"{url}/auth/token")["access_token"])
    kept = Path(settings["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]).read_text()
    return logged_in(url, USER, json.loads(kept)[USER]).token


def logged_in(url: str, user: str, password: str) -> Airflow:
    """Returns an Airflow with a new token by a login; OSError, ValueError or KeyError where it gives none."""
    login = {"username": user, "password": password}
    return Airflow(url, str(_ask(f"{url}/auth/token", login)["access_token"]))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would take the token along."""

    def redirect_request(self, *_: object) -> None:
        """Has the redirect fail as an HTTP error."""


def _ask(
    url: str, body: object = None, *, method: str = "", headers: dict[str, str] | None = None
) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, given, method=method or None)
    opener = urllib.request.build_opener(_NoRedirect)
    for left in reversed(range(TRIES)):
        try:
            with opener.open(request, timeout=TIMEOUT_S) as reply:
                answered: dict[str, Any] = json.loads(reply.read())
            break
        except OSError as error:
            if not left or getattr(error, "code", 500) < 500:
                raise
            time.sleep(1)
    return answered
