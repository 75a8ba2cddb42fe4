"""Corrects variables of a process's environment that lead git or a proxy elsewhere."""

import contextlib
import re
from collections.abc import Iterator, MutableMapping
from urllib.parse import urlsplit

PROXIES = ("http_proxy", "https_proxy", "all_proxy")  # also in capitals
HERE = ("localhost", "127.0.0.1", "::1")  # no "[::1]", on which httpx fails
ADDRESS = re.compile(r"\b(?:https?|postgresql|mysql|redis|amqp)[+\w]*://[^\s,;'\"]+")
# Variables by which git works on another repository than that of its folder. Those of its settings stay:
# containers name safe folders by them.
OF_ANOTHER_REPOSITORY = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_REPLACE_REF_BASE"),
    *("GIT_GRAFT_FILE", "GIT_SHALLOW_FILE"),
)


def forget_repository(environment: MutableMapping[str, str]) -> None:
    """Removes what leads git to another repository: hooks of git are started with such variables."""
    for name in OF_ANOTHER_REPOSITORY:
        environment.pop(name, None)


def proxy(environment: MutableMapping[str, str]) -> str:
    """Returns the variable that names a proxy; "" where none does."""
    return next((name for name, value in environment.items() if name.lower() in PROXIES and value), "")


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """Keeps proxies away from this machine, and from services that the environment names without a dot.

    Neither Airflow's and MLflow's clients nor ours would reach them otherwise: `HTTP_PROXY` holds for
    127.0.0.1 as for any address. No proxy outside knows a name without a dot.
    """
    given = [environment.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    if proxy(environment) and "*" not in given:  # no proxy at all, where it stands alone
        named = [each.strip() for each in ",".join(given).split(",")]
        values = " ".join(value for name, value in environment.items() if name.lower() not in PROXIES)
        kept = dict.fromkeys(filter(None, [*named, *HERE, *_names_without_a_dot(values)]))
        environment["no_proxy"] = environment["NO_PROXY"] = ",".join(kept)


def _names_without_a_dot(text: str) -> Iterator[str]:
    for address in ADDRESS.findall(text):
        with contextlib.suppress(ValueError):
            host = urlsplit(address).hostname or ""
            if re.fullmatch(r"[a-z][\w-]*", host):
                yield host
