"""Reads and writes records (daybreak/contract/record_types.py), and other files, whole or not at all.

`Plan` is `data/run/plan.json`; a key that is not declared is refused on reading.
"""

import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from daybreak.contract import forms
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Record

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from pydantic import TypeAdapter

R = TypeVar("R", bound=Record)
RUN = Path("data/run")  # relative to the folder of the night, which every stage runs in
# What shows values of rows: neither the ledger nor MLflow keeps it, where it would outlive an erasure. A
# team's cards are here, too; MLflow keeps these, as the team chooses what is on them.
LOOKS = RUN / "looks"
UNFINISHED = ".tmp"  # ends the name of a file that is being written, and will be renamed
NIGHT_ID = r"[A-Za-z0-9][\w.-]{0,199}"
MAX_NAME_BYTES = 255  # on most file systems
_ADAPTERS: dict[type[Record], "TypeAdapter[Any]"] = {}


def names_folder(name: str) -> bool:
    """Returns whether a night or a bag may have this name, which also names a folder."""
    return bool(re.fullmatch(NIGHT_ID, name)) and len(name.encode()) <= MAX_NAME_BYTES


def _adapter(kind: type[Record]) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def path_of(kind: type[Record], folder: Path) -> Path:
    """Returns the file of a record in a folder: `data/run/plan.json` for `Plan` and the folder `RUN`."""
    return folder / f"{kind.__name__.lower()}.json"


def dumps(record: Record) -> str:
    """Returns the record as JSON, keys in the order of declaration, ending in a new line."""
    return str(_adapter(type(record)).dump_json(record, indent=2).decode()) + "\n"


def loads(kind: type[R], text: str, *, source: str = "record") -> R:
    """Returns the record in `text`, of this release or the one before.

    A missing, wrong or unknown key raises DataError naming it.
    """
    from pydantic import ValidationError

    try:
        record: R = _adapter(kind).validate_json(_in_todays_form(kind, text))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        raise DataError(
            f"{source} is not a valid {kind.__name__}: {key}: {first['msg'].lower()}; "
            f"delete it and run the stage that writes it again"
        ) from None
    return record


def _in_todays_form(kind: type[Record], text: str) -> str:
    """Returns the JSON of a record in today's form; what is not JSON at all as it is."""
    if kind.__name__ not in forms.RECORDS:
        return text
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return json.dumps(forms.record(kind.__name__, values)) if isinstance(values, dict) else text


def write(record: Record, folder: Path) -> Path:
    """Writes the record to its file, whole or not at all, and returns the path.

    Raises DataError for a number that is not finite where a number has to be: JSON has none, so that no later
    stage could read the record.
    """
    path, text = path_of(type(record), folder), dumps(record)
    if "null" in text and (key := _not_finite(type(record), text)):
        raise DataError(
            f"{path} is not written, as its {key} is not a finite number; look at what the stage reads"
        )
    replace_text(path, text)
    return path


def _not_finite(kind: type[Record], text: str) -> str:
    """Returns the key of a number that became null in the JSON of a record; "" where none did."""
    from pydantic import ValidationError

    try:
        _adapter(kind).validate_json(text)
    except ValidationError as error:
        lost = (one["loc"] for one in error.errors() if one["type"] == "float_type" and one["input"] is None)
        return ".".join(map(str, next(lost, ())))
    return ""


def read(kind: type[R], folder: Path) -> R:
    """Returns the record from its file; raises DataError if the file is missing or wrong."""
    path = path_of(kind, folder)
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise DataError(f"{path} is missing; run the stage that writes it first (daybreak --help)") from None
    return loads(kind, text, source=str(path))


def find(kind: type[R], folder: Path) -> R | None:
    """Returns the record, or None where its file is missing."""
    return read(kind, folder) if path_of(kind, folder).exists() else None


def replace_text(path: Path, text: str) -> None:
    """Writes `text` to `path` as `replace_file` does."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Writes `content` to `path` as `replace_file` does."""
    replace_file(path, lambda file: file.write(content), mode=mode)


def replace_file(path: Path, write: Callable[[BinaryIO], object], *, mode: int = 0o644) -> None:
    """Writes `path` by an atomic rename: no reader sees half of it, and then it is on disk.

    What `write` writes goes to a file beside it first. A killed call leaves that behind, and the next call
    removes it. A writer that lives after all finds it gone and writes another, so that no text is lost.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while not _replaced(path, write, mode=mode):
        pass
    for left in _unfinished(path):
        with suppress(OSError):  # as of another user's in a folder that all may write to
            left.unlink()
    sync(path.parent)


def _replaced(path: Path, write: Callable[[BinaryIO], object], *, mode: int) -> bool:
    """Writes a file beside `path` and renames it; returns False where another call has removed it before."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # mkstemp's 0600 would hide it from the Airflow user
            write(file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException as error:
        if isinstance(error, FileNotFoundError) and path.parent.exists() and not Path(name).exists():
            return False
        if isinstance(error, OSError) and error.filename is None:  # so that the error names the disk
            error.filename = str(path)
        Path(name).unlink(missing_ok=True)
        raise
    return True


def _unfinished(path: Path) -> list[Path]:
    """Returns the files that calls which write `path` have beside it."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(UNFINISHED)}")
    return [Path(entry) for entry in os.scandir(path.parent) if pattern.fullmatch(entry.name)]


def sync(path: Path) -> None:
    """Brings a file to disk, or the names in a folder; a bucket mounted as a folder does that by itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # such a bucket knows no fsync
            raise
    finally:
        os.close(handle)


def digest(path: Path, *, of_file: Callable[[Path], str] | None = None) -> str:
    """Returns DVC's digest of a file (md5) or of a folder (md5 of the sorted list of its files, `.dir`).

    `of_file` returns the digest of a file of the folder, if it should not be read.
    """
    if path.is_file():
        if of_file:
            return of_file(path)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "md5").hexdigest()
    return text_digest(listing(path, of_file=of_file)) + ".dir"


def listing(folder: Path, *, of_file: Callable[[Path], str] | None = None) -> str:
    """Returns the list of a folder's files with their digests, as DVC writes it."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    entries = sorted(
        ({"md5": digest(p, of_file=of_file), "relpath": p.relative_to(folder).as_posix()} for p in files),
        key=lambda entry: entry["relpath"],
    )
    return json.dumps(entries, sort_keys=True)


def text_digest(text: str) -> str:
    """Returns DVC's digest of a text."""
    return bytes_digest(text.encode())


def bytes_digest(content: bytes) -> str:
    """Returns DVC's digest of a file with these bytes."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
