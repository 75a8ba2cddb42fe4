"""Checks params.yaml for what a class does not allow its workers: to be several, or to agree now and then."""

from typing import TYPE_CHECKING, Any, Literal

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import is_over_batch
from daybreak.training.recipe import Clipping

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import TrainParams

WHOLE = (
    "a class with several optimizers, trainable, get_extra_state, state_dict, whole_batch or batch_loss, or "
    "train.precision: float16,"
)


def expect_allowed(train: "TrainParams", *, whole: bool, one_worker: bool) -> None:
    """Raises ParamsError where workers are to be otherwise than a class wants them.

    They are to be `whole`, each with all of the model and in agreement at every update, or `one_worker`.
    """
    if not whole and not one_worker:
        return
    if train.threads == "auto" or train.sync not in ("every_update", "auto"):
        key = "threads: auto" if train.threads == "auto" else f"sync: {train.sync}"
        raise ParamsError(f"{WHOLE} does not go with train.{key}; leave that at its default")
    if one_worker and train.num_workers > 1:
        raise ParamsError(
            f"a class with state_dict or whole_batch trains with one worker, and train.num_workers is "
            f"{train.num_workers}; set that to 1, or write encode and batch_loss in place of whole_batch"
        )


def expect_calibrated(train: "TrainParams", workload: Any) -> None:
    """Raises ParamsError for a calibrator that would have no samples or labels to be fitted on."""
    if not getattr(workload, "calibrator", None):
        return
    table = getattr(workload, "table", None)
    if table and not table.label:
        raise ParamsError(
            f"{type(workload).__name__} has a calibrator, which is fitted by labels, and its table has "
            f"none; name the label, or leave calibrator out"
        )
    if not train.validation:
        raise ParamsError(
            f"{type(workload).__name__} has a calibrator, which is fitted on samples that are not trained "
            f"on, and train.validation is 0; set that to 0.1, or leave calibrator out"
        )


def expect_batches_alike(batch_by: Literal["samples", "tokens"], workload: Any) -> None:
    """Raises ParamsError where batches differ in size, and the loss of a sample with them."""
    if batch_by == "tokens" and is_over_batch(workload):
        raise ParamsError(
            f"the loss of {type(workload).__name__} is over a batch, and train.batch_by: tokens gives each "
            f"batch another number of samples to compare; set that to samples"
        )


def clipping_of(workload: Any, asked: Clipping, *, threads: Literal["fixed", "auto"]) -> Clipping:
    """Returns the limits of a gradient: those that params.yaml asks for, else those of the class.

    Raises ParamsError for those of a class that asynchronous workers, which divide batches, do not have.
    """
    if asked != Clipping():
        return asked
    norm, value = (getattr(workload, name, 0.0) for name in ("clip_norm", "clip_value"))
    own = Clipping(norm=norm, value=value)
    if own != Clipping() and threads == "auto":
        raise ParamsError(
            f"{type(workload).__name__} clips gradients, and train.threads: auto divides batches itself; "
            f"leave that key at its default"
        )
    return own
