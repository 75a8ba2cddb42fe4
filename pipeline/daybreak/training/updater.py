"""Changes the weights by the workload's optimizer, with the rate and options that a batch size needs."""

import logging
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from daybreak.contract.errors import JobError, is_out_of_memory
from daybreak.training.checkpoint import pack, unpack
from daybreak.training.learning_rate import Rule, Scaled, rate_shares, scaled
from daybreak.training.process_group import WorkerGroup
from daybreak.training.tuning import ShardedOptimizer, Tuner, check_optimizer, rule_of, schedules_rate

log = logging.getLogger(__name__)

SCALED = ("betas", "eps")  # options of an optimizer that a rule changes, besides its rate


class Updater:
    """The optimizer of a worker: rate, options, and the moments as a whole."""

    def __init__(self, optimizer: Optimizer, *, tuner: Tuner, group: WorkerGroup) -> None:
        check_optimizer(optimizer)
        if schedules_rate(optimizer):
            log.warning(
                "the scheduler that optimizer() attaches changes nothing, as training sets the rate at each "
                "update; set train.rate, train.warmup and train.schedule"
            )
        self.optimizer = tuner.optimizer(optimizer)
        self.kind, self._tuner, self._group = rule_of(self.optimizer), tuner, group
        self._sharded: ShardedOptimizer | None = None
        if tuner.tuning.sharded and not tuner.tuning.sharded_weights and group.world_size > 1:
            self._sharded = ShardedOptimizer(self.optimizer, rank=group.rank, world_size=group.world_size)
        self._base = [{name: each.get(name) for name in SCALED} for each in self.optimizer.param_groups]
        self.rate_shares = rate_shares(each.get("lr") for each in self.optimizer.param_groups)

    def set_rate(self, rate: float) -> None:
        """Sets the rate of each group of weights, given that of the largest."""
        for each, part in zip(self.optimizer.param_groups, self.rate_shares, strict=True):
            each["lr"] = rate * part

    def step(self) -> None:
        """Changes the weights; there is no retry, as some may have changed when memory ran out."""
        try:
            (self._sharded or self.optimizer).step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise JobError(
                "memory does not suffice for what the optimizer keeps, in passes of any size; take one "
                "that keeps less (key workload), or name a machine with more memory in plan.machines"
            ) from error

    def rescale(self, *, batch_size: int, base_size: int, rule: Rule) -> Scaled:
        """Changes betas and eps by the rule of the optimizer, and returns the changes."""
        scalings = []
        for group, base in zip(self.optimizer.param_groups, self._base, strict=True):
            scaling = scaled(
                self.kind,
                name=type(self.optimizer).__name__,
                rule=rule,
                batch_size=batch_size,
                base_size=base_size,
                betas=tuple(base["betas"] or ()),
                eps=base["eps"] or 0.0,
            )
            group |= {name: getattr(scaling, name) for name in SCALED if base[name] is not None}
            scalings.append(scaling)
        return min(scalings, key=lambda each: each.most_times)

    def save(self) -> tuple[dict[str, Tensor], Any]:
        """Returns the tensors of the whole state on worker 0, and the tree that they are the leaves of."""
        return pack(self._whole_state())

    def load(self, tensors: dict[str, Tensor], tree: Any) -> None:
        """Restores a whole state, of which each worker keeps its part."""
        self.optimizer.load_state_dict(self._own_state(unpack(tensors, tree)))
        self._tuner.optimizer(self.optimizer)
        if self._sharded:
            self._sharded.drop_others_state()

    def _whole_state(self) -> dict[str, Any]:
        """Returns the whole state of the optimizer on worker 0; all workers call it together."""
        return (self._sharded or self.optimizer).state_dict()

    def _own_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns this worker's part of a whole state, before it goes to the device."""
        return state
