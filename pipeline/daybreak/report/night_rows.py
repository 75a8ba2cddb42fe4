"""Keeps a row of figures for each commit of the ledger, so that a board over years opens at once.

Reading a thousand nights from git, each with a dozen records to be checked, takes seconds. A commit never
changes, so its row is made once and kept in `var/night_rows.jsonl` by the commit. The ledger stays the
source: only rows of its commits are shown, in its order, and a missing row is made from the records. The file
may be removed at any time; rows of other versions of the code are made anew.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from math import isclose
from pathlib import Path
from typing import Any, Literal, NamedTuple

from daybreak.contract import records
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Plan, Predictions, Training
from daybreak.contract.units import HOUR_S
from daybreak.prediction import scorecard
from daybreak.registry import approval
from daybreak.report import outcome, standing
from daybreak.report.outcome import NightView
from daybreak.rollout import night_events
from daybreak.storage import jsonl, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

log = logging.getLogger(__name__)

FILE = Path("var/night_rows.jsonl")  # in the home
AT_ONCE = 500  # nights whose records are in memory
UNNAMED = "the only backend"  # has no regions, and rentals do not name it
_ANSWERS = ("approved", "declined", "stopped", "rolled back")  # events by somebody


class RentedMachines(NamedTuple):
    """What a night had of machines of one kind and place, rented in one way."""

    machine: str  # all kinds of one job together
    place: str  # region, else the backend, `UNNAMED` without a name; "" for the machine at hand
    strategy: str
    hours: float  # of all machines, while they ran
    usd: float


@dataclass(frozen=True, kw_only=True)
class NightRow:
    """A night, or a rollback, which has no figures. Times are seconds since 1970, days ISO dates."""

    commit: str
    night: str
    day: str
    outcome: outcome.Outcome
    verdict: str  # in a word or two
    sentence: str  # the same as a sentence
    reason: str
    closed_at: float
    serves: int  # version, from then on; 0: none
    challenger: int = 0  # version that was judged; 0: none
    release: tuple[int, int] | None = None  # version that came to serve, and the one that it replaced
    failed: str = ""  # the stage that failed
    by: str = ""  # the person, or the watch, who answered or rolled back; "": nobody did
    started_at: float = 0.0
    decided_s: float | None = None  # from the opening to the decision
    decide_within_s: float = 0.0  # what the deadline leaves for that
    elapsed_s: float | None = None  # of training
    trained_s: float | None = None  # start-up included, as in the plan's time
    train_within_s: float = 0.0
    usd: float | None = None
    budget_usd: float = 0.0
    predicted_s: tuple[float, float, float] | None = None  # low, middle, high of the plan's 90 % interval
    predicted_usd: float | None = None
    compared_s: float | None = None  # seconds to compare with that: of a night that moved, at its first rate
    held: bool | None = None  # are they in the interval? None: nothing to compare
    moved: bool = False  # it trained on other machines than planned
    is_whole: bool = True  # training came to its own end
    score: float | None = None  # of the challenger on tonight's held-out samples
    champion_score: float | None = None  # on the same
    rule_score: float | None = None  # of the best simple rule
    anchor: int = 0  # version that the chain is held against; 0: none
    anchor_score: float | None = None  # of that version
    anchor_floor: float | None = None  # the least that the chain may score, by what it may lose
    interval: tuple[float, float, float] | None = None  # low, effect, high, as the gate decided by
    bound: Literal["", "io", "compute", "memory"] = ""
    num_rows: int | None = None
    num_quarantined: int | None = None
    rental: str = ""
    rented: tuple[
        RentedMachines, ...
    ] = ()  # by training and refit, together for `usd`; without a job, as planned
    # An hour of one of its spot machines on demand; None: not on spot, the plan has no such price, or it was
    # interrupted or a job failed, so that some of what it cost was for work that was lost or other machines.
    on_demand_usd: float | None = None
    is_declined: bool = False  # a person said no
    is_on_hold: bool = False  # a person's hold on its recipe kept its version from serving
    model: str = ""  # name in the registry
    run_id: str = ""  # of MLflow
    experiment: str = "0"  # that the run is in
    airflow_run: str = ""
    predict_until: float = 0.0  # when predictions were to be written; 0: none were asked for
    num_predicted: int | None = None  # rows of predictions that were written; None: there were none
    predicted_by: int = 0  # version
    predicted_of: str = ""  # older day whose rows were predicted; "": the night's own

    @property
    def is_rollback(self) -> bool:
        """Returns whether it is a rollback, not a night."""
        return self.outcome == "rollback"

    @property
    def served_score(self) -> float | None:
        """Returns the score, on tonight's samples, of the version that serves since this night."""
        return self.score if self.outcome == "promoted" else self.champion_score

    @property
    def effect(self) -> float | None:
        """Returns by how much the challenger scored better than the champion."""
        known = self.score is not None and self.champion_score is not None
        return self.score - self.champion_score if known else None  # type: ignore[operator]

    @property
    def spot_hours(self) -> float:
        """Returns the hours of all spot machines."""
        return sum(one.hours for one in self.rented if one.strategy == "spot")

    @property
    def spot_saved_usd(self) -> float | None:
        """Returns how much more its machine hours would have cost on demand; None where that is not known."""
        if self.on_demand_usd is None or self.usd is None:
            return None
        return self.on_demand_usd * self.spot_hours - self.usd

    @property
    def is_late(self) -> bool:
        """Returns whether the decision came after its deadline."""
        return self.decided_s is not None and self.decided_s > self.decide_within_s > 0


def row_of(entry: Entry) -> NightRow:
    """Returns the row of an entry of the ledger."""
    release = entry.release
    common = NightRow(
        commit=entry.commit,
        night=entry.night.id,
        day=str(entry.night.day),
        outcome=outcome.outcome(entry),
        verdict=outcome.word(entry),
        sentence=outcome.headline(NightView(entry=entry)).sentence,
        reason=_reason(entry),
        closed_at=entry.closed_at.timestamp() if entry.closed_at else 0.0,
        serves=outcome.champion(entry),
        release=(release.version, release.replaced) if release else None,
        by=next((event.by for event in night_events.of_entry(entry) if event.kind in _ANSWERS), ""),
    )
    return common if entry.rollback else _with_figures(common, entry)


def _reason(entry: Entry) -> str:
    if entry.stopped:
        return approval.stopped(entry.stopped)
    return entry.verdict.reason if entry.verdict else entry.subject


def _with_figures(row: NightRow, entry: Entry) -> NightRow:
    night, plan, training, verdict = entry.night, entry.plan, entry.training, entry.verdict
    decided_at = verdict.decided_at if verdict and verdict.decided_at else entry.closed_at
    chain = verdict.chain if verdict else None
    metrics = entry.evaluation.metrics if entry.evaluation else {}
    is_anchor = bool(chain and entry.champion and chain.anchor == entry.champion.version)
    # A champion that is its own anchor is not scored a second time.
    anchor = metrics.get("champion_score" if is_anchor else "anchor_score") if chain else None
    forecast = plan.forecast if plan else None
    predicted = (forecast.interval[0], forecast.expected_s, forecast.interval[1]) if forecast else None
    effect = verdict.effect if verdict else None
    judged = None
    if effect and effect.low is not None and effect.high is not None:
        judged = (effect.low, effect.mean, effect.high)
    scored = scorecard.outcome(night.id, plan, training) if plan and training else None
    return replace(
        row,
        compared_s=scored.actual_s if scored else None,
        held=scored.held if scored else None,
        moved=bool(plan and training and scorecard.has_moved(plan, training)),
        challenger=verdict.challenger if verdict else 0,
        failed=verdict.failed if verdict else "",
        started_at=night.started_at.timestamp(),
        decided_s=(decided_at - night.started_at).total_seconds() if decided_at else None,
        decide_within_s=(night.decide_until - night.started_at).total_seconds(),
        elapsed_s=training.elapsed_s if training else None,
        trained_s=training.took_s if training else None,
        train_within_s=(night.train_until - night.started_at).total_seconds(),
        usd=entry.usd,
        budget_usd=night.budget_usd,
        predicted_s=predicted if predicted and min(predicted) > 0 else None,
        predicted_usd=forecast.expected_usd if forecast else None,
        is_whole=training is None or training.stopped_by in {"finished", "validation"},
        score=standing.score(entry.evaluation),
        champion_score=metrics.get("champion_score"),
        rule_score=standing.best_baseline(entry.evaluation),
        anchor=chain.anchor if chain else 0,
        anchor_score=anchor,
        anchor_floor=None if anchor is None or chain is None else anchor - chain.margin - chain.offset,
        interval=judged,
        bound=entry.profile.bound if entry.profile and not entry.profile.is_estimator else "",
        num_rows=entry.report.num_rows if entry.report else None,
        num_quarantined=entry.report.num_quarantined if entry.report else None,
        is_on_hold=bool(verdict and verdict.held and not entry.release),
        is_declined=_is_declined(entry),
        rental=str(plan.rental) if plan else "",
        rented=_rented(entry),
        on_demand_usd=_on_demand_usd(entry),
        model=entry.version.name if entry.version else "",
        run_id=entry.version.run_id if entry.version else "",
        experiment=entry.version.experiment if entry.version else "0",
        airflow_run=night.airflow_run,
        predict_until=night.predict_until.timestamp() if night.predict_until else 0.0,
        num_predicted=entry.predictions.num_rows if entry.predictions else None,
        predicted_by=entry.predictions.version if entry.predictions else 0,
        predicted_of=_older(entry.predictions),
    )


def _is_declined(entry: Entry) -> bool:
    answer = approval.answer_to(entry.verdict, entry.approval) if entry.verdict else None
    return answer is not None and not answer.approved


def _rented(entry: Entry) -> tuple[RentedMachines, ...]:
    """Returns the machines that the night's jobs had, with their shares of what the night cost.

    Shares are by what each request for machines costs at the price that was planned with, or by hours where
    there is no price. A job without its requests on record counts for the machines of the plan.
    """
    if entry.plan is None:
        return ()
    uses = [use for job in _jobs(entry) for use in _uses(job, entry.plan)] or [(entry.plan.rental, 0.0, 0.0)]
    groups: dict[tuple[str, str, str], tuple[float, float]] = {}
    for rental, hours, usd in uses:
        place = "" if rental.is_local else rental.region or rental.backend or UNNAMED
        key = (" + ".join(map(str, rental.pools)), place, rental.strategy)
        before = groups.get(key, (0.0, 0.0))
        groups[key] = (before[0] + hours, before[1] + usd)
    of = 1 if any(usd for _, usd in groups.values()) else 0  # the dollars, else the hours
    whole = sum(use[of] for use in groups.values())
    return tuple(
        RentedMachines(*key, use[0], (entry.usd or 0.0) * (use[of] / whole if whole else 1 / len(groups)))
        for key, use in groups.items()
    )


def _jobs(entry: Entry) -> list[Training]:
    return [job for job in (entry.training, entry.refit.training if entry.refit else None) if job]


def _uses(job: Training, plan: Plan) -> Iterator[tuple[Rental, float, float]]:
    """Yields the machines of a job with their hours, all of them together, and dollars."""
    for one in job.attempts:
        if one.ran_at:
            held_s = max(0.0, (one.ended_at - one.ran_at).total_seconds())
            yield one.rental, held_s / HOUR_S * one.rental.num_machines, one.usd
    if not any(one.ran_at for one in job.attempts):
        yield plan.rental, job.elapsed_s / HOUR_S * plan.rental.num_machines, _planned_usd(plan, job)


def _planned_usd(plan: Plan, job: Training) -> float:
    expected = plan.forecast
    return expected.expected_usd / expected.expected_s * job.elapsed_s if expected.expected_s else 0.0


def _on_demand_usd(entry: Entry) -> float | None:
    plan, jobs = entry.plan, _jobs(entry)
    if plan is None or not jobs or not plan.rental.is_spot:
        return None
    ran = [[one.rental for one in job.attempts if one.ran_at] for job in jobs]
    moved = any(rentals not in ([], [plan.rental]) for rentals in ran)
    if moved or any(job.num_restarts or job.fallbacks for job in jobs) or _has_unfinished_job(entry, jobs):
        return None
    return next((way.usd_per_hour for way in plan.fallbacks if way.rental == plan.rental.on_demand), None)


def _has_unfinished_job(entry: Entry, jobs: Sequence[Training]) -> bool:
    """Returns whether some dollars of the night are of a job that left no record, and so no hours.

    The record of a job has the dollars of all jobs until its end, those that failed before it among them.
    """
    stages = entry.spans.stages if entry.spans else ()
    if any(one.stage in ("train", "refit") and one.end == "failed" for one in stages):
        return True
    last_usd = max(job.cost_usd for job in jobs)
    return entry.usd is not None and entry.usd > last_usd and not isclose(entry.usd, last_usd)


class NightRows:
    """The rows of one home, in memory and in its file."""

    def __init__(self, home: Home) -> None:
        self._home, self._path = home, home.folder / FILE
        self._by_commit: dict[str, NightRow] = {}
        self._is_stale = False  # does the file have rows that other code has made?

    def newest(self, limit: int | None = None) -> list[NightRow]:
        """Returns the rows of the ledger's commits, newest first; makes and keeps those that are missing.

        Raises ReleaseError where the ledger cannot be read. A night whose own record cannot be read has no
        row.
        """
        commits = ledger.commits(self._home, limit)
        if any(commit.id not in self._by_commit for commit in commits):
            self._by_commit |= self._read()
            missing = [commit for commit in commits if commit.id not in self._by_commit]
            parts = (missing[start : start + AT_ONCE] for start in range(0, len(missing), AT_ONCE))
            made = [row_of(entry) for part in parts for entry in ledger.entries_of(self._home, part)]
            self._by_commit |= {row.commit: row for row in made}
            self._keep(made)
        noted = ledger.predictions_noted(self._home)  # once for all rows, as each look asks git
        rows = [self._by_commit[commit.id] for commit in commits if commit.id in self._by_commit]
        return [row if row.is_rollback else _with_predictions(row, noted.get(row.night)) for row in rows]

    def _read(self) -> dict[str, NightRow]:
        rows = {}
        try:
            lines = jsonl.whole(self._path)
        except OSError as error:
            log.debug("rows of nights are not read from %s: %s", self._path, error)
            return {}
        for line in lines:
            if line.pop("made_by", "") != _code():
                self._is_stale = True
                continue
            with contextlib.suppress(TypeError, ValueError, KeyError):
                values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in line.items()}
                values["rented"] = tuple(RentedMachines(*one) for one in values.get("rented", ()))
                rows[str(line["commit"])] = NightRow(**values)
        return rows

    def _keep(self, made: Sequence[NightRow]) -> None:
        """Appends rows to the file, oldest first, or writes it anew where other code has written some of it.

        Where that cannot be, as on a read-only disk, the rows are kept in memory alone.
        """
        kept = list(self._by_commit.values()) if self._is_stale else list(reversed(made))
        lines = [_line(row) | {"made_by": _code()} for row in kept]
        try:
            if self._is_stale:
                records.replace_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
                self._is_stale = False
            elif lines and self._path.parent.exists():
                jsonl.add(self._path, *lines)
        except OSError as error:
            log.debug("rows of nights are not kept in %s: %s", self._path, error)


def _line(row: NightRow) -> dict[str, Any]:
    """Returns the fields of a row, flat and without those at their default, as the file grows for years."""
    return {name: value for name, value in vars(row).items() if value != _DEFAULTS.get(name, MISSING)}


_DEFAULTS = {field.name: field.default for field in fields(NightRow)}  # MISSING where there is none


def _with_predictions(row: NightRow, noted: Predictions | None) -> NightRow:
    """Returns the row with predictions that were written after its commit."""
    if noted is None:
        return row
    return replace(row, num_predicted=noted.num_rows, predicted_by=noted.version, predicted_of=_older(noted))


def _older(made: Predictions | None) -> str:
    return str(made.older) if made and made.older else ""


@cache
def _code() -> str:
    """Returns a digest of the code that a row is made by."""
    folder = Path(__file__).parent
    files = (Path(__file__), folder / "outcome.py", folder / "standing.py")
    others = (Path(str(module.__file__)) for module in (night_events, scorecard))
    texts = (path.read_text() for path in (*files, *others))
    return records.text_digest("".join(texts))[:12]
