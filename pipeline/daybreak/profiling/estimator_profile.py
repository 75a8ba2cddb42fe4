"""Profiles what is no network: the seconds of a few trees on more and more of the samples.

A line through these times says what a tree of all samples takes, with its share of the time to read and bin
them once. Nothing is tried to make it faster, since remedies, the noise scale and the size of a batch are of
gradients. Estimators that are fitted at once are one update.
"""

import math
import time
from typing import Any

import numpy as np
import psutil

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_parts import Line
from daybreak.contract.record_types import Profile
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import ARRAYS, Workload, make_model
from daybreak.machines import this_machine
from daybreak.profiling import line_fit
from daybreak.storage.home import Home

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the samples, timed in this order while the limit allows
LEAST_SAMPLES = 500
NUM_TREES = 6  # timed on each share, after a first one


def profile(
    home: Home | None, workload: Workload, training: TrainParams, *, limit_s: float = math.inf
) -> Profile:
    """Returns the profile of an estimator on this machine, measured in about `limit_s` seconds at most.

    Raises DataError where there are no samples, ParamsError where the estimator has no trees to be many of.
    """
    from daybreak.profiling import roofline

    any_workload: Any = workload
    samples: Any = workload.dataset(ARRAYS, "train")
    if not len(samples):
        raise DataError(f"{ARRAYS} holds no sample to train on; look at prepare.window_days")
    model: Any = make_model(workload, samples.state)
    by_trees = model.library.by_trees
    if not by_trees and training.epochs != 1:
        raise ParamsError(
            f"{type(model.estimator).__name__} is fitted at once, and train.epochs is "
            f"{training.epochs:g}; set it to 1"
        )
    ceilings = roofline.ceilings(home, ARRAYS)
    began, idle_bytes = time.perf_counter(), psutil.Process().memory_info().rss
    sizes: list[int] = []
    seconds: list[float] = []
    held = 0.0
    for share in SHARES:
        size = min(len(samples), max(LEAST_SAMPLES, round(share * len(samples))))
        if size in sizes:
            continue
        rows = np.linspace(0, len(samples) - 1, size).astype(np.int64)
        start = time.perf_counter()
        data = any_workload.fit_data(samples.__getitems__(rows))
        estimator = any_workload.estimator(samples.state)
        fit = model.library.begin(estimator, data, seed=training.seed, content=b"")
        fit.grow()
        first_s = time.perf_counter() - start
        trees_s = []
        for _ in range(NUM_TREES if by_trees else 0):
            start = time.perf_counter()
            fit.grow()
            trees_s.append(time.perf_counter() - start)
        tree_s = float(np.median(trees_s)) if trees_s else first_s
        sizes.append(size)
        seconds.append(tree_s + max(0.0, first_s - tree_s) / training.epochs)
        grown_bytes = max(psutil.Process().memory_info().rss - idle_bytes, data.inputs.nbytes)
        held = max(held, grown_bytes / size)
        spent_s = time.perf_counter() - began
        if spent_s + 2 * (first_s + sum(trees_s)) > limit_s:  # the next share is twice as large
            break
    return Profile(
        device="CPU",
        load_s=line_fit.constant(0.0),
        step_s=line_fit.fit(sizes, seconds),
        memory_bytes=Line(fixed=0.0, per_sample=held, fixed_error=0.0, per_sample_error=held / 4),
        sync_bytes=line_fit.constant(0.0),
        flops_per_sample=0.0,
        noise_scale=0.0,
        bound="compute",
        evidence={
            "batch_size": len(samples),
            "estimator": {
                "name": type(model.estimator).__name__,
                "sizes": sizes,
                "tree_s": seconds,
                "num_trees": training.epochs if by_trees else 1,
            },
            "elapsed_s": time.perf_counter() - began,
            "machine": {
                "name": "CPU",
                "num_devices": 0,
                "num_cores": ceilings.machine["num_cores"],
                "memory_bytes": this_machine.installed_bytes(),
                "device_memory_bytes": this_machine.installed_bytes() - idle_bytes,
                "flops_per_s": ceilings.flops_per_s,
                "bandwidth_bytes_per_s": ceilings.copy_bytes_per_s,
                "storage_bytes_per_s": ceilings.cold_bytes_per_s,
            },
        },
        remedies=(),
        is_estimator=True,
    )
