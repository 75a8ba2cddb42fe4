"""A job that moves takes the batches of its new machine, on published step times and noise scales.

Four networks on T4 and A100, one to sixteen of them: the sizes of a plan are predicted from a profile on one
T4, before any night, by priors that have seen neither: they are fitted to Gavel's K80 and P100 (OSDI'20)
alone. Updates take what Pollux (OSDI'21) measured on the T4 and Sia (SOSP'23) on the A100, in passes up to
the largest that they did. The noise scale is that of Pollux' own runs, epoch by epoch, measured with an error
of a third. A job moves after a third of its progress; what is compared is the time from there to equal
progress, with the sizes of the new machine and with those of the old one, as before fallbacks had their own.
"""

import csv
import gzip
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from math import ceil, exp
from statistics import geometric_mean

import numpy as np
import pytest

from benchmarks import bench_throughput
from benchmarks.bench_arbitrary import NAMES, machines, trained
from benchmarks.fit_priors import GAVEL_CELLS, learn
from benchmarks.frame import DATA
from benchmarks.step_times import APPS, steps
from daybreak.contract.record_parts import Rental, Size
from daybreak.planning.batch_growth import sizes
from daybreak.planning.candidates import TrainingTask
from daybreak.planning.search import Candidate
from daybreak.prediction.costs import predict_counts
from daybreak.prediction.efficiency import Efficiency
from daybreak.prediction.priors import Priors
from daybreak.training.batch_schedule import LEAST_LOOKS, BatchSchedule
from tests.planning.jobs import DATASET

pytestmark = pytest.mark.skipif(
    not (DATA / "throughput").exists(),
    reason=f"{DATA / 'throughput'} is missing; set DAYBREAK_DATA to the folder that holds throughput/",
)
PLANNED = {"bert": 24, "cifar10": 128, "imagenet": 256, "ncf": 512}  # samples a batch
# Machines by devices, and how many of them.
WAYS = [("t4", 1, 1), ("t4", 4, 1), ("t4", 4, 4), ("dgx", 1, 1), ("dgx", 8, 1), ("dgx", 8, 2)]
CHUNKS, MOVED = 30, 10  # parts of the progress, in each of which all updates are alike; those before the move
Way = tuple[str, int, int]


@cache
def noise_scales(app: str) -> list[float]:
    """The noise scale by the progress of training, in samples."""
    with gzip.open(DATA / "throughput" / "pollux_osdi21_validation.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["app"] == app]
    base = min(int(row["batch_size"]) for row in rows)  # whose variances are per batch of it
    return [
        base * float(row["grad_var"]) / float(row["grad_sqr"])
        for row in rows
        if int(row["batch_size"]) == base
    ]


@cache
def measured(app: str, cluster: str, workers: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Samples of a pass, ascending, and its seconds."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for row in steps()[app, cluster]:
        if row.workers == workers:
            by_size[round(row.micro_batch_size)].append(row.step_s)
    passes = sorted(by_size)
    return np.array(passes), np.array([geometric_mean(by_size[size]) for size in passes])


def update_s(app: str, way: Way, batch_size: int) -> float:
    """What an update was measured to take, between batch sizes; passes before the last sum no gradients."""
    cluster, devices, count = way
    share = batch_size / (devices * count)
    passes, seconds = measured(app, cluster, (devices,) * count)
    alone = measured(app, cluster, (1,))
    micro = {each.batch_size: each.micro_batch_size for each in planned_sizes(app, way)}
    num_passes = ceil(share / micro[batch_size])
    last, before = (
        float(np.exp(np.interp(np.log(share / num_passes), np.log(known[0]), np.log(known[1]))))
        for known in ((passes, seconds), alone)
    )
    return last + (num_passes - 1) * before


@cache
def elsewhere() -> Priors:
    """The priors of a laboratory that measured none of these GPUs."""
    return learn(GAVEL_CELLS)


@cache
def planned_sizes(app: str, way: Way) -> tuple[Size, ...]:
    """What a plan says of a machine that the network never ran on."""
    cluster, devices, count = way
    at_hand = machines()[NAMES["t4"][1]][1]
    largest = measured(app, "t4", (1,))[0][-1]
    profile = bench_throughput.profile((app, "t4"))
    memory = replace(profile.memory_bytes, per_sample=0.9 * at_hand.device_memory_bytes / largest)
    profile = replace(profile, memory_bytes=memory)
    listed, known = machines()[NAMES[cluster][devices]][1], bench_throughput.after((), elsewhere())
    # No larger passes were measured on A100 either, though they would fit.
    machine = replace(listed, device_memory_bytes=at_hand.device_memory_bytes)
    job = TrainingTask(
        profile=profile,
        at_hand=at_hand,
        dataset=replace(DATASET, num_bytes=10**9),
        batch_size=PLANNED[app],
        num_workers=1,
        known=known,
        efficiency=Efficiency(noise_scale=1000.0),
        grows=True,
    )
    (estimates,) = predict_counts(
        profile,
        machine,
        measured=at_hand,
        rentals=[Rental(machine=machine.name, num_machines=count)],
        counts=[count],
        batch_size=job.batch_size,
        num_workers=machine.num_workers,
        num_samples=10**7,
        num_bytes=10**9,
        known=known,
    )
    return sizes(job, Candidate(estimate=estimates.of([0])[0], num_samples=10**7))


def schedule(app: str, offered: Sequence[Size]) -> BatchSchedule:
    return BatchSchedule(
        batch_size=PLANNED[app],
        base_size=PLANNED[app],
        base_samples=10**9,
        num_samples=10**9,
        rule="by_optimizer",
        sizes=offered,
    )


def seconds(app: str, before: Way, after: Way, *, follows: bool) -> float:
    """Seconds from the move to the end."""
    draw, whole = random.Random(f"{app} {before} {after}"), trained(app).num_samples(PLANNED[app])
    made, seen, rest_s = schedule(app, planned_sizes(app, before)), 0, 0.0
    noises = noise_scales(app)
    for chunk in range(CHUNKS):
        if chunk == MOVED:
            there = schedule(app, planned_sizes(app, after if follows else before))
            there.load(made.save(), seen=seen)
            made = there
        noise = noises[chunk * len(noises) // CHUNKS]
        size = made.size(seen)
        updates = whole / CHUNKS / size * (noise + size) / (noise + PLANNED[app])
        if chunk >= MOVED:
            rest_s += updates * update_s(app, after, size)
        seen += round(updates * size)
        for _ in range(LEAST_LOOKS):
            made.step(size, loss=1.0, noise=(exp(draw.gauss(0, 0.33)), noise * exp(draw.gauss(0, 0.33))))
        if size := made.next_size(seen=seen, most=1e9):
            made.resize(size, start=seen)
    return rest_s


@pytest.mark.slow
def test_a_job_that_moves_is_sooner_at_the_same_progress_in_batches_of_its_new_machine():
    """A quarter of the moves gain a fifth; none loses more than a tenth, where priors never saw the GPUs."""
    times: dict[tuple[str, Way, Way], float] = {}
    for app, (before, after) in product(APPS, permutations(WAYS, 2)):
        follows, stays = (seconds(app, before, after, follows=each) for each in (True, False))
        times[app, before, after] = stays / follows
    assert min(times.values()) > 0.9
    assert sum(gain > 1.2 for gain in times.values()) > len(times) / 4
    assert geometric_mean(times.values()) > 1.25
    assert times["cifar10", ("dgx", 8, 1), ("t4", 1, 1)] > 1.1  # down, in batches of 256 and 512, not 2,048
    assert times["cifar10", ("t4", 1, 1), ("dgx", 8, 1)] > 2  # up
