"""Assigns users to versions by a hash of user and experiment, so that nothing has to be remembered.

A unit is a user as the log knows it (`Log.unit_of`). Its place in an experiment is uniform in [0, 1) and the
same at any time and in any router; the unit meets the challenger where that place is below the challenger's
share. So a ramp only adds users to the challenger (a user of the challenger at 5 % stays at 25 %), and places
in different experiments are independent. The log has arm, share and unit, so assignment can be checked later.

Experiments that are on together share no unit: each has a slot, one of equal parts into which a hash of the
unit alone divides all (mutually exclusive experiments). So no user moves where one of them begins or ends.
"""

from hashlib import blake2b

CHAMPION = "champion"
CHALLENGER = "challenger"
SLOTS = "slots of units"  # salts the slot; no experiment has that name, as a night's has no blanks
STALE_S = 5.0  # age at which a container of an endpoint no longer trusts the traffic row that it read


def place(unit: str, experiment: str) -> float:
    """Place of the unit in the experiment, uniform in [0, 1).

    >>> place("9f3c", "2026-11-20") == place("9f3c", "2026-11-20") != place("9f3c", "2026-11-21")
    True
    """
    hashed = blake2b(unit.encode(), digest_size=8, key=_key(experiment)).digest()
    return (int.from_bytes(hashed) >> 11) / (1 << 53)  # 53 bits are exact in a float, and below 1


def slot_of(unit: str, num_slots: int) -> int:
    """Slot of the unit among so many, the same whatever is tested in it.

    >>> [slot_of("9f3c", num_slots) for num_slots in (1, 2, 4)]
    [0, 1, 3]
    """
    return int(num_slots * place(unit, SLOTS)) if num_slots > 1 else 0


def arm_of(unit: str, *, experiment: str, share: float) -> str:
    """Arm of the unit where the challenger has this share of the traffic.

    >>> [arm_of("9f3c", experiment="2026-11-20", share=share) for share in (0.0, 1.0)]
    ['champion', 'challenger']
    """
    return CHALLENGER if share > 0 and place(unit, experiment) < share else CHAMPION


def propensity(arm: str, share: float) -> float:
    """Chance that a unit meets that arm, before its hash is known.

    >>> propensity("champion", 0.25)
    0.75
    """
    return share if arm == CHALLENGER else 1 - share


def _key(experiment: str) -> bytes:
    """The experiment as a key of BLAKE2, which takes 64 bytes."""
    return blake2b(experiment.encode(), digest_size=16).digest()
