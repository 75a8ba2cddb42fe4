"""Follows the memory limit while a worker trains: between updates, and in each layer of a pass.

The policy (memory_policy.py) decides; this module measures and acts. Where a layer begins, forward or
backward, and the pass would not fit any more, it raises `ShortOfMemory`: the engine then repeats the update
with a lower setting, so that no sample is lost or counted twice, before the kernel kills. What the heap keeps
of freed memory is given back first. Workers on one machine share what is free.

Where convolutions may be band-limited, freed memory is given back at once, from the beginning: in a heap, the
tensors that a pass keeps of each layer would lie between freed ones, which could then neither be given back
nor hold the next layer's. A pass of 30 layers at a rate of 0.75, which keeps 24 MiB, made a heap grow by 140.
"""

import ctypes
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from daybreak.contract.record_parts import Tuning
from daybreak.extensions.memory_limits.free_memory import FreeMemory
from daybreak.extensions.memory_limits.memory_policy import MemoryPolicy, PassSetting, pass_settings
from daybreak.training.tuning import band_limit, blocks, keep_activations, limitable, recompute

log = logging.getLogger(__name__)

BAND_RATES = (0.5, 0.75)  # to which convolutions are limited where that is allowed
LOOK_EVERY_S = 0.005  # within a pass: a look takes 30 microseconds
AHEAD = 0.1  # the most that is expected to be lost during an update, as a share of what is left
WATCHED = 4.0  # times the peak: layers look where the limit is lower
MEASURE_EVERY_S = 0.05  # of updates that are shorter, several are measured together
# Of malloc.h: blocks of this size are the system's as soon as they are freed, and so is the end of the heap.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, GIVEN_BACK_BYTES = -1, -3, 32 << 10
CLEAR, STATM, STATUS = (Path(f"/proc/self/{name}") for name in ("clear_refs", "statm", "status"))


class ShortOfMemory(MemoryError):
    """A pass would not fit the memory any more."""


class HostMemory:
    """The machine's memory: bytes in use by this process, and bytes left for it."""

    def __init__(self) -> None:
        self._free = FreeMemory()
        self._statm, self._status = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (STATM, STATUS))
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        libc = ctypes.CDLL(None)
        self._trim, self._mallopt = (getattr(libc, name, None) for name in ("malloc_trim", "mallopt"))
        self._sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def free_bytes(self) -> int | None:
        """Returns this worker's part of what is left; None where nothing limits it but the machine."""
        left = self._free.read()
        return None if left is None else left.free_bytes // self._sharing

    def own_bytes(self) -> int:
        """Returns what this process uses."""
        return int(os.pread(self._statm, 256, 0).split()[1]) * self._page_bytes

    def peak_bytes(self) -> int:
        """Returns the most that this process has used since `reset_peak`."""
        for line in os.pread(self._status, 4096, 0).splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
        return self.own_bytes()

    def reset_peak(self) -> None:
        """Begins a new peak."""
        CLEAR.write_text("5")

    def release(self) -> None:
        """Gives freed memory back to the system, where the allocator keeps it."""
        if self._trim:
            self._trim(0)

    def give_back_at_once(self) -> None:
        """Makes the allocator return freed memory to the system at once, at some cost in time."""
        if self._trim and self._mallopt:  # glibc's
            for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
                self._mallopt(parameter, GIVEN_BACK_BYTES)


class DeviceMemory:
    """A GPU's memory: bytes in use by this process, and bytes left for it."""

    def free_bytes(self) -> int | None:
        """Returns what the device has left, for this process and for its neighbours."""
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(torch.cuda.mem_get_info()[0]) + kept

    def own_bytes(self) -> int:
        """Returns what this process uses."""
        return int(torch.cuda.memory_allocated())

    def peak_bytes(self) -> int:
        """Returns the most that this process has used since `reset_peak`."""
        return int(torch.cuda.max_memory_allocated())

    def reset_peak(self) -> None:
        """Begins a new peak."""
        torch.cuda.reset_peak_memory_stats()

    def release(self) -> None:
        """Gives freed memory back to the device."""
        torch.cuda.empty_cache()

    def give_back_at_once(self) -> None:
        """Does nothing: free memory in torch's cache already counts as free."""


def guard(
    model: nn.Module, *, device: torch.device, tuning: Tuning, band_limits: bool
) -> "MemoryGuard | None":
    """Returns the guard of a worker's memory; None where its memory cannot be followed."""
    memory = memory_of(device)
    return MemoryGuard(model, memory=memory, tuning=tuning, band_limits=band_limits) if memory else None


def memory_of(device: torch.device) -> HostMemory | DeviceMemory | None:
    """Returns the memory that this worker trains in; None where it cannot be followed."""
    if device.type == "cuda":
        return DeviceMemory()
    return HostMemory() if device.type == "cpu" and os.access(CLEAR, os.W_OK) else None


class MemoryGuard:
    """The setting of one worker, update after update."""

    def __init__(
        self,
        model: nn.Module,
        *,
        memory: HostMemory | DeviceMemory,
        tuning: Tuning,
        band_limits: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._memory, self._tuning, self._clock = model, memory, tuning, clock
        self._band_rates = BAND_RATES if band_limits and limitable(model) else ()
        if self._band_rates:
            memory.give_back_at_once()
        self._can_recompute = bool(blocks(model))
        self._policy = MemoryPolicy((PassSetting(micro_batch_size=0),))  # until the first update begins
        self._began = self._looked = -1.0
        self._num_samples = self._num_begun = 0
        self.setting = self._policy.settings[0]
        self.taken: Counter[str] = Counter()  # updates on other settings than the recipe's own
        self.peak_bytes = 0  # that was ever measured
        self._left_bytes = self._ahead_bytes = 0  # at the last choice, and what it may lose until the next
        self._own_bytes = self._free_bytes = 0  # at the last look
        self._layer_bytes = 0.0  # the most that was taken between two looks, for each sample of the pass
        self._hooks: list[RemovableHandle] = []  # on each layer, where memory may become short within a pass

    def begin(
        self, micro_batch_size: int, *, num_samples: int, failed: Iterable[PassSetting] = ()
    ) -> PassSetting:
        """Chooses and applies the setting of an update that begins.

        Args:
            micro_batch_size: of the recipe.
            num_samples: of the update, of this worker.
            failed: settings with which this update did not fit.
        """
        now = self._clock()
        if self._policy.settings[0].micro_batch_size != micro_batch_size:
            self._start(micro_batch_size)
        elif now < self._began + MEASURE_EVERY_S and not failed:
            self._num_samples += num_samples
            return self._counted()
        elif self._num_begun > 1 and not failed:  # the first update makes what stays
            self._observe(sample_s=(now - self._began) / max(1, self._num_samples))
        self._choose(failed)
        self.peak_bytes = max(self.peak_bytes, self._memory.peak_bytes())
        self._memory.reset_peak()
        self._began, self._num_samples = now, num_samples
        self._num_begun += not failed
        return self._counted()

    def fail(self, error: BaseException) -> None:
        """Records that the memory did not suffice with this setting, unless a check within the pass did."""
        if isinstance(error, ShortOfMemory):
            return
        free = self._memory.free_bytes() or 0
        self._policy.observe(self.setting, peak_bytes=self._memory.own_bytes() + max(0, free))

    @property
    def is_lowest(self) -> bool:
        """Whether no setting takes less."""
        return self.setting == self._policy.settings[-1]

    def _start(self, micro_batch_size: int) -> None:
        own = PassSetting(
            micro_batch_size=micro_batch_size,
            recompute=self._tuning.recompute,
            band_rate=self._tuning.band_rate,
        )
        settings = pass_settings(own, can_recompute=self._can_recompute, band_rates=self._band_rates)
        self._policy.settings = settings
        self._apply(own)

    def _observe(self, *, sample_s: float) -> None:
        self._policy.observe(self.setting, peak_bytes=self._memory.peak_bytes(), sample_s=sample_s)

    def _choose(self, failed: Iterable[PassSetting]) -> None:
        own, free = self._memory.own_bytes(), self._memory.free_bytes()
        if free is None:
            return
        left = own + free
        self._ahead_bytes = self._falling(left)
        self._left_bytes = left
        if failed or not self._fits(own, free, self._ahead_bytes):
            self._memory.release()
            own, free = self._memory.own_bytes(), self._memory.free_bytes() or 0
        known = self._policy.is_known(self.setting)
        most = self._policy.peak(self.setting, own_bytes=own)
        self._watch(not known or own + free < WATCHED * most)
        setting = self._policy.choose(
            self.setting, own_bytes=own, free_bytes=free - self._ahead_bytes, failed=failed
        )
        self._own_bytes, self._free_bytes = own, free
        if setting != self.setting:
            log.warning(
                "memory: %.0f MiB used, %.0f MiB left; going on with %s", own / 2**20, free / 2**20, setting
            )
            self._memory.release()
            self._apply(setting)

    def _falling(self, left_bytes: int) -> int:
        """Returns what this process has lost since the last choice, and may lose again until the next."""
        return min(max(0, self._left_bytes - left_bytes), int(AHEAD * max(0, left_bytes)))

    def _watch(self, needed: bool) -> None:
        """Has each layer look at the memory, or none of them, as that takes time where layers are small."""
        if needed and not self._hooks:
            layers = [each for each in self._model.modules() if next(each.children(), None) is None]
            self._hooks = [layer.register_forward_pre_hook(self._look_before) for layer in layers]
            self._hooks += [layer.register_forward_hook(self._look_in_backward) for layer in layers]
        elif not needed:
            while self._hooks:
                self._hooks.pop().remove()

    def _apply(self, setting: PassSetting) -> None:
        """Has the model take its passes with this setting."""
        if setting.recompute != self.setting.recompute and not self._tuning.recompute:
            (recompute if setting.recompute else keep_activations)(self._model)
        if setting.band_rate != self.setting.band_rate and self._band_rates:
            band_limit(self._model, setting.band_rate)
        self.setting = setting

    def _counted(self) -> PassSetting:
        if self.setting != self._policy.settings[0]:
            self.taken[str(self.setting)] += 1
        return self.setting

    def _look_before(self, layer: nn.Module, inputs: object) -> None:
        self._look()

    def _look_in_backward(self, layer: nn.Module, inputs: object, output: object) -> None:
        """Has the backward pass look where it begins with this layer."""
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda gradient: self._look())  # type: ignore[no-untyped-call]

    def _look(self) -> None:
        """Raises ShortOfMemory where the pass would not fit any more."""
        now = self._clock()
        if now < self._looked + LOOK_EVERY_S or self.is_lowest:
            return
        self._looked = now
        own, free = self._memory.own_bytes(), self._memory.free_bytes()
        if free is None:
            return
        taken = min(own - self._own_bytes, self._free_bytes - free)  # neither libraries nor the limit's fall
        self._layer_bytes = max(self._layer_bytes, taken / self.setting.micro_batch_size)
        self._own_bytes, self._free_bytes = own, free
        if not self._fits(own, free, max(self._ahead_bytes, self._falling(own + free))):
            if self._is_unmeasured(own):
                self._policy.observe(self.setting, peak_bytes=own + self._layer())
            raise ShortOfMemory(f"{free:,} bytes are left, and {self.setting} take more")

    def _layer(self) -> int:
        """Returns the most that a layer took, in passes of this size."""
        return int(self._layer_bytes * self.setting.micro_batch_size)

    def _is_unmeasured(self, own: int) -> bool:
        """Returns whether no pass that was measured with this setting took as much."""
        return not self._policy.is_known(self.setting) or own > self._policy.peak(self.setting, own_bytes=0)

    def _fits(self, own: int, free: int, ahead: int) -> bool:
        """Returns whether the pass fits; beyond what was measured, whether another layer of it would."""
        if self._is_unmeasured(own):
            ahead += self._layer()
        return self._policy.fits(self.setting, own_bytes=own, free_bytes=free - ahead)
