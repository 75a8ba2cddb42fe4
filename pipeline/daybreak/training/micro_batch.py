"""Fits the passes of a worker into its memory, and remembers their size for the next job.

Without a guard, passes that did not fit are halved, for good and on all workers alike. A guard (hook `guard`)
follows a limit that moves, and may change more than the size of a pass.

The size that fitted is kept in one file per machine and model, `$DAYBREAK_HOME/var/passes/DIGEST.json`, valid
as long as the machine's measured ceilings; after that the whole batch is tried again. Outside of any home
nothing is kept.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import nn

from daybreak import hooks
from daybreak.contract import disk, records
from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Tuning
from daybreak.machines import this_machine
from daybreak.storage.home import Home
from daybreak.training.sample_order import Indices

log = logging.getLogger(__name__)


class Guard(Protocol):
    """What follows a memory limit by settings that take less: a `micro_batch_size` each, and more."""

    setting: Any
    taken: Counter[str]
    peak_bytes: int

    def begin(self, micro_batch_size: int, *, num_samples: int, failed: Iterable[Any] = ()) -> Any:
        """Returns the setting of an update that begins, which the model now has."""

    @property
    def is_lowest(self) -> bool:
        """Whether no setting takes less."""

    def fail(self, error: BaseException) -> None:
        """Records that the memory did not suffice with this setting."""


def new_guard(
    model: nn.Module,
    *,
    device: torch.device,
    tuning: Tuning,
    follow_memory: Literal["off", "same_gradient", "band_limited"],
) -> Guard | None:
    """Returns what follows the limit of memory; None where nothing does, or nothing is to."""
    if follow_memory == "off" or tuning.compiled:
        return None
    guards = hooks.functions("guard")
    if not guards:
        log.warning(
            "no extension here follows a limit of memory that moves, as train.follow_memory asks; restore "
            "pipeline/daybreak/extensions, or set it to off"
        )
    band_limits = follow_memory == "band_limited"
    made = (guard(model, device=device, tuning=tuning, band_limits=band_limits) for guard in guards)
    return next(made, None)


class MicroBatches:
    """The passes of a worker: of the size that the recipe asks for, or that memory suffices for."""

    def __init__(
        self,
        size: int,
        *,
        least: int = 1,
        is_undivided: bool = False,
        lengths: Indices | None = None,
        guard: Guard | None = None,
        on_shrink: Callable[[int], None],
    ) -> None:
        """Begins with passes of `size` samples, or of a whole share where a batch `is_undivided`.

        Where samples have `lengths`, a pass has more of them, as many as take no more memory, padded to the
        longest in the pass, than `size` of the longest of all. `least` samples are in each pass of a share
        that has as many: 2 for BatchNorm. `on_shrink` is called with the size of passes that were halved.
        """
        self._is_undivided = is_undivided
        self._lengths, self._longest = lengths, 0 if lengths is None else int(lengths.max())
        self.size = self._recipe_size = size
        self.guard = guard
        self._least, self._on_shrink = least, on_shrink
        self._largest = 1  # pass that the recipe asks for, of the updates so far
        self._failed: list[Any] = []  # settings of the guard on which this update did not fit

    def split(self, indices: Indices) -> list[Indices]:
        """Returns the samples of each pass over a share."""
        if self._is_undivided:
            return [indices]
        if self._lengths is not None and len(indices):
            most = max(1, self.size * self._longest // int(self._lengths[indices].max()))
            number = -(-len(indices) // most)
            return np.array_split(indices, max(1, min(number, len(indices) // self._least)))
        if self._least > 1 and 1 < self.size < len(indices):  # statistics over passes of about one size
            number = min(-(-len(indices) // self.size), len(indices) // self._least)
            return np.array_split(indices, number)
        return [indices[start : start + self.size] for start in range(0, len(indices), self.size)]

    def resize(self, size: int) -> None:
        """Takes passes of another size, as the recipe asks for."""
        self.size = self._recipe_size = size

    def begin_update(self) -> None:
        """Forgets the settings on which the update before did not fit."""
        self._failed = []

    def follow(self, num_samples: int, *, share: int) -> None:
        """Sets the size for `num_samples` as the memory that is left allows, where a guard follows it.

        `share` is the number of samples of a worker where all have as many.
        """
        if self.guard:
            self._largest = max(self._largest, min(self._recipe_size, share))
            setting = self.guard.begin(self._largest, num_samples=num_samples, failed=self._failed)
            self.size = setting.micro_batch_size

    def fall_short(self, error: RuntimeError | MemoryError) -> None:
        """Records that this update does not fit with its setting; raises JobError where none takes less."""
        if not self.guard:
            return
        if self.guard.is_lowest:
            raise _too_large()
        self.guard.fail(error)
        self._failed.append(self.guard.setting)

    def shrink(self, *, share: int) -> None:
        """Halves the size of passes over a share; raises JobError where they have one sample."""
        if self._is_undivided:
            raise JobError(
                f"memory does not suffice for {share} samples in one pass, and whole_batch of the class asks "
                f"for that; lower train.batch_size, write encode and batch_loss in its place, or name a "
                f"machine with more memory in plan.machines"
            )
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        before = min(self.size, share)
        if before == 1:
            raise _too_large()
        self.size = -(-before // 2)
        log.warning("memory does not suffice for %d samples a pass; going on with %d", before, self.size)
        self._on_shrink(self.size)

    @property
    def short_of_memory(self) -> dict[str, int]:
        """Updates that were taken otherwise than the recipe says, as memory was short, by how."""
        return dict(self.guard.taken) if self.guard else {}

    @property
    def peak_bytes(self) -> int:
        """The most memory that was measured by the guard; 0 without one."""
        return self.guard.peak_bytes if self.guard else 0


def _too_large() -> JobError:
    return JobError(
        "memory does not suffice for a step on one sample; train a smaller model, "
        "or name a machine with more memory in plan.machines"
    )


def remember(home: Home | None, workload: str, arguments: dict[str, Any], *, micro_batch_size: int) -> None:
    """Records the largest micro-batch that memory sufficed for."""
    facts = _facts(workload, arguments)
    if path := _path(home, facts):
        disk.remove_old(path.parent, after=this_machine.KEPT)
        records.replace_text(
            path, json.dumps({**facts, "micro_batch_size": micro_batch_size}, indent=2) + "\n"
        )


def at_most(home: Home | None, workload: str, arguments: dict[str, Any], *, micro_batch_size: int) -> int:
    """Returns the given size, or a smaller one that was recorded for this machine and model."""
    path = _path(home, _facts(workload, arguments))
    try:
        if path is None or time.time() - path.stat().st_mtime > this_machine.KEPT.total_seconds():
            return micro_batch_size
        kept = int(json.loads(path.read_text())["micro_batch_size"])
    except (OSError, ValueError, KeyError):
        return micro_batch_size
    return min(kept, micro_batch_size)


def _facts(workload: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"machine": this_machine.fingerprint(), "workload": workload, "arguments": arguments}


def _path(home: Home | None, facts: dict[str, Any]) -> Path | None:
    return home.var / "passes" / f"{this_machine.facts_digest(facts)}.json" if home else None
