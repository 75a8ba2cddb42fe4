"""Parses delivered files, in a process of its own that parser.py starts and asks.

    python -P -m daybreak.data.parser_process SOCKET

It opens no path: a request comes with two open files, that of the delivered bytes and an empty one, where it
writes the rows as a stream of Arrow's batches. While it reads a file it may take, besides what it has,

    384 MiB + min(16 * unpacked bytes, 4 * max_bytes)

of memory, where max_bytes is `source.max_gb`: honest text took up to four times its unpacked bytes, and small
files get little more than the first term. It ends with the process that started it, and after a file for
which it grew by more than that term, so that the next file does not have its memory.
"""

import contextlib
import errno
import io
import json
import os
import resource
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from daybreak.data import file_formats
from daybreak.data.file_formats import JSON, PARQUET
from daybreak.machines import this_machine

ROOM_BYTES = 3 << 27  # 10,000 columns of CSV take 280 MB
OF_UNPACKED, OF_MOST = 16, 4  # bytes of memory for a byte, of the file and of `max_bytes`
MOST_LEVELS = 20  # of values within values
BLOCK = 1 << 20
BATCH, REBUILT = 1 << 16, 1 << 10  # rows at once; of list views, each value is an object of Python meanwhile
LIMITED = sys.platform == "linux"  # others have the limit, and do not keep to it
OUT_OF_MEMORY = 500  # added to the badness of the process, of 1000
MOST_TEXT = 2000  # characters of an error
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # which only writing meets


class TooLarge(Exception):
    """A file holds more rows than fit into `max_bytes`."""


def parse(
    delivered: IO[bytes],
    rows: IO[bytes],
    *,
    path: str,
    max_bytes: int,
    limit: Callable[[int], None],
    **how: Any,
) -> None:
    """Writes the rows of a file; `limit` is told how many bytes they are.

    Raises TooLarge, ArrowInvalid where the file has more columns or levels than are read, and what its reader
    raises.
    """
    tables: Iterable[pa.Table]
    if path.lower().endswith(PARQUET):
        file = pq.ParquetFile(delivered)
        _expect_bounded(file.schema_arrow)
        schema, most = file_formats.plain(file.schema_arrow), max_bytes
        _expect_room(file_formats.num_bytes(file), max_bytes)
        limit(file_formats.num_bytes(file))
        num = REBUILT if any(map(file_formats.has_list_views, file.schema_arrow.types)) else BATCH
        batches = file.iter_batches(num, use_threads=False)  # whose stacks would count within the limit
        tables = (file_formats.as_plain(pa.Table.from_batches([each]), schema) for each in batches)
    else:
        data = _unpacked(delivered, path, max_bytes)
        limit(len(data))
        is_json = file_formats.is_of(path, JSON)
        table = file_formats.read_json(data) if is_json else file_formats.read_csv(data, **how)
        schema, tables, most = table.schema, [table], OF_MOST * max_bytes
        _expect_bounded(schema)
    with pa.ipc.new_stream(rows, schema) as stream:
        for table in tables:
            stream.write_table(table)
            _expect_room(rows.tell(), most)
    rows.flush()


def _unpacked(delivered: IO[bytes], path: str, max_bytes: int) -> bytes:
    data = io.BytesIO()  # whose bytes are not copied
    with file_formats.unpacked(delivered, path) as file:
        while block := file.read(BLOCK):
            data.write(block)
            _expect_room(data.tell(), max_bytes)
    return data.getvalue()


def _expect_room(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise TooLarge


def _expect_bounded(schema: pa.Schema) -> None:
    file_formats.expect_columns(sum(map(_num_leaves, schema.types)))
    if (levels := max(map(_num_levels, schema.types), default=0)) > MOST_LEVELS:
        raise pa.ArrowInvalid(f"it has values within values, {levels} deep, and {MOST_LEVELS} are read")


def _num_leaves(kind: pa.DataType) -> int:
    return sum(map(_num_leaves, file_formats.within(kind))) or 1


def _num_levels(kind: pa.DataType) -> int:
    return 1 + max(map(_num_levels, file_formats.within(kind)), default=0)


def main(number: int) -> None:
    """Answers the requests that come over the socket of that number, until the other side ends."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OUT_OF_MEMORY))
    os.chdir("/")  # so that no disk is in use by it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where C++ says how it ended; the starter says it, too
    before, used = resource.getrlimit(resource.RLIMIT_DATA), _used_bytes()
    with socket.socket(fileno=number) as other, other.makefile("rb") as requests:
        threading.Thread(target=_end_with, args=(other,), daemon=True).start()
        while True:
            _, files, *_ = socket.recv_fds(other, 1, 2)
            if len(files) != 2:
                return
            with os.fdopen(files[0], "rb") as delivered:
                rows = os.fdopen(files[1], "wb")
                request = json.loads(requests.readline())
                reply = _done(other, delivered, rows, request)
                with contextlib.suppress(OSError):  # of what could not be written, which the reply says
                    rows.close()
            resource.setrlimit(resource.RLIMIT_DATA, before)
            _send(other, {**reply, "ends": _used_bytes() > used + ROOM_BYTES})


def _done(
    other: socket.socket, delivered: IO[bytes], rows: IO[bytes], request: dict[str, Any]
) -> dict[str, Any]:
    """Returns the reply to a request, once its rows are written."""
    used = _used_bytes()
    max_bytes = request["max_bytes"]

    def limit(num_bytes: int) -> None:
        limit_bytes = ROOM_BYTES + min(OF_UNPACKED * num_bytes, OF_MOST * max_bytes)
        _send(other, {"limit_bytes": limit_bytes})
        if LIMITED:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limits = [used + limit_bytes, *(each for each in (soft, hard) if each != resource.RLIM_INFINITY)]
            resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))

    try:
        limit(max_bytes)  # until it is known how many they are
        if head := request.pop("head", 0):
            with file_formats.unpacked(delivered, request["path"]) as file:
                rows.write(file.read(head))
            rows.flush()
        else:
            parse(delivered, rows, limit=limit, **request)
    except MemoryError:
        return {"error": "", "kind": "memory"}
    except TooLarge:
        return {"error": "", "kind": "large"}
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return {"error": "", "kind": "memory"}
        kind = "room" if error.errno in NO_ROOM else "system" if error.errno else ""
        return {"error": (str(error) or type(error).__name__)[:MOST_TEXT], "kind": kind, "errno": error.errno}
    except Exception as error:  # noqa: BLE001 the caller is sent whatever the readers raise
        kind = "invalid" if isinstance(error, pa.ArrowInvalid) else ""
        return {"error": (str(error) or type(error).__name__)[:MOST_TEXT], "kind": kind}
    return {"error": None}


def _used_bytes() -> int:
    return this_machine.status()["VmData"] if LIMITED else 0


def _send(other: socket.socket, reply: dict[str, Any]) -> None:
    other.sendall(json.dumps(reply).encode() + b"\n")


def _end_with(other: socket.socket) -> None:
    """Ends this process as soon as the other side of the socket has, also while it reads a file."""
    ended = select.poll()
    ended.register(other, 0)  # nothing but the end
    ended.poll()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
