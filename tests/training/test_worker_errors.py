"""What ended workers, and whether trying again would help."""

import json
import os
import subprocess
import sys

import pytest

from daybreak.contract.errors import Interrupted, JobError, NotFinite
from daybreak.training import worker_errors


@pytest.fixture
def start(monkeypatch):
    def start(attempt: str, restart: int = 0) -> None:
        monkeypatch.setenv(worker_errors.ATTEMPT, attempt)
        monkeypatch.setenv(worker_errors.RESTART, str(restart))

    start("a")
    return start


def test_what_we_say_ourselves_is_final_and_what_python_says_is_not(tmp_path, start):
    worker_errors.leave(tmp_path, ValueError("odd"), rank=1)
    assert not worker_errors.final(tmp_path)
    worker_errors.leave(tmp_path, "no update for 60 s", rank=0)
    assert not worker_errors.hopeless(tmp_path)
    assert worker_errors.reason(tmp_path) == "ValueError: odd"
    worker_errors.leave(tmp_path, JobError("give more memory"), rank=0)
    assert worker_errors.final(tmp_path) == "give more memory"
    assert worker_errors.hopeless(tmp_path)
    start("b")
    assert not worker_errors.hopeless(tmp_path)
    assert worker_errors.reason(tmp_path) == "ValueError: odd"
    worker_errors.forget(tmp_path)
    assert worker_errors.reason(tmp_path) == "killed from outside, or ended before it could say why"


@pytest.mark.parametrize("again", [("a", 1), ("b", 0)])
def test_a_loss_that_is_no_number_is_final_when_a_second_start_meets_it(tmp_path, start, again):
    for rank in (0, 1):  # all workers of a start meet it
        worker_errors.leave(tmp_path, NotFinite("nan", update=7), rank=rank)
    assert not worker_errors.final(tmp_path)
    assert not worker_errors.met_not_finite(tmp_path)
    start(*again)
    assert worker_errors.met_not_finite(tmp_path)
    worker_errors.leave(tmp_path, NotFinite("another", update=9), rank=0)
    assert not worker_errors.final(tmp_path)
    worker_errors.leave(tmp_path, NotFinite("nan again", update=7), rank=0)
    assert worker_errors.final(tmp_path) == "nan again"


@pytest.mark.parametrize("again", [("a", 1), ("b", 0)])
def test_an_error_is_final_when_a_second_start_meets_it_at_the_same_update(tmp_path, start, again):
    def met(error: Exception, update: int) -> str:
        worker_errors.leave(tmp_path, error, rank=0, update=update)
        return worker_errors.final(tmp_path)

    for _ in range(2):  # all workers of a start meet it
        assert not met(ValueError("odd"), 7)
    assert not worker_errors.met_not_finite(tmp_path)
    start(*again)
    assert not worker_errors.met_not_finite(tmp_path)
    assert not met(ValueError("odd"), 9)
    assert not met(ValueError("even"), 7)
    assert not met(KeyError("odd"), 7)
    assert met(ValueError("odd"), 7).startswith("ValueError: odd, at update 7 of two starts in turn; correct")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("the bucket does not answer"),
        MemoryError("no room"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    ],
)
def test_an_error_of_a_machine_is_never_final(tmp_path, start, error):
    for attempt in "abc":
        start(attempt)
        worker_errors.leave(tmp_path, error, rank=0, update=7)
    assert not worker_errors.final(tmp_path)


def test_lost_connections_of_several_workers_are_never_final(tmp_path, start, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for attempt in "abc":
        start(attempt)
        worker_errors.leave(tmp_path, RuntimeError("connection closed by peer"), rank=0, update=7)
    assert not worker_errors.final(tmp_path)


def test_lines_are_those_that_people_read(tmp_path, start):
    worker_errors.leave(tmp_path, NotFinite("nan", update=7), rank=2)
    assert json.loads((tmp_path / worker_errors.FILE).read_text()) == {
        "attempt": "a",
        "restart": "0",
        "rank": 2,
        "error": "nan",
        "final": False,
        "update": 7,
    }


def test_what_ends_a_worker_from_outside_is_never_final(tmp_path, start):
    for attempt in "ab":
        start(attempt)
        worker_errors.leave(tmp_path, Interrupted("goes on"), rank=0, update=7)
        assert not worker_errors.final(tmp_path)
        assert not worker_errors.hopeless(tmp_path)
    assert worker_errors.reason(tmp_path) == "goes on"


def test_a_worker_of_an_older_start_ends_before_it_trains_and_the_new_start_is_not_given_up(tmp_path, start):
    (tmp_path / "attempt").write_text("b")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "daybreak.training.worker", str(tmp_path)]
    for _ in range(2):  # torchrun starts it again
        assert subprocess.run(words, env=environment, check=False, capture_output=True).returncode == 1
    assert "belongs to an older start" in worker_errors.reason(tmp_path)
    assert not worker_errors.final(tmp_path)
    assert not (tmp_path / "starts.jsonl").exists()
