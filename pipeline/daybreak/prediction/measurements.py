"""Holds how an update is taken, and what one took."""

from dataclasses import dataclass

from daybreak.contract.record_parts import EVERY_UPDATE, Sync

AVERAGED = 3  # times the bytes of the gradients that an average sends: weights and two moments


@dataclass(frozen=True, kw_only=True)
class StepSetting:
    """How a step is taken: workers on each machine, samples per worker and pass, passes per update, sums."""

    workers: tuple[int, ...]  # on each machine, one number a machine
    micro_batch_size: float
    num_passes: int = 1
    sync: Sync = EVERY_UPDATE

    @property
    def num_workers(self) -> int:
        """Workers on all machines."""
        return sum(self.workers)

    @property
    def batch_size(self) -> float:
        """Samples of an update."""
        return self.num_workers * self.micro_batch_size * self.num_passes

    @property
    def sent(self) -> float:
        """Bytes sent for an update, as a multiple of those of its gradients."""
        return AVERAGED / self.sync.every if self.sync.every > 1 else 1.0


@dataclass(frozen=True, kw_only=True)
class Measurement(StepSetting):
    """Seconds of an update in a setting."""

    step_s: float

    @property
    def samples_per_s(self) -> float:
        """Throughput of all workers."""
        return self.batch_size / self.step_s
