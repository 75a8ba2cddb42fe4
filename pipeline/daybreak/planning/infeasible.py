"""Writes the sentences of a PlanError: why there is no plan, and the least change that helps."""

from collections.abc import Callable, Collection, Sequence
from math import ceil, floor

from daybreak.contract import formats
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import EVERY_UPDATE
from daybreak.contract.record_types import Night, Profile
from daybreak.contract.units import HOUR_S
from daybreak.machines.catalog import HEADROOM, rented
from daybreak.planning.candidates import TrainingTask, Way, line_of
from daybreak.planning.search import Candidate, PlanLimits, Relaxation, feasible
from daybreak.prediction.time_budget import LONGEST_S, NightWindow
from daybreak.prediction.update_time import held_bytes
from daybreak.training.recipe import Course


def nothing_runs(
    job: TrainingTask,
    machines: Sequence[Machine],
    batch_sizes: Sequence[int],
    *,
    num_samples: int,
    others: Sequence[Machine] = (),
) -> str:
    """Returns the sentence that no machine runs the job: a batch is smaller than the workers, or memory is.

    `others` could be named in plan.machines. Too small a batch is the cause wherever a machine has memory
    enough for one sample.
    """

    def workers(machine: Machine) -> int:
        return job.num_workers if machine.is_local else machine.num_workers

    def available(machine: Machine) -> float:
        sharing = max(1.0, workers(machine) / machine.num_workers)  # processes on one device
        return machine.device_memory_bytes * (1 - HEADROOM) / sharing

    undivided = job.profile.is_undivided
    whole = min(*batch_sizes, num_samples) if undivided else job.batch_size if job.profile.is_estimator else 1
    copies = held_bytes(job.profile, job.sync or EVERY_UPDATE)
    needed = job.profile.memory_bytes(whole) + copies
    roomy = [machine for machine in machines if needed <= available(machine)]
    if roomy:
        return _too_few_samples(job, min(roomy, key=workers), batch_sizes, num_samples=num_samples)
    largest = max(machines, key=available)
    shared = workers(largest) / largest.num_workers
    what = f"a {'batch' if undivided else 'tree'} of {formats.counted(whole, 'sample')} needs"
    what = "one sample needs" if whole == 1 else what
    held = f", {copies / 1e9:.2f} GB of it for averages of the weights," if copies else ""
    return (
        f"{what} {needed / 1e9:.2f} GB on a device{held} and the most that "
        f"plan.machines has is {available(largest) / 1e9:.2f} GB ({largest.name}, less {HEADROOM:.0%}"
        f"{f', for each of {workers(largest)} workers' if shared > 1 else ''}); "
        f"{_what_fits(job.profile, needed, available(largest), copies=copies, like=largest, others=others)}"
    )


def _too_few_samples(
    job: TrainingTask, fewest: Machine, batch_sizes: Sequence[int], *, num_samples: int
) -> str:
    """Returns the sentence that a batch, or all samples, are fewer than the workers of a machine."""
    number = job.num_workers if fewest.is_local else fewest.num_workers
    fewer = "lower train.num_workers" if fewest.is_local else "name a machine with fewer devices"
    of_machine = f"the {number} workers of {fewest.name}, the fewest of plan.machines"
    if num_samples < max(batch_sizes) and num_samples < number:
        all_samples = formats.counted(num_samples, "sample")
        return f"the {all_samples} to train on are fewer than {of_machine}; raise train.epochs, or {fewer}"
    key = "plan.batch_sizes" if tuple(batch_sizes) != (job.batch_size,) else "train.batch_size"
    return (
        f"a batch of {formats.counted(max(batch_sizes), 'sample')} ({key}) is smaller than {of_machine}; "
        f"raise {key} to {number}, or {fewer}"
    )


def _what_fits(
    profile: Profile,
    needed: float,
    available: float,
    *,
    copies: float,
    like: Machine,
    others: Sequence[Machine],
) -> str:
    """Returns what would fit: the cheapest machine, if possible of `like`'s kind, and a model or batch."""
    ways = []
    if copies:
        ways.append("set train.sync: every_update, which holds no copies")
    offered = "name {} in plan.machines, which has {}"
    elsewhere = "have {} of the catalog, which has {}, offered by the backend in a region of plan.regions"
    for machines, way in ((others, offered), (rented(), elsewhere)):
        roomy = [
            machine
            for machine in machines
            if machine.usd_per_hour and machine.is_tpu == like.is_tpu
            if machine.device_memory_bytes * (1 - HEADROOM) >= needed
        ]
        if roomy:
            is_other = {machine: bool(machine.num_devices) != bool(like.num_devices) for machine in roomy}
            best = min(roomy, key=lambda m: (is_other[m], m.usd_per_hour or 0.0, m.name))
            has = f"{best.device_memory_bytes * (1 - HEADROOM) / 1e9:.2f} GB"
            ways.append(way.format(best.name, has))
            break
    left, per_sample = available - copies - profile.memory_bytes.fixed, profile.memory_bytes.per_sample
    if profile.is_undivided:
        most = int(left / per_sample) if per_sample > 0 else 0
        lower = f"lower train.batch_size to {most:,}" if most > 0 else "lower train.batch_size"
        ways += [lower, "write encode and batch_loss in place of whole_batch"]
    else:
        times, weights = available / needed, profile.sync_bytes.fixed
        parameters = f", {times * weights / 4:,.0f} parameters" if weights else ""
        ways.append(f"train a model of at most {times:.2g} times the size{parameters}")
    return ", or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))


def nothing_at_once(waiting: Sequence[Candidate]) -> str:
    """Returns the sentence that every machine has to be waited for in a queue, and may never come."""
    names = ", ".join(dict.fromkeys(candidate.machine.name for candidate in waiting))
    hours = waiting[0].rental.max_wait_s / HOUR_S
    return (
        f"{names} can only be waited for, for {hours:g} h (plan.flex_wait_hours), and nothing "
        f"else of plan.machines could be rented at once if it does not come; name a machine with an "
        f"on-demand price in plan.machines, or allow plan.spot"
    )


def epochs_that_help(
    candidates_for: Callable[[int, Collection[Way] | None], list[Candidate]],
    tonight: Course,
    limits: PlanLimits,
) -> float | None:
    """Returns the most epochs, to 0.01, with which some candidate is feasible; None if 0.01 is too many.

    More samples take longer and cost more, so only lines that had something feasible with fewer are tried
    with more.
    """

    def lines(hundredths: int, among: Collection[Way] | None) -> set[Way]:
        offered = candidates_for(of_epochs(hundredths / 100, tonight), among)
        return {line_of(candidate) for candidate in feasible(offered, limits)}

    low, high = 0, floor(tonight.epochs * 100)
    among: set[Way] | None = None
    while high - low > 1:
        middle = (low + high) // 2 if low else 1
        remaining = lines(middle, among)
        if not remaining and middle == 1:
            return None
        low, high, among = (middle, high, remaining) if remaining else (low, middle, among)
    return low / 100 if low else None


def of_epochs(epochs: float, tonight: Course) -> int:
    """Returns the samples in so many epochs of tonight's course."""
    return max(1, round(epochs * tonight.num_samples / tonight.epochs))


def infeasible(
    night: Night, tonight: Course, window: NightWindow, relaxation: Relaxation, epochs: float | None
) -> str:
    """Returns the sentence that nothing is in time and within the budget, with the least that helps.

    It names the least change on each axis alone, or of deadline and budget together where none helps alone;
    where only a night of more than a week would do, it names the work as the cause.
    """
    ways = []
    if relaxation.budget_usd is not None:
        ways.append(f"night.budget_usd {_usd(relaxation.budget_usd):.2f}")
    if relaxation.deadline_s is not None and relaxation.deadline_s <= LONGEST_S:
        ways.append(_hours(window, relaxation.deadline_s))
    if epochs is not None:
        fewer = of_epochs(epochs, tonight)
        ways.append(f"train.{'warm_' if tonight.newest else ''}epochs {epochs:g} ({fewer:,} samples)")
    deadline_s, budget_usd = relaxation.both
    if not ways and deadline_s > LONGEST_S:
        return (
            f"training on {tonight.num_samples:,} samples would take {formats.duration(deadline_s)} on the "
            f"machine of plan.machines that is nearest to the limits, longer than any night; name faster "
            f"machines in plan.machines, raise plan.max_machines, or lower prepare.window_days"
        )
    if not ways:
        ways = [f"{_hours(window, deadline_s)} with night.budget_usd {_usd(budget_usd):.2f}"]
    return (
        f"no machine of plan.machines trains on {tonight.num_samples:,} samples by "
        f"{night.train_until:%H:%M} UTC for ${night.budget_usd:.2f}{_by_month(night)}; "
        f"the least that helps: {', or '.join(ways)}"
    )


def _by_month(night: Night) -> str:
    """Returns in words that the dollars of the month are the limit; "" where those of the night are."""
    month = night.month
    if month is None or not month.binds(night.budget_usd):
        return ""
    return f" ({month}; raise night.usd_per_month, or trigger this night with a budget of its own)"


def _usd(dollars: float) -> float:
    return ceil(dollars * 100) / 100


def _hours(window: NightWindow, deadline_s: float) -> str:
    """Returns `night.train_hours` that leaves so many seconds to training, and `decide_hours` if needed."""
    train_hours, decide_hours = window.hours(deadline_s)
    text = f"night.train_hours {train_hours:g}"
    if decide_hours * HOUR_S <= window.decide_s:
        return text
    return f"{text} and night.decide_hours {max(train_hours, decide_hours):g}"
