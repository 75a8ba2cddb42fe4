"""Averages the weights of a run into those that are scored and served.

An exponential average (EMA) forgets: its decay is for updates of the base batch size, and is decay ** k for
batches k times as large (Busbridge et al. 2023). Until it remembers as many updates as it ever will, about
1 / (1 - decay), it is their plain mean, so that the first weights do not count for more. A plain mean of the
last updates (Izmailov et al. 2018) begins at a share of the samples before the end, and anew where the end
moves back so far.

Statistics such as those of BatchNorm are averaged with the weights; whole numbers, and what modules keep
beside tensors, are taken as they are.
"""

from typing import TYPE_CHECKING, Any

from daybreak.training.checkpoint import TrainingState
from daybreak.training.recipe import AVERAGE, Averaging

if TYPE_CHECKING:
    from torch import Tensor

    from daybreak.training.engine import TorchEngine
    from daybreak.training.estimator_engine import EstimatorEngine

SINGLE = 4  # bytes of a number that an average moves by; in fewer its steps would be lost


class WeightAverage:
    """The average of a run's weights so far; where weights are divided, each worker keeps its shares."""

    def __init__(
        self, engine: "TorchEngine | EstimatorEngine", averaging: Averaging, *, base_size: int
    ) -> None:
        self._engine, self._averaging, self._base_size = engine, averaging, base_size
        self._num_updates = 0  # that are averaged
        self._tensors: dict[str, Tensor] = {}

    def add(self, *, seen: int, end: int, batch_size: int) -> None:
        """Takes in the weights after the update up to position `seen` of a run that ends at `end`."""
        averaging = self._averaging
        if averaging.last and seen <= (1 - averaging.last) * end:
            self._num_updates = 0
            self._tensors.clear()
            return
        share = 1 / (self._num_updates + 1)
        if averaging.ema:
            share = max(share, 1 - averaging.ema ** (batch_size / self._base_size))
        self._num_updates += 1
        self._move(share)

    def _move(self, share: float) -> None:
        """Moves the average by a share of its distance to the weights of this moment."""
        for name, weight in self._engine.model.state_dict().items():
            if share == 1:
                is_short = weight.is_floating_point() and weight.element_size() < SINGLE
                self._tensors[name] = (weight.float() if is_short else weight).detach().clone()
            elif weight.is_floating_point() or weight.is_complex():
                average = _local(self._tensors[name])
                average.lerp_(_local(weight).to(average.dtype), share)
            else:
                self._tensors[name] = weight.detach().clone()  # what is no number may change its length

    def tensors(self) -> "dict[str, Tensor]":
        """Returns the average as this worker holds it, until the next update, or the newest weights."""
        own = self._engine.model.state_dict()
        return {name: each.to(own[name].dtype) for name, each in self._tensors.items()} or dict(own)

    def weights(self) -> "dict[str, Tensor]":
        """Returns the whole average on worker 0, or the newest weights; all workers call it together."""
        return self._engine.whole(self.tensors())

    def save(self, state: TrainingState) -> None:
        """Adds the average to the state of a run; all workers call it together."""
        if self._tensors:
            state.tensors[AVERAGE] = self._engine.whole(self._tensors)
        state.scalars["averaged_updates"] = self._num_updates

    def load(self, state: TrainingState) -> None:
        """Takes the average of a state over; a later update changes no tensor of it."""
        own = self._engine.model.state_dict()
        shares = self._engine.shares(state.tensors.get(AVERAGE, {}))
        self._tensors = {name: share.to(own[name].device, copy=True) for name, share in shares.items()}
        self._num_updates = state.scalars.get("averaged_updates", 0)


def _local(tensor: Any) -> "Tensor":
    """Returns what this worker holds of a tensor that is divided among workers."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local
