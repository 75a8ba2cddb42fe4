"""Batches come whole, loaded ahead or not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from daybreak.training.loader import Loader, draws
from daybreak.training.tuning import Columns, read
from tests.fakes import LineWorkload, write_curve

FIRST, SECOND = np.arange(5), np.arange(5, 9)


@pytest.fixture
def data(tmp_path):
    write_curve(tmp_path, num_samples=20)
    return LineWorkload().dataset(tmp_path, "train")


@pytest.mark.parametrize("num_loaders", [0, 1, 3])
@pytest.mark.parametrize("prepared", [[], [FIRST, SECOND], [SECOND], [FIRST, FIRST + 3, SECOND]])
def test_each_batch_is_what_was_asked_for_whatever_was_prepared(data, num_loaders, prepared):
    loader = Loader(data, num_loaders=num_loaders)
    loader.prepare(prepared)
    for part in (FIRST, SECOND):
        assert np.array_equal(loader.get(part)["x"], data.x[part].astype(np.float32))
    loader.close()


def test_samples_of_a_dataset_without_whole_batches_are_collated():
    loader = Loader([{"x": np.float32(number)} for number in range(20)], num_loaders=1)
    loader.prepare([SECOND])
    assert loader.get(SECOND)["x"].tolist() == SECOND.tolist()
    loader.close()


def test_what_fails_in_a_thread_is_told_where_the_batch_is_asked_for(data):
    loader = Loader(data, num_loaders=1)
    loader.prepare([FIRST + 100])
    with pytest.raises(IndexError):
        loader.get(FIRST + 100)
    loader.close()


class Crops:
    """Samples that are drawn from three generators each time."""

    def __len__(self):
        return 40

    def __getitem__(self, sample):
        drawn = torch.rand(()).item(), np.random.rand(), random.random()
        return {"x": torch.tensor([sample, *drawn, os.getpid()], dtype=torch.float64)}


def drawn(num_loaders: int, *, epoch: int = 0, seed: int = 0) -> np.ndarray:
    """What samples of two batches drew, read so."""
    loader = Loader(Crops(), num_loaders=num_loaders, in_processes=True, seed=seed)
    loader.prepare([FIRST, SECOND], epoch=epoch)
    read = [loader.get(part, epoch=epoch)["x"].numpy() for part in (FIRST, SECOND)]
    loader.close()
    return np.concatenate(read)


def test_a_sample_is_drawn_the_same_with_and_without_processes():
    here, there = drawn(0), drawn(2)
    assert np.array_equal(here[:, :4], there[:, :4])
    assert set(here[:, 4]) == {os.getpid()}
    assert os.getpid() not in there[:, 4]


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_an_update_is_repeated_with_its_own_draws_where_its_samples_come_again_soon(num_loaders):
    """Of nine samples a later epoch is being loaded, too; what was loaded for it stays."""
    loader = Loader(Crops(), num_loaders=num_loaders, in_processes=True)
    for epoch in range(3):
        loader.prepare([FIRST, SECOND], epoch=epoch)
    once = [loader.get(part, epoch=0)["x"][:, :4] for part in (FIRST, SECOND)]
    again = [loader.get(part, epoch=0)["x"][:, :4] for part in (FIRST, SECOND)]
    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    assert len(loader._ahead) == 4
    later = np.concatenate([loader.get(part, epoch=1)["x"].numpy() for part in (FIRST, SECOND)])
    assert np.array_equal(later[:, :4], drawn(0, epoch=1)[:, :4])
    loader.close()


def test_another_epoch_or_seed_or_sample_is_drawn_otherwise():
    first = drawn(0)[:, 1:4]
    for other in (drawn(0, epoch=1), drawn(0, seed=1)):
        assert not (first == other[:, 1:4]).any()
    assert len(np.unique(first)) == first.size


def test_a_sample_does_not_depend_on_the_batch_that_it_is_in():
    loader = Loader(Crops(), num_loaders=0)
    whole, part = loader.get(FIRST)["x"], loader.get(FIRST[3:])["x"]
    assert torch.equal(whole[3:], part)


class Rare(Crops):
    """Of these samples only one draws."""

    def __getitem__(self, sample):
        return super().__getitem__(sample) if sample == 7 else {"x": torch.zeros(5, dtype=torch.float64)}


def test_a_sample_that_is_the_first_to_draw_is_seeded_as_well():
    loader = Loader(Rare(), num_loaders=0)
    after = [loader.get(part)["x"][:, :4] for part in (FIRST, SECOND)]
    alone = Loader(Rare(), num_loaders=0).get(SECOND[2:3])["x"][:, :4]
    assert torch.equal(after[1][2:3], alone)
    there = Loader(Rare(), num_loaders=2, in_processes=True)
    there.prepare([FIRST, SECOND])
    assert torch.equal(there.get(SECOND)["x"][:, :4], after[1])
    there.close()


def test_reading_here_leaves_the_generators_as_they_are():
    states = [torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()]
    drawn(0)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


def test_data_that_is_drawn_is_told_from_data_that_is_not(data):
    assert draws(Crops(), FIRST)
    assert not draws([{"x": np.float32(number)} for number in range(20)], FIRST)
    assert not draws(data, FIRST)


def test_what_is_in_memory_as_a_whole_needs_no_thread(data):
    columns = Columns(data)
    loader = Loader(columns, num_loaders=2)
    loader.prepare([FIRST])
    assert np.array_equal(loader.get(FIRST)["x"], data.x[FIRST].astype(np.float32))
    read(columns, list(range(len(data))))
    loader.prepare([SECOND])
    assert loader._ahead[-1][-1] is None
    assert np.array_equal(loader.get(SECOND)["x"], data.x[SECOND].astype(np.float32))
    loader.close()


def test_where_a_loader_process_is_killed_this_one_reads():
    loader = Loader(Crops(), num_loaders=1, in_processes=True)
    loader.prepare([FIRST])
    (there,) = set(loader.get(FIRST)["x"][:, 4].tolist())
    loader.prepare([SECOND, FIRST])
    os.kill(int(there), signal.SIGKILL)
    while not loader._pool._broken:
        time.sleep(0.01)
    loader.prepare([SECOND])  # as the trainer does, before it has met the loss
    read = [loader.get(part)["x"][:, :4] for part in (SECOND, FIRST, SECOND)]
    expected = drawn(0)
    assert np.array_equal(np.concatenate(read[1::-1]), expected[:, :4])
    loader.close()


@pytest.mark.slow
def test_loader_processes_die_with_the_process_that_trains(tmp_path: Path):
    code = (
        "import sys, time; from pathlib import Path; from tests.training.test_loader import FIRST, Crops; "
        "from daybreak.training.loader import Loader; "
        "loader = Loader(Crops(), num_loaders=2, in_processes=True); loader.prepare([FIRST]); "
        "loader.get(FIRST); Path(sys.argv[1]).touch(); time.sleep(60)"
    )
    ready = tmp_path / "ready"
    with subprocess.Popen([sys.executable, "-c", code, str(ready)]) as training:
        while not ready.exists():
            time.sleep(0.05)
        loaders = psutil.Process(training.pid).children()
        assert len(loaders) == 2
        training.kill()
    _, alive = psutil.wait_procs(loaders, timeout=300)
    assert alive == []
