"""A file is read whole or refused in a sentence: packed, of any encoding, and as an array of JSON."""

import json
import lzma
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.data.file_formats import read_json
from daybreak.data.source import Files

CSV = "time,amount\n2025-01-30 09:00:00,1.5\n2025-01-30 10:00:00,2.5\n"
ROWS = [
    {"time": "2025-01-30 09:00:00", "amount": "1.5"},
    {"time": "2025-01-30 10:00:00", "amount": "2.5"},
]


def read(path: Path, **options: str) -> list[dict[str, object]]:
    return Files(str(path), **options).sample(10).to_pylist()


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst", "lz4", "zip"])
def test_a_packed_file_is_read_by_its_name_and_in_a_folder(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"sales.csv.{suffix}"
    if suffix == "xz":
        path.write_bytes(lzma.compress(CSV.encode()))
    elif suffix == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("sales.csv", CSV)
    else:
        with pa.output_stream(
            str(path), compression={"gz": "gzip", "zst": "zstd"}.get(suffix, suffix)
        ) as stream:
            stream.write(CSV.encode())
    assert read(path) == read(tmp_path) == ROWS
    assert Files(str(path)).head() == CSV.encode()


def test_an_archive_of_several_files_is_refused_as_one_would_be_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "sales.csv.zip", "w") as archive:
        archive.writestr("a.csv", CSV)
        archive.writestr("b.csv", CSV)
    with pytest.raises(DataError, match=r"sales\.csv\.zip: it packs 2 files .*, and one is read;"):
        read(tmp_path / "sales.csv.zip")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_the_first_bytes_of_a_file_say_that_it_is_utf_16(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_bytes(CSV.replace("amount", "größe").encode(encoding))
    assert [list(row) for row in read(tmp_path / "sales.csv")] == [["time", "größe"]] * 2


def test_utf_16_without_a_mark_is_read_where_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "sales.csv").write_bytes(CSV.encode("utf-16-le"))
    assert read(tmp_path / "sales.csv", encoding="utf-16-le") == ROWS


def test_an_encoding_that_is_not_known_is_one_sentence() -> None:
    with pytest.raises(ParamsError, match=r"source\.encoding is 'utf17', which is not a known encoding"):
        Files("sales.csv", encoding="utf17")


def test_an_array_of_json_is_read_as_an_object_a_line_is() -> None:
    rows = [{"n": 1, "x": 1.0, "name": "é\n"}, {"n": None, "x": 2.5}]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    assert read_json(json.dumps(rows, indent=2).encode()).equals(read_json(lines))
    assert len(read_json(b" []\n")) == 0


def test_an_array_of_json_without_objects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sales.json").write_text("[1, 2]")
    with pytest.raises(DataError, match=r"sales\.json: an array of JSON has '1' where an object should be"):
        read(tmp_path / "sales.json")


def test_a_value_of_json_that_is_of_another_type_than_others_keeps_its_row() -> None:
    data = b'{"n": 1, "x": 0.5}\n{"n": 2, "x": "n/a"}\n{"n": "?", "x": null}\n'
    assert read_json(data).to_pylist() == [
        {"n": "1", "x": "0.5"},
        {"n": "2", "x": "n/a"},
        {"n": "?", "x": None},
    ]
