"""Checkpoints: there whole or not at all, refused by others, and a full disk stops nothing."""

import errno
import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from daybreak.contract.errors import JobError
from daybreak.training import checkpoint
from daybreak.training.checkpoint import TrainingState
from tests.disk import Disk, Tree, restored


def state(value: float, *, size: int = 8) -> TrainingState:
    return TrainingState(
        tensors={"model": {"w": torch.full((size,), value)}, "optimizer": {"0": torch.ones(2)}},
        scalars={"value": value},
    )


def saved(folder: Path, *seen: int) -> list[Path]:
    paths = [checkpoint.save(folder, state(n), seen=n, identity="job") for n in seen]
    assert all(paths)
    return [path for path in paths if path]


def test_what_was_saved_is_loaded(tmp_path):
    saved(tmp_path, 5)
    path = checkpoint.newest(tmp_path, identity="job")
    assert path
    loaded = checkpoint.load(path)
    assert torch.equal(loaded.tensors["model"]["w"], torch.full((8,), 5.0))
    assert loaded.scalars == {"value": 5, "seen": 5, "identity": "job"}


def test_two_are_kept(tmp_path):
    saved(tmp_path, 1, 20, 300)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "seen=000000000000020",
        "seen=000000000000300",
    ]


@pytest.mark.parametrize(
    "file", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
)
@pytest.mark.parametrize("harm", ["cut", "changed", "missing"])
def test_a_torn_or_tampered_one_is_skipped_with_a_warning(tmp_path, caplog, file, harm):
    good, bad = saved(tmp_path, 1, 2)
    target = bad / file
    content = target.read_bytes()
    if harm == "missing":
        target.unlink()
    else:
        target.write_bytes(content[: len(content) // 2] if harm == "cut" else content[:-3] + b"xyz")
    assert checkpoint.newest(tmp_path, identity="job") == good
    assert f"checkpoint {bad} is skipped" in caplog.text


@pytest.mark.parametrize("odd", [torch.nan, torch.inf])
def test_one_with_a_weight_that_is_not_finite_is_passed_over_where_that_is_asked_for(tmp_path, odd, caplog):
    mask = torch.tensor([0.0, -torch.inf])
    for seen, weight in ((1, 1.0), (2, odd)):
        model = {"w": torch.tensor([2.0, weight]), "mask": mask}
        whole = TrainingState(tensors={"model": model}, scalars={"parameters": ["w"]})
        checkpoint.save(tmp_path, whole, seen=seen, identity="job")
    older, newer = sorted(tmp_path.iterdir())
    assert checkpoint.newest(tmp_path, identity="job") == newer
    assert checkpoint.newest(tmp_path, identity="job", finite=True) == older
    assert "is skipped: its weight w is not finite" in caplog.text
    assert checkpoint.take_over(tmp_path, identity="job", finite=True) == older
    assert list(tmp_path.iterdir()) == [older]


def test_an_added_file_makes_it_another_one(tmp_path):
    good, bad = saved(tmp_path, 1, 2)
    (bad / "more.safetensors").write_bytes(b"")
    assert checkpoint.newest(tmp_path, identity="job") == good


def test_what_a_killed_writer_left_is_no_checkpoint_and_is_cleared(tmp_path):
    (good,) = saved(tmp_path, 1)
    (tmp_path / ".seen=2.77").mkdir()
    (tmp_path / ".seen=2.77" / "model.safetensors").write_bytes(b"half")
    assert checkpoint.newest(tmp_path, identity="job") == good
    assert checkpoint.take_over(tmp_path, identity="job") == good
    assert list(tmp_path.iterdir()) == [good]


@pytest.mark.parametrize("text", ["null", "[]", "3", '{"state.json": 1}', '["state.json"]'])
def test_a_manifest_of_another_form_is_a_torn_checkpoint(tmp_path, text):
    good, bad = saved(tmp_path, 1, 2)
    (bad / "manifest.json").write_text(text)
    assert checkpoint.newest(tmp_path, identity="job") == good


@pytest.mark.parametrize("num_torn", [1, 2])
def test_torn_ones_do_not_push_out_what_is_saved_after_them(tmp_path, num_torn):
    before = saved(tmp_path, 600, 640)
    for path in before[-num_torn:]:
        (path / "model.safetensors").write_bytes(b"torn")
    assert checkpoint.take_over(tmp_path, identity="job") == (before[0] if num_torn == 1 else None)
    seen = 620 if num_torn == 1 else 100
    (path,) = saved(tmp_path, seen)
    assert checkpoint.newest(tmp_path, identity="job") == path
    assert len(list(tmp_path.iterdir())) == 3 - num_torn


def test_taking_over_leaves_the_checkpoint_of_another_job(tmp_path):
    (theirs,) = saved(tmp_path, 1)
    with pytest.raises(JobError, match="belongs to job job"):
        checkpoint.take_over(tmp_path, identity="other")
    assert checkpoint.newest(tmp_path, identity="job") == theirs


def test_a_torn_one_is_replaced(tmp_path):
    (path,) = saved(tmp_path, 1)
    (path / "manifest.json").unlink()
    saved(tmp_path, 1)
    assert checkpoint.newest(tmp_path, identity="job") == path


def test_the_checkpoint_of_another_job_is_refused(tmp_path):
    saved(tmp_path, 1)
    with pytest.raises(
        JobError, match="belongs to job job, this is other: another model, data set or seed; remove"
    ):
        checkpoint.newest(tmp_path, identity="other")


@pytest.fixture
def small_files() -> Iterator[None]:
    """A disk on which no file grows beyond 10 kB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_warned_of_and_leaves_the_one_before(tmp_path, small_files, caplog):
    (good,) = saved(tmp_path, 1)
    assert checkpoint.save(tmp_path, state(2, size=100_000), seen=2, identity="job") is None
    assert "no checkpoint at 2 samples" in caplog.text
    assert list(tmp_path.iterdir()) == [good]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_the_state_of_any_optimizer_survives_without_pickle(tmp_path, kind):
    def made() -> tuple[torch.nn.Linear, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        return model, kind(model.parameters(), lr=0.1)

    def update(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()

    model, optimizer = made()
    update(model, optimizer)
    tensors, tree = checkpoint.pack(optimizer.state_dict())
    part = TrainingState(
        tensors={"model": dict(model.state_dict()), "optimizer": tensors}, scalars={"tree": tree}
    )
    path = checkpoint.save(tmp_path, part, seen=1, identity="job")
    assert path
    again, its_optimizer = made()
    loaded = checkpoint.load(path)
    again.load_state_dict(loaded.tensors["model"])
    its_optimizer.load_state_dict(
        checkpoint.unpack(loaded.tensors.get("optimizer", {}), loaded.scalars["tree"])
    )
    update(model, optimizer)
    update(again, its_optimizer)
    assert torch.equal(model.weight, again.weight)


def test_tied_weights_are_saved_twice(tmp_path):
    weight = torch.ones(4)
    tied = TrainingState(tensors={"model": {"a": weight, "b": weight}})
    path = checkpoint.save(tmp_path, tied, seen=1, identity="job")
    assert path
    assert set(checkpoint.load(path).tensors["model"]) == {"a", "b"}
    assert "model.safetensors" in json.loads((path / "manifest.json").read_text())


def job_in(folder: Path, patch: pytest.MonkeyPatch, *seen: int) -> Disk:
    """A job's folder on a disk that loses what was not synced, with checkpoints after so many samples."""
    folder.mkdir()
    saved(folder, *seen)
    return Disk(folder, patch)


def newest_of(trees: set[Tree], scratch: Path) -> set[float | None]:
    """What the newest checkpoint holds in each of the folders that may be left; None where there is none."""
    values: set[float | None] = set()
    for number, tree in enumerate(trees):
        path = checkpoint.newest(restored(tree, scratch / str(number)), identity="job")
        values.add(checkpoint.scalars(path)["value"] if path else None)
    return values


def test_whenever_the_power_fails_the_newest_checkpoint_is_the_one_before_or_the_new_one(
    tmp_path, monkeypatch
):
    disk = job_in(tmp_path / "job", monkeypatch, 1, 2)
    left = disk.left_by(lambda: saved(tmp_path / "job", 3))
    assert newest_of(left, tmp_path / "left") == {2, 3}


def test_a_checkpoint_that_was_saved_stays_saved(tmp_path, monkeypatch):
    disk = job_in(tmp_path / "job", monkeypatch, 1, 2)
    saved(tmp_path / "job", 3)
    assert newest_of(disk.left(), tmp_path / "left") == {3}


def test_whenever_the_power_fails_a_torn_checkpoint_is_replaced_or_still_passed_over(tmp_path, monkeypatch):
    disk = job_in(tmp_path / "job", monkeypatch, 1, 2)
    (tmp_path / "job" / "seen=000000000000002" / "manifest.json").unlink()
    left = disk.left_by(lambda: saved(tmp_path / "job", 2))
    assert newest_of(left, tmp_path / "left") == {1, 2}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_a_bucket_and_a_disk_that_cannot_is_broken(
    tmp_path, monkeypatch, caplog, number
):
    def fail(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    path = checkpoint.save(tmp_path, state(1), seen=1, identity="job")
    assert (path is None) == (number == errno.EIO)
    assert ("no checkpoint at 1 samples" in caplog.text) == (number == errno.EIO)


def test_the_same_state_again_is_not_written_again(tmp_path):
    (path,) = saved(tmp_path, 1)
    before = (path / "state.json").stat().st_ino
    assert saved(tmp_path, 1) == [path]
    assert (path / "state.json").stat().st_ino == before


def test_what_a_kill_left_of_one_that_was_going_is_in_nobodys_way(tmp_path):
    (path,) = saved(tmp_path, 1)
    (path / "manifest.json").unlink()
    (tmp_path / f".{path.name}.going" / "part").mkdir(parents=True)
    saved(tmp_path, 1)
    assert [left.name for left in tmp_path.iterdir()] == [path.name]


def test_a_tree_is_packed_and_unpacked_with_its_lists_tuples_and_keys():
    tree = {"a": [1, (2.5, None)], 3: {"w": torch.ones(2), "v": (torch.zeros(1), "s")}}
    tensors, packed = checkpoint.pack(tree)
    again = checkpoint.unpack(tensors, json.loads(json.dumps(packed)))
    assert again["a"] == [1, (2.5, None)]
    assert torch.equal(again[3]["w"], torch.ones(2))
    assert isinstance(again[3]["v"], tuple)
    assert again[3]["v"][1] == "s"
