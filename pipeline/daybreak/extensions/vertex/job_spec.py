"""Builds the custom job that Vertex AI gets: machines, strategy, time limits, labels, module.

The service's default limits are longer than a night (a job may run 7 days and wait 24 h for flex-start), so
both are always set, and cut to the time left until the end of training: a service that was slow to answer has
used up some of it since the job was planned, which does not justify giving up the job.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

from daybreak.backends.place import Refused
from daybreak.contract.backend import Job, label
from daybreak.contract.code_path import AT_HOME
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Strategy
from daybreak.training import gpus

STRATEGIES: Mapping[Strategy, str] = {"on-demand": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START"}
ENTRYPOINT = ("python", "-m", "daybreak.backends.entrypoint")
TORUS = re.compile(r"^(?:ct\dp|tpu\dx)-")  # chips joined in three dimensions
TOPOLOGIES = {1: "1x1", 4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
MIB = 1 << 20
HYPERDISK_ONLY = ("a3-ultragpu-", "a4-", "g4-", "ct6e-", "tpu7x-")  # machines that take no pd-ssd
PD_SSD_BASE, PD_SSD_PER_GIB = 240, 0.48  # MiB/s, of any disk and for each GiB
PD_SSD_MOST = ((16, 1200), (8, 800), (0, 240))  # MiB/s, of machines with at least so many cores
RESERVATION = re.compile(r"projects/[^/]+/zones/([a-z0-9-]+)-[a-z]/reservations/[^/]+")
ATTACHMENT = re.compile(r"projects/[^/]+/regions/([a-z0-9-]+)/networkAttachments/[^/]+")


@dataclass(frozen=True, kw_only=True)
class VertexSite:
    """Where jobs run and under which account: the settings of the backend in params.yaml."""

    project: str
    region: str  # default of jobs
    image: str
    tpu_image: str = ""  # the image built for TPUs; needed to rent one
    bucket: str = ""  # gs://BUCKET/FOLDER
    service_account: str = ""  # the project's default if empty
    reservation: str = ""  # full name of a Compute Engine reservation to draw on
    persistent_resource: str = ""  # id of machines in `region` that are kept between jobs
    reserved_machine: str = ""  # that the reservation or the persistent resource has; "": any
    network: str = ""  # full name of a peered network
    network_attachment: str = ""  # full name of what joins jobs to a network by Private Service Connect
    disk_gb: int = 200

    def reserves(self, job: Job, machine: Machine, *, region: str) -> bool:
        """Returns whether what is reserved in a region is for this machine of a job."""
        is_there = job.rental.strategy == "on-demand" and job.rental.region == region
        return is_there and self.reserved_machine in ("", machine.name)


def custom_job(
    job: Job,
    machines: Sequence[Machine],
    *,
    site: VertexSite,
    labels: Mapping[str, str],
    attempt: str,
    now: datetime,
    left_s: float,
) -> dict[str, Any]:
    """Returns the custom job, as a mapping that `CustomJob` of the client takes.

    `machines` are those of the pools of its rental. The job neither runs nor waits longer than `left_s` from
    `now`. Raises Refused for a region that `network_attachment` is not of.
    """
    if why := unattached(site, job.rental.region):
        raise Refused(why)
    timeout, wait = _times(job, left_s=left_s)
    scheduling: dict[str, Any] = {
        "strategy": STRATEGIES[job.rental.strategy],
        "timeout": timeout,
        # Unlike workers wait for each other: all of them start again, from the last checkpoint.
        "restart_job_on_worker_restart": job.rental.num_machines > 1,
    }
    if wait is not None:
        scheduling["max_wait_duration"] = wait
    spec: dict[str, Any] = {"worker_pool_specs": _pools(job, machines, site, attempt, now + timeout)}
    spec["scheduling"] = scheduling
    kept = all(site.reserves(job, machine, region=site.region) for machine in machines)
    for key, value in (
        ("service_account", site.service_account),
        ("network", site.network),
        ("persistent_resource_id", site.persistent_resource if kept else ""),
    ):
        if value:
            spec[key] = value
    if site.network_attachment:
        spec["psc_interface_config"] = {"network_attachment": site.network_attachment}
    name = f"daybreak {job.night} {job.name}".replace("  ", " ")
    named = {key: label(value) for key, value in labels.items()}
    return {"display_name": name[:128], "job_spec": spec, "labels": named}


def unattached(site: VertexSite, region: str) -> str:
    """Returns why jobs of a region do not reach the network of the attachment; "" where they do, or need not.

    Raises ParamsError where the attachment's name is not a full one.
    """
    of = _region(site.network_attachment, ATTACHMENT, key="network_attachment")
    if of in ("", region):
        return ""
    return (
        f"backend.network_attachment is of {of}, and none is named for {region}; leave {region} out of "
        f"plan.regions, or reach the network by backend.network, which has no region"
    )


def _region(name: str, form: re.Pattern[str], *, key: str) -> str:
    """Returns the region in the full name of a resource, "" of none; ParamsError if it has another form."""
    if not name:
        return ""
    if not (match := form.fullmatch(name)):
        raise ParamsError(
            f"backend.{key} is {name}, which is not a full name; docs/vertex.md says how it begins"
        )
    return match[1]


def _times(job: Job, *, left_s: float) -> tuple[timedelta, timedelta | None]:
    """Returns how long the job may run, and wait for flex-start; whole seconds, rounded down."""
    flex = job.rental.is_queued
    if min(left_s, job.timeout_s) < 1 or (
        flex and job.rental.max_wait_s < 1
    ):  # the service reads 0 as no limit
        raise JobError(
            f"job {job.name} may run for {job.timeout_s:,.0f} s and wait for {job.rental.max_wait_s:,.0f} s, "
            f"which is too short; allow more by night.train_hours or plan.flex_wait_hours"
        )
    wait = timedelta(seconds=int(min(job.rental.max_wait_s, left_s))) if flex else None
    return timedelta(seconds=int(min(job.timeout_s, left_s))), wait


def _pools(
    job: Job, machines: Sequence[Machine], site: VertexSite, attempt: str, end: datetime
) -> list[dict[str, Any]]:
    """Returns the worker pools: a first machine alone, then the others by kind; for TPUs a single machine."""
    made: list[dict[str, Any]] = []
    for machine, rented in zip(machines, job.rental.pools, strict=True):
        left = 1 if machine.is_tpu else rented.num_machines
        pool = _pool(job, machine, site, attempt, end)
        if not made:
            made.append(pool)
            left -= 1
        if left:
            made.append({**pool, "replica_count": left})
    return made


def _pool(job: Job, machine: Machine, site: VertexSite, attempt: str, end: datetime) -> dict[str, Any]:
    """Returns a pool of one machine."""
    environment = {name: value for name, value in job.environment.items() if name not in AT_HOME}
    store = environment.get("MLFLOW_TRACKING_URI", "")
    if not store.startswith(("http://", "https://")) or "@" in store:
        environment["MLFLOW_TRACKING_URI"] = ""  # on this machine's disk, or with a password
    environment["DAYBREAK_ATTEMPT"] = attempt
    if job.rental.others:
        environment |= {gpus.MACHINE: machine.name, gpus.GPUS: machine.gpus}  # of this pool
    if machine.is_tpu:
        environment["PJRT_DEVICE"] = "TPU"
        environment |= {gpus.MACHINE: machine.name, gpus.CHIPS: str(machine.num_devices)}
    staging = ["--bucket", site.bucket, "--job", key_of(job), "--folder", job.folder] if site.bucket else []
    num_workers = machine.num_processes if job.rental.others and job.num_workers else job.num_workers
    return {
        "machine_spec": _machine(job, machine, site),
        "replica_count": 1,
        "disk_spec": {"boot_disk_type": boot_disk(machine), "boot_disk_size_gb": site.disk_gb},
        "container_spec": {
            "image_uri": _image(job, machine, site),
            "command": [
                *ENTRYPOINT,
                "--until",
                f"{end.timestamp():.0f}",
                "--workers",
                str(num_workers),
                *staging,
                "--",
                job.module,
                *job.arguments,
            ],
            "env": [{"name": name, "value": value} for name, value in sorted(environment.items())],
        },
    }


def boot_disk(machine: Machine) -> str:
    """Returns the type of the machine's boot disk, where arrays are laid out."""
    return "hyperdisk-balanced" if machine.name.startswith(HYPERDISK_ONLY) else "pd-ssd"


def disk_bytes_per_s(machine: Machine, *, disk_gb: int) -> float:
    """Returns the most that is read from the boot disk of that size; 0 where it is not known.

    Throughput a GiB and the most of an instance are those of Google's page on disk performance; the baseline,
    and what fewer than 8 and 16 cores may read, are assumed.
    """
    if boot_disk(machine) != "pd-ssd" or machine.is_tpu:
        return 0.0
    most = next(mib for cores, mib in PD_SSD_MOST if machine.vcpus >= cores)
    return float(min(most, PD_SSD_BASE + PD_SSD_PER_GIB * disk_gb) * MIB)


def key_of(job: Job) -> str:
    """Returns the name of the job in a bucket: the name of its folder, whatever the rental."""
    return PurePath(job.folder).name


def _machine(job: Job, machine: Machine, site: VertexSite) -> dict[str, Any]:
    spec: dict[str, Any] = {"machine_type": machine.machine_type}
    if machine.is_tpu:
        spec["tpu_topology"] = _topology(job, machine)
    elif machine.num_devices:
        spec |= {"accelerator_type": machine.accelerator, "accelerator_count": machine.num_devices}
    zone = _region(site.reservation, RESERVATION, key="reservation")
    if zone and site.reserves(job, machine, region=zone):
        spec["reservation_affinity"] = {
            "reservation_affinity_type": "SPECIFIC_RESERVATION",
            "key": "compute.googleapis.com/reservation-name",
            "values": [site.reservation],
        }
    return spec


def _image(job: Job, machine: Machine, site: VertexSite) -> str:
    if not machine.is_tpu:
        return site.image
    if not site.tpu_image:
        raise JobError(
            f"job {job.name} is for {job.rental.machine}, and backend.tpu_image names no image for TPUs; "
            f"build one with --build-arg DEVICE=tpu (docs/vertex.md), or leave TPUs out of plan.machines"
        )
    return site.tpu_image


def _topology(job: Job, machine: Machine) -> str:
    """Returns how the chips of all machines are joined; the service infers the machines from it."""
    known = CUBES if TORUS.match(machine.machine_type) else TOPOLOGIES
    chips = machine.num_devices * job.rental.num_machines
    if chips not in known:
        raise JobError(
            f"{job.rental.num_machines} x {job.rental.machine} are {chips} chips, which cannot be joined; "
            f"set plan.max_machines so that they are one of {', '.join(map(str, known))}"
        )
    return known[chips]
