"""A run goes on where its memory limit falls, with the same gradient, and as before where it rises again."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from daybreak import hooks
from daybreak.contract.record_parts import Tuning
from daybreak.extensions.band_limits.band_limited import BandLimitedConv1d
from daybreak.extensions.memory_limits.memory_guard import LOOK_EVERY_S, MemoryGuard, ShortOfMemory
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from tests.extensions.band_limits.test_band_limited import Waves

MIB = 1 << 20
IDLE = 100 * MIB
BATCH = 8


class Memory:
    """Memory of which a pass takes 100 MiB a sample, and half of it where activations are computed again."""

    def __init__(self) -> None:
        self.limits = [3_000]  # in MiB, one a look; the last one stays
        self.guard: MemoryGuard | None = None
        self.now = 0.0

    def clock(self) -> float:
        self.now += 2 * LOOK_EVERY_S
        return self.now

    def free_bytes(self) -> int:
        limit = self.limits.pop(0) if len(self.limits) > 1 else self.limits[0]
        return limit * MIB - IDLE

    def own_bytes(self) -> int:
        return IDLE

    def peak_bytes(self) -> int:
        assert self.guard
        return int(IDLE + 100 * MIB * self.guard.setting.memory)

    def reset_peak(self) -> None: ...

    def release(self) -> None: ...

    def give_back_at_once(self) -> None: ...


def guarded(
    workload: Waves, *, band_limits: bool, micro_batch_size: int = BATCH
) -> tuple[TorchEngine, Memory]:
    """An engine whose guard follows that memory; an update takes ten seconds, and each look a little."""
    engine = TorchEngine(
        workload, workload.dataset(None, "train"), seed=1, micro_batch_size=micro_batch_size, tuning=Tuning()
    )
    memory = Memory()
    memory.guard = engine.micro_batches.guard = MemoryGuard(
        engine.model,
        memory=memory,
        tuning=Tuning(),
        band_limits=band_limits,
        clock=memory.clock,
    )
    return engine, memory


def update(engine: TorchEngine, number: int, *, memory: Memory | None = None) -> None:
    if memory:
        memory.now += 10.0
    engine.step(np.arange(BATCH) + number, batch_size=BATCH, rate=0.1, signals=Signals())


def test_a_limit_that_falls_within_a_pass_changes_no_gradient_and_is_forgotten_when_it_rises():
    workload = Waves()
    engine, memory = guarded(workload, band_limits=False)
    plain = TorchEngine(
        workload, workload.dataset(None, "train"), seed=1, micro_batch_size=BATCH, tuning=Tuning()
    )
    sizes = []
    for number in range(6):
        if number == 3:
            memory.limits = [3_000, 3_000, 600]  # whole as the update begins, then less
        if number == 5:
            memory.limits = [3_000]
        update(engine, number, memory=memory)
        update(plain, number)
        sizes.append(engine.micro_batches.size)
    assert sizes == [8, 8, 8, 4, 4, 8]
    assert engine.micro_batches.short_of_memory == {"passes of 4 samples": 2}
    for name, weight in plain.model.state_dict().items():
        assert torch.allclose(weight, engine.model.state_dict()[name], rtol=1e-5, atol=1e-7)


def test_a_limit_that_falls_in_a_backward_pass_is_noticed_there():
    engine, memory = guarded(Waves(), band_limits=False)
    memory.limits = [3_000] * 3
    for number in range(3):
        update(engine, number, memory=memory)
    forward = sum(next(part.children(), None) is None for part in engine.model.modules())
    memory.limits = [3_000] * (1 + forward) + [600]  # as the update begins, in each layer, and then less
    update(engine, 3, memory=memory)
    assert engine.micro_batches.short_of_memory == {"passes of 4 samples": 1}


class Filling(Memory):
    """Memory that is taken layer by layer, in a pass whose peak nobody has measured."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def free_bytes(self) -> int:
        return 450 * MIB - self.own_bytes()

    def own_bytes(self) -> int:
        return IDLE + self.taken * MIB

    def release(self) -> None:
        self.taken = 0


def test_the_first_pass_stops_where_another_layer_like_the_last_would_not_fit():
    memory = Filling()
    guard = MemoryGuard(
        nn.Sequential(nn.ReLU(), nn.ReLU()),
        memory=memory,
        tuning=Tuning(),
        band_limits=False,
        clock=memory.clock,
    )
    memory.guard = guard
    assert guard.begin(BATCH, num_samples=BATCH).micro_batch_size == BATCH
    with pytest.raises(ShortOfMemory):
        for _ in range(10):
            guard._model(torch.zeros(1))
            memory.taken += 100
    assert memory.own_bytes() == 400 * MIB  # of 450, and each layer has taken 100
    assert guard.begin(BATCH, num_samples=BATCH, failed=[guard.setting]).micro_batch_size < BATCH


def test_a_limit_that_goes_on_falling_is_not_waited_for():
    engine, memory = guarded(Waves(), band_limits=False)
    sizes = []
    for number, limit in enumerate((3_000, 3_000, 3_000, 1_060, 1_010, 960, 960)):
        memory.limits = [limit]  # passes of 8 samples take 900, and 18 in reserve
        update(engine, number, memory=memory)
        sizes.append(engine.micro_batches.size)
    assert sizes == [8, 8, 8, 8, 8, 4, 8]


class Alone(Waves):
    """One sample a pass, behind a BatchNorm: nothing is computed again."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(1), *super().model())


def test_convolutions_are_limited_only_while_memory_is_short():
    engine, memory = guarded(Alone(), band_limits=True, micro_batch_size=1)
    kinds = []
    for number in range(6):
        memory.limits = [130] if number in {3, 4} else [3_000]
        update(engine, number, memory=memory)
        kinds.append(sum(isinstance(part, BandLimitedConv1d) for part in engine.model))
    assert kinds == [0, 0, 0, 2, 2, 0]
    assert list(engine.micro_batches.short_of_memory) == [
        "passes of 1 sample, convolutions without 75% of the spectrum"
    ]


def test_without_this_extension_a_limit_is_not_followed_which_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    workload = Waves()
    engine = TorchEngine(
        workload,
        workload.dataset(None, "train"),
        seed=1,
        micro_batch_size=BATCH,
        tuning=Tuning(),
        follow_memory="same_gradient",
    )
    assert engine.micro_batches.guard is None
    assert "no extension here follows a limit of memory" in caplog.text


FREES_AMID_WHAT_STAYS = """
import json, sys
import torch
from daybreak.extensions.memory_limits.memory_guard import HostMemory

memory = HostMemory()
if sys.argv[1] == "at once":
    memory.give_back_at_once()
before = memory.own_bytes()
blocks = [torch.ones(100_000) for _ in range(400)]
last = torch.ones(100_000)
full = memory.own_bytes()
blocks.clear()
print(json.dumps([full - before, memory.own_bytes() - before]))
"""


@pytest.mark.slow
def test_freed_memory_is_given_back_although_what_stays_lies_behind_it():
    grown = {}
    for how in ("by default", "at once"):
        process = subprocess.run(
            [sys.executable, "-c", FREES_AMID_WHAT_STAYS, how],
            capture_output=True,
            check=True,
            env={"MALLOC_MMAP_THRESHOLD_": str(MIB)},
        )
        grown[how] = json.loads(process.stdout)
    assert all(full > 150 * MIB for full, _ in grown.values())
    assert grown["at once"][1] < 20 * MIB  # some of it is torch's own
    assert grown["by default"][1] > 100 * MIB  # so that it matters
