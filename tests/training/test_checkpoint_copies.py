"""Copies where there is neither rename nor lock: there whole or not believed, and a refusal stops nothing."""

import errno
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from daybreak.training import checkpoint
from daybreak.training.checkpoint import TrainingState
from daybreak.training.checkpoint_copies import CheckpointCopies
from daybreak.training.trainer import Trainer
from tests import cloud_storage, s3_storage
from tests.fakes import AtOnce, CountingEngine
from tests.training.recipes import recipe


@pytest.fixture(params=["memory", "path"])
def url(request, tmp_path) -> Iterator[str]:
    yield "memory://bucket/job" if request.param == "memory" else str(tmp_path / "shared" / "job")
    fsspec.filesystem("memory").store.clear()


def saved(folder: Path, *seen: int) -> list[Path]:
    state = [TrainingState(tensors={"model": {"w": torch.full((4,), float(n))}}) for n in seen]
    paths = [
        checkpoint.save(folder, each, seen=n, identity="job") for each, n in zip(state, seen, strict=True)
    ]
    return [path for path in paths if path]


def brought(bucket: CheckpointCopies, folder: Path) -> str:
    """Name of the newest checkpoint in a folder after what is in the bucket was brought there."""
    bucket.fetch(folder)
    path = checkpoint.newest(folder, identity="job")
    return path.name.removeprefix("seen=").lstrip("0") if path else ""


def names(bucket: CheckpointCopies) -> list[str]:
    return sorted(copy.partition(".")[0].removeprefix("seen=").lstrip("0") for copy in bucket.copies())


def there(bucket: CheckpointCopies, seen: int, file: str) -> str:
    """Path in the bucket of a file of a copy."""
    (copy,) = (copy for copy in bucket.copies() if copy.startswith(f"seen={seen:015d}."))
    return bucket._bucket.at(copy, file)


def test_a_machine_without_a_checkpoint_gets_the_newest_copy(tmp_path, url):
    bucket = CheckpointCopies(url)
    assert brought(bucket, tmp_path / "new") == ""
    for path in saved(tmp_path / "old", 1, 20):
        assert bucket.send(path)
        assert bucket.send(path)
    assert brought(CheckpointCopies(url), tmp_path / "new") == "20"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["seen=000000000000020"]


def test_a_machine_gets_the_older_copy_where_weights_of_the_newer_are_not_finite(tmp_path, url):
    bucket = CheckpointCopies(url)
    for seen, weight in ((1, 1.0), (2, torch.nan)):
        whole = TrainingState(tensors={"model": {"w": torch.tensor([weight])}}, scalars={"parameters": ["w"]})
        path = checkpoint.save(tmp_path / "one", whole, seen=seen, identity="job")
        assert path
        assert bucket.send(path)
    CheckpointCopies(url).fetch(tmp_path / "other", finite=True)
    assert checkpoint.take_over(tmp_path / "other", identity="job", finite=True) == (
        tmp_path / "other" / "seen=000000000000001"
    )


def test_one_that_has_a_newer_one_keeps_it(tmp_path, url):
    bucket = CheckpointCopies(url)
    for path in saved(tmp_path / "old", 1):
        bucket.send(path)
    saved(tmp_path / "new", 5)
    assert brought(bucket, tmp_path / "new") == "5"
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_a_torn_one_on_disk_gives_way_to_its_copy(tmp_path, url):
    (path,) = saved(tmp_path, 7)
    assert CheckpointCopies(url).send(path)
    (path / "model.safetensors").write_bytes(b"torn")
    assert brought(CheckpointCopies(url), tmp_path) == "7"


@pytest.mark.parametrize("num_parts", [0, 1, 2])
def test_what_lacks_its_manifest_is_not_believed(tmp_path, url, num_parts, monkeypatch, caplog):
    """As it is left by a worker that was killed after so many parts: the manifest comes last."""
    bucket = CheckpointCopies(url)
    one, two = saved(tmp_path / "old", 1, 2)
    assert bucket.send(one)
    put, parts = bucket._bucket.files.put_file, []

    def until_killed(source: str, *given: Any, **options: Any) -> None:
        if len(parts) == num_parts:
            raise OSError(errno.ECONNRESET, "killed")
        parts.append(Path(source).name)
        put(source, *given, **options)

    monkeypatch.setattr(bucket._bucket.files, "put_file", until_killed)
    assert not bucket.send(two)
    monkeypatch.undo()
    assert "manifest.json" not in parts
    assert brought(bucket, tmp_path / "new") == "1"
    assert "no copy of seen=000000000000002" in caplog.text
    assert bucket.send(two)
    assert brought(bucket, tmp_path / "new") == "2"


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_a_copy_that_was_changed_is_skipped_and_replaced(tmp_path, url, file, caplog):
    bucket = CheckpointCopies(url)
    one, two = saved(tmp_path / "old", 1, 2)
    assert bucket.send(one)
    assert bucket.send(two)
    bucket._bucket.files.pipe_file(there(bucket, 2, file), b"changed")
    assert brought(bucket, tmp_path / "new") == "1"
    assert re.search(rf"{two.name}\.\w+ is skipped", caplog.text)
    (again,) = saved(tmp_path / "new", 2)
    assert CheckpointCopies(url).send(again)
    assert brought(bucket, tmp_path / "newer") == "2"


def test_two_are_kept_and_none_that_was_further_on_and_not_believed(tmp_path, url):
    bucket = CheckpointCopies(url)
    for path in saved(tmp_path / "old", 1, 2, 900):
        bucket.send(path)
    assert names(bucket) == ["2", "900"]
    bucket._bucket.files.rm_file(there(bucket, 900, "manifest.json"))
    after = CheckpointCopies(url)
    assert brought(after, tmp_path / "new") == "2"
    for path in saved(tmp_path / "new", 3, 4):
        assert after.send(path)
    assert names(bucket) == ["3", "4"]
    folders = {path.split("/")[-2] for path in after._files()}
    assert folders == {"heads", *after.copies()}


def test_a_writer_that_was_given_up_for_lost_takes_nothing_from_its_successor(tmp_path, url):
    lost, after = CheckpointCopies(url), CheckpointCopies(url)
    (one,) = saved(tmp_path / "lost", 1)
    assert lost.send(one)
    assert brought(after, tmp_path / "new") == "1"
    for path in saved(tmp_path / "new", 5, 6):
        assert after.send(path)
    (behind,) = saved(tmp_path / "lost", 4)
    assert lost.send(behind)
    assert names(after) == ["5", "6"]
    (ahead,) = saved(tmp_path / "lost", 9)
    assert lost.send(ahead)
    (seven,) = saved(tmp_path / "new", 7)
    assert after.send(seven)
    assert names(after) == ["7", "9"]
    assert brought(CheckpointCopies(url), tmp_path / "newer") == "9"


def test_a_head_that_was_cut_short_is_passed_over_and_followed_by_the_next(tmp_path, url):
    bucket = CheckpointCopies(url)
    one, two = saved(tmp_path / "old", 1, 2)
    assert bucket.send(one)
    bucket._bucket.files.pipe_file(bucket._bucket.at("heads", f"{2:012d}.json"), b'{"seen=00')
    assert brought(bucket, tmp_path / "new") == "1"
    assert bucket.send(two)
    assert names(bucket) == ["1", "2"]


def test_what_a_killed_writer_left_goes_after_an_hour(tmp_path, url, monkeypatch):
    bucket = CheckpointCopies(url)
    left = bucket._bucket.at(f"seen={5:015d}.dead", "model.safetensors")
    bucket._bucket.files.makedirs(left.rpartition("/")[0], exist_ok=True)
    bucket._bucket.files.pipe_file(left, b"half")
    one, two = saved(tmp_path, 1, 2)
    assert bucket.send(one)
    assert bucket._bucket.files.exists(left)
    monkeypatch.setattr("daybreak.training.checkpoint_copies.FORGOTTEN", timedelta(0))
    assert bucket.send(two)
    assert not bucket._bucket.files.exists(left)
    assert names(bucket) == ["1", "2"]


def test_a_bucket_that_is_read_only_is_warned_of_tried_again_and_stops_nothing(
    tmp_path, url, monkeypatch, caplog
):
    bucket = CheckpointCopies(url)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "read-only")

    monkeypatch.setattr(bucket._bucket.files, "put_file", refuse)
    engine = CountingEngine(num_samples=40, step_s=10)
    trainer = Trainer(
        engine,
        recipe(every_s=50),
        folder=tmp_path,
        epoch_samples=40,
        told_to_stop=lambda: False,
        report=lambda progress: None,
        clock=engine.clock,
        copies=bucket,
        executor=AtOnce(),
    )
    assert trainer.run().stopped_by == "finished"
    assert caplog.text.count("no copy of") >= 3
    assert "read-only; going on, and trying again later" in caplog.text
    monkeypatch.undo()
    trainer.save()
    assert names(bucket) == ["100"]


def test_what_cannot_be_read_is_no_reason_to_begin_anew(tmp_path, url, monkeypatch):
    bucket = CheckpointCopies(url)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "no access")

    monkeypatch.setattr(bucket._bucket.files, "find", refuse)
    with pytest.raises(PermissionError):
        bucket.fetch(tmp_path)


@pytest.fixture
def storage(monkeypatch) -> Iterator[cloud_storage.Store]:
    """A bucket on loopback, asked by Google's own file system."""
    with cloud_storage.served() as store, cloud_storage.emulated(store):
        yield store


@pytest.mark.slow
def test_cloud_storage_is_such_a_bucket(tmp_path, storage, caplog):
    bucket = CheckpointCopies("gs://bucket/job")
    for seen in (1, 2, 3):
        (path,) = saved(tmp_path / "old", seen)
        assert bucket.send(path)
    assert names(bucket) == ["2", "3"]
    assert brought(bucket, tmp_path / "new") == "3"
    bucket._bucket.files.pipe_file(there(bucket, 3, "model.safetensors"), b"torn\r")
    assert bucket._bucket.files.cat_file(there(bucket, 3, "model.safetensors")) == b"torn\r"
    assert brought(bucket, tmp_path / "newer") == "2"
    storage.read_only = True
    (four,) = saved(tmp_path / "old", 4)
    assert not bucket.send(four)
    assert "no copy of seen=000000000000004 in gs://bucket/job: Forbidden" in caplog.text
    storage.read_only = False
    assert bucket.send(four)
    assert names(bucket) == ["3", "4"]
    nowhere = CheckpointCopies("gs://nowhere/job")
    assert brought(nowhere, tmp_path / "none") == ""
    assert not nowhere.send(four)
    assert "no copy of seen=000000000000004 in gs://nowhere/job" in caplog.text


@pytest.mark.slow
def test_s3_is_such_a_bucket_too(tmp_path, caplog):
    with s3_storage.served() as storage, s3_storage.emulated(storage):
        bucket = CheckpointCopies("s3://bucket/job")
        for seen in (1, 2, 3):
            (path,) = saved(tmp_path / "old", seen)
            assert bucket.send(path)
        assert names(bucket) == ["2", "3"]
        assert brought(bucket, tmp_path / "new") == "3"
        storage.read_only = True
        (four,) = saved(tmp_path / "old", 4)
        assert not bucket.send(four)
        assert "no copy of seen=000000000000004 in s3://bucket/job: " in caplog.text
        storage.read_only = False
        assert bucket.send(four)
        assert names(bucket) == ["3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize("service", ["gs", "s3"])
def test_of_two_writers_at_once_neither_tears_or_loses_a_copy(service):
    """In little; benchmarks/bench_bucket.py races 200 times."""
    from benchmarks.bench_bucket import race

    seen = race(service, "2", "4")
    assert (seen["torn"], seen["lost"], seen["rounds"]) == (0, 0, 2)
    assert seen["commits"] >= 4
