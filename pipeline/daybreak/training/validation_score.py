"""Scores the samples that a run is validated on, as the gate will judge the model.

That is by the first metric of the class, which decides, if it has values of single samples. Where it is a
metric of a set, such as the area under a curve, or the class names none, it is by `score`.
"""

from typing import TYPE_CHECKING, Any

import torch

from daybreak.contract.errors import ParamsError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from daybreak.contract.workload import Batch


def validation_score(workload: Any, model: "nn.Module", batch: "Batch") -> "Tensor":
    """Returns the score of each sample, shape [b]; higher is better.

    Raises ParamsError where the metric is of a prediction that the class does not make.
    """
    metrics = getattr(workload, "metrics", ())
    label = getattr(getattr(workload, "table", None), "label", None)
    if metrics and not callable(metrics) and label:
        metric, predicted = metrics[0], workload.predict(model, batch)
        if metric.prediction not in predicted:
            raise ParamsError(
                f"the metric {metric.name} is of {metric.prediction!r}, but `predict` of "
                f"{type(workload).__name__} returns {', '.join(sorted(predicted))}; name one of these in its "
                f"`prediction`"
            )
        values = metric.sample_values(
            predicted[metric.prediction].cpu().numpy(), batch[label.column].cpu().numpy()
        )
        if values is not None:
            return torch.from_numpy(values if metric.higher_is_better else -values)
    scores: Tensor = workload.score(model, batch)
    return scores
