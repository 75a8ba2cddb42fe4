"""Trains models whose weights do not fit one device, with a share of the weights on each worker."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybreak.training.engine import TorchEngine
    from daybreak.training.recipe import Recipe


def engine(recipe: "Recipe", alive: Callable[[], None]) -> "Callable[..., TorchEngine] | None":
    """Returns the engine of a job of several workers that share the weights; None for others."""
    if not recipe.tuning.sharded_weights or int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return None
    from daybreak.extensions.fsdp.fsdp import FsdpEngine

    return FsdpEngine
