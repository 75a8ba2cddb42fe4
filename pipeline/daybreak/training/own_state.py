"""Keeps the state that a workload has beside its model in checkpoints: `state_dict()` of the class.

It may be of numbers, texts, lists, dicts and tensors, such as a memory of hard negatives or a count. It is of
training alone: a version that serves does not have it.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.training.checkpoint import pack, unpack

CPU = torch.device("cpu")


def keeps_state(workload: Any) -> bool:
    """Returns whether a workload keeps state beside its model, so that it trains with one worker.

    Several workers see different samples, and each would have a different state. Raises ParamsError where
    the class could not take its state back.
    """
    if not hasattr(workload, "state_dict"):
        return False
    if not hasattr(workload, "load_state_dict"):
        raise ParamsError(
            f"{type(workload).__name__} has state_dict and no load_state_dict(state), which takes that back "
            f"after a kill; add it"
        )
    return True


def pack_own_state(workload: Any, *, device: torch.device = CPU) -> tuple[dict[str, Tensor], Any]:
    """Returns the tensors of a workload's state, and the tree that they are the leaves of; None without one.

    `device` is that of the model. Raises ParamsError for a value that would come back as another.
    """
    if not keeps_state(workload):
        return {}, None
    state = workload.state_dict()
    if wrong := _not_kept(state):
        raise ParamsError(
            f"{type(workload).__name__}.state_dict has a value that no checkpoint can hold ({wrong}); return "
            f"numbers, texts, lists, tuples, tensors, and plain dicts whose keys are numbers or texts"
        )
    tensors, tree = pack(state)
    apart = [name for name, tensor in tensors.items() if tensor.device.type != device.type]
    return tensors, {"tree": tree, "apart": apart}


def load_own_state(
    workload: Any, tensors: dict[str, Tensor], packed: Any, *, device: torch.device = CPU
) -> None:
    """Gives a workload its state back: on the model's device, but for what was not there before."""
    if packed is not None:
        placed = {
            name: each if name in packed["apart"] else each.to(device) for name, each in tensors.items()
        }
        workload.load_state_dict(unpack(placed, packed["tree"]))


def _not_kept(value: Any) -> str:
    """Returns what in a value would come back as another, such as a Counter; "" for nothing."""
    if value is None or isinstance(value, Tensor | bool | int | float | str):
        return ""
    if type(value) in (dict, OrderedDict):
        wrong = next((key for key in value if not isinstance(key, bool | int | float | str)), "")
        if wrong != "":
            return f"a key {wrong!r}"
        value = list(value.values())
    if type(value) not in (list, tuple):
        return f"a {type(value).__name__}"
    return next(filter(None, map(_not_kept, value)), "")
