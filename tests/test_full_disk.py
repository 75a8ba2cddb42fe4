"""Disks that are full, without inodes, read-only or another user's: one sentence, nothing torn or lost."""

import asyncio
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from pipeline import stages
from pipeline.contract import records
from pipeline.contract.errors import JobError, sentence
from pipeline.contract.records import Dataset, Evaluation, Release, Report, Training, Verdict
from pipeline.evaluation.scores import SCORES
from pipeline.serving.writer import Writer
from pipeline.storage.traffic_log import Exposure, Log, Outcome, open_log
from tests.conftest import make_repository

ROOT = Path(__file__).parents[1]
NIGHT = "2026-03-04"
PARAMS = """\
source: {use: "pipeline.examples.shop.simulated_shop:Shop", seed: 7, start: "2026-01-01", today: "2026-03-05",
         num_customers: 100, num_items: 60, orders_per_day: 25}
workload: pipeline.examples.shop.recommender:Recommender
backend: pipeline.backends.local:Local
night: {train_hours: 1, decide_hours: 2}
ingest: {history_days: 16}
profile: {batch_sizes: [32, 64], steps: 2}
train: {epochs: 1, batch_size: 64}
gate: {margin: 0.03, min_samples: 5}
smoke_test: {samples: 20}
"""


NUM_FILES = 100_000


def shell(commands: str) -> None:
    subprocess.run(["bash", "-euc", commands], check=True, capture_output=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leaves 4 KiB of a disk free."""
    state, ballast = os.statvfs(disk), disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, state.f_bavail * state.f_frsize - 4096)
    yield
    ballast.unlink()


@contextmanager
def without_inodes(disk: Path) -> Iterator[None]:
    state = os.statvfs(disk)
    shell(f"mount -o remount,nr_inodes={state.f_files - state.f_ffree} {disk}")
    yield
    shell(f"mount -o remount,nr_inodes={NUM_FILES} {disk}")


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    """Covers a disk by itself, read-only, since one with files that are open cannot be made so."""
    shell(f"mount --bind {disk} {disk}; mount -o remount,bind,ro {disk}")
    try:
        yield
    finally:
        shell(f"umount --lazy {disk}")


@contextmanager
def over_quota(disk: Path) -> Iterator[None]:
    """Limits the subvolume of the home, asking by way of the one above, which may write."""
    shell(f"btrfs qgroup limit 64K 0/256 {disk}")
    yield
    shell(f"btrfs qgroup limit none 0/256 {disk}")


# What may be wrong with a disk, and the sentence that says so.
TROUBLES: dict[str, tuple[Callable[[Path], AbstractContextManager[None]], str]] = {
    "full": (full, r"the disk {} is full \(.* free\); free some space"),
    "files": (without_inodes, r"the disk {} has no room for another file \(.* free\); delete some files"),
    "read-only": (read_only, r"the disk {} is read-only, or /\S+ is; make it writable"),
    "quota": (over_quota, r"the quota of user 0 on the disk {}/home is used up; free some space"),
}  # fmt: skip


@contextmanager
def in_memory(options: str) -> Iterator[Path]:
    """Yields the folder of a file system in memory."""
    with mounted(f"-t tmpfs -o {options} tmpfs") as disk:
        yield disk


@contextmanager
def with_quotas() -> Iterator[Path]:
    """Yields the folder of a btrfs in a file, of which `home` has quotas that bind root too."""
    if not shutil.which("mkfs.btrfs"):
        pytest.skip("quotas need btrfs-progs")
    with tempfile.NamedTemporaryFile(prefix="daybreak-image-") as image:
        image.truncate(1 << 30)
        shell(f"mkfs.btrfs --quiet {image.name}")
        with mounted(f"-t btrfs -o loop {image.name}") as disk:
            shell(f"btrfs quota enable {disk}; btrfs subvolume create {disk}/home")
            yield disk


@contextmanager
def mounted(words: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="daybreak-disk-"))
    folder.chmod(0o755)
    try:
        shell(f"mount {words} {folder}")
    except subprocess.CalledProcessError:
        folder.rmdir()
        pytest.skip("only who may mount a file system can fill it (root, outside of most containers)")
    try:
        yield folder
    finally:
        shell(f"umount --lazy {folder}")
        folder.rmdir()


@pytest.fixture
def small() -> Iterator[Path]:
    with in_memory(f"size=1m,mode=755,nr_inodes={NUM_FILES}") as disk:
        yield disk


def write(path: Path) -> str:
    """What is said of a record that cannot be written; the record is as it was."""
    before = path.read_text()
    with pytest.raises(OSError) as error:
        records.replace_text(path, "x" * 100_000)
    assert path.read_text() == before
    return sentence(error.value)


@pytest.mark.parametrize("trouble", ["full", "files", "read-only"])
def test_a_record_that_finds_no_room_stays_as_it_was_and_the_disk_is_named(small: Path, trouble: str) -> None:
    path = small / "record.json"
    path.write_text("{}")
    make, said = TROUBLES[trouble]
    with make(small):
        assert re.match(said.format(small), write(path))
    assert [each.name for each in small.glob(".*")] == []


@pytest.mark.parametrize(
    ("trouble", "journal"), [("files", "delete"), ("quota", "delete"), ("quota", "wal"), ("full", "wal")]
)
def test_what_keeps_sqlite_from_writing_is_named_though_sqlite_does_not_say_it(
    trouble: str, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, said = TROUBLES[trouble]
    with with_quotas() if trouble == "quota" else in_memory(f"size=4m,nr_inodes={NUM_FILES}") as disk:
        (disk / "home").mkdir(exist_ok=True)
        monkeypatch.chdir(disk / "home")  # SQLite names no path
        with closing(sqlite3.connect("a.db")) as database:
            database.execute(f"pragma journal_mode = {journal}")
            database.execute("create table a (b)")
            with make(disk):
                with pytest.raises(sqlite3.OperationalError) as error:
                    for _ in range(100):
                        database.execute("insert into a values (randomblob(20000))")
                        database.commit()
                assert re.match(said.format(disk), sentence(error.value))


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_folder_of_another_user_is_named_with_its_owner(small: Path) -> None:
    path = small / "record.json"
    path.write_text("{}")
    code = (
        "import os, sys; from pathlib import Path; from pipeline.contract import records, errors\n"
        "os.setuid(12345)\n"
        "try: records.replace_text(Path('record.json'), 'x')\n"
        "except OSError as error: print(errors.sentence(error))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=small, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.startswith("user 12345 may not write ")
    assert "which is user 0's; change its owner (chown), then run this again" in said
    assert path.read_text() == "{}"


def test_an_outcome_that_finds_no_room_is_refused_and_none_that_was_acknowledged_is_lost() -> None:
    with in_memory("size=32m") as disk:
        log = open_log(f"sqlite:///{disk / 'serving.db'}")
        kept, refused = asyncio.run(tell(log, disk))
        assert refused
        again, still_refused = asyncio.run(tell(log, None))
        assert not still_refused
        assert {each.id for each in log.exposures(None) if each.taken == ("a",)} >= {*kept, *again}


def exposure(number: int) -> Exposure:
    return Exposure(
        id=f"{number:016x}", time=time.time(), experiment="", unit=f"u{number}", arm="champion", version=1,
        share=0.0, propensity=1.0, items=("a", "b"), latency_s=0.01,
    )  # fmt: skip


async def tell(log: Log, disk: Path | None) -> tuple[list[str], list[str]]:
    """Tells outcomes while the disk fills up, if one is given: those acknowledged, and those refused."""
    writer = Writer(log)
    kept, refused = [], []
    with ExitStack() as trouble:
        for number in range(200):
            made = exposure(number if disk else 1000 + number)
            if disk and number == 50:
                trouble.enter_context(full(disk))
            writer.expose(made)
            try:
                if await writer.outcome(Outcome(exposure=made.id, time=time.time(), items=("a",))):
                    kept.append(made.id)
            except JobError:
                refused.append(made.id)
    writer.close()
    return kept, refused


def git(home: Path, *words: str) -> str:
    return subprocess.check_output(["git", *words], cwd=home, text=True)


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    return {**kept, "PIPELINE_HOME": str(home), "PYTHONPATH": str(ROOT)}


def run(home: Path, name: str) -> "subprocess.CompletedProcess[str]":
    words = ["open", "--day", NIGHT, "--warm"] if name == "open" else [name, "--night", NIGHT]
    wait = ["--wait"] if stages.STAGES[name].waits else []
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *words, *wait], cwd=home, env=environment(home),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def home_at(folder: Path, store: Path) -> Path:
    home = make_repository(folder, store=store)
    (home / "params.yaml").write_text(PARAMS)
    (home / "data").mkdir()
    shutil.copy(ROOT / "data/expectations.yaml", home / "data")
    (home / ".gitignore").write_text("/nights/\n/var/\n/data/*\n!/data/expectations.yaml\n")
    (home / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    subprocess.run([sys.executable, "-m", "pipeline.dvc_file"], cwd=home, env=environment(home), check=True)
    for words in (["add", "--all"], ["commit", "--quiet", "--message=Params"]):
        subprocess.run(["git", *words], cwd=home, check=True)
    return home


def outcome(home: Path) -> dict[str, object]:
    """What a night came to, without what differs from run to run: times, and records that have some."""
    folder, nights = home / "nights" / NIGHT, "refs/heads/nights"
    verdict, evaluation = (
        records.read(kind, folder / records.RUN) for kind in (Verdict, Evaluation)
    )  # fmt: skip
    cache = home / ".dvc" / "cache" / "files" / "md5"
    objects = [path for path in cache.glob("??/*") if path.read_bytes()[:2] != b"{\n"]
    files = [
        path.relative_to(home)
        for name in ("nights", "var", ".dvc/cache")
        for path in (home / name).rglob("*")
    ]
    return {
        "served": records.read(Release, folder / records.RUN).version,
        "verdict": (verdict.action, verdict.effect, verdict.low, verdict.high, verdict.num_samples),
        "metrics": evaluation.metrics,
        "scores": records.digest(folder / SCORES),
        "model": records.read(Training, folder / records.RUN).model_digest,
        "data": records.read(Dataset, folder / records.RUN),
        "report": records.read(Report, folder / records.RUN),
        "ledger": git(home, "ls-tree", "-r", "--name-only", nights).splitlines(),
        "commits": git(home, "rev-list", "--count", nights),
        "cache": sorted(path.parent.name + path.name for path in objects),
        "hidden": sorted(path.name for path in files if path.name.startswith(".")),
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_night_whose_disk_is_full_in_each_stage_ends_as_an_undisturbed_one(
    tmp_path: Path, empty_store: Path
) -> None:
    undisturbed = home_at(tmp_path / "home", empty_store)
    with (
        in_memory("size=300m,nr_inodes=0") as disk,
        subprocess.Popen(
            [sys.executable, "-m", "pipeline", "night", "--day", NIGHT],
            cwd=undisturbed, env=environment(undisturbed), stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        ) as beside,
    ):  # fmt: skip
        home = home_at(disk / "home", empty_store)
        for name in stages.CHAIN:
            if name != "refit":  # it has nothing to do
                with full(disk):
                    expect_sentence(name, run(home, name), disk)
                    for path in (home / "nights" / NIGHT / records.RUN).glob("*.json"):
                        json.loads(path.read_text())
            done = run(home, name)
            assert done.returncode == 0, f"{name}: {done.stderr}"
        said = beside.communicate()[1]
        assert beside.returncode == 0, said
        assert records.read(Release, home / "nights" / NIGHT / records.RUN).version == 1
        assert (home / "nights" / NIGHT / records.RUN / "report.html").exists()
        actual, expected = outcome(home), outcome(undisturbed)
        for what, value in expected.items():
            assert actual[what] == value, what


def expect_sentence(name: str, failed: "subprocess.CompletedProcess[str]", disk: Path) -> None:
    last = failed.stderr.strip().splitlines()[-1]
    if name == "close":  # `promote` has committed the night; only its report finds no room
        assert failed.returncode == 0, failed.stderr
        assert "the report is missing" in failed.stderr
        return
    assert failed.returncode == 1, f"{name}: {failed.stderr}"
    assert f"the disk {disk} is full (" in last, failed.stderr
    if name == "open":
        assert last.endswith("then run this again")
    else:
        assert last.endswith(f"then go on with: python -m pipeline night --night {NIGHT}")
