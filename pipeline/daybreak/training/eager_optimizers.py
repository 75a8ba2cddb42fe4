"""Lets torch's optimizers work without its compiler, which none of them needs here.

torch keeps methods of optimizers out of what it compiles, and imports its compiler for that at their first
call, which took more than torch itself: 3.5 s of CPU and 80 MiB beside 1.8 s and 221 MiB (torch 2.13,
2026-11-29). A tuning may compile the model, and never the optimizer. So these methods run without the
wrappers that know of the compiler, and do the same, bit for bit. What torch wraps otherwise is left alone.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

WRAPPED = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")


def without_compiler() -> None:
    """Takes the wrappers off torch's optimizers; call it before an optimizer is made."""
    for name in WRAPPED:
        setattr(Optimizer, name, inspect.unwrap(getattr(Optimizer, name)))
    for optimizer in vars(torch.optim).values():
        step = vars(optimizer).get("step") if isinstance(optimizer, type) else None
        if step and step.__code__.co_name == "_use_grad":  # not yet unwrapped, and no hooks are in it yet
            optimizer.step = _without_gradients(step.__wrapped__)


def _without_gradients(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the step as torch takes it: without gradients, unless the optimizer is differentiable."""

    @functools.wraps(step)
    def taken(self: Optimizer, *arguments: Any, **named: Any) -> Any:
        with torch.set_grad_enabled(self.defaults["differentiable"]):
            return step(self, *arguments, **named)

    return taken
