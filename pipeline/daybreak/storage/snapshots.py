"""Keeps the bytes that each night saw in DVC: one dvc.lock per night, one cache for all nights."""

import contextlib
import json
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml import YAML

from daybreak.contract import disk, records
from daybreak.contract.errors import DataError, JobError
from daybreak.storage import checkout, dvc_cache
from daybreak.storage.home import Home
from daybreak.storage.journal import alone
from daybreak.storage.transfer_line import transfer_line

log = logging.getLogger(__name__)
T = TypeVar("T")

LOCK = Path("dvc.lock")
BEFORE = Path(".dvc/tmp/dvc.lock.before")  # as it was; there while DVC writes a new one
LOCK_WAIT_S = 120.0
PUSH_TRIES, PUSH_WAIT_S = 3, 2.0  # to the remote; the wait is doubled after each try


def stages(folder: Path) -> dict[str, Any]:
    """Returns the stages of dvc.yaml by name; empty if there is no dvc.yaml."""
    path = folder / "dvc.yaml"
    return dict(YAML(typ="safe").load(path.read_text())["stages"]) if path.exists() else {}


def make_folders(folder: Path, stage: str) -> None:
    """Creates the folders among the stage's declared outputs that the stage left out because they are empty.

    DVC fails a stage whose declared output is missing, and there may be no bad row to quarantine.
    """
    for output in stages(folder).get(stage, {}).get("outs", ()):
        path = folder / (output if isinstance(output, str) else next(iter(output)))
        if not path.suffix:
            path.mkdir(parents=True, exist_ok=True)


def share_cache(folder: Path, cache: Path) -> None:
    """Makes the worktree in `folder` use the cache at `cache`, by links rather than copies.

    DVC is told only the kinds of links that work between the two folders: if told of reflinks on a disk
    without them, DVC would keep every copy, since it cannot tell a copy from a reflink.
    """
    from dvc_objects.fs.generic import test_links
    from dvc_objects.fs.local import LocalFileSystem

    disk = LocalFileSystem()  # type: ignore[no-untyped-call]
    kinds = test_links(["reflink", "hardlink", "symlink", "copy"], disk, str(cache), disk, str(folder))
    place = checkout.relative(cache, to=folder / ".dvc", inside=cache.parents[1])
    text = f'[cache]\n    dir = {place}\n    type = "{",".join(kinds)}"\n'
    (folder / ".dvc" / "config.local").write_text(text)


def is_current(stage: str) -> bool:
    """Returns whether inputs and outputs of the stage match dvc.lock, so that the stage need not run.

    Otherwise removes the old outputs, except those that the stage adds to. DVC does not run the stage itself,
    since it would first copy each link of the outputs that stay: disk would grow with the window.
    """

    def look(repo: Any) -> bool:
        loaded = repo.stage.load_one(name=stage)
        with repo.lock:
            if not loaded.changed():
                return True
            for output in loaded.outs:
                if not output.persist:
                    output.remove()
        return False

    with _quiet():
        return _waiting(look)


def record(home: Home, stage: str) -> None:
    """Puts the outputs of a stage that DVC did not run into the cache and dvc.lock."""
    with _quiet(), _writing(home):
        _waiting(lambda repo: repo.commit(stage, force=True, allow_missing=True))


def is_recorded(path: Path) -> bool:
    """Returns whether a file of tonight, such as a record, is the one that dvc.lock has."""
    stages = YAML(typ="safe").load(LOCK.read_text())["stages"].values()
    outs = {out["path"]: out.get("md5") for stage in stages for out in stage.get("outs", ())}
    return bool(outs.get(path.as_posix()) == records.digest(path))


def sync(home: Home, folder: Path) -> None:
    """Brings the objects of the cache that dvc.lock in `folder` names to the disk, which DVC does not.

    So files that the ledger names survive a power failure. Digests that the cache lacks are skipped, since
    inputs of stages need not be in it; `push` reports outputs that are nowhere.
    """
    if not (folder / LOCK).exists():
        return
    cache = dvc_cache.folder(home)
    digests = set(re.findall(r"md5: '?([0-9a-f]{32}(?:\.dir)?)", (folder / LOCK).read_text()))
    for listing in [dvc_cache.path_of(home, one) for one in digests if one.endswith(dvc_cache.FOLDER)]:
        if listing.exists():
            digests |= {entry["md5"] for entry in json.loads(listing.read_text())}
    objects = [path for one in digests if (path := dvc_cache.path_of(home, one)).exists()]
    for path in (*objects, *{path.parent for path in objects}, *[cache] * bool(objects)):
        records.sync(path)


def recover(home: Home) -> None:
    """Puts dvc.lock back as it was before a call that was killed while DVC wrote it.

    Removes objects of the cache that a power failure left torn: once these are write-protected, DVC trusts
    their names.
    """
    if BEFORE.exists():
        with alone(BEFORE.with_suffix(".lock")):
            _put_back(home)


def _put_back(home: Home) -> None:
    if not BEFORE.exists():
        return
    began = BEFORE.stat().st_ctime  # all that was written before is on the disk
    for digest in dvc_cache.objects(home):
        path = dvc_cache.path_of(home, digest)
        with contextlib.suppress(FileNotFoundError):  # another process removes what no night needs
            if path.stat().st_ctime >= began and not dvc_cache.is_intact(home, digest):
                path.unlink()
                log.warning("%s was torn when the machine lost its power, and is removed", path)
    if not BEFORE.read_text():  # there was none
        LOCK.unlink(missing_ok=True)
        BEFORE.unlink()
    else:
        BEFORE.replace(LOCK)
    disk.sync(home.tonight)


@contextlib.contextmanager
def _writing(home: Home) -> Iterator[None]:
    """Keeps a copy of dvc.lock until DVC, which writes in place, has written a whole new file.

    A process that is killed meanwhile leaves half a file, by which DVC would refuse every later call.
    """
    BEFORE.parent.mkdir(parents=True, exist_ok=True)
    with alone(BEFORE.with_suffix(".lock")):
        _put_back(home)
        records.replace_text(BEFORE, LOCK.read_text() if LOCK.exists() else "")
        yield
        disk.sync(home.tonight)
        BEFORE.unlink(missing_ok=True)
        records.sync(BEFORE.parent)  # else a failure of the power could bring it back, and undo later stages


def holds(home: Home, path: str, name: str) -> bool:
    """Returns whether the folder `path`, as dvc.lock has it, holds a file of that name."""
    lock = YAML(typ="safe").load(LOCK.read_text())
    digests = [
        out["md5"]
        for stage in lock["stages"].values()
        for out in stage.get("outs", ())
        if out["path"] == path and out["md5"].endswith(".dir")
    ]
    listings = [dvc_cache.path_of(home, digest) for digest in digests]
    return any(
        name in {entry["relpath"] for entry in json.loads(listing.read_text())}
        for listing in listings
        if listing.exists()
    )


def restore(home: Home, paths: list[str]) -> None:
    """Restores those of `paths` that are in dvc.lock, and fetches what the cache lacks.

    Every byte is read and compared with dvc.lock, since DVC trusts its cache by time and size. Files that are
    damaged in the cache are fetched again if there is a remote; DataError names the files that stay damaged.
    """
    lock = YAML(typ="safe").load(LOCK.read_text())
    outputs = [out for stage in lock["stages"].values() for out in stage.get("outs", ())]
    wanted = [out for out in outputs if out["path"] in paths]
    digests = {out["path"]: out["md5"] for out in wanted}
    with _quiet():
        remote = _waiting(lambda repo: bool(repo.config["core"].get("remote")))
        cache = dvc_cache.folder(home)
        num_bytes = sum(out.get("size", 0) for out in wanted)  # the champion has none, and is small
        measure = partial(dvc_cache.bytes_of, home, digests)
        with transfer_line("fetch data from DVC's remote", num_bytes=num_bytes, measure=measure):
            _fetch([*digests], remote=remote)
        damaged = _damaged(home, digests, cache)
        if damaged and remote:
            for file, cached in damaged.items():
                log.warning("%s is damaged in DVC's cache (%s); fetching it again", file, cached)
                _fetch_in_place(home, cached)
                if file != cached:
                    file.unlink(missing_ok=True)
            _fetch([*digests], remote=remote)
            damaged = _damaged(home, digests, cache)
    if damaged:
        named = ", ".join(f"{file} (from {cached})" for file, cached in list(damaged.items())[:3])
        raise DataError(
            f"{len(damaged)} restored files are not what dvc.lock says: {named}; daybreak repair "
            f"puts them back from DVC's remote, another night's copy or the source; then run this again"
        )


def expect_intact(home: Home, paths: Iterable[str], *, before: str) -> None:
    """Raises DataError where a file that tonight wrote to one of `paths` differs from dvc.lock.

    `before` is the dvc.lock of the night before: `open` has read the files that are in it.
    """
    outs = {path: digest for path, digest in dvc_cache.outputs(LOCK.read_text()).items() if path in paths}
    known = {digest for _, digest in dvc_cache.files_of(home, dvc_cache.outputs(before))} if before else set()
    lists = [
        path
        for path, digest in outs.items()
        if digest.endswith(dvc_cache.FOLDER) and not dvc_cache.is_intact(home, digest)
    ]
    tonight = [(file, digest) for file, digest in dvc_cache.files_of(home, outs) if digest not in known]
    damaged = lists + [file for file, digest in tonight if not dvc_cache.is_intact(home, digest, Path(file))]
    if damaged:
        raise DataError(
            f"{len(damaged)} of {len(tonight)} files of tonight are not what dvc.lock says: "
            f"{', '.join(damaged[:3])}; daybreak repair puts them back from DVC's remote, another "
            f"night's copy or the source; then run this again"
        )


def fetch_object(digest: str, to: Path) -> bool:
    """Fetches the object of a digest from DVC's remote to a file; returns False where it is not there."""

    def fetch(repo: Any) -> bool:
        if not repo.config["core"].get("remote"):
            return False
        remote = repo.cloud.get_remote_odb()
        try:
            remote.fs.get_file(remote.oid_to_path(digest), str(to))
        except FileNotFoundError:
            return False
        return True

    with _quiet():
        return _waiting(fetch)


def _fetch_in_place(home: Home, cached: Path) -> None:
    """Makes the bytes of a damaged object those that the remote has, also for the nights that link to it."""
    digest = cached.parent.name + cached.name
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "object"
        if fetch_object(digest, fresh) and dvc_cache.is_intact(home, digest, fresh):
            dvc_cache.put(home, digest, fresh)
        else:
            cached.unlink(missing_ok=True)


def _fetch(paths: list[str], *, remote: bool) -> None:
    if remote:
        _waiting(lambda repo: repo.pull(paths))
    _waiting(lambda repo: repo.checkout(paths, force=True))


def _damaged(home: Home, digests: dict[str, str], cache: Path) -> dict[Path, Path]:
    """Returns damaged files, each with the cache file that it is a link to."""

    def cached(digest: str) -> Path:
        return dvc_cache.path_of(home, digest)

    def differs(file: Path, digest: str) -> bool:
        return not file.is_file() or records.digest(file) != digest

    damaged = {}
    for path, digest in digests.items():
        if not digest.endswith(".dir"):
            expected = {Path(path): digest}
        elif differs(cached(digest), digest.removesuffix(".dir")):  # the list of the folder's files
            expected = {cached(digest): digest.removesuffix(".dir")}
        else:
            listed = json.loads(cached(digest).read_text())
            expected = {Path(path, entry["relpath"]): entry["md5"] for entry in listed}
        for file, one in expected.items():
            if differs(file, one):
                damaged[file] = file if file.is_relative_to(cache) else cached(one)
    return damaged


def push(home: Home) -> bool:
    """Copies the cached files of dvc.lock to the remote, if there is one; returns False if that failed.

    A failure is only logged, since the cache has the files all the same: no night fails because of it. So is
    an output that neither the cache nor the remote has, which DVC passes over without a word.
    """
    from tenacity import Retrying, stop_after_attempt, wait_exponential

    attempts = Retrying(
        stop=stop_after_attempt(PUSH_TRIES), wait=wait_exponential(multiplier=PUSH_WAIT_S), reraise=True
    )
    try:
        with _quiet(), transfer_line("copy data to DVC's remote"):
            attempts(_waiting, lambda repo: repo.push() if repo.config["core"].get("remote") else None)
        lost = _nowhere(home)
    except Exception as error:  # noqa: BLE001 each remote raises its own errors
        log.warning(
            "the data of this night is in the cache here, but not in DVC's remote (%s, %d tries); "
            "run dvc push in %s once it answers",
            " ".join(str(error).split())[:200],
            PUSH_TRIES,
            home.tonight,
        )
        return False
    if lost:
        log.error(
            "files of this night that neither DVC's cache nor a remote has: %d, such as %s; no rollback "
            "brings them back; daybreak repair puts back what this folder or the source still has",
            len(lost),
            lost[0],
        )
    return not lost


def _nowhere(home: Home) -> list[str]:
    """Returns the outputs of dvc.lock that neither the cache nor the remote has."""
    lacking = dvc_cache.missing(home, LOCK.read_text()) if LOCK.exists() else {}
    if not lacking:
        return []
    with remote(home.tonight) as odb:
        return [path for digest, path in lacking.items() if odb is None or not odb.exists(digest)]


def lock_champion(lock: str, model_digest: str) -> str:
    """Returns dvc.lock with `data/champion` in it, as the model of that digest."""
    yaml = YAML()
    content = yaml.load(lock) or {"schema": "2.0"}
    out = {"path": "data/champion", "hash": "md5", "md5": model_digest}
    content.setdefault("stages", {})["open"] = {"cmd": "daybreak open", "outs": [out]}
    stream = StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def _waiting(action: Callable[[Any], T]) -> T:
    """Runs `action` on the DVC repository here, and waits for DVC's own lock, which fails at once."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError
    from dvc.rwlock import RWLockFileCorruptedError
    from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

    logging.getLogger("dvc").setLevel(logging.ERROR)  # it warns of an empty data/champion, which is intended
    for bars in ("dvc.progress", "dvc_data.callbacks"):  # which draw none above that level
        logging.getLogger(bars).setLevel(logging.CRITICAL)
    logging.getLogger("dvc_data.hashfile.transfer").addFilter(disk.raise_fault)
    attempts = Retrying(
        retry=retry_if_exception_type((LockError, RWLockFileCorruptedError)),
        stop=stop_after_delay(LOCK_WAIT_S),
        wait=wait_random_exponential(max=5),
        reraise=True,
    )

    def once() -> T:
        with _repository(None) as repo:
            try:
                return action(repo)
            except RWLockFileCorruptedError:
                _remove_torn(Path(repo.tmp_dir))
                raise

    try:
        return attempts(once)
    except DvcException as error:
        raise JobError(
            f"dvc failed: {' '.join(str(error).split())}; look at .dvc/tmp, then run this again"
        ) from error


def remove_nights(home: Home, folders: Sequence[Path]) -> None:
    """Removes the folders of nights, and DVC's state of each, which is elsewhere."""
    states = [_state_of(folder) for folder in folders]
    checkout.remove_worktrees(home.folder, folders)
    for state in states:
        shutil.rmtree(state, ignore_errors=True)


def _repository(folder: Path | None) -> Any:
    """Returns the DVC repository of a folder, by default this one, with its state in a folder of this user.

    By default DVC keeps it in /var/tmp/dvc, where any user of the machine may write. It is a database of
    SQLite, which has to be on a disk of the machine.
    """
    from dvc.repo import Repo

    root = str(Repo.find_root(str(folder) if folder else None))
    return Repo(root, config={"core": {"site_cache_dir": str(_state_of(Path(root)))}})


def _state_of(folder: Path) -> Path:
    """Returns the place of DVC's state of a folder, by which `remove_nights` finds it again."""
    return _own_state() / records.text_digest(str(folder.resolve()))


def _own_state() -> Path:
    """Returns a folder that only this user writes to, the same each time.

    Another user may have taken its name; then it is one with a name that nobody could know before.
    """
    name = f"daybreak-dvc-{os.getuid()}"
    first = Path(tempfile.gettempdir(), name)
    with contextlib.suppress(FileExistsError):
        first.mkdir(mode=0o700)
    for folder in (first, *sorted(first.parent.glob(f"{name}-*"))):
        with contextlib.suppress(FileNotFoundError):  # another user removed theirs
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
                return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-"))


def _remove_torn(folder: Path) -> None:
    """Removes DVC's list of readers and writers if the file is torn, since DVC writes it in place.

    A process that is killed meanwhile leaves a part of it, by which DVC would refuse every later call. Those
    that were on it and live are kept apart by DVC's other lock, of the repository.
    """
    from dvc.lock import make_lock
    from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK

    with make_lock(str(folder / RWLOCK_LOCK), tmp_dir=str(folder)):
        try:
            json.loads((folder / RWLOCK_FILE).read_text())
        except ValueError:
            log.warning("%s was torn when a process was killed, and is removed", folder / RWLOCK_FILE)
            (folder / RWLOCK_FILE).unlink()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Sends the messages of DVC to standard error, since only the record belongs on standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def remote(folder: Path) -> Iterator[Any]:
    """Yields the objects of DVC's default remote, by the settings of a repository; None if it names none."""
    with _quiet(), _repository(folder) as repo:
        yield repo.cloud.get_remote_odb() if repo.config["core"].get("remote") else None
