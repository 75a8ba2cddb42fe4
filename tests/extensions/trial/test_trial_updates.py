"""What training would do otherwise than a class means is found by a few updates, and right classes pass."""

import copy
import math
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.trial.trial_updates import TrialModel, close, note_of_rate, try_updates
from daybreak.training.tuning import check_model

SIZE = 8
BATCH = {
    "x": torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(0)),
    "y": torch.arange(float(SIZE)),
}


class Right:
    """A line through the samples."""

    def model(self) -> nn.Module:
        """Returns the model."""
        self.net: Any = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        return self.net

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Returns the optimizer."""
        self.made = SGD(parameters, lr=0.1)
        return self.made

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        """Returns the squared error of each sample."""
        return (model(batch["x"])[:, 0] - batch["y"]).square()


class Noise(Right):
    """Draws from torch, in eval mode too."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model, {**batch, "x": batch["x"] + torch.randn_like(batch["x"])})


class Seeded(Right):
    """Its first weights are of numpy, by a seed of its own."""

    def model(self) -> nn.Module:
        np.random.seed(1)
        model = super().model()
        model[1].weight.data = torch.tensor(np.random.rand(1, 4), dtype=torch.float32)  # type: ignore[index]
        return model


class Normalised(Right):
    """Has BatchNorm, and a buffer that is not a number."""

    def model(self) -> nn.Module:
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.net.register_buffer("unknown", torch.tensor(torch.nan))
        return self.net


class Averaged(Right):
    """Keeps the mean of its weights as a part of the model, to which no loss leads."""

    def model(self) -> nn.Module:
        line = nn.Linear(3, 1)
        self.net = nn.ModuleList([line, AveragedModel(line)])
        return self.net

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        made = super().optimizer(parameters)
        made.register_step_post_hook(lambda *_: self.net[1].update_parameters(self.net[0]))
        return made

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model[0], batch)


class HalfRate(Right):
    """A hook before the step halves the rate, which the step then takes."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        made = super().optimizer(parameters)
        made.register_step_pre_hook(lambda *_: made.param_groups[0].update(lr=made.param_groups[0]["lr"] / 2))
        return made


class Draws(Right):
    """Draws from `random`, NumPy and torch, and begins with weights drawn by NumPy."""

    def model(self) -> nn.Module:
        model = super().model()
        model[1].weight.data = torch.tensor(np.random.rand(1, 4), dtype=torch.float32)  # type: ignore[index]
        return model

    def loss(self, model: Any, batch: dict[str, Tensor], progress: TrainingProgress) -> Tensor:
        drawn = random.random() + np.random.rand() + torch.rand(1, generator=progress.generator)
        return super().loss(model, batch) * drawn


COUNT = [0]


class CountsInModule(Right):
    """Its weight of a loss falls by a count that a new process begins anew."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        COUNT[0] += 1
        return super().loss(model, batch) / COUNT[0]


class RateOfLoss(Right):
    """Sets the rate before the update, as training does after it."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        self.made.param_groups[0]["lr"] = 0.5
        return super().loss(model, batch)


class RateOfHook(Right):
    """Lowers the rate after each step."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        made = super().optimizer(parameters)
        made.register_step_post_hook(lambda *_: made.param_groups[0].update(lr=0.01))
        return made


class LateScheduler(Right):
    """Attaches a scheduler in its first pass."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        if "initial_lr" not in self.made.param_groups[0]:
            LambdaLR(self.made, lambda step: 1 / (1 + step))
        return super().loss(model, batch)


class Grows(Right):
    """Adds a layer in its first pass."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        if not hasattr(model, "late"):
            model.late = nn.Linear(1, 1)
        return super().loss(lambda x: model.late(model(x)), batch)


class OwnHead(Right):
    """Has its last layer in the workload."""

    def __init__(self) -> None:
        self.head = nn.Linear(1, 1)

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(lambda x: self.head(model(x)), batch)


class OwnGenerator(Right):
    """Its first weights are drawn by a generator that nobody seeds."""

    def model(self) -> nn.Module:
        model = super().model()
        drawn = np.random.default_rng().random((1, 4))
        model[1].weight.data = torch.tensor(drawn, dtype=torch.float32)  # type: ignore[index]
        return model


class DrawsByItself(Right):
    """Draws from a generator that nobody seeds."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model, batch) * float(np.random.default_rng().random())


class InBatch(Normalised):
    """Compares a sample with the others of its pass, in training only, beside BatchNorm."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        losses = super().loss(model, batch)
        return losses / losses.detach().mean() if model.training else losses


class Evaluates(Right):
    """Leaves the model in eval mode."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        model.eval()
        return super().loss(model, batch)


class RootOfZero(Right):
    """Has a finite loss, whose gradient is not."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        losses = super().loss(model, batch)
        return losses + (losses * 0).sqrt()


class MeanOfAll(Right):
    """Gives each sample the mean of its pass."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(model, batch).mean().expand(len(batch["x"]))


class OverBatch(Right):
    """Scales what it encodes a sample as by others of the pass."""

    def encode(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        answer = model(batch["x"])[:, 0]
        return answer - answer.mean()

    def batch_loss(self, encoded: Tensor) -> Tensor:
        return (encoded - encoded.mean()).square()

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return self.batch_loss(self.encode(model, batch))


class OtherLoss(OverBatch):
    """Has a loss that is not the one over what it encodes."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return 2 * super().loss(model, batch)


FAULTS = {
    OverBatch: r"OverBatch\.encode of the first 2 samples is \S+ alone, and \S+ among 8: it depends on the",
    OtherLoss: r"OtherLoss\.batch_loss of what encode returns is \S+, and loss is \S+: passes and workers",
    RootOfZero: r"RootOfZero\.loss has a gradient that is not finite, of 0\.weight, 0\.bias and 2 more; look",
    Evaluates: r"Evaluates\.loss leaves the model in eval mode, in which all later updates would train it",
    MeanOfAll: r"MeanOfAll\.loss of the first 2 samples is \S+ alone, and \S+ among 8: it depends",
    DrawsByItself: r"loss of two runs of one seed differs: .*; keep what it counts in buffers of the model",
    CountsInModule: r"loss of two runs of one seed differs: .*; keep what it counts in buffers of the model",
    RateOfLoss: r"RateOfLoss\.optimizer is given a rate, which training overwrites at each update; leave",
    RateOfHook: r"RateOfHook\.optimizer is given a rate, which training overwrites at each update; leave",
    LateScheduler: r"LateScheduler\.optimizer has a scheduler, whose rate training overwrites at each",
    Grows: r"Grows\.model adds late\.bias, late\.weight when it runs, after the optimizer got",
    OwnHead: r"OwnHead\.loss reaches head\.weight, head\.bias, which is not of the model",
    OwnGenerator: r"OwnGenerator\.model begins with weights that another run of the same seed does not have",
    InBatch: r"InBatch\.loss of the first 2 samples is \S+ alone, and \S+ among 8: it depends on the other",
}


def tried(workload: type[Right]) -> TrialModel:
    """Returns a trial after some updates of this class."""
    COUNT[0] = 0
    return try_updates(workload, {}, copy.deepcopy(BATCH), size=SIZE, seed=0, rate=0.1)


@pytest.mark.parametrize("workload", FAULTS)
def test_what_no_update_takes_is_one_sentence(workload: type[Right]) -> None:
    with pytest.raises(ParamsError, match=FAULTS[workload]):
        tried(workload)


class Whole(InBatch):
    """Says that it compares a sample with the others of its batch."""

    whole_batch = True


class Encodes(OverBatch):
    """Compares samples in its loss alone."""

    def encode(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        answer: Tensor = model(batch["x"])[:, 0]
        return answer


@pytest.mark.parametrize("workload", [Whole, Encodes])
def test_a_loss_that_is_declared_to_be_over_a_batch_is_no_fault(workload: type[Right]) -> None:
    assert not tried(workload).notes


class OfSome(Right):
    """Its optimizer has one layer of two."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        return super().optimizer(list(parameters)[2:])


class Detached(Right):
    """The loss does not reach its first layer."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        return super().loss(lambda x: model[1](model[0](x).detach()), batch)


class Mixup(Right):
    """Mixes each sample with another of its pass."""

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        order = torch.randperm(len(batch["x"]))
        return super().loss(model, {name: (value + value[order]) / 2 for name, value in batch.items()})


class Remembers(Right):
    """Counts its updates in a state of its own."""

    num = 0

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        self.num += model.training
        return super().loss(model, batch) / (1 + self.num)

    def state_dict(self) -> dict[str, int]:
        return {"num": self.num}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num = state["num"]


class CountsForLater(Right):
    """Counts its updates, for what begins at the hundredth."""

    num = 0

    def loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        self.num += 1
        return super().loss(model, batch) * (1 if self.num < 100 else 2)


NOTES = {
    OfSome: "an update leaves 0.weight, 0.bias unchanged, 2 of 4 parameters: the optimizer lacks them, or",
    Detached: "an update leaves 0.weight, 0.bias unchanged, 2 of 4 parameters: the optimizer lacks them, or",
    Mixup: "the loss of a sample depends on which others are beside it, by what it draws",
    CountsForLater: "CountsForLater.num (2) is another after a restart, as no checkpoint holds it",
}


@pytest.mark.parametrize("workload", [Right, Noise, Seeded, Normalised, Averaged, HalfRate, Draws, Remembers])
def test_a_right_class_passes_without_a_note(workload: type[Right]) -> None:
    assert not tried(workload).notes


@pytest.mark.parametrize("workload", NOTES)
def test_what_may_be_meant_is_a_note(workload: type[Right]) -> None:
    (note,) = tried(workload).notes
    assert note.startswith(NOTES[workload])


@pytest.mark.parametrize("rate", [1, torch.tensor(0.5)])
def test_a_rate_of_any_type_that_is_replaced_is_noted(rate: Any) -> None:
    assert f"sets a rate of {float(rate):g}" in note_of_rate(
        [SGD(nn.Linear(1, 1).parameters(), lr=rate)], 0.1
    )


class Lazy(Right):
    """Has a layer whose inputs the first pass tells, beside BatchNorm."""

    def model(self) -> nn.Module:
        self.net = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
        return self.net


def test_lazy_layers_get_their_shapes_before_the_optimizer_gets_their_weights() -> None:
    assert not tried(Lazy).notes


def test_a_lazy_layer_that_no_loss_reaches_is_refused() -> None:
    with pytest.raises(ParamsError, match=r"the model's 0\.weight has no shape after a pass, as the loss"):
        check_model(nn.Sequential(nn.LazyLinear(1)), Lazy())


class FreezesLate(Right):
    """Has nothing to learn from the middle of a run on."""

    def trainable(self, model: nn.Module, progress: TrainingProgress) -> None:
        """Freezes all weights."""
        model.requires_grad_(progress.done < 0.5)


def test_updates_of_the_middle_and_the_end_of_a_run_are_tried_too():
    with pytest.raises(RuntimeError, match="does not require grad"):
        try_updates(FreezesLate, {}, BATCH, size=SIZE, seed=1, rate=0.1)


@pytest.mark.parametrize("values", [[math.nan, math.nan], [1.0, math.nan]])
def test_labels_that_are_not_known_are_the_same_as_themselves(values):
    assert close(torch.tensor(values), torch.tensor(values))
    assert not close(torch.tensor(values), torch.tensor([2.0, 2.0]))
