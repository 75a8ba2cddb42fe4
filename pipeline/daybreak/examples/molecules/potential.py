"""A small SchNet: the energy of a cluster by a network of distances, and forces as minus its gradient.

Each atom has features x_i, at first the same for all. A layer adds what the neighbours tell, by filters of
the distance (Schuett et al. 2017, continuous-filter convolutions):

    x_i <- x_i + MLP( sum_j  V x_j * W(r_ij) ),    W(r) = MLP(radial basis of r) * cutoff(r)

and the energy is the sum of a network of each x_i. It is smooth in the positions, and the same however the
cluster is turned or its atoms are numbered. `NUM_MEMBERS` networks are computed at once, each with weights of
its own: the mean is the prediction, and the spread says where it is not to be trusted.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

NUM_MEMBERS = 3
CUTOFF = 7.0  # Angstrom; beyond the diameter of the cluster
NUM_BASIS = 20


def distances(positions: Tensor) -> Tensor:
    """Returns the distances of atoms, Angstrom, shape [..., n, n], and 1 for an atom and itself."""
    apart = positions[..., :, None, :] - positions[..., None, :, :]
    itself = torch.eye(positions.shape[-2], dtype=positions.dtype, device=positions.device)
    squares: Tensor = apart.square().sum(dim=-1) + itself  # the root has no gradient at 0
    return squares.sqrt()


def basis(distance: Tensor) -> Tensor:
    """Returns bumps of the distance, shape [..., n, n, NUM_BASIS]."""
    centres = torch.linspace(1.5, CUTOFF, NUM_BASIS, dtype=distance.dtype, device=distance.device)
    width = (CUTOFF - 1.5) / (NUM_BASIS - 1)
    return torch.exp(-0.5 * ((distance[..., None] - centres) / width).square())


def nearness(distance: Tensor) -> Tensor:
    """Returns what falls smoothly to 0 at CUTOFF, and is 0 for an atom and itself, shape [..., n, n]."""
    others = 1 - torch.eye(distance.shape[-1], dtype=distance.dtype, device=distance.device)
    return 0.5 * (torch.cos(math.pi * distance.clamp(max=CUTOFF) / CUTOFF) + 1) * others


class Dense(nn.Module):
    """A linear layer of each member, shape [members, ..., inputs] -> [members, ..., outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(NUM_MEMBERS, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(NUM_MEMBERS, 1, outputs))

    def forward(self, values: Tensor) -> Tensor:
        """Returns the outputs."""
        flat = values.reshape(NUM_MEMBERS, -1, values.shape[-1])
        return torch.baddbmm(self.bias, flat, self.weight).reshape(*values.shape[:-1], -1)


class Mlp(nn.Module):
    """Two layers with a smooth step between them, since a force is a derivative."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = Dense(inputs, hidden), Dense(hidden, outputs)

    def forward(self, values: Tensor) -> Tensor:
        """Returns the outputs."""
        out: Tensor = self.second(softplus(self.first(values)) - math.log(2.0))
        return out


class Potential(nn.Module):
    """Energies and forces of clusters, by each member.

    Args:
        energy: mean energy of the training frames, eV.
        force: their root mean square force, eV per Angstrom.
        width: features of an atom.
        num_layers: how far neighbours of neighbours are heard.
    """

    def __init__(self, *, energy: float, force: float, width: int = 16, num_layers: int = 2) -> None:
        super().__init__()
        self.energy, self.force = energy, force
        self.atom = nn.Parameter(torch.randn(NUM_MEMBERS, 1, 1, width))
        self.filters = nn.ModuleList(Mlp(NUM_BASIS, width, width) for _ in range(num_layers))
        self.inward = nn.ModuleList(Dense(width, width) for _ in range(num_layers))
        self.outward = nn.ModuleList(Mlp(width, width, width) for _ in range(num_layers))
        self.readout = Mlp(width, width, 1)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns energies, eV, [members, b], and forces, eV per Angstrom, [members, b, n, 3].

        In training the forces have a gradient of their own. They are computed as well where gradients are
        switched off, as in scoring.
        """
        with torch.inference_mode(False), torch.enable_grad():
            # a copy for each member, whose gradients then stay apart
            place = positions.detach().clone().repeat(NUM_MEMBERS, 1, 1, 1).requires_grad_()
            energies = self._energies(place)
            (slope,) = torch.autograd.grad(energies.sum(), place, create_graph=self.training)
        if self.training:
            return energies, -slope
        return energies.detach(), -slope

    def _energies(self, positions: Tensor) -> Tensor:
        """Returns energies, [members, b], of positions [members, b, n, 3]."""
        apart = distances(positions)
        bumps, near = basis(apart), nearness(apart)[..., None]
        atoms = self.atom.expand(*positions.shape[:3], -1)
        for filters, inward, outward in zip(self.filters, self.inward, self.outward, strict=True):
            heard = (inward(atoms)[:, :, None] * filters(bumps) * near).sum(dim=3)
            atoms = atoms + outward(heard)
        out: Tensor = self.energy + self.force * self.readout(atoms).sum(dim=(2, 3))
        return out
