"""How does a router come to serve what the traffic says, without dropping a request? The keeper, in a thread.

It looks at the traffic row and at the ledger every POLL_S. What is wanted and not loaded is loaded beside
what serves and answers the users that came last, so that it is warm; then one reference, `standing`, changes.
A request takes the reference once and keeps it, so it is answered by one version whatever happens meanwhile.
Where something cannot be loaded, all stays as it is, and the heartbeat says why.

With no champion in the traffic yet, it follows MLflow's alias `champion`.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.contract.errors import PipelineError
from pipeline.contract.units import DAY_S, HOUR_S
from pipeline.registry import aliases
from pipeline.serving.answers import Answers
from pipeline.serving.loading import Arrays, Shelf, newest_arrays
from pipeline.statistics.assignment import arm_of
from pipeline.storage import mlflow_client
from pipeline.storage.traffic_log import Log, RouterState, Traffic

log = logging.getLogger(__name__)

POLL_S = 0.25
LEDGER_S = 5.0  # between two looks at the ledger, and at the alias where that is followed
BEAT_S = 1.0
RETRY_S = 30.0  # until something that could not be loaded is tried again, unless the traffic moves
FORGET_S = HOUR_S
WARM_S = 10.0  # at most, before a new version takes over
WARM_USERS = 2000
WARM_BATCH = 8  # users at once: each batch holds up those that are served meanwhile


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a router serves at a moment."""

    champion: Answers | None = None
    challenger: Answers | None = None
    share: float = 0.0
    experiment: str = ""
    revision: int = 0


def warm(found: Answers, users: Sequence[str], *, ended: threading.Event) -> None:
    """Answer these users, so that they are answered at once when they come."""
    until = time.monotonic() + WARM_S
    for start in range(0, len(users), WARM_BATCH):
        if time.monotonic() > until or ended.is_set():
            break
        found.of(users[start : start + WARM_BATCH])


class Keeper:
    """Keeps `standing` as the traffic says, and tells the log of it."""

    def __init__(self, kept: Log, shelf: Shelf, *, home: Path, keep_days: float) -> None:
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.standing = Standing()
        self.loaded: dict[int, Answers] = {}
        self.fault = "nothing is loaded yet"
        self._log, self._shelf, self._home, self._keep_days = kept, shelf, home, keep_days
        self._arrays: Arrays | None = None
        self._alias = 0
        self._looked_at, self._tried_at, self._forgot_at = -1e9, -1e9, -1e9
        self._tried: tuple[object, ...] = ()
        self._ended = threading.Event()
        work = (self._keep, "keeper"), (self._beat, "heartbeat")
        self._threads = [threading.Thread(target=call, name=name, daemon=True) for call, name in work]

    def start(self) -> None:
        """Begin to follow."""
        self._tell()  # first: a release waits for every router that a user may have found up
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop, and say so in the log."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        try:
            self._log.leave(self.id)
        except PipelineError as error:
            log.warning("%s", error)

    def draw(self, user: str, now: Standing) -> tuple[str, str]:
        """The user's unit, and the arm that its hash gives it."""
        unit = self._log.unit_of(user)
        return unit, arm_of(unit, experiment=now.experiment, share=now.share)

    def state(self) -> RouterState:
        """What this router serves."""
        now = self.standing
        return RouterState(
            id=self.id, revision=now.revision, share=now.share, loaded=tuple(sorted(self.loaded)),
            fault=self.fault,
            champion=now.champion.version if now.champion else 0,
            challenger=now.challenger.version if now.challenger else 0,
        )  # fmt: skip

    def follow(self) -> None:
        """Look once at what is wanted, and do it."""
        traffic = self._log.traffic()
        if time.monotonic() - self._looked_at > LEDGER_S:
            self._arrays = newest_arrays(self._home)
            if not traffic.champion:
                self._alias = self._aliased()
            self._looked_at = time.monotonic()
        wanted = traffic if traffic.champion else replace(traffic, champion=self._alias)
        self._say(self._load(wanted))
        self._show(wanted)

    def _load(self, wanted: Traffic) -> str:
        """Load what is wanted, and drop what is not; why something is missing."""
        night = self._arrays.night if self._arrays else ""
        stale = {number for number, found in self.loaded.items() if night and found.night != night}
        missing = [number for number in wanted.wanted if number not in self.loaded or number in stale]
        trying = (wanted.revision, night, *missing)
        if missing and trying == self._tried and time.monotonic() - self._tried_at < RETRY_S:
            return self.fault
        faults = []
        for number in missing:
            try:
                with mlflow_client.session() as client:
                    found = self._shelf.load(client, number, arrays=self._arrays)
                self._warm(found)
                self.loaded = {**self.loaded, number: found}
                log.info("version %d is loaded over the arrays of %s", number, found.night)
            except PipelineError as error:
                faults.append(f"version {number}: {error}")
        self._tried, self._tried_at = trying, time.monotonic()
        if not wanted.champion:
            faults.append("no version serves yet; run a night")
        return "; ".join(faults)

    def _show(self, wanted: Traffic) -> None:
        """Let serve what is loaded of what is wanted; the champion that served stays where none is."""
        now = self.standing
        champion = self.loaded.get(wanted.champion, now.champion)
        challenger = self.loaded.get(wanted.challenger)
        tests = champion is not None and challenger is not None and champion.version == wanted.champion
        after = Standing(
            champion=champion, challenger=challenger if tests else None, share=wanted.share if tests else 0.0,
            experiment=wanted.experiment if tests else "", revision=wanted.revision,
        )  # fmt: skip
        if after != now:
            self.standing = after
            self._tell()
        kept = {answers.version for answers in (champion, challenger) if answers} | set(wanted.wanted)
        self.loaded = {number: answers for number, answers in self.loaded.items() if number in kept}

    def _warm(self, found: Answers) -> None:
        """Answer the users that came last, since they come again; before anybody came, those likely to."""
        before = self.standing.champion
        users = (before.newest_users(WARM_USERS) if before else []) or found.likely(WARM_USERS)
        warm(found, users, ended=self._ended)

    def _aliased(self) -> int:
        with mlflow_client.session() as client:
            return aliases.alias(client, self._shelf.name)

    def _keep(self) -> None:
        while not self._ended.is_set():
            try:
                self.follow()
                if time.monotonic() - self._forgot_at > FORGET_S:
                    self._log.forget(before=time.time() - self._keep_days * DAY_S)
                    self._forgot_at = time.monotonic()
            except PipelineError as error:
                self._say(str(error))
            except Exception as error:  # users are served on, whatever it is
                log.exception("the router cannot follow")
                self._say(f"{type(error).__name__}: {error}")
            self._ended.wait(POLL_S)

    def _say(self, fault: str) -> None:
        if fault and fault != self.fault:
            log.warning("%s", fault)
        self.fault = fault

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_S):
            self._tell()

    def _tell(self) -> None:
        try:
            self._log.beat(self.state())
        except PipelineError as error:
            self._say(str(error))
