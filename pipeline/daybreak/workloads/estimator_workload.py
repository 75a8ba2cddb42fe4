"""The base class of workloads whose model is no network: LightGBM, XGBoost, or of scikit-learn.

class Late(EstimatorWorkload):
    table = Table(...)
    metrics = (LogLoss(), AUC())

    def estimator(self, state): return LGBMClassifier(num_leaves=31, learning_rate=0.1)

`train.epochs` is the number of trees: a tree is an update of all samples (daybreak/training/estimators.py).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from daybreak.contract.errors import DataError, ParamsError, PipelineError
from daybreak.contract.table import Bool, Int
from daybreak.contract.workload import Batch, State
from daybreak.training.estimators import library_of
from daybreak.training.fit import FitData
from daybreak.workloads import columns
from daybreak.workloads.columns import CATEGORIES, MISSING, NUMBERS, WORDS
from daybreak.workloads.table_workload import TableWorkload

if TYPE_CHECKING:
    import ibis.expr.types as ir
    import pyarrow as pa
    from numpy.typing import NDArray

    from daybreak.data.features import Past

MOST_COUNTED = 200  # words of a text, each an input


class EstimatorModel(nn.Module):
    """A fitted estimator as a module without parameters, whose state is the bytes of its library's format."""

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator, self.library = estimator, library_of(estimator)
        self.load(b"")

    def get_extra_state(self) -> Tensor:
        """Returns the bytes, as `state_dict` has them."""
        return torch.from_numpy(np.frombuffer(self.content, dtype=np.uint8).copy())

    def set_extra_state(self, state: Tensor) -> None:
        """Takes the bytes over, and loads what predicts by them."""
        self.load(state.numpy().tobytes())

    def load(self, content: bytes) -> None:
        """Takes over a model in the format of the library, or none where the content is empty.

        Raises DataError where the library cannot read the content.
        """
        self.content = content
        try:
            self._predict = self.library.load(content) if content else None
        except (PipelineError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 a library's own, for a file of another one or a damaged one
            message = " ".join(str(error).split())[:300]
            raise DataError(
                f"the model does not fit {type(self.estimator).__name__}, or is damaged: {message}; restore "
                f"the class that trained it, or train again"
            ) from None

    def forward(self, inputs: "NDArray[Any]") -> Tensor:
        """Returns predictions of inputs [b, inputs]: [b], or the chances of classes, [b, classes]."""
        assert self._predict is not None
        return torch.from_numpy(np.ascontiguousarray(self._predict(inputs)))


class EstimatorWorkload(TableWorkload):
    """A workload over the rows of a table, whose model is an estimator, such as trees.

    Its `loss` is the first metric that has values of single samples. Its `weights`, where it has them, weigh
    the loss of each sample in the fit.
    """

    def estimator(self, state: State) -> Any:
        """Returns a new estimator of LightGBM, XGBoost or scikit-learn."""
        raise NotImplementedError(
            f"{type(self).__name__} has no estimator(self, state); return one, such as LGBMClassifier()"
        )

    def fit(self, rows: "ir.Table") -> State:
        """Returns the values of each category and the words of each text, most frequent first."""
        return columns.vocabularies(rows, self.table)

    def features(self, rows: "pa.Table", state: State, past: "Past") -> "Mapping[str, NDArray[Any]]":
        """Returns numbers and categories by the types of the columns, and the hour and the weekday."""
        return columns.by_type(rows, state, self.table, clock=columns.hour_and_weekday)

    def inputs(self, batch: Batch) -> "tuple[NDArray[Any], range]":
        """Returns the inputs [b, inputs] of a batch, nan for what is missing, and which are categories.

        Of a text, the most frequent words of all rows are counted.
        """
        numbers = batch[NUMBERS].masked_fill(batch[MISSING], torch.nan)
        if WORDS in batch:
            numbers = torch.cat([numbers, _counted(batch[WORDS])], dim=1)
        known = batch[CATEGORIES]
        places = known.to(torch.float32).masked_fill(known == 0, torch.nan)
        every = torch.cat([numbers, places], dim=1).numpy()
        return every, range(numbers.shape[1], every.shape[1])

    def fit_data(self, batch: Batch) -> FitData:
        """Returns what an estimator is fitted on."""
        assert self.table.label is not None
        inputs, categorical = self.inputs(batch)
        label = batch[self.table.label.column].numpy()
        return FitData(
            inputs=inputs,
            categorical=categorical,
            label=label,
            num_classes=self._num_classes(label),
            weight=self._weight(batch, len(label)),
        )

    def _weight(self, batch: Batch, num: int) -> "NDArray[np.float64] | None":
        """Returns the weight of each sample by the class's `weights`, None where it has none."""
        weights: Any = getattr(self, "weights", None)
        if not callable(weights):
            return None
        made = np.asarray(weights(lambda name: batch[name].numpy()), dtype=np.float64)
        if made.shape != (num,) or not np.isfinite(made).all() or (made < 0).any() or not made.any():
            raise ParamsError(
                f"{type(self).__name__}.weights of {num:,} samples have shape {list(made.shape)}, or values "
                f"that are none, or are all 0; return a finite number from 0 on for each"
            )
        return made

    def _num_classes(self, label: "NDArray[Any]") -> int:
        """Returns the classes of the label, 0 where it is a number."""
        assert self.table.label is not None
        column = self.table.columns[self.table.label.column]
        if self.table.label.classes or isinstance(column, Bool):
            return len(self.table.label.classes) or 2
        if not isinstance(column, Int):
            return 0
        return int(label.max() if column.max is None else column.max) + 1

    def model(self, state: State) -> EstimatorModel:
        """Returns the estimator, not yet fitted, as a module."""
        return EstimatorModel(self.estimator(state))

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the number, the chance of yes, or the chances of the classes."""
        return {"prediction": model(self.inputs(batch)[0])}

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the first metric that has values of single samples, the lower the better, shape [b]."""
        assert self.table.label is not None
        predicted, label = self.predict(model, batch), batch[self.table.label.column].numpy()
        for metric in self.metrics:
            values = metric.sample_values(predicted[metric.prediction].numpy(), label)
            if values is not None:
                return torch.from_numpy(-values if metric.higher_is_better else values)
        raise ParamsError(
            f"{type(self).__name__} names no metric of single samples, by which training is validated; name "
            f"one in `metrics`, such as LogLoss()"
        )


def _counted(words: Tensor) -> Tensor:
    """Returns how often each of the first words that are known stands in texts, [b, t * MOST_COUNTED]."""
    words = words.masked_fill(words > MOST_COUNTED, 0).long()
    counts = torch.zeros(*words.shape[:2], MOST_COUNTED + 1).scatter_add_(2, words, torch.ones(words.shape))
    return counts[:, :, 1:].flatten(1)
