"""Defines what is trained, a `Workload`: all that a user writes, beside two lines of params.yaml.

A sample is the unit of everything: of the loss, of the score, of progress (`seen`). A batch is
whatever the dataset makes of a list of samples: a tensor, or a dict or tuple of tensors whose first
dimension is the sample.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

Split = Literal["train", "test", "serve"]
Batch = Any


class Workload(Protocol):
    """What to train. Loss and score return one value per sample; only the caller averages.

    A workload may also have, and the evaluator then uses:

        metrics(model, batch) -> dict[str, Tensor]      more per-sample metrics, shape [b]
        slices(batch) -> dict[str, Tensor]              boolean masks, shape [b]
        baselines(folder) -> dict[str, Tensor]          scores of simple rules on the test split, [n]

    One that serves users online has both of these, where `samples` is `dataset(folder, "serve")`, opened over
    all that is known by now (pipeline/serving/answers.py):

        recommend(model, samples, users, top) -> list[list[str]]    items for each user, best first
        popular(samples, top) -> list[str]                          items for users that are not known
        likely(samples, num) -> list[str]                           users who will come first (optional)

    `users` are names as the source has them; the list of an unknown user is empty. The answer to a user must
    depend on nothing but model and samples, so that it may be cached, and the answer for fewer items must be
    the head of the answer for more. Offline and online must agree: on a day that the split `test` has,
    `score` is of the ranking that `recommend` would have given before that day.

    A dataset may have `__getitems__(indices) -> batch`, which is then called instead of `__getitem__` and
    torch's default collation; indices are a list, a range or an int64 array. It may have `block`: that many
    neighbours are then trained on near each other, since they are read together
    (pipeline/training/sample_order.py).
    """

    def dataset(self, folder: Path, split: Split) -> "Dataset[Any]":
        """Returns a map-style dataset over the arrays in `folder` (see pipeline/data/prepare.py)."""

    def model(self) -> "nn.Module":
        """Returns a new model, initialised from torch's global seed."""

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer":
        """Returns the optimizer; the trainer sets its learning rate at each update."""

    def loss(self, model: "nn.Module", batch: Batch) -> "Tensor":
        """Returns the loss of each sample, shape [b], not reduced."""

    def score(self, model: "nn.Module", batch: Batch) -> "Tensor":
        """Returns the score of each sample, shape [b]; higher is better."""
