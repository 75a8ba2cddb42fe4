"""Checks whether a night would run here, before a cent is spent: `daybreak check`."""

import configparser
import contextlib
import importlib.metadata
import json
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daybreak import hooks
from daybreak.backends import staging
from daybreak.batch_inference import destinations, predict
from daybreak.contract import disk, environment, extras, trigger_lines
from daybreak.contract.backend import Backend
from daybreak.contract.errors import PipelineError, ReleaseError, sentence, without_password
from daybreak.contract.formats import counted, one_line, size
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Check, Rental
from daybreak.contract.sections import Params, Plug, RegisterParams
from daybreak.contract.table import Table
from daybreak.contract.workload import (
    has_estimator,
    own_schedule,
    predicts_nothing,
    schedule_asks_model,
    serves_rows,
)
from daybreak.data import suite
from daybreak.evaluation import live_judge
from daybreak.jobs import triggers
from daybreak.night import opening
from daybreak.registry import aliases, confined
from daybreak.rollout import lost_ledger
from daybreak.storage import address, branch, ledger, lifecycle, source_code
from daybreak.storage.bucket import is_here
from daybreak.storage.home import Home
from daybreak.training.estimator_keys import expect_applicable
from daybreak.training.worker_keys import expect_batches_alike, expect_calibrated

NUM_NIGHTS = 30  # of the ledger, in which the newest plan is looked for
# Variables of services that a copy of a home, with the same environment, would share with the original.
SHARED = ("MLFLOW_TRACKING_URI", "MLFLOW_ARTIFACTS_DESTINATION", "DAYBREAK_LOG")
OLDEST, NEWEST = (3, 11), (3, 13)  # Pythons of requires-python
NOT_READ = ("s3://", "s3a://", "abfs://", "az://")  # buckets with lifecycle rules that are not Google's
LOOPBACK = "127.0.0.1"
KEPT_TRIALS = timedelta(days=30)  # with their logs
NEEDED_BYTES = 2 * 2**30  # free disk that a night of the default workload stays well below


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of a check; `text` says what to do if it is not `ok`."""

    what: str
    ok: bool
    text: str


def findings(home: Home) -> Iterator[Finding]:
    """Yields one finding after the other, so that a slow server does not hold up the rest."""
    version = ".".join(map(str, sys.version_info[:3]))
    ok = OLDEST <= sys.version_info[:2] <= NEWEST
    text = version if ok else f"{version}; take one of 3.{OLDEST[1]} to 3.{NEWEST[1]}"
    yield Finding(what="python", ok=ok, text=text)
    yield from _proxy()
    yield from _loopback()
    for name in ("torch", "dvc", "mlflow", "great-expectations"):
        yield _package(name)
    yield _optional("apache-airflow", "airflow", "daybreak night runs without it, make up needs it")
    yield _optional("httptools", "serve", "nights run without it, daybreak serve and daybreak pages need it")
    try:
        text = "; ".join(filter(None, (str(home.folder), opening.uncommitted(home.folder))))
        yield Finding(what="checkout", ok=True, text=text)
        loaded = home.params
        if moved := _moved(home.folder, loaded):
            yield moved
        yield Finding(what="params.yaml", ok=True, text=f"night of {loaded.night.train_hours:g} h to train")
    except PipelineError as error:
        yield Finding(what="params.yaml", ok=False, text=str(error))
        return
    for key, needed in hooks.unread_keys(loaded):
        yield Finding(what=key, ok=False, text=needed)
    free = shutil.disk_usage(home.folder).free
    yield Finding(
        what="disk",
        ok=free >= NEEDED_BYTES,
        text=f"{free / 2**30:.1f} GiB free in {home.folder}; a night needs {NEEDED_BYTES / 2**30:.0f}",
    )
    yield _source(loaded.source)
    if sys.platform != "linux":
        text = "a delivered file may take all of it: only Linux keeps to a limit; let no strangers deliver"
        yield Finding(what="memory", ok=True, text=text)
    if lacks := confined.lacking():
        yield Finding(what="confinement", ok=True, text=lacks)
    for name in ("workload", "backend"):
        yield _plug(name, getattr(loaded, name))
    yield from _estimator(loaded)
    yield from _class_keys(loaded)
    if loaded.train.schedule == "own":
        yield _schedule(loaded)
    yield from _triggers(loaded)
    yield _code(home.folder, loaded)
    with contextlib.suppress(PipelineError):  # already reported
        yield from _with_extra("backend", _backend(home.folder, loaded, loaded.backend.make(home)))
    yield from _with_extra("endpoint", _serving(loaded))
    yield from _lifecycle(home.folder, loaded)
    yield from _users(home, loaded)
    yield from _extensions(home, loaded)
    if loaded.predict.to:
        yield from _predictions(home, loaded)
    yield _suite(home.folder / loaded.validate_.suite, loaded)
    yield from _versions(home, loaded)


def _moved(home: Path, loaded: Params) -> Finding | None:
    """Returns a finding if the home was moved, or if it is a copy, with the settings that both share."""
    if not (home / address.FILE).exists():  # no night was opened here
        return None
    try:
        known = address.look(home)
    except OSError as error:  # a copy that may not be written to has no token of its own
        return Finding(what="home", ok=False, text=sentence(error))
    if known.copy_of and Path(known.copy_of).exists():
        shared = [name for name in SHARED if os.environ.get(name)]
        named = {
            "register.tracking_uri": loaded.register_.tracking_uri,
            "night.ledger_remote": loaded.night.ledger_remote,
            "serving.log": loaded.serving.log,
            "train.checkpoints": loaded.train.checkpoints,
        }
        shared += [key for key, value in named.items() if value]
        text = f"this home is a copy of {known.copy_of}: its nights, data and versions are its own"
        if shared:
            text += f", but both use {', '.join(shared)}; set them to others in one of the two"
        return Finding(what="copy", ok=not shared, text=text)
    if known.folder != str(home.resolve()):
        text = f"this home was at {known.folder}; its nights, data and versions are found where it is now"
        return Finding(what="moved", ok=True, text=text)
    return None


def _predictions(home: Home, loaded: Params) -> Iterator[Finding]:
    """Yields whether predictions can be written to what `predict.to` names, and by which classes.

    That is as far as its URL, the class of params.yaml and the table of the version that serves tell.
    """
    to = loaded.predict.to
    try:
        destinations.destination_of(home, to, day=datetime.now(UTC).date(), table=loaded.predict.table)
    except PipelineError as error:
        yield Finding(what="predict.to", ok=False, text=str(error))
        return
    yield Finding(what="predict.to", ok=True, text=without_password(to))
    with contextlib.suppress(PipelineError):  # already reported
        workload = loaded.workload.make()
        if fault := predicts_nothing(workload):
            yield Finding(what="predict", ok=False, text=fault)
        table = getattr(workload, "table", None)
        champion = ledger.champion_at(home, branch.ledger_tip(home))
        reads_clean = serves_rows(workload) and not hasattr(workload, "score_rows")
        lacks = ""
        if champion and isinstance(table, Table) and reads_clean and not loaded.predict.source:
            lacks = predict.lacking(home, champion.version, table)
        if lacks:
            yield Finding(what="predict", ok=False, text=lacks)


def _with_extra(what: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yields findings up to the first that needs a missing extra, and then which extra that is."""
    try:
        yield from found
    except ImportError as error:
        if not (lacks := extras.missing(error)):
            raise
        yield Finding(what=what, ok=False, text=lacks)


def _proxy() -> Iterator[Finding]:
    if variable := environment.proxy(os.environ):
        text = f"{variable} is set; {os.environ.get('no_proxy', 'nothing')} is asked without it"
        yield Finding(what="proxy", ok=True, text=text)


def _loopback() -> Iterator[Finding]:
    """Yields findings where this machine has no IPv4 loopback address, or does not resolve localhost."""
    has_ipv4 = _is_own(LOOPBACK)
    if not has_ipv4:
        text = (
            f"{LOOPBACK} is no address of this machine, and make up listens there: ip address add "
            f"{LOOPBACK}/8 dev lo; nights run without it, serve and pages with --host ::1"
        )
        yield Finding(what="loopback", ok=True, text=text)
    if not _is_own("localhost"):
        text = (
            f"training connects its processes at localhost, which is no name of this machine; add the line "
            f"{LOOPBACK if has_ipv4 else '::1'} localhost to /etc/hosts"
        )
        yield Finding(what="localhost", ok=False, text=text)


def _is_own(name: str) -> bool:
    """Returns whether a server can listen at a name or an address."""
    with contextlib.suppress(OSError):  # nothing has this name
        for family, _, _, _, at in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.create_server(at, family=family):
                return True
    return False


def _package(name: str) -> Finding:
    try:
        return Finding(what=name, ok=True, text=importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(what=name, ok=False, text="is not installed; run make setup, or pip install daybreak")


def _optional(name: str, extra: str, use: str) -> Finding:
    """Returns the version of a package of an extra or, if the package is missing, its use and the extra."""
    found = _package(name)
    text = f"is not installed: {use}; pip install 'daybreak[{extra}]'"
    return found if found.ok else Finding(what=name, ok=True, text=text)


def _plug(name: str, plug: Plug) -> Finding:
    try:
        plug.make()
    except PipelineError as error:
        return Finding(what=name, ok=False, text=str(error))
    return Finding(what=name, ok=True, text=plug.use)


def _source(plug: Plug) -> Finding:
    """Returns the number of days that the source has, and the newest, as a night asks for first."""
    try:
        days = sorted(plug.make().days())
    except PipelineError as error:
        return Finding(what="source", ok=False, text=str(error))
    except Exception as error:  # noqa: BLE001 - of a team's class
        text = f"{plug.use} has no days: {type(error).__name__}: {error}"
        return Finding(what="source", ok=False, text=text)
    if not days:
        return Finding(what="source", ok=False, text=f"{plug.use} has no days yet; bring in one")
    text = f"{plug.use}, {counted(len(days), 'day')}, the newest {days[-1]}"
    return Finding(what="source", ok=True, text=text)


def _code(home: Path, loaded: Params) -> Finding:
    """Returns whether the code of a night is small enough to travel to jobs and into versions."""
    texts = []
    try:
        for what, files in opening.travelling(loaded, home):
            source_code.expect_portable(files, what=what, max_mb=loaded.night.max_code_mb)
            num_bytes = sum(path.stat().st_size for path in files)
            texts.append(f"{counted(len(files), 'file')}, {size(num_bytes)}, {what}")
    except (PipelineError, SyntaxError) as error:
        return Finding(what="code", ok=False, text=str(error))
    return Finding(what="code", ok=True, text="; ".join(texts))


def _backend(home: Path, loaded: Params, backend: Backend) -> Iterator[Finding]:
    """Yields what the backend has, and whether it would take a job: credentials, project, bucket, image."""
    lacks = [name for name in vars(Backend) if not name.startswith("_") and not hasattr(backend, name)]
    if lacks:
        text = f"{loaded.backend.use} lacks {', '.join(lacks)}; inherit from daybreak.Backend"
        yield Finding(what="backend", ok=False, text=text)
        return
    yield _machines(home, loaded, backend)
    if fault := backend.cannot_move(loaded.train.checkpoints):
        yield Finding(what="checkpoints", ok=False, text=fault)
    elif not is_here(loaded.train.checkpoints):
        try:
            text = staging.writable(loaded.train.checkpoints, key="train.checkpoints", exclusive=True)
            yield Finding(what="checkpoints", ok=True, text=text)
        except PipelineError as error:
            yield Finding(what="checkpoints", ok=False, text=str(error))
    for what, ok, text in backend.preflight(loaded.plan.regions):
        yield Finding(what=what, ok=ok, text=text)


def _machines(home: Path, loaded: Params, backend: Backend) -> Finding:
    """Checks that the plan has machines to choose from here, and lists the dates of their prices."""
    try:
        chosen = _chosen(home, loaded, backend.machines())
    except PipelineError as error:
        return Finding(what="machines", ok=False, text=str(error))
    names = list(dict.fromkeys(machine.name for machine in chosen))
    shown = ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:5])} and {len(names) - 5} more"
    dates = [p.dated for machine in chosen for p in machine.prices if p.usd_per_hour is not None]
    days = f"; prices of {min(dates)} to {max(dates)}, daybreak prices --refresh" if dates else ""
    return Finding(what="machines", ok=True, text=f"{shown}{days}")


def rented(home: Home, loaded: Params) -> Iterator[Check]:
    """Runs a job of a minute on the machine that the newest plan rents, and yields what it found.

    Before there is a plan, it is the first that `plan.machines` allows and the backend has.
    """
    from daybreak.profiling import machine_trial

    backend: Backend = loaded.backend.make(home)
    rental, machine = planned(home, loaded, backend)
    yield Check(name="trial", ok=True, text=f"asking for {rental}; Ctrl-C ends it")
    disk.remove_old(home.var / "trials", after=KEPT_TRIALS)
    folder = home.var / "trials" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    yield from machine_trial.trial(home, rental, machine, backend, folder=folder)


def planned(home: Home, loaded: Params, backend: Backend) -> tuple[Rental, Machine]:
    """Returns rental and machine: one machine of the newest plan, or the first machine allowed."""
    from daybreak.planning import candidates

    available = backend.machines()
    places = {(machine.name, machine.region, machine.backend): machine for machine in available}
    planned = next(
        (entry.plan.rental for entry in ledger.history(home, limit=NUM_NIGHTS) if entry.plan), None
    )
    if planned and (machine := places.get((planned.machine, planned.region, planned.backend))):
        return planned.one, machine
    chosen = _chosen(home.folder, loaded, available)
    machine = next(machine for machine in chosen if machine in available)
    strategy = candidates.strategies(machine, loaded.plan)[0]
    return Rental(
        machine=machine.name, region=machine.region, strategy=strategy, backend=machine.backend
    ), machine


def _chosen(home: Path, loaded: Params, available: Sequence[Machine]) -> tuple[Machine, ...]:
    """Returns the machines that a plan would choose from, of which at least one is available."""
    from daybreak.machines import catalog, pricelist
    from daybreak.planning import candidates

    listed = (catalog.AT_HAND, *catalog.rented(home / pricelist.REFRESHED))
    return candidates.allowed(candidates.everything(available, listed), loaded.plan, available=available)


def _serving(loaded: Params) -> Iterator[Finding]:
    """Yields the checks of the serving endpoint, if there is one."""
    plug = loaded.serving.endpoint
    if not plug:
        return
    try:
        made = plug.make()
    except PipelineError as error:
        yield Finding(what="endpoint", ok=False, text=str(error))
        return
    for what, ok, text in made.preflight():
        yield Finding(what=what, ok=ok, text=text)


def _lifecycle(home: Path, loaded: Params) -> Iterator[Finding]:
    """Yields for each bucket whether a lifecycle rule is known to delete there what is still needed."""
    needed = [url for url, *_ in _kept(home, loaded) if url.startswith(NOT_READ)]
    for bucket in dict.fromkeys("/".join(url.split("/")[:3]) for url in needed):
        text = "not looked at: only rules of gs:// are read; see that none deletes what is still needed there"
        yield Finding(what=f"lifecycle of {bucket}", ok=True, text=text)
    places = [*_places(home, loaded)]
    for bucket in dict.fromkeys(each.bucket for each in places):
        what = f"lifecycle of gs://{bucket}"
        try:
            rules = lifecycle.rules(bucket)
        except PipelineError as error:
            yield Finding(what=what, ok=True, text=f"not looked at: {error}")
            continue
        complaints = lifecycle.complaints(rules, [each for each in places if each.bucket == bucket])
        for text in complaints:
            yield Finding(what=what, ok=False, text=text)
        if not complaints:
            yield Finding(what=what, ok=True, text="no rule deletes what is still needed")


def _places(home: Path, loaded: Params) -> Iterator[lifecycle.NeededFiles]:
    """Yields what is kept in buckets of Google."""
    for url, what, for_ever in _kept(home, loaded):
        if files := lifecycle.place(url, what, for_ever=for_ever):
            yield files


def _kept(home: Path, loaded: Params) -> Iterator[tuple[str, str, bool]]:
    """Yields the URL of what is kept elsewhere by params.yaml, DVC's settings and the environment.

    Beside it stand what it is, and whether it is needed for ever.
    """
    endpoint = loaded.serving.endpoint
    containers = str((endpoint.model_extra or {}).get("bucket") or "").rstrip("/") if endpoint else ""
    config = configparser.ConfigParser(interpolation=None)
    config.read(home / ".dvc" / "config")
    remotes = [values["url"] for values in config.values() if "url" in values]
    yield from (
        *((f"{bucket}/things", "what jobs fetch", False) for bucket in loaded.backend.buckets()),
        *((f"{bucket}/jobs", "what jobs leave", False) for bucket in loaded.backend.buckets()),
        *((f"{bucket}/bags", "what the runs of a bag leave", False) for bucket in loaded.backend.buckets()),
        (loaded.train.checkpoints, "copies of checkpoints", False),
        (f"{containers}/serving", "what the endpoint's containers start from", True),
        *((url, "DVC's copy of data and models", True) for url in remotes),
        (os.environ.get("MLFLOW_ARTIFACTS_DESTINATION", ""), "MLflow's artifacts", True),
    )


def _users(home: Home, loaded: Params) -> Iterator[Finding]:
    """Yields whether users can meet a challenger, where they are to judge it."""
    with contextlib.suppress(PipelineError):  # already reported
        if judge := live_judge.judge_of(loaded.gate.scores):
            for what, ok, text in judge.preflight(home, loaded):
                yield Finding(what=what, ok=ok, text=text)


def _extensions(home: Home, loaded: Params) -> Iterator[Finding]:
    """Yields what extensions find in params.yaml."""
    for checks in hooks.functions("checks"):
        with contextlib.suppress(PipelineError):  # of a plug, already reported
            for what, ok, text in checks(home, loaded):
                yield Finding(what=what, ok=ok, text=text)


def _estimator(loaded: Params) -> Iterator[Finding]:
    """Yields what params.yaml asks for and an estimator does not have, which else the plan says at night."""
    with contextlib.suppress(PipelineError):  # already reported
        if not has_estimator(loaded.workload.make()):
            return
        try:
            expect_applicable(loaded)
        except PipelineError as error:
            yield Finding(what="estimator", ok=False, text=str(error))


def _class_keys(loaded: Params) -> Iterator[Finding]:
    """Yields that a calibrator would have no samples, or a loss over a batch no batches of one size."""
    with contextlib.suppress(PipelineError):  # already reported
        workload = loaded.workload.make()
        try:
            expect_calibrated(loaded.train, workload)
        except PipelineError as error:
            yield Finding(what="calibrator", ok=False, text=str(error))
        try:
            expect_batches_alike(loaded.train.batch_by, workload)
        except PipelineError as error:
            yield Finding(what="batches", ok=False, text=str(error))


def _triggers(loaded: Params) -> Iterator[Finding]:
    """Yields which functions of the team's triggers are not there, which else a job says at each look."""
    for text in triggers.faults(tuple(map(trigger_lines.parse, loaded.plan.triggers))):
        yield Finding(what="plan.triggers", ok=False, text=text)


def _schedule(loaded: Params) -> Finding:
    """Returns whether the class has the schedule that `train.schedule` asks for."""
    try:
        workload = loaded.workload.make()
        if schedule_asks_model(workload):
            return Finding(what="train.schedule", ok=True, text="by the class, from its model")
        begins = own_schedule(workload)(0.0) * loaded.train.rate
    except PipelineError as error:
        return Finding(what="train.schedule", ok=False, text=str(error))
    return Finding(what="train.schedule", ok=True, text=f"by the class; begins at {begins:.4g}")


def _suite(path: Path, loaded: Params) -> Finding:
    """Returns whether the suite can be read, and has rules that go with the workload's table."""
    if not path.exists():
        text = f"{path} is missing; write it, or fix validate.suite"
        return Finding(what="expectations", ok=False, text=text)
    try:
        known, table = suite.load(path), getattr(loaded.workload.make(), "table", None)
        num = len(suite.rules_of(known, table)) if table else len(known.rows)
    except PipelineError as error:
        return Finding(what="expectations", ok=False, text=str(error))
    text = f"{path}, {counted(num, 'rule')} on rows and {len(known.days):,} on days"
    return Finding(what="expectations", ok=True, text=text)


def _versions(home: Home, loaded: Params) -> Iterator[Finding]:
    """Yields whether MLflow takes what nights write, and whether it and the ledger know of the same."""
    registry = _registry(home, loaded)
    yield registry
    if registry.ok:
        yield _ledger(home, loaded.register_)


def _registry(home: Home, loaded: Params) -> Finding:
    from daybreak.storage import mlflow_client, mlflow_writes

    try:
        if mlflow_client.is_missing(home) and not branch.ledger_tip(home):
            return Finding(what="mlflow", ok=True, text="no database yet; the first night creates it")
        if mlflow_client.is_file(home):
            text = mlflow_client.reachable(home)
        else:
            text = mlflow_writes.answer(home, loaded.register_.name)
        if loaded.register_.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI"):
            text += "; a copy of this home shares its versions"
        return Finding(what="mlflow", ok=True, text=text)
    except PipelineError as error:
        return Finding(what="mlflow", ok=False, text=str(error))


def _ledger(home: Home, register: RegisterParams) -> Finding:
    """Returns whether the ledger has all that MLflow and others know of, and MLflow what the ledger names."""
    try:
        lost_ledger.expect_ledger(home, register)
        _expect_champion(home, register.name)
        tip = branch.ledger_tip(home)
    except PipelineError as error:
        return Finding(what="ledger", ok=False, text=str(error))
    text = f"the branch nights, whose newest commit is {tip[:9]}" if tip else "the first night begins it"
    return Finding(what="ledger", ok=True, text=text)


def _expect_champion(home: Home, name: str) -> None:
    """Raises ReleaseError where MLflow is not the one in which the ledger's champion was registered."""
    from daybreak.storage import mlflow_client

    if champion := ledger.champion_at(home, branch.ledger_tip(home)):
        with mlflow_client.session(home) as client:
            try:
                aliases.expect(client, name, champion)
            except ReleaseError:
                raise ReleaseError(
                    f"MLflow at {without_password(client.tracking_uri)} lacks what serves, version "
                    f"{champion.version} of {name}; set register.tracking_uri or MLFLOW_TRACKING_URI to "
                    f"where the nights kept it, or bring its database back"
                ) from None


def print_checks(checks: Iterable[Check], *, as_json: bool = False) -> int:
    """Prints checks as they come, or all at once as JSON; returns 1 if a check failed."""
    if as_json:
        checks = list(checks)
        print(json.dumps([asdict(check) for check in checks]))
        return 0 if all(check.ok for check in checks) else 1
    failed = 0
    for check in checks:
        print(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {one_line(check.text)}", flush=True)
        failed += not check.ok
    return 1 if failed else 0
