"""Has delivered files parsed in a process of its own, which has a limit of memory and no secrets.

A small file may unpack, or repeat its values, to any size, and what reads it may end its process rather than
raise an error. So one further process (parser_process.py) parses all files of this one. The first file starts
it, and where it has ended, the next file. It gets the open file, or a copy where the file is not of
this machine; the rows that it writes are mapped into memory, so that they are not copied.
"""

import atexit
import contextlib
import io
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping
from typing import IO, Any

import pyarrow as pa

from daybreak.contract.code_path import without_secrets
from daybreak.contract.errors import DataError
from daybreak.contract.formats import size
from daybreak.data.parser_process import BLOCK, ROOM_BYTES, TooLarge

TAKES_WHAT_IT_NEEDS = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}  # Arrow's allocator, not 1 GiB at once


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
        DataError where the file cannot be read within the limit of memory.
        """
        how = {"delimiter": delimiter, "encoding": encoding, "kept": sorted(kept)}
        data = self._asked(file, {"path": path, "max_bytes": max_bytes, **how}, origin=origin)
        return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

    def head(self, file: IO[bytes], *, path: str, max_bytes: int, num_bytes: int) -> bytes:
        """Returns the first bytes of an opened file, unpacked; raises as `rows` does."""
        return bytes(
            self._asked(file, {"path": path, "max_bytes": max_bytes, "head": num_bytes}, origin=path)
        )

    def _asked(self, file: IO[bytes], request: Mapping[str, Any], *, origin: str) -> "mmap.mmap | bytes":
        """Returns what the process writes for a request."""
        with self._alone, tempfile.TemporaryFile() as rows, contextlib.ExitStack() as stack:
            if type(file) is not io.BufferedReader:  # the process has no credentials
                copy = stack.enter_context(tempfile.TemporaryFile())
                while block := file.read(BLOCK):
                    copy.write(block)
                    if copy.tell() > request["max_bytes"]:
                        raise TooLarge
                copy.seek(0)
                file = copy
            try:
                reply = self._reply(request, [file.fileno(), rows.fileno()])
            except BaseException:  # a reply that nobody waits for would be taken for that of the next file
                self.close()
                raise
            if reply["ends"] or reply.get("kind") == "memory":
                self.close()
            if reply["error"] is None:
                length = os.fstat(rows.fileno()).st_size
                return mmap.mmap(rows.fileno(), length, access=mmap.ACCESS_READ) if length else b""
            kind, message = reply["kind"], reply["error"]
            if kind == "memory":
                raise DataError(
                    f"{origin}, of {size(os.fstat(file.fileno()).st_size)} as delivered, cannot be read "
                    f"within {size(reply['limit_bytes'])} of memory{message}; look who made it, have it "
                    f"delivered in smaller files or as Parquet, or raise source.max_gb"
                )
        raise {"large": TooLarge, "invalid": pa.ArrowInvalid}.get(kind, ValueError)(message)

    def _reply(self, request: Mapping[str, Any], files: list[int]) -> dict[str, Any]:
        if self._starter != os.getpid() or not self._process:
            self._start()
        assert self._socket and self._process
        reply: dict[str, Any] = {"limit_bytes": ROOM_BYTES}
        with contextlib.suppress(ConnectionError), self._socket.makefile("rb") as replies:
            socket.send_fds(self._socket, [b" "], files)
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            for line in replies:
                reply |= json.loads(line)
                if "error" in reply:
                    return reply
        status = self._process.wait()
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
        return {**reply, "kind": "memory", "error": f": the process that reads it ended {how}", "ends": True}

    def _start(self) -> None:
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
        self._starter = os.getpid()

    def close(self) -> None:
        """Ends the process; the next file starts another one."""
        process, self._process = self._process, None
        if self._socket:
            self._socket.close()
        if process and self._starter == os.getpid():
            process.kill()
            process.wait()


PARSER = Parser()
atexit.register(PARSER.close)
