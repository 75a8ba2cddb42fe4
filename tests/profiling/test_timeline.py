"""Loads and steps are seen where they ran: one after the other, ahead of the step, or not at all."""

import itertools
from pathlib import Path

import pytest
import torch

from daybreak.contract.record_parts import Tuning
from daybreak.contract.sections import TrainParams
from daybreak.profiling.ab_timing import Variant
from daybreak.profiling.timeline import timeline
from tests.fakes import LineWorkload, write_curve

DELAY_S = 0.02


def rows(folder: Path, *, batch_size: int = 16, micro_batch_size: int = 16, **tuning: object):
    write_curve(folder, num_samples=200)
    workload = LineWorkload(delay_s=DELAY_S)
    way = Variant(tuning=Tuning(**tuning), batch_size=batch_size, micro_batch_size=micro_batch_size)
    return timeline(workload, workload.dataset(folder, "train"), TrainParams(), way, update_s=DELAY_S)


@pytest.mark.slow
@pytest.mark.parametrize("num_loaders", [0, 1, 3])
def test_a_batch_is_loaded_before_its_step_and_steps_take_turns(tmp_path, num_loaders):
    updates = rows(tmp_path, num_loaders=num_loaders)
    assert min(min(row) for row in updates) == 0
    assert len(updates) == 10
    for load_start, load_end, step_start, step_end in updates:
        assert load_start + DELAY_S <= load_end <= step_start <= step_end
    ends = [row[3] for row in updates]
    assert all(end <= row[2] for end, row in zip(ends, updates[1:], strict=False))


@pytest.mark.slow
def test_without_loaders_a_load_waits_for_the_step_before(tmp_path):
    updates = rows(tmp_path)
    assert all(later[0] >= earlier[3] for earlier, later in itertools.pairwise(updates))


@pytest.mark.slow
def test_loaders_load_several_batches_at_once(tmp_path):
    # A busy machine may hold a thread back; without loaders at once, no try would show them.
    tries = (rows(tmp_path, num_loaders=3) for _ in range(5))
    assert any(all(row[0] < updates[0][1] for row in updates[:3]) for updates in tries)


def test_what_is_in_memory_takes_no_time_to_load(tmp_path):
    updates = rows(tmp_path, in_memory=True)
    assert all(load_start == load_end == step_start for load_start, load_end, step_start, _ in updates)


@pytest.mark.slow
def test_passes_of_an_update_are_one_load_and_one_step(tmp_path):
    updates = rows(tmp_path, micro_batch_size=5)
    assert len(updates) == 10
    # The first step begins once its first pass is there, the last pass is loaded later.
    assert all(load_end - load_start >= 4 * DELAY_S for load_start, load_end, _, _ in updates)


class Lazy(LineWorkload):
    def model(self):
        return torch.nn.LazyLinear(1)

    def loss(self, model, batch):
        return (model(batch["x"][:, None])[:, 0] - batch["y"]).square()


@pytest.mark.slow
def test_the_sample_that_a_lazy_module_gets_its_shape_from_is_of_no_update(tmp_path):
    write_curve(tmp_path, num_samples=200)
    way = Variant(tuning=Tuning(), batch_size=16, micro_batch_size=16)
    data = Lazy().dataset(tmp_path, "train")
    assert len(timeline(Lazy(), data, TrainParams(), way, update_s=1.0)) > 0


@pytest.mark.slow
def test_a_data_set_smaller_than_the_batch_is_one_update(tmp_path):
    assert len(rows(tmp_path, batch_size=500)) == 1
