"""Decides how an update is taken under a moving memory limit: the size of a pass, and what a pass keeps.

A setting is such a choice: samples of a pass, whether activations are computed again (Chen et al. 2016), and
the share of the spectrum that convolutions leave out (Dziedzic et al. 2019). A setting fits if

    peak + reserve <= own + free

where `peak` is the most bytes that this process has used with the setting, `own` its bytes now, and `free`
the bytes that it may still allocate: the right side is the current limit, less the memory of other processes.
The peak of an untried setting is estimated from a tried one: the part that grows with a pass is scaled by the
size of the pass, and is no less than measured with a setting that keeps less. Recomputing activations is
expected to save nothing until it has been tried: where one layer takes most of the memory, it saves none.
Among settings that fit, the recipe's own goes first, then the least change of the model, then the fastest as
measured. All but band-limiting leave the gradient unchanged, up to the order of summing.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

RESERVE_BYTES, RESERVE = 8 << 20, 0.02  # of the peak: pages that are not the process's own, and noise
UP = 2.0  # reserves that a dearer setting must leave before it is taken again
# Estimates until a setting has been taken: time of a halved pass, and time and growing memory of the others.
HALVED_TIME = 1.03
RECOMPUTE_TIME, RECOMPUTE_MEMORY = 1.35, 0.5
# Memory by the share of the spectrum that is kept, and that of the spectra of a layer while it is computed:
# a pass of one signal of 2^17 places through 30 layers with ReLU or GELU took 83 or 87 % at a rate of 0.5,
# and 33 or 57 % at 0.75.
BAND_TIME, BAND_MEMORY, BAND_WORK = 2.5, 1.1, 0.3
RECENT = 8  # updates whose highest peak counts


@dataclass(frozen=True, kw_only=True)
class PassSetting:
    """How the passes of an update are taken."""

    micro_batch_size: int
    recompute: bool = False
    band_rate: float = 0.0

    def __str__(self) -> str:
        """Returns it in a few words."""
        size = self.micro_batch_size
        words = [f"passes of {size} sample{'s' if size > 1 else ''}"]
        words += ["activations computed again"] if self.recompute else []
        words += [f"convolutions without {self.band_rate:.0%} of the spectrum"] if self.band_rate else []
        return ", ".join(words)

    @property
    def memory(self) -> float:
        """Estimated memory that grows with a pass, in units of a sample's as torch keeps it."""
        again = RECOMPUTE_MEMORY if self.recompute else 1.0
        limited = BAND_MEMORY * (1 - self.band_rate) + BAND_WORK if self.band_rate else 1.0
        return self.micro_batch_size * again * min(1.0, limited)

    @property
    def time(self) -> float:
        """Estimated time of a sample, in units of one in a pass of many."""
        again, limited = RECOMPUTE_TIME if self.recompute else 1.0, BAND_TIME if self.band_rate else 1.0
        return again * limited / math.pow(HALVED_TIME, math.log2(self.micro_batch_size))


def pass_settings(
    own: PassSetting, *, can_recompute: bool, band_rates: Iterable[float] = ()
) -> tuple[PassSetting, ...]:
    """Returns the recipe's own setting, then all others: smaller passes, each with and without the rest.

    Args:
        own: as the recipe has it.
        can_recompute: the model has parts whose activations can be computed again.
        band_rates: to which convolutions may be limited; those below the recipe's are left out.
    """
    sizes = [own.micro_batch_size]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    rates = [own.band_rate, *(rate for rate in band_rates if rate > own.band_rate)]
    again = [own.recompute] if own.recompute or not can_recompute else [False, True]
    return tuple(
        PassSetting(micro_batch_size=size, recompute=recompute, band_rate=rate)
        for rate in rates
        for recompute in again
        for size in sizes
    )


@dataclass
class MemoryPolicy:
    """Chooses among settings by what they took so far."""

    settings: tuple[PassSetting, ...]
    _peaks: dict[PassSetting, deque[int]] = field(default_factory=dict)
    _seconds: dict[PassSetting, float] = field(default_factory=dict)

    def observe(self, setting: PassSetting, *, peak_bytes: int, sample_s: float = math.inf) -> None:
        """Records an update: the most bytes that the process used, and seconds of a sample."""
        self._peaks.setdefault(setting, deque(maxlen=RECENT)).append(peak_bytes)
        self._seconds[setting] = min(sample_s, self._seconds.get(setting, math.inf))

    def is_known(self, setting: PassSetting) -> bool:
        """Returns whether an update was observed with this setting."""
        return setting in self._peaks

    def peak(self, setting: PassSetting, *, own_bytes: int) -> int:
        """Returns the most that the process uses with a setting, where it uses `own_bytes` between passes."""
        if setting in self._peaks:
            return max(own_bytes, *self._peaks[setting])
        if not self._peaks:
            return own_bytes
        alike = [known for known in self._peaks if known.recompute == setting.recompute]
        memory = (setting if alike else replace(setting, recompute=False)).memory
        nearest = min(alike or self._peaks, key=lambda known: abs(math.log(known.memory / memory)))
        growth = max(0, max(self._peaks[nearest]) - own_bytes)
        smaller = [max(peaks) for known, peaks in self._peaks.items() if known.memory < setting.memory]
        return max(own_bytes + math.ceil(growth * memory / nearest.memory), *smaller, 0)

    def fits(self, setting: PassSetting, *, own_bytes: int, free_bytes: int, reserves: float = 1.0) -> bool:
        """Returns whether an update with this setting leaves so many reserves."""
        peak = self.peak(setting, own_bytes=own_bytes)
        return peak + reserves * max(RESERVE_BYTES, RESERVE * peak) <= own_bytes + free_bytes

    def choose(
        self, now: PassSetting, *, own_bytes: int, free_bytes: int, failed: Iterable[PassSetting] = ()
    ) -> PassSetting:
        """Returns the setting for the next update; where none fits, the one that takes least.

        Args:
            now: the setting of the update before.
            own_bytes: that the process uses, between passes.
            free_bytes: that it may still take.
            failed: settings with which this update did not fit.
        """
        unlike = {*failed}
        left = [setting for setting in self.settings if setting not in unlike] or [self.settings[-1]]
        fitting = [
            setting
            for setting in left
            if self.fits(
                setting,
                own_bytes=own_bytes,
                free_bytes=free_bytes,
                reserves=UP if setting.memory > now.memory else 1.0,
            )
        ]
        if not fitting:
            return min(left, key=lambda setting: (self.peak(setting, own_bytes=own_bytes), setting.memory))
        return min(
            fitting, key=lambda setting: (setting != self.settings[0], setting.band_rate, self._time(setting))
        )

    def _time(self, setting: PassSetting) -> float:
        """Returns seconds of a sample, as measured; else as the best of those measured would have it.

        So a setting that has not been taken looks no worse than it may be, and is tried where others are
        slow. Smaller passes of the same kind are taken to be no faster.
        """
        known = {each: seconds for each, seconds in self._seconds.items() if seconds < math.inf}
        if not known or setting in known:
            return known.get(setting, setting.time)
        larger = [
            seconds
            for each, seconds in known.items()
            if (each.recompute, each.band_rate) == (setting.recompute, setting.band_rate)
            and each.micro_batch_size > setting.micro_batch_size
        ]
        return max([setting.time * min(seconds / each.time for each, seconds in known.items()), *larger])
