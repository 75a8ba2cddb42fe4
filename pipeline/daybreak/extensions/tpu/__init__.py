"""Trains on TPUs."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daybreak.training.engine import TorchEngine
    from daybreak.training.recipe import Recipe


def engine(recipe: "Recipe", alive: Callable[[], None]) -> "Callable[..., TorchEngine] | None":
    """Returns the engine of a job on a machine with TPUs, as their runtime says; None elsewhere."""
    if not os.environ.get("PJRT_DEVICE"):
        return None
    from daybreak.extensions.tpu.tpu import TpuEngine

    return TpuEngine
