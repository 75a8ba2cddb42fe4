"""Has delivered files parsed in a process of its own, which has a limit of memory and no secrets.

A small file may unpack, or repeat its values, to any size, and what reads it may end its process rather than
raise an error. So one further process (parser_process.py) parses all files of this one. The first file starts
it, and where it has ended, the next file. It gets the open file, or a copy where the file is not of
this machine; the rows that it writes are mapped into memory, so that they are not copied. Copy and rows are
files without a name in `data` of the night or home, or else in the temporary folder.
"""

import atexit
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from daybreak.contract import disk
from daybreak.contract.code_path import without_secrets
from daybreak.contract.errors import DataError, JobError
from daybreak.contract.formats import size
from daybreak.data.file_formats import PACKED
from daybreak.data.parser_process import BLOCK, TooLarge

TAKES_WHAT_IT_NEEDS = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}  # Arrow's allocator, not 1 GiB at once
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)  # no file ends the process by these
HEAD_OF_PACKED = 1 << 23  # bytes that unpack to more than a head, whatever the packer's blocks


class Parser:
    """The process that parses files for this one; safe to share among threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._starter = 0  # of which a fork starts a process of its own
        self._alone = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Returns the number of the process; None where none runs."""
        return self._process.pid if self._process else None

    def rows(
        self,
        file: IO[bytes],
        *,
        path: str,
        origin: str,
        max_bytes: int,
        delimiter: str,
        encoding: str,
        kept: Collection[str],
    ) -> pa.Table:
        """Returns the rows of an opened file, as delivered, in the format that its path names.

        Errors call the file `origin`. Raises TooLarge, ArrowInvalid or ValueError as its reader does, and
        DataError where the file cannot be read within the limit of memory. Raises JobError where the machine
        lacks room for the rows, or ended or did not start the process.
        """
        how = {"delimiter": delimiter, "encoding": encoding, "kept": sorted(kept)}
        data = self._asked(file, {"path": path, "max_bytes": max_bytes, **how}, origin=origin)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

    def head(self, file: IO[bytes], *, path: str, max_bytes: int, num_bytes: int) -> bytes:
        """Returns the first bytes of an opened file, unpacked; raises as `rows` does."""
        request = {"path": path, "max_bytes": max_bytes, "head": num_bytes}
        return bytes(self._asked(file, request, origin=path))

    def _asked(self, file: IO[bytes], request: Mapping[str, Any], *, origin: str) -> pa.Buffer:
        """Returns what the process writes for a request."""
        with self._alone, contextlib.ExitStack() as stack:
            try:
                rows = stack.enter_context(_without_name())
                if type(file) is not io.BufferedReader:  # the process has no credentials
                    file = _copied(file, stack.enter_context(_without_name()), request)
            except _NoRoom as error:
                raise _of_the_machine(origin, error) from None
            try:
                reply = self._reply(request, [file.fileno(), rows.fileno()], origin=origin)
            except BaseException:  # a reply that nobody waits for would be taken for that of the next file
                self.close()
                raise
            if reply["ends"] or reply.get("kind") == "memory":
                self.close()
            if reply["error"] is None:
                return _mapped(rows)
            raise _error_of(reply, origin, os.fstat(file.fileno()).st_size)

    def _reply(self, request: Mapping[str, Any], files: list[int], *, origin: str) -> dict[str, Any]:
        how = ""
        for _ in range(2):  # it may have been ended since the last file, which is no fault of this one
            if self._starter != os.getpid() or not self._process:
                self._start()
            assert self._socket and self._process
            reply: dict[str, Any] = {}
            with contextlib.suppress(ConnectionError), self._socket.makefile("rb") as replies:
                socket.send_fds(self._socket, [b" "], files)
                self._socket.sendall(json.dumps(request).encode() + b"\n")
                for line in replies:
                    reply |= json.loads(line)
                    if "error" in reply:
                        return reply
            status = self._process.wait()
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
            if reply and -status not in FROM_OUTSIDE:
                how = f": the process that reads it ended {how}"
                return {**reply, "kind": "memory", "error": how, "ends": True}
            if reply:
                raise JobError(
                    f"{origin} was not read, since the process that reads it was ended {how}, as by a "
                    f"machine that has no more memory; free some, then run this again"
                )
            self.close()
        raise JobError(
            f"{origin} was not read, since the process that reads files does not start: it ended {how}; free "
            f"memory on this machine, then run this again"
        )

    def _start(self) -> None:
        try:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "daybreak.data.parser_process", str(theirs.fileno())],
                    env=without_secrets() | TAKES_WHAT_IT_NEEDS,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=2,
                    process_group=0,  # Ctrl-C is for this process, with which the other one ends
                )
        except OSError as error:
            raise JobError(
                f"the process that reads files cannot be started: {error}; run this again once this machine "
                f"has room for it"
            ) from None
        self._starter = os.getpid()

    def close(self) -> None:
        """Ends the process; the next file starts another one."""
        process, self._process = self._process, None
        if self._socket:
            self._socket.close()
        if process and self._starter == os.getpid():
            process.kill()
            process.wait()


class _NoRoom(OSError):
    """A file for copy or rows cannot be made or written."""


def _folder() -> Path:
    """Returns where files without a name lie: on the disk of the data, as /tmp may be memory."""
    here = Path("data")
    return here if here.is_dir() and os.access(here, os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def _without_name() -> Iterator[IO[bytes]]:
    try:
        file = tempfile.TemporaryFile(dir=_folder())  # noqa: SIM115 - only making it is tried
    except OSError as error:
        raise _NoRoom(error.errno, error.strerror) from None
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):  # of what could not be written before, which is said already
            file.close()


def _copied(file: IO[bytes], copy: IO[bytes], request: Mapping[str, Any]) -> IO[bytes]:
    """Returns the copy of a file, or of as much of its beginning as a head needs."""
    path, enough = request["path"].lower(), request.get("head")
    if path.endswith(".zip"):  # whose index is at its end
        enough = None
    elif enough and path.endswith(PACKED):
        enough = HEAD_OF_PACKED
    while block := file.read(BLOCK if enough is None else min(BLOCK, enough - copy.tell())):
        try:
            copy.write(block)
            copy.flush()
        except OSError as error:
            raise _NoRoom(error.errno, error.strerror) from None
        if copy.tell() > request["max_bytes"]:
            raise TooLarge
    copy.seek(0)
    return copy


def _mapped(rows: IO[bytes]) -> pa.Buffer:
    if not os.fstat(rows.fileno()).st_size:
        return pa.py_buffer(b"")
    try:  # Arrow keeps the pages and closes the file; Python's own map keeps a descriptor
        with pa.memory_map(f"/dev/fd/{rows.fileno()}") as mapped:
            return mapped.read_buffer()
    except OSError:  # a file system that does not open again what has no name
        rows.seek(0)
        return pa.py_buffer(rows.read())


def _error_of(reply: Mapping[str, Any], origin: str, num_bytes: int) -> Exception:
    kind, message = reply["kind"], reply["error"]
    if kind == "memory":
        return DataError(
            f"{origin}, of {size(num_bytes)} as delivered, cannot be read within "
            f"{size(reply['limit_bytes'])} of memory{message}; look who made it, have it delivered in "
            f"smaller files or as Parquet, or raise source.max_gb"
        )
    if kind == "room":
        return _of_the_machine(origin, _NoRoom(reply["errno"], os.strerror(reply["errno"])))
    if kind == "system":
        return OSError(reply["errno"], os.strerror(reply["errno"]))
    of_kind: dict[str, type[Exception]] = {"large": TooLarge, "invalid": pa.ArrowInvalid}
    return of_kind.get(kind, ValueError)(message)


def _of_the_machine(origin: str, error: _NoRoom) -> JobError:
    folder = _folder()
    about = disk.fault(OSError(error.errno, error.strerror, str(folder)))
    about = about or f"{error.strerror}; see that files can be written there, then run this again"
    return JobError(f"{origin} was not read, since its rows cannot be written to {folder}: {about}")


PARSER = Parser()
atexit.register(PARSER.close)
