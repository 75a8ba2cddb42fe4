"""Copies where there is neither rename nor lock: there whole or not believed, and a refusal stops nothing."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from pipeline.training import checkpoint
from pipeline.training.bucket import Bucket
from pipeline.training.checkpoint import State
from pipeline.training.trainer import Trainer
from tests.fakes import AtOnce, CountingEngine
from tests.training.forked import free_port
from tests.training.recipes import recipe


@pytest.fixture(params=["memory", "path"])
def url(request, tmp_path) -> Iterator[str]:
    yield "memory://bucket/job" if request.param == "memory" else str(tmp_path / "shared" / "job")
    fsspec.filesystem("memory").store.clear()


def saved(folder: Path, *seen: int) -> list[Path]:
    state = [State(tensors={"model": {"w": torch.full((4,), float(n))}}) for n in seen]
    paths = [
        checkpoint.save(folder, each, seen=n, identity="job") for each, n in zip(state, seen, strict=True)
    ]
    return [path for path in paths if path]


def brought(bucket: Bucket, folder: Path) -> str:
    """Name of the newest checkpoint in a folder after what is in the bucket was brought there."""
    bucket.bring(folder)
    path = checkpoint.newest(folder, identity="job")
    return path.name.removeprefix("seen=").lstrip("0") if path else ""


def names(bucket: Bucket) -> list[str]:
    return sorted(name.removeprefix("seen=").lstrip("0") for name in bucket._files())


def test_a_machine_without_a_checkpoint_gets_the_newest_copy(tmp_path, url):
    bucket = Bucket(url)
    assert brought(bucket, tmp_path / "new") == ""
    for path in saved(tmp_path / "old", 1, 20):
        assert bucket.send(path)
        assert bucket.send(path)
    assert brought(Bucket(url), tmp_path / "new") == "20"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["seen=000000000000020"]


def test_one_that_has_a_newer_one_keeps_it(tmp_path, url):
    bucket = Bucket(url)
    for path in saved(tmp_path / "old", 1):
        bucket.send(path)
    saved(tmp_path / "new", 5)
    assert brought(bucket, tmp_path / "new") == "5"
    assert len(list((tmp_path / "new").iterdir())) == 1


def test_a_torn_one_on_disk_gives_way_to_its_copy(tmp_path, url):
    (path,) = saved(tmp_path, 7)
    assert Bucket(url).send(path)
    (path / "model.safetensors").write_bytes(b"torn")
    assert brought(Bucket(url), tmp_path) == "7"


@pytest.mark.parametrize("num_parts", [0, 1, 2])
def test_what_lacks_its_manifest_is_not_believed(tmp_path, url, num_parts, monkeypatch, caplog):
    """As it is left by a worker that was killed after so many parts: the manifest comes last."""
    bucket = Bucket(url)
    one, two = saved(tmp_path / "old", 1, 2)
    assert bucket.send(one)
    put, parts = bucket._system.put_file, []

    def until_killed(source: str, *given: Any, **told: Any) -> None:
        if len(parts) == num_parts:
            raise OSError(errno.ECONNRESET, "killed")
        parts.append(Path(source).name)
        put(source, *given, **told)

    monkeypatch.setattr(bucket._system, "put_file", until_killed)
    assert not bucket.send(two)
    monkeypatch.undo()
    assert "manifest.json" not in parts
    assert brought(bucket, tmp_path / "new") == "1"
    assert "no copy of seen=000000000000002" in caplog.text
    assert bucket.send(two)
    assert brought(bucket, tmp_path / "new") == "2"


@pytest.mark.parametrize("file", ["model.safetensors", "state.json", "manifest.json"])
def test_a_copy_that_was_changed_is_skipped_and_replaced(tmp_path, url, file, caplog):
    bucket = Bucket(url)
    one, two = saved(tmp_path / "old", 1, 2)
    assert bucket.send(one)
    assert bucket.send(two)
    bucket._system.pipe_file(bucket._at(two.name, file), b"changed")
    assert brought(bucket, tmp_path / "new") == "1"
    assert f"{two.name} is skipped" in caplog.text
    (again,) = saved(tmp_path / "new", 2)
    assert Bucket(url).send(again)
    assert brought(bucket, tmp_path / "newer") == "2"


def test_two_are_kept_and_none_that_is_further_on(tmp_path, url):
    bucket = Bucket(url)
    for path in saved(tmp_path / "old", 1, 2):
        bucket.send(path)
    (further,) = saved(tmp_path / "old", 900)
    bucket.send(further)
    bucket._system.rm_file(bucket._at(further.name, "manifest.json"))
    (next_one,) = saved(tmp_path / "new", 3)
    assert bucket.send(next_one)
    assert names(bucket) == ["2", "3"]


def test_a_bucket_that_is_read_only_is_warned_of_tried_again_and_stops_nothing(
    tmp_path, url, monkeypatch, caplog
):
    bucket = Bucket(url)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "read-only")

    monkeypatch.setattr(bucket._system, "put_file", refuse)
    engine = CountingEngine(num_samples=40, step_s=10)
    trainer = Trainer(
        engine, recipe(checkpoint_every_s=50), folder=tmp_path, epoch_samples=40, told_to_stop=lambda: False,
        report=lambda progress: None, clock=engine.clock, bucket=bucket, aside=AtOnce(),
    )  # fmt: skip
    assert trainer.run().stopped_by == "finished"
    assert caplog.text.count("no copy of") >= 3
    assert "read-only; going on, and trying again later" in caplog.text
    monkeypatch.undo()
    trainer.save()
    assert names(bucket) == ["100"]


def test_what_cannot_be_read_is_no_reason_to_begin_anew(tmp_path, url, monkeypatch):
    bucket = Bucket(url)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "no access")

    monkeypatch.setattr(bucket._system, "find", refuse)
    with pytest.raises(PermissionError):
        bucket.bring(tmp_path)


@pytest.fixture
def cloud_storage(monkeypatch) -> Iterator[str]:
    """A bucket of an emulator on loopback, asked by Google's own file system."""
    from gcp_storage_emulator.server import create_server

    port = free_port()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # else it waits a minute for an answer
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    yield "gs://bucket/job"
    server.stop()


@pytest.mark.slow
def test_cloud_storage_is_such_a_bucket(tmp_path, cloud_storage, caplog):
    bucket = Bucket(cloud_storage)
    for seen in (1, 2, 3):
        (path,) = saved(tmp_path / "old", seen)
        assert bucket.send(path)
    assert names(bucket) == ["2", "3"]
    assert brought(bucket, tmp_path / "new") == "3"
    bucket._system.pipe_file(bucket._at("seen=000000000000003", "model.safetensors"), b"torn")
    assert brought(bucket, tmp_path / "newer") == "2"
    nowhere = Bucket("gs://nowhere/job")
    assert brought(nowhere, tmp_path / "none") == ""
    assert not nowhere.send(tmp_path / "old" / "seen=000000000000002")
    assert "no copy of seen=000000000000002 in gs://nowhere/job" in caplog.text
