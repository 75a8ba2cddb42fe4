"""Scores the samples that a run is validated on, as the gate will judge the model.

That is by the first metric of the class, which decides, if it has values of single samples. Where it is a
metric of a set, such as the area under a curve, or the class names none, it is by `score`. What `predict` and
metrics return is read as the gate reads it: a tensor alone is named `prediction`, and the labels of a table
without one are zeros.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from daybreak.contract.errors import ParamsError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from daybreak.contract.workload import Batch


def validation_score(workload: Any, model: "nn.Module", batch: "Batch") -> "Tensor":
    """Returns the score of each sample, shape [b]; higher is better.

    Raises ParamsError where the metric is of a prediction that the class does not make.
    """
    metrics, table = getattr(workload, "metrics", ()), getattr(workload, "table", None)
    if metrics and not callable(metrics) and table is not None:
        metric, made = metrics[0], workload.predict(model, batch)
        predicted = made if isinstance(made, Mapping) else {"prediction": made}
        if metric.prediction not in predicted:
            raise ParamsError(
                f"the metric {metric.name} is of {metric.prediction!r}, but `predict` of "
                f"{type(workload).__name__} returns {', '.join(sorted(predicted))}; name one of these in its "
                f"`prediction`"
            )
        guess = predicted[metric.prediction].cpu().numpy()
        true = batch[table.label.column].cpu().numpy() if table.label else np.zeros(len(guess))
        values = metric.sample_values(guess, true)
        if values is not None:
            values = np.ascontiguousarray(values, dtype=np.float64)  # bools and whole numbers have no minus
            return torch.from_numpy(values if metric.higher_is_better else -values)
    scores: Tensor = workload.score(model, batch)
    return scores
