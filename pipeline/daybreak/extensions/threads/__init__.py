"""Trains by workers on the cores that other programs leave free, as many as there are at the moment."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybreak.training.engine import TorchEngine
    from daybreak.training.recipe import Recipe


def engine(recipe: "Recipe", alive: Callable[[], None]) -> "Callable[..., TorchEngine] | None":
    """Returns the engine of a job with `train.threads: auto`; None for others."""
    if recipe.threads != "auto":
        return None
    from daybreak.extensions.threads.asynchronous import AsynchronousEngine
    from daybreak.extensions.threads.free_cores import FreeCores

    return partial(AsynchronousEngine, cores=FreeCores())
