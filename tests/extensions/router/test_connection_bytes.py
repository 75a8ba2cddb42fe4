"""What one connection can make the router keep, whatever bytes come; parser and limits, without a socket."""

import asyncio
import contextlib
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from daybreak.extensions.router import server
from daybreak.extensions.router.connections import MAX_HEADER_BYTES, MAX_HEADERS, MAX_PIPELINED, Connection
from daybreak.extensions.router.limits import RequestLimiter
from daybreak.extensions.router.settings import RouterParams

READ = 262_144  # bytes that the event loop reads at once
BODY = 1_000_000
MOST_STEPS = 20  # of the event loop until an app has read what it reads
BOUND = 2 * MAX_HEADER_BYTES + 4 * READ + 2 * BODY  # of what is kept for a connection
HEAD = b"POST /recommend HTTP/1.1\r\nHost: router\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"  # up to the trailers


class Sent(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.is_closed, self.is_paused = b"", False, False

    def write(self, data: Any) -> None:
        self.written = (self.written + bytes(data))[-READ:]  # the client reads

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def waits_for_ever(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body, and never answers."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.Event().wait()


async def answers_early(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers before the body has come."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """An app that answers once the body has come."""
    while (await receive()).get("more_body"):
        pass
    await answers_early(scope, receive, send)


async def fails(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads a piece of the body."""
    await receive()
    raise ValueError("the app fails")


async def never_reads(scope: Any, receive: Any, send: Any) -> None:
    """An app that neither reads the body nor answers."""
    await asyncio.Event().wait()


APPS = (waits_for_ever, answers_early, answers, fails, never_reads)


@contextlib.contextmanager
def connected(
    loop: asyncio.AbstractEventLoop, app: Any = waits_for_ever, *, body: int = BODY
) -> Iterator[tuple[Connection, Sent]]:
    limiter = RequestLimiter(app, token="", max_body_bytes=body, max_requests_per_s=0)
    config = server.config(limiter, RouterParams())
    config.load()
    made: Any = config.http_protocol_class(
        config=config, server_state=ServerState(), app_state={}, _loop=loop
    )
    transport = Sent()
    made.connection_made(transport)
    yield made, transport
    made.connection_lost(None)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))


def fed(pieces: list[bytes], app: Any = waits_for_ever, *, body: int = BODY) -> tuple[str, bool, int]:
    """Gives bytes to a connection while it reads; returns its answer, whether it closed, what it kept."""
    loop = asyncio.new_event_loop()
    most = 0
    with contextlib.closing(loop), connected(loop, app, body=body) as (connection, transport):
        tracemalloc.start()
        for piece in pieces:
            for start in range(0, len(piece), READ):
                for _ in range(MOST_STEPS):  # of the app, which may read on
                    loop.run_until_complete(asyncio.sleep(0))
                    if not transport.is_paused:
                        break
                if transport.is_closed or transport.is_paused:
                    break
                connection.data_received(piece[start : start + READ])
                loop.run_until_complete(asyncio.sleep(0))
                most = max(most, tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        answer, is_closed = transport.written.decode(), transport.is_closed
    return answer, is_closed, most


@pytest.mark.parametrize(
    ("begins", "goes_on", "why"),
    [
        (CHUNKED, b"a: b\r\n" * 40_000, "the headers have more than 65,536 bytes"),
        (CHUNKED + b"a: ", b"x" * 200_000, "the headers have more than 65,536 bytes"),
        (HEAD + b"X: ", b"x" * 200_000, "the headers have more than 65,536 bytes"),
        (HEAD, b"ab:c\r\n" * 200, f"more than {MAX_HEADERS} headers"),
        (b"", b"GET / HTTP/1.1\r\n\r\n" * 14_000, f"more than {MAX_PIPELINED} requests wait"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;", b"x" * 200_000, "65,536 bytes"),
        (b"no request\r\n", b"x", "Invalid HTTP request"),
    ],
    ids=["trailers", "a long trailer", "a long header", "headers", "requests", "extensions", "no request"],
)
def test_whoever_sends_without_end_is_refused_and_nothing_is_kept(
    begins: bytes, goes_on: bytes, why: str
) -> None:
    answer, is_closed, most = fed([begins, *[goes_on] * 50])
    assert is_closed
    assert why in answer
    assert most < BOUND


def test_trailers_and_a_few_requests_at_once_are_taken() -> None:
    answer, is_closed, _ = fed([CHUNKED + b"a: b\r\n\r\n" + (HEAD + b"\r\n") * MAX_PIPELINED])
    assert (answer, is_closed) == ("", False)


PIECES = st.sampled_from(
    [
        HEAD,
        CHUNKED,
        b"GET /health HTTP/1.1\r\n",
        b"Content-Length: 5\r\n\r\nhello",
        b"Content-Length: 999999\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Expect: 100-continue\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Connection: close\r\n",
        b"\r\n",
        b"0\r\n\r\n",
        b"5\r\nhello\r\n",
        b"ffffffff\r\n",
        b"5;" + b"e=1;" * 1000 + b"\r\nhello\r\n",
        b"a: b\r\n" * 1000,
        b"X-" + b"y" * 70_000,
        b"x" * 300_000,
        b"GET / HTTP/1.1\r\n\r\n" * 5000,
    ]
)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
@given(
    pieces=st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=40),
    cut=st.integers(1, 100_000),
    app=st.sampled_from(APPS),
    body=st.sampled_from([100, BODY]),
)
def test_no_bytes_of_a_client_make_a_connection_keep_more_than_its_bound(
    pieces: list[bytes], cut: int, app: Any, body: int
) -> None:
    """The grammar of HTTP/1.1 in pieces, joined and cut anywhere, whatever the app does meanwhile."""
    whole = b"".join(pieces)
    *_, most = fed([whole[start : start + cut] for start in range(0, len(whole), cut)][:400], app, body=body)
    assert most < BOUND
