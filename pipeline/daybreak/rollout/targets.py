"""Lists the release targets: what has to follow when the ledger names another champion.

The ledger decides which version serves; a target shows the decision to the world. Targets are MLflow's alias
`champion`, which people and `models:/NAME@champion` read, and whatever holds versions by itself: the routers
(daybreak/rollout/routers.py) and an endpoint of a cloud, the plug `serving.endpoint`.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from daybreak.contract import params
from daybreak.contract.records import Release, Verdict
from daybreak.registry import aliases, description, packaging
from daybreak.rollout.routers import Routers
from daybreak.storage import checkout, ledger, mlflow_client
from daybreak.storage.traffic_log import existing_log

if TYPE_CHECKING:
    from mlflow import MlflowClient


log = logging.getLogger(__name__)


class Target(Protocol):
    """Shows which version serves. Every method may be called again at any time.

    A method that takes long, or whose service does not answer, raises NotYet and goes on at the next call;
    it raises ReleaseError for what cannot be done at all.
    """

    name: str

    def prepare(self, release: Release) -> None:
        """Prepares the release, so that `show` lacks nothing; users notice no change."""

    def show(self, release: Release) -> None:
        """Lets the version of the release serve, and no other."""

    def shown(self) -> int:
        """Returns the version that serves, as read back from outside; 0 where there is none."""

    def discard(self, release: Release) -> None:
        """Discards what was prepared for a release that is not to serve after all."""


class SplitTarget(Target, Protocol):
    """A target that splits the requests by the traffic row, as an endpoint of a cloud does."""

    tag: str  # in MLflow, of the versions that it holds

    def split(self) -> None:
        """Splits the requests as the traffic row says."""

    def unneeded(self, kept: Collection[int]) -> dict[str, int]:
        """Returns the bytes of each thing that no version needs which is kept or deployed."""

    def remove(self, thing: str) -> None:
        """Removes such a thing."""


class Alias:
    """The alias `champion` in MLflow, the tags, and the text that a reviewer reads."""

    name = "MLflow's alias champion"

    def __init__(self, client: "MlflowClient", model: str) -> None:
        self.client = client
        self.model = model

    def prepare(self, release: Release) -> None:
        """Raises ReleaseError unless MLflow has the version, whose files are fetched and verified."""
        packaging.expect_files(self.client, self.model, release)

    def show(self, release: Release) -> None:
        """Moves the alias and the tags; after a rollback, writes its reason on both versions' pages."""
        if not aliases.is_settled(self.client, self.model, release):
            aliases.show(self.client, self.model, release)
        tip = ledger.commits(limit=1)
        if tip and tip[0].rollback:
            verdict = ledger.read_at(tip[0].id, Verdict)
            reason = verdict.reason if verdict else "rolled back"
            self._write_first_paragraph(release, f"**Verdict:** {description.plain(reason)}")

    def shown(self) -> int:
        """Returns the version under the alias; 0 where there is none."""
        return aliases.alias(self.client, self.model)

    def discard(self, release: Release) -> None:
        """Does nothing, since `prepare` only looks."""

    def _write_first_paragraph(self, release: Release, paragraph: str) -> None:
        for number in (release.version, release.replaced):
            with aliases.missing_is_nothing():  # the version may have been deleted
                text = self.client.get_model_version(self.model, str(number)).description or ""
                changed = description.with_first(text, paragraph)
                if changed != text:
                    self.client.update_model_version(self.model, str(number), description=changed)


def release_targets(client: "MlflowClient", model: str) -> list[Target]:
    """Returns all targets in the order in which they are shown a release.

    Params are the home's, not a night's, since serving belongs to the home.
    """
    serving = params.load(checkout.home()).serving
    traffic_log = existing_log(serving, checkout.home())
    targets: list[Target] = [Alias(client, model)]
    if traffic_log:
        targets.append(Routers(traffic_log))
    if serving.endpoint:
        targets.append(serving.endpoint.make().target(client, model, traffic_log))
    return targets


@contextmanager
def endpoint(model: str) -> Iterator[SplitTarget | None]:
    """Yields the endpoint, which has to follow every change of the traffic row; None where there is none."""
    serving = params.load(checkout.home()).serving
    if serving.endpoint is None:
        yield None
        return
    with mlflow_client.session() as client:
        yield serving.endpoint.make().target(client, model, existing_log(serving, checkout.home()))
