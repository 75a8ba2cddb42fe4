"""What did the nights of the ledger predict, and what happened? Plain values for history.py and scorecard.py.

Only nights before this one count, by the commit that it follows: so the same records give the same plan
whenever it is made.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from pipeline.contract.machine import Machine
from pipeline.contract.records import Night, Profile, Rental
from pipeline.machines import catalog
from pipeline.machines.startup import IN_RUN_S, wait
from pipeline.prediction.calibration import NIGHTS_AHEAD, Known, Past, ratio
from pipeline.prediction.efficiency import Reached
from pipeline.prediction.scorecard import NIGHTS, Scorecard, outcome, scorecard
from pipeline.prediction.time_budget import Decided
from pipeline.prediction.update_time import update
from pipeline.profiling import remedies
from pipeline.spot.hazard import learned
from pipeline.storage import ledger
from pipeline.storage.ledger import Entry

log = logging.getLogger(__name__)


def known(entries: Sequence[Entry], *, machines: Sequence[Machine], num_workers: int) -> Known:
    """What nights taught, given oldest first, on machines that are still known.

    `num_workers` is train.num_workers, of the machine at hand.
    """
    card = card_of(entries)
    if card and card.warning:
        log.warning("%s", card.warning)
    found = [_past(entry, machines=machines, num_workers=num_workers) for entry in entries]
    told = Known(
        past=tuple(each for each in found if each),
        runs=Counter(
            (e.plan.rental.machine, e.plan.batch_size, e.plan.rental.num_machines) for e in entries if e.plan
        ),
        starts=_starts(entries, machines),
        hazard=learned(_lives(entries)),
        reached=_reached(entries),
        decided=[each for each in map(_decided, entries) if each],
    )
    if card:
        told = replace(told, widen=card.widen, needed=card.needed)
    for sentence in told.left_out:
        log.warning("%s", sentence)
    return told


def before(night: Night) -> list[Entry]:
    """The last nights that this one follows, oldest first; rollbacks are no nights."""
    if not night.previous:
        return []
    entries = ledger.history(limit=2 * NIGHTS)  # rollbacks are among them
    commits = [entry.commit for entry in entries]
    if night.previous not in commits:
        return []
    followed = [entry for entry in entries[commits.index(night.previous) :] if not entry.rollback]
    return followed[:NIGHTS][::-1]


def explored_usd(entries: Sequence[Entry]) -> float:
    """Dollars that the last nights spent on trying something else than the best that was known."""
    tried = [e for e in entries[-NIGHTS_AHEAD:] if e.plan and e.plan.explore_usd > 0]
    best_usd = [(e, e.plan.expected_usd - e.plan.explore_usd) for e in tried if e.plan]
    return sum(max(0.0, (e.training.cost_usd if e.training else 0.0) - usd) for e, usd in best_usd)


def card_of(entries: Sequence[Entry]) -> Scorecard | None:
    """The scorecard of some nights, given oldest first."""
    told = [outcome(e.night.id, e.plan, e.training) for e in entries if e.plan and e.training]
    return scorecard([each for each in told if each])


def _past(entry: Entry, *, machines: Sequence[Machine], num_workers: int) -> Past | None:
    """A night's update against what its profile had said; None where that tells nothing."""
    plan, training, profile = entry.plan, entry.training, entry.profile
    if not (plan and training and profile and entry.dataset) or training.num_restarts:
        return None
    machine = _machine(plan.rental, profile, entry.night, machines)
    if machine is None:
        return None
    measured = catalog.local(profile, today=entry.night.day)
    epochs = plan.num_samples / max(1, entry.dataset.num_samples)
    as_run, _ = remedies.apply_kept(profile, epochs=epochs, num_samples=plan.num_samples)
    here = plan.rental.is_local
    found = update(
        as_run,
        measured if here else machine,
        measured=measured,
        num_machines=plan.rental.num_machines,
        batch_size=plan.batch_size,
        num_workers=num_workers if here else machine.num_workers,
    )
    if found is None:
        return None
    times = ratio(
        elapsed_s=training.elapsed_s,
        start_s=IN_RUN_S,
        num_updates=training.num_updates,
        update_s=found.seconds,
    )
    if times is None:
        return None
    return Past(
        machine=machine.name,
        device=machine.device,
        measured_here=here,
        setting=found.setting,
        ratio=times,
    )


def _starts(entries: Sequence[Entry], machines: Sequence[Machine]) -> dict[str, list[float]]:
    """What came before the first step, as times of the prior, by machine."""
    found: dict[str, list[float]] = {}
    for e in entries:
        if not (e.plan and e.training and e.profile and e.dataset) or e.training.start_s is None:
            continue
        machine = _machine(e.plan.rental, e.profile, e.night, machines)
        if machine is not None:
            prior_s = wait(machine, num_bytes=e.dataset.num_bytes).seconds
            found.setdefault(machine.name, []).append((e.training.start_s + IN_RUN_S) / prior_s)
    return found


def _lives(entries: Sequence[Entry]) -> list[tuple[float, bool]]:
    """The lives of spot machines; of several together one was lost, the others had lived as long."""
    found: list[tuple[float, bool]] = []
    for entry in entries:
        number = entry.plan.rental.num_machines if entry.plan else 1
        for seconds, preempted in entry.training.spot_lives if entry.training else ():
            found += [(seconds, preempted), *[(seconds, False)] * (number - 1)]
    return found


def _reached(entries: Sequence[Entry]) -> list[Reached]:
    """Which quality nights reached; the score of a simple rule is taken off where all of them have it."""
    told = [e for e in entries if e.plan and e.training and e.profile and "score" in _metrics(e)]
    told = [e for e in told if e.plan and not e.plan.sizes]  # a batch that grew on the way is of no one size
    common = set.intersection(*(set(_metrics(e)) for e in told)) if told else set()
    rules = sorted(name for name in common if name.startswith("baseline/"))
    return [
        Reached(
            batch_size=e.plan.batch_size,
            num_samples=e.training.num_samples,
            noise_scale=e.training.noise_scale or e.profile.noise_scale,
            score=_metrics(e)["score"] - (_metrics(e)[rules[0]] if rules else 0.0),
            size=abs(_metrics(e)["score"]),
            flops_per_sample=e.profile.flops_per_sample,
        )
        for e in told
        if e.plan and e.training and e.profile and e.training.num_samples and _metrics(e)["score"]
    ]


def _metrics(entry: Entry) -> dict[str, float]:
    return entry.evaluation.metrics if entry.evaluation else {}


def _decided(entry: Entry) -> Decided | None:
    """What followed a night's training; None where it does not tell."""
    training, evaluation, verdict = entry.training, entry.evaluation, entry.verdict
    if not (training and evaluation and verdict):
        return None
    ended_at, decided_at, evaluation_s = training.ended_at, verdict.decided_at, evaluation.elapsed_s
    if not (ended_at and decided_at and evaluation_s):
        return None
    gate_s = (decided_at - ended_at).total_seconds() - evaluation_s
    return Decided(evaluation_s=evaluation_s, gate_s=gate_s) if gate_s > 0 else None


def _machine(rental: Rental, profile: Profile, night: Night, machines: Sequence[Machine]) -> Machine | None:
    """The machine that was rented; any region's, as all have the same devices."""
    if rental.is_local:
        return catalog.local(profile, today=night.day)
    return next((machine for machine in machines if machine.name == rental.machine), None)
