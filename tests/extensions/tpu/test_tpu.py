"""On a TPU a model learns as on any device. Needs torch_xla, and the torch that torch_xla was built for.

Where there is none, the processor plays the four chips of one machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.contract.record_parts import Tuning
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.tuning import tensors
from tests.fakes import LineWorkload, write_curve

pytest.importorskip("torch_xla", reason="torch_xla 2.9 needs torch 2.9, and this environment has 2.13")


@pytest.fixture(autouse=True)
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The processor plays the chips where there are none."""
    monkeypatch.setenv("PJRT_DEVICE", os.environ.get("PJRT_DEVICE", "CPU"))
    monkeypatch.setenv("CPU_NUM_DEVICES", os.environ.get("CPU_NUM_DEVICES", "4"))
    yield
    torch.use_deterministic_algorithms(False)


def trained(engine: TorchEngine, batches: list[range], *, after: int = 0) -> list[float]:
    losses = []
    for number, batch in enumerate(batches, after + 1):
        share = np.arange(batch.start, batch.stop)
        engine.prepare(share)
        rate = 0.1 / number
        losses.append(engine.step(share, batch_size=len(batch), rate=rate, signals=Signals()).loss)
    return losses


def engines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TorchEngine, TorchEngine]:
    from daybreak.extensions.tpu.tpu import TpuEngine

    write_curve(folder, num_samples=100)
    workload = LineWorkload(dropout=0.0)
    data = workload.dataset(folder, "train")
    on_chip = TpuEngine(workload, data, seed=1, micro_batch_size=8, tuning=Tuning())
    assert on_chip.device.type == "xla"
    monkeypatch.delenv("PJRT_DEVICE")
    return on_chip, TorchEngine(workload, data, seed=1, micro_batch_size=8, tuning=Tuning())


def test_the_samples_of_a_pass_are_divided_among_the_chips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch_xla
    import torch_xla.runtime as xr

    on_chip, _ = engines(tmp_path, monkeypatch)
    leaves = list(tensors(on_chip.accumulation._batch(np.arange(16))))
    shardings = {torch_xla._XLAC._get_xla_sharding_spec(leaf) for leaf in leaves}
    assert all(f"devices=[{xr.global_runtime_device_count()}" in each for each in shardings)


BATCHES = [range(n, n + 16) for n in range(0, 80, 16)] + [range(80, 99)]  # the last not even


def test_losses_and_weights_are_those_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_chip, on_cpu = engines(tmp_path, monkeypatch)
    assert trained(on_chip, BATCHES) == pytest.approx(trained(on_cpu, BATCHES), rel=1e-5)
    for name, weight in on_cpu.weights().items():
        torch.testing.assert_close(on_chip.weights()[name].cpu(), weight, rtol=1e-5, atol=1e-6)


def test_a_run_goes_on_elsewhere_from_a_checkpoint_of_the_chip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_chip, on_cpu = engines(tmp_path, monkeypatch)
    trained(on_chip, BATCHES[:3])
    state = on_chip.save()
    here = {part: {n: t.cpu().clone() for n, t in named.items()} for part, named in state.tensors.items()}
    on_cpu.load(type(state)(tensors=here, scalars=state.scalars))
    assert trained(on_chip, BATCHES[3:]) == pytest.approx(trained(on_cpu, BATCHES[3:]), rel=1e-5)


def test_an_update_compiles_nothing_new_whatever_its_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch_xla.debug import metrics

    on_chip, _ = engines(tmp_path, monkeypatch)
    trained(on_chip, [*BATCHES[:5], *BATCHES[:5]])
    metrics.clear_all()
    trained(on_chip, BATCHES[:5], after=10)
    assert not metrics.metric_data("CompileTime")
