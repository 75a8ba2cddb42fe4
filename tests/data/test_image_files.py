"""Folders of images as a source: a row a file, days by the path, classes by the folder."""

import io
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from daybreak.contract.errors import DataError
from daybreak.data.image_files import ImageFiles
from daybreak.data.partitions import PART


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((6, 8), shade, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two days of two classes, a file of neither, and a note that is no image."""
    folder = tmp_path / "photos"
    for day in (1, 2):
        for place, name in enumerate(("cat", "dog")):
            (folder / f"2026-01-0{day}" / name).mkdir(parents=True)
            (folder / f"2026-01-0{day}" / name / "1.png").write_bytes(png(day + place))
        (folder / f"2026-01-0{day}" / "new.jpg").write_bytes(b"not an image")
        (folder / f"2026-01-0{day}" / "notes.txt").write_text("hello")
    return folder


def test_a_row_is_a_file_with_its_day_and_its_class(photos: Path, tmp_path: Path) -> None:
    source = ImageFiles(str(photos), classes=["cat", "dog"])
    assert source.days() == [date(2026, 1, 1), date(2026, 1, 2)]
    source.fetch(date(2026, 1, 2), tmp_path / "out")
    rows = pq.read_table(tmp_path / "out" / PART, partitioning=None)
    assert rows["file"].to_pylist() == [
        f"2026-01-02/{name}" for name in ("cat/1.png", "dog/1.png", "new.jpg")
    ]
    assert rows["label"].to_pylist() == [0, 1, None]
    assert rows["image"].to_pylist() == [png(2), png(3), b"not an image"]
    assert {moment.date() for moment in rows["time"].to_pylist()} == {date(2026, 1, 2)}


def test_a_glob_names_the_files_and_classes_are_found_as_folders(photos: Path) -> None:
    source = ImageFiles(f"{photos}/*/*/*.png")
    assert source.days() == [date(2026, 1, 1), date(2026, 1, 2)]
    assert source.sample(9).column_names == ["file", "image", "time"]
    assert ImageFiles(str(photos)).folders() == ("cat", "dog")


def test_images_without_a_day_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "b.png").write_bytes(png(2))
    with pytest.raises(DataError, match="no image has a day in its path; put the images of each day into"):
        ImageFiles(str(tmp_path)).days()


def test_suffixes_in_capitals_are_read_as_a_camera_writes_them(tmp_path: Path) -> None:
    (tmp_path / "2026-01-01").mkdir()
    for name in ("IMG_1.JPG", "IMG_2.jpg", "IMG_3.Png"):
        (tmp_path / "2026-01-01" / name).write_bytes(png(1))
    assert len(ImageFiles(str(tmp_path)).sample(9)) == 3


def test_a_folder_without_images_is_refused_with_the_suffixes_of_images(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"has no image file \(\.jpg, \.jpeg, .*\); check that the data"):
        ImageFiles(str(tmp_path)).days()


@pytest.mark.parametrize(
    ("day", "url"),
    [
        ("2026-01-01", ""),
        ("day=2026-01-01/hour=07", ""),
        ("20260102", "*/*/*.png"),
    ],
)
def test_classes_may_have_digits_in_their_names(tmp_path: Path, day: str, url: str) -> None:
    names = ("0", "31", "3d", "cat2")
    for name in names:
        (tmp_path / day / name).mkdir(parents=True)
        (tmp_path / day / name / "1.png").write_bytes(png(1))
    assert ImageFiles(f"{tmp_path}/{url}".rstrip("/")).folders() == names


@pytest.mark.parametrize(
    ("day", "url"), [("2026-01-01", ""), ("2026-01-01/hour=07", ""), ("2026/01/02", "{day:%Y/%m/%d}/1.png")]
)
def test_a_part_of_a_day_is_no_class(tmp_path: Path, day: str, url: str) -> None:
    (tmp_path / day).mkdir(parents=True)
    (tmp_path / day / "1.png").write_bytes(png(1))
    assert ImageFiles(f"{tmp_path}/{url}".rstrip("/")).folders() == ()
