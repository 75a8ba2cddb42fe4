"""Makes the traffic of an endpoint on Vertex AI follow the ledger, one step a call.

`prepare` registers a version with Vertex AI, which has labels to MLflow while MLflow has a tag to it, and
deploys it without traffic; `show` lets it serve; `split` splits the requests between champion and challenger
as the traffic row of the log says, and records in the log that it did, since experiments count no request
before. A deployment takes minutes, and no call waits for it: a call starts what is missing and raises NotYet,
which says what; the next call checks again.

What containers fetch when they start, at any time, is in a folder of its own in the bucket, which no rule of
its lifecycle may cover. Where a version's files are is read from the registry, and each look checks that they
are whole there.

Each long-running operation is started once (operation_journal.py), and a deployment is named
by its version, so no version is ever deployed twice.
"""

import logging
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.backends.ownership import home_token
from daybreak.backends.place import RetryPolicy, Unreachable
from daybreak.contract import records
from daybreak.contract.errors import NotYet, ParamsError, ReleaseError
from daybreak.contract.record_types import Dataset, Release
from daybreak.extensions.router.settings import RouterParams
from daybreak.extensions.vertex import preflight
from daybreak.extensions.vertex.client import Denied
from daybreak.extensions.vertex.deployments import Deployments
from daybreak.extensions.vertex.job_spec import VertexSite
from daybreak.extensions.vertex.operation_journal import OperationJournal, Operations
from daybreak.extensions.vertex.service import Service
from daybreak.registry import aliases, carried_code
from daybreak.statistics.assignment import STALE_S
from daybreak.storage import erasures, ledger
from daybreak.storage.bucket import THINGS, BucketFolder
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import read_url

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import Endpoint as Served
    from google.cloud.aiplatform_v1.types import Model
    from mlflow import MlflowClient

    from daybreak.storage.traffic_log import Log
    from daybreak.storage.traffic_row import Traffic

log = logging.getLogger(__name__)

CONTAINER = ("python", "-m", "daybreak.extensions.vertex.container")
PORT, HEALTH, PREDICT = 8080, "/health", "/predict"
TAG = "vertex_model"  # of the version in MLflow
NIGHTS_BACK = 30  # nights whose arrays are looked for
SERVING = "serving"  # folder of the bucket with what containers fetch, of each home in one of its own
UNUSED = timedelta(days=14)  # age at which a folder of no version goes; the others are written anew before it
LIMITS = {"timeout_s", "max_top", "keep_users"}  # keys of params.yaml's serving that a container obeys


class Endpoint:
    """What `serving.endpoint` of params.yaml names: an endpoint on Vertex AI."""

    def __init__(
        self,
        *,
        project: str,
        image: str,
        bucket: str,  # that brings models and arrays to the containers
        region: str = "us-central1",
        machine: str = "n1-standard-2",
        replicas: int = 1,  # at least, of each deployed version
        max_replicas: int = 0,  # as many as `replicas` if left out
        service_account: str = "",  # of the containers; the project's default if left out
        spare: bool = True,  # the version that was replaced stays deployed, so that a rollback takes no time
        log: str = "",  # file with the URL of serving.log, read by the containers; "": they keep no log
        command: Sequence[str] = CONTAINER,
        endpoint: str = "",  # of the service; the region's own if left out
        retry: RetryPolicy | None = None,
    ) -> None:
        self.project, self.image, self.region, self.address = project, image, region, endpoint
        self.bucket, self.account, self.spare, self.command = bucket, service_account, spare, command
        self.log, self.retry = log, retry or RetryPolicy()
        self.machine = {
            "machine_spec": {"machine_type": machine},
            "min_replica_count": replicas,
            "max_replica_count": max(replicas, max_replicas),
        }

    def preflight(self) -> Iterator[tuple[str, bool, str]]:
        """Yields checks of everything that the endpoint needs as (name, passed, result or remedy)."""
        site = VertexSite(project=self.project, region=self.region, image=self.image, bucket=self.bucket)
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

    def target(self, home: Home, client: "MlflowClient", model: str, log: "Log | None") -> "OnVertex":
        """Returns the release target for a model of MLflow; it follows the traffic row of `log`, if any."""
        return OnVertex(self, home, client, model, log)

    @staticmethod
    def is_whole(share: float) -> bool:
        """Returns whether Vertex AI can give a version this share: it splits by whole percents."""
        return abs(100 * share - round(100 * share)) < 1e-9


class OnVertex:
    """The release target that is one model's endpoint; see daybreak/rollout/targets.py."""

    tag = TAG

    def __init__(
        self, config: Endpoint, home: Home, client: "MlflowClient", model: str, log: "Log | None"
    ) -> None:
        self.home, self.config, self.client, self.model, self.log = home, config, client, model, log
        self.name = f"Vertex AI's endpoint of {model}"
        self.journal = OperationJournal(home.var / "endpoint.json")
        self.bucket = BucketFolder(url=f"{config.bucket.rstrip('/')}/{SERVING}/{home_token(home)}")

    @cached_property
    def deployments(self) -> Deployments:
        """The model and its deployments at Vertex AI."""
        return Deployments(
            project=self.config.project,
            region=self.config.region,
            model=self.model,
            home=home_token(self.home),
            endpoint=self.config.address,
            retry=self.config.retry,
        )

    @cached_property
    def operations(self) -> Operations:
        """The long-running operations at Vertex AI."""
        return Operations(self.journal, self.deployments, who=self.name, settle_s=self.config.retry.settle_s)

    def prepare(self, release: Release) -> None:
        """Deploys the version without traffic.

        Raises NotYet until the version is deployed, and ReleaseError where it cannot be.
        """
        with self._exclusively():
            self.journal.keep(release.version)
            self._deploy(release)

    def show(self, release: Release) -> None:
        """Lets the version serve, and undeploys versions that no longer do.

        A live test of the version goes on. Raises NotYet while the version is not deployed.
        """
        number = release.version
        with self._exclusively():
            self.journal.keep(number)
            self._deploy(release)
            served, traffic = self.deployments.served(), self._traffic()
            parts, kept = {str(number): 100}, {number}
            if traffic and traffic.champion == number:
                kept |= set(traffic.wanted)
                parts = _parts(traffic) if traffic.challenger in {0, *_deployed(served)} else parts
            self._split(parts, served, traffic)
            if self.config.spare and release.replaced < number:  # a version rolled back from is not a spare
                kept.add(release.replaced)
            self.journal.undeploy(*(set(_deployed(served)) - kept))
            self._sweep()

    def split(self) -> None:
        """Splits the requests as the traffic row says.

        Raises NotYet while the service does not answer, and ReleaseError, with nothing changed, where a
        version of the row is not deployed.
        """
        with self._exclusively():
            if (traffic := self._traffic()) is None:
                return
            if not Endpoint.is_whole(traffic.share):
                raise ParamsError(
                    f"a share of {traffic.share:g} is not a whole percent, which Vertex AI needs; "
                    f"fix live_test.ramp or watch.holdback"
                )
            served, parts = self.deployments.served(), _parts(traffic)
            missing = [number for number in parts if int(number) not in _deployed(served)]
            if missing:
                raise ReleaseError(
                    f"version {missing[0]} of {self.model} is not deployed, so it cannot get "
                    f"{parts[missing[0]]} % of the traffic; prepare it first"
                )
            self._split(parts, served, traffic)
            self._sweep()

    def shown(self) -> int:
        """Returns the version that serves, by the traffic row or by the most traffic; 0 where none does."""
        with self._exclusively():
            self._sweep()
            served, traffic = self.deployments.served(), self._traffic()
            for number in _deployed(served):
                self._keep_files(number, self.deployments.version(number))
            split = dict(served.traffic_split) if served else {}
            if traffic and split == _parts(traffic):
                return traffic.champion
            return max(map(int, split), key=lambda number: (split[str(number)], -number), default=0)

    def discard(self, release: Release) -> None:
        """Undeploys the version as soon as that is possible; if it is not yet, the next call goes on."""
        with self.journal.alone():
            self.journal.undeploy(release.version)
            try:
                self._sweep()
            except (Unreachable, Denied) as error:
                log.warning("version %d will be undeployed later: %s", release.version, error)

    # One step a call

    def _deploy(self, release: Release) -> None:
        """Takes the next step towards the deployment of the version; raises NotYet until it is deployed."""
        number, deployments = release.version, self.deployments
        served = deployments.served()
        if number in _deployed(served):
            self.journal.drop(f"deploy {number}")
            return
        if served is None:
            self.operations.start("make the endpoint", deployments.endpoint, deployments.make_endpoint)
        self.journal.drop("make the endpoint")
        version = deployments.version(number)
        if version is None:
            self.operations.start(f"upload {number}", deployments.model, lambda: self._upload(release))
        self.journal.drop(f"upload {number}")
        self._keep_files(number, version)
        name = f"{deployments.model}@{version.version_id}"
        if aliases.existing(self.client, self.model, number).tags.get(TAG) != name:
            aliases.tag(self.client, self.model, number, **{TAG: name})
        self.operations.start(
            f"deploy {number}",
            deployments.endpoint,
            lambda: deployments.deploy(
                number, version=name, machine=self.config.machine, account=self.config.account
            ),
        )

    def _traffic(self) -> "Traffic | None":
        """Returns the traffic row, once it names a champion."""
        traffic = self.log.traffic.read() if self.log else None
        return traffic if traffic and traffic.champion else None

    def _split(self, parts: dict[str, int], served: "Served | None", traffic: "Traffic | None") -> None:
        """Splits the requests, and starts the experiment of the traffic row where this is its split."""
        name, revision = self.deployments.endpoint, -1
        if traffic and parts == _parts(traffic) and Endpoint.is_whole(traffic.share):
            revision = traffic.revision
        if served and dict(served.traffic_split) != parts:
            if self.log:
                # No request counts while the split is another one.
                self.log.servers.follow(name, -1, since=0.0)
                if traffic and traffic.experiment:  # until no container acts on the row as it was before
                    time.sleep(min(max(0.0, traffic.changed_at + STALE_S - self.log.now()), STALE_S))
            self.deployments.split(parts)
            shares = ", ".join(f"version {number} {part} %" for number, part in parts.items())
            log.info("the requests to %s are split: %s", self.model, shares)
        elif not self.log or self.log.servers.followed(name)[0] == revision:
            return
        if self.log:
            self.log.servers.follow(name, revision, since=self.log.now() + self.config.retry.settle_s)

    def _sweep(self) -> None:
        """Starts to undeploy the unwanted versions without traffic, and clears those that are gone."""
        unwanted = self.journal.to_undeploy()
        if not unwanted:
            return
        served = self.deployments.served()
        for number in unwanted:
            if number in _deployed(served):
                self.journal.drop(f"deploy {number}")
                if served and not served.traffic_split.get(str(number)):
                    self._undeploy(number)
                continue
            if not self.operations.is_pending(f"deploy {number}"):  # else undeployed later
                self.journal.keep(number)
                self.journal.drop(f"deploy {number}")

    def _undeploy(self, number: int) -> None:
        try:
            self.deployments.undeploy(number)
            log.info("version %d of %s is undeployed", number, self.model)
        except (Denied, Unreachable) as error:
            log.info("version %d is not undeployed now: %s", number, error)  # it may be under way

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Holds the journal's lock; NotYet where Vertex AI does not answer, ReleaseError where it refuses."""
        with self.journal.alone():
            try:
                yield
            except Unreachable as error:
                raise NotYet(f"{self.name}: {error}") from error
            except Denied as error:
                raise ReleaseError(f"{self.name}: {error}") from error

    # What is sent

    def _upload(self, release: Release) -> str:
        """Sends the version's files to the bucket, and starts to register it; returns the operation."""
        number, bucket = release.version, self.bucket
        thing = f"version-{number}-{release.model_digest}"
        with tempfile.TemporaryDirectory() as scratch:
            uri = f"models:/{self.model}/{number}"
            bucket.send_thing(carried_code.fetch(self.home, uri, release, into=Path(scratch)), thing)
        environment = {
            "MODEL_DIGEST": release.model_digest,
            "FILES_DIGEST": erasures.now(self.home, release.files_digest),
            "MODEL_VERSION": str(number),
            "NIGHT": release.night,
            "ENDPOINT": self.deployments.endpoint,
            "LOG_FROM": self.config.log,
            "SERVING": self.home.params.section(RouterParams).model_dump_json(include=LIMITS),
        }
        if arrays := self._send_arrays(release.night):
            environment |= {"ARRAYS_BUCKET": bucket.url, "ARRAYS": arrays}
        container = {
            "image_uri": self.config.image,
            "command": list(self.config.command),
            "ports": [{"container_port": PORT}],
            "health_route": HEALTH,
            "predict_route": PREDICT,
            "env": [{"name": name, "value": value} for name, value in environment.items() if value],
        }
        artifacts = f"{bucket.url}/{THINGS}/{thing}"
        return self.deployments.upload(number, night=release.night, artifacts=artifacts, container=container)

    def _keep_files(self, number: int, version: "Model | None") -> None:
        """Restores files in the bucket that containers of a registered version fetch on a restart."""
        for bucket, thing in _fetched(version):
            try:
                if bucket.keep_thing(thing):
                    continue
                with tempfile.TemporaryDirectory() as scratch:
                    if folder := self._source(number, thing, Path(scratch)):
                        bucket.send_thing(folder, thing)
                        log.info("%s has %s/%s again", bucket.url, THINGS, thing)
                        continue
            except Exception as error:  # noqa: BLE001 each storage has its own; what serves goes on serving
                log.warning(
                    "what version %d fetches cannot be looked at in %s: %s", number, bucket.url, error
                )
                continue
            log.warning(
                "%s lacks %s/%s or a part of it, and so does this machine; containers of version %d that "
                "start again will not serve: look who removes it there, and promote a newer version",
                bucket.url,
                THINGS,
                thing,
                number,
            )

    def _source(self, number: int, thing: str, scratch: Path) -> Path | None:
        """Returns a folder here with what was sent under that name; None where there is none."""
        if thing.startswith(f"version-{number}-"):
            wanted = next(
                (version for version in ledger.versions(self.home) if version.number == number), None
            )
            return (
                carried_code.fetch(self.home, f"models:/{self.model}/{number}", wanted, into=scratch)
                if wanted
                else None
            )
        for path in sorted(self.home.nights.glob("*")):
            dataset = records.find(Dataset, path / records.RUN)
            if dataset and dataset.digest == thing and (path / "data" / "arrays").exists():
                return path / "data" / "arrays"
        return None

    def unneeded(self, kept: Collection[int]) -> dict[str, int]:
        """Returns the bytes of each folder in the bucket that no kept or deployed version fetches."""
        with self._exclusively():
            old = self.bucket.old_things(age=UNUSED)
            numbers = {*kept, *_deployed(self.deployments.served())} if old else set()
            for number in numbers:
                for bucket, thing in _fetched(self.deployments.version(number)):
                    if bucket.url == self.bucket.url:
                        old.pop(thing, None)
            return old

    def remove(self, thing: str) -> None:
        """Removes such a folder."""
        self.bucket.remove_thing(thing)

    def _send_arrays(self, night: str) -> str:
        """Sends the arrays that users are answered from; returns their digest, "" where there are none.

        The arrays are of the version's own night or, for an old version, of the newest night still here.
        """
        nights = self.home.nights
        for name in (night, *(commit.night for commit in ledger.commits(self.home, limit=NIGHTS_BACK))):
            folder = nights / name
            dataset = records.find(Dataset, folder / records.RUN)
            if dataset and (folder / "data" / "arrays").exists():
                self.bucket.send_thing(folder / "data" / "arrays", dataset.digest)
                return dataset.digest
        log.warning("no night has its arrays here any more; the version of night %s answers no users", night)
        return ""


def _fetched(version: "Model | None") -> Iterator[tuple[BucketFolder, str]]:
    """Yields the folders that the containers of a version fetch, where they were when it was registered."""
    if version is None:
        return
    url, _, thing = version.artifact_uri.rpartition(f"/{THINGS}/")
    if url:
        yield BucketFolder(url=url), thing
    environment = {variable.name: variable.value for variable in version.container_spec.env}
    if environment.get("ARRAYS"):
        yield BucketFolder(url=environment["ARRAYS_BUCKET"]), environment["ARRAYS"]


def _deployed(served: "Served | None") -> list[int]:
    """Returns the versions that are deployed, with or without traffic."""
    return [int(deployed.id) for deployed in served.deployed_models] if served else []


def _parts(traffic: "Traffic") -> dict[str, int]:
    """Returns the percent of the requests that each version gets by the traffic row."""
    percent = round(100 * traffic.share)
    parts = {str(traffic.champion): 100 - percent, str(traffic.challenger): percent}
    return {number: part for number, part in parts.items() if part}
