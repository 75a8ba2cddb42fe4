"""Frees the disk of what no rollback can bring back: old data in DVC's cache, old models in MLflow.

Predictions below the home's `var/` go with the data of the night that wrote them. Elsewhere they are a
team's, and stay. What users met more than `serving.keep_days` ago goes from the log of serving, as a router
removes it by itself: a team's own servers and an endpoint write to it, too.

It keeps data and models of all nights of the last `night.keep_days` days and of the newest `night.keep`, of
versions that served in these days, of the anchor (daybreak/gate/chain.py), and of the version that a rollback
would restore. Older nights keep their records in the ledger, and their metrics and reports in MLflow. Nothing
is removed from a remote of DVC.

`dvc gc` knows the workspace and the branches of one repository; what nights need is said by the ledger, and
by the worktrees of nights that are not closed yet.
"""

import json
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from daybreak.contract import clock, records
from daybreak.contract.errors import NothingToDo, PipelineError, ReleaseError
from daybreak.contract.record_types import Champion, Night, Version
from daybreak.contract.sections import NightParams, RegisterParams, ServingParams
from daybreak.contract.units import DAY_S
from daybreak.registry import aliases
from daybreak.rollout import targets
from daybreak.rollout.rollback import promotion_of, steps_back
from daybreak.storage import (
    artifact_files,
    branch,
    checkout,
    dvc_cache,
    erasures,
    journal,
    ledger,
    night_folders,
    snapshots,
)
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import locations, session
from daybreak.storage.traffic_log import existing_log

log = logging.getLogger(__name__)

LOCK = "dvc.lock"
# Tags of files that are gone, or that the version's run has; so it has at most eight also once erased.
GONE = {"recipe", "code_commit", "verdict"}


@dataclass(frozen=True, kw_only=True)
class Freed:
    """What was deleted of one kind, or would be."""

    what: str
    num: int
    num_bytes: int
    left: tuple[str, ...] = ()  # a sentence on each that could not be deleted


def prune(
    home: Home,
    nights: NightParams,
    register: RegisterParams,
    serving: ServingParams,
    *,
    dry_run: bool = False,
) -> Iterator[Freed]:
    """Deletes what is not needed any more, and yields how much of each kind.

    Raises NothingToDo after the folders of nights while a night is open, whose data nothing names yet.
    """
    with checkout.folders_alone(home.folder):
        yield from _pruned(home, nights, register.name, serving, dry_run=dry_run)


def _pruned(
    home: Home, nights: NightParams, name: str, serving: ServingParams, *, dry_run: bool
) -> Iterator[Freed]:
    commits, releases = ledger.commits(home), ledger.releases(home)
    since = clock.utc() - timedelta(days=nights.keep_days)
    closed = {commit.night for commit in commits}
    newest = list(dict.fromkeys(commit.night for commit in commits if not commit.rollback))
    unclosed = {night.id for _, night in night_folders.unclosed(home)}
    names = closed - unclosed - set(newest[: nights.keep]) | _half_made(home)
    yield _worktrees(home, names, dry_run=dry_run)
    if opened := night_folders.undecided(home):
        _pack(home, dry_run=dry_run)  # some night may always be open
        raise NothingToDo(
            f"no data is pruned while night {opened[0].id} is open; run prune once it is closed, or end it "
            f"with: daybreak stop --night {opened[0].id}"
        )
    kept = _kept(home, nights, commits, releases, since)
    yield _cache(home, kept, since=since, dry_run=dry_run)
    unneeded = closed - {commit.night for commit in kept}
    yield _predictions(home, unneeded, dry_run=dry_run)
    yield _models(
        home, name, [one for one in ledger.versions(home) if one.night in unneeded], dry_run=dry_run
    )
    yield from _log(home, serving, dry_run=dry_run)
    yield from _served(home, name, dry_run=dry_run)
    _pack(home, dry_run=dry_run)


def _pack(home: Home, *, dry_run: bool) -> None:
    """Has git make one pack of many, as each commit of the ledger adds one."""
    if not dry_run:
        checkout.git("-c", "gc.autoDetach=false", "gc", "--auto", "--quiet", folder=home.folder)


def needed_by_ledger(home: Home, nights: NightParams) -> list[str]:
    """Returns the texts of dvc.lock of the nights whose data is kept, with the digests of now."""
    since = clock.utc() - timedelta(days=nights.keep_days)
    kept = _kept(home, nights, ledger.commits(home), ledger.releases(home), since)
    texts = branch.texts_at(home, [one.id for one in kept], [LOCK])
    changes = erasures.changed(home)
    return [erasures.now_of_lock(home, files[LOCK], changes) for files in texts if LOCK in files]


def _kept(
    home: Home, nights: NightParams, commits: Sequence[Commit], releases: Sequence[Commit], since: datetime
) -> list[Commit]:
    return needed(
        commits, releases, since=since.timestamp(), newest=nights.keep, anchor=_anchor(home, commits)
    )


def needed(
    commits: Sequence[Commit],
    releases: Sequence[Commit],
    *,
    since: float,
    newest: int,
    anchor: int | None = None,
) -> list[Commit]:
    """Returns the commits of the ledger whose data and models are kept.

    Args:
        commits: all of the ledger, newest first.
        releases: those that let another version serve, newest first.
        since: time in seconds; what was made or served since then is kept.
        newest: number of commits that are kept whatever their age.
        anchor: the version that refreshes are held against.
    """
    kept = {commit.id: commit for commit in commits if commit.time >= since}
    kept |= {commit.id: commit for commit in commits[:newest]}
    before = [commit for commit in releases if commit.time < since]
    served = {commit.serves for commit in releases if commit.time >= since}
    served |= {commit.serves for commit in before[:1]}  # it served when that time began
    with suppress(ReleaseError):
        served.add(steps_back(releases, 1))
    promoted = {commit.serves for commit in releases if not commit.rollback}
    served |= {anchor} & promoted
    for number in filter(None, served):
        promotion = promotion_of(releases, number)
        kept[promotion.id] = promotion
    return list(kept.values())


def _anchor(home: Home, commits: Sequence[Commit]) -> int | None:
    """Returns the version that the newest night's chain of refreshes is held against."""
    champion = branch.read_at(home, commits[0].id, Champion) if commits else None
    return champion.anchor.release.version if champion and champion.anchor else None


def _half_made(home: Home) -> set[str]:
    """Returns the folders that an `open` which was killed left: the record of a night is written last."""
    folders = (path for path in home.nights.glob("*") if path.is_dir())
    return {folder.name for folder in folders if not records.path_of(Night, folder / records.RUN).exists()}


def _worktrees(home: Home, names: Iterable[str], *, dry_run: bool) -> Freed:
    folders = [home.nights / name for name in names if (home.nights / name).exists()]
    num_bytes = sum(_size(folder) for folder in folders)
    if not dry_run:
        snapshots.remove_nights(home, folders)
    return Freed(what="folders of nights", num=len(folders), num_bytes=num_bytes)


def _cache(home: Home, kept: Sequence[Commit], *, since: datetime, dry_run: bool) -> Freed:
    """Deletes the objects of DVC's cache that no night kept `since` names, no worktree, and no .dvc file.

    DVC's notes of the stages that it recorded, which `dvc repro` looks for, go once they are older than that.

    Deletes none where the list of a folder's files cannot be read, as it is then not known what to keep.
    """
    cache = dvc_cache.folder(home)
    texts = [
        files[LOCK] for files in branch.texts_at(home, [one.id for one in kept], [LOCK]) if LOCK in files
    ]
    texts += [
        path.read_text()
        for path in (home.folder / LOCK, *home.folder.glob(f"nights/*/{LOCK}"))
        if path.exists()
    ]
    wanted: set[str] = set()
    changes = erasures.changed(home)
    of_nights = {
        digest for text in set(texts) for digest in outputs(erasures.now_of_lock(home, text, changes))
    }
    for digest in of_nights | dvc_cache.added(home):
        wanted.add(digest)
        listing = dvc_cache.path_of(home, digest)
        try:
            if digest.endswith(".dir"):
                wanted |= {part["md5"] for part in json.loads(listing.read_text())}
        except (FileNotFoundError, ValueError) as error:
            log.warning("nothing of DVC's cache is pruned: %s cannot be read (%s); run audit", listing, error)
            return Freed(what="files of DVC's cache", num=0, num_bytes=0)
    unneeded = [path for path in cache.glob("??/*") if path.parent.name + path.name not in wanted]
    notes = (cache.parents[1] / "runs").glob("??/*/*")
    old = [path for path in notes if path.stat().st_mtime < since.timestamp()]
    unneeded += old
    num_bytes = sum(_size(path) for path in unneeded)
    for path in unneeded if not dry_run else ():
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in old}:
        with suppress(OSError):  # it has another note
            folder.rmdir()
    return Freed(what="files of DVC's cache", num=len(unneeded), num_bytes=num_bytes)


def outputs(lock: str) -> list[str]:
    """Returns the digests of what the stages of a dvc.lock wrote."""
    stages: dict[str, Any] = (YAML(typ="safe").load(lock) or {}).get("stages", {})
    return [out["md5"] for stage in stages.values() for out in stage.get("outs", ()) if "md5" in out]


def _predictions(home: Home, unneeded: Collection[str], *, dry_run: bool) -> Freed:
    """Deletes what these nights predicted below `var/`, unless another night has written to the same place.

    Of a folder only what Daybreak wrote there goes, so that one with other files stays.
    """
    made = [entry.predictions for entry in ledger.history(home) if entry.predictions]
    kept = {_place(home, one.to) for one in made if one.night not in unneeded}
    places = {_place(home, one.to) for one in made if one.night in unneeded} - kept
    own, num, num_bytes = home.var.resolve(), 0, 0
    with journal.alone(home.predictions_lock):
        for place in sorted(place for place in places if own in place.parents):
            files = [place] if place.is_file() else [*place.glob("part-*.parquet"), *place.glob("_SUCCESS")]
            if not files:
                continue
            num, num_bytes = num + 1, num_bytes + sum(_size(path) for path in files)
            if not dry_run:
                _remove(files, until=own)
    return Freed(what="predictions of nights", num=num, num_bytes=num_bytes)


def _place(home: Home, to: str) -> Path:
    """Returns where predictions were written, which their record names as `predict.to` does."""
    path = os.path.expandvars(to)
    for scheme in ("file://", "local://"):
        path = path.removeprefix(scheme)
    return (home.folder / path).resolve()


def _remove(files: Sequence[Path], *, until: Path) -> None:
    """Removes files, and their folders above that are empty then, up to one that stays."""
    for path in files:
        path.unlink(missing_ok=True)
    for folder in files[0].parents:
        if folder == until:
            return
        try:
            folder.rmdir()
        except OSError:  # it has something else
            return


def _models(home: Home, name: str, unneeded: Sequence[Version], *, dry_run: bool) -> Freed:
    """Deletes the models of these versions; the versions stay, with a tag that says so.

    A model stays where MLflow names other files than those of the version's own run.
    """
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    num, num_bytes, known = 0, 0, locations(home)
    left: list[str] = []
    with session(home) as client:
        registered = {int(one.version): one for one in aliases.versions(client, name)}
        for version in unneeded:
            found = registered.get(version.number)
            if found is None or aliases.PRUNED in found.tags:
                continue
            try:
                location = known.expect_own(str(found.source), run_id=version.run_id)
                with artifact_files.told_in_a_sentence(location, writes=True):
                    files: Any = get_artifact_repository(location)
                    stored = _stored(files)
                    if not dry_run:
                        files.delete_artifacts()
            except ReleaseError as error:  # of this version's place alone
                left.append(f"the model of version {version.number} is not pruned: {error}")
                continue
            num, num_bytes = num + 1, num_bytes + stored
            if not dry_run:
                for tag in sorted(GONE & found.tags.keys()):
                    client.delete_model_version_tag(name, str(version.number), tag)
                today = f"{clock.utc():%Y-%m-%d}"  # last: a version with this tag is not looked at again
                aliases.tag(client, name, version.number, **{aliases.PRUNED: today})
    return Freed(what="models in MLflow", num=num, num_bytes=num_bytes, left=tuple(left))


def _log(home: Home, params: ServingParams, *, dry_run: bool) -> Iterator[Freed]:
    """Removes what users met long ago from the log of serving, if there is one.

    A log that does not answer is told of, and the rest is pruned.
    """
    num, left = 0, tuple[str, ...]()
    try:
        log_of_serving = existing_log(params, home.folder)
        if log_of_serving is None:
            return
        with closing(log_of_serving):
            before = log_of_serving.now() - params.keep_days * DAY_S
            num = log_of_serving.forget(before=before, dry_run=dry_run)
    except PipelineError as error:
        left = (f"the log of serving is not pruned: {error}",)
    yield Freed(what="exposures of the log of serving", num=num, num_bytes=0, left=left)


def _served(home: Home, name: str, *, dry_run: bool) -> Iterator[Freed]:
    """Deletes what the endpoint's containers fetched for versions that no rollback brings back."""
    with session(home) as client, targets.endpoint(home, name) as endpoint:
        if endpoint is None:
            return
        versions = [one for one in aliases.versions(client, name) if aliases.PRUNED not in one.tags]
        unneeded = endpoint.unneeded({int(one.version) for one in versions if endpoint.tag in one.tags})
        for thing in unneeded if not dry_run else ():
            endpoint.remove(thing)
        yield Freed(
            what="folders of the endpoint's bucket", num=len(unneeded), num_bytes=sum(unneeded.values())
        )


def _stored(files: Any, folder: str | None = None) -> int:
    """Returns the bytes of the artifacts in a folder of a repository of MLflow."""
    return sum(
        _stored(files, one.path) if one.is_dir else int(one.file_size or 0)
        for one in files.list_artifacts(folder)
    )


def _size(path: Path) -> int:
    """Returns the bytes that deleting a file or folder frees; a file with another link frees none."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    stats = [one.lstat() for one in files]
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)
