"""Keeps a bag whose machines do not see this disk in a bucket.

    BUCKET/bags/NAME-TOKEN/events/00000017.json    the event of that number, written once
                           things/SEED-TOKEN/      what a run left: its result, its saved state, its log

A bucket has no locks, but refuses to overwrite an object. So each event is written under the next number by
one writer: another writer of that number reads the event, and decides anew by the newer state. Each machine,
and the home, keeps the events that it has read in an `events.jsonl`, with the folders of its runs beside.

A folder is sent under a name of its own, and counts once an event names it: what a machine sends that is
given up for lost is removed again. Of a run that goes on, a copy of its folder is sent that was made while no
file changed, but for its log.
"""

import contextlib
import json
import logging
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from daybreak.backends.place import AT_ONCE, RetryPolicy
from daybreak.contract.errors import DataError, JobError
from daybreak.extensions.bag.folder import LOG, Bag, BagFolder, Event
from daybreak.extensions.bag.state import BagState
from daybreak.storage import jsonl
from daybreak.storage.bucket import BucketFolder
from daybreak.storage.journal import alone

log = logging.getLogger(__name__)

EVENTS = "events"
MOST_AT_ONCE = 256  # events that are asked for together
Answer = TypeVar("Answer")
Stats = dict[str, tuple[int, int]]  # size and time of change in ns, by path


def opened(path: Path, bag: Bag, *, retry: RetryPolicy = AT_ONCE) -> BagFolder:
    """Returns the bag as a process with that folder sees it; `retry` is for a bucket that does not answer."""
    return BucketBag(path, bag, retry=retry) if bag.url else BagFolder(path, bag)


class BucketBag(BagFolder):
    """A bag in a bucket, as one process sees it. JobError where the bucket does not answer."""

    def __init__(self, path: Path, bag: Bag, *, retry: RetryPolicy) -> None:
        super().__init__(path, bag)
        self._bucket, self._retry = BucketFolder(url=bag.url), retry
        self._sent: Stats = {}  # the files of the run, as they were sent last
        self._fetched: set[str] = set()  # things that runs that failed left

    def refreshed(self) -> BagState:
        """Returns the state with all events that have come meanwhile, which are kept here, too."""
        if not self.path.exists():  # a bag that is only predicted
            return self.state
        with alone(self._lock):
            size = 1
            while True:
                super().refreshed()
                names = [(EVENTS, _name(self.num_events + 1 + number)) for number in range(size)]
                texts = self._answered(partial(self._bucket.texts, *names))
                jsonl.add(self._events, *map(json.loads, texts))
                if len(texts) < size:
                    return super().refreshed()
                size = min(2 * size, MOST_AT_ONCE)

    def decide(self, choose: Callable[[BagState], Event | None]) -> Event | None:
        """Adds the event that `choose` makes of the state in which nothing else has happened."""
        while event := choose(self.refreshed()):
            if self._answered(partial(self._added, json.dumps(event))):
                self.refreshed()
                return event
        return None

    def _added(self, text: str) -> bool:
        """Writes an event under the next number; returns False if another is there."""
        place = EVENTS, _name(self.num_events + 1)
        return self._bucket.create(text, *place) or self._bucket.text(*place) == text  # of a lost reply

    def begin(self, seed: int) -> None:
        """Prepares the folder of a run: empty, or with the files that the run saved before."""
        work, thing = self.work(seed), self.state.things.get(seed)
        shutil.rmtree(work, ignore_errors=True)
        if thing and self.bag.save_s:
            try:
                self._answered(partial(self._bucket.bring_thing, thing, work))
            except DataError as error:
                log.warning("%s; seed %d starts over", error, seed)
        work.mkdir(parents=True, exist_ok=True)
        self._sent = _stats(work)

    def save(self, lease: str, seed: int) -> None:
        """Sends the folder of a run, if files changed since the last time and are not being written now."""
        stats = _stats(self.work(seed))
        if stats == self._sent:
            return
        with tempfile.TemporaryDirectory(dir=self.path) as scratch:
            copy = Path(scratch) / "copy"
            try:
                shutil.copytree(self.work(seed), copy)
            except OSError as error:
                log.info("what seed %d saves is not whole yet: %s", seed, error)
                return
            if _stats(self.work(seed)) == stats:
                self._leave({"event": "saved", "lease": lease, "seed": seed, "time": time.time()}, copy)
                self._sent = stats

    def end(self, event: Event) -> None:
        """Sends the files of a run and records the end, unless another machine has taken over the run."""
        self._leave(event, self.work(event["seed"]))

    def _leave(self, event: Event, folder: Path) -> None:
        seed = event["seed"]
        thing, before = f"{seed}-{secrets.token_hex(8)}", self.state.things.get(seed)
        self._answered(partial(self._bucket.send_thing, folder, thing))
        left = self.decide(
            lambda state: {**event, "thing": thing} if state.holds(event["lease"], seed) else None
        )
        if obsolete := before if left else thing:
            self._answered(partial(self._bucket.remove_thing, obsolete))

    def publish(self) -> None:
        """Writes the events that are here to a bucket that has not got them, or not any more."""
        if self._answered(partial(self._bucket.create, "", "once")) and self._bucket.create("", "once"):
            raise JobError(
                f"{self.bag.url} writes over what is there, so seeds would be run twice; set backend.bucket "
                f"to a folder in Cloud Storage or S3"
            )
        events = jsonl.whole(self._events)
        if not events or self._answered(partial(self._bucket.text, EVENTS, _name(1))):
            return
        for number in range(len(events), 0, -1):  # the first event last, as a sign that all are there
            text = json.dumps(events[number - 1])
            self._answered(partial(self._bucket.create, text, EVENTS, _name(number)))

    def fetch(self) -> None:
        """Fetches the results of runs that are done to seeds/, and what those that failed left to work/."""
        for seed in self.state.done:
            if not self.result(seed).exists():
                thing = self.state.things[seed]
                try:
                    self._answered(partial(self._bucket.bring_thing, thing, self.work(seed)))
                except DataError as error:
                    raise DataError(
                        f"what seed {seed} left is not in {self.bag.url} as it was sent ({error}); give the "
                        f"bag another --name"
                    ) from error
                self._keep(seed)
                self._answered(partial(self._bucket.remove_thing, thing))
        for seed, thing in self.state.things.items():
            failed = seed in self.state.failures and seed not in self.state.done
            if failed and thing not in self._fetched:
                try:
                    self._answered(partial(self._bucket.bring_thing, thing, self.work(seed)))
                except DataError as error:  # its next run has left something else meanwhile
                    log.info("%s", error)
                self._fetched.add(thing)

    def _answered(self, act: Callable[[], Answer]) -> Answer:
        """Returns what the bucket answers, after retries; JobError if it does not answer."""
        pauses = self._retry.pauses()
        while True:
            try:
                return act()
            except DataError:
                raise
            except Exception as error:  # each file system has its own
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise JobError(
                        f"{self.bag.url} does not answer ({type(error).__name__}: {error}); the same command "
                        f"goes on"
                    ) from error
                log.warning("%s does not answer: %s; retrying in %.0f s", self.bag.url, error, pause_s)
                time.sleep(pause_s)


def _name(number: int) -> str:
    return f"{number:08d}.json"


def _stats(folder: Path) -> Stats:
    """Returns the size of each file of a run but its log, and when it changed.

    The run may go on meanwhile: a file that it renames or removes before it is looked at is left out.
    """
    stats = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                if path != folder / LOG and stat.S_ISREG(facts.st_mode):
                    stats[path.relative_to(folder).as_posix()] = facts.st_size, facts.st_mtime_ns
    return stats
