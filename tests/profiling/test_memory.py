"""How much memory there is, and what a step needs of it."""

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from daybreak.contract.errors import JobError, ParamsError, PlanError
from daybreak.machines import this_machine
from daybreak.profiling import memory
from tests.fakes import LineWorkload, write_curve


def cgroup(monkeypatch, folder: Path, *, limits: dict[str, int | str], own: str = "0::/job/step") -> None:
    """Let this process be in a group with those limits, as the kernel tells them."""
    for name, limit in limits.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{limit}\n")
    (folder / "own").write_text(f"9:pids:/\n{own}\n")
    monkeypatch.setattr(this_machine, "CGROUPS", folder)
    monkeypatch.setattr(this_machine, "OWN_CGROUPS", folder / "own")


@pytest.mark.parametrize(
    ("own", "limits", "there"),
    [
        ("0::/job/step", {"job/step/memory.max": 1 << 20}, 1 << 20),
        ("0::/job/step", {"job/memory.max": 2 << 20, "job/step/memory.max": "max"}, 2 << 20),
        ("0::/elsewhere", {"memory.max": 3 << 20, "job/memory.max": 1 << 20}, 3 << 20),
        ("4:cpu,memory:/job", {"memory/job/memory.limit_in_bytes": 4 << 20, "memory.max": 1 << 20}, 4 << 20),
        ("4:memory:/job", {"memory/memory.limit_in_bytes": 5 << 20}, 5 << 20),
    ],
)
def test_memory_is_that_of_the_tightest_group_around_the_process(monkeypatch, tmp_path, own, limits, there):
    cgroup(monkeypatch, tmp_path, limits=limits, own=own)
    assert this_machine.installed_bytes() == there


def probe(workload, folder: Path) -> memory.Probe:
    return memory.Probe(workload=workload, folder=folder, batch_sizes=(8, 16), batch_size=16, seed=0)


class Dying(LineWorkload):
    """Its process ends in the first loss, by a signal or by itself."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self.end = end

    def loss(self, model, batch):
        if self.end:
            os.kill(os.getpid(), self.end)
        os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "error", "reason"),
    [
        (signal.SIGKILL, PlanError, "ended by signal 9, most likely for its memory"),
        (0, JobError, "ended with status 1; look at"),
    ],
)
def test_only_a_process_that_was_killed_is_said_to_lack_memory(tmp_path, end, error, reason):
    write_curve(tmp_path, num_samples=32)
    measuring = memory.measuring(probe(Dying(end), tmp_path))
    with pytest.raises(error, match=reason), measuring as peaks:
        peaks()


def test_a_workload_that_cannot_be_sent_is_told_in_one_sentence(tmp_path):
    workload = LineWorkload()
    workload.lock = threading.Lock()
    with pytest.raises(ParamsError, match=r"LineWorkload cannot be sent .* lock"):
        memory.measuring(probe(workload, tmp_path)).__enter__()


class Sentences(torch.utils.data.Dataset):
    """Samples of a single number, but for a very long sample in the middle, which sets its batch's width."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, sample: int) -> torch.Tensor:
        return self.__getitems__([sample])[0]

    def __getitems__(self, samples: list[int]) -> torch.Tensor:
        return torch.ones(len(samples), 1 << 18 if 32 in samples else 1)


class OfSentences(LineWorkload):
    def dataset(self, folder: Path, split: str) -> Sentences:
        return Sentences()

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 1)

    def loss(self, model, batch):
        return model(batch.exp().mean(1, keepdim=True))[:, 0] ** 2


@pytest.mark.slow
def test_passes_are_measured_on_the_largest_sample(tmp_path):
    with memory.measuring(probe(OfSentences(), tmp_path)) as peaks:
        measured = peaks()
    for size, num_bytes in zip(measured.batch_sizes, measured.step_bytes, strict=True):
        assert num_bytes >= size * (4 << 18)
