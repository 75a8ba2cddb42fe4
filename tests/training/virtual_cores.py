"""Workers of asynchronous training on virtual cores, in one process and by a clock of their own.

Gradients are real, computed at the shared weights of the moment at which the worker begins.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from daybreak.extensions.threads.asynchronous_workers import BatchPart, Done, Gradient, Trainee


@dataclass(frozen=True, kw_only=True)
class UpdateCost:
    """CPU seconds of each pass, of each sample in it, of an update, and of adding a part to others."""

    pass_s: float
    sample_s: float
    apply_s: float
    add_s: float  # of a part of an update that lacks others

    def gradient_s(self, gradient: Gradient, part: BatchPart) -> float:
        return self.pass_s * gradient.num_passes + self.sample_s * len(part.indices)


class VirtualCores:
    """Both the cores, `at(time)` of them, and the workers on them."""

    def __init__(self, at: Callable[[float], float], *, cost: UpdateCost, limit: int) -> None:
        self.at, self.cost, self.limit = at, cost, limit
        self.time = 0.0
        self._trainee: Trainee
        self._parts: dict[int, deque[BatchPart]] = {}
        self._events: list[tuple[float, int, int, Gradient]] = []  # end of a gradient, order, worker
        self._num_events = 0
        self._unlocked = 0.0  # when the lock of the weights is free again

    def of(self, trainee: Trainee) -> "VirtualCores":
        """The workers that train with a trainee."""
        self._trainee = trainee
        return self

    def now(self) -> float:
        return self.time

    def pids(self) -> list[int]:
        return []

    def free(self, *, pids: Sequence[int], wants: int) -> float:
        return self.at(self.time)

    def send(self, worker: int, part: BatchPart) -> None:
        parts = self._parts.setdefault(worker, deque())
        parts.append(part)
        if len(parts) == 1:
            self._begin(worker)

    def gradient_s(self, gradient: Gradient, part: BatchPart) -> float:
        """Seconds from now until a gradient that begins now is there."""
        return self.cost.gradient_s(gradient, part)

    def _begin(self, worker: int) -> None:
        part = self._parts[worker][0]
        gradient = self._trainee.gradient(part)
        crowd = sum(map(bool, self._parts.values())) / self.at(self.time)
        seconds = self.gradient_s(gradient, part) * max(1.0, crowd)  # more workers than cores share them
        self._num_events += 1
        event = (self.time + seconds, self._num_events, worker, replace(gradient, takes_s=seconds))
        heapq.heappush(self._events, event)

    def wait(self, timeout_s: float) -> list[tuple[int, Done]]:
        if not self._events or self._events[0][0] > self.time + timeout_s:
            self.time += timeout_s
            return []
        ended, _, worker, gradient = heapq.heappop(self._events)
        done = self._trainee.apply(gradient, self._parts[worker].popleft())
        apply_s = self.cost.apply_s if done.is_update else self.cost.add_s
        self._unlocked = max(ended, self._unlocked) + apply_s
        self.time = max(self.time, self._unlocked)
        if self._parts[worker]:
            self._begin(worker)
        return [(worker, replace(done, apply_s=apply_s))]

    def stop(self, worker: int) -> list[Done]:
        self._parts.pop(worker, None)
        self._events = [event for event in self._events if event[2] != worker]
        heapq.heapify(self._events)
        return []

    def close(self) -> None:
        self._parts, self._events = {}, []
