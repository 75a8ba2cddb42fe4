"""A LightningModule is trained as Lightning's own Trainer trains it, and what is not kept is named."""

import warnings
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import lr_scheduler

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Int, Label, Table, Time
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.adapters.lightning_workload import LightningWorkload
from daybreak.extensions.trial.trial_updates import TrialModel, try_updates
from daybreak.training import sample_order
from daybreak.workloads.metrics import LogLoss
from tests.extensions.adapters.samples import NUM_EPOCHS, NUM_SAMPLES, RATE, SEED, SIZE, Deliveries, trained

lightning = pytest.importorskip("lightning", reason="no Lightning here; pip install 'daybreak[lightning]'")
torchmetrics = pytest.importorskip("torchmetrics")  # of lightning

pytestmark = pytest.mark.slow


class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
    """Two layers, with a rate that falls in each update."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        numbers, late = batch
        return binary_cross_entropy_with_logits(self.layers(numbers)[:, 0], late.float())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler(optimizer)}

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        num_updates = self.trainer.estimated_stepping_batches
        return {"scheduler": lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_updates), "interval": "step"}


class ByEpoch(Module):
    """The rate halves after each epoch."""

    def scheduler(self, optimizer):
        return lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


class Cycle(Module):
    """The rate rises to its peak, and falls."""

    def scheduler(self, optimizer):
        num = self.trainer.estimated_stepping_batches
        made = lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=num, cycle_momentum=False)
        return {"scheduler": made, "interval": "step"}


class Triangles(Module):
    """The rate rises and falls, again and again."""

    def scheduler(self, optimizer):
        made = lr_scheduler.CyclicLR(
            optimizer, base_lr=RATE / 10, max_lr=RATE, step_size_up=2, cycle_momentum=False
        )
        return {"scheduler": made, "interval": "step"}


class TrianglesFirst(Module):
    """A cycle within a sequence."""

    def scheduler(self, optimizer):
        cycle = Triangles.scheduler(self, optimizer)["scheduler"]
        rest = lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=20)
        return {
            "scheduler": lr_scheduler.SequentialLR(optimizer, [cycle, rest], milestones=[7]),
            "interval": "step",
        }


class TwoCycles(Module):
    """A cycle with a peak of its own after another."""

    def scheduler(self, optimizer):
        cycles = [
            lr_scheduler.CyclicLR(
                optimizer, base_lr=peak / 10, max_lr=peak, step_size_up=2, cycle_momentum=False
            )
            for peak in (RATE, RATE / 10)
        ]
        return {"scheduler": lr_scheduler.SequentialLR(optimizer, cycles, milestones=[5]), "interval": "step"}


class CycleFirst(Module):
    """A cycle that keeps its peak in the group, and one that keeps it in itself."""

    peaks = (RATE, RATE / 10)

    def scheduler(self, optimizer):
        once = lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.peaks[0], total_steps=12, pct_start=0.2, cycle_momentum=False
        )
        again = lr_scheduler.CyclicLR(
            optimizer,
            base_lr=self.peaks[1] / 10,
            max_lr=self.peaks[1],
            step_size_up=2,
            cycle_momentum=False,
        )
        made = lr_scheduler.SequentialLR(optimizer, [once, again], milestones=[6])
        return {"scheduler": made, "interval": "step"}


class LowCycleFirst(CycleFirst):
    peaks = (RATE / 10, RATE)


class ConstantFirst(Module):
    """A constant rate, and cycles below it."""

    def scheduler(self, optimizer):
        constant = lr_scheduler.ConstantLR(optimizer, factor=1.0)
        cycle = lr_scheduler.CyclicLR(
            optimizer, base_lr=RATE / 100, max_lr=RATE / 10, step_size_up=2, cycle_momentum=False
        )
        made = lr_scheduler.SequentialLR(optimizer, [constant, cycle], milestones=[4])
        return {"scheduler": made, "interval": "step"}


CYCLES = [Cycle, Triangles, TrianglesFirst, TwoCycles, CycleFirst, LowCycleFirst, ConstantFirst]


class Late(LightningWorkload):
    """Is a delivery late?"""

    table = Table(time="time", columns={"time": Time(), "late": Int(min=0, max=1)}, label=Label("late"))
    metrics = (LogLoss(),)
    trainer: ClassVar[dict[str, Any]] = {"gradient_clip_val": 0.1}
    kind: type[Module] = Module

    def model(self, state: Any = None) -> nn.Module:
        return self.kind()

    def inputs(self, batch: Any) -> Any:
        return batch["numbers"], batch["late"]


def late(kind: type, **attributes: Any) -> type[LightningWorkload]:
    """Returns the class with another module."""
    return type("Late", (Late,), {"kind": kind, **attributes})


class Epochs:
    """The batches of each epoch in turn, in the order that training has them."""

    def __init__(self) -> None:
        self.data, self.epoch = Deliveries(), 0

    def __len__(self) -> int:
        return NUM_SAMPLES // SIZE

    def __iter__(self) -> Any:
        first = self.epoch * NUM_SAMPLES
        self.epoch += 1
        for start in range(first, first + NUM_SAMPLES, SIZE):
            samples = sample_order.indices(seed=SEED, num_samples=NUM_SAMPLES, start=start, stop=start + SIZE)
            yield Late().inputs(self.data.__getitems__(samples))


def by_lightning(kind: type[Module], **arguments: Any) -> dict[str, Tensor]:
    """Returns the weights that Lightning's Trainer comes to."""
    torch.manual_seed(SEED)
    module = kind()
    shown = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its advice
        trainer = lightning.Trainer(
            max_epochs=NUM_EPOCHS, accelerator="cpu", **dict.fromkeys(shown, False), **arguments
        )
        trainer.fit(module, Epochs())
    return module.state_dict()


@pytest.mark.parametrize("kind", [Module, ByEpoch, *CYCLES])
@pytest.mark.parametrize(
    "clipping", [{"gradient_clip_val": 0.1}, {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}]
)
def test_weights_are_those_of_lightnings_trainer(tmp_path: Path, kind: Any, clipping: Any) -> None:
    ours = trained(late(kind, trainer=clipping), tmp_path)
    torch.testing.assert_close(ours, dict(by_lightning(kind, **clipping)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", CYCLES)
def test_no_rate_of_a_cycle_is_above_that_of_the_run(kind: type[Module]) -> None:
    workload = late(kind)()
    model = workload.model()
    factors = [workload.schedule(number / 12, model, 12, 3.0) for number in range(12)]
    assert 0.9 < max(factors) < 1 + 1e-9  # one cycle has its peak between two updates
    assert [group["lr"] for group in workload.optimizer(model).param_groups] == pytest.approx([RATE])


def test_a_run_that_is_killed_ends_with_the_same_weights(tmp_path: Path) -> None:
    alone = trained(late(Cycle), tmp_path / "alone")
    killed = trained(late(Cycle), tmp_path / "killed", stops=(3, 8))
    assert all(torch.equal(killed[name], weight) for name, weight in alone.items())


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnStep(Module):
    def optimizer_step(self, *arguments: Any, **options: Any) -> None: ...


class OwnGradient(Module):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.layers[0].weight.grad.zero_()


class Plateau(Module):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE)
        return [optimizer], [{"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "loss"}]


class Momentum(Module):
    def scheduler(self, optimizer):
        return lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=50)


class Several(Module):
    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=RATE) for part in (self.layers[0], self.layers[2])]


class InBatch(Module):
    def training_step(self, batch, batch_idx):
        answers = self.layers(batch[0])[:, 0]
        return (answers.logsumexp(0) - answers).mean()


class ReadsTrainer(Module):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.trainer.world_size


class NoLoss(Module):
    def training_step(self, batch, batch_idx):
        return {"answers": self.layers(batch[0])}


REFUSED = {
    Manual: "Manual has automatic_optimization = False, and steps its optimizers itself",
    OwnStep: r"OwnStep\.optimizer_step takes a part of each update in its own way",
    OwnGradient: r"OwnGradient\.on_before_optimizer_step takes a part of each update in its own way",
    Plateau: "ReduceLROnPlateau waits for a value that is logged",
    Momentum: "OneCycleLR also changes the momentum, .* set cycle_momentum=False",
    Several: r"Several\.configure_optimizers returns no optimizer, or several",
    InBatch: r"Late\.loss of a pass is no mean over its samples: two passes have losses of",
    ReadsTrainer: r"the module reads trainer\.world_size, and there is no Trainer",
    NoLoss: r"NoLoss\.training_step returns no loss",
}


def tried(workload: type) -> TrialModel:
    """Returns a trial, as `daybreak try` takes it."""
    batch = Deliveries().__getitems__(range(NUM_SAMPLES))
    return try_updates(workload, {}, batch, size=NUM_SAMPLES, seed=SEED, rate=RATE)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_module_that_training_could_not_repeat_or_divide_is_refused(kind: type) -> None:
    with pytest.raises(ParamsError, match=REFUSED[kind]):
        tried(late(kind))


def test_a_class_without_metrics_is_refused_as_samples_have_no_losses_of_their_own() -> None:
    with pytest.raises(ParamsError, match=r"Late names no metric, .* name one in `metrics`"):
        tried(late(Module, metrics=()))


def test_rates_whose_ratio_a_scheduler_changes_are_refused(tmp_path: Path) -> None:
    class Apart(Module):
        def configure_optimizers(self):
            groups = [{"params": part.parameters()} for part in (self.layers[0], self.layers[2])]
            optimizer = torch.optim.SGD(groups, lr=RATE)
            factors = [lambda epoch: 1.0, lambda epoch: 0.5**epoch]
            return [optimizer], [lr_scheduler.LambdaLR(optimizer, factors)]

    with pytest.raises(ParamsError, match="a scheduler of Apart changes the ratio of its groups' rates"):
        trained(late(Apart), tmp_path)


def test_a_scheduler_that_ends_before_the_run_is_named(tmp_path: Path) -> None:
    class Short(Module):
        def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
            made = lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=5, cycle_momentum=False)
            return {"scheduler": made, "interval": "step"}

    with pytest.raises(ParamsError, match="OneCycleLR does not last for a run of 12 updates: "):
        trained(late(Short), tmp_path)


def test_what_training_never_calls_is_named() -> None:
    class Chatty(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss, prog_bar=True)
            self.log_dict({"twice": 2 * loss})
            return {"loss": loss}

        def on_train_epoch_end(self) -> None:
            raise AssertionError

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise AssertionError

    arguments = {"max_epochs": 10, "callbacks": [lightning.pytorch.callbacks.EarlyStopping("loss")]}
    trial = tried(late(Chatty, trainer=arguments))
    assert trial.notes == []
    assert list(trial.workload.not_kept(trial.model)) == [
        "Chatty logs train_loss, twice, which nothing keeps; name metrics in the class",
        "Chatty has on_train_epoch_end, validation_step, which training never calls; leave out what no other "
        "trainer needs",
        "trainer has max_epochs: 10, which nothing reads; see train.epochs",
        "trainer has callbacks: EarlyStopping, which nothing reads; see train.patience, train.ema, and the "
        "checkpoints that training saves",
    ]
    assert list(tried(late(Module)).workload.not_kept(tried(late(Module)).model)) == []


def test_metrics_of_torchmetrics_keep_no_samples_of_earlier_passes(tmp_path: Path) -> None:
    class Measured(Module):
        def __init__(self) -> None:
            super().__init__()
            self.auc = torchmetrics.AUROC("binary")
            self.curves = torchmetrics.MetricCollection(
                [torchmetrics.PrecisionRecallCurve("binary"), torchmetrics.AveragePrecision("binary")]
            )

        def training_step(self, batch, batch_idx):
            chances = self.layers(batch[0])[:, 0].sigmoid()
            self.auc.update(chances, batch[1])
            self.log("auc", self.auc, on_epoch=True)
            self.curves.update(chances, batch[1])  # which on_train_epoch_end would compute and reset
            self.log_dict(self.curves)
            return super().training_step(batch, batch_idx)

    trial = tried(late(Measured))
    model: Any = trial.model
    assert model.auc.preds == model.curves["BinaryAveragePrecision"].preds == []
    assert (
        "Measured logs BinaryAveragePrecision, BinaryPrecisionRecallCurve, auc, which nothing keeps"
        in next(trial.workload.not_kept(model))
    )


def test_wrappers_of_torchmetrics_are_reset_before_anything_updates_them() -> None:
    class Wrapped(Module):
        """Measures by wrappers, some of which only hooks of a validation use."""

        def __init__(self) -> None:
            super().__init__()
            accuracy, wrappers = torchmetrics.classification.BinaryAccuracy, torchmetrics.wrappers
            self.unused = nn.ModuleList(
                [
                    wrappers.MetricTracker(accuracy()),
                    wrappers.MetricTracker(torchmetrics.MetricCollection([accuracy()])),
                    wrappers.BootStrapper(accuracy(), num_bootstraps=2),
                    wrappers.ClasswiseWrapper(
                        torchmetrics.Accuracy("multiclass", num_classes=2, average=None)
                    ),
                    wrappers.LambdaInputTransformer(accuracy(), transform_pred=torch.sigmoid),
                    wrappers.MinMaxMetric(accuracy()),
                    wrappers.MultioutputWrapper(accuracy(), num_outputs=2),
                    wrappers.MultitaskWrapper({"late": accuracy()}),
                    wrappers.Running(torchmetrics.SumMetric(), window=2),
                    accuracy() + 1,
                ]
            )
            self.tracker = wrappers.MetricTracker(torchmetrics.AUROC("binary"))
            self.tracker.increment()

        def training_step(self, batch, batch_idx):
            self.tracker.update(self.layers(batch[0])[:, 0].sigmoid(), batch[1])
            return super().training_step(batch, batch_idx)

    tracker: Any = tried(late(Wrapped)).model.tracker
    assert [each.preds for each in tracker] == [[], []]


class Annealed(Module):
    """The loss grows with the share of the run, as of a KL divergence."""

    def training_step(self, batch, batch_idx):
        assert self.current_epoch < self.trainer.max_epochs
        return super().training_step(batch, batch_idx) * (self.global_step + 1) / self.trainer.max_steps


def test_a_step_reads_the_length_of_the_run_and_its_end_in_a_validation() -> None:
    workload = late(Annealed)()
    model, batch = workload.model(), Deliveries().__getitems__(range(SIZE))
    workload.know_run(num_updates=500, num_epochs=2.5)
    whole = Module.training_step(model, workload.inputs(batch), 0).item()
    halfway = workload.loss(model, batch, TrainingProgress(done=0.5, epoch=1, update=249))
    assert halfway.mean().item() == pytest.approx(whole / 2)
    assert workload.score(model, batch).mean().item() == pytest.approx(-whole)
    assert (model.current_epoch, model.trainer.num_training_batches) == (2, 200)


def test_a_class_with_a_loss_of_its_own_logs_nothing() -> None:
    class BySample(Late):
        loss_is_mean = False

        def loss(self, model: Any, batch: Any, progress: Any) -> Tensor:
            answers = model.layers(batch["numbers"])[:, 0]
            return binary_cross_entropy_with_logits(answers, batch["late"].float(), reduction="none")

    assert list(BySample().not_kept(BySample().model())) == []


def test_validation_scores_by_the_loss_of_a_pass() -> None:
    workload = late(Module)()
    model, batch = workload.model(), Deliveries().__getitems__(range(SIZE))
    scores = workload.score(model, batch)
    numbers, late_ones = workload.inputs(batch)
    loss = binary_cross_entropy_with_logits(model.layers(numbers)[:, 0], late_ones.float())
    assert scores.shape == (SIZE,)
    torch.testing.assert_close(scores.mean(), -loss)


def test_each_update_has_its_own_factor_however_its_share_is_rounded() -> None:
    class Falling(Module):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), RATE)
            return [optimizer], [
                {"scheduler": lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n)), "interval": "step"}
            ]

    workload = late(Falling)()
    model = workload.model()
    factors = [workload.schedule(n / 100, model, 100, 1.0) for n in range(100)]
    assert factors == pytest.approx([1 / (1 + n) for n in range(100)])
