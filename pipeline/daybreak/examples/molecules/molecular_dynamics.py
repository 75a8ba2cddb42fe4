"""Moves clusters by the forces of a network, and says how well their energy is kept.

Velocity Verlet (Swope et al. 1982) of many clusters at once. It keeps the energy of a smooth potential up to
a small ripple, as long as the step is short beside the fastest vibration: a drift means that the network has
kinks or holes where the roll-out went. Units are those of `copper`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from copper import MASS, STEP
from torch import Tensor, nn

STEPS = 1000  # of a roll-out that is judged


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Clusters at one step of a roll-out."""

    positions: Tensor  # [b, n, 3], float64
    velocities: Tensor  # [b, n, 3], float64
    energy: Tensor  # kinetic and potential, eV, [b], float64
    spread: Tensor  # of the members' forces, eV per Angstrom, [b]


def rolled_out(model: nn.Module, positions: Tensor, velocities: Tensor, *, steps: int) -> Iterator[Moment]:
    """Yields the clusters, [b, n, 3], as they are at first and after each of `steps`."""
    place, speed = positions.double(), velocities.double()
    energy, forces, spread = _mean(model, place)
    for left in range(steps, -1, -1):
        kinetic = 0.5 * MASS * speed.square().sum(dim=(1, 2))
        yield Moment(positions=place, velocities=speed, energy=energy + kinetic, spread=spread)
        if left:
            speed = speed + 0.5 * STEP / MASS * forces
            place = place + STEP * speed
            energy, forces, spread = _mean(model, place)
            speed = speed + 0.5 * STEP / MASS * forces


def drift(model: nn.Module, positions: Tensor, velocities: Tensor, *, steps: int = STEPS) -> Tensor:
    """Returns how far the energy ever was from that at first, eV an atom, [b]; infinite: it is lost."""
    moments = rolled_out(model, positions, velocities, steps=steps)
    first = next(moments).energy
    most = torch.zeros_like(first)
    for moment in moments:
        most = torch.maximum(most, (moment.energy - first).abs().nan_to_num(nan=torch.inf))
    return (most / positions.shape[1]).float()


def _mean(model: nn.Module, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the members' mean energy and forces, and the spread of these."""
    energies, forces = model(positions.float())
    spread = forces.var(dim=0).mean(dim=(1, 2)).sqrt()
    return energies.mean(dim=0).double(), forces.mean(dim=0).double(), spread
