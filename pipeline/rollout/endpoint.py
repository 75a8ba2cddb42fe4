"""How does Vertex AI show who serves? An endpoint whose traffic follows the ledger, one step a call.

`prepare` has a version in Vertex's registry, with labels to MLflow and a tag in MLflow to it, and deployed
where nobody meets it; `show` lets it serve; `split` shares the requests out between champion and challenger
as the traffic row of the log has it, and tells the log, whose experiments count nothing before. A deployment
takes minutes, so none is waited for: what is missing is begun, and NotYet says what; the next call looks
again.

What takes long is begun once (asked.py), and deployments are named by their version, so there is never a
second one of it.
"""

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.backends.vertex import preflight
from pipeline.backends.vertex.client import Denied, RetryPolicy, Unreachable
from pipeline.backends.vertex.deployments import Deployments
from pipeline.backends.vertex.job_spec import Site
from pipeline.backends.vertex.service import Service
from pipeline.backends.vertex.vertex import home_token
from pipeline.contract import params, records
from pipeline.contract.errors import NotYet, ParamsError, ReleaseError
from pipeline.contract.records import Dataset, Release
from pipeline.registry import aliases, packaging
from pipeline.rollout.operation_journal import Begun, Book
from pipeline.statistics.assignment import STALE_S
from pipeline.storage import ledger
from pipeline.storage.bucket import BucketFolder
from pipeline.storage.traffic_log import read_url

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint as Served
    from mlflow import MlflowClient

    from pipeline.storage.traffic_log import Log, Traffic

log = logging.getLogger(__name__)

CONTAINER = ("python", "-m", "pipeline.serving.container")
PORT, HEALTH, PREDICT = 8080, "/health", "/predict"
TAG = "vertex_model"  # of the version in MLflow
NIGHTS_BACK = 30  # whose arrays are looked for
LIMITS = {"timeout_s", "max_top", "keep_users"}  # of params.yaml's serving, that a container keeps to


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
        log: str = "",  # file in which the containers find the URL of serving.log; "": they keep none
        command: Sequence[str] = CONTAINER,
        endpoint: str = "",  # of the service; the region's own if left out
        retry: RetryPolicy | None = None,
    ) -> None:
        self.project, self.image, self.region, self.address = project, image, region, endpoint
        self.bucket, self.account, self.spare, self.command = (
            BucketFolder(url=bucket),
            service_account,
            spare,
            command,
        )
        self.log, self.retry = log, retry or RetryPolicy()
        self.machine = {
            "machine_spec": {"machine_type": machine},
            "min_replica_count": replicas,
            "max_replica_count": max(replicas, max_replicas),
        }

    def preflight(self) -> Iterator[tuple[str, bool, str]]:
        """What the endpoint needs: what was looked at, whether it is well, and what is to be done."""
        site = Site(project=self.project, region=self.region, image=self.image, bucket=self.bucket.url)
        service = Service(
            project=self.project, endpoint=self.address, retry=replace(self.retry, give_up_s=5.0)
        )
        for what, well, text in preflight.preflight(site, service, regions=[self.region]):
            yield f"endpoint's {what}", well, text.replace("backend.", "serving.endpoint.")
        if self.log:
            try:
                read_url(self.log)
            except ParamsError as error:
                yield "endpoint's log", False, str(error)
            else:
                yield "endpoint's log", True, f"its URL stands in {self.log}"

    def follower(self, client: "MlflowClient", model: str, log: "Log | None") -> "OnVertex":
        """The follower for a model of MLflow, and for the traffic row of a log if there is one."""
        return OnVertex(self, client, model, log)


class OnVertex:
    """Follower: one model's endpoint."""

    def __init__(self, told: Endpoint, client: "MlflowClient", model: str, log: "Log | None") -> None:
        self.told, self.client, self.model, self.log = told, client, model, log
        self.name = f"Vertex AI's endpoint of {model}"
        self.book = Book(ledger.home() / "var" / "endpoint.json")

    @cached_property
    def there(self) -> Deployments:
        """Vertex AI."""
        return Deployments(
            project=self.told.project, region=self.told.region, model=self.model, home=home_token(),
            endpoint=self.told.address, retry=self.told.retry,
        )  # fmt: skip

    @cached_property
    def begun(self) -> Begun:
        """What takes long there."""
        return Begun(self.book, self.there, who=self.name, settle_s=self.told.retry.settle_s)

    def prepare(self, release: Release) -> None:
        """Have the version deployed where nobody meets it.

        Raises NotYet until it is, and ReleaseError where it cannot be.
        """
        with self._asking():
            self.book.want(release.version)
            self._lay_ready(release)

    def show(self, release: Release) -> None:
        """Let it serve, and take down what does not; NotYet while it is not deployed.

        A test that runs on it goes on.
        """
        number = release.version
        with self._asking():
            self.book.want(number)
            self._lay_ready(release)
            served, traffic = self.there.served(), self._traffic()
            parts, kept = {str(number): 100}, {number}
            if traffic and traffic.champion == number:
                kept |= set(traffic.wanted)
                parts = _parts(traffic) if traffic.challenger in {0, *_deployed(served)} else parts
            self._share_out(parts, served, traffic)
            if self.told.spare and release.replaced < number:  # after a rollback it is not to come back
                kept.add(release.replaced)
            self.book.unwant(*(set(_deployed(served)) - kept))
            self._sweep()

    def split(self) -> None:
        """Share the requests out as the traffic row says; NotYet while the service does not answer.

        ReleaseError, with all as it was, where a version of the row is not deployed.
        """
        with self._asking():
            if (traffic := self._traffic()) is None:
                return
            if not is_whole(traffic.share):
                told = f"a share of {traffic.share:g} is no whole percent, as Vertex AI wants it"
                raise ParamsError(f"{told}; mend gate.ramp or watch.holdback")
            served, parts = self.there.served(), _parts(traffic)
            missing = [number for number in parts if int(number) not in _deployed(served)]
            if missing:
                raise ReleaseError(
                    f"version {missing[0]} of {self.model} is not deployed, so it cannot get "
                    f"{parts[missing[0]]} % of the traffic; have it laid ready first"
                )
            self._share_out(parts, served, traffic)
            self._sweep()

    def shown(self) -> int:
        """Version that serves, by the traffic row or as the one with the most traffic; 0: none."""
        with self._asking():
            self._sweep()
            served, traffic = self.there.served(), self._traffic()
            split = dict(served.traffic_split) if served else {}
            if traffic and split == _parts(traffic):
                return traffic.champion
            return max((int(one) for one in split), key=lambda one: (split[str(one)], -one), default=0)

    def forget(self, release: Release) -> None:
        """Have it taken down as soon as that is possible; whoever asks next goes on with it."""
        with self.book.alone():
            self.book.unwant(release.version)
            try:
                self._sweep()
            except (Unreachable, Denied) as error:
                log.warning("version %d is taken down later: %s", release.version, error)

    # One step a call

    def _lay_ready(self, release: Release) -> None:
        number, there = release.version, self.there
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

    def _traffic(self) -> "Traffic | None":
        """The traffic row, once it names a champion."""
        traffic = self.log.traffic() if self.log else None
        return traffic if traffic and traffic.champion else None

    def _share_out(self, parts: dict[str, int], served: "Served | None", traffic: "Traffic | None") -> None:
        """Have the requests split so, and where that is what the traffic row says, let it count."""
        name, revision = self.there.endpoint, -1
        if traffic and parts == _parts(traffic) and is_whole(traffic.share):
            revision = traffic.revision
        if served and dict(served.traffic_split) != parts:
            if self.log:
                self.log.follow(name, -1, since=0.0)  # nothing counts while the split is another one
            if traffic and traffic.experiment:  # what containers read before the row was moved
                time.sleep(max(0.0, traffic.changed_at + STALE_S - time.time()))
            self.there.split(parts)
            told = ", ".join(f"version {number} {part} %" for number, part in parts.items())
            log.info("of the requests to %s have: %s", self.model, told)
        elif not self.log or self.log.followed(name)[0] == revision:
            return
        if self.log:
            self.log.follow(name, revision, since=time.time() + self.told.retry.settle_s)

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
        except (Denied, Unreachable) as error:
            log.info("version %d is not taken down now: %s", number, error)  # it may be on its way

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Alone; a service that does not answer is NotYet, one that refuses is ReleaseError."""
        with self.book.alone():
            try:
                yield
            except Unreachable as error:
                raise NotYet(f"{self.name}: {error}") from error
            except Denied as error:
                raise ReleaseError(f"{self.name}: {error}") from error

    # What is sent

    def _upload(self, release: Release) -> str:
        """Lay the version's files out in the bucket, and begin to register it."""
        number, bucket = release.version, self.told.bucket
        thing = f"version-{number}-{release.model_digest}"
        with tempfile.TemporaryDirectory() as scratch:
            uri = f"models:/{self.model}/{number}"
            bucket.send_thing(packaging.fetch(uri, release, into=Path(scratch)), thing)
        environment = {
            "MODEL_DIGEST": release.model_digest, "FILES_DIGEST": release.files_digest,
            "MODEL_VERSION": str(number), "NIGHT": release.night,
            "ENDPOINT": self.there.endpoint, "LOG_FROM": self.told.log,
            "SERVING": params.load(ledger.home()).serving.model_dump_json(include=LIMITS),
        }  # fmt: skip
        if arrays := self._send_arrays(release.night):
            environment |= {"ARRAYS_BUCKET": bucket.url, "ARRAYS": arrays}
        container = {
            "image_uri": self.told.image, "command": list(self.told.command),
            "ports": [{"container_port": PORT}], "health_route": HEALTH, "predict_route": PREDICT,
            "env": [{"name": name, "value": value} for name, value in environment.items() if value],
        }  # fmt: skip
        artifacts = f"{bucket.url.rstrip('/')}/things/{thing}"
        return self.there.upload(number, night=release.night, artifacts=artifacts, container=container)

    def _send_arrays(self, night: str) -> str:
        """Send the arrays that users are answered from; "" where there are none.

        They are the version's own night's, or, of an old version, the newest night's that is still here.
        """
        nights = ledger.home() / "nights"
        for one in (night, *(commit.night for commit in ledger.commits(limit=NIGHTS_BACK))):
            folder = nights / one
            dataset = records.find(Dataset, folder / records.RUN)
            if dataset and (folder / "data" / "arrays").exists():
                self.told.bucket.send_thing(folder / "data" / "arrays", dataset.digest)
                return dataset.digest
        log.warning("no night has its arrays here any more; version of %s answers no users", night)
        return ""


def _deployed(served: "Served | None") -> list[int]:
    """Versions that are deployed, with or without traffic."""
    return [int(one.id) for one in served.deployed_models] if served else []


def _parts(traffic: "Traffic") -> dict[str, int]:
    """Percent of the requests that each version gets by the traffic row."""
    percent = round(100 * traffic.share)
    parts = {str(traffic.champion): 100 - percent, str(traffic.challenger): percent}
    return {number: part for number, part in parts.items() if part}


def is_whole(share: float) -> bool:
    """Whether Vertex AI can give it, which takes whole percent."""
    return abs(100 * share - round(100 * share)) < 1e-9
