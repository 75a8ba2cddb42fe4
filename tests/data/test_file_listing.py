"""The files of a URL, by their days, and one read under the table's names."""

from datetime import date
from pathlib import Path

import pytest

from daybreak.contract.errors import ParamsError
from daybreak.data.file_formats import SUFFIXES
from daybreak.data.file_listing import FileListing
from daybreak.data.file_reader import FileReader
from daybreak.data.numbers import NumberFormat


def listing(url: Path) -> FileListing:
    return FileListing(str(url), suffixes=SUFFIXES, kind="file of parquet, CSV or JSON")


def test_the_days_of_files_are_known_without_opening_one(tmp_path: Path) -> None:
    for name in ("2025-02-01.parquet", "2025-01-31.parquet"):
        (tmp_path / name).write_text("not parquet")
    assert [(day, Path(path).name) for day, path in listing(tmp_path).in_order()] == [
        (date(2025, 1, 31), "2025-01-31.parquet"),
        (date(2025, 2, 1), "2025-02-01.parquet"),
    ]


def test_files_without_a_day_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "notes.txt"):
        (tmp_path / name).write_text("price\n1\n")
    files = listing(tmp_path)
    assert [(day, Path(path).name) for day, path in files.in_order()] == [(None, "a.csv"), (None, "b.csv")]
    assert files.left_out() == {"is not a file of parquet, CSV or JSON": ["notes.txt"]}


def test_a_file_is_read_under_the_table_s_names_with_the_keys_of_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "shop=north" / "sales.csv"
    path.parent.mkdir()
    path.write_text("InvoiceDate,price\n31/01/2025,1\n")
    reader = FileReader(
        listing=listing(tmp_path),
        max_bytes=1000,
        columns={"time": "InvoiceDate"},
        cut_by="time",
        time="%d/%m/%Y",
        clock="",
        delimiter=",",
        encoding="utf8",
        numbers=NumberFormat(),
    )
    ((row,),) = [reader.read(str(path)).to_pylist()]
    assert (row["time"].date(), row["price"], row["shop"]) == (date(2025, 1, 31), "1", "north")


@pytest.mark.parametrize("place", ["{day}", "{day:%Y%m%d}", "{hour}"])
def test_a_day_after_the_question_mark_is_refused_without_a_word_of_the_key_there(place: str) -> None:
    with pytest.raises(ParamsError, match=r"https://host/export has the place of a day .*; name") as error:
        FileListing(f"https://host/export?sig=topsecret&day={place}", suffixes=SUFFIXES, kind="file")
    assert "topsecret" not in str(error.value)
