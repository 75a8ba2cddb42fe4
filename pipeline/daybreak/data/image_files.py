"""Brings in folders of image files, a row a file: the source `ImageFiles`.

    photos/2025-01-31/cat/0001.jpg        a day in the path, and a class as the name of a folder

A row has `file`, its path; `image`, its bytes as they are; `time`, the beginning of its day; and, where there
are classes, `label`: the place of the file's class among them, null where no folder is named after one.
"""

from collections.abc import Sequence
from datetime import datetime, time
from typing import Any

import pyarrow as pa

from daybreak.contract.errors import DataError
from daybreak.data import day_files
from daybreak.data.source import Files

SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff")
LABEL = "label"
MOST_ROWS = 500  # of a sample: as many files are opened


class ImageFiles(Files):
    """Images in folders at any URL that fsspec knows, with a day in each path.

    Args:
        url: a folder, or a glob: `s3://shop/photos`, `photos/*/*/*.jpg`.
        classes: names of folders, in the order of the labels 0, 1, ...; none: there is no label.
        options: those of `Files` on storage, links and sizes.
    """

    suffixes = SUFFIXES
    kind = f"image file ({', '.join(SUFFIXES)})"

    def __init__(self, url: str, *, classes: Sequence[str] = (), **options: Any) -> None:
        super().__init__(url, **options)
        self._places = {name: place for place, name in enumerate(classes)}

    def sample(self, num_rows: int, **_: Any) -> pa.Table:
        """Returns the first rows of the newest day, `MOST_ROWS` at most."""
        files = self.listing.in_order()
        paths = [path for day, path in files if day == files[-1][0]]
        return self._joined(paths[: min(num_rows, MOST_ROWS)])

    def folders(self) -> tuple[str, ...]:
        """Returns the names of folders that hold images, in order, without those that are parts of a day."""
        root = self.listing.root
        return tuple(sorted({day_files.folder_in(path, root) for _, path in self.listing.in_order()} - {""}))

    def _rows_by_day(self) -> tuple[pa.Table, dict[Any, Any]]:
        raise DataError(
            f"{self.url}: no image has a day in its path; put the images of each day into a folder with the "
            f"day's name, such as 2025-01-31"
        )

    def _joined(self, paths: list[str], parts: list[pa.Table] | None = None) -> pa.Table:
        """The rows of several images, in the order of their paths."""
        day_of = {file.path: day for day, files in self.listing.by_day().items() for file in files}
        if not day_of:
            self._rows_by_day()
        columns: dict[str, Any] = {
            "file": pa.array(
                [path.removeprefix(self.listing.root).lstrip("/") for path in paths], pa.string()
            ),
            "image": pa.array([self._bytes(path) for path in paths], pa.binary()),
            "time": pa.array([datetime.combine(day_of[path], time()) for path in paths], pa.timestamp("us")),
        }
        if self._places:
            columns[LABEL] = pa.array([self._label(path) for path in paths], pa.int64())
        return self.reader.renamed(pa.table(columns))

    def _label(self, path: str) -> int | None:
        parents = path.removeprefix(self.listing.root).split("/")[:-1]
        return next((self._places[name] for name in reversed(parents) if name in self._places), None)

    def _bytes(self, path: str) -> bytes:
        try:
            with self.listing.opened(path) as file:
                return self.reader.contents(path, file)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}; check its permissions and contents") from None
