"""How long did a worker take for its share? Known at the next update, so that no device is waited for."""

import time

import torch


class Stopwatch:
    """Seconds from start to stop: the processor's wall clock, or events in the queue of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [_event(), _event()]
        self._began = self._took_s = 0.0
        self._measured = False

    def start(self) -> None:
        """Now the work begins; what the device still has to do before is not counted."""
        if self._events:
            self._events[0].record()
        else:
            self._began = time.perf_counter()

    def stop(self) -> None:
        """Now all of it was done, or given to the device."""
        if self._events:
            self._events[1].record()
        else:
            self._took_s = time.perf_counter() - self._began
        self._measured = True

    def read(self) -> float:
        """Seconds of the last time; 0 before the first. The device has to be done with it."""
        if self._events and self._measured:
            self._took_s = self._events[0].elapsed_time(self._events[1]) / 1e3
        return self._took_s


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
