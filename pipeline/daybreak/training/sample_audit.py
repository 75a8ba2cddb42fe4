"""Audits that each sample was trained on as often as it is due in an epoch, by a digest per epoch.

Without weights that is once, and with them as often as these say (sampling.py).

For each epoch, each worker counts the samples that it passed to a step and adds up a keyed hash of each,
modulo 2^64. The sums of all workers are added at each checkpoint and saved in it, so lost work is not
counted. A sum does not depend on order, so under any restarts and numbers of workers, a whole epoch must
match the sum over all samples, which depends on their number only, and a part of an epoch must match the sum
over the samples at its positions in the order. If a sample came twice and another not at all, the sums
differ, except with probability 2^-64 (a multiset hash by addition: Clarke et al. 2003).

The audit covers the samples that the engine was given, by identity, not only their count. It does not cover
their use in the engine, and does not protect against forgery: the key is the seed.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Epoch
from daybreak.training.sample_order import MASK, PART, Indices, keys, mixed
from daybreak.training.sampling import SampleOrder, Sampling

DOMAIN = 0x6C6564676572  # separates these keys from those of the order
LOW = (1 << 32) - 1
Sums = NDArray[np.int64]  # shape [epochs, 3]: samples, low and high half of their hashes; sums add up


class SampleAudit:
    """The audit of one worker, with the totals of all workers up to the last checkpoint."""

    def __init__(self, order: SampleOrder, *, begin: int = 0) -> None:
        self._order, self._num_samples = order, order.num_samples
        self._begin = begin  # position where the audit starts
        self._totals: dict[int, tuple[int, int]] = {}  # of all workers: samples and digest by epoch
        self._settled = begin  # position up to which the totals go
        self._proven = begin // order.num_samples  # epochs before this one are proven
        self._checked = begin  # position up to which all samples are proven
        # Of its epoch: a position, and the sum that is due up to it, which a next checkpoint adds to.
        self._due = begin, 0
        self._own: dict[int, tuple[int, int]] = {}  # of this worker, since the last checkpoint
        self._waiting: list[Indices] = []  # hashed together, since a call of numpy costs as much as 1,000
        self._epoch, self._num_waiting = 0, 0

    @classmethod
    def load(cls, state: dict[str, Any], order: SampleOrder | None = None) -> "SampleAudit":
        """Restores an audit that `save` returned, the same on all workers.

        Without the order, where that is of a data set, nothing after the checkpoint can be proven.
        """
        told = state["told"]
        plain = {name: told[name] for name in ("seed", "first_sample", "num_samples")}
        order = order or SampleOrder(**plain, sampling=Sampling(block=told["block"]))
        audit = cls(order, begin=state["begin"])
        audit._totals = {epoch: (count, digest) for epoch, count, digest in state["totals"]}
        audit._settled, audit._proven, audit._checked = state["settled"], state["proven"], state["checked"]
        epoch, place = divmod(audit._settled, audit._num_samples)
        if audit._checked == audit._settled and place:  # then the sum so far is what was due
            audit._due = audit._settled, audit._totals.get(epoch, (0, 0))[1]
        return audit

    def save(self) -> dict[str, Any]:
        """Returns the settled state, as JSON."""
        totals = [[epoch, *total] for epoch, total in self._totals.items()]
        order = self._order
        return {
            "told": {name: getattr(order, name) for name in ("seed", "first_sample", "num_samples", "block")},
            "begin": self._begin,
            "totals": totals,
            "settled": self._settled,
            "proven": self._proven,
            "checked": self._checked,
        }

    def add(self, position: int, samples: Indices) -> None:
        """Records that this worker took a step on `samples`, which start at `position` in the order."""
        while len(samples):
            epoch, place = divmod(position, self._num_samples)
            if epoch != self._epoch or self._num_waiting > PART:
                self._fold()
                self._epoch = epoch
            part = samples[: self._num_samples - place]
            self._waiting.append(part)
            self._num_waiting += len(part)
            position, samples = position + len(part), samples[len(part) :]

    def settle(self, *, seen: int, total: Callable[[Sums], Sums]) -> None:
        """Adds up over workers what each recorded since the last call, up to position `seen`; all call it."""
        self._fold()
        epochs = self._epochs(self._settled, seen)
        own = [self._own.get(epoch, (0, 0)) for epoch in epochs]
        halves = [[count, digest & LOW, digest >> 32] for count, digest in own]
        if epochs:
            for epoch, (count, low, high) in zip(
                epochs, total(np.array(halves, dtype=np.int64)).tolist(), strict=True
            ):
                before = self._totals.get(epoch, (0, 0))
                self._totals[epoch] = (before[0] + count, (before[1] + low + (high << 32)) & MASK)
        self._own = {}
        self._settled = seen

    def prove(self) -> None:
        """Checks the epochs that are complete; raises JobError if one has other samples than are due.

        Where the order is of a data set, it checks the part of an epoch, too: who reads the checkpoint may
        have no data set to do that by.
        """
        for epoch in range(self._proven, self._settled // self._num_samples):
            self._compare(epoch)
            self._proven = epoch + 1
        if self._order.of_data:
            self._prove_part()

    def proven(self) -> tuple[Epoch, ...]:
        """Returns the audited epochs, the last perhaps partial; raises JobError if one has other samples."""
        self.prove()
        self._prove_part()
        epochs = self._epochs(self._begin, self._settled)
        n = self._num_samples
        return tuple(
            Epoch(num_samples=count, whole=count == n, digest=f"{digest:016x}")
            for count, digest in (self._totals[epoch] for epoch in epochs)
        )

    def _prove_part(self) -> None:
        """Checks the samples of the newest epoch, unless that is done."""
        if self._checked < self._settled:
            if self._settled % self._num_samples:
                self._compare(self._settled // self._num_samples)
            self._checked = self._settled

    def _epochs(self, start: int, stop: int) -> range:
        """Returns the epochs of the positions [start, stop)."""
        return range(start // self._num_samples, -(-stop // self._num_samples) if stop > start else 0)

    def _compare(self, epoch: int) -> None:
        n = self._num_samples
        start, stop = max(self._begin, epoch * n), min(self._settled, (epoch + 1) * n)
        count, digest = self._totals.get(epoch, (0, 0))
        whole = stop - start == n
        due = self._sum(epoch, self._order.of_epoch(epoch)) if whole else self._due_in(epoch, start, stop)
        if (count, digest) != (stop - start, due):
            raise JobError(
                f"epoch {epoch + 1} was trained on other samples than are due: {count:,} with digest "
                f"{digest:016x}, due {stop - start:,} with {due:016x}; some came twice or not at all, so "
                f"remove the job's folder in data/work/jobs and run train again"
            )

    def _due_in(self, epoch: int, start: int, stop: int) -> int:
        """Returns the sum that is due at the positions [start, stop) of an epoch, adding to what is known."""
        at, due = self._due if start <= self._due[0] <= stop else (start, 0)
        due = (due + self._sum(epoch, self._ordered(at, stop))) & MASK
        self._due = stop, due
        return due

    def _ordered(self, start: int, stop: int) -> Iterable[Indices]:
        """Yields the samples at the positions [start, stop)."""
        for at in range(start, stop, PART):
            yield self._order.samples(at, min(at + PART, stop))

    def _fold(self) -> None:
        """Adds the waiting samples to the sums."""
        if self._waiting:
            count, digest = self._own.get(self._epoch, (0, 0))
            digest = (digest + self._sum(self._epoch, [np.concatenate(self._waiting)])) & MASK
            self._own[self._epoch] = (count + self._num_waiting, digest)
            self._waiting, self._num_waiting = [], 0

    def _sum(self, epoch: int, parts: Iterable[Indices]) -> int:
        (key, *_) = keys((self._order.seed, epoch, DOMAIN))
        return sum(int(mixed(part.astype(np.uint64), key).sum()) for part in parts) & MASK
