"""Times how long a worker takes for its share; read at the next update, so no one waits for the device."""

import time

import torch


class StepTimer:
    """Seconds from start to stop: by the wall clock, or by events in the queue of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [_event(), _event()]
        self._began = self._took_s = 0.0
        self._measured = False

    def start(self) -> None:
        """Marks the start of the work; earlier work in the device's queue is not counted."""
        if self._events:
            self._events[0].record()
        else:
            self._began = time.perf_counter()

    def stop(self) -> None:
        """Marks the end of the work, which is done or in the device's queue."""
        if self._events:
            self._events[1].record()
        else:
            self._took_s = time.perf_counter() - self._began
        self._measured = True

    def read(self) -> float:
        """Returns the seconds of the last work, 0 before the first; the device must have finished it."""
        if self._events and self._measured:
            self._took_s = self._events[0].elapsed_time(self._events[1]) / 1e3
        return self._took_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
