"""Does MLflow show what the ledger decided? The aliases `champion` and `challenger`, and what follows them.

MLflow writes an alias unconditionally, so it decides nothing: the ledger does, by compare-and-swap, and the
alias follows (pipeline/rollout/targets.py). An edit by hand is seen by that the two disagree.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.contract.errors import ReleaseError
from pipeline.contract.records import Release

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)

CHAMPION = "champion"
CHALLENGER = "challenger"
SERVING = "serving"  # the tag `status`: challenger, rejected, serving, replaced


def is_settled(client: "MlflowClient", name: str, serving: Release) -> bool:
    """Do the alias and the version's own tag name the version that serves?"""
    return alias(client, name) == serving.version and status(client, name, serving.version) == SERVING


def alias(client: "MlflowClient", name: str) -> int:
    """Version under the alias `champion`; 0 where there is none."""
    with missing_is_nothing():
        return int(client.get_model_version_by_alias(name, CHAMPION).version)
    return 0


def status(client: "MlflowClient", name: str, number: int) -> str:
    """Where the version stands: the tag `status`."""
    return str(existing(client, name, number).tags.get("status", ""))


def existing(client: "MlflowClient", name: str, number: int) -> "ModelVersion":
    """The version, or ReleaseError where MLflow has none of that number."""
    with missing_is_nothing():
        return client.get_model_version(name, str(number))
    raise ReleaseError(
        f"MLflow has no version {number} of {name}; restore its database, or choose another version"
    )


def tag(client: "MlflowClient", name: str, number: int, **tags: str) -> None:
    """Set tags of a version."""
    for key, value in tags.items():
        client.set_model_version_tag(name, str(number), key, value)


@contextlib.contextmanager
def missing_is_nothing() -> Iterator[None]:
    """Go on after the block where MLflow does not have what was asked for."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise


def expect(client: "MlflowClient", name: str, release: Release) -> None:
    """ReleaseError unless MLflow has the version, and of the model that the release is of."""
    found = existing(client, name, release.version)
    if found.tags.get("model_digest") != release.model_digest:
        raise ReleaseError(
            f"version {release.version} of {name} is of model {found.tags.get('model_digest')}, "
            f"not {release.model_digest}; run register again, or choose another version"
        )


def show(client: "MlflowClient", name: str, serving: Release) -> None:
    """Move the alias to the version that serves, and say in the tags who does and who did."""
    existing(client, name, serving.version)
    client.set_registered_model_alias(name, CHAMPION, str(serving.version))
    if serving.replaced:
        with missing_is_nothing():  # it may have been deleted
            tag(client, name, serving.replaced, status="replaced")
    tag(client, name, serving.version, status=SERVING)
    log.info("version %d of %s serves", serving.version, name)
