"""How does Vertex AI show who serves? An endpoint whose traffic follows the ledger, one step a call.

`prepare` has a version in Vertex's registry, with labels to MLflow and a tag in MLflow to it, and deployed
where nobody meets it; `show` gives it all of the traffic; `share` gives a challenger some. A deployment takes
minutes, so none is waited for: what is missing is begun, and NotYet says what; the next call looks again.

What takes long is begun once (asked.py), and deployments are named by their version, so there is never a
second one of it.
"""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import ledger, records
from pipeline.backends import premises
from pipeline.backends.calls import Denied, Patience, Unanswered
from pipeline.backends.deployments import Deployments
from pipeline.backends.luggage import Depot
from pipeline.backends.orders import Site
from pipeline.backends.service import Service
from pipeline.backends.vertex import home_token
from pipeline.errors import NotYet, ParamsError, ReleaseError
from pipeline.records import Dataset, Release
from pipeline.release import aliases, packaging
from pipeline.release.asked import Begun, Book

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint as Served
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

CONTAINER = ("python", "-m", "pipeline.release.container")
PORT, HEALTH, PREDICT = 8080, "/health", "/predict"
TAG = "vertex_model"  # of the version in MLflow


class Endpoint:
    """What `serving.endpoint` of params.yaml names: an endpoint on Vertex AI."""

    def __init__(
        self,
        *,
        project: str,
        image: str,
        bucket: str,  # by which models and arrays reach the containers
        region: str = "us-central1",
        machine: str = "n1-standard-2",
        replicas: int = 1,  # at least, of each deployed version
        max_replicas: int = 0,  # as many as `replicas` if left out
        service_account: str = "",  # of the containers; the project's default if left out
        spare: bool = True,  # the version that was replaced stays deployed, so that a rollback is at once
        command: Sequence[str] = CONTAINER,
        endpoint: str = "",  # of the service; the region's own if left out
        patience: Patience | None = None,
    ) -> None:
        self.project, self.image, self.region, self.address = project, image, region, endpoint
        self.bucket, self.account, self.spare, self.command = (
            Depot(url=bucket),
            service_account,
            spare,
            command,
        )
        self.patience = patience or Patience()
        self.machine = {
            "machine_spec": {"machine_type": machine},
            "min_replica_count": replicas,
            "max_replica_count": max(replicas, max_replicas),
        }

    def premises(self) -> Iterator[tuple[str, bool, str]]:
        """What the endpoint needs: what was looked at, whether it is well, and what is to be done."""
        site = Site(project=self.project, region=self.region, image=self.image, bucket=self.bucket.url)
        service = Service(
            project=self.project, endpoint=self.address, patience=replace(self.patience, give_up_s=5.0)
        )
        for what, well, text in premises.premises(site, service, regions=[self.region]):
            yield f"endpoint's {what}", well, text.replace("backend.", "serving.endpoint.")

    def follower(self, client: "MlflowClient", model: str) -> "OnVertex":
        """The follower for a model of MLflow."""
        return OnVertex(self, client, model)


class OnVertex:
    """Follower: one model's endpoint."""

    def __init__(self, told: Endpoint, client: "MlflowClient", model: str) -> None:
        self.told, self.client, self.model = told, client, model
        self.name = f"Vertex AI's endpoint of {model}"
        self.book = Book(ledger.home() / "var" / "endpoint.json")

    @cached_property
    def there(self) -> Deployments:
        """Vertex AI."""
        return Deployments(
            project=self.told.project, region=self.told.region, model=self.model, home=home_token(),
            endpoint=self.told.address, patience=self.told.patience,
        )  # fmt: skip

    @cached_property
    def begun(self) -> Begun:
        """What takes long there."""
        return Begun(self.book, self.there, who=self.name, settle_s=self.told.patience.settle_s)

    def prepare(self, release: Release) -> None:
        """Have the version deployed where nobody meets it.

        Raises NotYet until it is, and ReleaseError where it cannot be.
        """
        with self._asking():
            self.book.want(release.champion)
            self._lay_ready(release)

    def show(self, release: Release) -> None:
        """Give it all of the traffic, and take down what does not serve; NotYet while it is not deployed."""
        number = release.champion
        with self._asking():
            self.book.want(number)
            self._lay_ready(release)
            served = self.there.served()
            if served and dict(served.traffic_split) != {str(number): 100}:
                self.there.split({str(number): 100})
                log.info("version %d of %s has all of the traffic", number, self.model)
            kept = {number}
            if self.told.spare and release.replaced < number:  # after a rollback it is not to come back
                kept.add(release.replaced)
            self.book.unwant(*(set(_deployed(served)) - kept))
            self._sweep()

    def share(self, champion: int, challenger: int, share: float) -> None:
        """Let that share of the requests meet the challenger, in whole percent; 0: none.

        ReleaseError unless both are deployed: `prepare` it first.
        """
        percent = round(100 * share)
        if not 0 <= percent <= 100 or abs(percent - 100 * share) > 1e-9:
            raise ParamsError(f"a share of {share:g} is no whole percent, which Vertex AI wants; round it")
        parts = {str(champion): 100 - percent, str(challenger): percent}
        parts = {number: part for number, part in parts.items() if part}
        with self._asking():
            served = self.there.served()
            missing = [number for number in parts if int(number) not in _deployed(served)]
            if missing:
                raise ReleaseError(
                    f"version {missing[0]} of {self.model} is not deployed, so it cannot get "
                    f"{parts[missing[0]]} % of the traffic; have it laid ready first"
                )
            if served and dict(served.traffic_split) != parts:
                self.there.split(parts)

    def shown(self) -> int:
        """Version with the most traffic, at a tie the older one; 0 where there is none."""
        with self._asking():
            self._sweep()
            served = self.there.served()
            split = dict(served.traffic_split) if served else {}
            return max((int(one) for one in split), key=lambda one: (split[str(one)], -one), default=0)

    def forget(self, release: Release) -> None:
        """Have it taken down as soon as that is possible; whoever asks next goes on with it."""
        with self.book.alone():
            self.book.unwant(release.champion)
            try:
                self._sweep()
            except (Unanswered, Denied) as error:
                log.warning("version %d is taken down later: %s", release.champion, error)

    # One step a call

    def _lay_ready(self, release: Release) -> None:
        number, there = release.champion, self.there
        served = there.served()
        if number in _deployed(served):
            self.book.drop(f"deploy {number}")
            return
        if served is None:
            self.begun.begin("make the endpoint", there.endpoint, there.make_endpoint)
        self.book.drop("make the endpoint")
        version = there.version(number)
        if version is None:
            self.begun.begin(f"upload {number}", there.model, lambda: self._upload(release))
        self.book.drop(f"upload {number}")
        name = f"{there.model}@{version.version_id}"
        if aliases.existing(self.client, self.model, number).tags.get(TAG) != name:
            aliases.tag(self.client, self.model, number, **{TAG: name})
        self.begun.begin(
            f"deploy {number}",
            there.endpoint,
            lambda: there.deploy(number, version=name, machine=self.told.machine, account=self.told.account),
        )

    def _sweep(self) -> None:
        """Begin to take down what is not wanted and has no traffic; forget what is gone."""
        unwanted = self.book.unwanted()
        if not unwanted:
            return
        served = self.there.served()
        for number in unwanted:
            if number in _deployed(served):
                self.book.drop(f"deploy {number}")
                if served and not served.traffic_split.get(str(number)):
                    self._take_down(number)
                continue
            if not self.begun.is_coming(f"deploy {number}"):  # else it is taken down when it has come
                self.book.want(number)
                self.book.drop(f"deploy {number}")

    def _take_down(self, number: int) -> None:
        try:
            self.there.undeploy(number)
            log.info("version %d of %s is taken down", number, self.model)
        except (Denied, Unanswered) as error:
            log.info("version %d is not taken down now: %s", number, error)  # it may be on its way

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Alone; a service that does not answer is NotYet, one that refuses is ReleaseError."""
        with self.book.alone():
            try:
                yield
            except Unanswered as error:
                raise NotYet(f"{self.name}: {error}") from error
            except Denied as error:
                raise ReleaseError(f"{self.name}: {error}") from error

    # What is sent

    def _upload(self, release: Release) -> str:
        """Lay the version's files out in the bucket, and begin to register it."""
        number, bucket = release.champion, self.told.bucket
        thing = f"version-{number}-{release.model_digest}"
        with tempfile.TemporaryDirectory() as scratch:
            uri = f"models:/{self.model}/{number}"
            model = packaging.fetch_model(uri, release.model_digest, into=Path(scratch))
            bucket.send_thing(model.parents[1], thing)
        environment = {"MODEL_DIGEST": release.model_digest, "MODEL_VERSION": str(number)}
        if arrays := self._send_arrays(release.night):
            environment |= {"ARRAYS_BUCKET": bucket.url, "ARRAYS": arrays}
        container = {
            "image_uri": self.told.image, "command": list(self.told.command),
            "ports": [{"container_port": PORT}], "health_route": HEALTH, "predict_route": PREDICT,
            "env": [{"name": name, "value": value} for name, value in environment.items()],
        }  # fmt: skip
        artifacts = f"{bucket.url.rstrip('/')}/things/{thing}"
        return self.there.upload(number, night=release.night, artifacts=artifacts, container=container)

    def _send_arrays(self, night: str) -> str:
        """Send the arrays of the version's night, from which users are answered; "" where they are gone."""
        folder = ledger.home() / "nights" / night
        dataset = records.find(Dataset, folder / records.RUN)
        if dataset is None or not (folder / "data" / "arrays").exists():
            log.warning("the arrays of night %s are gone; its version answers without them", night)
            return ""
        self.told.bucket.send_thing(folder / "data" / "arrays", dataset.digest)
        return dataset.digest


def _deployed(served: "Served | None") -> list[int]:
    """Versions that are deployed, with or without traffic."""
    return [int(one.id) for one in served.deployed_models] if served else []
