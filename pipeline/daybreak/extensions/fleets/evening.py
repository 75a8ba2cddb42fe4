"""Gives a model a share of the machines that the models of a fleet have in common.

Every call of stage `plan` offers the ways in which the planner would train tonight, and divides the evening
anew (`sharing.divide`) among all models that have offered. Models in training keep their machines until they
are done, so a job that ends early or late moves the waiting ones. A model whose share begins now takes it;
any other is called again later. The shares are kept in the leading home, in `var/evening.json`, which one
process at a time reads and writes.

An open night without an offer is waited for, at most `PATIENCE_S`. A night that has offered and does not call
any more, since it was killed, is passed over until it calls again.
"""

import json
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Protocol

from daybreak.contract import clock, records
from daybreak.contract.errors import DataError, NotYet, PlanError
from daybreak.contract.formats import duration
from daybreak.contract.machine import Machine
from daybreak.contract.record_types import Approval, Night, Plan, Profile, Refit, Release, Training, Verdict
from daybreak.contract.sections import PlanSections
from daybreak.contract.units import HOUR_S
from daybreak.extensions.fleets.sharing import EveningDemand, Share, Way, divide
from daybreak.machines.catalog import HEADROOM
from daybreak.night.month_budget import month_budget
from daybreak.storage import homes
from daybreak.storage.home import Home
from daybreak.storage.journal import Journal

if TYPE_CHECKING:
    from daybreak.contract.fleet import Fleet

log = logging.getLogger(__name__)

JOURNAL = Path("var/evening.json")
JOBS = "data/work/jobs/*/submissions.json"  # of a night that asked for machines (daybreak/jobs/launcher.py)
PATIENCE_S = 600.0
UNSEEN_S = (
    180.0  # without a look, after which a waiting night is passed over; Airflow looks every ten seconds
)
OVERDUE = 0.05  # share of its time that a job which should be done is expected to take still
EVENING_S = 20 * HOUR_S  # for which dollars count
AT_ANY_PRICE_USD = 1e9  # an hour


class Planned(Protocol):
    """Plans the night by params on machines; raises PlanError where there is no plan."""

    def __call__(self, params: PlanSections, available: Sequence[Machine], *, waited_s: float = 0.0) -> Plan:
        """`waited_s` is what the night waited for machines."""


def plan(
    home: Home,
    night: Night,
    profile: Profile,
    planned: Planned,
    *,
    available: Sequence[Machine],
    params: PlanSections,
) -> Plan:
    """Returns the plan of a night on its share of the fleet's machines, once the share begins.

    Raises NotYet before.

    Args:
        home: whose night it is.
        night: tonight's.
        profile: tonight's.
        planned: tonight's plan by params on machines; raises PlanError where there is none.
        available: machines that the backend has.
        params: tonight's.
    """
    place = homes.shared(home.folder)
    assert place
    machines = place[2].machines
    # The share limits the machines, so within it the plan of least expected time is the one that the division
    # counts on; without a price of an hour, one that cannot be told from it would do.
    update = {"objective": "time", "usd_per_hour_saved": AT_ANY_PRICE_USD}
    fastest = params.model_copy(update={"plan": params.plan.model_copy(update=update)})
    offered = ways(
        partial(planned, fastest),
        profile,
        available=available,
        machines=machines,
        confidence=params.plan.confidence,
        most=params.plan.max_machines,
    )
    if not offered:  # none of the machines that are shared would do
        return planned(params, available)
    share, waited_s = turn(home, night, offered, refits=bool(params.gate.refit_epochs))
    name = share.way.machine
    there = [replace(each, count=share.way.num_machines) for each in available if each.name == name]
    plan = planned(fastest, there, waited_s=waited_s)
    text = f"{share.way.num_machines} x {name} of the fleet's {machines[name]}"
    return replace(plan, reasons=replace(plan.reasons, share=text))


def ways(
    planned: Callable[[Sequence[Machine]], Plan],
    profile: Profile,
    *,
    available: Sequence[Machine],
    machines: Mapping[str, int],
    confidence: float,
    most: int,
) -> tuple[Way, ...]:
    """Returns the ways in which the planner would train on the shared machines, by machine and number.

    Args:
        planned: the plan of tonight on these machines; raises PlanError where there is none.
        profile: tonight's.
        available: that the backend has.
        machines: how many of each name are shared.
        confidence: chance of being done in time, as the plan asks for it.
        most: machines of a plan.
    """
    offered = []
    for name, count in machines.items():
        there = [machine for machine in available if machine.name == name]
        for number in range(1, min(count, most) + 1) if there else ():
            try:
                plan = planned([replace(machine, count=number) for machine in there])
            except PlanError:
                continue
            is_local = plan.rental.is_local  # only there do two jobs meet on one machine
            offered.append(
                Way(
                    machine=name,
                    num_machines=plan.rental.num_machines,
                    seconds=plan.forecast.expected_s,
                    late_s=_late_s(plan, confidence),
                    usd=plan.forecast.expected_usd,
                    busy=_busy(profile, plan) if is_local else 1.0,
                    memory=_memory(profile, plan) if is_local else 1.0,
                )
            )
    return tuple(dict.fromkeys(offered))


def _late_s(plan: Plan, confidence: float) -> float:
    """Returns the seconds in which the job is done with this chance, from the plan's 90 % interval."""
    normal = NormalDist()
    expected_s, (_, high_s) = plan.forecast.expected_s, plan.forecast.interval
    spread = high_s / expected_s
    return float(expected_s * spread ** (normal.inv_cdf(confidence) / normal.inv_cdf(0.95)))


def _busy(profile: Profile, plan: Plan) -> float:
    """Returns the share of the time in which the machine at hand computes rather than waits for a batch.

    Where the CPU is the device, loading uses its cores as well, but not while it waits for storage.
    """
    load_s = profile.load_s(plan.micro_batch_size)
    step_s = profile.step_s(plan.micro_batch_size)
    if profile.device == "cpu":
        waits_s = load_s * float(profile.evidence.get("storage", {}).get("waited_share", 0.0))
        return 1 - waits_s / (load_s + step_s)
    return step_s / max(step_s, load_s) if plan.tuning.num_loaders else step_s / (step_s + load_s)


def _memory(profile: Profile, plan: Plan) -> float:
    room = profile.evidence["machine"]["device_memory_bytes"] * (1 - HEADROOM)
    return float(min(1.0, profile.memory_bytes(plan.micro_batch_size) / room))


def turn(
    home: Home, night: Night, offered: tuple[Way, ...], *, refits: bool = False, now: float | None = None
) -> tuple[Share, float]:
    """Returns tonight's share, which begins now, and for how many seconds the night waited for it.

    Raises NotYet before it begins, and PlanError where the dollars of the evening do not suffice for it.

    Args:
        home: whose nights these are.
        night: tonight's.
        offered: the ways in which it would train.
        refits: whether a version that is promoted trains once more on these machines.
        now: seconds since 1970; the clock's if left out.
    """
    place = homes.shared(home.folder)
    assert place
    lead, model, fleet = place
    journal = Journal(lead / JOURNAL, empty={})
    with journal.alone():
        now = clock.now() if now is None else now  # once no other model has the journal any more
        entries: dict[str, Any] = journal.read()
        entry = entries.get(model, {})
        if entry.get("night") != night.id:
            left_out = 0 if entry.get("share") else entry.get("left_out", 0) + bool(entry.get("refused"))
            takings = [each for each in entry.get("takings", ()) if now - each["at"] < EVENING_S]
            entry = {"night": night.id, "offered_at": now, "left_out": left_out, "takings": takings}
        entry |= {"seen_at": now, "deadline": _deadline(night).timestamp()}
        until = night.decide_until.timestamp() if refits else entry["deadline"]
        entry |= {"home": str(home.folder), "refits": refits, "until": until}
        entry["ways"] = [asdict(way) for way in offered]
        entries[model] = entry
        if now >= entry["deadline"]:
            raise PlanError(
                f"the night's deadline passed while it waited for machines of the fleet; raise "
                f"night.train_hours, or machines in {lead / 'fleet.yaml'}"
            )
        try:
            return _taken(entries, model, lead, fleet, now=now)
        finally:
            journal.write(entries)


def _taken(
    entries: dict[str, Any], model: str, lead: Path, fleet: "Fleet", *, now: float
) -> tuple[Share, float]:
    """Returns a model's share and records in its entry that the share is taken; NotYet or PlanError."""
    entry = entries[model]
    if taken := entry.get("share"):  # by a call that was killed before its plan was written
        return _share(model, taken, start_s=0.0), entry["started_at"] - entry["offered_at"]
    limits = {"budget_usd": fleet.budget_usd, "usd_per_month": fleet.usd_per_month}
    if entry.get("refused") and entry.get("refused_by") == limits:
        raise PlanError(entry["refused"])
    entry.pop("refused", None)  # the limits were changed since
    folders = {home.model: home.folder for home in homes.homes(lead)}
    open_nights = {
        name: other
        for name, other in entries.items()
        if now < other["until"] and (name == model or not _has_ended(other))
    }
    running = [_still(name, each, now=now) for name, each in open_nights.items() if each.get("share")]
    waiting = [
        _demand(name, each, fleet, now=now)
        for name, each in open_nights.items()
        if not each.get("share") and not each.get("refused") and now - each["seen_at"] < UNSEEN_S
    ]
    takings = [
        taking
        for other in entries.values()
        for taking in other["takings"]
        if now - taking["at"] < EVENING_S and _may_have_rented(Path(other["home"]), taking["night"])
    ]
    spent_usd = sum(taking["usd"] for taking in takings)
    counted = {taking["night"] for taking in takings}
    budget_usd = _budget_usd(folders.values(), fleet, now=now, without=counted)
    left_usd = None if budget_usd is None else budget_usd - spent_usd
    late = [name for name in _expected(folders, entries, now=now) if name != model]
    if late and now - entry["offered_at"] < PATIENCE_S:
        raise NotYet(f"waits for what {', '.join(late)} offers, {duration(PATIENCE_S)} at most")
    offers = _offers(open_nights, waiting, running, fleet, left_usd)
    share = _promised(model, entry, offers, now=now)
    if share is None:
        share = divide(waiting, machines=fleet.machines, budget_usd=left_usd, running=running).of(model)
    if share is None:
        least, left = min(way["usd"] for way in entry["ways"]), max(left_usd or 0.0, 0.0)
        entry["refused"] = (
            f"the evening of the fleet has ${left:.2f} left and {model} needs ${least:.2f} at "
            f"least; it goes first on the next one, or raise budget_usd or usd_per_month in "
            f"{lead / 'fleet.yaml'}"
        )
        entry["refused_by"] = limits
        raise PlanError(entry["refused"])
    if share.start_s > 0:
        entry["promise"] = {"offers": offers, "way": asdict(share.way), "at": now + share.start_s}
        raise NotYet(
            f"waits about {duration(share.start_s)} for {share.way.num_machines} x {share.way.machine}, "
            f"which other models of the fleet have"
        )
    entry |= {"share": asdict(share.way), "started_at": now}
    entry["takings"].append({"night": entry["night"], "at": now, "usd": share.way.usd})
    return share, now - entry["offered_at"]


def _offers(
    open_nights: Mapping[str, Mapping[str, Any]],
    waiting: Sequence[EveningDemand],
    running: Sequence[Share],
    fleet: "Fleet",
    left_usd: float | None,
) -> str:
    """Returns a digest of what a division goes by, except for the time."""
    names = [demand.model for demand in waiting]
    ways = [(name, open_nights[name]["night"], open_nights[name]["ways"]) for name in names]
    trains = [(share.model, open_nights[share.model]["night"]) for share in running]
    text = json.dumps([ways, trains, dict(fleet.machines), dict(fleet.value), left_usd])
    return records.bytes_digest(text.encode())


def _promised(model: str, entry: Mapping[str, Any], offers: str, *, now: float) -> Share | None:
    """Returns the share of the last division while it is still to begin, and nothing has changed since.

    A division takes a second of many models, each of which looks every few seconds.
    """
    promise = entry.get("promise")
    if not promise or promise["offers"] != offers or promise["at"] <= now:
        return None
    return _share(model, promise["way"], start_s=promise["at"] - now)


def _budget_usd(
    folders: Iterable[Path], fleet: "Fleet", *, now: float, without: Container[str]
) -> float | None:
    """Returns the dollars of an evening, by the budgets of evening and month; None without a limit.

    Nights in `without` are of this evening, whose dollars are counted by what they took.
    """
    limits = [] if fleet.budget_usd is None else [fleet.budget_usd]
    if fleet.usd_per_month is not None:
        homes_of_fleet, at = [Home(folder) for folder in folders], datetime.fromtimestamp(now, UTC)
        month = month_budget(homes_of_fleet, usd=fleet.usd_per_month, at=at, zone="UTC", without=without)
        limits.append(month.left_usd / month.num_nights)
    return min(limits, default=None)


def standing(lead: Path) -> dict[str, str]:
    """Returns what each model has of the shared machines, or waits for, in words.

    A night that needs none any more is left out.
    """
    words = {}
    for model, entry in Journal(lead / JOURNAL, empty={}).read().items():
        if _has_ended(entry):
            continue
        if share := entry.get("share"):
            since = datetime.fromtimestamp(entry["started_at"], UTC)
            words[model] = (
                f"night {entry['night']}: {share['num_machines']} x {share['machine']} since "
                f"{since:%Y-%m-%d %H:%M} UTC, for about {duration(share['seconds'])} and ${share['usd']:.2f}"
            )
        else:
            words[model] = f"night {entry['night']}: {entry.get('refused') or 'waits for machines'}"
    return words


def _demand(model: str, entry: Mapping[str, Any], fleet: "Fleet", *, now: float) -> EveningDemand:
    return EveningDemand(
        model=model,
        ways=tuple(Way(**way) for way in entry["ways"]),
        deadline_s=entry["deadline"] - now,
        value=fleet.value.get(model, 1.0),
        left_out=entry.get("left_out", 0),
    )


def _still(model: str, entry: Mapping[str, Any], *, now: float) -> Share:
    """Returns the share of a job that trains, for as long as it still needs."""
    way = Way(**entry["share"])
    left_s = max(entry["started_at"] + way.seconds - now, OVERDUE * way.seconds)
    return Share(model=model, way=replace(way, seconds=left_s), start_s=0.0)


def _share(model: str, way: Mapping[str, Any], *, start_s: float) -> Share:
    return Share(model=model, way=Way(**way), start_s=start_s)


def _deadline(night: Night) -> datetime:
    return min(night.train_until, night.decide_until)


def _has_ended(entry: Mapping[str, Any]) -> bool:
    """Returns whether the night of an entry needs no machine any more; not if that is unreadable."""
    home, night = Path(entry["home"]), entry["night"]
    try:
        return _is_over(home, night, refits=entry["refits"])
    except (DataError, OSError) as error:
        _warn(home, night, error, "it keeps its machines")
        return False


def _is_over(home: Path, night: str, *, refits: bool = False) -> bool:
    """Returns whether a night needs no machine any more.

    It has trained, or has ended without; where it refits, that is done as well, or nothing is promoted.
    """
    run = _folder(home, night) / records.RUN
    has_trained = records.path_of(Training, run).exists()
    if not refits or not has_trained:
        return has_trained or records.path_of(Verdict, run).exists()
    if any(records.path_of(kind, run).exists() for kind in (Refit, Release)):
        return True
    verdict = records.find(Verdict, run)
    if verdict is None:
        return False
    approval = records.find(Approval, run)
    is_refused = approval is not None and not approval.approved
    may_be_promoted = verdict.action == "promote" or verdict.approve_until is not None
    return is_refused or not may_be_promoted or (run / "promote.skipped").exists()


def _may_have_rented(home: Path, night: str) -> bool:
    """Returns whether a night took dollars, or still may: not one that ended without asking for machines.

    Of a night whose folder is gone nobody knows, so that its dollars count.
    """
    folder = _folder(home, night)
    run = folder / records.RUN
    try:
        of = records.find(Night, run)
    except (DataError, OSError) as error:
        _warn(home, night, error, "its dollars count")
        return True
    if of is None or of.id != night or not records.path_of(Verdict, run).exists():
        return True
    return records.path_of(Training, run).exists() or any(folder.glob(JOBS))


def _warn(home: Path, night: str, error: Exception, what: str) -> None:
    log.warning("night %s of %s cannot be read, so that %s: %s", night, home, what, error)


def _folder(home: Path, night: str) -> Path:
    folder = home / "nights" / night
    return folder if folder.exists() else home  # of a night with --here


def _expected(folders: Mapping[str, Path], entries: Mapping[str, Any], *, now: float) -> list[str]:
    """Returns the models whose newest night is open and has not offered yet."""
    late = []
    for model, home in folders.items():
        try:
            if _is_expected(home, entries.get(model, {}).get("night", ""), now=now):
                late.append(model)
        except (DataError, OSError) as error:  # also of a folder that is pruned meanwhile
            log.warning("nobody waits for what %s offers, whose night cannot be read: %s", model, error)
    return late


def _is_expected(home: Path, offered: str, *, now: float) -> bool:
    """Returns whether the newest night of a home is open, and is not the one that has offered."""
    nights = sorted((home / "nights").glob("*"), key=lambda path: path.stat().st_mtime)
    night = records.find(Night, nights[-1] / records.RUN) if nights else None
    if night is None or night.train_until.timestamp() < now or night.id == offered:
        return False
    has_failed = any((nights[-1] / records.RUN).glob("*.error"))
    return not has_failed and not _is_over(home, night.id)
