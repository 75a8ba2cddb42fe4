"""Machines of a job that come and go, as processes: one host at a time, whoever is lost, and one end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daybreak.backends import host_election, node
from daybreak.backends.host_election import HostElection, Term
from daybreak.backends.torchrun import NodeRank
from daybreak.storage.bucket import BucketFolder
from tests.backends.rented import wait

ROOT = Path(__file__).parents[2]
NODE = """
import sys, time
from pathlib import Path
from daybreak.backends import node
from daybreak.backends.host_election import HostElection
from daybreak.backends.torchrun import NodeRank
from daybreak.storage.bucket import BucketFolder

folder, rank, has_result = sys.argv[1], int(sys.argv[2]), Path(sys.argv[1]) / f"result-of-{sys.argv[2]}"
place = NodeRank(num_nodes=3, rank=rank, host="127.0.0.1", master="", min_nodes=1)
task = node.Task(module="tests.backends.members", arguments=(folder, sys.argv[2]), num_workers=1,
                 until=time.time() + 240, has_result=has_result.exists)
node.EXIT_S = 5.0
election = HostElection(BucketFolder(url=folder + "/hosts"), host="127.0.0.1",
                        has_result=has_result.exists)
sys.exit(node.run(task, place=place, election=election,
                  send_result=lambda: (Path(folder) / f"sent-{rank}").touch()))
"""


def make(folder: Path) -> HostElection:
    return HostElection(BucketFolder(url=str(folder)), host="127.0.0.1")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_election, "BEAT_S", 0.02)
    monkeypatch.setattr(host_election, "SILENT_S", 0.3)


def never() -> bool:
    return False


def test_one_of_many_is_the_host_and_the_others_find_it(tmp_path: Path, quick: None) -> None:
    first, second = make(tmp_path), make(tmp_path)
    term = first.seek(stopped=never)
    assert term
    with first.watched() as is_over:
        assert second.seek(stopped=never) == term
        assert (first.is_host, second.is_host) == (True, False)
        assert not is_over()


def test_a_silent_host_is_replaced_and_lets_go_when_it_is_back(tmp_path: Path, quick: None) -> None:
    first, second = make(tmp_path), make(tmp_path)
    term = first.seek(stopped=never)  # and says nothing more, as one that is paused
    assert second.seek(stopped=never) == term
    with second.watched() as is_over:
        wait(is_over)
    newer = second.seek(stopped=never)
    assert newer != term
    assert second.is_host
    with second.watched(), first.watched() as is_over:
        wait(is_over)
        assert not first.is_host
        assert first.seek(stopped=never) == newer


def test_a_host_that_resigns_is_replaced_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_election, "BEAT_S", 0.02)
    first, second = make(tmp_path), make(tmp_path)
    first.seek(stopped=never)
    first.resign()
    second.seek(stopped=never)
    assert second.is_host


def test_a_machine_that_is_told_to_end_while_it_takes_a_term_leaves_the_job_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = BucketFolder.create
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def told_to_end(folder: BucketFolder, *words: str) -> None:
        create(folder, *words)
        os.kill(os.getpid(), signal.SIGTERM)

    task = node.Task(module="tests.backends.members", arguments=(), num_workers=1, until=time.time() + 60)
    place = NodeRank(num_nodes=2, rank=0, host="127.0.0.1", master="", min_nodes=1)
    with monkeypatch.context() as patched:
        patched.setattr(BucketFolder, "create", told_to_end)
        try:
            assert node.run(task, place=place, election=make(tmp_path)) == node.TERMINATED
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    other = make(tmp_path)
    term = other.seek(stopped=never)
    assert term
    assert term.status is None
    assert other.is_host


def test_a_machine_that_may_not_take_the_last_term_ends_when_it_is_told_to(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path)
    first.seek(stopped=never)
    tries: list[object] = []

    def refuses(*words: object) -> None:
        tries.append(words)
        raise PermissionError("403")

    monkeypatch.setattr(BucketFolder, "create", refuses)
    assert not first.succeed(stopped=lambda: len(tries) == 3)
    assert len(tries) == 3


def test_nobody_is_silent_while_the_folder_does_not_answer(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(tmp_path), make(tmp_path)
    first.seek(stopped=never)
    second.seek(stopped=never)
    failed = []

    def fails(*names: str) -> str:
        failed.append(names)
        raise OSError("503")

    monkeypatch.setattr(BucketFolder, "text", fails)
    with second.watched() as is_over:
        wait(lambda: len(failed) > 20)  # for longer than a host may be silent
        assert not is_over()


def test_the_end_of_a_job_is_the_end_for_all(tmp_path: Path, quick: None) -> None:
    first, second = make(tmp_path), make(tmp_path)
    first.seek(stopped=never)
    second.seek(stopped=never)
    second.end(1)  # which only the host may say
    assert first.succeed(stopped=never)
    first.end(0)
    assert second.seek(stopped=never) == Term(status=0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Starts a machine, whose processes are a session of their own."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as backend_job.py has it

    def one(rank: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", NODE, str(tmp_path), str(rank)]
        with (tmp_path / "log").open("ab") as log:
            made = subprocess.Popen(
                words, cwd=ROOT, start_new_session=True, stdout=log, stderr=log, env=environment
            )
        started.append(made)
        return made

    yield one
    for each in started:
        lose(each)


def lose(machine: subprocess.Popen[bytes]) -> None:
    """All processes of a machine are gone at once."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(path.read_text().rpartition(")")[2].split()[3])
            if session == machine.pid:
                os.kill(int(path.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue
    machine.wait()


@pytest.mark.slow
def test_a_job_goes_on_when_its_host_is_lost_and_takes_in_machines_that_come(
    tmp_path: Path, start: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    """No machine is needed for longer than it lasts: at the end none of the first two is left."""

    def members(*ranks: int) -> Callable[[], bool]:
        return lambda: (tmp_path / "members").exists() and (tmp_path / "members").read_text() == str([*ranks])

    first = start(0)
    wait(members(0))
    second = start(1)
    wait(members(0, 1))
    lose(first)
    wait(members(1))
    third = start(2)
    wait(members(1, 2))
    lose(second)
    wait(members(2))
    back = start(0)
    wait(members(0, 2))
    (tmp_path / "result-of-2").touch()
    (tmp_path / "finish").touch()
    assert (third.wait(), back.wait()) == (0, 0)
    assert {path.name for path in tmp_path.glob("sent-*")} == {"sent-2", "sent-0"}


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["wait", "crash"])
def test_a_machine_that_is_gone_after_the_last_update_does_not_hold_up_the_one_with_the_result(
    tmp_path: Path, start: Callable[[int], subprocess.Popen[bytes]], fate: str
) -> None:
    """Torchrun would wait for it for 300 s, and so would its machine."""
    first = start(0)
    wait((tmp_path / "members").exists)
    second = start(1)
    wait(lambda: (tmp_path / "members").read_text() == "[0, 1]")
    for name in (f"{fate}-1", "result-of-0", "finish"):
        (tmp_path / name).touch()
    if fate == "wait":
        wait((tmp_path / "waits-1").exists)
        lose(second)
    assert first.wait(timeout=200) == 0
    assert (tmp_path / "sent-0").exists()
    if fate == "crash":
        assert second.wait(timeout=200) == 0
