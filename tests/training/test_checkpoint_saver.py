"""Written aside: training goes on meanwhile, on other weights, and one checkpoint is written at a time."""

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from daybreak.training import checkpoint
from daybreak.training.checkpoint import TrainingState
from daybreak.training.checkpoint_saver import RETRY_S, Saver
from tests.fakes import AtOnce


class Held(Executor):
    """Calls submitted functions only when they are released."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.pool = ThreadPoolExecutor(1)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return self.pool.submit(lambda: self.let_go.wait() and fn(*args, **kwargs))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def saver(folder: Path, clock: Clock, aside: Executor, **changes: Any) -> Saver:
    made = {"every_s": 10.0, "mean_time_to_loss_s": None, **changes}
    return Saver(folder, identity="job", clock=clock, executor=aside, **made)


def begin(made: Saver, clock: Clock, weights: torch.Tensor, *, seen: int = 8, blocked_s: float = 0.0) -> None:
    began = clock.now
    clock.now += blocked_s
    made.begin(TrainingState(tensors={"model": {"w": weights}}), seen=seen, began=began)


def weights_at(folder: Path) -> list[float]:
    path = checkpoint.newest(folder, identity="job")
    assert path
    return checkpoint.load(path).tensors["model"]["w"].tolist()


def test_what_updates_change_while_it_is_written_is_not_in_it(tmp_path):
    clock, aside, weights = Clock(), Held(), torch.ones(4)
    made = saver(tmp_path, clock, aside)
    begin(made, clock, weights)
    weights.fill_(2.0)
    assert checkpoint.newest(tmp_path, identity="job") is None
    aside.let_go.set()
    made.wait()
    assert weights_at(tmp_path) == [1.0] * 4


def test_none_is_due_while_one_is_written_and_the_next_waits_for_it(tmp_path):
    clock, aside, weights = Clock(), Held(), torch.ones(4)
    made = saver(tmp_path, clock, aside)
    clock.now += 9
    assert not made.due()
    clock.now += 1
    assert made.due()
    begin(made, clock, weights)
    clock.now += 1000
    assert not made.due()
    aside.let_go.set()
    begin(made, clock, weights + 1, seen=16)
    made.wait()
    assert weights_at(tmp_path) == [2.0] * 4
    assert len(list(tmp_path.iterdir())) == 2


def test_the_time_until_it_is_there_counts_what_the_loop_did_not_wait_for(tmp_path):
    clock, aside = Clock(), Held()
    made = saver(tmp_path, clock, aside)
    begin(made, clock, torch.ones(4), blocked_s=0.5)
    clock.now += 7
    aside.let_go.set()
    made.wait()
    assert (made.blocked_s, made.takes_s) == ([0.5], 7.5)


@pytest.mark.parametrize(("blocked_s", "every_s"), [(8.0, 40.0), (2.0, 20.0)])
def test_the_interval_is_that_of_the_time_blocked_not_of_the_time_in_flight(tmp_path, blocked_s, every_s):
    """sqrt(2 x 8 s x 100 s) = 40 s, from when the loop goes on, and a little for the thread's own work."""
    clock, aside = Clock(), Held()
    made = saver(tmp_path, clock, aside, mean_time_to_loss_s=100.0)
    begin(made, clock, torch.ones(4), blocked_s=blocked_s)
    free = clock.now
    clock.now += 5
    aside.let_go.set()
    made.wait()
    clock.now = free + every_s
    assert not made.due()
    clock.now += 5
    assert made.due()


def test_what_the_disk_refused_is_due_again_soon(tmp_path, caplog):
    place, clock = tmp_path / "checkpoints", Clock()
    place.write_text("a file, where a folder should be")
    made = saver(place, clock, AtOnce(), every_s=1000.0, mean_time_to_loss_s=1e6)
    begin(made, clock, torch.ones(4))
    clock.now += RETRY_S
    assert made.due()
    assert "no checkpoint at 8 samples" in caplog.text
    place.unlink()
    begin(made, clock, torch.ones(4))
    made.wait()
    clock.now += RETRY_S
    assert not made.due()
    assert weights_at(place) == [1.0] * 4


def test_checkpoints_come_as_the_plans_program_has_them_and_the_last_interval_stays(tmp_path):
    clock, weights = Clock(), torch.ones(4)
    made = saver(tmp_path, clock, AtOnce(), schedule_s=(10.0, 20.0, 50.0), mean_time_to_loss_s=9.0)
    intervals = [made.every_s]
    for number in range(4):
        begin(made, clock, weights, seen=8 * (number + 1))
        made.wait()
        intervals.append(made.every_s)
    assert intervals == [10.0, 20.0, 50.0, 50.0, 50.0]
