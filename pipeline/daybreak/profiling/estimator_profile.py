"""Profiles what is no network: the seconds of a few trees on more and more of the samples.

A line through these times says what a tree of all samples takes, with its share of the time to read and bin
them once. A fit at once whose time grows faster than its samples, as that of kernels and neighbours does, is
predicted by a power of them. Each share has samples of each class, as a rare one may lie in one part of the
days. Nothing is tried to make it faster, since remedies, the noise scale and the size of a batch are of
gradients. Estimators that are fitted at once are one update.
"""

import math
import time
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.record_parts import Line
from daybreak.contract.record_types import Profile
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import ARRAYS, Workload, make_model
from daybreak.machines import this_machine
from daybreak.profiling import line_fit
from daybreak.storage.home import Home
from daybreak.training.estimator_keys import expect_all_samples
from daybreak.training.sample_audit import SampleAudit
from daybreak.training.sampling import SampleOrder

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the samples, timed in this order while the limit allows
LEAST_SAMPLES = 500
NUM_TREES = 6  # timed on each share, after a first one
LEAST_OF_A_CLASS = 10  # samples, so that each fold of a cross-validation has some
MOST_CLASSES = 100  # a label with more values is taken for a number
STEEP = 1.2  # power of the samples above which a line would promise too little


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
    expect_all_samples(workload, samples)
    model: Any = make_model(workload, samples.state)
    by_trees = model.library.by_trees
    if not by_trees and training.epochs != 1:
        raise ParamsError(
            f"{type(model.estimator).__name__} is fitted at once, and train.epochs is "
            f"{training.epochs:g}; set it to 1"
        )
    labels = _labels(any_workload, samples)
    ceilings = roofline.ceilings(home, ARRAYS)
    began, idle_bytes = time.perf_counter(), psutil.Process().memory_info().rss
    sizes: list[int] = []
    seconds: list[float] = []
    held = 0.0
    for share in SHARES:
        size = min(len(samples), max(LEAST_SAMPLES, round(share * len(samples))))
        if sizes and size <= sizes[-1]:
            continue
        rows = _spread(len(samples), size, labels=labels)
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
        sizes.append(len(rows))
        around_s = _around_s(size, seed=training.seed)
        seconds.append(tree_s + max(0.0, first_s - tree_s) / training.epochs + around_s)
        grown_bytes = max(psutil.Process().memory_info().rss - idle_bytes, data.inputs.nbytes)
        held = max(held, grown_bytes / len(rows))
        spent_s = time.perf_counter() - began
        if spent_s + 2 * (first_s + sum(trees_s)) > limit_s:  # the next share is twice as large
            break
    step_s, power = _step_s(sizes, seconds, num_samples=len(samples), by_trees=by_trees)
    return Profile(
        device="CPU",
        load_s=line_fit.constant(0.0),
        step_s=step_s,
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
                "power": power,
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


def _labels(workload: Any, samples: Any) -> NDArray[Any] | None:
    """Returns the labels where they are classes, None where they are numbers."""
    if workload.table.label is None or not hasattr(samples, "column"):
        return None
    labels = np.asarray(samples.column(workload.table.label.column))
    labels = labels.reshape(len(labels), -1)[:, 0]
    return labels if labels.dtype.kind in "biu" else None


def _spread(num_samples: int, size: int, *, labels: NDArray[Any] | None) -> NDArray[np.int64]:
    """Returns the places of about `size` samples from all days, of each class some, in order."""
    even = np.linspace(0, num_samples - 1, size).astype(np.int64)
    if labels is None or len(classes := np.unique(labels)) > MOST_CLASSES:
        return even
    chosen = [even]
    for one in classes:
        if (labels[even] == one).sum() < LEAST_OF_A_CLASS:
            of = np.flatnonzero(labels == one)
            chosen.append(of[np.linspace(0, len(of) - 1, min(len(of), LEAST_OF_A_CLASS)).astype(np.int64)])
    return np.unique(np.concatenate(chosen))


def _around_s(num_samples: int, *, seed: int) -> float:
    """Returns the seconds that the loop takes around a tree: the order of all samples, and its audit."""
    start = time.perf_counter()
    order = SampleOrder(seed=seed, num_samples=num_samples)
    audit = SampleAudit(order)
    audit.add(0, order.samples(0, num_samples))
    audit.settle(seen=num_samples, total=lambda sums: sums)
    audit.prove()
    return time.perf_counter() - start


def _step_s(
    sizes: list[int], seconds: list[float], *, num_samples: int, by_trees: bool
) -> tuple[Line, float | None]:
    """Returns the seconds of an update, and the power of the samples where they grow faster than a line."""
    if not by_trees and len(sizes) > 1:
        power = math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])
        if power > STEEP:
            return line_fit.fit([num_samples], [seconds[-1] * (num_samples / sizes[-1]) ** power]), power
    return line_fit.fit(sizes, seconds), None
