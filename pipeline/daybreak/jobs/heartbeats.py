"""Reads the heartbeats of a job (`progress.jsonl`): how far it is, how fast, and whether it hangs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Any

from daybreak.jobs.outlook import Outlook, Rate, measured
from daybreak.machines.startup import num_devices
from daybreak.training.loss_watch import rose
from daybreak.training.recipe import Progress

QUIET_HANGS = 5  # times train.hang_after_s without a heartbeat: the workers' own watchdogs hang, too
QUIET_UPDATES = 20  # and the time of as many updates
ENOUGH = 8  # heartbeats to compare the loss before and after a move
LOW_USE = 0.5  # of a device, below which another one with the same samples would train about as fast
IN_PLACE_S = 120.0  # on top, in which torchrun may have restarted the workers


def thinned(points: Sequence[tuple[float, float]], *, most: int) -> tuple[tuple[float, float], ...]:
    """Returns at most so many points of a curve, each the mean of its neighbours, the last one included.

    >>> thinned([(1, 4.0), (2, 2.0), (3, 1.0), (4, 0.0)], most=2)
    ((2, 3.0), (4, 0.5))
    """
    if len(points) <= most:
        return tuple(points)
    bounds = [at * len(points) // most for at in range(most + 1)]
    parts = [points[low:high] for low, high in pairwise(bounds)]
    return tuple((part[-1][0], fmean(value for _, value in part)) for part in parts)


class Heartbeats:
    """The newest heartbeats of a job; times are seconds since 1970."""

    def __init__(self, lines: Sequence[Mapping[str, Any]], *, moved_at: float = 0.0) -> None:
        """`moved_at`: when a heartbeat was last lost because the disk was full."""
        self.moved_at = moved_at
        self.beats = [
            Progress(**{**line, "time": datetime.fromisoformat(str(line["time"]))}) for line in lines
        ]

    @property
    def last(self) -> Progress | None:
        """The newest heartbeat."""
        return self.beats[-1] if self.beats else None

    @property
    def seen(self) -> int:
        """Number of samples trained on."""
        return self.beats[-1].seen if self.beats else 0

    @property
    def num_samples(self) -> int:
        """Number of samples that the job trains on if time suffices; 0 where none is known yet."""
        return self.beats[-1].num_samples if self.beats else 0

    @property
    def batch_sizes(self) -> list[int]:
        """Batch sizes of the newest heartbeats, in order; 0 first, as of a job that has not begun."""
        return [0, *(beat.batch_size for beat in self.beats)]

    def since(self, at: float, *, until: float = inf) -> list[Progress]:
        """Returns the heartbeats from that time on, or in between."""
        return [beat for beat in self.beats if at <= beat.time.timestamp() < until]

    def rate(self, *, since: float, until: float = inf, whole: bool = False) -> Rate | None:
        """Returns the rate from that time on, since the batch or the workers last changed.

        `whole` leaves out when fewer workers than the most were there, as a rental of its machines has all.
        """
        beats = self.since(since, until=until)
        if whole:
            most = max((num_devices(beat.device) for beat in beats), default=0)
            beats = [beat for beat in beats if num_devices(beat.device) == most]
        alike: list[Progress] = []
        for beat in reversed(beats):
            if alike and (beat.batch_size, beat.device) != (alike[0].batch_size, alike[0].device):
                break
            alike.append(beat)
        return measured(alike[::-1])

    def device_use(self, *, since: float) -> float | None:
        """Returns the mean share of the time that the device did not wait for samples, by the newest ones.

        None where too few heartbeats tell it.
        """
        shares = [beat.device_use for beat in self.since(since) if beat.device_use is not None][-ENOUGH:]
        return fmean(shares) if len(shares) == ENOUGH else None

    def loss_rose(self, *, since: float, at: float) -> bool:
        """Returns whether the loss is clearly above that of a time before, from `since` to `at`."""
        before = [beat.loss for beat in self.since(since, until=at)][-ENOUGH:]
        after = [beat.loss for beat in self.since(at)][-ENOUGH:]
        if min(len(before), len(after)) < ENOUGH:
            return False
        return rose(before, after)

    def hang(
        self,
        now: float,
        *,
        asked_at: float,
        run_at: float,
        start_s: float,
        hang_after_s: float,
        awake_s: float = inf,
    ) -> str:
        """Returns a sentence that says that the job hangs, or "" if it does not.

        It was submitted, or last waited for machines, at `asked_at`, and was first seen running after that at
        `run_at`; its first heartbeat may take
        `start_s`. This machine was awake for `awake_s` since the newest heartbeat was first seen here.
        """
        beats = self.since(asked_at)
        heard_at = max(run_at, self.moved_at, beats[-1].time.timestamp() if beats else 0.0)
        quiet_s = min(now - heard_at, awake_s)
        most_s = start_s
        if beats:
            updates = beats[-1].num_updates - beats[0].num_updates
            lasted_s = (beats[-1].time - beats[0].time).total_seconds()
            update_s = lasted_s / updates if updates > 0 else 0.0
            most_s = IN_PLACE_S + max(QUIET_HANGS * hang_after_s, QUIET_UPDATES * update_s)
        if quiet_s <= most_s:
            return ""
        return f"nothing was heard of it for {quiet_s:,.0f} s, though it runs; it is restarted"

    def sentence(self, *, num_samples: int, ahead: Outlook) -> str:
        """Returns for a person how far the job is and how long the rest takes."""
        beat = self.beats[-1]
        low, high = ahead.interval
        end = f"ETA {ahead.rest_s:,.0f} s ({low:,.0f} to {high:,.0f}), in time with {ahead.chance:.0%}"
        if 0 < beat.end < num_samples:
            end = f"ends early, at {beat.end / num_samples:.0%}"
        use = self.device_use(since=-inf)
        waits = ""
        if use is not None and use < LOW_USE:
            waits = f", which waits for samples {1 - use:.0%} of the time"
        return (
            f"{beat.seen / num_samples:.0%} of {num_samples:,} samples, {beat.samples_per_s:,.0f} samples/s"
            f"{f' on {beat.device}{waits}' if beat.device else ''}, "
            f"{end}; loss {beat.loss:.4g}"
        )
