"""Would a night run here? What `python -m pipeline check` looks at, before a cent is spent."""

import contextlib
import importlib.metadata
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract import params
from pipeline.contract.backend import Backend
from pipeline.contract.errors import PipelineError
from pipeline.storage import ledger

NEEDED_BYTES = 2 * 2**30  # free disk that a night of the default workload stays well below


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at; `text` says what to do where it is not `ok`."""

    what: str
    ok: bool
    text: str


def findings() -> Iterator[Finding]:
    """What was found, one after the other, so that a slow server does not hold up the rest."""
    version = ".".join(map(str, sys.version_info[:3]))
    text = f"{version}; constraints.txt is for 3.11"
    yield Finding(what="python", ok=sys.version_info[:2] == (3, 11), text=text)
    for name in ("torch", "dvc", "mlflow", "great-expectations", "apache-airflow"):
        yield _package(name)
    try:
        home = ledger.home()
        yield Finding(what="checkout", ok=True, text=str(home))
        told = params.load(home)
        yield Finding(what="params.yaml", ok=True, text=f"night of {told.night.train_hours:g} h to train")
    except PipelineError as error:
        yield Finding(what="params.yaml", ok=False, text=str(error))
        return
    free = shutil.disk_usage(home).free
    yield Finding(
        what="disk", ok=free >= NEEDED_BYTES,
        text=f"{free / 2**30:.1f} GiB free in {home}; a night needs {NEEDED_BYTES / 2**30:.0f}",
    )  # fmt: skip
    for name in ("source", "workload", "backend"):
        yield _plug(name, getattr(told, name))
    with contextlib.suppress(PipelineError):  # told of already
        yield from _backend(home, told, told.backend.make())
    yield from _serving(told)
    yield from _router(home, told)
    yield _suite(home / told.validate_.suite)
    yield _registry()


def _package(name: str) -> Finding:
    try:
        return Finding(what=name, ok=True, text=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(what=name, ok=False, text="is not installed; run make setup")


def _plug(name: str, plug: params.Plug) -> Finding:
    try:
        plug.make()
    except PipelineError as error:
        return Finding(what=name, ok=False, text=str(error))
    return Finding(what=name, ok=True, text=plug.use)


def _backend(home: Path, told: params.Params, backend: Backend) -> Iterator[Finding]:
    """What the backend has, and whether it would take a job: credentials, its project, a bucket, an image."""
    lacks = [name for name in vars(Backend) if not name.startswith("_") and not hasattr(backend, name)]
    if lacks:
        text = f"{told.backend.use} lacks {', '.join(lacks)}; inherit from pipeline.contract.backend.Backend"
        yield Finding(what="backend", ok=False, text=text)
        return
    yield _machines(home, told, backend)
    for what, ok, text in backend.preflight(told.plan.regions):
        yield Finding(what=what, ok=ok, text=text)


def _machines(home: Path, told: params.Params, backend: Backend) -> Finding:
    """Whether the plan may choose among its machines here, and of which days their prices are."""
    from pipeline.machines import catalog, pricelist
    from pipeline.planning import candidates

    try:
        available = backend.machines()
        listed = (catalog.AT_HAND, *catalog.rented(home / pricelist.REFRESHED))
        known = candidates.everything(available, listed)
        chosen = candidates.allowed(known, told.plan, available=available)
    except PipelineError as error:
        return Finding(what="machines", ok=False, text=str(error))
    found = list(dict.fromkeys(machine.name for machine in chosen))
    names = ", ".join(found) if len(found) <= 5 else f"{', '.join(found[:5])} and {len(found) - 5} more"
    dates = [p.dated for machine in chosen for p in machine.prices if p.usd_per_hour is not None]
    days = f"; prices of {min(dates)} to {max(dates)}, python -m pipeline prices --refresh" if dates else ""
    return Finding(what="machines", ok=True, text=f"{names}{days}")


def _serving(told: params.Params) -> Iterator[Finding]:
    """What serves, if anything does, and what it needs."""
    plug = told.serving.endpoint
    if not plug:
        return
    try:
        made = plug.make()
    except PipelineError as error:
        yield Finding(what="endpoint", ok=False, text=str(error))
        return
    for what, ok, text in made.preflight():
        yield Finding(what=what, ok=ok, text=text)


def _router(home: Path, told: params.Params) -> Iterator[Finding]:
    """Whether users can meet a challenger, where they are to judge it."""
    if told.gate.scores == "replay":
        return
    from pipeline.storage.traffic_log import existing_log

    try:
        log = existing_log(told.serving, home)
        live = log.routers() if log else ()
    except PipelineError as error:
        yield Finding(what="router", ok=False, text=str(error))
        return
    text = f"gate.scores: {told.gate.scores} asks users, and no router lives; run python -m pipeline serve"
    if live:
        text = f"{len(live)} live{'s' if len(live) == 1 else ''}: {', '.join(one.id for one in live)}"
    elif told.serving.endpoint:
        yield from _asked_by_endpoint(told, told.serving.endpoint)
        return
    yield Finding(what="router", ok=bool(live), text=text)


def _asked_by_endpoint(told: params.Params, plug: params.Plug) -> Iterator[Finding]:
    """Whether an endpoint can share its requests out as the gate will ask, and tell what came of it."""
    from pipeline.rollout.endpoint import is_whole

    broken = [share for share in (*told.gate.ramp, told.watch.holdback) if not is_whole(share)]
    with contextlib.suppress(PipelineError):  # told of already
        keeps = bool(plug.make().log)
        text = "the endpoint's containers keep the log of who met what"
        if not keeps:
            text = (
                f"gate.scores: {told.gate.scores} asks users, and the endpoint keeps no log of who met what; "
                f"set serving.endpoint.log, or run python -m pipeline serve"
            )
        elif broken:
            text = f"the endpoint gives whole percent, not {broken[0]:g}; mend gate.ramp or watch.holdback"
        yield Finding(what="router", ok=keeps and not broken, text=text)


def _suite(path: Path) -> Finding:
    told = str(path) if path.exists() else f"{path} is missing; write it, or mend validate.suite"
    return Finding(what="expectations", ok=path.exists(), text=told)


def _registry() -> Finding:
    from pipeline.storage import mlflow_client

    try:
        return Finding(what="mlflow", ok=True, text=mlflow_client.reachable())
    except PipelineError as error:
        return Finding(what="mlflow", ok=False, text=str(error))
