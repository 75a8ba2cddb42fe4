"""Rehearses a rollback: the version that it would bring back is restored beside the one that serves.

The model is fetched through a shadow alias, `drill`, as a server would fetch it by `champion`, and its files
are checked against the digest that the ledger has; the code commit is looked up in git; dvc.lock and the
data that nights pass on are restored into a worktree of their own, which is then removed. Users notice
nothing.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.errors import NothingToDo, PipelineError, ReleaseError
from daybreak.contract.record_parts import Check
from daybreak.contract.sections import Params
from daybreak.registry import aliases, carried_code
from daybreak.rollout.rollback import promotion_of, steps_back
from daybreak.storage import checkout, erasures, ledger, snapshots
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.mlflow_client import session

log = logging.getLogger(__name__)

ALIAS = "drill"


def drill(home: Home, params: Params) -> Iterator[Check]:
    """Yields a check each for the model, the code and the data of the version that a rollback would restore.

    Raises NothingToDo where there is no version to go back to.
    """
    releases = ledger.releases(home)
    try:
        number = steps_back(releases, 1)
    except ReleaseError as error:
        raise NothingToDo(f"no drill: {error}") from None
    (made,) = ledger.entries_of(home, [promotion_of(releases, number)])
    for name, look in (("model", _model), ("code", _code), ("data", _data)):
        try:
            yield Check(name=f"{name} of version {number}", ok=True, text=look(home, made, params))
        except PipelineError as error:
            yield Check(name=f"{name} of version {number}", ok=False, text=str(error))


def _model(home: Home, made: Entry, params: Params) -> str:
    name, release = params.register_.name, made.release
    assert release is not None
    with session(home) as client, tempfile.TemporaryDirectory() as scratch:
        aliases.expect(client, name, release)
        client.set_registered_model_alias(name, ALIAS, str(release.version))
        try:
            uri = f"models:/{name}@{ALIAS}"
            folder = carried_code.fetch(home, uri, release, into=Path(scratch))
            num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        finally:
            client.delete_registered_model_alias(name, ALIAS)
    return f"{num_bytes:,} bytes with digest {release.model_digest}"


def _code(home: Home, made: Entry, params: Params) -> str:
    commit = made.night.code_commit
    num_files = len(checkout.git("ls-tree", "-r", "--name-only", commit, folder=home.folder).splitlines())
    checkout.git("rev-list", "--objects", "--quiet", f"{commit}^{{tree}}", folder=home.folder)
    return f"{num_files:,} files at {commit[:9]}"


def _data(home: Home, made: Entry, params: Params) -> str:
    with tempfile.TemporaryDirectory(prefix="drill-", dir=home.var) as scratch:
        folder = Path(scratch) / "night"
        checkout.git("worktree", "add", "--detach", str(folder), made.commit, folder=home.folder)
        try:
            snapshots.share_cache(folder, cache=home.folder / ".dvc" / "cache")
            with contextlib.chdir(folder):
                records.replace_text(snapshots.LOCK, erasures.now_of_lock(home, snapshots.LOCK.read_text()))
                snapshots.restore(home, ["data/raw", "data/clean", "data/quarantine"])
                num_files = sum(path.is_file() for path in Path("data").rglob("*.parquet"))
        finally:
            checkout.git("worktree", "remove", "--force", str(folder), folder=home.folder)
    return f"{num_files:,} partitions as of {made.commit[:9]}"
