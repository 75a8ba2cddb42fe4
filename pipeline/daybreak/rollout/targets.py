"""Lists the release targets: what has to follow when the ledger names another champion.

The ledger decides which version serves; a target shows the decision to the world. Targets are MLflow's alias
`champion`, which people and `models:/NAME@champion` read, and whatever holds versions by itself: the routers
(hook `target`) and an endpoint of a cloud, the plug `serving.endpoint`.
"""

import logging
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from daybreak import hooks
from daybreak.contract.record_types import Release, Verdict
from daybreak.registry import aliases, carried_code, description
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import existing_log

if TYPE_CHECKING:
    from mlflow import MlflowClient


log = logging.getLogger(__name__)


def expect_files(home: Home, client: "MlflowClient", name: str, release: Release) -> None:
    """Raises ReleaseError unless the version of a release can be loaded: its files are fetched and verified.

    What moves an alias looks here first: else nothing would serve where they are gone.
    """
    aliases.expect(client, name, release)
    with tempfile.TemporaryDirectory() as scratch:
        carried_code.fetch(home, f"models:/{name}/{release.version}", release, into=Path(scratch))


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

    def __init__(self, home: Home, client: "MlflowClient", model: str) -> None:
        self.home = home
        self.client = client
        self.model = model

    def prepare(self, release: Release) -> None:
        """Raises ReleaseError unless MLflow has the version, whose files are fetched and verified."""
        expect_files(self.home, self.client, self.model, release)

    def show(self, release: Release) -> None:
        """Moves the alias and the tags; after a rollback, writes its reason on both versions' pages."""
        if not aliases.is_settled(self.client, self.model, release):
            aliases.show(self.client, self.model, release)
        tip = ledger.commits(self.home, limit=1)
        if tip and tip[0].rollback:
            verdict = branch.read_at(self.home, tip[0].id, Verdict)
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
                changed = description.fitting(description.with_first(text, paragraph))
                if changed != text:
                    self.client.update_model_version(
                        self.model, str(number), description=description.fitting(changed)
                    )


def release_targets(home: Home, client: "MlflowClient", model: str) -> list[Target]:
    """Returns all targets in the order in which they are shown a release.

    Params are the home's, not a night's, since serving belongs to the home.
    """
    serving = home.params.serving
    traffic_log = existing_log(serving, home.folder)
    targets: list[Target] = [Alias(home, client, model)]
    if traffic_log:
        targets += [made(home, traffic_log) for made in hooks.functions("target")]
    if serving.endpoint:
        targets.append(serving.endpoint.make().target(home, client, model, traffic_log))
    return targets


@contextmanager
def endpoint(home: Home, model: str) -> Iterator[SplitTarget | None]:
    """Yields the endpoint, which has to follow every change of the traffic row; None where there is none."""
    serving = home.params.serving
    if serving.endpoint is None:
        yield None
        return
    with mlflow_client.session(home) as client:
        yield serving.endpoint.make().target(home, client, model, existing_log(serving, home.folder))
