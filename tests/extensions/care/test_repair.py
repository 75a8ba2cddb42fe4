"""Bytes that rot are seen by `audit --deep` and by the share that each night reads, and are put back."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from daybreak.contract import params, records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Night
from daybreak.contract.sections import Params
from daybreak.data import casts, source
from daybreak.examples.demand.demand import Demand
from daybreak.extensions.care import repair
from daybreak.night.closing import _reread
from daybreak.report import publisher
from daybreak.rollout import rot
from daybreak.storage import branch, checkout, dvc_cache, ledger, snapshots
from daybreak.storage.bucket import BucketFolder
from daybreak.storage.home import Home
from daybreak.training import checkpoint
from daybreak.training.checkpoint_copies import CheckpointCopies
from tests.rollout.ledgers import close, release_of, rolling_back
from tests.storage.ledgers import unpack
from tests.storage.test_snapshots import STAGES, flip_a_bit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning"),  # dvc 3.67 on pygtrie 2.5
]
PARAMS = """\
source:
  use: "daybreak:AsOf"
  rows: {use: "daybreak.examples.demand.meters:Meters", start: "2025-01-09", today: "2025-01-12"}
  tables:
    weather:
      rows: {use: "daybreak.examples.demand.meters:Weather", start: "2025-01-08", today: "2025-01-12"}
      time: at
      columns: {temperature: celsius}
      max_age_hours: 6
workload: {use: "daybreak.examples.demand.demand:Demand"}
backend: {use: "tests.fakes:ScriptedBackend"}
"""
DAY = Path("data/raw/day=2025-01-10/part.parquet")  # of the source of the fixture


@pytest.fixture
def settings(repository: Path) -> Params:
    """A home whose raw partitions are in DVC, with links into the cache, and in a ledger of one night."""
    for who in ("AUTHOR", "COMMITTER"):
        os.environ.setdefault(f"GIT_{who}_NAME", "A Test")
        os.environ.setdefault(f"GIT_{who}_EMAIL", "test@example.org")
    (repository / "dvc.yaml").write_text(STAGES)
    snapshots.share_cache(repository, repository / ".dvc" / "cache")
    (repository / "params.yaml").write_text(PARAMS)
    made = params.load(repository)
    for day in made.source.make().days():
        bring_in(made, day)
    snapshots.record(Home.here(), "ingest")
    lock = Path("dvc.lock").read_text()
    close(1, after="", release=release_of(1))
    Path("dvc.lock").write_text(lock)
    subprocess.run(["git", "update-ref", "-d", branch.BRANCH], check=True)
    night = records.read(Night, records.RUN)
    ledger.commit_night(Home.here(), night, message="a night", release=release_of(1))
    return made


def bring_in(settings: Params, day: date) -> None:
    """Writes a day as `ingest` does."""
    folder = Path(f"data/raw/day={day}")
    settings.source.make().fetch(day, folder)
    rows = pq.read_table(folder / "part.parquet", partitioning=None)
    source.write_partition(casts.conform(rows, Demand.table, origin=str(day)), folder)


def sentences(checks: Iterator[Check]) -> list[str]:
    return [f"{check.name}: {check.text}" for check in checks]


def add_a_remote(repository: Path, tmp_path: Path) -> None:
    remote = f"[core]\n    remote = disk\n['remote \"disk\"']\n    url = {tmp_path / 'remote'}\n"
    (repository / ".dvc" / "config").write_text(remote)
    assert snapshots.push(Home.here())


def test_seven_nights_read_all_of_the_cache_whatever_was_rolled_back_between(
    settings: Params, caplog: pytest.LogCaptureFixture
) -> None:
    digests = dvc_cache.objects(Home.here())
    for digest in digests:
        flip_a_bit(dvc_cache.path_of(Home.here(), digest))  # so that each is named when it is read
    for number in range(2, 9):
        close(number, after=branch.newest_entry(Home.here()), release=release_of(number))
        _reread(Home.here(), settings.night)
        if number % 2:
            rolling_back(to=number - 1).commit()
    assert {digest for digest in digests if digest in caplog.text} == {*digests}


def test_what_tonight_wrote_is_read_again_before_a_stage_uses_it(settings: Params) -> None:
    lock = Path("dvc.lock").read_text()
    snapshots.expect_intact(Home.here(), ["data/raw"], before="")
    flip_a_bit(DAY)
    with pytest.raises(DataError, match=r"1 of \d files of tonight .*2025-01-10.*daybreak repair"):
        snapshots.expect_intact(Home.here(), ["data/raw"], before="")
    snapshots.expect_intact(Home.here(), ["data/raw"], before=lock)  # `open` has read it


@pytest.mark.parametrize("lost", ["flipped", "truncated", "missing"])
def test_an_object_is_put_back_from_the_remote_and_links_to_it_are_good_again(
    settings: Params, repository: Path, tmp_path: Path, lost: str
) -> None:
    add_a_remote(repository, tmp_path)
    content = DAY.read_bytes()
    (fault_of,) = [
        one
        for one in dvc_cache.objects(Home.here())
        if dvc_cache.path_of(Home.here(), one).read_bytes() == content
    ]
    path = dvc_cache.path_of(Home.here(), fault_of)
    if lost == "flipped":
        flip_a_bit(path)
    elif lost == "truncated":
        path.chmod(0o644)
        os.truncate(path, 10)
    else:
        path.unlink()
    (line,) = sentences(repair.repair(Home.here(), settings))
    assert line.startswith("repaired: ")
    assert line.endswith(", from DVC's remote")
    assert path.read_bytes() == DAY.read_bytes() == content
    assert not list(rot.in_cache(Home.here(), dvc_cache.objects(Home.here())))


def test_without_a_remote_another_copy_or_the_source_is_taken_and_lists_are_written_anew(
    settings: Params, repository: Path
) -> None:
    listing = next(one for one in dvc_cache.objects(Home.here()) if one.endswith(".dir"))
    content = DAY.read_bytes()
    flip_a_bit(dvc_cache.path_of(Home.here(), listing))
    (line,) = sentences(repair.repair(Home.here(), settings))
    assert "from the files that it lists" in line
    flip_a_bit(DAY)
    (line,) = sentences(repair.repair(Home.here(), settings))
    assert line.endswith("from the source, 2025-01-10")
    assert DAY.read_bytes() == content
    kept = repository / "nights" / "old" / "data" / "part.parquet"
    kept.parent.mkdir(parents=True)
    shutil.copyfile(DAY, kept)
    flip_a_bit(DAY)
    (line,) = sentences(repair.repair(Home.here(), settings))
    assert line.endswith(f"from {kept}")


def test_a_page_of_a_partition_that_was_changed_is_not_read(settings: Params) -> None:
    first = pq.read_metadata(DAY).row_group(0).column(0)
    content = bytearray(DAY.read_bytes())
    content[first.data_page_offset + first.total_compressed_size - 30] ^= 1
    other = Path("other.parquet")
    other.write_bytes(content)
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(other, partitioning=None, page_checksum_verification=True)


def test_what_has_no_good_copy_is_said(settings: Params) -> None:
    made = Path("data/raw/notes.txt")
    made.write_text("written by hand " * 20)
    snapshots.record(Home.here(), "ingest")
    flip_a_bit(made)
    (line,) = sentences(repair.repair(Home.here(), settings))
    assert line.startswith("not repaired: ")
    assert "bring .dvc/cache back from a backup" in line


@pytest.fixture
def remote(settings: Params, repository: Path, tmp_path: Path) -> Path:
    """A bare clone of all that git has, as the home's remote."""
    bare = tmp_path / "bare"
    subprocess.run(
        ["git", "clone", "--quiet", "--mirror", "--no-local", str(repository), str(bare)], check=True
    )
    subprocess.run(["git", "remote", "add", "off", str(bare)], check=True)
    return bare


def loose(name: str) -> Path:
    """The file of an object of git."""
    commit = checkout.git("rev-parse", name)
    return Path(".git/objects") / commit[:2] / commit[2:]


@pytest.mark.parametrize("what", ["commit", "tree", "blob", "pack"])
def test_an_object_of_the_ledger_is_put_back_from_a_remote(settings: Params, remote: Path, what: str) -> None:
    names = {"commit": "nights", "tree": "nights^{tree}", "blob": "nights:data/run/release.json"}
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert champion
    if what == "pack":
        subprocess.run(["git", "gc", "--quiet"], check=True)
        path = next(Path(".git/objects/pack").glob("*.pack"))
    else:
        unpack(Path())
        path = loose(names[what])
    path.chmod(0o644)
    flip(path)
    assert list(rot.in_git(Home.here()))
    if what != "pack":
        with pytest.raises(ReleaseError, match="daybreak repair"):
            ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    lines = sentences(repair.repair(Home.here(), settings))
    assert [line for line in lines if line.startswith("repaired: ")]
    assert not [line for line in lines if line.startswith("not")]
    assert ledger.champion_at(Home.here(), branch.ledger_tip(Home.here())) == champion


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def test_a_torn_checkpoint_is_removed_and_the_one_before_is_named(settings: Params, repository: Path) -> None:
    import torch

    folder = repository / "nights" / "a" / "data/work/jobs" / "job" / "checkpoints"
    state = checkpoint.TrainingState(tensors={"model": {"weight": torch.ones(3)}})
    older, newer = (checkpoint.save(folder, state, seen=seen, identity="x") for seen in (1, 2))
    assert older
    assert newer
    flip(newer / "model.safetensors")
    assert [fault for fault in rot.in_checkpoints(Home.here()) if fault.name == str(newer)]
    (line,) = sentences(repair.repair(Home.here(), settings))
    assert f"training goes on from {older.name}" in line
    assert not newer.exists()


def test_a_torn_checkpoint_comes_back_from_its_copy(
    settings: Params, repository: Path, tmp_path: Path
) -> None:
    import torch

    job = repository / "nights" / "a" / "data/work/jobs" / "job"
    state = checkpoint.TrainingState(tensors={"model": {"weight": torch.ones(3)}})
    path = checkpoint.save(job / "checkpoints", state, seen=1, identity="x")
    assert path
    copies = CheckpointCopies(str(tmp_path / "copies"))
    assert copies.send(path)
    before = (path / "model.safetensors").read_bytes()
    flip(path / "model.safetensors")
    assert checkpoint.fault(path)
    assert copies.fetch_one(path)
    assert not checkpoint.fault(path)
    assert (path / "model.safetensors").read_bytes() == before
    (copy,) = (tmp_path / "copies").glob("seen=*")
    flip(copy / "state.json")
    assert [name for name, _ in copies.faults()] == [copy.name]
    assert not copies.fetch_one(path)


def test_what_rots_in_a_bucket_is_named_and_sent_again(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    (tmp_path / "arrays" / "x.npy").write_bytes(bytes(range(200)))
    bucket = BucketFolder(url=str(tmp_path / "bucket"))
    bucket.send_thing(tmp_path / "arrays", "abc.dir")
    assert not list(bucket.damaged())
    sent = tmp_path / "bucket" / "things" / "abc.dir"
    for name in ("x.npy", "whole.json"):
        flip(sent / name)
        assert {thing for thing, _ in bucket.damaged()} == {"abc.dir"}
        bucket.remove_thing("abc.dir")
        bucket.send_thing(tmp_path / "arrays", "abc.dir")
        assert not list(bucket.damaged())


def test_a_night_tells_people_of_what_its_share_shows(
    settings: Params, repository: Path, commit: Callable[[str], str]
) -> None:
    heard = repository / "var" / "heard"
    text = (repository / "params.yaml").read_text() + f"notify: {{command: 'cat >> {heard}'}}\n"
    (repository / "params.yaml").write_text(text)
    flip_a_bit(DAY)
    often = settings.night.model_copy(update={"reread_nights": 1})
    publisher.publish_alarm(Home.here(), _reread(Home.here(), often))
    assert "1 files have rotted" in heard.read_text()
    assert "daybreak repair" in heard.read_text()


def test_what_goes_while_it_is_read_again_has_not_rotted(settings: Params) -> None:
    """As where another night prunes meanwhile."""
    digests = dvc_cache.objects(Home.here())
    dvc_cache.path_of(Home.here(), digests[0]).unlink()
    flip_a_bit(dvc_cache.path_of(Home.here(), digests[1]))
    assert [fault.name for fault in rot.in_cache(Home.here(), digests)] == [digests[1]]
