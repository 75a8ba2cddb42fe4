"""Reads DVC's cache without DVC: lists objects, and checks their bytes against the digest in the name.

DVC trusts a file of its cache by time and size, so that a bit which rots there is read by every later night.
An object is `files/md5/ab/cdef...`; that of a folder ends with `.dir` and lists the digests of its files.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ruamel.yaml import YAML

from daybreak.contract import records
from daybreak.storage import checkout
from daybreak.storage.home import Home

FOLDER = ".dir"


def folder(home: Home) -> Path:
    """Returns the folder of the home's cache."""
    return home.folder / ".dvc" / "cache" / "files" / "md5"


def path_of(home: Home, digest: str) -> Path:
    """Returns the file of an object."""
    return folder(home) / digest[:2] / digest[2:]


def objects(home: Home) -> list[str]:
    """Returns the digests of all objects, in order."""
    paths = folder(home).glob("??/*")
    return sorted(path.parent.name + path.name for path in paths if len(path.name.removesuffix(FOLDER)) == 30)


def share(digests: Iterable[str], *, number: int, of: int) -> list[str]:
    """Returns those of an `of`-th that has this number; any `of` numbers in a row are all of them."""
    return [one for one in digests if int(one[:8], 16) % of == number % of]


def is_intact(home: Home, digest: str, path: Path | None = None) -> bool:
    """Returns whether a file, the object's own if left out, can be read and has the digest.

    Raises PermissionError where this user may not read it: nothing is known of it, and no copy helps.
    """
    try:
        return records.digest(path or path_of(home, digest)) == digest.removesuffix(FOLDER)
    except PermissionError:
        raise
    except OSError:
        return False


def damaged(home: Home, digests: Iterable[str]) -> Iterator[str]:
    """Yields the digests whose objects have other bytes.

    A missing object is not damaged, since another night's `prune` may run meanwhile; `missing` finds needed
    ones.
    """
    for digest in digests:
        if not is_intact(home, digest) and path_of(home, digest).exists():
            yield digest


def outputs(lock: str) -> dict[str, str]:
    """Returns the digests of the outputs in a dvc.lock by path, without records, which are in git."""
    stages = (YAML(typ="safe").load(lock) or {}).get("stages", {}).values()
    outs = [out for stage in stages for out in stage.get("outs", ()) if "md5" in out]
    return {out["path"]: out["md5"] for out in outs if not out["path"].endswith(".json")}


def files_of(home: Home, outs: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields path and digest of each file of some outputs; none of a folder whose list is damaged."""
    for path, digest in outs.items():
        if not digest.endswith(FOLDER):
            yield path, digest
            continue
        if not is_intact(home, digest):
            continue
        for entry in json.loads(path_of(home, digest).read_text()):
            yield f"{path}/{entry['relpath']}", entry["md5"]


def bytes_of(home: Home, outs: dict[str, str]) -> int:
    """Returns how many bytes of some outputs the cache has; nothing is read but the lists of folders."""
    wanted = set()
    for digest in outs.values():
        if not digest.endswith(FOLDER):
            wanted.add(digest)
        elif path_of(home, digest).exists():
            with contextlib.suppress(ValueError):  # damaged
                wanted |= {entry["md5"] for entry in json.loads(path_of(home, digest).read_text())}
    paths = (path_of(home, digest) for digest in wanted)
    return sum(path.stat().st_size for path in paths if path.exists())


def added(home: Home) -> set[str]:
    """Returns the digests in .dvc files of the checkout, which `dvc add` writes: they belong to no night.

    DVC refuses to write such a file where git ignores it.
    """
    files = [path for path in checkout.unignored(home.folder) if path.suffix == ".dvc"]
    read = [YAML(typ="safe").load(path.read_text()) or {} for path in files]
    return {out["md5"] for each in read for out in each.get("outs", ()) if "md5" in out}


def missing(home: Home, lock: str) -> dict[str, str]:
    """Returns the outputs of a dvc.lock that the cache lacks: their paths by digest."""
    outs = outputs(lock)
    wanted = {digest: path for path, digest in (*outs.items(), *files_of(home, outs))}
    return {digest: path for digest, path in wanted.items() if not path_of(home, digest).exists()}


def put(home: Home, digest: str, content: Path) -> None:
    """Writes the bytes of an object in place, so that links to its file in folders of nights see them.

    A repair that is killed leaves the file as damaged as before, to be repaired again.
    """
    path = path_of(home, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        fresh = path.with_name(f".{path.name}")  # a killed repair leaves one, which the next writes over
        fresh.write_bytes(content.read_bytes())
        fresh.chmod(0o444)
        records.sync(fresh)
        fresh.replace(path)
        return
    mode = path.stat().st_mode
    path.chmod(0o644)
    try:
        path.write_bytes(content.read_bytes())
        records.sync(path)
    finally:
        path.chmod(mode)
