"""The base class of most workloads: a table, a model, a loss and a prediction; the rest has a default.

class Fraud(TableWorkload):
    table = Table(
        time="ts", unit="account",
        columns={"amount": Float(min=0), "mcc": Category(), "account": Id(), "ts": Time(),
                 "is_fraud": Int(min=0, max=1, nullable=True)},
        label=Label("is_fraud", ripe_after=days(14)),
    )
    metrics = (LogLoss(), AUC())

    def model(self, state): return TableModel(state)
    def loss(self, model, batch): return binary_cross_entropy(model(batch), batch["is_fraud"])
    def predict(self, model, batch): return {"prediction": model(batch)[:, 0].sigmoid()}
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Table
from daybreak.contract.workload import (
    GROUP,
    Batch,
    Split,
    State,
    TrainingProgress,
    has_estimator,
    is_encoded,
    is_over_batch,
    loss_of,
)

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from daybreak.data.features import Past
    from daybreak.workloads.calibrators import Calibrator
    from daybreak.workloads.metrics import Metric
    from daybreak.workloads.samples import Samples


class TableWorkload:
    """A workload over the rows of a table, whose samples are rows with a label that is known.

    Attributes:
        table: what the rows are.
        metrics: of what `predict` returns; the first decides.
        calibrator: changes chances that `predict` returns, fitted on samples that were not trained on.
        group: column whose rows of one value are in the same batch, as the results of a search are that a
            loss over a batch ranks; "": rows are shuffled one by one.
        looks_back: how far `past` reaches back from the day of the rows.
        reaches_back: how far rows correct earlier ones, by `corrected(rows, later)`, which a workload where
            some do has (daybreak/data/corrections.py).
    """

    table: ClassVar[Table]
    metrics: "ClassVar[tuple[Metric, ...]]" = ()
    calibrator: "ClassVar[Calibrator | None]" = None
    group: ClassVar[str] = ""
    looks_back: ClassVar[timedelta] = timedelta()
    reaches_back: ClassVar[timedelta] = timedelta()

    def fit(self, rows: "ir.Table") -> State:
        """Returns what `features` and `model` need to know of the training rows, as arrays by name."""
        from daybreak.workloads import columns

        return columns.fitted(rows, self.table)

    def features(self, rows: "pa.Table", state: State, past: "Past") -> "Mapping[str, NDArray[Any]]":
        """Returns arrays of shape [len(rows), ...] by name, in training as in serving.

        `rows` are of one day and have no label; `past` has the days before (daybreak/data/features.py).
        """
        from daybreak.workloads import columns

        return columns.by_type(rows, state, self.table)

    def dataset(self, folder: Path, split: Split) -> "Samples":
        """Returns the samples of a split."""
        from daybreak.workloads.samples import Samples

        samples = Samples(folder, split)
        weights: Any = getattr(self, "weights", None)
        # No tensor of that name, which a loss may have, and none that weighs the fit of an estimator.
        if split != "serve" and callable(weights) and not has_estimator(self):
            samples.weights = weights(samples.column)
        group: Any = self.group  # a class may mean something else by it
        if split != "serve" and group and isinstance(group, str):
            samples.groups = samples.column(GROUP)
        return samples

    def model(self, state: State) -> "nn.Module":
        """Returns a new model, initialised from torch's global seed."""
        raise NotImplementedError(f"{type(self).__name__} has no model(self, state); return an nn.Module")

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        """Returns the optimizer; the trainer sets its learning rate."""
        import torch

        return torch.optim.AdamW(parameters, weight_decay=1e-4)

    def loss(self, model: "nn.Module", batch: Batch) -> "Tensor":
        """Returns the loss of each sample, shape [b]."""
        if is_encoded(self) or (hasattr(self, "encode") and hasattr(self, "batch_loss")):
            losses: Tensor = self.batch_loss(self.encode(model, batch))  # type: ignore[attr-defined]
            return losses
        raise NotImplementedError(
            f"{type(self).__name__} has no loss(self, model, batch); return one a sample"
        )

    def predict(self, model: "nn.Module", batch: Batch) -> "dict[str, Tensor]":
        """Returns what users get, by name, each of shape [b, ...]; it may not look at the label."""
        raise NotImplementedError(
            f"{type(self).__name__} has no predict(self, model, batch); return a dict of tensors"
        )

    def score(self, model: "nn.Module", batch: Batch) -> "Tensor":
        """Returns minus the loss of each sample: what is compared where no metric is named."""
        from torch import Tensor

        if is_over_batch(self):
            raise ParamsError(
                f"the loss of {type(self).__name__} is over a batch, and a score is of a sample alone; name "
                f"metrics in the class, the first one of single samples, such as LogLoss(), or write a score"
            )
        losses: Any = loss_of(self, progress=AtTheEnd(done=1.0))(model, batch)
        if not isinstance(losses, Tensor):
            raise ParamsError(
                f"{type(self).__name__}.loss returns a loss for each optimizer, of which no score can be "
                f"made; name metrics in the class, the first one of single samples, such as LogLoss()"
            )
        return -losses


class AtTheEnd(TrainingProgress):
    """The progress for a score, which knows no more than that a run is done, and not how long it was."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("seen", "epoch", "update"):
            raise ParamsError(
                f"the loss reads progress.{name}, which is not known where its class scores by the loss; "
                f"read progress.done, or name metrics in the class, the first one of single samples"
            )
        return super().__getattribute__(name)
