"""Which clock measures the ceilings of a busy machine? Three of them, alone and beside busy processes.

On all threads by the clock; on all threads by the CPU time of the process over their number; on one thread by
its CPU time; and as the profile does it, the faster of the first and the last. Each way measures a product, a
copy, and gathers and scatters of rows of 1 KiB: with nothing of ours beside it, and beside one process a core
that does nothing but count. The figures are the rates beside them over those alone.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks import frame
from daybreak.machines import contention
from daybreak.profiling import roofline

CPU = torch.device("cpu")
WIDTH = 1024  # bytes of a row
ROUNDS = 1 if frame.QUICK else 3
AS_PROFILED = "as profiled"


def main() -> None:
    """Measure each way alone and beside others, in turn; the best of the rounds counts."""
    num_threads = torch.get_num_threads()
    ways: dict[str, Callable[..., float]] = {
        "all threads, clock": partial(roofline._fastest_s, clock=time.perf_counter),
        "all threads, CPU time": partial(
            roofline._fastest_s, clock=lambda: time.process_time() / num_threads
        ),
        "one thread, CPU time": on_one_thread,
        AS_PROFILED: roofline._best_s,
    }
    alone: dict[str, dict[str, float]] = {}
    beside: dict[str, dict[str, float]] = {}
    shares = []
    for _ in range(ROUNDS):
        with contention.measured() as seen:
            add(alone, ways)
        shares.append(seen.share)
        with frame.burning():
            add(beside, ways)
    frame.table(
        [
            {"way": way, "beside": where, **{name: rate / 1e9 for name, rate in rates.items()}}
            for where, of in (("nothing of ours", alone), ("others", beside))
            for way, rates in of.items()
        ]
    )
    figures = {"threads": float(num_threads), "contention alone": min(shares)}
    figures |= {
        f"beside / alone, {way}, {name}": beside[way][name] / rate
        for way, rates in alone.items()
        for name, rate in rates.items()
    }
    targets: dict[str, frame.Target] = {key: (">=", 0.5) for key in figures if AS_PROFILED in key}
    frame.finish("ceilings", figures, targets)


def add(best: dict[str, dict[str, float]], ways: dict[str, Callable[..., float]]) -> None:
    """Measure all rates by each way, and keep the higher of these and those of before."""
    for way, seconds in ways.items():
        roofline._best_s = seconds
        measured = {
            "product": roofline._product(CPU, torch.float32),
            "copy": roofline._copy(CPU),
            "gather": roofline._gather(CPU, WIDTH),
            "scatter": roofline._scatter(CPU, WIDTH),
        }
        before = best.get(way, {})
        best[way] = {name: max(rate, before.get(name, 0.0)) for name, rate in measured.items()}


def on_one_thread(run: Callable[[], Any], device: torch.device, limit_s: float) -> float:
    """Return the CPU seconds of the fastest run on one thread."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return roofline._fastest_s(run, device, limit_s, clock=time.thread_time)
    finally:
        torch.set_num_threads(num_threads)


if __name__ == "__main__":
    main()
