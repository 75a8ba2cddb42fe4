"""The network's forces, and one day that goes through every seam, as `python -m pipeline try` shows it."""

from pathlib import Path

import pytest
import torch
from copper import NUM_ATOMS
from pair_potential import PairPotential, pair_sums
from potential import NUM_BASIS, Potential
from torch import Tensor
from trajectories import Trajectories

from pipeline.rehearsal import rehearse

NUDGE = 1e-5  # Angstrom


def cluster() -> Tensor:
    """Returns the positions of a cluster whose atoms are some Angstrom apart, [1, n, 3]."""
    torch.manual_seed(0)
    grid = torch.cartesian_prod(*(torch.arange(3.0),) * 3)[:NUM_ATOMS]
    return 2.5 * grid[None].double() + 0.2 * torch.randn(1, NUM_ATOMS, 3, dtype=torch.float64)


def nudged(positions: Tensor, by: float) -> Tensor:
    """Returns the positions with one coordinate moved."""
    moved = positions.clone()
    moved[0, 1, 2] += by
    return moved


def test_forces_are_minus_the_slope_of_the_energy() -> None:
    positions, network = cluster(), Potential(energy=11.0, force=0.6).double().eval()
    curve = PairPotential(coefficients=torch.randn(NUM_BASIS, dtype=torch.float64))
    up, down = nudged(positions, NUDGE), nudged(positions, -NUDGE)
    slope = (network(up)[0] - network(down)[0])[:, 0] / (2 * NUDGE)
    assert torch.allclose(network(positions)[1][:, 0, 1, 2], -slope, rtol=1e-6, atol=1e-9)
    of_curve = (pair_sums(up) - pair_sums(down)) @ curve.coefficients / (2 * NUDGE)
    assert torch.allclose(curve.forces(positions)[0, 1, 2], -of_curve, rtol=1e-6)


def test_a_cluster_that_is_turned_and_numbered_anew_has_the_same_energy() -> None:
    positions, network = cluster(), Potential(energy=11.0, force=0.6).double().eval()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
    order = torch.randperm(NUM_ATOMS)
    energies, forces = network((positions @ turn)[:, order])
    assert torch.allclose(energies, network(positions)[0])
    assert torch.allclose(forces, (network(positions)[1] @ turn)[:, :, order])


def test_one_day_goes_through_every_seam() -> None:
    if not Trajectories().days():
        pytest.skip("no bag is closed yet; run one as README.md says")
    rehearse(Path(__file__).parent)
