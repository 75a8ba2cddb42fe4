"""Runs the stage `profile`: it reuses an earlier night's profile where that still holds, or measures one.

An earlier profile is reused where everything that it depends on is unchanged: the machine, the code that DVC
lists for the stage, the workload with its package, the params, and the structure of a batch; and where the
data has between half and twice as many samples and the profile is at most `profile.reuse_days` old. Its
evidence then names the night of the measurement, and the figures that were not measured on tonight's data. A
profile is kept as one file under $DAYBREAK_HOME/var/profiles, named by a digest of its dependencies, until no
night has looked at it for 90 days.

A profile that other processes disturbed (daybreak/machines/contention.py) is reused for a night at most, and
never takes the place of an undisturbed one, which is then reused however old.

Otherwise the profile is measured: in this process, or, where `profile.machine` names a machine, as a short
job through the backend on that machine (profile_job.py).
"""

import inspect
import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from daybreak.contract import disk, records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import DataError, JobError, ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Record, Rental
from daybreak.contract.record_types import Dataset, Night, Profile
from daybreak.contract.sections import ProfileParams, TrainParams, WorkloadPlug
from daybreak.contract.workload import ARRAYS, Batch, Workload, collated
from daybreak.machines import contention, this_machine
from daybreak.machines.this_machine import KEPT_DISTURBED
from daybreak.profiling import profiler, short_job
from daybreak.storage import snapshots
from daybreak.storage.home import Home
from daybreak.training.worker_keys import expect_calibrated

log = logging.getLogger(__name__)

HERE = "here"  # as profile.machine
WHAT = "the profile"
JOBS = Path("data/work/profiles")
SHARE = 0.02  # of the hours that a night has for training, which a profile may take
LIMIT_S = 900.0  # of a job: to wait for a machine, start it, and measure
KEPT_UNUSED = timedelta(days=90)
MAX_CHANGE = 2  # at most so many times more or fewer samples
ONLY_TONIGHT = "the noise scale, and whether the loss is finite: they depend on values, not on shapes"


@dataclass(frozen=True, kw_only=True)
class ProfileRequest(Record):
    """`job.json` of a profile that a job measures, with all that its worker needs."""

    night: str
    dataset: Dataset
    workload: WorkloadPlug
    profile: ProfileParams
    train: TrainParams
    limit_s: float


def profile(
    home: Home,
    night: Night,
    dataset: Dataset,
    backend: Backend,
    *,
    plug: WorkloadPlug,
    params: ProfileParams,
    train: TrainParams,
) -> Profile:
    """Returns the profile of the job: an earlier night's if it still holds, else one measured now and kept.

    Raises what profiler.profile raises, or JobError with the worker's own sentence where a job measures.
    """
    begin = time.perf_counter()
    limit_s = SHARE * (night.train_until - night.started_at).total_seconds()
    workload = plug.make()
    expect_calibrated(train, workload)  # in each night, as --set may take the samples away
    name = _name(home, workload, plug, params, train)
    path = _kept_in(home, f"{name}.json")
    kept = _kept(path, dataset)
    if kept and _stands(kept, params):
        log.info("nothing that a profile depends on has changed: reusing that of night %s", _night(kept))
        return _reused(kept, dataset, since=begin)
    if params.machine == HERE:
        measured = profiler.profile(home, dataset, workload, params, train, limit_s=limit_s)
    else:
        machine = _known(params.machine, backend)
        request = ProfileRequest(
            night=night.id,
            dataset=dataset,
            workload=plug,
            profile=params,
            train=train,
            limit_s=limit_s,
        )
        measured = _by_job(home, request, machine, name=name, backend=backend)
    if kept and _disturbed(measured) and not _disturbed(kept) and params.reuse_days > 0:
        log.info("other processes disturbed the profile: reusing that of night %s", _night(kept))
        return _reused(kept, dataset, since=begin)
    origin = {
        "night": night.id,
        "machine": params.machine,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "num_samples": dataset.num_samples,
    }
    measured = replace(measured, evidence=measured.evidence | {"origin": origin})
    if path:
        disk.remove_old(path.parent, after=KEPT_UNUSED)
        records.replace_text(path, records.dumps(measured))
    return measured


def _known(name: str, backend: Backend) -> Machine:
    """Returns the machine of the backend; ParamsError where it has none of that name."""
    known = {each.name: each for each in backend.machines()}
    if name not in known:
        near = get_close_matches(name, known, cutoff=0.3) or list(known)[:3]
        raise ParamsError(
            f"profile.machine names {name}, which the backend does not have; set it to {HERE}, or to a "
            f"machine of the backend; nearest are {', '.join(near)}"
        )
    return known[name]


def _name(
    home: Home, workload: Workload, plug: WorkloadPlug, params: ProfileParams, train: TrainParams
) -> str:
    """Returns a digest of all that has to be the same for a profile to be reused."""
    return this_machine.facts_digest(
        {
            "machine": this_machine.fingerprint() if params.machine == HERE else params.machine,
            # Names without folders, as each night has a worktree of its own.
            "code": sorted({f"{path.name} {records.digest(path)}" for path in _code(home, workload)}),
            "workload": plug.model_dump(),
            "profile": params.model_dump(exclude={"reuse_days"}),
            "train": train.model_dump(),
            "batch": _batch(workload),
        }
    )


def _code(home: Home, workload: Workload) -> Iterator[Path]:
    """Yields the files of code that the stage depends on: those in dvc.yaml, and the workload's package."""
    listed = [Path(name) for name in snapshots.stages(home.tonight).get("profile", {}).get("deps", ())]
    yield from (file for path in listed if path.parts[0] != "data" for file in _files(path))
    module = inspect.getmodule(type(workload))
    if module and module.__file__:
        own = Path(module.__file__)
        yield from _files(own.parent if module.__package__ else own)


def _files(path: Path) -> Iterator[Path]:
    """Yields the file, or those in the folder that are not caches of the interpreter."""
    if path.is_file():
        yield path
    yield from sorted(file for file in path.rglob("*") if file.is_file() and file.suffix != ".pyc")


def _batch(workload: Workload) -> Any:
    """Returns structure, types and shapes of a batch of two samples; None where there are fewer.

    It returns None also where the data set fails: measuring then reports the error.
    """
    try:
        data: Any = workload.dataset(ARRAYS, "train")
        if len(data) < 2:
            return None
        whole = getattr(data, "__getitems__", None)
        return _structure(whole([0, 1]) if whole else collated(data, [data[0], data[1]]))
    except Exception as error:
        log.debug("no batch to identify the profile by", exc_info=error)
        return None


def _structure(batch: Batch) -> Any:
    """Returns the batch with each tensor replaced by its type and the shape of a sample."""
    if hasattr(batch, "dtype") and hasattr(batch, "shape"):
        return [str(batch.dtype), list(batch.shape[1:])]
    if isinstance(batch, dict):
        return {str(key): _structure(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return [_structure(value) for value in batch]
    return type(batch).__name__


def _kept_in(home: Home, name: str) -> Path | None:
    """Returns the file of a kept profile; None outside of any home."""
    try:
        return home.var / "profiles" / name
    except ParamsError:
        return None


def _kept(path: Path | None, dataset: Dataset) -> Profile | None:
    """Returns the kept profile, or None if it is torn, or of far more or fewer samples."""
    try:
        if path is None:
            return None
        kept = records.loads(Profile, path.read_text(), source=str(path))
        with suppress(OSError):  # as where the home is read-only
            os.utime(path)  # of what is used nothing is removed
        origin = kept.evidence["origin"]
        _age(kept)
        few, many = sorted([origin["num_samples"], dataset.num_samples])
    except (FileNotFoundError, DataError, KeyError, TypeError, ValueError):
        return None
    return kept if many <= MAX_CHANGE * few else None


def _stands(kept: Profile, params: ProfileParams) -> bool:
    """Returns whether it is young enough; one that other processes disturbed holds for a night."""
    limit = timedelta(days=params.reuse_days)
    return _age(kept) < (min(limit, KEPT_DISTURBED) if _disturbed(kept) else limit)


def _age(kept: Profile) -> timedelta:
    return datetime.now(UTC) - datetime.fromisoformat(kept.evidence["origin"]["measured_at"])


def _disturbed(profile: Profile) -> bool:
    return float(profile.evidence.get("contention", 0.0)) > contention.MOST


def _night(kept: Profile) -> str:
    return str(kept.evidence["origin"]["night"])


def _reused(kept: Profile, dataset: Dataset, *, since: float) -> Profile:
    reused = {
        "from_night": _night(kept),
        "num_samples_then": kept.evidence["origin"]["num_samples"],
        "num_samples_now": dataset.num_samples,
        "not_measured_tonight": ONLY_TONIGHT,
        "elapsed_s": time.perf_counter() - since,
    }
    return replace(kept, evidence=kept.evidence | {"reused": reused})


def _by_job(home: Home, request: ProfileRequest, machine: Machine, *, name: str, backend: Backend) -> Profile:
    """Submits the profiling job, or attaches to a running one, and returns the measured profile."""
    text = records.dumps(request)
    folder = JOBS / this_machine.facts_digest([name, text])
    if not (folder / "job.json").exists():
        records.replace_text(folder / "job.json", text)
    job = short_job.job_of(
        home,
        folder,
        Rental(machine=machine.name, backend=machine.backend),
        module="daybreak.profiling.profile_job",
        machine=machine,
        timeout_s=LIMIT_S,
    )
    handle = short_job.run(job, backend, what=WHAT, otherwise=f"set profile.machine to {HERE}")
    measured = records.find(Profile, folder)
    if measured is None:
        raise JobError(short_job.failure(folder, what=WHAT, logs=backend.logs(handle)))
    return measured
