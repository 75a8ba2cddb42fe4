"""The network's forces, the verdict on a drifting network, and a day through every integration check."""

from pathlib import Path

import numpy as np
import potential
import pytest
import torch
from copper import NUM_ATOMS, Floats, thermal
from molecular_dynamics import drift
from pair_potential import PairPotential, pair_sums
from potential import NUM_BASIS, Potential
from torch import Tensor
from trajectories import Trajectories

from daybreak import Status, judge_metrics, load_params, rehearse, rules_of

HOME = Path(__file__).parent
NUDGE = 1e-5  # Angstrom
EDGE = 5.6  # Angstrom; the atoms of a cluster that begins are nearer to each other


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


def test_a_network_that_drifts_is_rejected_by_the_gate_although_its_forces_are_as_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a sharp cutoff of the neighbourhood, energy jumps whenever an atom crosses the cutoff."""
    gate, smooth = load_params(HOME).gate, potential.nearness
    rng = np.random.default_rng(0)
    places = np.repeat(icosahedron()[None], gate.min_samples, axis=0)
    places += 0.05 * rng.standard_normal(places.shape)
    speeds = np.stack([thermal(900.0, place, rng) for place in places])
    torch.manual_seed(0)
    network = Potential(energy=11.0, force=0.6).eval()
    begin = torch.tensor(places, dtype=torch.float32), torch.tensor(speeds, dtype=torch.float32)
    answers = [each.mean(dim=0) for each in network(begin[0])]
    energies, forces = (each + 0.02 * torch.randn(each.shape) for each in answers)  # those of a reference

    def measured() -> dict[str, Tensor]:
        """Returns by metric a value for each cluster, meV an atom or per Angstrom; higher is better."""
        off_energy, off_forces = (
            1000 * (ours.mean(dim=0) - theirs).abs()
            for ours, theirs in zip(network(begin[0]), (energies, forces), strict=True)
        )
        return {
            "score": -off_forces.mean(dim=(1, 2)),
            "-energy error": -off_energy / NUM_ATOMS,
            "-energy drift": -1000 * drift(network, *begin),
        }

    champion = measured()
    monkeypatch.setattr(potential, "nearness", lambda distance: smooth(distance) * (distance < EDGE))
    drifting = measured()
    for challenger, status in ((champion, Status.NO_WORSE), (drifting, Status.WORSE)):
        result = judge_metrics(
            {name: (challenger[name].numpy(), champion[name].numpy()) for name in champion},
            success=("score",),
            guardrails=gate.guardrails,
            rules=rules_of(gate, refresh=True),
        )
        assert result.status is status, result.sentence
    assert result.sentence.startswith("guardrail -energy drift: ")
    assert torch.equal(drifting["score"], champion["score"])


def icosahedron() -> Floats:
    """Returns the positions of an atom and its twelve neighbours, Angstrom, [n, 3]."""
    golden = (1 + 5**0.5) / 2
    corners = [(0, one, other * golden) for one in (-1, 1) for other in (-1, 1)]
    turned = [np.roll(corner, by) for corner in corners for by in range(3)]
    atoms: Floats = np.concatenate([np.zeros((1, 3)), 2.5 / np.hypot(1, golden) * np.array(turned)])
    return atoms


def test_one_day_goes_through_every_step() -> None:
    if not Trajectories().days():
        pytest.skip("no bag is closed yet; run one as README.md says")
    rehearse(HOME)
