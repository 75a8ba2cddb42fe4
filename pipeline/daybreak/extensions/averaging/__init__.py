"""Trains by workers that agree on weights every few updates, for networks too slow for each gradient."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybreak.training.engine import TorchEngine
    from daybreak.training.recipe import Recipe


def engine(recipe: "Recipe", alive: Callable[[], None]) -> "Callable[..., TorchEngine] | None":
    """Returns the engine of a job whose workers agree every few updates; None for others."""
    if recipe.sync.every <= 1:
        return None
    from daybreak.extensions.averaging.local_sgd import LocalSgdEngine

    return partial(
        LocalSgdEngine,
        sync_every=recipe.sync.every,
        is_late=recipe.sync.is_late,
        try_after=ceil(recipe.rate.warmup * recipe.num_samples / recipe.batch_size)
        if recipe.sync_is_tried
        else None,
        alive=alive,
    )
