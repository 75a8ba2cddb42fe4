"""Sends documents between a router and the process of a version: JSON, its length before it, over a socket.

JSON, since what the process of a version sends must not be able to run code in the router.
"""

import json
import math
import socket
import struct
import time
from typing import Any

HEAD = struct.Struct("!I")
MAX_BYTES = 64_000_000  # of a document


def send(to: socket.socket, document: Any, *, until: float = math.inf) -> None:
    """Sends a document; OSError or TimeoutError, by `time.monotonic`, where it is not taken."""
    body = json.dumps(document).encode()
    to.settimeout(_left_s(until))
    to.sendall(HEAD.pack(len(body)) + body)


def receive(source: socket.socket, *, until: float = math.inf) -> Any:
    """Returns the next document.

    Raises EOFError where the other side has ended, TimeoutError, or ValueError or RecursionError where it is
    none.
    """
    (length,) = HEAD.unpack(_exactly(source, HEAD.size, until))
    if length > MAX_BYTES:
        raise ValueError(f"a document of {length:,} bytes, at most {MAX_BYTES:,} are taken")
    return json.loads(_exactly(source, length, until))


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
