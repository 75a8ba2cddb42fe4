"""The base class of workloads whose model returns the mean loss of a batch, as other trainers want it.

The loss of each sample is then that of its pass. Weighed by their samples, passes and workers add up to the
gradient of the mean over the whole batch, as long as the mean is one of losses that are each of one sample;
`daybreak try` refuses another. What it costs: samples have no scores of their own by their loss, so that the
class needs metrics.
"""

from typing import ClassVar

from torch import Tensor, nn

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import Batch, TrainingProgress
from daybreak.training.tuning import tensors
from daybreak.workloads.table_workload import TableWorkload


class MeanLossWorkload(TableWorkload):
    """A workload over the rows of a table, whose model returns a mean loss."""

    loss_is_mean: ClassVar[bool] = True

    def returned_loss(self, model: nn.Module, batch: Batch, progress: TrainingProgress) -> Tensor:
        """Returns the loss of a batch as the model has it: a mean, or one a sample."""
        raise NotImplementedError

    def loss(  # type: ignore[override]
        self, model: nn.Module, batch: Batch, progress: TrainingProgress
    ) -> Tensor:
        """Returns the mean loss of the batch for each of its samples, shape [b]."""
        if not self.metrics:
            raise ParamsError(
                f"{type(self).__name__} names no metric, and the mean loss of a batch says nothing of single "
                f"samples, by which a model is judged; name one in `metrics`, such as LogLoss()"
            )
        loss = self.returned_loss(model, batch, progress)
        return loss if loss.ndim else loss.expand(len(next(tensors(batch))))
