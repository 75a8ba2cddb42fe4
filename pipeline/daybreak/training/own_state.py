"""Keeps the state that a workload has beside its model in checkpoints: `state_dict()` of the class.

It may be of numbers, texts, lists, dicts and tensors, such as a memory of hard negatives or a count. It is of
training alone: a version that serves does not have it.
"""

import json
from typing import Any

from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.training.checkpoint import pack, unpack


def pack_own_state(workload: Any) -> tuple[dict[str, Tensor], Any]:
    """Returns the tensors of a workload's state, and the tree that they are the leaves of; None without one.

    Raises ParamsError for a value that no checkpoint can hold.
    """
    if not hasattr(workload, "state_dict"):
        return {}, None
    tensors, tree = pack(workload.state_dict())
    try:
        json.dumps(tree)
    except TypeError as error:
        raise ParamsError(
            f"{type(workload).__name__}.state_dict has a value that no checkpoint can hold ({error}); return "
            f"numbers, texts, lists, dicts and tensors"
        ) from None
    return tensors, tree


def load_own_state(workload: Any, tensors: dict[str, Tensor], tree: Any) -> None:
    """Gives a workload its state back."""
    if tree is not None:
        workload.load_state_dict(unpack(tensors, tree))
