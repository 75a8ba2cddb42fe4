"""Keeps files that a team's package downloads, such as pretrained weights, and holds them to a digest.

The digest stands in the team's class, so that it is of the recipe, and an address whose content changes ends
a run with a sentence rather than with another model. It is of all files but hidden ones, in which packages
keep notes of their own.
"""

import contextlib
import glob
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from daybreak.contract.errors import DataError, ParamsError
from daybreak.storage import journal
from daybreak.storage.home import Home
from daybreak.storage.transfer_line import transfer_line

log = logging.getLogger(__name__)

PRETRAINED = Path("pretrained")  # in `var` of a home, or in the folder of a job on a machine without one

OF_DIGEST = 12  # characters in the name of a folder


def pretrained(name: str, download: Callable[[Path], object], *, digest: str) -> Path:
    """Returns a folder of files with this digest, which are downloaded once in a home.

    Args:
        name: of the files, in `var/pretrained` of the home, where -- stands for a slash.
        download: writes the files into an empty folder.
        digest: of the files; with an empty one, the error says which it is.

    Raises:
        ParamsError: no folder may have this name.
        DataError: what is downloaded has another digest.
    """
    home = Home.here_or_none()
    own = name.replace("/", "--")  # as Hugging Face's own cache has them
    if not own.strip("."):
        raise ParamsError(f"pretrained files have the name {name!r}; give them one that a folder may have")
    # Two classes may use one name, and a job that still reads the files of an earlier digest keeps them.
    folder = (home.var / PRETRAINED if home else PRETRAINED) / f"{own}-{digest[:OF_DIGEST]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with journal.alone(folder.with_name(f"{own}.lock")):  # of the workers of a machine, one downloads
        if folder.exists() and _digest(folder) == digest:
            return folder
        for stale in folder.parent.glob(f"{glob.escape(own)}.new-*"):  # of a download that was killed
            shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{own}.new-") as scratch:
            fresh = Path(scratch) / own
            fresh.mkdir()
            log.info("%s is downloaded into %s", name, folder.parent)
            # Of Hugging Face's own bars there would be one a file.
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            with transfer_line(f"download {name}", measure=partial(_num_bytes, fresh)):
                download(fresh)
            if (found := _digest(fresh)) != digest:
                but = f", and {digest} is expected" if digest else ""
                raise DataError(
                    f"what is downloaded as {name} has the digest {found}{but}; write that one into "
                    f"pretrained(...) once you trust the files, or name a fixed revision of them"
                )
            shutil.rmtree(folder, ignore_errors=True)
            fresh.rename(folder)
    return folder


def _num_bytes(folder: Path) -> int:
    num_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a part, which its download has just renamed
            num_bytes += path.stat().st_size if path.is_file() else 0
    return num_bytes


def _digest(folder: Path) -> str:
    """Returns the SHA-256 of the list of files, with that of each."""
    return hashlib.sha256("".join(_lines(folder)).encode()).hexdigest()


def _lines(folder: Path) -> Iterator[str]:
    names = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    for name, path in sorted(names.items()):
        if not any(part.startswith(".") for part in name.parts):
            with path.open("rb") as file:
                yield f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name.as_posix()}\n"
