"""A cluster of 13 copper atoms: what reference and network both simulate.

Positions are in Angstrom, energies in eV, and velocities in ASE's unit, in which a mass in atomic units times
a squared velocity is an energy in eV.
"""

import numpy as np
from numpy.typing import NDArray

NUM_ATOMS = 13
MASS = 63.546  # of each, atomic units
BOLTZMANN = 8.617330337217213e-05  # eV per K
FS = 0.09822694788464063  # a femtosecond, in ASE's unit of time
STEP = 5 * FS
FRAMES = 20  # that are kept of a trajectory

Floats = NDArray[np.float64]


def thermal(temperature: float, positions: Floats, rng: np.random.Generator) -> Floats:
    """Returns velocities by Maxwell and Boltzmann, [n, 3], with which the cluster neither moves nor turns.

    `positions` are in Angstrom, [n, 3], and the temperature is in K.
    """
    drawn = np.sqrt(BOLTZMANN * temperature / MASS) * rng.standard_normal(positions.shape)
    arms, own = positions - positions.mean(axis=0), drawn - drawn.mean(axis=0)
    inertia = np.eye(3) * np.square(arms).sum() - arms.T @ arms
    turn = np.linalg.solve(inertia, np.cross(arms, own).sum(axis=0))
    return np.asarray(own - np.cross(turn, arms))
