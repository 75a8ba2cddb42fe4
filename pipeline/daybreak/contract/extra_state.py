"""Makes tensors of what modules keep beside tensors, so that checkpoints and versions hold it.

A module may say by `get_extra_state` what it keeps besides parameters and buffers, such as a count or a list
of names. In the state of a model that is a tensor of bytes, which are JSON.
"""

import json
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import ParamsError

if TYPE_CHECKING:
    from torch import nn

SUFFIX = "_extra_state"  # of its names in the state of a model, as torch has it


def as_tensors(model: "nn.Module") -> "nn.Module":
    """Returns the model, in whose state all that its modules keep is a tensor."""
    from torch import Tensor

    names = {name for name, value in model.state_dict().items() if not isinstance(value, Tensor)}
    if not names:
        return model

    def encode(module: Any, state: dict[str, Any], prefix: str, local: Any) -> None:
        state.update({name: _bytes_of(name, state[name]) for name in names})

    def decode(module: Any, state: dict[str, Any], *others: Any) -> None:
        state.update({name: json.loads(bytes(state[name].tolist())) for name in names & state.keys()})

    model.register_state_dict_post_hook(encode)  # type: ignore[no-untyped-call]
    model.register_load_state_dict_pre_hook(decode)  # type: ignore[no-untyped-call]
    return model


def _bytes_of(name: str, value: Any) -> Any:
    """Returns the JSON of a value as a tensor; raises ParamsError where it would not come back the same."""
    import torch

    try:
        text = json.dumps(value)
        is_same = bool(json.loads(text) == value)
    except (TypeError, ValueError):
        is_same = False
    if not is_same:
        raise ParamsError(
            f"the model's state has {name}, which is a {type(value).__name__} that JSON does not give back "
            f"unchanged; return numbers, texts, lists and dicts from get_extra_state, or keep it in a buffer "
            f"(key workload)"
        )
    return torch.tensor(list(text.encode()), dtype=torch.uint8)
