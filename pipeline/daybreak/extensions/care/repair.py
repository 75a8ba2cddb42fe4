"""Puts damaged bytes back wherever a good copy exists, and says what has none.

A copy is good if it has the digest that the records name; where it comes from does not matter. In order:

    git's objects    records and code in the folders of nights, then all remotes
    DVC's cache      DVC's remote, copies in the folders of nights and in MLflow, the source for raw rows
    checkpoints      their copies elsewhere; a torn one without is removed, as training goes on from another
    buckets          sent again from the folder of the night
    versions         the model from DVC's cache, MLmodel from the version's record, other files from versions
                     that have the same
"""

import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from daybreak.contract import disk, records
from daybreak.contract.errors import PipelineError, ReleaseError, sentence
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Version
from daybreak.contract.sections import Params
from daybreak.contract.table import Table
from daybreak.data import ingest
from daybreak.data.partitions import RAW
from daybreak.jobs.cost_tracker import JOBS
from daybreak.registry import aliases, carried_code, packaging
from daybreak.registry.carried_code import MODEL
from daybreak.rollout import ledger_copy, rot
from daybreak.rollout.prune import needed_by_ledger
from daybreak.storage import artifact_files, checkout, dvc_cache, erasures, ledger, snapshots
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import locations, session
from daybreak.training import checkpoint
from daybreak.training.checkpoint_copies import CheckpointCopies

log = logging.getLogger(__name__)


def repair(home: Home, params: Params) -> Iterator[Check]:
    """Yields a check for each fault that was found: ok where it is repaired, and by what."""
    num = 0
    for name, repaired in PLACES.items():
        try:
            for check in repaired(home, params):
                num += 1
                if check.ok:
                    disk.sync(home.folder)  # what is said to be repaired is so also if the power fails
                yield check
        except (PipelineError, OSError) as error:
            num += 1
            yield Check(name=name, ok=False, text=sentence(error))
    for fault in rot.in_database(home):
        num += 1
        yield _failed(fault.where, "bring var/mlflow.db back from a backup")
    if not num:
        yield Check(name="repair", ok=True, text="all bytes are what the records say")


def _repaired(where: str, source: str) -> Check:
    return Check(name="repaired", ok=True, text=f"{where}, from {source}")


def _failed(where: str, remedy: str) -> Check:
    return Check(name="not repaired", ok=False, text=f"{where}; no good copy was found: {remedy}")


def _git(home: Home, params: Params) -> Iterator[Check]:
    """Repairs git's objects: what is damaged is moved away, then brought from files here and from remotes."""
    damaged = rot.damaged_objects(home)
    before = list(rot.in_git(home))
    if not before:
        return
    aside = home.var / "damaged"
    aside.mkdir(parents=True, exist_ok=True)
    for path in damaged:
        if path.suffix != ".pack":
            path.replace(aside / f"{path.parent.name}{path.name}")
            continue
        for part in path.parent.glob(f"{path.stem}.*"):
            part.replace(aside / part.name)
        _take_pack(home, aside / path.name, "unpack-objects", "-r", "-q")  # what of it can be read
    source = "files in the folders of nights"
    _from_folders(home)
    if list(rot.in_git(home)):
        source = _from_remotes(home)
    left = list(rot.in_git(home))
    for fault in before:
        if left:
            yield _failed(fault.where, f"bring .git back from a backup or a clone ({left[0]})")
        else:
            yield _repaired(fault.where, source)


def _take_pack(home: Home, pack: Path, *command: str) -> None:
    """Has a command of git read a pack; what it cannot read is looked for elsewhere."""
    with pack.open("rb") as file:
        subprocess.run(["git", *command], cwd=home.folder, stdin=file, capture_output=True, check=False)


def _from_folders(home: Home) -> None:
    """Writes the objects of git that are files of the home, and records in the folders of nights."""
    for folder in (home.folder, *sorted(home.nights.glob("*"))):
        files = [folder / "params.yaml", folder / "dvc.lock", *sorted((folder / records.RUN).glob("*"))]
        with suppress(ReleaseError):  # the folder is of no worktree any more, or its index is damaged
            listed = checkout.git("ls-files", "-z", folder=folder).split("\0")
            files += [folder / name for name in listed if name]
        text = "".join(f"{path}\n" for path in files if path.is_file() and not path.is_symlink())
        with suppress(ReleaseError):
            checkout.git("hash-object", "-w", "--no-filters", "--stdin-paths", folder=home.folder, text=text)


def _from_remotes(home: Home) -> str:
    """Adds all objects that remotes have; returns the remotes that answered."""
    answered = []
    for remote in ledger_copy.remotes(home):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                store = ledger_copy.mirror(home, remote, Path(scratch) / "mirror")
            except (ReleaseError, subprocess.TimeoutExpired) as error:
                log.warning("the remote %s does not answer: %s", remote, error)
                continue
            for pack in sorted(store.glob("objects/pack/*.pack")):
                _take_pack(home, pack, "index-pack", "--stdin", "--fix-thin")
            answered.append(remote)
    return f"the remote {', '.join(answered)}" if answered else "nowhere"


def _cache(home: Home, params: Params) -> Iterator[Check]:
    """Repairs DVC's cache: damaged objects, and those that the newest nights need and it lacks."""
    locks = needed_by_ledger(home, params.night)
    faults = {
        fault.name: fault
        for fault in (*rot.in_cache(home, dvc_cache.objects(home)), *rot.missing(home, locks))
    }
    sources = _Copies(home, params, locks)
    # Lists of folders first, since they name the missing files.
    while faults:
        digest = min(faults, key=lambda one: not one.endswith(dvc_cache.FOLDER))
        fault = faults.pop(digest)
        with tempfile.TemporaryDirectory() as scratch:
            copy = sources.find(digest, Path(scratch))
            if copy is None:
                yield _failed(fault.where, "bring .dvc/cache back from a backup")
                continue
            dvc_cache.put(home, digest, copy[0])
        yield _repaired(fault.where, copy[1])
        if digest.endswith(dvc_cache.FOLDER):
            faults |= {new.name: new for new in rot.missing(home, locks)}


class _Copies:
    """Where an object of DVC's cache may be had from."""

    def __init__(self, home: Home, params: Params, locks: list[str]) -> None:
        self._home, self._params, self._locks = home, params, locks
        self._remote_answers = True

    def find(self, digest: str, scratch: Path) -> tuple[Path, str] | None:
        """Returns a file with the bytes of the object, and where it is from."""
        fresh = scratch / "object"
        if self._remote_answers:
            try:
                if snapshots.fetch_object(digest, fresh) and dvc_cache.is_intact(self._home, digest, fresh):
                    return fresh, "DVC's remote"
            except Exception as error:  # noqa: BLE001 each remote raises its own errors
                log.warning("DVC's remote does not answer: %s", " ".join(str(error).split())[:200])
                self._remote_answers = False
        if digest.endswith(dvc_cache.FOLDER):
            if text := self._lists.get(digest):
                fresh.write_text(text)
                return fresh, "the files that it lists"
            return None
        if (path := self._files.get(digest)) and dvc_cache.is_intact(self._home, digest, path):
            return path, str(path)
        if day := self._raw_days.get(digest):
            try:
                part = ingest.fetch_again(
                    self._home,
                    day,
                    digest,
                    source=self._params.source.make(),
                    table=self._table,
                    work=scratch,
                )
            except (PipelineError, OSError) as error:
                log.warning("the source does not have %s: %s", day, sentence(error))
                part = None
            if part:
                return part, f"the source, {day}"
        return None

    @property
    def _table(self) -> Table:
        table: Table = self._params.workload.make().table
        return table

    @cached_property
    def _raw_days(self) -> dict[str, date]:
        files = [
            one for lock in self._locks for one in dvc_cache.files_of(self._home, dvc_cache.outputs(lock))
        ]
        parts = {digest: Path(path).parent.name for path, digest in files if path.startswith(f"{RAW}/")}
        return {digest: date.fromisoformat(name[4:]) for digest, name in parts.items() if name[:4] == "day="}

    @cached_property
    def _files(self) -> dict[str, Path]:
        """Returns files of nights and MLflow's local artifacts, by current digest.

        Links to the cache's own files do not count as copies.
        """
        home = self._home.folder
        known = {
            (stat.st_dev, stat.st_ino)
            for stat in (path.stat() for path in dvc_cache.folder(self._home).glob("??/*"))
        }
        paths: dict[str, Path] = {}
        for folder in (home / "data", *sorted((home / "nights").glob("*/data")), home / "var" / "artifacts"):
            for path in sorted(folder.rglob("*")):
                if path.is_file() and (path.stat().st_dev, path.stat().st_ino) not in known:
                    with suppress(OSError):
                        paths.setdefault(records.digest(path), path)
        return paths

    @cached_property
    def _lists(self) -> dict[str, str]:
        """Lists of the folders that nights have, as DVC writes them, by digest."""
        home, lists = self._home.folder, {}
        for folder in (home, *sorted((home / "nights").glob("*"))):
            lock = folder / "dvc.lock"
            for path in dvc_cache.outputs(lock.read_text()) if lock.is_file() else ():
                if (folder / path).is_dir():
                    text = records.listing(folder / path)
                    lists[f"{records.text_digest(text)}{dvc_cache.FOLDER}"] = text
        return lists


def _nights(home: Home, params: Params) -> Iterator[Check]:
    """Repairs the copies that nights have of files of the cache."""
    for fault in rot.in_nights(home):
        if not dvc_cache.is_intact(home, fault.name):
            yield _failed(fault.where, "the cache lacks it too")
            continue
        path = Path(fault.where)
        fresh = path.with_name(f".{path.name}")  # as `dvc_cache.put`
        shutil.copyfile(dvc_cache.path_of(home, fault.name), fresh)
        fresh.replace(path)
        yield _repaired(fault.where, "DVC's cache")


def _checkpoints(home: Home, params: Params) -> Iterator[Check]:
    """Fetches copies of torn checkpoints, and removes those that have none, as training skips them."""
    for folder in sorted(home.nights.glob(f"*/{JOBS}/*")):
        torn = {
            path: wrong for path in folder.glob("checkpoints/seen=*") if (wrong := checkpoint.fault(path))
        }
        if not torn:
            continue
        for path in torn:
            shutil.rmtree(path)
        url = rot.copies_of(folder)
        for path, wrong in torn.items():
            others = [one.name for one in folder.glob("checkpoints/seen=*") if not checkpoint.fault(one)]
            if url and CheckpointCopies(url).fetch_one(path):
                yield _repaired(f"{path}: {wrong}", url)
            else:
                rest = f"training goes on from {max(others)}" if others else "training begins again"
                yield _failed(f"{path}: {wrong}", f"it is removed, and {rest}")
    for url in rot.copies(home):
        for copy, wrong in CheckpointCopies(url).faults():
            yield _failed(f"{url}/{copy}: {wrong}", "it is skipped, and the next checkpoint replaces it")


def _buckets(home: Home, params: Params) -> Iterator[Check]:
    """Sends again what is damaged in the backends' buckets, from the folder of a night that has it."""
    damaged = [
        (bucket, thing, fault)
        for bucket in rot.buckets(home, params)
        for thing, fault in {fault.name: fault for fault in rot.in_bucket(bucket)}.items()
    ]
    if not damaged:
        return
    nights = sorted(home.nights.glob("*"))
    sent = ("data/arrays", "data/champion", "data/run/model")
    sources = {
        records.digest(night / path): night / path
        for night in nights
        for path in sent
        if (night / path).is_dir()
    }
    for bucket, thing, fault in damaged:
        bucket.remove_thing(thing)
        if thing in sources:
            bucket.send_thing(sources[thing], thing)
            yield _repaired(fault.where, str(sources[thing]))
        else:
            yield _failed(fault.where, "it is removed, and the next train sends it again")


def _versions(home: Home, params: Params) -> Iterator[Check]:
    """Repairs the files of versions in MLflow."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    faults = {int(fault.name): fault for fault in rot.in_versions(home, params)}
    if not faults:
        return
    known = {version.number: version for version in ledger.versions(home)}
    with session(home) as client, tempfile.TemporaryDirectory() as scratch:
        uris = {int(one.version): str(one.source) for one in aliases.versions(client, params.register_.name)}
        others, own = _Versions(home, uris, known, Path(scratch)), locations(home)
        for number, fault in faults.items():
            try:
                own.expect_own(uris[number], run_id=known[number].run_id)
            except ReleaseError as error:  # of this version's place alone
                yield Check(name="not repaired", ok=False, text=sentence(error))
                continue
            folder = others.folder(number)
            if others.complete(known[number]):
                # Not by the run: a refit has files of its own there, beside those of the version judged.
                with artifact_files.told_in_a_sentence(uris[number], writes=True):
                    store: Any = get_artifact_repository(uris[number])
                    store.log_artifacts(str(folder))
                packaging.sync(uris[number])
                with tempfile.TemporaryDirectory() as again:
                    carried_code.fetch(home, uris[number], known[number], into=Path(again))
                yield _repaired(fault.where, "DVC's cache, its record and other versions")
            else:
                yield _failed(fault.where, "bring MLflow's artifacts back from a backup, or roll back")


class _Versions:
    """The files of versions, as they are in MLflow now, each in a folder here."""

    def __init__(self, home: Home, uris: dict[int, str], known: dict[int, Version], scratch: Path) -> None:
        self._home, self._scratch, self._known = home, scratch, known
        self._uris = {number: uri for number, uri in uris.items() if number in known}

    def folder(self, number: int) -> Path:
        """Returns the folder of a version's files, without those that cannot be fetched."""
        folder, version = self._scratch / str(number), self._known[number]
        if not folder.exists():
            folder.mkdir()
            for name, num_bytes in version.files.items():
                with suppress(ReleaseError):  # whatever is missing is looked for elsewhere
                    one = replace(version, files={name: num_bytes})
                    carried_code.bring(self._home, self._uris[number], one, into=folder)
        return folder

    def complete(self, version: Version) -> bool:
        """Puts good files in the place of bad ones; returns whether all are as the ledger says."""
        folder = self.folder(version.number)
        self._model(version, folder / MODEL)
        if version.mlmodel:
            (folder / packaging.DESCRIPTION).write_text(version.mlmodel)
        if self._is_whole(version, folder):
            return True
        for other in sorted(set(self._uris) - {version.number}, reverse=True):
            for path in sorted(self.folder(other).rglob("*")):
                name = path.relative_to(self.folder(other))
                if (
                    path.is_file()
                    and not name.is_relative_to(MODEL)
                    and self._try(version, folder / name, path)
                ):
                    return True
        return False

    def _try(self, version: Version, place: Path, path: Path) -> bool:
        """Puts a file of another version in the place of this one's, if that makes the version whole."""
        before = place.read_bytes() if place.is_file() else None
        if before == path.read_bytes():
            return False
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        if self._is_whole(
            version, place.parents[len(place.relative_to(self.folder(version.number)).parts) - 1]
        ):
            return True
        if before is None:
            place.unlink()
        else:
            place.write_bytes(before)
        return False

    def _is_whole(self, version: Version, folder: Path) -> bool:
        return records.digest(folder) in (
            version.files_digest,
            erasures.now(self._home, version.files_digest),
        )

    def _model(self, version: Version, folder: Path) -> None:
        """Writes the model's files anew from DVC's cache, which the night's own model is in."""
        listed = [*dvc_cache.files_of(self._home, {"": version.model_digest})]
        if not listed or not all(dvc_cache.is_intact(self._home, digest) for _, digest in listed):
            return
        shutil.rmtree(folder, ignore_errors=True)
        for path, digest in listed:
            place = folder / path.removeprefix("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(dvc_cache.path_of(self._home, digest), place)


PLACES: dict[str, Callable[[Home, Params], Iterator[Check]]] = {
    "git": _git,
    "cache": _cache,
    "nights": _nights,
    "checkpoints": _checkpoints,
    "bucket": _buckets,
    "versions": _versions,
}
