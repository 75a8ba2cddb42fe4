"""Elects the machine that holds the rendezvous of a job whose machines come and go.

Workers meet at a store on one of the machines, its host, which may be lost like any other. The machines agree
on the host by files in a folder that all of them reach, on a shared file system or in the bucket:

    term-N.json   the host of term N, in a file that only one machine can create
    beat-N        rewritten by that machine every `BEAT_S`

A machine that has seen no new beat for `SILENT_S`, by a clock of its own, may create the file of the next
term. A machine that finds a term after that of its workers stops them, so a host that was only cut off does
not train beside its successor for longer than a look. It is a lease (Gray & Cheriton 1989) of which nobody
has to know the time of another. The machine that has the result takes a term without a store while it sends
that, and the last term is the exit status of the job.
"""

import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from daybreak.storage.bucket import BucketFolder

log = logging.getLogger(__name__)

BEAT_S, SILENT_S = 2.0, 12.0
GONE = "gone"  # the last beat of a host that was told to end


@dataclass(frozen=True, kw_only=True)
class Term:
    """Who holds the store."""

    machine: str = ""  # token of the process that took the term
    address: str = ""  # HOST:PORT of the store; "": none
    status: int | None = None  # exit status of the job, which has ended


class HostElection:
    """One machine's part in it."""

    def __init__(
        self, folder: BucketFolder, *names: str, host: str, has_result: Callable[[], bool] = lambda: True
    ) -> None:
        """Keeps the path of the files in the folder, this machine's address, and what its job leaves.

        `has_result` returns whether this machine has the result of a job that succeeded; all of them have it
        on a shared file system.
        """
        self._folder, self._names, self._host, self.has_result = folder, names, host, has_result
        self._machine = secrets.token_hex(8)
        self._number, self._term, self._left = -1, Term(), -1
        self._beat, self._heard_at = "", 0.0

    @property
    def is_host(self) -> bool:
        """Whether this machine took the newest term that it knows."""
        return self._term.machine == self._machine

    def seek(self, *, stopped: Callable[[], object]) -> Term | None:
        """Waits for a host, or becomes it; returns the term, or None where this machine is told to stop.

        A term with a status is the end of the job. A term that this machine has left is not returned again.
        """
        while not stopped():
            self._look()
            if self._term.status is not None:
                return self._term
            if self._is_vacant:
                self._take(Term(machine=self._machine, address=f"{self._host}:{_free_port()}"))
            elif self._term.address and self._number > self._left:
                return self._term
            else:  # another machine sends the result
                time.sleep(BEAT_S)
        return None

    @contextmanager
    def watched(self, *, stopped: Callable[[], object] = lambda: False) -> Iterator[Callable[[], bool]]:
        """Watches the term meanwhile, and beats if it is this machine's; yields whether it is over.

        Once this machine is told to stop, it lets the others elect.
        """
        number, over, left = self._number, threading.Event(), threading.Event()

        def watch() -> None:
            while not left.is_set():
                if self.is_host:
                    self._say(GONE if stopped() else str(time.monotonic()))
                self._look()
                if self._number > number or (self._is_vacant and not self.is_host):
                    over.set()
                left.wait(BEAT_S)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield over.is_set
        finally:
            left.set()
            thread.join()

    def succeed(self, *, stopped: Callable[[], object]) -> bool:
        """Leaves the term, as the workers have succeeded; returns whether this machine is to send the result.

        It then has the next term, which has no store. Where this machine is told to stop before it could take
        that, as the folder refuses it, it is not to send.
        """
        self._left = self._number
        own = Term(machine=self._machine)
        while not stopped() and self.has_result() and self._term.address:
            self._take(own)
            self._look()
        return self._term == own

    def resign(self) -> None:
        """Leaves the term; where it is this machine's, the others may elect at once."""
        self._look()  # this machine may have taken the newest term and not have seen it yet
        self._left = self._number
        if self.is_host:
            self._say(GONE)
            self._term = Term()

    def end(self, status: int) -> None:
        """Ends the job for all machines with that exit status, where this machine took the newest term."""
        self._look()
        if self.is_host:
            self._take(Term(status=status))

    @property
    def _is_vacant(self) -> bool:
        if self._number < 0 or self._beat == GONE:
            return True
        return time.monotonic() - self._heard_at > SILENT_S

    def _look(self) -> None:
        """Reads the newest term and its beat; nobody is silent while the folder does not answer."""
        if not self._try(self._read):
            self._heard_at = time.monotonic()

    def _read(self) -> None:
        while text := self._folder.text(*self._names, f"term-{self._number + 1}.json"):
            self._number, self._term = self._number + 1, Term(**json.loads(text))
            self._beat, self._heard_at = "", time.monotonic()
        beat = self._folder.text(*self._names, f"beat-{self._number}") or ""
        if beat != self._beat:
            self._beat, self._heard_at = beat, time.monotonic()

    def _say(self, beat: str) -> None:
        self._try(lambda: self._folder.write(beat, *self._names, f"beat-{self._number}"))

    def _take(self, term: Term) -> None:
        """Tries to create the next term."""
        text = json.dumps(asdict(term))
        self._try(lambda: self._folder.create(text, *self._names, f"term-{self._number + 1}.json"))

    def _try(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except Exception as error:  # noqa: BLE001 each file system has its own, none is a reason to end training
            log.warning("%s does not answer about the host of the job: %s", self._folder.url, error)
            time.sleep(BEAT_S)
            return False
        return True


def _free_port() -> int:
    with socket.socket() as made:
        made.bind(("", 0))
        return int(made.getsockname()[1])
