"""Disks that are full, without inodes, read-only or another user's: one sentence, nothing torn or lost."""

import asyncio
import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.contract.errors import JobError, ReleaseError, sentence
from daybreak.contract.record_types import Release, Verdict
from daybreak.extensions.router.writer import Writer
from daybreak.storage import checkout
from daybreak.storage.exposures import Exposure, Outcome
from daybreak.storage.traffic_log import Log, open_log
from tests.bad_disks import NUM_FILES, TROUBLES, full, in_memory, with_quotas
from tests.conftest import make_repository

ROOT = Path(__file__).parents[1]
NIGHT = "2026-03-04"
PARAMS = """\
source: {use: "daybreak.examples.shop.simulated_shop:Shop", seed: 7, start: "2026-01-01", today: "2026-03-05",
         num_customers: 100, num_items: 60, orders_per_day: 25}
workload: daybreak.examples.shop.recommender:Recommender
backend: daybreak:Local
night: {train_hours: 1, decide_hours: 2}
ingest: {history_days: 16}
profile: {batch_sizes: [32, 64], steps: 2}
train: {epochs: 1, batch_size: 64}
gate: {margin: 0.03, min_samples: 5}
smoke_test: {samples: 0}
"""


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
                assert re.match(
                    said.format(disk / "home" if trouble == "quota" else disk), sentence(error.value)
                )


def test_a_full_disk_is_named_where_git_says_it_in_words_of_its_own() -> None:
    with in_memory(f"size=4m,nr_inodes={NUM_FILES}") as disk:
        for number in range(200):  # of which the index needs more than is left
            (disk / f"{number}.txt").write_text("")
        for words in (["init", "--quiet"], ["add", "--all"]):
            checkout.git(*words, folder=disk)
        with full(disk), pytest.raises(ReleaseError) as error:
            checkout.git("rm", "--cached", "1.txt", folder=disk)
        assert re.match(TROUBLES["full"][1].format(disk), sentence(error.value))


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_folder_of_another_user_is_named_with_its_owner(small: Path) -> None:
    path = small / "record.json"
    path.write_text("{}")
    code = (
        "import os, sys; from pathlib import Path; from daybreak.contract import records, errors\n"
        "from pyarrow import fs\n"  # it names the file in the text of its error alone
        "os.setuid(12345)\n"
        "try: records.replace_text(Path('record.json'), 'x')\n"
        "except OSError as error: print(errors.sentence(error))\n"
        "try: fs.LocalFileSystem().open_output_stream('a.parquet')\n"
        "except OSError as error: print(errors.sentence(error))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=small,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in said.splitlines():
        assert line.startswith("user 12345 may not write ")
        assert "which is user 0's; change its owner (chown), then run this again" in line
    assert len(said.splitlines()) == 2
    assert path.read_text() == "{}"


def test_a_repository_of_another_user_is_named_with_its_owner(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # that of the tests allows all folders
    with pytest.raises(ReleaseError) as error:
        checkout.git("status", folder=repository)
    owner = repository.stat().st_uid
    assert str(error.value) == (
        f"{repository} is user {owner}'s, and git reads it for no other (this is user {os.getuid()}); run "
        f"this as its owner, or allow it: git config --global --add safe.directory {repository}"
    )


def test_an_outcome_that_finds_no_room_is_refused_and_none_that_was_acknowledged_is_lost() -> None:
    with in_memory("size=32m") as disk:
        log = open_log(f"sqlite:///{disk / 'serving.db'}")
        kept, refused = asyncio.run(tell(log, disk))
        assert refused
        again, still_refused = asyncio.run(tell(log, None))
        assert not still_refused
        assert {each.id for each in log.exposures.of(None) if each.taken == ("a",)} >= {*kept, *again}


def exposure(number: int) -> Exposure:
    return Exposure(
        id=f"{number:016x}",
        time=time.time(),
        experiment="",
        unit=f"u{number}",
        arm="champion",
        version=1,
        share=0.0,
        propensity=1.0,
        items=("a", "b"),
        latency_s=0.01,
    )


async def tell(log: Log, disk: Path | None) -> tuple[list[str], list[str]]:
    """Sends outcomes, while `disk` fills up if given; returns the acknowledged and the refused ones."""
    writer = Writer(log.exposures)
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


def environment(home: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    return {**kept, "DAYBREAK_HOME": str(home), "PYTHONPATH": str(ROOT)}


def night(home: Path, words: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "daybreak", *words],
        cwd=home,
        env=environment(home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def home_at(folder: Path, store: Path) -> Path:
    home = make_repository(folder, store=store)
    (home / "params.yaml").write_text(PARAMS)
    (home / "data").mkdir()
    shutil.copy(ROOT / "data/expectations.yaml", home / "data")
    (home / ".gitignore").write_text("/nights/\n/var/\n/data/*\n!/data/expectations.yaml\n")
    (home / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    subprocess.run([sys.executable, "-m", "daybreak.dvc_file"], cwd=home, env=environment(home), check=True)
    for words in (["add", "--all"], ["commit", "--quiet", "--message=Params"]):
        subprocess.run(["git", *words], cwd=home, check=True)
    return home


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_night_whose_disk_is_full_goes_on_as_it_says_and_has_lost_nothing(
    empty_store: Path, furnish: Callable[[Path], Path]
) -> None:
    """After `gate`, when MLflow and git are written.

    `benchmarks/bench_disks.py` does so in each stage, and compares the ends.
    """
    words = ["night", "--day", NIGHT]
    with in_memory("size=300m,nr_inodes=0") as disk:
        home = furnish(home_at(disk / "home", empty_store))
        folder = home / "nights" / NIGHT / records.RUN
        with night(home, words) as running:
            while not records.path_of(Verdict, folder).exists():
                assert running.poll() is None, running.communicate()[1]
                time.sleep(0.02)
            with full(disk):
                text = running.communicate()[1]
                assert running.returncode == 1, text
                for path in folder.glob("*.json"):
                    json.loads(path.read_text())
        assert "Traceback" not in text, text
        assert f"the disk {disk} is full (" in text
        words = shlex.split(re.findall("then go on with: daybreak ([^;\n]*)", text)[-1])
        for after in (words, ["audit", "--deep"]):
            with night(home, after) as running:
                text = running.communicate()[1]
                assert running.returncode == 0, text
        assert records.read(Release, folder).version == 1
        assert (folder / "report.html").exists()
