"""Who has to follow when the ledger names another champion? The registry's alias, and whatever serves.

The ledger decides who serves; a follower shows it to the world: MLflow's alias `champion`, which people and
`models:/NAME@champion` read, and what holds versions by itself: the routers (pipeline/rollout/routers.py)
and an endpoint on Vertex AI (pipeline/rollout/endpoint.py).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pipeline.contract import params
from pipeline.contract.records import Release, Verdict
from pipeline.registry import aliases, description
from pipeline.rollout.routers import Routers
from pipeline.storage import ledger, mlflow_client
from pipeline.storage.traffic_log import existing_log

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from pipeline.rollout.endpoint import OnVertex

log = logging.getLogger(__name__)


class Follower(Protocol):
    """Shows who serves. Every method may be called again at any time.

    One that takes long, or whose service does not answer, raises NotYet and goes on at the next call; what
    cannot be done at all is a ReleaseError.
    """

    name: str

    def prepare(self, release: Release) -> None:
        """Get ready to show it, so that `show` cannot fail for want of anything; users notice nothing."""

    def show(self, release: Release) -> None:
        """Let that version serve, and no other."""

    def shown(self) -> int:
        """Version that serves, asked anew from outside; 0 where there is none."""

    def forget(self, release: Release) -> None:
        """Drop what was laid ready for a version that is not to serve after all."""


class Alias:
    """The alias `champion` in MLflow, the tags, and the words that a reviewer reads."""

    name = "MLflow's alias champion"

    def __init__(self, client: "MlflowClient", model: str) -> None:
        self.client = client
        self.model = model

    def prepare(self, release: Release) -> None:
        """ReleaseError unless MLflow has the version, and of the model that the ledger means."""
        aliases.expect(self.client, self.model, release)

    def show(self, release: Release) -> None:
        """Move alias and tags; of a rollback, tell both versions' pages why."""
        if not aliases.is_settled(self.client, self.model, release):
            aliases.show(self.client, self.model, release)
        tip = ledger.commits(limit=1)
        if tip and tip[0].rollback:
            verdict = ledger.read_at(tip[0].id, Verdict)
            self._tell(release, f"**Verdict:** {verdict.reason if verdict else 'rolled back'}")

    def shown(self) -> int:
        """Version under the alias."""
        return aliases.alias(self.client, self.model)

    def forget(self, release: Release) -> None:
        """Nothing was laid ready."""

    def _tell(self, release: Release, paragraph: str) -> None:
        for number in (release.version, release.replaced):
            with aliases.missing_is_nothing():  # it may have been deleted
                text = self.client.get_model_version(self.model, str(number)).description or ""
                page = description.with_first(text, paragraph)
                if page != text:
                    self.client.update_model_version(self.model, str(number), description=page)


def followers(client: "MlflowClient", model: str) -> list[Follower]:
    """Returns all followers in the order in which they are moved; they are the home's, not a night's."""
    serving = params.load(ledger.home()).serving
    kept = existing_log(serving, ledger.home())
    everybody: list[Follower] = [Alias(client, model)]
    if kept:
        everybody.append(Routers(client, model, kept))
    if serving.endpoint:
        everybody.append(serving.endpoint.make().follower(client, model, kept))
    return everybody


@contextmanager
def endpoint(model: str) -> Iterator["OnVertex | None"]:
    """What shares requests out by itself, and so has to be told of every change of the traffic row."""
    serving = params.load(ledger.home()).serving
    if serving.endpoint is None:
        yield None
        return
    with mlflow_client.session() as client:
        yield serving.endpoint.make().follower(client, model, existing_log(serving, ledger.home()))
