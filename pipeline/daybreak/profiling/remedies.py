"""Lists what would make the job faster: the thirteen remedies of Lakshmanan's thread in its order, and ours.

The thread is about daily retraining that ends within 18 hours, bound by I/O, compute or memory. Each remedy
says whether it applies to this job, and predicts the gain, as time saved / time, from the lines and the
measured rates alone. A remedy that the program can apply carries a change of the tuning, for `tuner` to try;
a remedy that needs another machine names it; remedies that affect the quality of the model come last.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, get_args

from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Line, Remedy, Strategy, Tuning
from daybreak.contract.record_types import Profile
from daybreak.machines import data_sheets
from daybreak.machines.catalog import HEADROOM, PAGE_CACHE, rented
from daybreak.profiling.job_facts import COMPILE_S, Bound, JobFacts

STORED, IN_RAM = "store the data more efficiently", "storage with higher throughput"
IN_MEMORY = (STORED, IN_RAM)
COMPILED_MODEL = "compiled model"
NOT_TRIED = "not tried: "  # in the note of a remedy, before the reason
SMALLER_BATCH = "smaller batch"
SPARSE = "sparse gradients"
BAND_LIMITED, OFFERED_RATE = "band-limited convolutions", 0.5  # at which they are measured
VARIANTS = ("simpler model", "cheaper activation", "fewer layers")  # which a workload may offer as another
LEAST_GAIN = 0.05  # predicted gain of a remedy for another bound
MANY_LOADERS = (4, 16)  # where loading takes longer than the step; each thread waits for storage by itself
COMPILED, REORDERED = 0.2, 0.1  # of a step, typical of torch.compile and of channels last
SPARSE_SAVES = (
    0.5  # of a step, at least, where all of its parameters are rows of tables that are not looked up
)
ACTIVATION_SAVES = 0.7  # of the time of a GELU or a SiLU, which a ReLU saves
LAUNCHES = 0.5  # of the dispatch time of operators, saved by torch.compile, which merges operators
PAGEABLE, LOCKED = 6e9, 24e9  # bytes/s to an accelerator from pageable and from page-locked memory


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A remedy, and the change of the tuning by which the program applies it."""

    remedy: Remedy
    change: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5  # relative, of the losses of the first updates
    extra_s: float = 0.0  # cost, once in a trial and once in training


def apply_kept(profile: Profile, *, epochs: float, num_samples: int, at_hand: bool) -> tuple[Profile, Tuning]:
    """Returns the profile of a job with the kept remedies, where they pay off for so many samples.

    Samples in memory gain only from the second epoch on, unless those of earlier nights are kept by day and
    the job runs `at_hand`, where the files are; and a model has to be compiled first. The time that
    a remedy saves is taken off the part that it is for, load or step, and only the excess off the other part:
    so the sum is what was measured here, and no other machine is promised a faster step for faster reads.
    """
    tuning, batch_size = profile.tuning, profile.evidence.get("batch_size", 1)
    update_s = profile.load_s(batch_size) + profile.step_s(batch_size)
    kept = [remedy for remedy in profile.remedies if remedy.kept]
    trials = profile.evidence.get("tuned", {})
    if epochs <= 1 and not (at_hand and trials.get("kept_by_day", False)):
        kept = [remedy for remedy in kept if remedy.name not in IN_MEMORY]
        tuning = replace(tuning, in_memory=False)
    saved_s = (
        sum(r.measured_gain for r in kept if r.name == COMPILED_MODEL) * num_samples / batch_size * update_s
    )
    compile_s = trials.get("compile_s", 2 * COMPILE_S)
    if tuning.compiled and saved_s < compile_s:
        kept = [remedy for remedy in kept if remedy.name != COMPILED_MODEL]
        tuning = replace(tuning, compiled=False)
    load_s, step_s = profile.load_s(batch_size), profile.step_s(batch_size)
    for remedy in sorted(kept, key=lambda each: each.bound != profile.bound):  # in the order of the trials
        if remedy.name == SMALLER_BATCH:
            continue  # the plan evaluates the lines at the smaller batch, so they include its gain
        saved_s = remedy.measured_gain * (load_s + step_s)
        of_load_s = min(saved_s, load_s) if remedy.bound == "io" else max(0.0, saved_s - step_s)
        load_s, step_s = load_s - of_load_s, step_s - (saved_s - of_load_s)
    return replace(
        profile,
        load_s=_through(profile.load_s, batch_size, load_s),
        step_s=_through(profile.step_s, batch_size, step_s),
    ), tuning


def _through(line: Line, batch_size: int, seconds: float) -> Line:
    """Returns the line, scaled to so many seconds at that batch size."""
    before_s = line(batch_size)
    if seconds == before_s:
        return line
    return Line(**{name: value * seconds / before_s for name, value in asdict(line).items()})


def offers(job: JobFacts) -> tuple[Offer, ...]:
    """Returns the offers in the order of the thread; those that affect quality come last."""
    in_order = [*_io(job), *_compute(job), *_memory(job)]
    return tuple(sorted(in_order, key=lambda each: each.remedy.quality))


def _io(job: JobFacts) -> Iterator[Offer]:
    offer, reads, device = partial(_offer, job, "io"), job.reads, job.device
    yield from _kept_in_memory(job)
    load_s, step_s = job.load_s(job.batch_size), job.step_s(job.batch_size)
    number = device.num_cores if reads.draws else MANY_LOADERS[0] if load_s > step_s else 1
    kind = "process(es)" if reads.draws else "loader(s)"
    yield offer(
        "parallelise the reads",
        gain=_saved(max(load_s / number, step_s), job.total_s),
        change={"num_loaders": number, "loader_processes": reads.draws},
        note=f"{number} {kind} ahead of the step" + (", if it leaves them a core" if device.on_cpu else ""),
    )
    copied_s = reads.batch_bytes / PAGEABLE - reads.batch_bytes / LOCKED
    yield offer(
        "pinned memory",
        change={"pinned": True},
        gain=0.0 if device.on_cpu or not job.total_s else min(1.0, copied_s / job.total_s),
        note="there is no copy to the device"
        if device.on_cpu
        else "the accelerator copies batches by itself",
    )
    yield _smaller_batch(job, "io")


def _kept_in_memory(job: JobFacts) -> Iterator[Offer]:
    """Yields the two remedies for reads that are repeated: columns of samples, or arrays, in memory."""
    offer, reads = partial(_offer, job, "io"), job.reads
    whole, again = reads.whole_batches, job.load_share * job.again_share
    room = 0 < reads.columns_bytes <= reads.memory_bytes
    why, change = _why_kept(job, room=room), {"in_memory": True}
    if not whole and not reads.draws and not (room and again):
        why += "; what `features` makes of rows is kept as columns over the nights, each partition once"
        why += ", as are the samples of a data set with `days`"
    yield offer(
        STORED,
        gain=again if room and not whole else 0.0,
        change=change,
        note="whole batches are read already" if whole else f"samples are read one by one; {why}",
    )
    if (waits := job.load_share * reads.waited_share) >= LEAST_GAIN and not (room and again):
        yield offer(IN_RAM, gain=waits, note=_faster_storage(job, waits))
        return
    yield offer(
        IN_RAM,
        gain=again if room and whole else 0.0,
        change=change,
        note=why if whole else "memory is tried by the remedy above",
    )


def _why_kept(job: JobFacts, *, room: bool) -> str:
    """Returns whether samples can be kept in memory, and why."""
    reads = job.reads
    if not reads.columns_bytes:
        return "samples differ in shape or from time to time, so they cannot be kept"
    if not room:
        return f"{reads.columns_bytes / 1e9:.1f} GB are too much to keep in memory"
    earlier = f", {1 - reads.new_share:.0%} of them from files of earlier nights"
    return (
        f"{reads.columns_bytes / 1e6:,.0f} MB of columns in memory, "
        f"filled in the first epoch of {job.epochs:g}{earlier if reads.new_share < 1 else ''}"
    )


def _faster_storage(job: JobFacts, waits: float) -> str:
    """Returns what would shorten the waits, which take that share of an update."""
    enough = [m for m in rented() if m.usd_per_hour and PAGE_CACHE * m.memory_bytes >= job.reads.array_bytes]
    cheapest = min(enough, key=lambda m: (m.usd_per_hour or 0.0, m.name), default=None)
    note = (
        f"at most: an update waits {waits:.0%} of its time for storage, which reads "
        f"{job.device.storage_bytes_per_s / 1e6:,.0f} MB/s; put the home on a faster disk"
    )
    if cheapest is None:
        return note
    return (
        f"{note}, or name in plan.machines a machine that keeps {job.reads.array_bytes / 1e9:.1f} GB of "
        f"arrays in memory; the cheapest is {cheapest.name}"
    )


def _compute(job: JobFacts) -> Iterator[Offer]:
    yield from _faster_kernels(job)
    for name, machine in _faster(job).items():
        yield _offer(
            job,
            "compute",
            name,
            gain=_gain_on(job, machine) if machine else 0.0,
            note=f"at most, by the data sheet of {machine.device}; name {machine.name} in plan.machines"
            if machine
            else "no machine of the catalog is faster for this job",
        )
    yield from _less_to_compute(job)


def _faster_kernels(job: JobFacts) -> Iterator[Offer]:
    """Yields the remedies by which this device computes the same steps faster."""
    device, step, model = job.device, job.step, job.model
    offer = partial(_offer, job, "compute")
    in_step = 1 - job.load_share
    faster = 0.5  # on an accelerator flops_per_s is already that of bfloat16
    if device.on_cpu and device.bfloat16_flops_per_s:
        faster = _saved(device.flops_per_s, device.bfloat16_flops_per_s)
    yield offer(
        "bfloat16",
        gain=job.compute_share * faster,
        change={"precision": "bfloat16"},
        tolerance=0.02,
        note="products in bfloat16; losses of the first updates within 2 %",
    )
    launches = LAUNCHES * step.dispatch_share
    yield offer(
        COMPILED_MODEL,
        gain=max(COMPILED, launches) * in_step,
        change={"compiled": True},
        tolerance=1e-3,
        extra_s=model.compile_s,
        note="torch.compile" + ("; it merges operators that are too small" if launches > COMPILED else ""),
    )
    yield offer(
        "fused optimizer",
        change={"fused": True},
        tolerance=1e-3,
        gain=in_step * step.optimizer_share / 2 if model.fusible else 0.0,
        note=f"the optimizer takes {step.optimizer_share:.0%} of the step"
        if model.fusible
        else "torch has no kernel for the whole update of this optimizer",
    )
    yield offer(
        "channels last",
        change={"channels_last": True},
        tolerance=1e-3,
        gain=REORDERED * in_step if model.images else 0.0,
        note="images in memory as convolutions read them"
        if model.images
        else "the model convolves no images",
    )


def _less_to_compute(job: JobFacts) -> Iterator[Offer]:
    """Yields the remedies that change the model or its training, so that there is less to compute."""
    offer = partial(_offer, job, "compute", quality=True)
    yield offer(
        "simpler model",
        gain=job.compute_share / 2,
        note=f"half the operations per sample; {_variant(job, 'simpler model')}",
    )
    share = job.step.activation_share
    yield offer(
        "cheaper activation",
        gain=(1 - job.load_share) * share * ACTIVATION_SAVES,
        note=f"activations take {share:.0%} of the step"
        + (f"; {_variant(job, 'cheaper activation')}" if share else ""),
    )
    twice = 2 * job.batch_size
    doubled_s = (job.load_s(twice) + job.step_s(twice)) / 2
    yield offer(
        "larger batch",
        gain=_saved(doubled_s, job.total_s),
        note="twice the samples in a step, for which the fixed part is paid once; name larger ones in "
        "plan.batch_sizes, and the plan takes one by the noise scale",
    )
    yield offer("fewer steps", gain=0.5, note="half of train.epochs")


def _faster(job: JobFacts) -> dict[str, Machine | None]:
    """Returns for each kind of faster device the machine that helps this job, from the device that it is on.

    Among accelerators, the machine on which the job costs least; among newer generations, the fastest.
    Devices are compared one to one, so no machine has more devices than the job has workers.
    """
    priced = [machine for machine in rented() if 0 < machine.num_devices <= job.num_workers if _usd(machine)]
    gains = {machine: _gain_on(job, machine) for machine in priced}
    faster = {machine: gain for machine, gain in gains.items() if gain >= LEAST_GAIN}
    gpus = [machine for machine in faster if not machine.is_tpu]
    tpus = [machine for machine in faster if machine.is_tpu]
    return {
        "faster accelerator": min(gpus, key=lambda m: (_usd(m) * (1 - faster[m]), m.name), default=None),
        "newer generation": max(gpus, key=lambda m: (faster[m], -_usd(m), m.name), default=None),
        "TPU": max(tpus, key=lambda m: (faster[m], -_usd(m), m.name), default=None),
    }


def _usd(machine: Machine) -> float:
    """Returns the least price of an hour; a small machine with H100 is not sold on demand. 0: not known."""
    prices = (machine.price(strategy) for strategy in get_args(Strategy))
    return min((price for price in prices if price), default=0.0)


def _gain_on(job: JobFacts, machine: Machine) -> float:
    """Returns the share of the time that a device saves by its FLOP/s and its bandwidth, sheet by sheet.

    What is dispatched by the host is not faster. More FLOP/s with less bandwidth may save nothing.
    """
    on_device = job.compute_share * (1 - job.step.dispatch_share)
    here, there, in_memory = job.device, machine.speeds, job.step.memory_share
    flops_per_s, bytes_per_s = data_sheets.on_sheet(
        here.name, flops_per_s=here.flops_per_s, bytes_per_s=here.bytes_per_s
    )
    by_flops = flops_per_s / there.flops_per_s
    by_bytes = bytes_per_s / there.bandwidth_bytes_per_s if bytes_per_s else by_flops
    return on_device * max(0.0, 1 - (1 - in_memory) * by_flops - in_memory * by_bytes)


def _variant(job: JobFacts, name: str) -> str:
    """Returns how a remedy that changes the model is tried."""
    return (
        "the workload offers a variant"
        if name in job.model.variants
        else f"return another workload for {name!r} from `variants`, and it is timed"
    )


def _memory(job: JobFacts) -> Iterator[Offer]:
    model, workers, larger = job.model, job.num_workers, _with_room(job)
    yield _sparse_gradients(job)
    yield _to_fit(
        job,
        "micro-batches",
        possible=not model.is_undivided,
        note="whole_batch of the class asks for one pass; encode and batch_loss in its place allow several"
        if model.is_undivided
        else "the plan takes passes that fit; the gradient stays the same",
    )
    yield _to_fit(
        job,
        "activation checkpointing",
        change={"recompute": True},
        possible=model.blocks,
        note="activations are computed again in the backward pass"
        if model.blocks
        else "the model has no layers to compute again, or BatchNorm in them",
    )
    yield _to_fit(
        job,
        "sharded optimizer",
        change={"sharded": True},
        possible=workers > 1,
        note=f"{workers} worker(s) to share its state",
    )
    yield _to_fit(
        job,
        "sharded weights",
        change={"sharded": True, "sharded_weights": True},
        possible=workers > 1,
        note=f"{workers} worker(s) to share the model",
    )
    yield _offer(
        job,
        "memory",
        BAND_LIMITED,
        gain=0.0,
        quality=True,
        helps=not job.memory.fits and model.convolves and not model.band_rate,
        note=_band_limited(job),
    )
    yield _to_fit(
        job,
        "more memory per worker",
        possible=larger is not None,
        note=f"it fits the memory of {larger.device}; name {larger.name} in plan.machines"
        if larger
        else _most_room(job),
    )
    yield _offer(
        job,
        "memory",
        "fewer layers",
        gain=0.0,
        quality=True,
        helps=not job.memory.fits or "fewer layers" in model.variants,
        note=f"less to keep for the backward pass; {_variant(job, 'fewer layers')}",
    )
    yield _smaller_batch(job, "memory", helps=not job.memory.fits)


def _sparse_gradients(job: JobFacts) -> Offer:
    model = job.model
    idle = model.table_share * (1 - model.sparse_rows) if model.sparse_rows else 0.0
    note = "the model has no large embedding tables with dense gradients"
    if model.sparse_rows:
        note = f"a step looks up {model.sparse_rows:.2%} of the rows of its embedding tables, and updates all"
        if not model.sparse_equal:
            note += (
                "; use nn.Embedding(sparse=True) with torch.optim.SparseAdam, "
                "which leaves the moments of other rows as they are"
            )
    return _offer(
        job,
        "memory",
        SPARSE,
        gain=(1 - job.load_share) * idle * SPARSE_SAVES,
        change={"sparse": True} if model.sparse_equal else None,
        quality=bool(model.sparse_rows) and not model.sparse_equal,
        note=note,
    )


def _to_fit(
    job: JobFacts, name: str, *, note: str, possible: bool = True, change: dict[str, Any] | None = None
) -> Offer:
    """Returns the offer of a remedy that saves memory but no time, for a job that does not fit."""
    fits = job.memory.fits
    return _offer(
        job,
        "memory",
        name,
        gain=0.0,
        change=change,
        helps=possible and not fits,
        note="it fits already" if fits else note,
    )


def _band_limited(job: JobFacts) -> str:
    """Returns what band-limiting would do for the memory of a job."""
    if not job.model.convolves:
        return "the model has no convolution of more than one tap"
    if job.model.band_rate:
        return f"train.band_rate leaves out {job.model.band_rate:.0%} already"
    if job.memory.fits:
        return "it fits already"
    measured = job.memory.remedies.get(BAND_LIMITED, "")
    accepted = f"set train.band_rate: {OFFERED_RATE:g}, and the gate judges it as a changed recipe"
    return f"{measured}; {accepted}" if measured else accepted


def _with_room(job: JobFacts) -> Machine | None:
    """Returns the cheapest machine with an accelerator whose memory has room for the job."""
    enough = [
        machine
        for machine in rented()
        if machine.usd_per_hour and machine.device_memory_bytes * (1 - HEADROOM) >= job.memory.peak_bytes
        if machine.num_devices
    ]
    return min(enough, key=lambda machine: (machine.usd_per_hour or 0.0, machine.name), default=None)


def _most_room(job: JobFacts) -> str:
    """Returns that no machine has room for the job, and how large a model would fit the roomiest."""
    most = max((m for m in rented() if m.num_devices and m.usd_per_hour), key=lambda m: m.device_memory_bytes)
    room, needed = most.device_memory_bytes * (1 - HEADROOM), job.memory.peak_bytes
    text = f"no machine of the catalog has room for its {needed / 1e9:.1f} GB"
    return f"{text}; {most.device} has the most, for a model or batch {room / needed:.2g} times as large"


def _smaller_batch(job: JobFacts, bound: Bound, *, helps: bool = False) -> Offer:
    half = job.batch_size / 2
    halved_s = 2 * (job.load_s(half) + job.step_s(half))
    return _offer(
        job,
        bound,
        SMALLER_BATCH,
        gain=1 - halved_s / job.total_s if job.total_s else 0.0,
        quality=True,
        note="half the batch is twice the updates, so the fixed part is paid twice",
        helps=helps,
    )


def _saved(new: float, old: float) -> float:
    return max(0.0, 1 - new / old) if old else 0.0


def _offer(
    job: JobFacts,
    bound: Bound,
    name: str,
    *,
    gain: float,
    note: str,
    change: dict[str, Any] | None = None,
    tolerance: float = 1e-5,
    extra_s: float = 0.0,
    quality: bool = False,
    helps: bool = False,
) -> Offer:
    """Returns an offer: for the job's bound any gain applies, for another only one that is worth a trial."""
    own = bound == job.bound
    remedy = Remedy(
        name=name,
        bound=bound,
        applies=helps or (gain > 0 if own else bool(change) and gain >= LEAST_GAIN),
        applied=False,
        kept=False,
        predicted_gain=gain,
        measured_gain=0.0,
        quality=quality,
        note=note,
    )
    return Offer(remedy=remedy, change=change or {}, tolerance=tolerance, extra_s=extra_s)
