"""What is measured and trained is the same on a CUDA device: `pytest -m gpu`."""

import itertools
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.profiling import memory, roofline
from daybreak.profiling.ab_timing import Variant
from daybreak.profiling.harness import Harness
from daybreak.profiling.timeline import timeline
from daybreak.registry import confined
from daybreak.training import checkpoint
from daybreak.training.checkpoint import TrainingState
from daybreak.training.checkpoint_saver import Saver
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from tests.fakes import LineWorkload, write_curve
from tests.training import nights
from tests.training.steps import steps
from tests.training.test_interrupted import SLOW, Killer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
WIDTH = 1 << 17
BATCH = 512
LAYER_BYTES = BATCH * WIDTH * 4  # 256 MiB of activations


@pytest.fixture
def folder(tmp_path) -> Path:
    write_curve(tmp_path, num_samples=BATCH)
    return tmp_path


def test_the_memory_of_a_step_grows_with_its_batch_and_holds_weights_gradients_and_moments(folder):
    probe = memory.Probe(
        workload=LineWorkload(width=WIDTH), folder=folder, batch_sizes=(64, 512), batch_size=512, seed=0
    )
    with memory.measuring(probe) as wait:
        peaks = wait()
    assert peaks.how == "torch.cuda.max_memory_allocated"
    few, many = peaks.step_bytes
    assert many - few > (512 - 64) * WIDTH * 4
    assert few > 4 * 53 * WIDTH * 4  # a table of 50 rows, a weight and a bias in and a weight out, four times
    assert many < peaks.room_bytes == torch.cuda.get_device_properties(0).total_memory


def test_operators_of_a_step_run_on_the_device_and_count_its_products(folder):
    harness = Harness(LineWorkload(width=WIDTH), folder, seed=0)
    harness.build()
    batches = [harness.load(BATCH) for _ in range(3)]
    assert all(batch["x"].is_cuda for batch in batches)
    flops = sum(operator.flops for operator in harness.operators(batches, BATCH))
    forward = 2 * BATCH * WIDTH * 2  # into the hidden layer and out of it
    backward = forward + 2 * BATCH * WIDTH  # weights of both, and what went into the second
    assert flops == pytest.approx(forward + backward, rel=0.01)


def test_ceilings_are_those_of_an_accelerator(folder):
    measured = roofline.measure(folder)
    assert not measured.on_cpu
    assert measured.flops_per_s == measured.bfloat16_flops_per_s > measured.float32_flops_per_s > 1e12
    assert measured.copy_bytes_per_s > 1e11
    assert measured.gathers[0].bytes_per_s < measured.copy_bytes_per_s


@pytest.mark.parametrize("sparse", [False, True])
def test_pinned_batches_read_ahead_change_nothing(folder, sparse):
    plain = steps(folder, sparse=sparse, tuning=Tuning()).model.state_dict()
    tuned = steps(folder, sparse=sparse, tuning=Tuning(pinned=True, num_loaders=2)).model.state_dict()
    for name, weight in plain.items():
        assert weight.is_cuda
        torch.testing.assert_close(tuned[name], weight, rtol=1e-4, atol=1e-5)


def test_products_in_bfloat16_learn_weights_in_float32(folder):
    plain = steps(folder, tuning=Tuning()).model.state_dict()
    tuned = steps(folder, tuning=Tuning(precision="bfloat16", fused=True)).model.state_dict()
    for name, weight in plain.items():
        assert tuned[name].dtype == torch.float32
        torch.testing.assert_close(tuned[name], weight, rtol=0.1, atol=0.1)


def test_short_of_memory_passes_are_halved_and_the_gradient_is_that_of_the_whole_batch(folder):
    whole = engine(folder, shrunk=[])
    update(whole, BATCH)
    expected = gradients(whole)
    whole.close()
    del whole
    torch.cuda.empty_cache()

    shrunk: list[int] = []
    made = engine(folder, shrunk=shrunk)
    room = torch.cuda.memory_reserved() + 4 * 53 * WIDTH * 4 + 2 * LAYER_BYTES
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    try:
        update(made, BATCH)  # of a whole batch, linear, tanh and their gradients would be four layers
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert shrunk
    assert shrunk == [BATCH >> halved for halved in range(1, len(shrunk) + 1)]
    for name, gradient in gradients(made).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(pinned=True, num_loaders=2)])
def test_a_step_on_the_device_ends_before_the_next_begins(folder, tuning):
    workload = LineWorkload(width=WIDTH)
    way = Variant(tuning=tuning, batch_size=32, micro_batch_size=32)
    updates = timeline(workload, workload.dataset(folder, "train"), TrainParams(), way, update_s=0.01)
    assert min(min(row) for row in updates) == 0
    assert all(
        load_start <= load_end <= step_start <= step_end
        for load_start, load_end, step_start, step_end in updates
    )
    assert all(row[3] <= later[2] for row, later in itertools.pairwise(updates))


def engine(folder: Path, *, shrunk: list[int]) -> TorchEngine:
    workload = LineWorkload(width=WIDTH, dropout=0.0)
    return TorchEngine(
        workload,
        workload.dataset(folder, "train"),
        seed=1,
        micro_batch_size=BATCH,
        tuning=Tuning(),
        on_shrink=shrunk.append,
    )


def update(made: TorchEngine, batch_size: int) -> None:
    made.step(np.arange(batch_size), batch_size=batch_size, rate=0.1, signals=Signals())


def gradients(made: TorchEngine) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in made.model.named_parameters() if p.grad is not None}


def test_a_checkpoint_is_of_the_weights_as_they_were_when_it_was_begun(tmp_path):
    weights, taken = torch.ones(1 << 24, device="cuda"), torch.tensor(3.0)
    saver = Saver(tmp_path, identity="job", every_s=1.0, mean_time_to_loss_s=None, clock=time.monotonic)
    for seen in (1, 2):  # the second time into the memory that is kept
        weights.fill_(seen)
        saver.begin(
            TrainingState(tensors={"model": {"w": weights, "t": taken}}), seen=seen, began=time.monotonic()
        )
        weights.fill_(9.0)
        saver.wait()
        path = checkpoint.newest(tmp_path, identity="job")
        assert path
        saved = checkpoint.load(path).tensors["model"]
        assert saved["t"] == 3
        assert bool((saved["w"] == seen).all())


@pytest.fixture
def surroundings():
    with nights.surroundings():
        yield


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, torch.Tensor]:
    """The weights of a job on one worker that nothing happened to."""
    with nights.surroundings():
        nights.lay_out(tmp_path_factory.mktemp("alone"))
        training = nights.train(nights.night(), nights.make_params(dropout=0.0, **SLOW))
        assert training.device == torch.cuda.get_device_name()
        return nights.weights()


def test_a_job_killed_at_any_moment_ends_as_one_left_alone(tmp_path, alone, surroundings):
    nights.lay_out(tmp_path)
    killer = Killer("worker", "torchrun", "all")
    training = nights.train(nights.night(), nights.make_params(dropout=0.0, **SLOW), between=killer)
    assert not killer.victims
    assert (training.num_samples, training.num_updates, training.stopped_by) == (3001, 94, "finished")
    for name, weight in nights.weights().items():
        torch.testing.assert_close(weight, alone[name], rtol=1e-5, atol=1e-6)


def test_workers_that_share_a_gpu_train_the_model_of_one(tmp_path, alone, surroundings):
    nights.lay_out(tmp_path)
    number = torch.cuda.device_count() + 1
    training = nights.train(nights.night(), nights.make_params(num_workers=number, dropout=0.0))
    assert training.device == f"{number} x {torch.cuda.get_device_name()}"
    for name, weight in nights.weights().items():
        torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)


def test_code_of_a_version_computes_on_the_device_though_it_is_confined(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch; weight = torch.ones(64, 64, device='cuda'); print(float((weight @ weight).sum()))"
    )
    command = confined.command(script, reads=[tmp_path])
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{64.0**3}\n", 0), done.stderr
