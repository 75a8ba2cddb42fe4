"""A linear model of distances: what a network must beat.

The energy is a sum over pairs of a curve of the distance, linear in the bumps that the network reads as well:

    E = c_0 + sum_{i<j} sum_k c_k g_k(r_ij),    g_k = bump_k * nearness,    F_i = -dE/dx_i

Energies and forces of the training frames give c by least squares, weighed as in the network's loss.
"""

from dataclasses import dataclass

import torch
from potential import basis, distances, nearness
from torch import Tensor

ENERGY_WEIGHT = 0.1  # as in the network's loss, 1/Angstrom^2
RIDGE = 1e-9  # of the largest square: bumps where no pair ever is have no coefficient
FRAMES_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class PairPotential:
    """A fitted curve."""

    coefficients: Tensor  # float64, [NUM_BASIS]

    @classmethod
    def fitted(cls, positions: Tensor, reference: Tensor) -> "PairPotential":
        """Returns the best curve for frames, [b, n, 3], and their energy and forces, [b, 1 + 3 n]."""
        size = positions.shape[1] * 3
        sums = torch.cat([pair_sums(part) for part in torch.split(positions, FRAMES_AT_ONCE)])
        off = reference[:, 0].double() - reference[:, 0].double().mean()
        sums = sums - sums.mean(dim=0)
        square, right = ENERGY_WEIGHT * sums.T @ sums, ENERGY_WEIGHT * sums.T @ off
        parts = torch.split(positions, FRAMES_AT_ONCE), torch.split(reference[:, 1:], FRAMES_AT_ONCE)
        for part, forces in zip(*parts, strict=True):
            columns = pair_forces(part).reshape(len(part) * size, -1)
            square, right = (
                square + columns.T @ columns / size,
                right + columns.T @ forces.double().flatten() / size,
            )
        ridge = RIDGE * square.diagonal().max() * torch.eye(len(square), dtype=square.dtype)
        return cls(coefficients=torch.linalg.solve(square + ridge, right))

    def forces(self, positions: Tensor) -> Tensor:
        """Returns the forces on atoms, eV per Angstrom, shape [b, n, 3]."""
        return torch.cat(
            [pair_forces(part) @ self.coefficients for part in torch.split(positions, FRAMES_AT_ONCE)]
        )


def pair_sums(positions: Tensor) -> Tensor:
    """Returns the sum over pairs of each curve, float64 [b, NUM_BASIS]."""
    return _curves(distances(positions.double())).sum(dim=(1, 2)) / 2


def pair_forces(positions: Tensor) -> Tensor:
    """Returns the force of each curve on each atom, float64 [b, n, 3, NUM_BASIS]."""
    place = positions.double()
    apart = distances(place)
    slope = _slopes(apart)
    direction = (place[:, :, None] - place[:, None]) / apart[..., None]
    return -torch.einsum("bijk,bijx->bixk", slope, direction)


def _curves(apart: Tensor) -> Tensor:
    curves: Tensor = basis(apart) * nearness(apart)[..., None]
    return curves


def _slopes(apart: Tensor) -> Tensor:
    """Returns the derivative of each curve, shape [..., n, n, NUM_BASIS]."""
    distance = apart.detach().requires_grad_()
    curves = _curves(distance).unbind(dim=-1)
    return torch.stack(
        [torch.autograd.grad(curve.sum(), distance, retain_graph=True)[0] for curve in curves], dim=-1
    )
