"""Counts the nights of a home for Prometheus, by the events of its ledger, beside the metrics of its router.

Totals are over the whole ledger, of which each commit is read once; a gauge is of the newest night, or of the
one that is open. Where the ledger is cut back, as by `restore`, it is counted anew, and Prometheus takes that
for a restart.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from daybreak.contract.errors import PipelineError
from daybreak.report import outcome
from daybreak.rollout import night_events
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

log = logging.getLogger(__name__)

VERDICTS = ("promote", "reject", "wait", "no data", "failed")  # the gate's, and of a night that failed before
COUNTED = ("late", "over budget", "drift", "calibration lost", "question")  # kinds of events of nights


class NightMetrics:
    """The metrics of the nights of one model."""

    def __init__(self, model: str, home: Home) -> None:
        self._model, self._home = model, home
        self._alone = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._tip = ""
        self._verdicts: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._num_rollbacks, self._usd, self._train_s = 0, 0.0, 0.0
        self._newest: Entry | None = None
        self._open: Entry | None = None

    def refresh(self) -> None:
        """Reads new entries of the ledger, and the open night; keeps the old figures if reading fails."""
        with self._alone:
            try:
                self._read_ledger()
                self._open = next(iter(night_events.open_nights(self._home)), None)
            except (PipelineError, OSError) as error:
                log.warning("the metrics of nights are not up to date: %s", error)

    def _read_ledger(self) -> None:
        commits = ledger.commits(self._home)
        known = next((place for place, commit in enumerate(commits) if commit.id == self._tip), None)
        if known is None:
            self._reset()
        for entry in reversed(ledger.entries_of(self._home, commits[:known])):
            self._count(entry)
        self._tip = commits[0].id if commits else ""

    def _count(self, entry: Entry) -> None:
        if entry.rollback:
            self._num_rollbacks += 1
            return
        self._newest = entry
        failed = entry.verdict.failed if entry.verdict else ""
        self._verdicts["failed" if failed else entry.verdict.action if entry.verdict else "no data"] += 1
        self._failures.update([failed] if failed else [])
        kinds = {event.kind for event in night_events.of_entry(entry)}  # a night may drift in many columns
        self._events.update(kind for kind in kinds if kind in COUNTED)
        self._usd += entry.usd or 0.0
        if entry.training:
            self._train_s += entry.training.took_s

    def collect(self) -> Iterator[Metric]:
        """Yields what each metric is now."""
        verdicts = {verdict: self._verdicts[verdict] for verdict in VERDICTS}
        yield self._counter("nights", "Nights in the ledger, by the gate's verdict", verdicts, by="verdict")
        yield self._counter("night_failures", "Nights that failed, by stage", self._failures, by="stage")
        happened = {kind: self._events[kind] for kind in COUNTED}
        yield self._counter("night_events", "Nights with an event of a kind", happened, by="kind")
        yield self._counter("rollbacks", "Rollbacks in the ledger", {"": self._num_rollbacks})
        yield self._counter("night_cost_usd", "Dollars that the jobs of all nights cost", {"": self._usd})
        yield self._counter(
            "night_train_seconds", "Seconds of training, with queue and start-up", {"": self._train_s}
        )
        if self._newest:
            yield from self._of_newest(self._newest)
        yield from self._of_open(self._open)

    def _of_newest(self, entry: Entry) -> Iterator[Metric]:
        night, training, plan, report = entry.night, entry.training, entry.plan, entry.report
        decided_at = entry.verdict.decided_at if entry.verdict else None
        gauges = {
            "closed_timestamp_seconds": ("When the newest night was closed", _seconds(entry.closed_at)),
            "decided_timestamp_seconds": ("When its gate decided", _seconds(decided_at)),
            "last_deadline_timestamp_seconds": ("When it was to be decided", _seconds(night.decide_until)),
            "last_budget_usd": ("What its jobs might cost", night.budget_usd),
            "last_cost_usd": ("What they cost", entry.usd),
            "last_train_seconds": (
                "How long training took, with queue and start-up",
                training.took_s if training else None,
            ),
            "last_planned_seconds": (
                "How long its plan expected",
                plan.forecast.expected_s if plan else None,
            ),
            "last_rows": ("Rows that came in", report.num_rows if report else None),
            "last_quarantined_rows": ("Of these, in quarantine", report.num_quarantined if report else None),
        }
        for name, (about, value) in gauges.items():
            if value is not None:
                yield self._gauge(f"night_{name}", about, {"": value})

    def _of_open(self, entry: Entry | None) -> Iterator[Metric]:
        about = "1 while a night is open, by the stage it has come to"
        yield self._gauge("night_open", about, {_stage(entry): 1.0} if entry else {}, by="stage")
        if entry is None:
            return
        until = {"": entry.night.decide_until.timestamp()}
        yield self._gauge("night_deadline_timestamp_seconds", "When the open night is to be decided", until)
        for event in night_events.of_entry(entry):
            if event.kind == "question" and event.until and entry.approval is None:
                until = {"": event.until.timestamp()}
                yield self._gauge("night_question_timestamp_seconds", "Until when a person is asked", until)

    def _counter(self, name: str, about: str, values: Mapping[str, float], *, by: str = "") -> Metric:
        family = CounterMetricFamily(f"daybreak_{name}", about, labels=["model", *([by] if by else [])])
        for label, value in values.items():
            family.add_metric([self._model, *([label] if by else [])], value)
        return family

    def _gauge(self, name: str, about: str, values: Mapping[str, float], *, by: str = "") -> Metric:
        family = GaugeMetricFamily(f"daybreak_{name}", about, labels=["model", *([by] if by else [])])
        for label, value in values.items():
            family.add_metric([self._model, *([label] if by else [])], value)
        return family


def _stage(entry: Entry) -> str:
    """Returns the stage that follows the last one of an open night that has written its record."""
    return outcome.following(outcome.chain(outcome.NightView(entry=entry))) or "close"


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None
