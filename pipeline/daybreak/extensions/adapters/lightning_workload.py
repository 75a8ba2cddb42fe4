"""The base class of workloads whose model is a LightningModule, trained without Lightning's Trainer.

class Delays(LightningWorkload):
    table = Table(...)
    metrics = (SquaredError(),)
    trainer = {"gradient_clip_val": 1.0}

    def model(self, state): return DelayModule(len(state))
    def inputs(self, batch): return batch["numbers"], batch["delay"]
    def predict(self, model, batch): return {"prediction": model(batch["numbers"])}

An update is `training_step`, the optimizer of `configure_optimizers`, its schedulers (where `train.schedule`
is `own`), and clipping as `trainer` says. A module that takes updates in another way is refused, and what
training does not call is named by `daybreak try`. `lightning` itself is imported by the module of the team
alone.
"""

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import Batch, TrainingProgress
from daybreak.extensions.adapters.mean_loss import MeanLossWorkload
from daybreak.workloads.table_workload import AtTheEnd

BASE = "LightningModule"  # of lightning or pytorch_lightning
# Methods by which a module takes a part of an update in its own way.
REPLACING = (
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "on_after_backward",
    "on_after_batch_transfer",
    "on_before_backward",
    "on_before_batch_transfer",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_train_batch_start",
    "optimizer_step",
    "optimizer_zero_grad",
)
KEPT = ("configure_optimizers", "forward", "training_step")
CLIPPING = {"norm": "clip_norm", "value": "clip_value"}  # by gradient_clip_algorithm
OF_CLIPPING = ("gradient_clip_val", "gradient_clip_algorithm")
INSTEAD = {
    "accumulate_grad_batches": "train.batch_size, which is divided into passes that fit",
    "callbacks": "train.patience, train.ema, and the checkpoints that training saves",
    "max_epochs": "train.epochs",
    "precision": "train.precision",
}
NUM_UPDATES = 100  # where no run is: in `daybreak try`, and in a profile


class RunView:
    """What a LightningModule may read of its run by `self.trainer`."""

    def __init__(
        self,
        progress: TrainingProgress | None = None,
        *,
        num_updates: int = NUM_UPDATES,
        num_epochs: float = 1.0,
    ) -> None:
        self._progress = progress or TrainingProgress()
        self.estimated_stepping_batches = self.max_steps = num_updates
        self.max_epochs = math.ceil(num_epochs)
        self.num_training_batches = math.ceil(num_updates / num_epochs)

    @property
    def current_epoch(self) -> int:
        """The epoch, from 0."""
        return self._progress.epoch

    @property
    def global_step(self) -> int:
        """The update, from 0."""
        return self._progress.update

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of Python's own, such as those of a copy
            raise AttributeError(name)
        known = "current_epoch, global_step, max_epochs, max_steps, num_training_batches"
        raise ParamsError(
            f"the module reads trainer.{name}, and there is no Trainer; leave that out, or read {known} or "
            f"estimated_stepping_batches"
        )


class LoggedNames:
    """Stands for `self.log` of a module, whose values nothing keeps; `names` are those that were logged."""

    def __init__(self, module: nn.Module) -> None:
        self.names: set[str] = set()
        found = [each for each in module.modules() if _is_metric(each)]
        self._metrics: list[Any] = found[::-1]  # a collection after its metrics, whose states it shares

    def __call__(self, what: Any, *arguments: Any, **options: Any) -> None:
        """Takes a name with its value, or a dict or a collection of several."""
        self.names |= {what} if isinstance(what, str) else set(what.keys())

    def reset_metrics(self) -> None:
        """Resets the metrics of torchmetrics, which keep samples until Lightning's epoch ends."""
        for each in self._metrics:
            each.reset()


class LightningWorkload(MeanLossWorkload):
    """A workload over the rows of a table, whose model is a LightningModule.

    Attributes:
        trainer: arguments of a Trainer, of which those for clipping are used.
    """

    trainer: ClassVar[Mapping[str, Any]] = {}

    def inputs(self, batch: Batch) -> Any:
        """Returns the batch that `training_step` takes, of features and label."""
        return batch

    @property
    def clip_norm(self) -> float:
        """The limit of the gradient's norm; 0 for none."""
        return self._clipping("clip_norm")

    @property
    def clip_value(self) -> float:
        """The limit of each number of the gradient; 0 for none."""
        return self._clipping("clip_value")

    def _clipping(self, name: str) -> float:
        algorithm = self.trainer.get("gradient_clip_algorithm") or "norm"
        if algorithm not in CLIPPING:
            raise ParamsError(
                f"{type(self).__name__}.trainer has gradient_clip_algorithm: {algorithm}; set it to norm or "
                f"value"
            )
        return float(self.trainer.get("gradient_clip_val") or 0.0) if CLIPPING[algorithm] == name else 0.0

    def optimizer(self, model: nn.Module) -> Optimizer:  # type: ignore[override]
        """Returns the optimizer of `configure_optimizers`, at its rates without a scheduler's factors.

        Raises ParamsError for a module that takes updates in its own way.
        """
        self._expect_usual(model)
        model.trainer = RunView()  # type: ignore[assignment]
        optimizer, schedulers = self._configured(model)
        if schedulers:
            for group, peak in zip(optimizer.param_groups, _peaks(optimizer, schedulers), strict=True):
                group["lr"] = peak
                del group["initial_lr"]
        vars(optimizer).pop("step", None)  # which counts its calls for a scheduler
        return optimizer

    def _expect_usual(self, model: Any) -> None:
        name = type(model).__name__
        if BASE not in (base.__name__ for base in type(model).__mro__):
            raise ParamsError(f"{type(self).__name__}.model returns {name}; return a {BASE}")
        if not model.automatic_optimization:
            raise ParamsError(
                f"{name} has automatic_optimization = False, and steps its optimizers itself, so that no "
                f"update could be divided or repeated after a kill; write it as a TableWorkload, whose "
                f"`optimizer` may return several and whose `loss` has those that step"
            )
        if replaced := [each for each in REPLACING if each in _overridden(model)]:
            raise ParamsError(
                f"{name}.{replaced[0]} takes a part of each update in its own way, and training takes all of "
                f"it; leave {', '.join(replaced)} out, and see train.clip_norm and train.schedule, or do it "
                f"in training_step"
            )

    def _configured(self, model: Any) -> tuple[Optimizer, list[dict[str, Any]]]:
        """Returns the optimizer and the schedulers of a module, each with its interval and frequency."""
        made = model.configure_optimizers()
        schedulers: list[Any] = []
        if isinstance(made, Sequence):
            pairs = len(made) == 2 and isinstance(made[0], Sequence)
            optimizers, more = made if pairs else (made, [])
            schedulers += more if isinstance(more, Sequence) else [more]
            made = optimizers[0] if len(optimizers) == 1 else None
        if isinstance(made, Mapping):
            schedulers += [made["lr_scheduler"]] if made.get("lr_scheduler") else []
            made = made.get("optimizer")
        if not isinstance(made, Optimizer):
            raise ParamsError(
                f"{type(model).__name__}.configure_optimizers returns no optimizer, or several; return one, "
                f"with schedulers where it has some"
            )
        usual = {"interval": "epoch", "frequency": 1}
        configured = [
            usual | (dict(each) if isinstance(each, Mapping) else {"scheduler": each}) for each in schedulers
        ]
        for each in configured:
            self._expect_by_progress(made, each["scheduler"])
        return made, configured

    def _expect_by_progress(self, optimizer: Optimizer, scheduler: Any) -> None:
        """Raises ParamsError for a scheduler that no share of the samples decides, or that sets more."""
        name = type(scheduler).__name__
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ParamsError(
                f"{name} waits for a value that is logged, and the rate follows from the share of the "
                f"samples; take a scheduler of steps or epochs, or train.patience"
            )
        if any("max_momentum" in group for group in optimizer.param_groups):
            raise ParamsError(
                f"{name} also changes the momentum, which training leaves as it is; set cycle_momentum=False"
            )

    def schedule(self, done: float, model: nn.Module, num_updates: int, num_epochs: float) -> float:
        """Returns the factor of the rate by the module's schedulers, 1 where it has none."""
        kept: dict[tuple[int, float], list[float]] = vars(self).setdefault("_factors", {})
        if (num_updates, num_epochs) not in kept:
            kept[num_updates, num_epochs] = self._simulated(model, num_updates, num_epochs)
        factors = kept[num_updates, num_epochs]
        return factors[min(int(done * num_updates + 1e-9), len(factors) - 1)]

    def know_run(self, *, num_updates: int, num_epochs: float) -> None:
        """Takes the length of the run, which a module may read in `training_step`."""
        self._run = {"num_updates": num_updates, "num_epochs": num_epochs}

    def _view(self, progress: TrainingProgress) -> RunView:
        run: Any = getattr(self, "_run", {})
        view = RunView(progress, **run)
        if not isinstance(progress, AtTheEnd):
            return view
        last = TrainingProgress(done=1.0, epoch=view.max_epochs - 1, update=view.max_steps - 1)
        return RunView(last, **run)

    def _simulated(self, model: nn.Module, num_updates: int, num_epochs: float) -> list[float]:
        """Returns the factor of the rate in each update, by schedulers that step beside no training."""
        model.trainer = RunView(num_updates=num_updates, num_epochs=num_epochs)  # type: ignore[assignment]
        optimizer, schedulers = self._configured(model)
        if not schedulers:
            return [1.0]
        groups, peaks = optimizer.param_groups, _peaks(optimizer, schedulers)
        factors = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of schedulers, as no optimizer steps
            for number in range(num_updates):
                shares = [group["lr"] / peak for group, peak in zip(groups, peaks, strict=True)]
                if max(shares) - min(shares) > 1e-6 * max(shares):
                    raise ParamsError(
                        f"a scheduler of {type(model).__name__} changes the ratio of its groups' rates, "
                        f"which training keeps; give all groups the same factor"
                    )
                factors.append(float(shares[0]))
                epochs = [int(each * num_epochs / num_updates + 1e-9) for each in (number, number + 1)]
                for each in schedulers:
                    before, after = epochs if each["interval"] == "epoch" else (number, number + 1)
                    if number + 1 < num_updates and after // each["frequency"] > before // each["frequency"]:
                        _step(each["scheduler"], num_updates)
        return factors

    def returned_loss(self, model: nn.Module, batch: Batch, progress: TrainingProgress) -> Tensor:
        """Returns the loss of `training_step`."""
        module: Any = model
        module.trainer = self._view(progress)
        if not isinstance(vars(module).get("log"), LoggedNames):
            module.log = module.log_dict = LoggedNames(module)
        arguments = [self.inputs(batch)]
        if len(inspect.signature(module.training_step).parameters) > 1:
            arguments.append(0 if isinstance(progress, AtTheEnd) else progress.update)
        made = module.training_step(*arguments)
        module.log.reset_metrics()
        loss = made.get("loss") if isinstance(made, Mapping) else made
        if not isinstance(loss, Tensor):
            raise ParamsError(
                f"{type(module).__name__}.training_step returns no loss; return one for each batch"
            )
        return loss

    def not_kept(self, model: nn.Module) -> Iterator[str]:
        """Yields a sentence on each part of the module, and argument of its trainer, that is not used."""
        name = type(model).__name__
        if logged := sorted(getattr(vars(model).get("log"), "names", ())):  # none with a loss of the class
            yield f"{name} logs {', '.join(logged)}, which nothing keeps; name metrics in the class"
        if unused := [each for each in _overridden(model) if each not in KEPT]:
            yield (
                f"{name} has {', '.join(unused)}, which training never calls; leave out what no other "
                f"trainer needs"
            )
        for argument, value in self.trainer.items():
            if argument not in OF_CLIPPING:
                what = f"{value!r:.40}"
                if argument == "callbacks":
                    what = ", ".join(type(each).__name__ for each in value)
                instead = f"see {INSTEAD[argument]}" if argument in INSTEAD else "leave it out"
                yield f"trainer has {argument}: {what}, which nothing reads; {instead}"


def _peaks(optimizer: Optimizer, schedulers: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the rate of each group: its first one, or the highest peak of its cycles, if that is higher.

    A OneCycleLR keeps its peak in the group, which it reads at each step, and a CyclicLR in itself.
    """
    peaks = [max(group["initial_lr"], group.get("max_lr", 0.0)) for group in optimizer.param_groups]
    parts = [each["scheduler"] for each in schedulers]
    while parts:
        part = parts.pop()
        parts += getattr(part, "_schedulers", ())  # of a SequentialLR or a ChainedScheduler
        peaks = list(map(max, peaks, getattr(part, "max_lrs", peaks)))
    return peaks


def _is_metric(module: nn.Module) -> bool:
    """Returns whether a module is a metric or a collection; a MetricTracker is a list, empty at first."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(module).__mro__}
    return not kinds.isdisjoint({("torchmetrics", "Metric"), ("torchmetrics", "MetricCollection")})


def _step(scheduler: Any, num_updates: int) -> None:
    """Steps a scheduler; raises ParamsError where the run is longer than the scheduler."""
    try:
        scheduler.step()
    except ValueError as error:
        raise ParamsError(
            f"{type(scheduler).__name__} does not last for a run of {num_updates:,} updates: {error}; take "
            f"its length from self.trainer.estimated_stepping_batches"
        ) from None


def _overridden(model: Any) -> list[str]:
    """Returns the methods of Lightning that a module has in its own way."""
    kinds = type(model).__mro__
    place = next(number for number, each in enumerate(kinds) if each.__name__ == BASE)
    package = kinds[place].__module__.partition(".")[0]
    of_lightning = [each for each in kinds[place:] if each.__module__.partition(".")[0] == package]
    own = {name for each in kinds[:place] for name in vars(each) if not name.startswith("_")}
    return sorted(own & {name for each in of_lightning for name in vars(each)})
