"""Runs a version in a separate process without secrets (daybreak/registry/confined.py) and sends it requests.

The code of a version never runs in the router, which holds passwords and tokens. The process
(daybreak/serving/version_worker.py) is started anew, not forked, and spoken to over a socket in JSON. A
version that ends its process, or blocks it for too long, harms that process alone: requests get the reason,
and the version may be loaded again.
"""

import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from daybreak.contract.errors import ReleaseError
from daybreak.registry import carried_code
from daybreak.serving import frames
from daybreak.storage.home import Home

LOAD_S = 900.0  # the most that loading may take
LEAST_ANSWER_S = 5.0  # that an answer may take, before the process counts as stuck
ENDING_S = 2.0  # that a process which closed its socket may take to end


def answer_s(timeout_s: float) -> float:
    """Returns how long a version may take for an answer, of which a request waits for `timeout_s`."""
    return max(LEAST_ANSWER_S, 10 * timeout_s)


class NoAnswer(Exception):
    """The version gives no answer: it raised an error, or its process has ended.

    The message is short, and in ASCII, which any database takes.
    """

    def __init__(self, message: str, *, kind: str = "", is_sentence: bool = False) -> None:
        self.message = message[:2000]
        self.is_sentence = is_sentence  # whether the message is a sentence of ours, to be shown as it is
        text = (f"{kind}: " * bool(kind) + message).encode("ascii", "backslashreplace").decode()
        super().__init__(text[:200].replace("\0", " "))


class VersionProcess:
    """The process of one version, safe to share among threads; ends with this object or its thread.

    Attributes:
        about: what the version is, as `version_worker.py` says.
        ended: why the process ended; "" while it runs.
        scratch: the only folder that it writes to; it is removed at the end.
        thread: asks it for the answers to users, so that requests to other versions do not wait.
    """

    def __init__(
        self,
        number: int,
        case: Mapping[str, Any],
        *,
        answer_s: float,
        home: Home | None = None,
        reads: Iterable[Path] = (),
    ) -> None:
        """Starts the process and loads the version as the case says; ReleaseError where it does not load.

        `reads` names what else it reads; of `home`, where there is one, it reads no secret.
        """
        self.ended, self._answer_s, self._started_at = "", answer_s, time.monotonic()
        self._socket, theirs = socket.socketpair()
        reads = [*reads, *(Path(case[name]) for name in ("version", "arrays") if case[name])]
        scratch = tempfile.TemporaryDirectory(prefix="version-")
        self.scratch = Path(scratch.name)
        command = partial(carried_code.command, home, scratch=self.scratch, reads=reads)
        with theirs:
            self._process = subprocess.Popen(
                command("daybreak.serving.version_worker", str(theirs.fileno())),
                env=carried_code.environment(self.scratch),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # its prints are for the log
            )
        self.pid = self._process.pid
        self._end = weakref.finalize(self, _end, self._process, self._socket, scratch)
        self._alone = threading.Lock()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=f"version {number}")
        try:
            self.about: dict[str, Any] = self.ask(case, within_s=LOAD_S)
        except NoAnswer as error:
            self.close()
            if error.is_sentence:
                raise ReleaseError(error.message) from None
            raise ReleaseError(f"version {number} does not answer: {error}; fix its workload") from None

    def ask(self, request: Mapping[str, Any], *, within_s: float = 0.0) -> dict[str, Any]:
        """Returns what the version replies to a request; NoAnswer says why it does not.

        A process that takes longer than `within_s`, by default than an answer may take, is ended.
        """
        within_s = within_s or self._answer_s
        with self._alone:
            if self.ended:
                raise NoAnswer(self.ended)
            try:
                until = time.monotonic() + within_s
                frames.send(self._socket, request, until=until)
                reply = frames.receive(self._socket, until=until)
            except TimeoutError:
                raise self._failed(
                    f"its process was ended, since it was not done after {within_s:g} s"
                ) from None
            except (OSError, EOFError):
                raise self._failed(self._how_it_ended()) from None
            except (ValueError, RecursionError):
                raise self._failed("its process was ended, since it did not send a valid reply") from None
            if not isinstance(reply, dict):
                raise self._failed("its process was ended, since it did not send a valid reply")
        if "error" in reply:
            sentence = reply.get("sentence") is True
            raise NoAnswer(str(reply["error"]), kind=str(reply.get("kind", "")), is_sentence=sentence)
        return reply

    def is_due(self, after_s: float) -> bool:
        """Returns whether the process has ended, and was started that long ago: it is worth another one."""
        return bool(self.ended) and time.monotonic() - self._started_at > after_s

    def close(self) -> None:
        """Ends the process."""
        self.ended = self.ended or "its process was ended, since it serves no more"
        self._end()

    def _failed(self, why: str) -> NoAnswer:
        self.ended = self.ended or why
        self._end()
        return NoAnswer(self.ended)

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "its process was ended, since it does not listen any more"
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
        return f"its process ended {how}"


def _end(
    process: "subprocess.Popen[bytes]", ours: socket.socket, scratch: "tempfile.TemporaryDirectory[str]"
) -> None:
    process.kill()
    process.wait()
    ours.close()
    scratch.cleanup()
