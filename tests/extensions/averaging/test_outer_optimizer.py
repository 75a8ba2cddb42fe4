"""The step by the average of workers, of a worker alone whose weight went from 1 to 0."""

import pytest
import torch
from torch import nn

from daybreak.extensions.averaging.outer_optimizer import OuterOptimizer
from daybreak.training.checkpoint import TrainingState
from daybreak.training.gradients import Signals
from daybreak.training.process_group import WorkerGroup


def moved(*, is_late: bool = False) -> tuple[nn.Linear, OuterOptimizer]:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    outer = OuterOptimizer(model, torch.optim.SGD(model.parameters()), group=WorkerGroup(), is_late=is_late)
    assert outer.anchor()
    nn.init.zeros_(model.weight)
    outer.count(8, batch_size=8)
    return model, outer


def test_the_step_goes_further_than_the_mean_change_by_its_momentum() -> None:
    model, outer = moved()
    outer.step(outer.send(Signals(), time_s=0.0))
    assert model.weight.item() == pytest.approx(1 - 0.7 * (1 + 0.9))
    assert outer.num_updates == 0


def test_a_late_average_is_taken_as_it_is() -> None:
    model, outer = moved(is_late=True)
    outer.step(outer.send(Signals(), time_s=0.0))
    assert model.weight.item() == 0.0


def test_momentum_and_an_average_on_its_way_are_saved_with_the_state() -> None:
    model, outer = moved()
    outer.step(outer.send(Signals(), time_s=0.0))
    outer.pending = outer.send(Signals(), time_s=0.0)
    state = TrainingState(tensors={}, scalars={})
    outer.save(state)
    other = OuterOptimizer(model, torch.optim.SGD(model.parameters()), group=WorkerGroup())
    other.load(state)
    again = TrainingState(tensors={}, scalars={})
    other.save(again)
    torch.testing.assert_close(again.tensors, state.tensors, rtol=0, atol=0)
    assert set(again.tensors) == {"outer", "late"}
