"""Reads and moves the aliases `champion` and `challenger` in MLflow, and the tags that go with them.

MLflow writes an alias unconditionally, so an alias decides nothing: the ledger decides, by compare-and-swap,
and the alias follows (daybreak/rollout/targets.py). An edit by hand shows in that the two disagree.
"""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Release

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)

CHAMPION = "champion"
CHALLENGER = "challenger"
REJECTED = "rejected"
PRUNED = "pruned"  # tag of a version whose model was deleted (daybreak/rollout/prune.py): the day of that
REPLACED = "replaced"
SERVING = "serving"  # the tag `status`: challenger, rejected, serving, replaced, refitted
REFITTED = "refitted"  # a refit of the version serves in its place


def is_settled(client: "MlflowClient", name: str, serving: Release) -> bool:
    """Returns whether the aliases and the version's own tag name the version that serves."""
    shown = alias(client, name) == serving.version and status(client, name, serving.version) == SERVING
    return shown and not _stale_challenger(client, name)


def alias(client: "MlflowClient", name: str, which: str = CHAMPION) -> int:
    """Returns the version under the alias; 0 where there is none."""
    with missing_is_nothing():
        return int(client.get_model_version_by_alias(name, which).version)
    return 0


def tidy(client: "MlflowClient", name: str) -> None:
    """Takes the alias `challenger` off a version that is none any more."""
    number = alias(client, name, CHALLENGER)
    if number and status(client, name, number) != CHALLENGER:
        client.delete_registered_model_alias(name, CHALLENGER)


def reject(client: "MlflowClient", name: str, number: int) -> None:
    """Marks a challenger that is not to serve; a version that served, or serves, stays as it is."""
    if status(client, name, number) == CHALLENGER:
        tag(client, name, number, status=REJECTED)
    tidy(client, name)


def _stale_challenger(client: "MlflowClient", name: str) -> bool:
    number = alias(client, name, CHALLENGER)
    return bool(number) and status(client, name, number) in (SERVING, REPLACED, REFITTED)


def status(client: "MlflowClient", name: str, number: int) -> str:
    """Returns the tag `status` of the version: challenger, rejected, serving, replaced, or ""."""
    return str(existing(client, name, number).tags.get("status", ""))


def existing(client: "MlflowClient", name: str, number: int) -> "ModelVersion":
    """Returns the version; raises ReleaseError where MLflow has none of that number."""
    with missing_is_nothing():
        return client.get_model_version(name, str(number))
    raise ReleaseError(
        f"MLflow has no version {number} of {name}; restore its database, or choose another version"
    )


def tag(client: "MlflowClient", name: str, number: int, **tags: str) -> None:
    """Sets tags of a version."""
    for key, value in tags.items():
        client.set_model_version_tag(name, str(number), key, value)


@contextlib.contextmanager
def missing_is_nothing() -> Iterator[None]:
    """Suppresses the error of a block that asks MLflow for something it does not have."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise


def expect(client: "MlflowClient", name: str, release: Release) -> None:
    """Raises ReleaseError unless MLflow has the version of the release, with the same model."""
    tags = existing(client, name, release.version).tags
    if PRUNED in tags:
        raise ReleaseError(
            f"the model of version {release.version} of {name} was deleted on {tags[PRUNED]}, as no night "
            f"of the last night.keep_days needed it; choose another version"
        )
    digest = tags.get("model_digest")
    if digest != release.model_digest:
        raise ReleaseError(
            f"version {release.version} of {name} is of model {digest}, "
            f"not {release.model_digest}; run register again, or choose another version"
        )


def show(client: "MlflowClient", name: str, serving: Release) -> None:
    """Moves the aliases to the version that serves, and tags it and the version that it replaced."""
    existing(client, name, serving.version)
    client.set_registered_model_alias(name, CHAMPION, str(serving.version))
    if serving.replaced:
        with missing_is_nothing():  # the version may have been deleted
            tag(client, name, serving.replaced, status=REPLACED)
    tag(client, name, serving.version, status=SERVING)
    tidy(client, name)
    log.info("version %d of %s serves", serving.version, name)


def versions(client: "MlflowClient", name: str) -> "list[ModelVersion]":
    """Returns all versions of the model, which are read page by page."""
    versions: list[ModelVersion] = []
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=1000, page_token=token)
        versions += page
        token = page.token
        if not token:
            return versions


def newest_tagged(client: "MlflowClient", name: str) -> tuple[int, str] | None:
    """Returns the newest version that a closed night tagged, and the commit of the ledger in its tag."""
    search, token = client.search_model_versions, None
    while True:
        page = search(f"name = '{name}'", max_results=20, order_by=["version_number DESC"], page_token=token)
        for one in page:
            if one.tags.get("ledger"):
                return int(one.version), str(one.tags["ledger"])
        if not (token := page.token):
            return None
