"""Reads from the ledger what earlier nights predicted and what happened, for calibration.py and scorecard.py.

Only nights before this one count, by the commit that it follows, so the same records give the same plan
whenever it is made.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from daybreak import hooks
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Night, Plan, Profile, Training
from daybreak.machines import catalog
from daybreak.machines.startup import IN_RUN_S, num_devices, wait
from daybreak.prediction.calibration import NIGHTS_AHEAD, CostCalibration, PastUpdateTime, ratio
from daybreak.prediction.efficiency import Reached
from daybreak.prediction.scorecard import FirstRun, alike, card_of, first_rental, first_run
from daybreak.prediction.time_budget import Decided
from daybreak.prediction.update_time import by_profile, update
from daybreak.profiling import remedies
from daybreak.storage.ledger import Entry

log = logging.getLogger(__name__)


def calibration_of(
    entries: Sequence[Entry], *, machines: Sequence[Machine], num_workers: int
) -> CostCalibration:
    """Returns what nights taught, given oldest first, on machines that are still in the catalog.

    `num_workers` is train.num_workers, of the machine at hand.
    """
    card = card_of(entries)
    if card and card.warning:
        log.warning("%s", card.warning)
    past = [_past(entry, machines=machines, num_workers=num_workers) for entry in entries]
    calibration = CostCalibration.of(
        tuple(each for each in past if each),
        runs=Counter(_runs(entries)),
        starts=_starts(entries, machines),
        hazard=next((learned(entries) for learned in hooks.functions("hazard")), None),
        reached=_reached(entries),
        decided=[each for each in map(_decided, entries) if each],
    )
    if card:
        calibration = replace(calibration, widen=card.widen, needed=card.needed)
    for sentence in calibration.left_out:
        log.warning("%s", sentence)
    return calibration


def explored_usd(entries: Sequence[Entry]) -> float:
    """Returns the dollars that the last nights spent on trying other ways than the best known one."""
    tried = [e for e in entries[-NIGHTS_AHEAD:] if e.plan and e.plan.explore_usd]
    best_usd = [(e, e.plan.forecast.expected_usd - e.plan.explore_usd) for e in tried if e.plan]
    return sum(max(0.0, (e.training.cost_usd if e.training else 0.0) - usd) for e, usd in best_usd)


def _runs(entries: Sequence[Entry]) -> Iterator[tuple[str, int, int]]:
    """Yields machine, batch size and number of machines of each night that was planned, or trained."""
    for e in entries:
        if e.plan:
            rental = first_rental(e.plan, e.training) if e.training else e.plan.rental
            if rental and not rental.others:
                yield rental.machine, e.plan.batch_size, rental.num_machines


def _past(entry: Entry, *, machines: Sequence[Machine], num_workers: int) -> PastUpdateTime | None:
    """Returns a night's update relative to its profile's prediction; None where there is no usable ratio."""
    plan, training, profile = entry.plan, entry.training, entry.profile
    if not (plan and training and profile and entry.dataset):
        return None
    ran = first_run(plan, training)
    if ran is None or (training.num_restarts and _may_differ(plan, training)):
        return None
    machine = _machine(ran.rental, profile, entry.night, machines)
    if machine is None or not _all_came(ran, machine):
        return None
    measured = catalog.local(profile, today=entry.night.day)
    epochs = plan.num_samples / max(1, entry.dataset.num_samples)
    as_run, _ = remedies.apply_kept(
        profile, epochs=epochs, num_samples=plan.num_samples, at_hand=ran.rental.is_local
    )
    here = ran.rental.is_local
    on, processes = (measured, num_workers) if here else (machine, machine.num_workers)
    batch_size = _mean_batch(plan, training)
    predicted = update(
        as_run,
        on,
        measured=measured,
        num_machines=ran.rental.num_machines,
        batch_size=batch_size,
        num_workers=processes,
        num_bytes=entry.dataset.num_bytes,
        sync=training.sync or plan.sync,
    )
    if predicted is None:
        return None
    times = ratio(
        elapsed_s=ran.elapsed_s, start_s=IN_RUN_S, num_updates=ran.num_updates, update_s=predicted.seconds
    )
    if times is None:
        return None
    return PastUpdateTime(
        machine=machine.name,
        device=machine.device,
        measured_here=here,
        setting=predicted.setting,
        update=by_profile(as_run, on, measured=measured, sharing=max(1.0, processes / on.num_workers)),
        ratio=times,
        least_ratio=_least_s(as_run, on, ran.rental.num_machines, batch_size) / predicted.seconds,
    )


def _least_s(profile: Profile, machine: Machine, num_machines: int, batch_size: int) -> float:
    """Returns the seconds that an update's operations take at the peak rate of all devices.

    0 for the machine at hand, whose rate may have been measured while it was busy.
    """
    if machine.is_local:
        return 0.0
    rate = machine.speeds.flops_per_s * machine.num_workers * num_machines
    return profile.flops_per_sample * batch_size / rate if rate else 0.0


def _all_came(ran: FirstRun, machine: Machine) -> bool:
    """Returns whether the workers had the devices of all machines, where they told."""
    if machine.is_local or not ran.device:
        return True
    return num_devices(ran.device) >= ran.rental.num_machines * machine.num_processes


def _may_differ(plan: Plan, training: Training) -> bool:
    """Returns whether updates before a restart may have had another size, or summed other gradients."""
    return bool(plan.sizes) or any(sync is not None and sync.every > 1 for sync in (plan.sync, training.sync))


def _mean_batch(plan: Plan, training: Training) -> int:
    """Returns the mean samples of the updates that count; the last has fewer, and those before may grow."""
    if training.num_restarts or not training.num_updates:
        return plan.batch_size
    if plan.sizes:
        return ceil(training.num_samples / training.num_updates)
    if training.stopped_by != "finished":
        return plan.batch_size
    return ceil(plan.num_samples / ceil(plan.num_samples / plan.batch_size))


def _starts(entries: Sequence[Entry], machines: Sequence[Machine]) -> dict[str, list[float]]:
    """Returns the times to the first step, as multiples of the prior, by machine."""
    starts: dict[str, list[float]] = {}
    for e in entries:
        if not (e.plan and e.training and e.profile and e.dataset) or e.training.start_s is None:
            continue
        rental = first_rental(e.plan, e.training)
        if rental is None or not alike(rental, e.plan.rental):  # another's start came after a refusal
            continue
        machine = _machine(rental, e.profile, e.night, machines)
        if machine is not None:
            number = e.plan.rental.num_machines
            prior_s = wait(machine, num_bytes=e.dataset.num_bytes, num_machines=number).seconds
            starts.setdefault(machine.name, []).append((e.training.start_s + IN_RUN_S) / prior_s)
    return starts


def _reached(entries: Sequence[Entry]) -> list[Reached]:
    """Returns the quality that nights reached, less the score of a simple rule where all of them have one.

    A checkpoint that was taken when time was up is left out: its rate had not decayed.
    """
    scored = [e for e in entries if e.plan and e.training and e.profile and "score" in _metrics(e)]
    scored = [e for e in scored if e.plan and not e.plan.sizes]  # a batch that grew has no single size
    common = set.intersection(*(set(_metrics(e)) for e in scored)) if scored else set()
    rules = sorted(name for name in common if name.startswith("baseline/"))
    return [
        Reached(
            batch_size=e.plan.batch_size,
            num_samples=e.training.num_samples,
            noise_scale=e.training.noise_scale or e.profile.noise_scale,
            score=_metrics(e)["score"] - (_metrics(e)[rules[0]] if rules else 0.0),
            size=abs(_metrics(e)["score"]),
            flops_per_sample=e.profile.flops_per_sample,
            warm=e.training.warm,
        )
        for e in scored
        if e.plan
        and e.training
        and e.profile
        and e.training.num_samples
        and _metrics(e)["score"]
        and not any(taken.name == "checkpoint" for taken in e.training.fallbacks)
    ]


def _metrics(entry: Entry) -> dict[str, float]:
    return entry.evaluation.metrics if entry.evaluation else {}


def _decided(entry: Entry) -> Decided | None:
    """Returns what followed a night's training; None where the records do not show it."""
    training, evaluation, verdict = entry.training, entry.evaluation, entry.verdict
    if not (training and evaluation and verdict):
        return None
    ended_at, decided_at, evaluation_s = training.ended_at, verdict.decided_at, evaluation.elapsed_s
    if not (ended_at and decided_at and evaluation_s):
        return None
    if verdict.live:  # how long users judge is planned by itself, and no time of the gate
        decided_at = verdict.live.began_at
    gate_s = (decided_at - ended_at).total_seconds() - evaluation_s
    refitted = entry.refit.training if entry.refit else None
    refit_s = (refitted.start_s or 0.0) + refitted.elapsed_s if refitted else 0.0
    return Decided(evaluation_s=evaluation_s, gate_s=gate_s, refit_s=refit_s) if gate_s > 0 else None


def _machine(rental: Rental, profile: Profile, night: Night, machines: Sequence[Machine]) -> Machine | None:
    """Returns the rented machine, of any region, as all have the same devices.

    None if the machine is unknown, or the rental has several kinds, which were not measured separately.
    """
    if rental.others:
        return None
    if rental.is_local:
        return catalog.local(profile, today=night.day)
    return next((machine for machine in machines if machine.name == rental.machine), None)
