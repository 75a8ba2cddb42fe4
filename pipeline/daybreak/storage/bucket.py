"""Keeps files and folders in a bucket, or at any other URL of fsspec, and transfers them whole.

Nothing is locked or renamed there. A folder that was sent holds `whole.json`, its files with their sizes and
digests, written last: files that are not listed there, or do not match, are not used.

A lifecycle rule of a bucket deletes by age, and file by file. So a folder counts as present only while all
files of its list are there with the listed sizes, and with the listed digests if the storage reports digests.
A folder that is still in use after a week is written anew.
"""

import base64
import hashlib
import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from daybreak.contract.errors import DataError, without_password
from daybreak.storage.transfer_line import transfer_line

log = logging.getLogger(__name__)

WHOLE = "whole.json"
THINGS = "things"  # the folders that were sent
TRIES = 20  # to create a file that others create at the same time
RENEWED = timedelta(days=7)  # age at which a folder that is still used is written anew
NEVER = datetime.min.replace(tzinfo=UTC)
# Keys of the time at which a file was written, as file systems of fsspec name it.
WRITTEN_AT = ("ctime", "LastModified", "last_modified", "mtime", "created")


def options(url: str) -> dict[str, Any]:
    """Returns the options that fsspec needs to open the URL: an emulator on loopback takes no credentials."""
    google = url.startswith(("gs://", "gcs://"))
    return {"token": "anon"} if google and "STORAGE_EMULATOR_HOST" in os.environ else {}


def is_here(url: str) -> bool:
    """Returns whether only this machine has what is at the URL, which may be a path, or empty."""
    return "://" not in url or url.startswith(("file://", "memory://"))


class BucketFolder:
    """A folder at any URL of fsspec."""

    def __init__(self, *, url: str) -> None:
        self.url = url

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        files, root = fsspec.core.url_to_fs(self.url, **options(self.url))
        return files, str(root).rstrip("/")

    @property
    def files(self) -> Any:
        """Returns the file system of the folder, without cached listings."""
        self._opened[0].invalidate_cache()
        return self._opened[0]

    def at(self, *names: str) -> str:
        """Returns a path in the folder, as its file system names it."""
        return "/".join((self._opened[1], *names))

    def text(self, *names: str) -> str | None:
        """Returns the text of a file, or None if it is missing."""
        try:
            return str(self.files.cat_file(self.at(*names)).decode())
        except FileNotFoundError:
            return None

    def write(self, text: str, *names: str) -> None:
        """Writes a file whole."""
        files, path = self.files, self.at(*names)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        files.pipe_file(path, text.encode())

    def texts(self, *places: Sequence[str]) -> list[str]:
        """Returns the texts of files up to the first that is missing; they are asked for together."""
        paths = [self.at(*names) for names in places]
        answers = self.files.cat(paths, on_error="return")
        texts = []
        for path in paths:
            if isinstance(answers[path], FileNotFoundError):
                break
            if isinstance(answers[path], Exception):
                raise answers[path]
            texts.append(answers[path].decode())
        return texts

    def create(self, text: str, *names: str) -> bool:
        """Creates a file atomically unless it exists; returns True to one of several writers.

        In Cloud Storage the precondition is ifGenerationMatch=0, in S3 If-None-Match: *.
        """
        from fsspec.implementations.local import LocalFileSystem

        files, path = self.files, self.at(*names)
        files.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(files, LocalFileSystem):  # which would show the file before it is whole
            fresh = Path(self.at(f".{secrets.token_hex(8)}"))
            fresh.write_text(text)
            try:
                os.link(fresh, path)
            except FileExistsError:
                return False
            finally:
                fresh.unlink()
            return True
        for _ in range(TRIES):
            try:  # not by `open`, which asks S3 for an empty file without the precondition
                files.pipe_file(path, text.encode(), mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if (code := s3_code(error)) == "PreconditionFailed":  # from stores that do not say which
                    return False
                if code != "ConditionalRequestConflict":  # with another request that goes on
                    raise
            else:
                return True
        raise OSError(f"other writers create {path} at the same time, {TRIES} times")

    def send_thing(self, folder: Path, thing: str) -> None:
        """Sends a local folder, unless it is there whole already, and not about to be old."""
        if self.keep_thing(thing):
            return
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        files = self.files
        num_bytes = sum((folder / name).stat().st_size for name in names)
        with transfer_line(f"send to {without_password(self.url)}", num_bytes=num_bytes) as sent:
            for name in names:
                path = self.at(THINGS, thing, name)
                files.makedirs(path.rpartition("/")[0], exist_ok=True)
                files.put_file(str(folder / name), path)
                sent((folder / name).stat().st_size)
        listed = {name: [(folder / name).stat().st_size, _md5(folder / name)] for name in names}
        self.write(json.dumps(listed), THINGS, thing, WHOLE)

    def keep_thing(self, thing: str) -> bool:
        """Returns whether a folder that was sent is there whole; one that has got old is written anew."""
        listed = self._list_of(thing)
        if listed is None:
            return False
        root = self.at(THINGS, thing)
        there: dict[str, dict[str, Any]] = self.files.find(root, detail=True)
        facts = {path.removeprefix(root).lstrip("/"): info for path, info in there.items()}
        lacking = [name for name, wanted in listed.items() if not _is_like(facts.get(name), *wanted)]
        if lacking:
            log.warning("%s lacks %s of %s/%s as it was sent", self.url, lacking[0], THINGS, thing)
            return False
        written = [at for info in facts.values() if (at := _written_at(info))]
        if not written or min(written) > datetime.now(UTC) - RENEWED:
            return True
        return self._renew([*there])

    def _renew(self, paths: list[str]) -> bool:
        """Writes files anew where they are, so that their age begins again; False if the storage cannot."""
        from fsspec.implementations.local import LocalFileSystem

        files = self.files
        try:
            for path in paths:
                if isinstance(files, LocalFileSystem):
                    files.touch(path, truncate=False)
                else:
                    files.cp_file(path, path)
        except Exception as error:  # noqa: BLE001 each file system has its own; the folder can be sent again
            log.info("%s cannot be written anew in place (%s)", self.url, error)
            return False
        return True

    def _list_of(self, thing: str) -> dict[str, tuple[int, str]] | None:
        """Returns size and digest of each file of a folder that was sent; None without a whole list."""
        try:
            facts = json.loads(self.text(THINGS, thing, WHOLE) or "")
            return {str(name): (int(size), str(md5)) for name, (size, md5) in facts.items()}
        except (ValueError, TypeError, AttributeError):
            return None

    def old_things(self, *, age: timedelta) -> dict[str, int]:
        """Returns the bytes of each folder that was sent, and neither sent nor written anew for so long."""
        files, root = self.files, self.at(THINGS)
        newest: dict[str, datetime] = {}
        num_bytes: dict[str, int] = {}
        try:
            there = files.find(root, detail=True)
        except FileNotFoundError:
            return {}
        for path, facts in there.items():
            thing = str(path).removeprefix(root).lstrip("/").partition("/")[0]
            newest[thing] = max(newest.get(thing, NEVER), _written_at(facts) or datetime.now(UTC))
            num_bytes[thing] = num_bytes.get(thing, 0) + int(facts.get("size") or 0)
        return {thing: num for thing, num in num_bytes.items() if newest[thing] < datetime.now(UTC) - age}

    def damaged(self) -> Iterator[tuple[str, str]]:
        """Yields each file of a folder that was sent which is not what was sent, as (folder, file).

        Fetches all bytes. A folder without its list was not sent completely.
        """
        files = self.files
        try:
            listed = sorted(str(path) for path in files.find(self.at(THINGS)))
        except FileNotFoundError:
            return
        things = {path.removeprefix(self.at(THINGS) + "/").partition("/")[0] for path in listed}
        for thing in sorted(things):
            if f"{self.at('things', thing)}/{WHOLE}" in listed:
                for name in self._unlike_their_list(thing):
                    yield thing, name

    def _unlike_their_list(self, thing: str) -> Iterator[str]:
        files, expected = self.files, self._list_of(thing)
        if expected is None:
            yield WHOLE
            return
        for name, (size, md5) in expected.items():
            with tempfile.TemporaryDirectory() as scratch:
                fetched = Path(scratch) / "file"
                try:
                    files.get_file(self.at(THINGS, thing, name), str(fetched))
                except FileNotFoundError:
                    yield name
                    continue
                if not _is(fetched, size, md5):
                    yield name

    def remove_thing(self, thing: str) -> None:
        """Removes a folder that was sent, so that it is sent again; its list first."""
        files = self.files
        for path in sorted(files.find(self.at(THINGS, thing)), key=lambda path: not path.endswith(WHOLE)):
            files.rm_file(path)

    def bring_thing(self, thing: str, folder: Path) -> None:
        """Fetches a folder, unless it is here whole already; DataError if it is not whole there."""
        listed = self._list_of(thing)
        if listed is None:
            raise DataError(f"{self.url} has no whole things/{thing}; run train again, which sends it")
        if folder.is_dir() and all(_is(folder / name, *facts) for name, facts in listed.items()):
            return
        fresh = folder.with_name(f".{folder.name}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)  # also for a folder without files
        files, num_bytes = self.files, sum(size for size, _ in listed.values())
        with transfer_line(f"fetch from {without_password(self.url)}", num_bytes=num_bytes) as fetched:
            for name, (size, md5) in listed.items():
                path = inside(fresh, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                files.get_file(self.at(THINGS, thing, name), str(path))
                if not _is(path, size, md5):
                    raise DataError(
                        f"{self.url}/things/{thing}/{name} is not what was sent; remove that folder, "
                        f"and run train again, which sends it again"
                    )
                fetched(size)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh.rename(folder)


def s3_code(error: OSError) -> str:
    """Returns the code of the answer of S3 that an error was made of; "" for any other error."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


def inside(folder: Path, name: str) -> Path:
    """Returns the path in a folder of a name that a bucket gives; DataError where it would lead out of it."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise DataError(
            f"the bucket names {name!r}, which leads out of {folder}; see who writes to the bucket"
        )
    return folder / name


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _is_like(info: Mapping[str, Any] | None, size: int, md5: str) -> bool:
    """Returns whether a file of a storage has that size, and that digest where the storage tells one."""
    if not info or info.get("size") != size:
        return False
    kept_md5 = info.get("md5Hash")  # of Cloud Storage
    return not kept_md5 or base64.b64decode(kept_md5).hex() == md5


def _written_at(info: Mapping[str, Any]) -> datetime | None:
    """Returns when a file was written; None where the storage does not say."""
    value = next((info[key] for key in WRITTEN_AT if info.get(key)), None)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, (int, float)):
        value = datetime.fromtimestamp(value, UTC)
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _is(path: Path, size: int, md5: str) -> bool:
    return path.is_file() and path.stat().st_size == size and _md5(path) == md5
