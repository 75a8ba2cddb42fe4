"""Tries what training does with a team's model and loss, beside one update (row_checks.py).

Training restarts from checkpoints, splits a batch into passes and among workers, and repeats a run of one
seed bit for bit. Each is tried on a batch; what does not hold is one sentence that names the method to fix.
"""

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from daybreak.contract.errors import ParamsError
from daybreak.contract.workload import (
    Batch,
    State,
    TrainingProgress,
    asks_progress,
    is_encoded,
    is_undivided,
    loss_of,
    make_model,
    take_first_weights,
    thaws,
)
from daybreak.training.checkpoint import pack, unpack
from daybreak.training.generators import seed_all
from daybreak.training.learning_rate import rate_shares
from daybreak.training.own_state import load_own_state, pack_own_state
from daybreak.training.process_group import be_deterministic
from daybreak.training.tuning import (
    NORMS,
    give_shapes,
    halves,
    leaves,
    new_optimizers,
    same_bits,
    schedules_rate,
    tensors,
)
from daybreak.training.turns import Losses, Turns, by_sample

GENTLE = 0.1  # of the rate: training warms up to it
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
FEW = 2  # samples alone, where the others of a batch matter most
CLOSE = 1e-3  # of a value and of the mean of all, where sums may be taken in another order
ROUNDED = 1e-5  # of a sum, where the same values are added in the same order
NUMBERS = (bool, int, float)
PLAIN = (*NUMBERS, str, list, tuple, dict, set, Tensor)  # values that a module may keep as attributes
OF_TORCH = frozenset(vars(nn.Module())) - {"training"}  # attributes that each module has


class TrialModel:
    """A model in training: as `workload` makes it, from a seed; `notes` say what may be meant."""

    def __init__(self, workload: Any, state: State, batch: Batch, *, seed: int, rate: float) -> None:
        seed_all(seed)
        self.workload, self._rate = workload, GENTLE * rate
        self.model = make_model(workload, state)
        give_shapes(self.model, workload, lambda: batch)
        take_first_weights(workload, self.model)
        self.model.train()
        self.optimizers = new_optimizers(workload, self.model)
        self._turns, self.stepping = Turns(self.optimizers), frozenset[str]()
        self._parts = rate_shares(group.get("lr") for group in self.groups())
        self._rates = _rates(self.groups())  # as they should be until training sets others
        for optimizer in self.optimizers.values():
            optimizer.register_step_pre_hook(lambda *_: self._keep_rates())  # after the hooks of the team
        self.loses_rate = any(map(schedules_rate, self.optimizers.values()))
        self._num_updates, self.done = 0, 0.0  # share of the run's samples
        self.losses: list[float] = []
        self.notes: list[str] = []

    def _keep_rates(self) -> None:
        self._rates = _rates(self.groups())

    def groups(self) -> Iterator[dict[str, Any]]:
        """Yields the groups of weights of all optimizers."""
        for optimizer in self.optimizers.values():
            yield from optimizer.param_groups

    def loss(self, batch: Batch) -> Losses:
        """Returns the loss of each sample at the progress of the newest update."""
        progress = TrainingProgress(
            update=self._num_updates, done=self.done, generator=torch.default_generator
        )
        if thaws(self.workload):
            self.workload.trainable(self.model, progress)
        return loss_of(self.workload, progress=progress)(self.model, batch)

    def update(self, batch: Batch) -> None:
        """Takes an update as the engine does: seeded by its number, with the rate that training sets."""
        self._num_updates += 1
        seed_all(self._num_updates)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        losses = self.loss(batch)
        size = len(by_sample(losses))
        total, self.stepping = self._turns.backward(losses, lambda loss: loss / size)
        self.loses_rate |= any(map(schedules_rate, self.optimizers.values()))
        self.loses_rate |= _rates(self.groups()) != self._rates
        for group, part in zip(self.groups(), self._parts, strict=True):
            group["lr"] = self._rate * part
        self._rates = _rates(self.groups())
        for name, optimizer in self.optimizers.items():
            if name in self.stepping:
                optimizer.step()
        self.losses.append(float(total) / size)

    def resume(self, other: "TrialModel") -> None:
        """Takes over what a checkpoint holds of another."""
        self.model.load_state_dict(copy.deepcopy(other.model.state_dict()))
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(unpack(*copy.deepcopy(pack(other.optimizers[name].state_dict()))))
        self._rates = _rates(self.groups())
        load_own_state(self.workload, *copy.deepcopy(pack_own_state(other.workload)))
        self._num_updates = other._num_updates

    def is_like(self, other: "TrialModel") -> bool:
        """Returns whether both had the same loss in the newest update, and have the same weights."""
        ours, theirs = self.model.state_dict(), other.model.state_dict()
        return (
            self.losses[-1:] == other.losses[-1:]
            and ours.keys() == theirs.keys()
            and same_bits(list(ours.values()), list(theirs.values()))
        )


def try_updates(
    make: Callable[[], Any], state: State, batch: Batch, *, size: int, seed: int, rate: float
) -> TrialModel:
    """Returns a trial after some updates of a batch of `size` samples.

    Raises ParamsError where an assumption of training does not hold. `make` makes the workload anew, as a new
    process would.
    """
    be_deterministic()
    trial = TrialModel(make(), state, batch, seed=seed, rate=rate)
    _expect_trained_rate(trial, rate)
    again = TrialModel(make(), state, batch, seed=seed, rate=rate)
    _expect_repeatable(trial, again, batch)
    _expect_trained_rate(trial, rate)
    del again
    restarted = TrialModel(make(), state, batch, seed=seed, rate=rate)
    _expect_restartable(trial, restarted, batch)
    _expect_trained_rate(trial, rate)
    if asks_progress(trial.workload) or thaws(trial.workload):
        for trial.done in (0.5, 0.99):  # other weights may be trained, and other terms count
            trial.update(batch)
    _check_independent(trial, batch, size)
    return trial


def _expect_repeatable(trial: TrialModel, again: TrialModel, batch: Batch) -> None:
    """Takes the first update twice; raises ParamsError where two runs of one seed differ."""
    if not again.is_like(trial):
        raise _wrong(
            trial,
            "model",
            "begins with weights that another run of the same seed does not have",
            "draw them from the global generators of torch, numpy and random, which training seeds",
        )
    _update_first(trial, batch)
    again.update(batch)
    if not trial.is_like(again):
        raise _wrong(
            trial,
            "loss",
            f"of two runs of one seed differs: {trial.losses[0]:.6g} and {again.losses[0]:.6g} in their "
            f"first update, or the weights after it",
            "keep what it counts in buffers of the model, not in the class or its module, and draw random "
            "numbers from the global generators of torch, numpy and random, which training seeds",
        )


def _expect_restartable(trial: TrialModel, restarted: TrialModel, batch: Batch) -> None:
    """Takes an update also after a restart; raises ParamsError, or notes, where a checkpoint lacks state."""
    restarted.resume(trial)
    trial.update(batch)
    restarted.update(batch)
    if not trial.is_like(restarted):
        lost = _differing(trial, restarted)
        named = f", which loses {', '.join(lost)}" if lost else ""
        raise _wrong(
            trial,
            "model",
            f"keeps state that no checkpoint holds: the loss of an update is {trial.losses[-1]:.6g}, and "
            f"{restarted.losses[-1]:.6g} after a restart{named}",
            "keep it in parameters or buffers (register_buffer), in the state of the optimizer, or in what "
            "state_dict and load_state_dict of the class have",
        )
    if numbers := _differing(trial, restarted, kinds=NUMBERS):
        trial.notes.append(
            f"{', '.join(numbers)} is another after a restart, as no checkpoint holds it; where a loss or a "
            f"prediction depends on it, keep it in a buffer (register_buffer)"
        )


def _expect_trained_rate(trial: TrialModel, rate: float) -> None:
    """Raises ParamsError where the team's code sets a rate that no update takes."""
    if trial.loses_rate:
        has_scheduler = any(map(schedules_rate, trial.optimizers.values()))
        what = "has a scheduler, whose rate" if has_scheduler else "is given a rate, which"
        raise _wrong(
            trial,
            "optimizer",
            f"{what} training overwrites at each update",
            f"leave it out, and set train.rate ({rate:g}), train.warmup and train.schedule, which may be a "
            f"method schedule(done) of the class",
        )


def _update_first(trial: TrialModel, batch: Batch) -> None:
    """Takes the first update; raises ParamsError, or notes, where it leaves parameters as they are."""
    before = {name: value.detach().clone() for name, value in trial.model.named_parameters()}
    trial.update(batch)
    after = dict(trial.model.named_parameters())
    if added := sorted(after.keys() - before.keys()):
        raise _wrong(
            trial,
            "model",
            f"adds {_some(added)} when it runs, after the optimizer got its parameters",
            "make all of them in its constructor",
        )
    if not_finite := [name for name, value in after.items() if not value.isfinite().all()]:
        raise _wrong(
            trial,
            "loss",
            f"has a gradient that is not finite, of {_some(not_finite)}",
            "look for a sqrt, a log or a division at 0, also in the part that torch.where leaves out",
        )
    if not trial.model.training:
        raise _wrong(
            trial,
            "loss",
            "leaves the model in eval mode, in which all later updates would train it",
            "call model.train() at its end",
        )
    own = {id(value) for value in after.values()}
    strange = [name for name, value in _parameters_of(trial.workload) if id(value) not in own]
    if strange:
        raise _wrong(
            trial,
            "loss",
            f"reaches {_some(strange)}, which is not of the model: no optimizer trains it and "
            f"no version has it",
            "make it a part of what model returns",
        )
    given = {id(value) for group in trial.groups() for value in group["params"]}
    waiting = {
        id(value)
        for name, optimizer in trial.optimizers.items()
        for group in optimizer.param_groups
        for value in group["params"]
        if name not in trial.stepping
    }
    left = [
        name
        for name, value in after.items()
        if value.requires_grad
        and (value.grad is None or id(value) not in given)
        and id(value) not in waiting
        and torch.equal(value, before[name])
    ]
    if left:
        trial.notes.append(
            f"an update leaves {_some(left)} unchanged, {len(left)} of {len(after)} parameters: the "
            f"optimizer lacks them, or the loss does not reach them; where that is meant, freeze them "
            f"(requires_grad_(False))"
        )


def _parameters_of(workload: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the parameters in attributes of the workload that a loss has reached, with their names."""
    for name, held in vars(workload).items():
        if isinstance(held, nn.Module | nn.Parameter):
            parts = held.named_parameters() if isinstance(held, nn.Module) else [("", held)]
            for part, value in parts:
                if value.grad is not None:
                    yield f"{name}.{part}".rstrip("."), value


def _some(names: list[str]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def note_of_rate(optimizers: Iterable[Optimizer], rate: float) -> str:
    """Returns that a rate which `optimizer` sets is replaced; "" where it sets none, or the same."""
    named: list[float] = []
    kept = [rate]
    for optimizer in optimizers:
        lr = inspect.signature(type(optimizer)).parameters.get("lr")
        kept += [lr.default] if lr else []
        named += [float(group["lr"]) for group in optimizer.param_groups if group.get("lr") is not None]
    largest = max(named, default=rate)
    if largest in kept:
        return ""
    return (
        f"optimizer sets a rate of {largest:g}, and training takes train.rate: {rate:g} in its place, with "
        f"train.warmup and train.schedule; groups keep their ratio to the largest"
    )


def _rates(groups: Iterable[dict[str, Any]]) -> list[float | None]:
    named = [group.get("lr") for group in groups]
    return [None if rate is None else float(rate) for rate in named]


def _check_independent(trial: TrialModel, batch: Batch, size: int) -> None:
    """Raises ParamsError where the loss or the encoding of a sample depends on others in its pass.

    Where it is drawn at random, or moves buffers, as mixup and running means do, that is a note: passes of
    another size then differ by what they draw.
    """
    num = FEW
    if len(halves(batch, size)) < 2 or size <= num or is_undivided(trial.workload):
        return
    if getattr(trial.workload, "loss_is_mean", False):
        _check_additive(trial, batch, size)
        return
    what = "encode" if is_encoded(trial.workload) else "loss"
    if is_encoded(trial.workload):
        _expect_same_loss(trial, batch)
    few = leaves(batch, lambda leaf: leaf[:num])
    others = leaves(batch, lambda leaf: leaf[torch.arange(size) % num])  # these beside copies of them
    model = trial.model
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for mode in ("eval", "train"):
        model.train(mode == "train")
        for module in model.modules():
            module.training &= not isinstance(module, (*DROPOUTS, *NORMS))
        losses = _losses(trial, batch, state)
        is_fixed = same_bits(list(model.state_dict().values()), list(state.values()))
        is_fixed &= torch.equal(losses, _losses(trial, batch, state, seed=1))
        beside = _losses(trial, few if is_fixed else others, state)[:num]
        if close(beside, losses[:num]):
            continue
        if not is_fixed:
            trial.notes.append(
                "the loss of a sample depends on which others are beside it, by what it draws or keeps in "
                "buffers; passes of another size, and more workers, have fewer to choose from"
            )
            break
        raise _wrong(
            trial,
            what,
            f"of the first {num} samples is {beside.mean():.4g} alone, and {losses[:num].mean():.4g} among "
            f"{size}: it depends on the other samples of the batch, and passes of another size train another "
            f"objective",
            "compute it from that sample alone, or set whole_batch = True, or write encode and batch_loss",
        )
    model.load_state_dict(state)
    model.eval()


def _check_additive(trial: TrialModel, batch: Batch, size: int) -> None:
    """Raises ParamsError where the loss of a pass is no mean of losses that are each of one sample.

    Of such a mean, two passes have the same sum when they exchange their halves. What is drawn at random is
    drawn by place, and so the same in each.
    """
    middle, places = size // 2, torch.arange(size)
    first, second = places[:middle], places[middle:]
    one, another = torch.zeros_like(first), torch.full_like(second, middle)  # copies of one sample
    model = trial.model
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for mode in ("eval", "train"):
        model.train(mode == "train")
        for module in model.modules():
            module.training &= not isinstance(module, NORMS)
        losses = [
            _losses(trial, leaves(batch, partial(torch.index_select, dim=0, index=torch.cat(parts))), state)
            for parts in ((first, second), (one, another), (first, another), (one, second))
        ]
        means = [each.mean() for each in losses]
        together, exchanged = means[0] + means[1], means[2] + means[3]
        if not torch.isclose(together, exchanged, rtol=ROUNDED, atol=0):
            raise _wrong(
                trial,
                "loss",
                f"of a pass is no mean over its samples: two passes have losses of {together:.4g} together, "
                f"and of {exchanged:.4g} once they exchange halves, so that passes of another size train "
                f"another objective",
                "have the model return a mean of losses that are each of one sample, write a loss that "
                "returns one a sample, or set whole_batch = True",
            )
    model.load_state_dict(state)
    model.eval()


def _losses(trial: TrialModel, batch: Batch, state: Mapping[str, Tensor], *, seed: int = 0) -> Tensor:
    """Returns the losses of a batch by the model in this state, or what its samples are encoded as."""
    trial.model.load_state_dict(state)
    own = copy.deepcopy(pack_own_state(trial.workload))
    seed_all(seed)
    with torch.no_grad():
        losses = _encoded(trial, batch) if is_encoded(trial.workload) else by_sample(trial.loss(batch))
    load_own_state(trial.workload, *own)
    return losses


def _expect_same_loss(trial: TrialModel, batch: Batch) -> None:
    """Raises ParamsError where `loss` is not `batch_loss` of what the samples are encoded as."""
    workload: Any = trial.workload
    trial.model.eval()
    with torch.no_grad():
        seed_all(0)
        one = by_sample(trial.loss(batch))
        seed_all(0)
        other = workload.batch_loss(workload.encode(trial.model, batch))
    if not close(other, one):
        raise _wrong(
            trial,
            "batch_loss",
            f"of what encode returns is {other.mean():.4g}, and loss is {one.mean():.4g}: passes and workers "
            f"take the former, and one pass the latter",
            "return self.batch_loss(self.encode(model, batch)) from loss",
        )


def _encoded(trial: TrialModel, batch: Batch) -> Tensor:
    """Returns all numbers of what each sample is encoded as, shape [b, numbers]."""
    encoded: Any = trial.workload.encode(trial.model, batch)
    return torch.cat([each.double().reshape(len(each), -1) for each in tensors(encoded)], 1)


def close(some: Tensor, others: Tensor) -> bool:
    """Returns whether values are the same but for the order of sums."""
    if some.shape != others.shape or not some.is_floating_point():
        return torch.equal(some, others)
    known = others[~others.isnan()]  # an auxiliary label is nan where it is not known
    scale = float(known.abs().mean()) if known.numel() else 0.0
    return torch.allclose(some, others, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True)


def _differing(one: TrialModel, other: TrialModel, *, kinds: tuple[type, ...] = PLAIN) -> list[str]:
    """Returns the attributes of these kinds in which the modules and the workloads of two trials differ."""
    ours, theirs = _attributes(one, kinds), _attributes(other, kinds)
    return [f"{name} ({value})" for name, value in ours.items() if theirs.get(name) != value][:3]


def _attributes(trial: TrialModel, kinds: tuple[type, ...]) -> Mapping[str, str]:
    holders: dict[str, Any] = {type(trial.workload).__name__: trial.workload}
    root = type(trial.model).__name__
    holders |= {f"{root}.{name}" if name else root: module for name, module in trial.model.named_modules()}
    return {
        f"{holder}.{name}": f"{value!r:.40}"
        for holder, held in holders.items()
        for name, value in vars(held).items()
        if isinstance(value, kinds) and name not in OF_TORCH
    }


def _wrong(trial: TrialModel, method: str, what: str, wanted: str) -> ParamsError:
    return ParamsError(f"{type(trial.workload).__name__}.{method} {what}; {wanted}")
