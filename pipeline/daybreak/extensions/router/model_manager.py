"""Loads and replaces the versions that the traffic row names, in a thread, without dropping a request.

The manager reads the traffic row every POLL_S and the ledger every LEDGER_S. A missing version is loaded
beside the present ones and warmed up with the most recent users; then one reference, `standing`, changes. A
request takes the reference once and keeps it, so a single version answers the request. If a version cannot be
loaded, the router goes on unchanged, and its heartbeat says why. A version whose process has ended is loaded
again; until then its users are shown its earlier answers, or the popular items, and each such answer counts
as an error.

Where the traffic row names no champion, as in a new log, the ledger does.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from daybreak.contract.errors import PipelineError, ReleaseError
from daybreak.contract.units import DAY_S, HOUR_S
from daybreak.extensions.router.answers import Answers, Predictor
from daybreak.extensions.router.loading import VersionLoader
from daybreak.registry.host import NoAnswer
from daybreak.serving.recorded import NightArrays, newest_arrays
from daybreak.statistics.assignment import arm_of, slot_of
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import Log
from daybreak.storage.traffic_row import Traffic

log = logging.getLogger(__name__)

POLL_S = 0.25
LEDGER_S = 5.0  # between two reads of the ledger
BEAT_S = 1.0
# Until a version that could not be loaded is retried, unless the traffic changes; also the least time between
# two starts of a version's process.
RETRY_S = 30.0
FORGET_S = HOUR_S
WARM_S = 10.0  # longest time to warm up a new version
WARM_USERS = 2000
WARM_BATCH = 8  # users at once: each batch delays the users who are served meanwhile


@dataclass(frozen=True, kw_only=True)
class ServedVersions:
    """The versions that a router serves at a moment, and the experiments they are in."""

    champion: Answers | Predictor | None = None
    challenger: Answers | Predictor | None = None  # of the slot
    share: float = 0.0
    experiment: str = ""
    slot: int = 0
    num_slots: int = 1
    beside: tuple["ServedVersions", ...] = ()  # of other slots, in which a challenger is tested
    revision: int = 0

    @property
    def tests(self) -> tuple["ServedVersions", ...]:
        """Returns what each slot with a challenger is served, the oldest test first."""
        return tuple(one for one in (self, *self.beside) if one.experiment)

    def seen_by(self, unit: str) -> "ServedVersions":
        """Returns what the unit's slot is served."""
        if self.num_slots == 1:
            return self
        slot = slot_of(unit, self.num_slots)
        untested = ServedVersions(champion=self.champion, slot=slot, revision=self.revision)
        return next((one for one in self.tests if one.slot == slot), untested)


def served(untested: ServedVersions, tests: Sequence[ServedVersions]) -> ServedVersions:
    """Returns what is served with these tests on, and no others."""
    oldest, *beside = tests or (replace(untested, challenger=None, share=0.0, experiment="", slot=0),)
    return replace(oldest, beside=tuple(replace(one, beside=()) for one in beside))


def warm(answers: Answers, users: Sequence[str], *, ended: threading.Event) -> None:
    """Computes the answers of these users ahead of time, for WARM_S at most."""
    until = time.monotonic() + WARM_S
    num_failed = 0
    for start in range(0, len(users), WARM_BATCH):
        if time.monotonic() > until or ended.is_set() or answers.process.ended:
            break
        try:
            answers.of(users[start : start + WARM_BATCH])
        except NoAnswer as error:  # a request for that user will meet it, and be counted
            if not num_failed:
                log.warning("version %d fails for a user ahead of time: %s", answers.version, error)
            num_failed += 1


class ModelManager:
    """Keeps `standing` as the traffic row says, and reports it to the log."""

    def __init__(self, traffic_log: Log, models: VersionLoader, *, home: Home) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.standing = ServedVersions()
        self.loaded: dict[int, Answers | Predictor] = {}
        self.fault = "nothing is loaded yet"
        self._log, self._models = traffic_log, models
        self._home = home
        self._arrays: NightArrays | None = None
        self._promoted = 0  # by the ledger
        self._looked_at, self._tried_at, self._forgot_at = -1e9, -1e9, -1e9
        self._tried: tuple[object, ...] = ()
        self._stopped: dict[str, str] = {}  # experiments that this router stopped, and why
        self._ended = threading.Event()
        work = (self._run, "model manager"), (self._beat, "heartbeat")
        self._threads = [threading.Thread(target=call, name=name, daemon=True) for call, name in work]

    def start(self) -> None:
        """Starts to follow the traffic row."""
        self._report()  # first: a release waits for every router that users may already reach
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops, and removes this router from the log."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        now = self.standing
        for answers in (*self.loaded.values(), now.champion, *(one.challenger for one in now.tests)):
            if answers:
                answers.process.close()
        try:
            self._log.servers.leave(self.id)
        except PipelineError as error:
            log.warning("%s", error)

    def draw(self, user: str, now: ServedVersions) -> tuple[str, str, ServedVersions]:
        """Returns the unit of a user, its arm by its hash, and the versions of its slot."""
        unit = self._log.unit_of(user)
        now = now.seen_by(unit)
        return unit, arm_of(unit, experiment=now.experiment, share=now.share), now

    def state(self) -> RouterState:
        """Returns what this router serves."""
        now = self.standing
        return RouterState(
            id=self.id,
            revision=now.revision,
            share=now.share,
            fault=self.fault,
            loaded=tuple(sorted(number for number, one in self.loaded.items() if not one.process.ended)),
            champion=now.champion.version if now.champion else 0,
            challenger=now.challenger.version if now.challenger else 0,
        )

    def stop(self, experiment: str, why: str) -> None:
        """Lets nobody meet the challenger any more, here at once, and elsewhere once the log has it."""
        if experiment in self._stopped:
            return
        log.warning("the experiment %s is stopped: %s", experiment, why)
        self._stopped[experiment] = why
        now = self.standing
        self.standing = served(now, [one for one in now.tests if one.experiment != experiment])

    def follow(self) -> None:
        """Reads once what is wanted, and applies it."""
        traffic = self._log.traffic.read()
        for test in traffic.tests:
            if why := self._stopped.get(test.experiment):
                self._log.traffic.stop(test.experiment, why)
                traffic = self._log.traffic.read()
        if time.monotonic() - self._looked_at > LEDGER_S:
            self._arrays = newest_arrays(self._home)
            if not traffic.champion:
                promoted = ledger.champion_at(self._home, branch.ledger_tip(self._home))
                self._promoted = promoted.version if promoted else 0
            self._looked_at = time.monotonic()
        wanted = traffic if traffic.champion else replace(traffic, champion=self._promoted)
        self._set_fault(self._load(wanted))
        self._switch(wanted)

    def _load(self, wanted: Traffic) -> str:
        """Loads the wanted versions that are missing or stale; returns why any still is, or an empty text."""
        night = self._arrays.night if self._arrays else ""
        stale = {
            number
            for number, answers in self.loaded.items()
            if (night and answers.night not in ("", night)) or answers.process.is_due(RETRY_S)
        }
        missing = [number for number in wanted.wanted if number not in self.loaded or number in stale]
        trying = (wanted.revision, night, *missing)
        if missing and trying == self._tried and time.monotonic() - self._tried_at < RETRY_S:
            return self.fault
        faults = []
        for number in missing:
            try:
                with mlflow_client.session(self._home) as client:
                    answers = self._models.load(client, number, arrays=self._arrays)
                if isinstance(answers, Answers):
                    self._warm(answers)
                if answers.process.ended:
                    raise ReleaseError(f"{answers.process.ended}, while it was warmed up")
                self.loaded = {**self.loaded, number: answers}
                log.info("version %d is loaded over the arrays of %s", number, answers.night or "no night")
            except PipelineError as error:
                faults.append(f"version {number}: {error}")
        self._tried, self._tried_at = trying, time.monotonic()
        if not wanted.champion:
            faults.append("no version serves yet; run a night")
        faults += [
            f"version {number}: {answers.process.ended}; it is loaded again within {RETRY_S:g} s"
            for number, answers in self.loaded.items()
            if answers.process.ended
        ]
        return "; ".join(faults)

    def _switch(self, wanted: Traffic) -> None:
        """Serves the wanted versions that are loaded; the current champion stays if the wanted one is not."""
        now = self.standing
        champion = self.loaded.get(wanted.champion, now.champion)
        untested = ServedVersions(champion=champion, num_slots=wanted.num_slots, revision=wanted.revision)
        is_wanted = champion is not None and champion.version == wanted.champion
        tests = [
            replace(
                untested,
                challenger=self.loaded[test.challenger],
                share=test.share,
                experiment=test.experiment,
                slot=test.slot,
            )
            for test in wanted.tests
            if is_wanted and test.challenger in self.loaded and test.experiment not in self._stopped
        ]
        after = served(untested, tests)
        if after != now:
            self.standing = after
            self._report()
        kept = {champion.version} if champion else set()
        kept |= set(wanted.wanted)
        self.loaded = {number: answers for number, answers in self.loaded.items() if number in kept}

    def _warm(self, answers: Answers) -> None:
        """Warms a version up with the most recent users, or before there are any, with the likely ones."""
        before = self.standing.champion
        newest = before.newest_users(WARM_USERS) if isinstance(before, Answers) else []
        users = newest or answers.likely(WARM_USERS)
        warm(answers, users, ended=self._ended)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.follow()
                if time.monotonic() - self._forgot_at > FORGET_S:
                    keep_days = self._home.last_params(self._home.folder).serving.keep_days
                    self._log.forget(before=self._log.now() - keep_days * DAY_S)
                    self._forgot_at = time.monotonic()
            except PipelineError as error:
                self._set_fault(str(error))
            except Exception as error:  # users are still served, whatever it is
                log.exception("the router cannot follow")
                self._set_fault(f"{type(error).__name__}: {error}")
            self._ended.wait(POLL_S)

    def _set_fault(self, fault: str) -> None:
        if fault and fault != self.fault:
            log.warning("%s", fault)
        self.fault = fault

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._report()

    def _report(self) -> None:
        try:
            self._log.servers.beat(self.state())
        except PipelineError as error:
            self._set_fault(str(error))
