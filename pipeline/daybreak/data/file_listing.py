"""Lists the files that a URL stands for, each with its day or the reason why it is not read."""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import IO, Any, Literal

import fsspec
from fsspec.implementations.local import LocalFileSystem

from daybreak.contract import extras, records
from daybreak.contract.errors import DataError, NoFiles, ParamsError, SourceUnreachable, is_unreachable
from daybreak.contract.formats import counted
from daybreak.data import day_files
from daybreak.data.day_files import DayFile

CHANGES = ("mtime", "ETag", "etag", "LastModified", "updated")  # facts that file systems have of a file
WEB = ("http://", "https://")
GLOB, PLACES = r"[*?\[]", r"[*?\[{]"  # signs of one, and of a place for a day


class FileListing:
    """The files of a URL of fsspec, listed once."""

    def __init__(
        self,
        url: str,
        *,
        suffixes: tuple[str, ...],
        kind: str,
        days_by: Literal["name", "time"] = "name",
        storage: Mapping[str, Any] | None = None,
        links: bool = False,
    ) -> None:
        """Lists nothing yet; `days_by`, `storage` and `links` are those of the source `Files`.

        Files of a folder are read if their names have one of the `suffixes`, in small letters; an error calls
        such a file a `kind`. Raises ParamsError if no file system knows the URL.
        """
        self._suffixes, self._kind = suffixes, kind
        self._days_by, self._links = days_by, links
        try:
            self._system, self.root = fsspec.core.url_to_fs(_resolved(url), **(storage or {}))
        except (ValueError, ImportError, OSError) as error:
            why = extras.missing(error) or f"{error}; fix it in params.yaml"
            raise ParamsError(f"source.url {url} cannot be used: {why}") from None
        # On the web a question mark is no sign of a glob: what follows may be a key, which nobody is told.
        self._query = ""
        if self.root.startswith(WEB):
            self.root, sign, query = self.root.partition("?")
            self._query, url = f"{sign}{query}", url.partition("?")[0]
            if day_files.is_pattern(query):
                raise ParamsError(
                    f"source.url {url} has the place of a day or an hour after the question mark, where none "
                    f"is filled in; name the day in the path, before the question mark"
                )
        self.url = url
        self._system.invalidate_cache()  # fsspec keeps systems, and some keep listings, for a whole process
        self._is_pattern = day_files.is_pattern(self.root)
        self._reasons: dict[str, str] | None = None
        self._days: dict[date, list[DayFile]] | None = None

    def by_day(self) -> dict[date, list[DayFile]]:
        """Returns the files of each day, in order; none if days are cut by time."""
        if self._days is None:
            try:
                self._days = self._dated()
            except OSError as error:
                failure = SourceUnreachable if is_unreachable(error) else DataError
                raise failure(f"{self.url} cannot be listed: {error}; check that it can be reached") from None
        return self._days

    def in_order(self) -> list[tuple[date | None, str]]:
        """Returns the paths of the files that are read, oldest first; their day is None if cut by time."""
        dated: list[tuple[date | None, str]] = [
            (file.day, file.path) for files in self.by_day().values() for file in files
        ]
        return dated or [(None, path) for path in self.paths()]

    def paths(self) -> list[str]:
        """Returns the paths of the files that are read, in order of names; DataError if there are none."""
        paths = [path for path, reason in self._files().items() if not reason]
        if not paths:
            what = "matches no file" if self._is_pattern else f"has no {self._kind}"
            words = left_out_in_words(self.left_out())
            raise NoFiles(
                f"{self.url} {what}{f' ({words})' if words else ''}; check that the data is delivered, and "
                f"source.url"
            )
        return paths

    def left_out(self) -> dict[str, list[str]]:
        """Returns the files below the URL that are not read, by the reason why."""
        reasons: dict[str, list[str]] = {}
        for path, reason in self._files().items():
            if reason:
                reasons.setdefault(reason, []).append(self.below(path).lstrip("/"))
        return reasons

    def in_folder(self) -> list[str]:
        """Returns the paths of the files in the folder that the url names, from there; none for no folder."""
        if re.search(PLACES, self.root):
            return []
        root = self.root.rstrip("/")
        is_folder = not self._query and self._system.isdir(root)
        return [path.removeprefix(f"{root}/") for path in self.paths()] if is_folder else []

    def below(self, path: str) -> str:
        """Returns the part of a path that may name its day and keys: what the url's folder does not say."""
        fixed, *places = re.split(PLACES, self.root, maxsplit=1)
        return path.removeprefix(fixed.rpartition("/")[0] if places else fixed)

    def mark_of(self, file: DayFile, name: str) -> str:
        """Returns the folder that holds a mark of that name: the file's own, or one above of the same day.

        Returns "" where there is no mark.
        """
        folder = file.path.rpartition("/")[0]
        while not self._system.exists(f"{folder}/{name}"):
            folder = folder.rpartition("/")[0]
            if day_files.day_in(f"{self.below(folder)}/") != file.day:
                return ""
        return folder

    def version(self, paths: Sequence[str]) -> str:
        """Returns a digest of names, sizes and times of change of files, or their tags in a bucket."""
        marks = [[path, *self._marks(path)] for path in paths]
        return records.text_digest(json.dumps(marks))

    def _marks(self, path: str) -> list[str]:
        try:
            facts = self._system.info(path + self._query)
        except FileNotFoundError:  # renamed since it was listed
            return []
        return [str(facts.get(key)) for key in ("size", *CHANGES)]

    def opened(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Returns a file to read, as it was delivered.

        Raises DataError where a local path is a device or a pipe, or a link that leads out of the folder. A
        single file that the url names may be a link, since params.yaml names it.
        """
        if not isinstance(self._system, LocalFileSystem):
            opened: AbstractContextManager[IO[bytes]] = self._system.open(path + self._query, "rb")
            return opened
        if Path(path).exists():
            self._expect_file(path)
        return Path(path).open("rb")

    def _expect_file(self, path: str) -> None:
        if not Path(path).is_file():
            raise DataError(f"{path} is not a file but a pipe, a device or a folder; move it away")
        root = Path(re.split(PLACES, self.root)[0])
        folder = root if root.is_dir() else root.parent
        led_to = Path(path).resolve()
        if path != self.root and not self._links and not led_to.is_relative_to(folder.resolve()):
            raise DataError(
                f"{path} is a link that leads out of {folder}, to {led_to}; have the file itself delivered, "
                f"or set source.links: true, if all who write to the folder may read what this user reads"
            )

    def _files(self) -> dict[str, str]:
        """All files that the url stands for, each with why it is not read; "" for one that is."""
        if self._reasons is None:
            if self._is_pattern or re.search(GLOB, self.root):
                listed = self._system.glob(day_files.globbed(self.root), detail=True)
                paths = [
                    path
                    for path, facts in listed.items()
                    if facts["type"] != "directory" or path.lower().endswith(self._suffixes)
                ]
            elif not self._query and self._system.isdir(self.root):
                paths = self._system.find(self.root)
            else:
                return {self.root: ""}
            dated = (
                {file.path for file in day_files.of_pattern(self.root, paths)} if self._is_pattern else None
            )
            self._reasons = {path: self._reason(path, dated) for path in sorted(paths)}
        return self._reasons

    def _reason(self, path: str, dated: Collection[str] | None) -> str:
        if day_files.is_hidden(self.below(path)):
            return "begins with . or _, which marks files that are not data"
        if dated is not None:
            return "" if path in dated else f"has no day as {self.url} has it"
        return "" if path.lower().endswith(self._suffixes) else f"is not a {self._kind}"

    def _dated(self) -> dict[date, list[DayFile]]:
        paths = self.paths()
        if self._days_by == "time":
            return {}
        if self._is_pattern:
            files = list(day_files.of_pattern(self.root, paths))
        elif len(paths) == 1:
            return {}
        else:
            named = {path: day_files.day_in(self.below(path)) for path in paths}
            if not any(named.values()):
                return {}
            files = [DayFile(day, day_files.hour_in(path), path) for path, day in named.items() if day]
            if nameless := [path for path in paths if not named[path]]:
                raise DataError(
                    f"{self.url}: {len(nameless)} of {len(named)} files have no day in the name, such as "
                    f"{nameless[0]}; move these files away, or add a day to the names, such as 2025-01-31"
                )
        by_day: dict[date, list[DayFile]] = {}
        for file in sorted(files):
            by_day.setdefault(file.day, []).append(file)
        return by_day


def left_out_in_words(left_out: Mapping[str, Sequence[str]]) -> str:
    """Returns a sentence on files that are not read, and why; "" where all are.

    >>> left_out_in_words({"is not a file of CSV": ["notes.txt", "old/a.xls"]})
    '2 files are left out: notes.txt and 1 more, as each is not a file of CSV'
    """
    if not left_out:
        return ""
    num = sum(map(len, left_out.values()))
    which = [
        f"{paths[0]}{f' and {len(paths) - 1:,} more, as each' if len(paths) > 1 else ', as it'} {reason}"
        for reason, paths in left_out.items()
    ]
    return f"{counted(num, 'file')} {'is' if num == 1 else 'are'} left out: {'; '.join(which)}"


def _resolved(url: str) -> str:
    """The url with variables filled in; a relative path from the nearest folder above that has it.

    A night runs in a folder of its own, so that `../shared/sales.parquet`, as the user wrote it in
    the repository, is further up from there.
    """
    url = os.path.expanduser(os.path.expandvars(url))  # noqa: PTH111 - a Path would merge the slashes
    if "://" in url or "::" in url or Path(url).is_absolute():
        return url
    start = re.split(PLACES, url)[0]
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / start).exists() or (start != url and (folder / start).parent.is_dir()):
            return str(folder / url)
    return url
