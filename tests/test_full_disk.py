"""Disks that are full, without inodes, read-only or another user's: one sentence, nothing torn or lost."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


class SmallDisk:
    """A file system in memory, mounted at a folder, which can be filled to the last page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, *, but: int = 0) -> None:
        """Leaves `but` bytes free."""
        state = os.statvfs(self.folder)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, state.f_bavail * state.f_frsize - but))

    def empty(self) -> None:
        """Makes space, and lets the file system be written."""
        self.remount("rw")
        self._ballast.unlink(missing_ok=True)

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.folder)], check=True)


@contextmanager
def mounted(options: str) -> Iterator[SmallDisk]:
    folder = Path(tempfile.mkdtemp(prefix="daybreak-disk-"))
    folder.chmod(0o755)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    ) if shutil.which("mount") else None  # fmt: skip
    if made is None or made.returncode:
        pytest.skip("only who may mount a file system can fill it (root, outside of most containers)")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        folder.rmdir()


@pytest.fixture
def small() -> Iterator[SmallDisk]:
    with mounted("size=1m,nr_inodes=40") as disk:
        yield disk


def write(path: Path) -> str:
    """What is said of a record that cannot be written; the record is as it was."""
    before = path.read_text()
    with pytest.raises(OSError) as error:
        records.replace_text(path, "x" * 100_000)
    assert path.read_text() == before
    return sentence(error.value)


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("full", r"the disk {} is full (4.1 kB free); free some space, then run this again"),
        ("files", r"the disk {} has no room for another file ("),
        ("read-only", r"the disk {} is read-only, or "),
    ],
)
def test_a_record_that_finds_no_room_stays_as_it_was_and_the_disk_is_named(
    small: SmallDisk, trouble: str, said: str
) -> None:
    path = small.folder / "record.json"
    path.write_text("{}")
    if trouble == "full":
        small.fill(but=4096)
    elif trouble == "files":
        with pytest.raises(OSError, match="No space left"):
            for number in range(100):
                (small.folder / f"file{number}").touch()
    else:
        small.remount("ro")
    assert write(path).startswith(said.format(small.folder))
    small.remount("rw")
    assert [each.name for each in small.folder.glob(".*")] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_folder_of_another_user_is_named_with_its_owner(small: SmallDisk) -> None:
    path = small.folder / "record.json"
    path.write_text("{}")
    small.folder.chmod(0o755)
    code = (
        "import os, sys; from pathlib import Path; from pipeline.contract import records, errors\n"
        "os.setuid(12345)\n"
        "try: records.replace_text(Path('record.json'), 'x')\n"
        "except OSError as error: print(errors.sentence(error))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=small.folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.startswith("user 12345 may not write ")
    assert "which is user 0's; change its owner (chown), then run this again" in said
    assert path.read_text() == "{}"


def test_an_outcome_that_finds_no_room_is_refused_and_none_that_was_acknowledged_is_lost() -> None:
    with mounted("size=32m") as disk:
        log = open_log(f"sqlite:///{disk.folder / 'serving.db'}")
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


async def tell(log: Log, disk: SmallDisk | None) -> tuple[list[str], list[str]]:
    """Tells outcomes while the disk fills up, if one is given: those acknowledged, and those refused."""
    writer = Writer(log)
    kept, refused = [], []
    for number in range(200):
        made = exposure(number if disk else 1000 + number)
        if disk and number == 50:
            disk.fill()
        writer.expose(made)
        try:
            if await writer.outcome(Outcome(exposure=made.id, time=time.time(), items=("a",))):
                kept.append(made.id)
        except JobError:
            refused.append(made.id)
    if disk:
        disk.empty()
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
        mounted("size=300m,nr_inodes=0") as disk,
        subprocess.Popen(
            [sys.executable, "-m", "pipeline", "night", "--day", NIGHT],
            cwd=undisturbed, env=environment(undisturbed), stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        ) as beside,
    ):  # fmt: skip
        home = home_at(disk.folder / "home", empty_store)
        for name in stages.CHAIN:
            if name != "refit":  # it has nothing to do
                disk.fill(but=4096)
                expect_sentence(name, run(home, name), disk)
                for path in (home / "nights" / NIGHT / records.RUN).glob("*.json"):
                    json.loads(path.read_text())
                disk.empty()
            done = run(home, name)
            assert done.returncode == 0, f"{name}: {done.stderr}"
        said = beside.communicate()[1]
        assert beside.returncode == 0, said
        assert records.read(Release, home / "nights" / NIGHT / records.RUN).version == 1
        assert (home / "nights" / NIGHT / records.RUN / "report.html").exists()
        found, expected = outcome(home), outcome(undisturbed)
        for what, value in expected.items():
            assert found[what] == value, what


def expect_sentence(name: str, failed: "subprocess.CompletedProcess[str]", disk: SmallDisk) -> None:
    last = failed.stderr.strip().splitlines()[-1]
    if name == "close":  # `promote` has committed the night; only its report finds no room
        assert failed.returncode == 0, failed.stderr
        assert "the report is missing" in failed.stderr
        return
    assert failed.returncode == 1, f"{name}: {failed.stderr}"
    assert f"the disk {disk.folder} is full (" in last, failed.stderr
    if name == "open":
        assert last.endswith("then run this again")
    else:
        assert last.endswith(f"then go on with: python -m pipeline night --night {NIGHT}")
