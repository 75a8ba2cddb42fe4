"""Decides whether the night's day is there, and until when `ingest` waits for it.

A day is there once the source offers it, and, where params.yaml asks for that, once a newer day has data or
the day has not changed for some minutes. While a newer day is offered and this one is not, nothing waits: it
will hardly come. Waiting ends `ingest.wait_hours` after the opening, or earlier, where training would not be
done in time any more. How long that takes is read off the night before:

    overhead        from its opening to the submission of its job, without its own wait, or the share of the
                    time that every plan keeps for it, if that is more
    job             what its plan, or the fastest of its fallbacks, takes at most: with the chance that
                    plan.confidence asks for, as tonight's plan will be held to it as well

So waiting ends at last - overhead - job of the fastest machines, where last is train_until, or what
evaluation and gate take before the decision; from last - overhead - job of the planned machines on, faster
ones are needed, which the sentence says. Where no night has trained, waiting ends at train_until. A night of
a schedule then takes the newest day that no night has had, if there is one.
"""

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

from daybreak.contract import clock, records
from daybreak.contract.data_source import Source
from daybreak.contract.errors import NoFiles, NothingToDo, NotYet, ParamsError, SourceUnreachable
from daybreak.contract.formats import duration
from daybreak.contract.record_parts import Portion
from daybreak.contract.record_types import BEFORE_TRAINING, LIVE_TEST, SCHEDULE, Night
from daybreak.contract.sections import IngestParams
from daybreak.contract.units import HOUR_S
from daybreak.storage import ledger
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

NIGHTS_BACK = 7  # among which the newest that trained is sought
LOOKED_EVERY_S = 60.0
SEEN = "arrival.json"  # in the folder of the night's fetched days


@dataclass(frozen=True, kw_only=True)
class DayWait:
    """Until when a night waits for its day."""

    until: datetime
    faster_from: datetime | None = None  # from when on the machines of the night before are too slow
    machines: str = ""  # of the night before
    is_cut: bool = False  # ends before `ingest.wait_hours` are over, since training would be late

    @property
    def sentence(self) -> str:
        """Returns until when the night waits, and what a later arrival costs."""
        words = f"the night waits until {self.until:%Y-%m-%d %H:%M} UTC"
        if self.is_cut:
            words += ", after which training would not be done in time"
        if self.faster_from and self.faster_from < self.until:
            words += (
                f"; from {self.faster_from:%Y-%m-%d %H:%M} UTC on {self.machines} is too slow, and faster "
                f"machines are needed"
            )
        return words


def wait_of(home: Home, night: Night, params: IngestParams) -> DayWait:
    """Returns until when a night waits, by `ingest.wait_hours` and what the night before took."""
    until = night.started_at + timedelta(hours=params.wait_hours)
    before = ledger.before(home, night, limit=NIGHTS_BACK)
    entry = next((one for one in reversed(before) if one.training), None)
    first = DayWait(until=min(until, night.train_until), is_cut=night.train_until < until)
    if entry is None or not (entry.plan and entry.training and entry.batch):
        return first
    plan, training = entry.plan, entry.training
    if training.ended_at is None:
        return first
    submitted = training.ended_at - timedelta(seconds=training.took_s)
    waited = timedelta(seconds=max(plan.waited_s, entry.batch.waited_hours * HOUR_S))  # or for machines, too
    overhead = submitted - entry.night.started_at - waited
    planned = timedelta(seconds=plan.forecast.longest_s or plan.forecast.interval[1])
    took_until = _trained_by(entry.night, plan.after)
    fastest = min([planned, *(took_until - one.latest_start for one in plan.fallbacks)])
    # A plan gives up the live test before faster machines, so it shortens no wait.
    trained_by = _trained_by(night, [one for one in plan.after if one.name != LIVE_TEST])

    def arrived_by(job: timedelta) -> datetime:
        return trained_by - max(overhead, BEFORE_TRAINING * (trained_by - night.started_at)) - job

    last = arrived_by(fastest)
    return DayWait(
        until=min(until, last),
        faster_from=arrived_by(planned),
        machines=str(plan.rental),
        is_cut=last < until,
    )


def _trained_by(night: Night, after: Iterable[Portion]) -> datetime:
    """Returns by when a night has to have trained, as what follows takes before its decision."""
    return min(night.train_until, night.last_decision - timedelta(seconds=sum(p.expected_s for p in after)))


class Arrival:
    """The arrival of the day of a night, which is looked at again until it is there."""

    def __init__(self, home: Home, night: Night, params: IngestParams, *, work: Path) -> None:
        """Looks at nothing yet; what was seen is kept in the folder `work` between calls."""
        self._home, self._night, self._params = home, night, params
        self._offered: list[date] = []
        self._path = work / SEEN
        self._seen: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def days(self, source: Source) -> list[date]:
        """Returns all days of a source, in order.

        Raises NotYet where it cannot be reached, or has no file yet, while the night waits for its day.
        """
        try:
            self._offered = sorted(set(source.days()))
        except (SourceUnreachable, NoFiles) as error:
            if clock.utc() >= wait_of(self._home, self._night, self._params).until:
                raise
            self._missing(str(error))
        return self._offered

    @property
    def day(self) -> date:
        """Returns the day of the night."""
        return self._night.day

    @property
    def waited_hours(self) -> float:
        """Returns the hours from the opening until the day was there; 0 where the night did not wait."""
        arrived = self._seen.get("arrived")
        if not self._seen.get("waits") or not arrived:
            return 0.0
        return (datetime.fromisoformat(arrived) - self._night.started_at) / timedelta(hours=1)

    @property
    def _is_newest(self) -> bool:
        return all(one <= self._night.day for one in self._offered)

    def expect(self, source: Source) -> None:
        """Raises NotYet while the day is not there, and NothingToDo once waiting for it is over."""
        day = self._night.day
        if day not in self._offered:
            before = [one for one in self._offered if one < day]
            newest = f"its newest before that is {max(before)}" if before else "nor for any day before"
            self._missing(f"the source has no data for {day}, {newest}")
        if self._params.newer_day and self._is_newest:
            self._missing(f"{day} is the newest day of the source, and may not be whole (ingest.newer_day)")
        if self._params.settle_minutes and self._is_newest and not self._seen.get("instead"):
            self._expect_settled(source)
        if self._seen.get("waits") and not self._seen["arrived"]:
            self._keep(arrived=clock.utc().isoformat())

    def instead(self, here: Collection[date], reason: NothingToDo) -> Night:
        """Returns the night, of the newest day after those here, where it waited in vain for its own.

        Otherwise a source that is always later than its nights wait would never be trained again. Raises
        `reason` where there is no such day, or no schedule asked for the night.
        """
        waits = self._params.wait_hours and self._is_newest and self._night.trigger == SCHEDULE
        is_last_open = self._params.newer_day and self._night.day not in self._offered
        whole = self._offered[:-1] if is_last_open else self._offered
        known = max(here, default=date.min)
        days = [one for one in whole if known < one < self._night.day]
        if not (waits and days):
            raise reason
        text = "the night is of %s, the newest day that none has had, since %s did not come in time"
        log.warning(f"{text}; a later night takes it", days[-1], self._night.day)
        now = clock.utc().isoformat()
        self._keep(waits=True, arrived=now, instead=str(days[-1]))
        self._night = replace(self._night, day=days[-1])
        return self._night

    def empty(self) -> NoReturn:
        """Raises NotYet or NothingToDo, like `expect`, since the day came without rows."""
        self._missing(f"the source has no rows for {self._night.day}")

    def _expect_settled(self, source: Source) -> None:
        """Raises where the day has changed within `ingest.settle_minutes`, as far as this night has seen."""
        version = getattr(source, "version", None)
        if version is None:
            raise ParamsError(
                f"ingest.settle_minutes needs a source that tells versions of a day, and "
                f"{type(source).__name__} has no version(day); write it, or set ingest.settle_minutes: 0"
            )
        now, found = clock.utc(), version(self._night.day)
        if self._seen.get("version") != found:
            self._keep(version=found, since=now.isoformat())
        since = datetime.fromisoformat(self._seen["since"])
        settled = since + timedelta(minutes=self._params.settle_minutes)
        if now < settled:
            self._missing(
                f"{self._night.day} is taken once it has not changed for {self._params.settle_minutes:g} "
                f"minutes, at {settled:%H:%M} UTC if it does not change any more"
            )

    def _missing(self, why: str) -> NoReturn:
        """Raises NotYet with the reason until waiting is over, and then NothingToDo."""
        wait = wait_of(self._home, self._night, self._params)
        if self._is_newest and clock.utc() < wait.until:
            self._keep(waits=True, arrived=None)
            raise NotYet(f"{why}; {wait.sentence}", again_s=LOOKED_EVERY_S)
        if not self._seen.get("waits"):
            raise NothingToDo(why)
        waited = duration((clock.utc() - self._night.started_at).total_seconds())
        raise NothingToDo(
            f"{why}; the night waited {waited} for it, and the next one takes it if it has come"
        )

    def _keep(self, **more: object) -> None:
        self._seen |= more
        self._path.parent.mkdir(parents=True, exist_ok=True)
        records.replace_text(self._path, json.dumps(self._seen) + "\n")
