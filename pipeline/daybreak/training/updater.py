"""Changes the weights by the workload's optimizers, with the rate and options that a batch size needs."""

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from daybreak.contract.errors import JobError, ParamsError, is_out_of_memory
from daybreak.training.checkpoint import pack, unpack
from daybreak.training.learning_rate import Rule, Scaled, rate_shares, scaled
from daybreak.training.process_group import WorkerGroup
from daybreak.training.tuning import ShardedOptimizer, Tuner, check_optimizer, rule_of, schedules_rate

log = logging.getLogger(__name__)

SCALED = ("betas", "eps")  # options of an optimizer that a rule changes, besides its rate
LEAST_FACTOR = 2.0**-14  # of float16: its largest number times this is 4, and no gradient is that much larger
# Options that change what an optimizer does with what it keeps, and not what that is.
STATELESS = (
    "lr",
    "initial_lr",
    "weight_decay",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "maximize",
)


class Updater:
    """The optimizers of a worker: rate, options, and the moments as a whole.

    In float16, gradients are those of the loss times a factor, which `scaler` sets so that they neither
    vanish nor overflow; an optimizer whose gradients overflow skips the update.
    """

    def __init__(
        self, optimizers: Mapping[str, Optimizer], *, model: nn.Module, tuner: Tuner, group: WorkerGroup
    ) -> None:
        for optimizer in optimizers.values():
            check_optimizer(optimizer)
        if any(map(schedules_rate, optimizers.values())):
            log.warning(
                "the scheduler that optimizer() attaches changes nothing, as training sets the rate at each "
                "update; set train.rate, train.warmup and train.schedule"
            )
        self.optimizers = {name: tuner.optimizer(each) for name, each in optimizers.items()}
        self._tuner, self._group, self._model = tuner, group, model
        self._weights = _weights(optimizers, model)
        self._sharded: dict[str, ShardedOptimizer] = {}
        if tuner.tuning.sharded and not tuner.tuning.sharded_weights and group.world_size > 1:
            self._sharded = {
                name: ShardedOptimizer(each, rank=group.rank, world_size=group.world_size)
                for name, each in self.optimizers.items()
            }
        self._base = [{name: each.get(name) for name in SCALED} for each in self.groups()]
        self.rate_shares = rate_shares(each.get("lr") for each in self.groups())
        self._factors = [1.0] * len(
            self.rate_shares
        )  # of the rate of each group, by the rule of its optimizer
        self.scaler: torch.amp.GradScaler | None = None
        self.num_skipped = 0
        if tuner.tuning.precision == "float16":
            self.scaler = torch.amp.GradScaler(tuner.device.type)
            self.scaler.scale(torch.zeros((), device=tuner.device))  # makes the factor, also without a pass

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer; raises ParamsError where there are several."""
        if len(self.optimizers) > 1:
            raise ParamsError(
                f"optimizer returns {', '.join(self.optimizers)}, and one is wanted here; return one "
                f"(key workload)"
            )
        return next(iter(self.optimizers.values()))

    def groups(self) -> Iterator[dict[str, Any]]:
        """Yields the groups of weights of all optimizers."""
        for optimizer in self.optimizers.values():
            yield from optimizer.param_groups

    def set_rate(self, rate: float) -> None:
        """Sets the rate of each group of weights, given that of the largest."""
        for each, part, factor in zip(self.groups(), self.rate_shares, self._factors, strict=True):
            each["lr"] = rate * part * factor

    def _stepping(self, names: Collection[str] | None) -> "list[Optimizer | ShardedOptimizer]":
        """Returns the optimizers of these names, or all, in the order that all workers have."""
        return [
            self._sharded.get(name, each)
            for name, each in self.optimizers.items()
            if names is None or name in names
        ]

    def unscale(self, names: Collection[str] | None) -> float:
        """Takes the factor of float16 out of the gradients of these optimizers, and returns it."""
        if not self.scaler:
            return 1.0
        stepping = list(filter(_has_gradient, self._stepping(names)))
        for optimizer in stepping:
            self.scaler.unscale_(optimizer)  # type: ignore[arg-type]
        # One that overflowed skips the update. In the norm of all, by which they are clipped, its gradients
        # would make those of the others no numbers, too.
        if len(stepping) > 1 and self.scaler.get_scale() >= LEAST_FACTOR:
            for optimizer in stepping:
                gradients = _gradients(optimizer)
                if not all(map(_is_finite, gradients)):
                    for gradient in gradients:
                        gradient.zero_()
        return self.scaler.get_scale()

    def step(self, names: Collection[str] | None = None) -> None:
        """Changes the weights by these optimizers, or by all; call `unscale` before.

        There is no retry, as some weights may have changed when memory ran out.
        """
        stepping = self._stepping(names)
        if (
            self.scaler
        ):  # which raises for an optimizer without gradients, as where all its weights are frozen
            stepping = list(filter(_has_gradient, stepping))
        try:
            for optimizer in stepping:
                if self.scaler:
                    self.scaler.step(optimizer)  # type: ignore[arg-type]
                else:
                    optimizer.step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise JobError(
                "memory does not suffice for what the optimizer keeps, in passes of any size; take one "
                "that keeps less (key workload), or name a machine with more memory in plan.machines"
            ) from error
        if self.scaler and stepping:
            self._adapt(self.scaler)

    def not_finite(self) -> list[str]:
        """Returns the weights whose gradients are not finite once no factor of float16 can mend that."""
        if not self.scaler or self.scaler.get_scale() >= LEAST_FACTOR:
            return []
        named = self._model.named_parameters()
        return [name for name, each in named if each.grad is not None and not _is_finite(each.grad)]

    def _adapt(self, scaler: torch.amp.GradScaler) -> None:
        """Sets the next factor, and counts the update as skipped if gradients have overflowed."""
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() < before:
            self.num_skipped += 1
            if not self._group.rank:
                log.warning(
                    "gradients of an update overflow in float16 at a factor of %g, so their optimizer skips "
                    "it; %d so far",
                    before,
                    self.num_skipped,
                )

    def rescale(self, *, batch_size: int, base_size: int, rule: Rule) -> Scaled:
        """Changes betas and eps by the rules of the optimizers; returns what holds for all of them.

        The rate is that of the optimizer whose grows most; `set_rate` gives each its own.
        """
        scalings = []
        base = iter(self._base)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                options = next(base)
                scaling = scaled(
                    rule_of(optimizer),
                    name=type(optimizer).__name__,
                    rule=rule,
                    batch_size=batch_size,
                    base_size=base_size,
                    betas=tuple(options["betas"] or ()),
                    eps=options["eps"] or 0.0,
                )
                group |= {name: getattr(scaling, name) for name in SCALED if options[name] is not None}
                scalings.append(scaling)
        rate = max(each.rate for each in scalings)
        self._factors = [each.rate / rate for each in scalings]
        return Scaled(
            rate=rate,
            warmup=max(each.warmup for each in scalings),
            most_times=min(each.most_times for each in scalings),
        )

    def save(self) -> tuple[dict[str, Tensor], Any]:
        """Returns the tensors of the whole state on worker 0, and the tree that they are the leaves of."""
        state: dict[str, Any] = {name: self._whole_state(name) for name in self.optimizers}
        scaler = self.scaler.state_dict() if self.scaler else None
        kept = {"optimizers": state, "kinds": self._kinds(), "weights": self._weights, "scaler": scaler}
        return pack(kept)

    def load(self, tensors: dict[str, Tensor], tree: Any) -> None:
        """Restores a whole state, of which each worker keeps its part."""
        state = unpack(tensors, tree)
        self._load(state["optimizers"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])

    def carry(self, tensors: dict[str, Tensor], tree: Any) -> bool:
        """Takes over the moments of another run's whole state, and keeps its own options.

        Returns False and changes nothing where they are of other optimizers or other weights, or where an
        option needs what those optimizers did not keep.
        """
        state = unpack(tensors, tree)
        own = {name: each.state_dict()["param_groups"] for name, each in self.optimizers.items()}
        if state["kinds"] != self._kinds() or state["weights"] != self._weights:
            return False
        if any(
            _needs_more(group, of_state)
            for name, groups in own.items()
            for group, of_state in zip(groups, state["optimizers"][name]["param_groups"], strict=True)
        ):
            return False
        self._load({name: {**state["optimizers"][name], "param_groups": own[name]} for name in own})
        return True

    def _kinds(self) -> dict[str, str]:
        return {name: type(each).__name__ for name, each in self.optimizers.items()}

    def _load(self, states: Mapping[str, dict[str, Any]]) -> None:
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(self._own_state(optimizer, states[name]))
            self._tuner.optimizer(optimizer)
        for sharded in self._sharded.values():
            sharded.drop_others_state()

    def _whole_state(self, name: str) -> dict[str, Any]:
        """Returns the whole state of an optimizer on worker 0; all workers call it together."""
        return self._sharded.get(name, self.optimizers[name]).state_dict()

    def _own_state(self, optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Returns this worker's part of a whole state, before it goes to the device."""
        return state


def _weights(optimizers: Mapping[str, Optimizer], model: nn.Module) -> dict[str, list[list[list[Any]]]]:
    """Returns name and shape of the weights of each group of each optimizer, in their order.

    An optimizer keeps its state by the place of a weight, which says nothing once a class was edited.
    """
    names = {id(each): name for name, each in model.named_parameters()}
    return {
        name: [
            [[names.get(id(each), ""), list(each.shape)] for each in group["params"]]
            for group in optimizer.param_groups
        ]
        for name, optimizer in optimizers.items()
    }


def _has_gradient(optimizer: "Optimizer | ShardedOptimizer") -> bool:
    """Returns whether a weight of the optimizer has a gradient."""
    return bool(_gradients(optimizer))


def _gradients(optimizer: "Optimizer | ShardedOptimizer") -> list[Tensor]:
    """Returns the gradients of the optimizer's weights, of those that have one."""
    weights = (each for group in optimizer.param_groups for each in group["params"])
    return [each.grad for each in weights if each.grad is not None]


def _is_finite(gradient: Tensor) -> bool:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.isfinite().all())


def _needs_more(options: Mapping[str, Any], of_state: Mapping[str, Any]) -> bool:
    """Returns whether an option is on that was off when the state was kept, such as `amsgrad`."""
    return any(
        value and not of_state.get(name)
        for name, value in options.items()
        if name not in STATELESS and name != "params"
    )
