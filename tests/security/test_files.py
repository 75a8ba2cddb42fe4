"""Whoever delivers files fills no memory, stops no night for ever, and has no other file read."""

import gzip
import hashlib
import json
import operator
import os
import struct
import subprocess
import sys
import zipfile
from datetime import date
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from safetensors import SafetensorError
from sklearn.dummy import DummyRegressor
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import check_array
from skops import io

from daybreak.batch_inference import destinations
from daybreak.contract.errors import DataError
from daybreak.contract.workload import read_state
from daybreak.data.source import Files
from daybreak.evaluation.scores import read_scores
from daybreak.registry.weights import load_model
from daybreak.storage.home import Home
from daybreak.training import checkpoint
from daybreak.training.estimators import LIBRARIES
from tests.fakes import LineWorkload
from tests.profiling.test_memory import cgroup

DAY = date(2025, 1, 31)
ROWS = "time,amount\n2025-01-31 10:00:00,1\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "delivered"
    made.mkdir()
    return made


def fetched(folder: Path, *, suffix: str = "csv", **options: object) -> pa.Table:
    """The rows of the day; by each of the ways that a folder may be named."""
    Files(str(folder / f"{{day}}.{suffix}"), **options).fetch(DAY, folder.parent / "pattern")  # type: ignore[arg-type]
    (folder / "2025-01-30.csv").write_text(ROWS)
    Files(str(folder), **options).fetch(DAY, folder.parent / "folder")  # type: ignore[arg-type]
    (folder / "2025-01-30.csv").unlink()
    return pq.read_table(folder.parent / "folder" / "part.parquet")


def test_a_link_out_of_the_folder_has_no_other_file_read(folder: Path) -> None:
    secret = folder.parent / "credentials"
    secret.write_text("password=hunter2\n")
    (folder / f"{DAY}.csv").symlink_to(secret)
    with pytest.raises(DataError, match="is a link that leads out of") as refused:
        fetched(folder)
    assert "hunter2" not in str(refused.value)


def test_a_folder_that_is_a_link_has_no_file_elsewhere_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rows.csv").write_text(ROWS)
    (folder / f"{DAY}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="matches no file"):
        Files(str(folder / "{day}" / "rows.csv")).fetch(DAY, tmp_path / "out")


def test_links_are_followed_inside_of_the_folder_and_where_the_params_say_so(folder: Path) -> None:
    (folder / "newest").write_text(ROWS)
    (folder / f"{DAY}.csv").symlink_to(folder / "newest")
    assert len(fetched(folder)) == 1
    (folder / "newest").rename(folder.parent / "annex")
    (folder / f"{DAY}.csv").unlink()
    (folder / f"{DAY}.csv").symlink_to(folder.parent / "annex")
    assert len(fetched(folder, links=True)) == 1


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_is_no_file_is_refused_and_not_waited_for(folder: Path, what: str) -> None:
    path = folder / f"{DAY}.csv"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(DataError, match="is not a file but a pipe, a device or a folder"):
        Files(str(folder / "{day}.csv")).fetch(DAY, folder.parent / "out")


def test_a_gzip_bomb_is_unpacked_no_further_than_a_file_may_be(folder: Path) -> None:
    with gzip.open(folder / f"{DAY}.csv.gz", "wb", compresslevel=1) as file:
        file.write(ROWS.encode())
        for _ in range(50):
            file.write(b"0" * 1_000_000)
    assert (folder / f"{DAY}.csv.gz").stat().st_size < 300_000
    with pytest.raises(DataError, match="holds more than 10 MB of rows, unpacked"):
        fetched(folder, suffix="csv.gz", max_gb=0.01)


def test_a_parquet_bomb_is_refused_by_its_number_of_rows(folder: Path) -> None:
    rows = pa.table({"amount": pa.array(np.zeros(20_000_000, dtype=np.int8))})
    pq.write_table(rows, folder / f"{DAY}.parquet", compression="zstd")
    assert (folder / f"{DAY}.parquet").stat().st_size < 100_000
    with pytest.raises(DataError, match="holds more than 10 MB of rows, unpacked"):
        fetched(folder, suffix="parquet", max_gb=0.01)


def in_a_process(code: str, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run code that may be killed by what it reads."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


FETCH = """
import sys
from datetime import date
from pathlib import Path
from daybreak.contract.errors import DataError
from daybreak.data.source import Files
try:
    Files(sys.argv[1]).fetch(date(2025, 1, 31), Path(sys.argv[2]))
except DataError as error:
    sys.exit(f"DataError: {str(error)[:200]}")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", ["[" * 1_000_000, '{"a":' * 1_000_000, '{"a": ' + "[" * 500 + "]" * 500 + "}"]
)
@pytest.mark.promise
def test_json_of_a_million_levels_is_one_sentence(folder: Path, line: str) -> None:
    (folder / f"{DAY}.jsonl").write_text(f'{{"time": "2025-01-31"}}\n{line}\n')
    done = in_a_process(FETCH, folder / "{day}.jsonl", folder.parent / "out")
    assert (done.returncode, done.stderr[:9]) == (1, "DataError") or done.returncode == 0


class Loot:
    """What a pickle would run."""

    def __reduce__(self) -> object:
        return (open, ("spoils", "w"))


def test_an_array_that_is_a_pickle_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    for path in (Path("state/mean.npy"), Path("scores.npy")):
        np.save(path, np.array([Loot()], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_state(tmp_path)
    with pytest.raises(DataError, match="allow_pickle=False"):
        read_scores(Path("scores.npy"))
    assert not Path("spoils").exists()


@pytest.mark.parametrize("claimed", [1 << 20, 1 << 40, (1 << 64) - 1])
def test_weights_that_claim_to_be_huge_are_refused(tmp_path: Path, claimed: int) -> None:
    header = json.dumps(
        {"x": {"dtype": "F32", "shape": [claimed], "data_offsets": [0, 4 * claimed]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    with pytest.raises(DataError, match="does not fit LineWorkload"):
        load_model(LineWorkload(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", claimed) + b"{}")
    with pytest.raises(DataError, match="does not fit LineWorkload"):
        load_model(LineWorkload(), tmp_path)


def test_a_checkpoint_of_pickles_runs_nothing_also_where_its_hashes_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    state = checkpoint.TrainingState(tensors={"model": {"x": torch.zeros(1)}})
    made = checkpoint.save(tmp_path / "saved", state, seen=8, identity="job")
    assert made
    weights = made / "model.safetensors"
    manifest = (made / checkpoint.MANIFEST).read_text()
    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    torch.save({"x": Loot()}, weights)
    assert before in manifest
    after = hashlib.sha256(weights.read_bytes()).hexdigest()
    (made / checkpoint.MANIFEST).write_text(manifest.replace(before, after))
    with pytest.raises(SafetensorError):
        checkpoint.load(made)
    assert not Path("spoils").exists()


def _pipeline(function: Any) -> bytes:
    """A file of skops of a pipeline that calls the function."""
    return io.dumps(make_pipeline(FunctionTransformer(function), DummyRegressor().fit([[0.0]], [1.0])))


def _changed(content: bytes, *names: tuple[str, str]) -> bytes:
    """A file of skops with another function, by module and name, in place of the first."""
    before, after = (f'"__class__": "{name}", "__module__": "{module}"' for module, name in names)
    with zipfile.ZipFile(BytesIO(content)) as honest:
        files = {name: honest.read(name) for name in honest.namelist()}
    schema = json.dumps(json.loads(files["schema.json"]))
    assert before in schema
    files["schema.json"] = schema.replace(before, after).encode()
    made = BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, part in files.items():
            file.writestr(name, part)
    return made.getvalue()


@pytest.mark.parametrize("of", [np.sum, partial(np.sum, ["touch spoils"], shell=True)])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sklearn.utils._testing", "check_output"),  # that of subprocess, as the module imported it
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("sklearn.datasets", "load_files"),
        ("subprocess", "check_output"),
    ],
)
def test_a_file_of_scikit_learn_names_no_function_that_reads_files_or_runs_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: Any, module: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content = _changed(_pipeline(of), ("numpy", "sum"), (module, name))
    with pytest.raises(DataError, match=rf"the model holds {module}\.{name}, which a version does not load"):
        LIBRARIES["sklearn"].load(content)
    assert not Path("spoils").exists()


@pytest.mark.parametrize("method", [operator.methodcaller("tofile", "spoils"), DummyRegressor().fit])
def test_a_file_of_scikit_learn_calls_no_method(method: Any) -> None:
    with pytest.raises(DataError, match=r"(operator\.methodcaller|DummyRegressor\.fit), which a version"):
        LIBRARIES["sklearn"].load(_pipeline(method))


def test_a_file_of_scikit_learn_opens_no_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("password hunter2")
    named = partial(check_array, np.array([str(tmp_path / "credentials")]), dtype=None, ensure_2d=False)
    reader = CountVectorizer(input="filename", vocabulary=["hunter2"])
    content = io.dumps(
        make_pipeline(FunctionTransformer(named), reader, DummyRegressor().fit([[0.0]], [1.0]))
    )
    with pytest.raises(
        DataError, match=r"the model holds sklearn\.feature_extraction\.text\.CountVectorizer,"
    ):
        LIBRARIES["sklearn"].load(content)


def test_text_of_predictions_is_no_formula_of_a_spreadsheet(tmp_path: Path) -> None:
    hostile = ['=HYPERLINK("//evil")', "=cmd|'/c calc'!A0", "+1+cmd|' /c'!A0", "-2+3+f(1)", "@SUM(A1)", " =1"]
    harmless = ["@ada", "-5", "+49 30 1234", "a=b", None]
    table = pa.table({"user": hostile + harmless, "score": [-1.0] * 11})
    pq.write_table(table, tmp_path / "part-00000.parquet")
    for name in ("out.csv", "out.parquet"):
        there = destinations.destination_of(Home(tmp_path), name, day=date(2025, 1, 10), table="t")
        there.write([tmp_path / "part-00000.parquet"], {})
    kept = pyarrow.csv.read_csv(tmp_path / "out.csv")
    assert kept["user"].to_pylist() == [*(f"'{text}" for text in hostile), *harmless[:-1], ""]
    assert set(kept["score"].to_pylist()) == {-1.0}
    assert pq.read_table(tmp_path / "out.parquet")["user"].to_pylist() == hostile + harmless


def test_in_a_container_a_file_may_hold_a_quarter_of_the_container_s_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroup(monkeypatch, folder.parent / "groups", limits={"job/memory.max": 40_000_000})
    with gzip.open(folder / f"{DAY}.csv.gz", "wb", compresslevel=1) as file:
        file.write(ROWS.encode())
        for _ in range(12):
            file.write(b"0" * 1_000_000)
    with pytest.raises(DataError, match="holds more than 10 MB of rows, unpacked"):
        fetched(folder, suffix="csv.gz")
