"""Adds up the gradients of losses, each for the optimizer whose name it has.

A workload may have several optimizers of different weights, such as those of a generator and a critic. Its
loss then returns one tensor, by which all of them step, or one for each that steps in this update. The
gradient of a loss reaches the weights of its optimizer alone, though it is taken through those of others.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer

from daybreak.contract.errors import ParamsError

Losses = Tensor | Mapping[str, Tensor]


class Turns:
    """The weights of each optimizer."""

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        """Raises ParamsError where two optimizers have the same weight."""
        self._weights = {
            name: [weight for group in each.param_groups for weight in group["params"]]
            for name, each in optimizers.items()
        }
        owner: dict[int, str] = {}
        for name, weights in self._weights.items():
            for weight in weights:
                other = owner.setdefault(id(weight), name)
                if other != name:
                    raise ParamsError(
                        f"the optimizers {other} and {name} both have a weight of shape "
                        f"{list(weight.shape)}; give each weight to one of them (key workload)"
                    )

    @property
    def names(self) -> frozenset[str]:
        """The names of all optimizers."""
        return frozenset(self._weights)

    def backward(self, losses: Losses, weigh: Callable[[Tensor], Tensor]) -> tuple[Tensor, frozenset[str]]:
        """Adds the gradients of the sums of losses, weighed, to those of the weights.

        Returns the sum of all, and the names of the optimizers that step. Raises ParamsError for a name that
        no optimizer has.
        """
        if isinstance(losses, Tensor):
            loss = losses.sum()
            # As the argument of `backward`, the weight would have torch import its compiler's SymPy.
            weigh(loss).backward()  # type: ignore[no-untyped-call]
            return loss.detach(), self.names
        if not losses or losses.keys() - self._weights.keys():
            raise ParamsError(
                f"loss returns losses of {', '.join(losses) or 'nothing'}, and optimizer has "
                f"{', '.join(filter(None, self._weights)) or 'no names'}; name the optimizers that step "
                f"(key workload)"
            )
        sums = {name: each.sum() for name, each in losses.items()}
        inputs = {name: [each for each in self._weights[name] if each.requires_grad] for name in sums}
        trained = [name for name in sums if inputs[name]]  # not those whose weights are all frozen
        for name in trained:
            weighed, is_last = weigh(sums[name]), name == trained[-1]
            weighed.backward(inputs=inputs[name], retain_graph=not is_last)  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach() for loss in sums.values()]).sum(), frozenset(sums)


def by_sample(losses: Losses) -> Tensor:
    """Returns the sum over optimizers of the loss of each sample, shape [b]."""
    return losses if isinstance(losses, Tensor) else torch.stack(list(losses.values())).sum(0)
