"""Seeds the global random generators for each update, so that a loss draws the same again after a kill.

No generator's state is saved: torch's is seeded by the number of the update. Seeding Python's and NumPy's
takes 13 us, and few losses draw from them, so they are seeded every `BLOCK` updates, and for each update only
from the first one on that drew. To notice that, each update takes a number from both, beside twins of them.
Until then a generator's state follows from the number of the update: it is that of the seed of the block,
after so many numbers.
"""

import random
from typing import Any

import numpy as np
import torch

BLOCK = 1024  # updates
PARTS = 0x9E3779B97F4A7C15  # odd and large: keys of parts are far from those of updates


def seed_all(seed: int) -> None:
    """Seeds the generators of torch, of NumPy and of Python, as for the first weights."""
    torch.manual_seed(seed)
    _seed_others(seed)


class Generators:
    """The global generators of a worker."""

    def __init__(self, *, seed: int, rank: int, world_size: int, device: torch.device) -> None:
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._on_gpu = device.type == "cuda"
        self.device = torch.default_generator
        if self._on_gpu:
            index = torch.cuda.current_device() if device.index is None else device.index
            self.device = torch.cuda.default_generators[index]
        self.draws = False  # from NumPy or Python: a checkpoint has it
        self._next = -1  # the update that is to follow
        self._twins = random.Random(), np.random.RandomState()

    def begin(self, update: int) -> None:
        """Seeds for an update, which may be one that is repeated."""
        key = self._key(update)
        torch.default_generator.manual_seed(key)  # torch.manual_seed would take 0.3 ms
        if self._on_gpu:
            torch.cuda.manual_seed(key)
        if not self.draws and update == self._next and self._take_differs():
            self.draws = True
        if self.draws:
            _seed_others(key)
        elif update != self._next or update % BLOCK == 0:
            self._go_to(update)
        self._next = update + 1

    def _key(self, update: int) -> int:
        return ((self._seed * 1_000_003 + update) * self._world_size + self._rank) % (1 << 63)

    def begin_part(self, update: int, part: int) -> None:
        """Seeds for a part of an update, so that it can be computed again.

        Part -1 is the loss over the encoded samples of all workers, which draw the same for it.
        """
        key = self._key(update) if part >= 0 else self._key(update) - self._rank
        key = (key * PARTS + part) % (1 << 63)
        torch.default_generator.manual_seed(key)
        if self._on_gpu:
            torch.cuda.manual_seed(key)
        _seed_others(key)

    def have_drawn(self) -> bool:
        """Returns whether a loss drew from NumPy or Python, also in the newest update; takes no number."""
        if not self.draws and self._next >= 0:
            python, numpy = self._twins
            self.draws = random.getstate() != python.getstate() or _numbers(np.random) != _numbers(numpy)
        return self.draws

    def _take_differs(self) -> bool:
        """Takes a number from both generators; returns whether their twins have another."""
        python, numpy = self._twins
        differs = random.random() != python.random()
        return bool(np.random.random_sample() != numpy.random_sample()) or differs

    def _go_to(self, update: int) -> None:
        """Sets both generators and their twins to their state at an update, where no loss drew before."""
        first = update - update % BLOCK
        key = self._key(first)
        _seed_others(key)
        python, numpy = self._twins
        python.seed(key)
        numpy.seed(key & 0xFFFFFFFF)
        for _ in range(first, update):
            self._take_differs()


def _numbers(numpy: Any) -> tuple[Any, ...]:
    """Returns the state of a generator of NumPy, to compare."""
    kind, key, *rest = numpy.get_state()
    return kind, key.tobytes(), *rest


def _seed_others(key: int) -> None:
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
