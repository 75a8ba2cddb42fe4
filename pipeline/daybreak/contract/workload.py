"""Defines what is trained, a `Workload`: all that a user writes, beside two lines of params.yaml.

Most teams inherit from `TableWorkload` (daybreak/workloads/table_workload.py), which asks for a table, a
model, a loss and a prediction, and has the rest. This is what every workload comes to.

A sample is the unit of everything: of the loss, of the score, of progress (`seen`). A batch is
whatever the dataset makes of a list of samples: a tensor, or a dict or tuple of tensors whose first
dimension is the sample.
"""

import inspect
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from daybreak.contract.errors import ParamsError
from daybreak.contract.extra_state import as_tensors
from daybreak.contract.table import Table

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import Dataset

Split = Literal["train", "test", "serve"]
Batch = Any
State = Mapping[str, "NDArray[Any]"]  # what `fit` found, kept beside the weights as one file an array
EPOCH = date(1970, 1, 1)  # days are numbered from here in arrays
GROUP = "(group)"  # of the array with a number for each group of a class that says which column has them
UNIT = "(unit)"  # of the array that says which samples belong together; no column is named so
ARRAYS = Path("data/arrays")  # of a night, which its samples are read from
MAX_NAME = 200  # characters of a user or an item that a router serves
CALIBRATION = "daybreak_calibration"  # buffer of a model whose workload has a calibrator
STATE = "state"  # folder of the state, in that of arrays and in that of a model


@dataclass(frozen=True, kw_only=True)
class Window:
    """The days whose rows are samples, in order; none of `test` is before one of `train`."""

    train: tuple[date, ...]
    test: tuple[date, ...]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a workload made of all rows of the window at once."""

    arrays: "Mapping[str, NDArray[Any]]"  # become NAME.npy
    num_train: int  # samples
    num_test: int
    tables: "Mapping[str, pa.Table]" = field(default_factory=dict)  # become NAME.parquet
    facts: Mapping[str, int] = field(default_factory=dict)  # go to meta.json


@dataclass(frozen=True, kw_only=True)
class TrainingProgress:
    """Where a run is at an update; a `loss` that has an argument named `progress` gets it."""

    seen: int = 0  # samples trained on before, by all workers
    done: float = 0.0  # share of the run's samples, from 0 to 1
    epoch: int = 0
    update: int = 0  # its number, from 0
    generator: "torch.Generator | None" = None  # of the model's device, seeded for the update


class Workload(Protocol):
    """What to train. Loss and score return one value per sample; only the caller averages.

    A loss of a sample that depends on others of its batch, such as in-batch negatives, is declared, so that
    no pass and no worker takes a part of the batch for the whole:

        whole_batch: True                                     one pass, on one worker

    or by two methods beside `loss(model, batch)`, which then is `batch_loss(encode(model, batch))`, as that
    of a TableWorkload is by itself. Passes and workers encode parts of the batch, and the loss is over all of
    it; a class that has `whole_batch`, too, takes one pass:

        encode(model, batch) -> Tensor | dict[str, Tensor]    of each sample by itself, [b, ...]
        batch_loss(encoded) -> Tensor                         shape [b]

    Rows become arrays by one of two entry points. The first runs once for each partition, the second each
    night for the whole window:

        features(rows, state, past) -> dict[str, NDArray]     (daybreak/data/features.py), and if it needs one
        fit(rows) -> dict[str, NDArray]                       the state, from the training rows, an Ibis table
        arrays(rows, window) -> Prepared                      from the window's clean rows, an Ibis table

    A workload with neither reads the clean partitions in `dataset` by itself.

    Where later rows correct earlier ones, as returns do, both entry points get corrected rows
    (daybreak/data/corrections.py), by both of these:

        reaches_back: timedelta                               how far
        corrected(rows, later) -> pa.Table                    those of a partition's rows that stay

    A workload may also have, and the evaluator then uses:

        metrics(model, batch) -> dict[str, Tensor]      more per-sample metrics, shape [b]
        slices(batch) -> dict[str, Tensor]              boolean masks, shape [b]
        metric_slices: dict[str, str]                   metrics that are the mean of a slice, and which slice
        baselines(folder) -> dict[str, Tensor]          scores of simple rules on the test split, [n]

    One of a table may weigh its samples, by which they are drawn, where `column(name)` is an array of all:

        weights(column) -> NDArray                      shape [n], from 0 on

    It may say at each update which parameters are trained, by their `requires_grad`; others stay as they are:

        trainable(model, progress) -> None

    Where `train.schedule` is `own`, it gives the learning rate as a factor of `train.rate`, by the share of
    the samples that is done; it may ask for `model`, `num_updates` and `num_epochs` of the run, too:

        schedule(done) -> float

    It may limit the gradient where params.yaml does not, the norm of all or each number, as the keys do:

        clip_norm: float
        clip_value: float

    Its loss may be the mean over the samples of a pass, which each of them then has:

        loss_is_mean: bool

    It may give a new model weights that it does not begin with by itself, such as pretrained ones. Training
    calls this, and what serves does not, as a version has all weights:

        first_weights(model) -> None

    It may calibrate chances that it predicts (daybreak/workloads/calibrators.py):

        calibrator: Calibrator

    Training may tell it the length of the run, before the first update:

        know_run(*, num_updates, num_epochs) -> None

    Where its model was written for another trainer, it may say in sentences what of that is not kept, once
    the model has taken some updates in `daybreak try`:

        not_kept(model) -> Iterable[str]

    It may offer workloads that cost less, each under the name of a remedy: "simpler model", "fewer layers",
    "cheaper activation". The stage `profile` times them where `profile.quality_remedies` is `allow`, and a
    night trains the one that `workload.variant` in params.yaml names:

        variants() -> dict[str, Workload]

    It may show cards of its own, by their titles, on the page of a night (daybreak/report/cards.py):

        cards(night) -> dict[str, Any], or yields pairs

    One that serves users online has both of these, where `samples` is `dataset(folder, "serve")`, opened over
    all that is known by now (daybreak/extensions/router/answers.py):

        recommend(model, samples, users, top) -> list[list[str]]    items for each user, best first
        popular(samples, top) -> list[str]                          items for users that are not known
        likely(samples, num) -> list[str]                           users who will come first (optional)
        users(samples) -> Sequence[str]                             whose lists a night writes (optional)

    A workload of a table may name the rows that a night predicts (daybreak/batch_inference/predict.py), all
    that is known up to a day being in `past`:

        score_rows(day, past) -> pa.Table, or several in turn

    `users` are names as the source has them; the list of an unknown user is empty. Of longer lists the head
    is taken; names of users and items have at most 200 characters (`MAX_NAME`). The answer to a user must
    depend on nothing but model and samples, so that it may be cached, and the answer for fewer items must be
    the head of the answer for more. Offline and online must agree: on a day that the split `test` has,
    `score` is of the ranking that `recommend` would have given before that day.

    A dataset may have `__getitems__(indices) -> batch`, which is then called instead of `__getitem__` and
    torch's default collation; indices are a list, a range or an int64 array. It may have `block`: that many
    neighbours are then trained on near each other, since they are read together
    (daybreak/training/sample_order.py). It may have `weights`, by which samples are drawn, and `lengths`, by
    which those of a batch are alike, or `groups`, which are in a batch whole, arrays of shape [n]
    (daybreak/training/sampling.py); and
    `collate(samples) -> batch`, in place of torch's default collation. It may have `days`, the number of
    samples of each day in order (`{"2025-01-31": 4000}`), where a sample is made of nothing but its day's
    rows: what is parsed once is then kept over the nights (daybreak/training/column_files.py).
    """

    @property
    def table(self) -> Table:
        """What its rows are; an attribute of the class."""

    def dataset(self, folder: Path, split: Split) -> "Dataset[Any]":
        """Returns a map-style dataset over the arrays in `folder` (see daybreak/data/prepare.py).

        It has the attribute `state` where the model is made from it.
        """

    def model(self, state: State) -> "nn.Module":
        """Returns a new model, initialised from torch's global seed; the method need not take `state`."""

    def optimizer(self, parameters: "Iterable[nn.Parameter]") -> "Optimizer | Mapping[str, Optimizer]":
        """Returns the optimizer; the trainer sets its learning rate at each update.

        With an argument named `model` it gets the model in place of its parameters. It may return several by
        name, of different parameters; `loss` then may return a dict of the losses of those that step.
        """

    def loss(self, model: "nn.Module", batch: Batch) -> "Tensor":
        """Returns the loss of each sample, shape [b], not reduced.

        With an argument named `progress` it gets the TrainingProgress. Generators of torch, NumPy and Python
        are seeded for each update, so that what it draws is the same after a kill.
        """

    def score(self, model: "nn.Module", batch: Batch) -> "Tensor":
        """Returns the score of each sample, shape [b]; higher is better."""


def serves_rows(workload: Any) -> bool:
    """Returns whether a workload predicts raw rows: it has features, and a `predict` of its own."""
    stub = "TableWorkload.predict"
    name = getattr(getattr(workload, "predict", None), "__qualname__", stub)
    return hasattr(workload, "features") and name != stub


def predicts_nothing(workload: Any) -> str:
    """Returns why `predict` has nothing to write of a workload's versions; "" where they predict.

    >>> predicts_nothing(object()).partition(",")[0]
    'object predicts neither rows nor lists'
    """
    if serves_rows(workload) or all(hasattr(workload, name) for name in ("recommend", "popular", "users")):
        return ""
    return (
        f"{type(workload).__qualname__} predicts neither rows nor lists, and the stage predict would fail "
        f"each night once a version of it serves; give it `features` and `predict`, or `recommend`, "
        f"`popular` and `users`, or set predict.to: ''"
    )


def has_estimator(workload: Any) -> bool:
    """Returns whether a workload's model is no network: it has `estimator` (EstimatorWorkload)."""
    return hasattr(workload, "estimator")


def asks_progress(workload: Any) -> bool:
    """Returns whether the loss of a workload gets the progress of the run."""
    return "progress" in inspect.signature(workload.loss).parameters


def thaws(workload: Any) -> bool:
    """Returns whether a workload says at each update which parameters are trained."""
    return hasattr(workload, "trainable")


def is_encoded(workload: Any) -> bool:
    """Returns whether the loss of a workload is over a batch whose samples are encoded one by one.

    Raises ParamsError where it has only one of the two methods for that.
    """
    if getattr(workload, "whole_batch", False):  # also where it inherits the two methods
        return False
    if hasattr(workload, "batch_loss") and not hasattr(workload, "encode"):
        raise ParamsError(
            f"{type(workload).__name__} has batch_loss and no encode(model, batch), which returns what the "
            f"loss compares; add it"
        )
    return hasattr(workload, "batch_loss")


def is_over_batch(workload: Any) -> bool:
    """Returns whether the loss of a sample may depend on the others of its batch."""
    return getattr(workload, "whole_batch", False) or is_encoded(workload)


def is_undivided(workload: Any) -> bool:
    """Returns whether a batch is taken in one pass, on one worker."""
    return is_over_batch(workload) and not is_encoded(workload)


def loss_of(workload: Any, *, progress: TrainingProgress) -> "Callable[[nn.Module, Batch], Tensor]":
    """Returns the loss of a workload at a progress, for which its method need not ask."""
    return partial(workload.loss, progress=progress) if asks_progress(workload) else workload.loss


def collated(dataset: Any, samples: list[Any]) -> Batch:
    """Returns the batch of single samples, by `collate` of the data set or else by torch's own."""
    from torch.utils.data import default_collate

    return dataset.collate(samples) if hasattr(dataset, "collate") else default_collate(samples)


def schedule_asks_model(workload: Any) -> bool:
    """Returns whether a workload has a schedule of its own that follows from the model."""
    schedule = getattr(workload, "schedule", None)
    return schedule is not None and "model" in inspect.signature(schedule).parameters


def own_schedule(
    workload: Any, *, model: "nn.Module | None" = None, num_updates: int = 1, num_epochs: float = 1.0
) -> Callable[[float], float]:
    """Returns the learning rate of a workload's own schedule, by the share of the samples that is done.

    The others are of the run, for a schedule that asks for them. Raises ParamsError where there is none.
    """
    schedule: Callable[[float], float] | None = getattr(workload, "schedule", None)
    if schedule is None:
        raise ParamsError(
            f"train.schedule is own, and {type(workload).__name__} has no method schedule(done); add "
            f"it, to return the factor of train.rate by the share of samples done, or take another schedule"
        )
    run = {"model": model, "num_updates": num_updates, "num_epochs": num_epochs}
    asked = inspect.signature(schedule).parameters
    schedule = partial(schedule, **{name: value for name, value in run.items() if name in asked})

    def checked(done: float) -> float:
        factor = schedule(min(1.0, done))  # AdaScale takes a last update beyond the end
        if not (isinstance(factor, int | float) and 0 <= factor < math.inf):
            raise ParamsError(
                f"{type(workload).__name__}.schedule({done:.4g}) is {factor}; return a number from 0 on, the "
                f"factor of train.rate"
            )
        return float(factor)

    return checked


def take_first_weights(workload: Any, model: "nn.Module") -> None:
    """Gives a new model the weights that its workload says, where it does."""
    if not hasattr(workload, "first_weights"):
        return
    before = _digests(model)
    workload.first_weights(model)
    if _digests(model) == before:
        raise ParamsError(
            f"{type(workload).__name__}.first_weights leaves the model as it was; see whether the names in "
            f"the file are those of the model: load_state_dict(strict=False) skips others, and "
            f"get_peft_model renames layers"
        )


def _digests(model: "nn.Module") -> dict[str, int]:
    """Returns a checksum of each tensor of a model, which takes no memory as a copy would."""
    import torch

    return {
        name: zlib.crc32(each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        for name, each in model.state_dict().items()
        if isinstance(each, torch.Tensor)
    }


def make_model(workload: Workload, state: State) -> "nn.Module":
    """Returns a new model of the workload, whose method need not take the state."""
    method: Any = workload.model
    model: nn.Module = method(state) if inspect.signature(method).parameters else method()
    if (calibrator := getattr(workload, "calibrator", None)) and hasattr(model, "register_buffer"):
        model.register_buffer(CALIBRATION, calibrator.identity())
    return as_tensors(model) if hasattr(model, "state_dict") else model


def read_state(folder: Path) -> State:
    """Returns the state that is kept in a folder of arrays, or of a model; empty where there is none."""
    import numpy as np

    paths = sorted((folder / STATE).glob("*.npy"))
    return {_name(path.stem): np.load(path, allow_pickle=False) for path in paths}


def write_state(folder: Path, state: State) -> None:
    """Writes a state beside arrays or weights, one file an array."""
    import numpy as np

    (folder / STATE).mkdir()
    for name, array in state.items():
        np.save(folder / STATE / f"{_stem(name)}.npy", array, allow_pickle=False)


# Characters with a meaning in paths or MLflow's URIs, as in a column named Country/Region.
_UNSAFE, _ESCAPED = re.compile(r"[/\\%#?=]"), re.compile("=([0-9A-F]{2})")
_BEYOND_ASCII = "xn--"  # as in names of hosts, what follows is Punycode (RFC 3492)


def _stem(name: str) -> str:
    """Returns the name of an array as that of a file, in ASCII, as MLflow's server sends no others."""
    if not name.isascii() or name.startswith(_BEYOND_ASCII):
        name = _BEYOND_ASCII + name.encode("punycode").decode()
    return _UNSAFE.sub(_escape, name)


def _name(stem: str) -> str:
    """Returns the name of the array in a file; inverse of `_stem`."""
    name = _ESCAPED.sub(_character, stem)
    if name.startswith(_BEYOND_ASCII):
        name = name.removeprefix(_BEYOND_ASCII).encode().decode("punycode")
    return name


def _escape(match: re.Match[str]) -> str:
    return f"={ord(match[0]):02X}"


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))
