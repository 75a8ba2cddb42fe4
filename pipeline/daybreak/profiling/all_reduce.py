"""Measures how long workers take to add up their gradients: an all-reduce among as many processes.

This applies only where the job has several workers. The processes are fresh ones on this machine, over gloo
on a CPU or over nccl on as many accelerators, and hold nothing but a gradient.
"""

import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Line
from daybreak.profiling import line_fit
from daybreak.profiling.bounds import NETWORK

ROUNDS = 5
PARTS = (0.5, 1.0)  # of the gradient: two sizes, for a line
LIMIT_S = 60.0


def evidence(num_bytes: int, *, num_workers: int, update_s: float) -> dict[str, Any]:
    """Returns the seconds of an all-reduce of `num_bytes`, the share of an update, and if sync binds it."""
    if num_workers == 1:
        return {"num_workers": 1, "sync_bytes": num_bytes, "sync_s": 0.0, "share": 0.0, "bound": False}
    line = allreduce_s(num_bytes, num_workers=num_workers)
    seconds = line(num_bytes)
    share = seconds / (seconds + update_s)
    return {
        "num_workers": num_workers,
        "sync_bytes": num_bytes,
        "sync_s": seconds,
        "sync_error_s": line.fixed_error + line.per_sample_error * num_bytes,
        "share": share,
        "bound": share > NETWORK,
    }


def allreduce_s(num_bytes: int, *, num_workers: int) -> Line:
    """Returns the seconds of an all-reduce as a line over bytes; JobError if a process sends no answer."""
    spawn = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [spawn.Pipe(duplex=False) for _ in range(num_workers)]
        workers = [
            spawn.Process(
                target=_work, args=(there, Path(folder) / "store", rank, num_workers, num_bytes), daemon=True
            )
            for rank, (_, there) in enumerate(pipes)
        ]
        for worker in workers:
            worker.start()
        for _, there in pipes:
            there.close()
        try:
            times = [here.recv() if here.poll(LIMIT_S) else None for here, _ in pipes]
        except EOFError:
            times = [None]
        finally:
            for worker in workers:
                worker.kill()
                worker.join()
    if None in times:
        raise JobError(
            f"{num_workers} workers could not add up {num_bytes:,} bytes on this machine; "
            f"lower train.num_workers"
        )
    # An all-reduce ends when the slowest worker has it.
    rounds = [max(same) for same in zip(*times, strict=True)]
    sizes = [part * num_bytes for part in PARTS for _ in range(ROUNDS)]
    return line_fit.fit(sizes, rounds)


def _work(to: Connection, store: Path, rank: int, num_workers: int, num_bytes: int) -> None:
    """Runs one worker, and sends the seconds of each round to the pipe."""
    import torch
    import torch.distributed as dist

    on_devices = torch.cuda.device_count() >= num_workers
    device = torch.device("cuda", rank) if on_devices else torch.device("cpu")
    dist.init_process_group(
        "nccl" if on_devices else "gloo", init_method=f"file://{store}", rank=rank, world_size=num_workers
    )
    seconds = []
    for part in PARTS:
        gradient = torch.zeros(max(1, int(part * num_bytes) // 4), device=device)
        for number in range(ROUNDS + 1):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(gradient)
            if on_devices:
                torch.cuda.synchronize()
            if number > 0:
                seconds.append(time.perf_counter() - begin)
    to.send(seconds)
    dist.destroy_process_group()
