"""Weights that a class gives a new model are in it, or the class is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import take_first_weights


class Pretrained:
    """Takes weights by name, and skips those that have no place."""

    def __init__(self, name: str) -> None:
        self._name = name

    def first_weights(self, model: nn.Module) -> None:
        model.load_state_dict({self._name: torch.full((1, 2), 3.0)}, strict=False)


class OfData(Pretrained):
    """Writes past what autograd counts."""

    def first_weights(self, model: Any) -> None:
        model.weight.data *= 0.5


@pytest.mark.parametrize("kind", [Pretrained, OfData])
def test_a_model_begins_with_the_weights_of_its_class(kind: Callable[[str], Any]) -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    take_first_weights(kind("weight"), model)
    assert not torch.equal(model.weight, before)


def test_weights_that_have_no_place_in_the_model_are_refused() -> None:
    with pytest.raises(ParamsError, match=r"Pretrained\.first_weights leaves the model as it was; see"):
        take_first_weights(Pretrained("base_model.model.weight"), nn.Linear(2, 1).to(torch.bfloat16))
