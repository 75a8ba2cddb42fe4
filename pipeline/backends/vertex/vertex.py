"""How does a job run on Vertex AI? As a custom job, one at most, whoever asks.

An order is written before the service is asked (submission_journal.py), and carries a token that becomes a
label of the job. Whoever asks again, after a kill or a lost reply, looks for the job by its labels first and
takes what is there. A handle is the service's name of the job, a space, and the folder of the job.

What the service does not say is answered from the book: the state as last heard, so that a night goes on, and
ends, while the service is away.
"""

import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.backends.vertex import billing, error_codes, preflight, staging, submission_journal
from pipeline.backends.vertex.client import Patience, Unanswered
from pipeline.backends.vertex.job_spec import Site, custom_job, key_of, machine_of
from pipeline.backends.vertex.service import ALIVE, STATES, NoQuota, Service, state_name
from pipeline.backends.vertex.submission_journal import Book, Order, stretches
from pipeline.contract.backend import LIVE, Backend, Job, LiveJob, State, label
from pipeline.contract.errors import JobError, NotYet, ParamsError
from pipeline.contract.machine import Machine
from pipeline.contract.records import replace_text
from pipeline.machines import catalog, pricelist
from pipeline.storage import ledger
from pipeline.storage.bucket import BucketFolder

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import CustomJob

log = logging.getLogger(__name__)

HOME = Path("var/home")  # under the home of the nights: tells its jobs from those of other homes
CONSOLE = "https://console.cloud.google.com/ai/platform"
REFUSED = "refused"  # instead of the service's name, for what did not even become a job


class Vertex(Backend):
    """Custom jobs on Vertex AI."""

    def __init__(
        self,
        *,
        project: str,
        image: str,
        region: str = "us-central1",
        bucket: str = "",
        service_account: str = "",
        tpu_image: str = "",
        reservation: str = "",
        persistent_resource: str = "",
        network: str = "",
        disk_gb: int = 200,
        endpoint: str = "",  # of the service; the region's own if left out
        patience: Patience | None = None,
    ) -> None:
        self.site = Site(
            project=project, region=region, image=image, bucket=bucket, service_account=service_account,
            reservation=reservation, persistent_resource=persistent_resource, network=network,
            disk_gb=disk_gb, tpu_image=tpu_image,
        )  # fmt: skip
        self.bucket = BucketFolder(url=bucket) if bucket else None
        self.patience = patience or Patience()
        self.service = Service(project=project, endpoint=endpoint, patience=self.patience)

    def submit(self, job: Job) -> str:
        """Order the job unless it is there: alive, done, or on its way from an order that nobody saw taken.

        Raises JobError where it cannot be had that way, OutOfTime where training has to end before it could
        run; NotYet where the service does not let itself be asked: calling again goes on from the book.
        """
        try:
            return self._submit(_told(job, region=self.site.region))
        except Unanswered as error:
            raise NotYet(f"job {job.name} is not known to be taken: {error}") from error

    def _submit(self, job: Job) -> str:
        machine = machine_of(job, known=self.machines())
        book = Book(Path(job.folder))
        with book.alone():
            before = book.unanswered(job.name)
            regions = {job.rental.region, *([before.rental.region] if before else [])}
            found = self.service.standing(job.name, home=self.home, regions=regions)
            if found is None and before:
                found = self.service.arrived(before)
            if found is None:
                attempt = before.attempt if before else secrets.token_hex(8)
                order = _order(job, attempt=attempt, asked_at=datetime.now(UTC))
                labels = self._labels(job, attempt)
                now = datetime.now(UTC)
                asked = custom_job(job, machine, site=self.site, labels=labels, attempt=attempt, now=now)
                replace_text(book.folder / "attempt", attempt)
                if self.bucket and (book.folder / "job.json").exists():
                    staging.pack(self.bucket, key_of(job), book.folder, night=Path())
                book.put(order)
                try:
                    found = self.service.make(asked, order)
                except NoQuota as error:
                    return self._refused(book, order, str(error))
            attempt = found.labels["attempt"]
            if book.change(attempt, resource=found.name) is None:  # the book was lost
                order = _order(job, attempt=attempt, asked_at=found.create_time)
                book.put(order)
                book.change(attempt, resource=found.name)
            return f"{found.name} {book.folder}"

    def state(self, handle: str) -> State:
        """What the job is doing; as last heard where the service does not answer, running if never heard."""
        resource, book = _parted(handle)
        order = book.of(resource)
        if order and order.state not in LIVE:
            return order.state
        if resource.startswith(REFUSED):
            return "refused"
        try:
            job = self.service.get(resource)
        except Unanswered as error:
            state = order.state if order else "running"  # so that nobody asks for another
            log.warning(
                "%s; job %s was %s when last heard of", error, order.job if order else resource, state
            )
            return state
        return self._heard(book, job) if job else "preempted"

    def cancel(self, handle: str) -> None:
        """Have the job ended, and return when it is, or will be soon; no error if it has, or never was.

        Where the service does not answer, the job lives on by what `state` says; the hourly look ends it.
        """
        resource, book = _parted(handle)
        if resource.startswith(REFUSED):
            return
        try:
            job = self.service.end(resource)
        except Unanswered as error:
            log.warning("whether %s was told to end is not known: %s", resource, error)
            return
        if job:
            self._heard(book, job)

    def live(self) -> list[LiveJob]:
        """The jobs of this home that are queued or running, in all regions that are rented in."""
        regions = dict.fromkeys([self.site.region, *(machine.region for machine in self.machines())])
        return [
            LiveJob(handle=f"{job.name} ", job=job.labels.get("job", ""), night=job.labels.get("night", ""),
                   state=STATES[state_name(job)], created_at=job.create_time)
            for region in regions
            for job in self.service.find(region, daybreak=self.home)
            if state_name(job) in ALIVE
        ]  # fmt: skip

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """What a job needs to be taken: what was looked at, whether it is well, and what is to be done."""
        everywhere = list(dict.fromkeys([self.site.region, *regions]))
        brief = replace(self.patience, call_s=min(10.0, self.patience.call_s), give_up_s=5.0)
        service = Service(project=self.site.project, endpoint=self.service.endpoint, patience=brief)
        return preflight.preflight(self.site, service, regions=everywhere)

    def usd(self, folder: Path) -> float | None:
        """What the job in `folder` has cost until now; None where there is no order or no price."""
        rented = stretches(folder)
        try:
            return billing.usd(rented, now=datetime.now(UTC), known=self.machines()) if rented else None
        except ParamsError as error:
            log.warning("%s; until then the cost of job %s is an estimate", error, folder.name)
            return None

    def machines(self) -> Sequence[Machine]:
        """The machines there are, with the newest prices."""
        try:
            return catalog.rented(ledger.home() / pricelist.REFRESHED)
        except ParamsError:  # in no home
            return catalog.rented()

    def logs(self, handle: str) -> str:
        """The job's page in the console of Google Cloud; its orders, where it did not even become a job."""
        resource, book = _parted(handle)
        if resource.startswith(REFUSED):
            return str(book.folder / submission_journal.FILE)
        _, project, _, region, _, number = resource.split("/")
        return f"{CONSOLE}/locations/{region}/training/{number}?project={project}"

    @cached_property
    def home(self) -> str:
        """A token of the home of the nights."""
        return home_token()

    def _labels(self, job: Job, attempt: str) -> dict[str, str]:
        told = {"night": job.night, "model": job.model, "job": job.name, "attempt": attempt}
        return {"daybreak": self.home, **{key: label(value) for key, value in told.items()}}

    def _refused(self, book: Book, order: Order, message: str) -> str:
        """Write down that there is no quota, and return a handle that says so."""
        resource = f"{REFUSED}/{order.attempt}"
        self._explain(book, order, state="FAILED", code=8, message=message, ran=False)
        book.change(order.attempt, resource=resource)
        return f"{resource} {book.folder}"

    def _heard(self, book: Book, job: "CustomJob") -> State:
        """The state of the job as the service tells it, written down."""
        name, attempt = state_name(job), job.labels.get("attempt", "")
        self._exchange(book, alive=name in ALIVE)
        times = {"started_at": _iso(job.start_time), "ended_at": _iso(job.end_time)}
        if state := STATES.get(name):
            book.change(attempt, state=state, **times)
            return state
        known = bool(job.error.code or job.error.message) or name != "FAILED"
        ended = job.end_time or job.update_time
        if not known and ended and time.time() < ended.timestamp() + self.patience.error_s:
            return "running"  # the reason comes later than the end
        order = book.change(attempt, **times)
        if order is None:  # somebody else's book has it
            return "preempted"
        code, message = job.error.code, job.error.message
        return self._explain(
            book, order, state=name, code=code, message=message, ran=bool(job.start_time)
        )  # fmt: skip

    def _exchange(self, book: Book, *, alive: bool) -> None:
        """Bring home what the job has left, and tell it what is new."""
        if not self.bucket or not book.folder.name:
            return
        try:
            if alive:
                staging.tell(self.bucket, book.folder.name, book.folder)
            staging.come_home(self.bucket, book.folder.name, book.folder)
        except Exception as error:
            if not alive:
                raise JobError(
                    f"what job {book.folder.name} left is in {self.bucket.url}, which does not answer "
                    f"({type(error).__name__}: {error}); try again"
                ) from error
            log.warning("%s does not answer: %s; another look brings it", self.bucket.url, error)

    def _explain(self, book: Book, order: Order, *, state: str, code: int, message: str, ran: bool) -> State:
        """Tell why a job ended, in its order and where the launcher looks for reasons."""
        logs = self.logs(f"{order.resource} {book.folder}") if order.resource else ""
        asked = error_codes.Asked(job=order.job, rental=order.rental, logs=logs)
        fault = error_codes.classify(asked, state=state, code=code, message=message, ran=ran)
        log.warning("%s", fault.text)
        if fault.kind != "cancelled":
            told = {"attempt": order.attempt, "rank": -1, "error": fault.text, "final": fault.final}
            with (book.folder / "errors.jsonl").open("ab", buffering=0) as file:
                file.write((json.dumps(told) + "\n").encode())
        book.change(order.attempt, state=fault.state, reason=fault.text)
        return fault.state


def home_token() -> str:
    """A token of the home of the nights, made once, which tells its things from those of other homes."""
    try:
        path = ledger.home() / HOME
    except ParamsError:
        return "none"
    if not path.exists():
        mine = path.with_name(f".home.{os.getpid()}")
        replace_text(mine, secrets.token_hex(8))
        try:
            os.link(mine, path)
        except FileExistsError:
            log.info("%s was made meanwhile", path)
        mine.unlink()
    return path.read_text().strip()


def _told(job: Job, *, region: str) -> Job:
    """The job with its region, and what its own file says of the night, where the job itself does not."""
    path = Path(job.folder) / "job.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    until, workload = told.get("train_until"), told.get("workload", "")
    use = workload if isinstance(workload, str) else workload["use"]
    return replace(
        job,
        rental=job.rental if job.rental.region else replace(job.rental, region=region),
        night=job.night or told.get("night", ""),
        model=job.model or use.rpartition(":")[2],
        until=job.until or (datetime.fromisoformat(until) if until else None),
    )


def _order(job: Job, *, attempt: str, asked_at: datetime) -> Order:
    return Order(attempt=attempt, job=job.name, rental=job.rental, asked_at=asked_at.isoformat())


def _parted(handle: str) -> tuple[str, Book]:
    resource, _, folder = handle.partition(" ")
    if resource.count("/") != 5 and not resource.startswith(REFUSED):
        raise JobError(
            f"{handle!r} is no job of Vertex AI; a backend was changed in params.yaml while a job ran: "
            f"set backend back until the night is over"
        )
    return resource, Book(Path(folder))


def _iso(moment: datetime | None) -> str:
    return moment.isoformat() if moment else ""
