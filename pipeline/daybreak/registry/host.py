"""Runs the code of versions in processes of their own, without secrets, and asks them by verbs.

    python -P -m daybreak.registry.confined FOLDERS daybreak.registry.host SOCKET MODULE
    python -I daybreak/registry/confined.py FOLDERS daybreak/registry/host.py SOCKET SCRIPT.py

The code of a version never runs in a process that holds passwords and tokens. It is started anew, not forked,
and asked over a socket: to load and predict (daybreak/serving/version_worker.py), for its score and for what
its metrics are of (daybreak/evaluation/own_code.py), for a smoke test (daybreak/evaluation/smoke_process.py).
A version that ends its process, or blocks it for too long, harms that process alone: the reason is passed on.

A request names a verb and has its arguments; the reply is what the verb returns, or {"error": ..., "kind":
the name of its class, "sentence": whether it is one of ours}. Both are JSON with its length before it, since
what a version sends must not be able to run code where it is read. The module, or script that is run as
`__main__`, has the functions in `VERBS`, and in `SENTENCES` the errors of a verb that are sentences of ours.
When it is run, this file imports nothing of the pipeline, since a version brings its own.
"""

import contextlib
import importlib
import json
import logging
import math
import os
import runpy
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

if TYPE_CHECKING:
    from daybreak.storage.home import Home

log = logging.getLogger(__name__)

ENDING_S = 2.0  # that a process which closed its socket may take to end
HEAD = struct.Struct("!I")
BLOCK = 65_536  # bytes that are written to the log at once
MOST_OF_ERROR = 600  # characters of an error of a version; a reply of the least bound has 10,000 bytes
MAX_BYTES = 64_000_000  # of a document that a version sends; what it is sent is ours
MAX_NESTS = 500_000  # lists and objects of such a document, of which an empty one takes 24 times its bytes
MAX_TEXT = 300  # characters of an error, of which the middle is left out


def send(to: socket.socket, document: Any, *, until: float = math.inf) -> None:
    """Sends a document; OSError or TimeoutError, by `time.monotonic`, where it is not taken."""
    body = json.dumps(document).encode()
    to.settimeout(_left_s(until))
    to.sendall(HEAD.pack(len(body)) + body)


def receive(source: socket.socket, *, until: float = math.inf, most: float = MAX_BYTES) -> Any:
    """Returns the next document, of `most` bytes, and of MAX_NESTS lists and objects where `most` is a limit.

    Raises EOFError where the other side has ended, TimeoutError, or ValueError or RecursionError where it is
    none.
    """
    (length,) = HEAD.unpack(_exactly(source, HEAD.size, until))
    if length > most:
        raise ValueError(f"a document of {length:,} bytes, at most {most:,} are taken")
    body = _exactly(source, length, until)
    if most < math.inf and (nests := body.count(b"[") + body.count(b"{")) > MAX_NESTS:
        raise ValueError(f"a document of {nests:,} lists and objects, at most {MAX_NESTS:,} are taken")
    return json.loads(body)


def _exactly(source: socket.socket, length: int, until: float) -> bytearray:
    body = bytearray(length)
    rest = memoryview(body)
    while rest:
        source.settimeout(_left_s(until))
        received = source.recv_into(rest)
        if not received:
            raise EOFError
        rest = rest[received:]
    return body


def _left_s(until: float) -> float | None:
    return None if until == math.inf else max(0.001, until - time.monotonic())


class NoAnswer(Exception):
    """The version gives no answer: it raised an error, or its process has ended.

    The message is short, and in ASCII, which any database takes.
    """

    def __init__(self, message: str, *, kind: str = "", is_sentence: bool = False) -> None:
        self.message = message[:2000]
        self.is_sentence = is_sentence  # whether the message is a sentence of ours, to be shown as it is
        text = (f"{kind}: " * bool(kind) + message).encode("ascii", "backslashreplace").decode()
        half = MAX_TEXT // 2
        text = text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"
        super().__init__(text.replace("\0", " "))


class CodeHost:
    """A process that runs the code of a version, safe to share among threads.

    It ends with this object, at the end of a `with`, or with the thread that started it.

    Attributes:
        ended: why the process ended; "" while it runs.
        scratch: the only folder that it writes to; it is removed at the end.
    """

    def __init__(
        self, target: str | Path, *, answer_s: float, home: "Home | None" = None, reads: Iterable[Path] = ()
    ) -> None:
        """Starts the process.

        Args:
            target: the module with its verbs, which runs in this folder; or a script that imports nothing of
                the pipeline, and knows nothing of this folder.
            answer_s: an answer may take so long, before the process counts as stuck and is ended.
            home: where there is one, the process reads no secret of it.
            reads: what else it reads.
        """
        from daybreak.registry import carried_code

        self.ended, self._answer_s, self._started_at = "", answer_s, time.monotonic()
        self._socket, theirs = socket.socketpair()
        scratch = tempfile.TemporaryDirectory(prefix="version-")
        self.scratch = Path(scratch.name)
        is_script = isinstance(target, Path)
        loop: str | Path = Path(__file__) if is_script else __name__
        words = str(theirs.fileno()), str(target)
        printed, prints = (os.fdopen(end, how) for end, how in zip(os.pipe(), ("rb", "wb"), strict=True))
        with theirs, prints:
            self._process = subprocess.Popen(
                carried_code.command(home, loop, *words, scratch=self.scratch, reads=reads),
                cwd=self.scratch if is_script else None,
                env=carried_code.environment(self.scratch),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=prints,
                stderr=prints,
            )
        self.pid = self._process.pid
        logs = threading.Thread(target=_log, args=(printed,), name="prints of a version", daemon=True)
        logs.start()
        self._end = weakref.finalize(self, _end, self._process, self._socket, scratch, logs)
        self._alone = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self, verb: str, *, within_s: float = 0.0, most: int = MAX_BYTES, **arguments: Any
    ) -> dict[str, Any]:
        """Returns the reply to a verb with these arguments; NoAnswer says why there is none.

        A process that takes longer than `within_s`, by default than an answer may take, or sends more than
        `most` bytes, is ended.
        """
        within_s = within_s or self._answer_s
        with self._alone:
            if self.ended:
                raise NoAnswer(self.ended)
            try:
                until = time.monotonic() + within_s
                send(self._socket, {"verb": verb, **arguments}, until=until)
                reply = receive(self._socket, until=until, most=most)
            except TimeoutError:
                raise self._failed(
                    f"its process was ended, since it was not done after {within_s:g} s"
                ) from None
            except (OSError, EOFError):
                raise self._failed(self._how_it_ended()) from None
            except (ValueError, RecursionError) as error:
                log.warning("what a version replied to %s is not taken: %s", verb, error)
                raise self._failed("its process was ended, since it did not send a valid reply") from None
            if not isinstance(reply, dict):
                raise self._failed("its process was ended, since it did not send a valid reply")
        if "error" in reply:
            sentence = reply.get("sentence") is True
            raise NoAnswer(str(reply["error"]), kind=str(reply.get("kind", "")), is_sentence=sentence)
        return reply

    def written(self, path: Path) -> BinaryIO:
        """Opens a file that the version was to write below `scratch`; NoAnswer where it left none.

        It may have left anything there: a link, by which this process would read a file for it, or a pipe
        that never ends. So no link is followed, not even to a folder, and only a file is opened.
        """
        opened = os.open(self.scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in path.relative_to(self.scratch).parts:
                here, how = opened, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                opened = os.open(part, how, dir_fd=here)
                os.close(here)
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(0, "it is no file")
        except OSError as error:
            os.close(opened)
            raise NoAnswer(f"it left no {path.name} that can be read: {error.strerror}") from None
        return os.fdopen(opened, "rb")

    @contextlib.contextmanager
    def reading(self, path: Path) -> "Iterator[BinaryIO]":
        """Yields a file as `written` opens it; NoAnswer also where what reads it in this block fails."""
        with self.written(path) as file:
            try:
                yield file
            except Exception as error:  # noqa: BLE001 a reader raises whatever the bytes of a version lead to
                raise NoAnswer(f"it left no {path.name} that can be read: {error}") from None

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


def _log(printed: BinaryIO) -> None:
    """Writes to the log what comes from a pipe, until its other end is closed.

    The log is not the process's own: with its descriptor, it could empty the file, write over earlier lines,
    or have the lines of this process dropped by a pipe that nobody waits for any more.
    """
    with printed:
        while block := os.read(printed.fileno(), BLOCK):
            with contextlib.suppress(OSError), open(2, "wb", closefd=False) as written:
                written.write(block)


def _end(
    process: "subprocess.Popen[bytes]",
    ours: socket.socket,
    scratch: "tempfile.TemporaryDirectory[str]",
    logs: threading.Thread,
) -> None:
    process.terminate()  # with namespaces, it ends after all that it has started
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    logs.join(ENDING_S)  # longer only where nobody reads the log, or what it started lives on
    ours.close()
    try:
        scratch.cleanup()
    except (OSError, RecursionError) as error:  # folders in folders, deeper than they can be followed
        log.warning("%s was not removed: %s; remove it", scratch.name, error)


def main(number: int, target: str) -> None:
    """Answers the requests that come over the socket of that number, until the other side ends."""
    known: dict[str, Any] = {}
    with socket.socket(fileno=number) as other:
        while True:
            try:
                request = receive(other, most=math.inf)
            except EOFError:
                return
            verb = request.pop("verb")
            try:
                known = known or _known(target)  # so that the caller is told why it cannot be imported
                reply = known["VERBS"][verb](**request)
                json.dumps(reply)
            except (Exception, SystemExit) as error:  # noqa: BLE001 the caller is sent whatever the code of a version raises
                is_sentence = isinstance(error, known.get("SENTENCES", {}).get(verb, ()))
                if not is_sentence:
                    traceback.print_exc()
                text = str(error)  # which may name thousands of columns, and more than a reply may have
                if len(text) > MOST_OF_ERROR:
                    text = f"{text[: MOST_OF_ERROR // 2]} ... {text[-MOST_OF_ERROR // 2 :]}"
                reply = {"error": text, "kind": type(error).__name__[:100], "sentence": is_sentence}
            send(other, reply)


def _known(target: str) -> dict[str, Any]:
    """Returns the names of the module or script that is run."""
    if target.endswith(".py"):
        return runpy.run_path(target, run_name="__main__")
    return vars(importlib.import_module(target))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
