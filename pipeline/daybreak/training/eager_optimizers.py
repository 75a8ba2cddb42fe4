"""Lets torch's optimizers work without importing torch's compiler.

torch keeps methods of optimizers out of what it compiles, and imports its compiler for that at their first
call, which took more than torch itself: 3.5 s of CPU and 80 MiB beside 1.8 s and 221 MiB (torch 2.13,
2026-11-29). A tuning may compile the model, and never the optimizer. So these methods run without the
wrappers that know of the compiler, and do the same, bit for bit. What torch wraps otherwise is left alone.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def without_compiler() -> None:
    """Takes the wrappers off torch's optimizers; call it before an optimizer is made."""
    for name in WRAPPED:
        method = getattr(Optimizer, name)
        if _is_wrapped_by(method, "torch/_compile.py"):
            setattr(Optimizer, name, method.__wrapped__)
    for optimizer in vars(torch.optim).values():
        step: Any = vars(optimizer).get("step") if isinstance(optimizer, type) else None
        if _is_wrapped_by(step, "torch/optim/optimizer.py", name="_use_grad"):  # no hooks are in it yet
            optimizer.step = _without_gradients(step.__wrapped__)


def _is_wrapped_by(method: Any, file: str, *, name: str = "") -> bool:
    """Returns whether a method is a wrapper of torch's, from that file and by that name."""
    code: Any = getattr(method, "__code__", None)
    return code is not None and code.co_filename.endswith(file) and name in ("", code.co_name)


def _without_gradients(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the step as torch takes it: without gradients, unless the optimizer is differentiable."""

    @functools.wraps(step)
    def taken(self: Optimizer, *arguments: Any, **named: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *arguments, **named)

    return taken
