"""Carries what an optimizer keeps, such as moments, from the training of the champion to a warm start.

It lies beside the weights in the folder of a model. A warm start without it begins with moments of 0, whose
first updates are as large as those of new weights.
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.training.checkpoint import write_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from daybreak.training.updater import Updater

log = logging.getLogger(__name__)

TENSORS, TREE = "optimizer.safetensors", "optimizer.json"  # the first as in a checkpoint


def write(folder: Path, tensors: "dict[str, Tensor]", tree: Any) -> None:
    """Writes what the optimizers keep beside the weights of a model."""
    write_tensors(folder / TENSORS, tensors)
    (folder / TREE).write_text(json.dumps(tree))


def take_over(updater: "Updater", folder: Path) -> bool:
    """Loads the moments in the folder of a model into the optimizers; returns False where they do not fit."""
    from safetensors.torch import load_file

    if not (folder / TREE).exists():
        log.warning("the model in %s has no moments of its optimizer; beginning without", folder)
        return False
    fits = updater.carry(load_file(folder / TENSORS), json.loads((folder / TREE).read_text()))
    if not fits:
        log.warning(
            "the moments in %s are of another optimizer, or of other weights or options; beginning without",
            folder,
        )
    return fits
