"""Whoever delivers files takes no memory, and sees no secret, by what reads them. Real processes."""

import fcntl
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak.contract.code_path import PASSED_ON
from daybreak.contract.errors import JobError
from daybreak.data.parser import HEAD_OF_PACKED, PARSER
from daybreak.data.parser_process import ROOM_BYTES
from daybreak.data.source import Files

MAX_GB = 0.02


def keys(path: Path) -> None:
    """An object a line, each with a key of its own: columns times rows."""
    path.write_text("".join(f'{{"time": "2025-01-31", "k{n}": 1}}\n' for n in range(5000)))


def one_array(path: Path) -> None:
    """An object of Python for seven bytes each."""
    path.write_bytes(gzip.compress(b"[" + b'{"":0},' * 2_800_000 + b"{}]\n", 1))


def one_list(path: Path) -> None:
    """A row, whose list is one value and its number."""
    values = pa.nulls(100_000_000, pa.int8()).fill_null(1)
    pq.write_table(pa.table({"x": pa.ListArray.from_arrays([0, len(values)], values)}), path)


def one_text(path: Path) -> None:
    """A long text that is written once for many rows."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 400, pa.int32()), pa.array(["x" * 15_000_000]))
    pq.write_table(pa.table({"x": texts}), path, compression="zstd", store_schema=False)


def dictionaries(path: Path) -> None:
    """A long text for many rows in each of four columns, of which one has it in lists."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array(["x" * 3_000_000]))
    lists = pa.ListArray.from_arrays(range(41), texts)
    columns = {**dict.fromkeys(("time", "a", "b"), texts), "lists": lists}
    pq.write_table(pa.table(columns), path, compression="zstd")


def levels(path: Path) -> None:
    """Lists of lists."""
    value: Any = 1
    for _ in range(25):
        value = [value]
    pq.write_table(pa.table({"x": [value]}), path)


def maps(path: Path) -> None:
    """Maps of maps, as many as would take years where each is asked for twice."""
    kind: Any = pa.int8()
    for _ in range(45):
        kind = pa.map_(pa.string(), kind)
    pq.write_table(pa.table({"x": pa.nulls(1, kind)}), path)


def columns(path: Path) -> None:
    """Rows of a comma for each of many columns."""
    path.write_bytes(gzip.compress(",".join(f"c{n}" for n in range(20_000)).encode() + b"\n" + b"," * 19_999))


def nulls(path: Path) -> None:
    """As many missing values as a file may have."""
    pq.write_table(pa.table({"x": pa.nulls(4_800_000, pa.binary())}), path, compression="zstd")


def odd_quote(path: Path) -> None:
    """A quote that is never closed, before empty lines."""
    path.write_bytes(gzip.compress(b'time,amount\n"a' + b"\n" * 6_000_000, 1))


WITHIN = r"bomb\.\S+, of [\d.]+ \w+ as delivered, cannot be read within 4[89]\d MB of memory"
WITHIN_LEAST = WITHIN.replace("4[89]", "4[01]")
BOMBS: dict[Callable[[Path], None], tuple[str, str]] = {
    keys: ("jsonl", WITHIN_LEAST),
    one_array: ("json.gz", WITHIN),
    one_list: ("parquet", WITHIN_LEAST),
    one_text: ("parquet", WITHIN),
    dictionaries: ("parquet", WITHIN),
    levels: ("parquet", r"bomb\.parquet: it has values within values, 26 deep, and 20 are read"),
    maps: ("parquet", r"bomb\.parquet: it has values within values, 91 deep, and 20 are read"),
    columns: ("csv.gz", r"bomb\.csv\.gz: it has 20,000 columns, and 10,000 are read, of which one"),
    nulls: ("parquet", "4800000 rows"),
    odd_quote: ("csv.gz", "line 2: a quote is opened and never closed"),
}
READ = f"""
import json, resource, sys
from daybreak.contract.errors import DataError
from daybreak.data.parser import PARSER
from daybreak.data.source import Files

def taken(of):
    return resource.getrusage(of).ru_maxrss * 1024

for path in sys.argv[1:]:
    before = taken(resource.RUSAGE_SELF)
    try:
        said = str(len(Files(path, max_gb={MAX_GB}).reader.read(path))) + " rows"
    except DataError as error:
        said = str(error)
    PARSER.close()
    print(json.dumps([said, taken(resource.RUSAGE_SELF) - before, taken(resource.RUSAGE_CHILDREN)]))
"""


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.skipif(sys.platform != "linux", reason="no limit of memory")
def test_a_small_file_takes_no_more_memory_than_its_limit_and_the_sentence_names_both(tmp_path: Path) -> None:
    paths = []
    for bomb, (suffix, _) in BOMBS.items():
        paths.append(tmp_path / bomb.__name__ / f"bomb.{suffix}")
        paths[-1].parent.mkdir()
        bomb(paths[-1])
        assert paths[-1].stat().st_size < 250_000
    done = subprocess.run(
        [sys.executable, "-c", READ, *paths], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for (_, wanted), (said, of_stage, of_parser) in zip(BOMBS.values(), found, strict=True):
        assert pa.compute.match_substring_regex(pa.scalar(said), wanted).as_py(), said
        assert of_stage < 40_000_000
        assert of_parser < ROOM_BYTES + 4 * MAX_GB * 1e9 + 150_000_000  # of its libraries


def test_rows_of_dictionaries_and_views_are_plain(tmp_path: Path) -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int32()), pa.array(["a", "b"]))
    two = [0, 2, 4]
    kinds = {
        "flat": coded,
        "numbers": pa.array([7, 7, None, 8]).dictionary_encode(),
        "lists": pa.ListArray.from_arrays([0, 1, 2, 3, 4], coded),
        "pairs": pa.FixedSizeListArray.from_arrays(pa.concat_arrays([coded, coded]), 2),
        "structs": pa.StructArray.from_arrays([coded], ["x"]),
        "deep": pa.ListArray.from_arrays([*two, 4, 4], pa.StructArray.from_arrays([coded], ["x"])),
        "maps": pa.MapArray.from_arrays([0, 1, 2, 3, 4], pa.array(list("klmn")), coded),
        "views": pa.array(["a", "b", None, "a"], pa.string_view()),
        "list views": pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int8())),
        "large list views": pa.array([["a"], ["b", "a"], None, []], pa.large_list_view(pa.string_view())),
        "views in lists": pa.array(
            [[[0.5]], [None, []], [], [[0.1, 2]]], pa.list_(pa.list_view(pa.float32()))
        ),
    }
    kinds = {name: values for name, values in kinds.items() if is_written(values)}
    pq.write_table(pa.table(kinds), tmp_path / "rows.parquet")
    rows = Files(str(tmp_path / "rows.parquet")).reader.read(str(tmp_path / "rows.parquet"))
    assert rows.to_pydict() == pa.table(kinds).to_pydict()
    assert not {"dictionary", "view"} & set(re.findall("[a-z]+", " ".join(map(str, rows.schema.types))))


def is_written(values: pa.Array) -> bool:
    """Whether this pyarrow writes such values to Parquet: the oldest that is allowed writes no list views."""
    try:
        pq.write_table(pa.table({"values": values}), io.BytesIO())
    except pa.ArrowNotImplementedError:
        return False
    return True


def full(path: Path, line: str, *, of: int = 1) -> None:
    """Fills a file with a line up to the limit, or so many times that."""
    path.write_text(line * int(of * MAX_GB * 1e9 // len(line)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suffix", "line"),
    [
        ("csv", ",,,,,1,,,,,\n"),  # text takes most by the byte where it is short
        ("csv", "2025-01-31 10:00:00,12.5, north ,a remark on it\n"),
        ("jsonl", '{"time": "2025-01-31T10:00:00", "amount": 12.5, "shop": "north"}\n'),
    ],
)
def test_an_honest_file_of_the_most_that_one_may_hold_is_read(tmp_path: Path, suffix: str, line: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    full(path, line)
    rows = Files(str(path), max_gb=MAX_GB).reader.read(str(path))
    assert len(rows) == path.stat().st_size // len(line) - (suffix == "csv")


@pytest.mark.slow
def test_a_small_file_of_many_columns_is_read_and_after_a_large_one_the_process_is_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "wide.csv").write_text("\n".join(",".join(f"{n}" for n in range(9990)) for _ in range(5)))
    full(tmp_path / "large.csv", "2025-01-31 10:00:00,12.5\n", of=8)
    reader = Files(str(tmp_path / "*.csv"), max_gb=MAX_GB * 8).reader
    assert reader.read(str(tmp_path / "wide.csv")).shape == (4, 9990)
    assert len(reader.read(str(tmp_path / "large.csv"))) > 6_000_000
    assert not PARSER.pid


def test_the_process_that_reads_has_no_secret_and_opens_only_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBREAK_TOKEN", "canary")
    PARSER.close()
    (tmp_path / "rows.csv").write_text("time,amount\n2025-01-31,1\n")
    Files(str(tmp_path / "rows.csv")).reader.read(str(tmp_path / "rows.csv"))
    assert PARSER.pid is not None
    environ = Path(f"/proc/{PARSER.pid}/environ")
    if not environ.exists():
        pytest.skip("this machine shows no environment of a process")
    names = {each.partition("=")[0] for each in environ.read_text().split("\0") if each}
    assert names <= {*PASSED_ON, "LC_CTYPE", "MIMALLOC_ARENA_EAGER_COMMIT"}


STARTED = """
import os, signal, sys, time
from daybreak.data.parser import PARSER
from daybreak.data.source import Files
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
Files(sys.argv[1]).reader.read(sys.argv[1])
print(PARSER.pid, flush=True)
if sys.argv[2] == "waits":
    time.sleep(600)
os.mkfifo(sys.argv[2])
pipe = os.open(sys.argv[2], os.O_RDWR)  # has no bytes and no end
how = {"delimiter": ",", "encoding": "utf8", "kept": ()}
PARSER.rows(open(pipe, "rb"), path="rows.csv", origin="rows.csv", max_bytes=10**9, **how)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("what", ["waits", "reads"])
def test_a_stage_that_is_stopped_leaves_no_process_that_reads(
    tmp_path: Path, sent: signal.Signals, what: str
) -> None:
    (tmp_path / "rows.csv").write_text("time,amount\n2025-01-31,1\n")
    words = [what if what == "waits" else str(tmp_path / "pipe")]
    stage = subprocess.Popen(
        [sys.executable, "-c", STARTED, str(tmp_path / "rows.csv"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert stage.stdout
    with stage.stdout:
        parser = Path(f"/proc/{stage.stdout.readline().strip()}")
    while what == "reads" and not Path(words[0]).exists():
        time.sleep(0.01)
    os.killpg(stage.pid, sent)
    stage.wait(60)
    while parser.exists() and "\nState:\tZ" not in (parser / "status").read_text():
        time.sleep(0.01)


def test_a_process_that_was_ended_between_two_files_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("time,amount\n2025-01-31,1\n")
    reader = Files(str(tmp_path / "rows.csv")).reader
    reader.read(str(tmp_path / "rows.csv"))
    assert PARSER.pid
    os.kill(PARSER.pid, signal.SIGKILL)
    assert len(reader.read(str(tmp_path / "rows.csv"))) == 1


def test_a_process_that_does_not_start_is_no_fault_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.csv").write_text("time,amount\n2025-01-31,1\n")
    PARSER.close()
    for program, why in (("/bin/false", "it ended with exit status 1"), ("/no/python", "No such file")):
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(JobError, match=why):
            Files(str(tmp_path / "rows.csv")).reader.read(str(tmp_path / "rows.csv"))
    assert not PARSER.pid


def test_a_process_that_is_killed_while_it_reads_is_no_fault_of_the_file(tmp_path: Path) -> None:
    PARSER.close()
    (tmp_path / "rows.csv").write_text("time,amount\n2025-01-31,1\n")
    Files(str(tmp_path / "rows.csv")).reader.read(str(tmp_path / "rows.csv"))
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # has no end
    os.write(pipe, b"time,amount\n")
    how: dict[str, Any] = {"delimiter": ",", "encoding": "utf8", "kept": ()}
    with ThreadPoolExecutor() as pool, os.fdopen(pipe, "rb") as file:
        read = pool.submit(PARSER.rows, file, path="r.csv", origin="r.csv", max_bytes=10**9, **how)
        while waiting_bytes(pipe):  # killed before it reads, it would be started again
            time.sleep(0.01)
        assert PARSER.pid
        os.kill(PARSER.pid, signal.SIGKILL)
        with pytest.raises(JobError, match=r"r\.csv was not read, .* was ended by SIGKILL"):
            read.result(60)


def waiting_bytes(pipe: int) -> int:
    """The number of bytes that nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


LIMITED_TO = """
import resource, sys
from daybreak.data.source import Files
reader = Files(sys.argv[1]).reader
resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]),) * 2)
print(sum(len(rows) for rows in [reader.read(sys.argv[1]) for _ in range(int(sys.argv[4]))]))
"""


def limited_to(folder: Path, path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Reads a file as a process with a limit."""
    command = [sys.executable, "-c", LIMITED_TO, str(path), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)


@pytest.mark.slow
def test_rows_of_many_files_take_no_open_file_each(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("time,amount\n2025-01-31,1\n")
    done = limited_to(tmp_path, tmp_path / "rows.csv", "RLIMIT_NOFILE", "40", "100")
    assert done.stdout == "100\n", done.stderr


@pytest.mark.slow
def test_rows_that_find_no_room_on_the_disk_are_no_fault_of_the_file(tmp_path: Path) -> None:
    full(tmp_path / "rows.csv", "2025-01-31 10:00:00,12.5\n")
    (tmp_path / "data").mkdir()
    done = limited_to(tmp_path, tmp_path / "rows.csv", "RLIMIT_FSIZE", "1000000", "1")
    assert "JobError" in done.stderr
    assert "its rows cannot be written to data: File too large; see" in done.stderr


def test_the_head_of_a_remote_file_is_read_without_the_rest() -> None:
    rows, enough = b"2025-01-31,12.5\n" * 1_000_000, 1 << 18
    for name, data in (("rows.csv", rows), ("rows.csv.gz", gzip.compress(rows, 0))):
        stream = io.BytesIO(data)
        assert PARSER.head(stream, path=name, max_bytes=10**9, num_bytes=enough) == rows[:enough]
        assert stream.tell() <= HEAD_OF_PACKED < len(data)
