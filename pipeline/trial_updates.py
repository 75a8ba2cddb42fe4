"""Tries what training does with a team's model and loss, beside one update (pipeline/seams.py).

Training restarts from checkpoints, splits a batch into passes and among workers, and repeats a run of one
seed bit for bit. Each is tried on a batch; what does not hold is one sentence that names the method to fix.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.contract.errors import ParamsError
from pipeline.contract.workload import Batch, State, make_model
from pipeline.training.checkpoint import pack, unpack
from pipeline.training.learning_rate import rate_shares
from pipeline.training.tuning import halves, normalised, schedules_rate

GENTLE = 0.1  # of the rate: training warms up to it
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
CLOSE = 1e-3  # of a value and of the mean of all, where sums may be taken in another order
PLAIN = (bool, int, float, str, list, tuple, dict, set, Tensor)  # values that a module may keep as attributes


class Trial:
    """A model in training: as `workload` makes it, from a seed."""

    def __init__(self, workload: Any, state: State, *, seed: int, rate: float) -> None:
        torch.manual_seed(seed)
        self.workload, self._rate = workload, GENTLE * rate
        self.model = make_model(workload, state)
        self.model.train()
        self.optimizer: Optimizer = workload.optimizer(self.model.parameters())
        self._parts = rate_shares(group.get("lr") for group in self.optimizer.param_groups)
        self._num_updates = 0
        self.losses: list[float] = []

    def update(self, batch: Batch) -> None:
        """Takes an update as the engine does: seeded by its number, with the rate that training sets."""
        self._num_updates += 1
        torch.manual_seed(self._num_updates)
        for group, part in zip(self.optimizer.param_groups, self._parts, strict=True):
            group["lr"] = self._rate * part
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.model, batch).mean()
        loss.backward()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))

    def resume(self, other: "Trial") -> None:
        """Takes over what a checkpoint holds of another."""
        self.model.load_state_dict(copy.deepcopy(other.model.state_dict()))
        self.optimizer.load_state_dict(unpack(*copy.deepcopy(pack(other.optimizer.state_dict()))))
        self._num_updates = other._num_updates

    def is_like(self, other: "Trial") -> bool:
        """Returns whether both had the same loss in the newest update, and have the same weights."""
        ours, theirs = self.model.state_dict(), other.model.state_dict()
        return self.losses[-1] == other.losses[-1] and all(
            torch.equal(value, theirs[name]) for name, value in ours.items()
        )


def try_updates(
    make: Callable[[], Any], state: State, batch: Batch, *, size: int, seed: int, rate: float
) -> nn.Module:
    """Returns a model after some updates of a batch of `size` samples.

    Raises ParamsError where they are not what training takes them for. `make` makes the workload anew, as a
    process that starts does.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    trial = Trial(make(), state, seed=seed, rate=rate)
    if schedules_rate(trial.optimizer):
        raise _wrong(
            trial, "optimizer", "attaches a scheduler, whose rate training overwrites at each update",
            f"leave it out, and set train.rate ({rate:g}), train.warmup and train.decay",
        )  # fmt: skip
    trial.update(batch)
    again = Trial(make(), state, seed=seed, rate=rate)
    again.update(batch)
    if not trial.is_like(again):
        raise _wrong(
            trial, "loss",
            f"of two runs of one seed differs: {trial.losses[0]:.6g} and {again.losses[0]:.6g} in their "
            f"first update, or the weights after it",
            "draw random numbers from torch, whose generator training seeds, not from random or numpy",
        )  # fmt: skip
    del again
    restarted = Trial(make(), state, seed=seed, rate=rate)
    restarted.resume(trial)
    trial.update(batch)
    restarted.update(batch)
    if not trial.is_like(restarted):
        lost = _differing(trial, restarted)
        named = f", which loses {', '.join(lost)}" if lost else ""
        raise _wrong(
            trial, "model",
            f"keeps state that no checkpoint holds: the loss of an update is {trial.losses[-1]:.6g}, and "
            f"{restarted.losses[-1]:.6g} after a restart{named}",
            "keep it in parameters or buffers (register_buffer), or in the state of the optimizer",
        )  # fmt: skip
    _check_independent(trial, batch, size)
    return trial.model


def note_of_rate(optimizer: Optimizer, rate: float) -> str:
    """Returns that a rate which `optimizer` sets is replaced; "" where it sets none, or the same."""
    lr = inspect.signature(type(optimizer)).parameters.get("lr")
    named = [group["lr"] for group in optimizer.param_groups if isinstance(group.get("lr"), float)]
    largest = max(named, default=rate)
    if largest in (rate, lr.default if lr else None):
        return ""
    return (
        f"optimizer sets a rate of {largest:g}, and training takes train.rate: {rate:g} in its place, with "
        f"train.warmup and train.decay; groups keep their ratio to the largest"
    )


def _check_independent(trial: Trial, batch: Batch, size: int) -> None:
    """Raises ParamsError where the loss of a sample depends on which others are in its pass."""
    parts = halves(batch, size)
    if len(parts) < 2:
        return
    model, workload = trial.model, trial.workload
    with torch.no_grad():
        for mode in ("eval", "train"):
            model.train(mode == "train")
            for module in model.modules():
                module.training &= not isinstance(module, DROPOUTS)
            if mode == "train" and (normalised(model) or not _is_steady(trial, batch)):
                continue
            whole, half = workload.loss(model, batch), workload.loss(model, parts[0])
            if not close(half, whole[: len(half)]):
                raise _wrong(
                    trial, "loss",
                    f"of the first {len(half)} samples is {half.mean():.4g} alone, and "
                    f"{whole[: len(half)].mean():.4g} among {size}: it depends on the other samples of the "
                    f"batch, and passes of another size train another objective",
                    "compute the loss of a sample from that sample alone",
                )  # fmt: skip
    model.eval()


def _is_steady(trial: Trial, batch: Batch) -> bool:
    """Returns whether the loss is the same whatever is drawn."""
    losses = []
    for seed in range(2):
        torch.manual_seed(seed)
        losses.append(trial.workload.loss(trial.model, batch))
    return torch.equal(*losses)


def close(some: Tensor, others: Tensor) -> bool:
    """Returns whether values are the same but for the order of sums."""
    if some.shape != others.shape or not some.is_floating_point():
        return torch.equal(some, others)
    scale = float(others.abs().mean()) if others.numel() else 0.0
    return torch.allclose(some, others, rtol=CLOSE, atol=CLOSE * scale, equal_nan=True)


def _differing(one: Trial, other: Trial) -> list[str]:
    """Returns the plain attributes in which the modules and the workloads of two trials differ."""
    ours, theirs = _attributes(one), _attributes(other)
    return [f"{name} ({value})" for name, value in ours.items() if theirs.get(name) != value][:3]


def _attributes(trial: Trial) -> Mapping[str, str]:
    holders: dict[str, Any] = {type(trial.workload).__name__: trial.workload}
    root = type(trial.model).__name__
    holders |= {f"{root}.{name}" if name else root: module for name, module in trial.model.named_modules()}
    return {
        f"{holder}.{name}": f"{value!r:.40}"
        for holder, held in holders.items()
        for name, value in vars(held).items()
        if isinstance(value, PLAIN) and not name.startswith("_")
    }


def _wrong(trial: Trial, method: str, what: str, wanted: str) -> ParamsError:
    return ParamsError(f"{type(trial.workload).__name__}.{method} {what}; {wanted}")
