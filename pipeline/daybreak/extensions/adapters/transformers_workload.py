"""The base class of workloads whose model is a PreTrainedModel of Hugging Face's transformers.

class Topics(TransformersWorkload):
    table = Table(...)
    metrics = (LogLoss(), AUC())
    collator = DataCollatorWithPadding(TOKENIZER)

    def features(self, rows, state, past): return {"input_ids": ..., "attention_mask": ...}
    def model(self, state): return BertForSequenceClassification(BertConfig(...))

Their Trainer is not used: `transformers` itself is imported by the class of the team alone.
"""

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import Batch, TrainingProgress
from daybreak.extensions.adapters.mean_loss import MeanLossWorkload


class TransformersWorkload(MeanLossWorkload):
    """A workload over the rows of a table, whose model computes its own loss from `labels`.

    Attributes:
        collator: makes the model's inputs of the samples of a batch, dicts of tensors; None: they stay as
            they are.
    """

    collator: ClassVar[Any] = None

    def inputs(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Returns the arguments of the model: features that it has a parameter for, and the label."""
        wanted = inspect.signature(_base(model).forward).parameters
        inputs = {name: _integers(values) for name, values in batch.items() if name in wanted}
        label = self.table.label.column if self.table.label else ""
        if label in batch:
            inputs["labels"] = _integers(batch[label])
        if not inputs:
            raise ParamsError(
                f"{type(self).__name__}.features returns {', '.join(batch)}, and "
                f"{type(_base(model)).__name__} takes {', '.join(wanted)}; name features as it does"
            )
        if self.collator is None:
            return inputs
        device = next(iter(inputs.values())).device
        on_cpu = [values.cpu() for values in inputs.values()]  # where collators work, and make new tensors
        samples = [dict(zip(inputs, values, strict=True)) for values in zip(*on_cpu, strict=True)]
        made = self.collator(samples)
        return {name: each.to(device) if isinstance(each, Tensor) else each for name, each in made.items()}

    def returned_loss(self, model: nn.Module, batch: Batch, progress: TrainingProgress) -> Tensor:
        """Returns the loss that the model computes."""
        loss = getattr(model(**self.inputs(model, batch)), "loss", None)
        if not isinstance(loss, Tensor):
            raise ParamsError(
                f"{type(_base(model)).__name__} returns no loss; take a class that has one, such as "
                f"...ForSequenceClassification, and give the table a label, or `labels` among its features"
            )
        return loss

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the number, the chance of yes, or the chances of the classes, from the logits."""
        logits: Tensor = model(**self.inputs(model, batch)).logits
        if logits.ndim != 2:
            raise ParamsError(
                f"the logits have shape {list(logits.shape)}, of which no prediction of a sample follows; "
                f"write {type(self).__name__}.predict"
            )
        if logits.shape[1] == 1:
            return {"prediction": logits[:, 0]}
        chances = logits.softmax(dim=1)
        return {"prediction": chances[:, 1] if logits.shape[1] == 2 else chances}


def _base(model: nn.Module) -> nn.Module:
    """Returns the model itself, without what peft wraps around it."""
    base: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    return base


def _integers(values: Tensor) -> Tensor:
    """Returns whole numbers, which are kept in few bytes, as models index by them."""
    return values if values.is_floating_point() else values.long()
