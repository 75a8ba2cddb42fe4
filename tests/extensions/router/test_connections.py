"""Connections that never end their headers, too many of one address, and proxies, on a real router."""

import array
import contextlib
import fcntl
import json
import socket
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from pydantic import ValidationError

from daybreak.extensions.router import connections
from daybreak.extensions.router.connections import MAX_HEADER_BYTES, Connections
from daybreak.extensions.router.settings import RouterParams
from tests.extensions.router.running import Running, running, until

HALF = b"POST /recommend HTTP/1.1\r\nHost: router\r\nX-"
ELSEWHERE = "127.0.0.2"  # an address of loopback that nobody else connects from


@contextlib.contextmanager
def held(router: Running, number: int, sent: bytes = HALF, *, source: str = ELSEWHERE) -> Iterator[list[Any]]:
    """Connections from that address that have sent no more than this."""
    host, _, port = router.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(number):
            one = socket.create_connection((host, int(port)), timeout=300, source_address=(source, 0))
            connections.append(stack.enter_context(contextlib.closing(one)))
            with contextlib.suppress(ConnectionError):  # the router may have closed it again
                one.sendall(sent)
        yield connections


def grows(connection: socket.socket) -> bool:
    """Returns whether an answer comes in a second, which is not read."""
    before, until = unread(connection), time.monotonic() + 1
    while (now := unread(connection)) == before and time.monotonic() < until:
        time.sleep(0.005)
    while now != (now := unread(connection)):
        time.sleep(0.02)
    return now > before


def unread(connection: socket.socket) -> int:
    """Returns how many bytes have come that nobody has read."""
    told = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, told)
    return told[0]


def answer_of(connection: socket.socket) -> tuple[int, str]:
    """Returns status and body of the router's answer before it closes; status 0 if it closes silently."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(65_536):
            said += more
    head, _, body = said.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)["error"]) if head else (0, "")


@pytest.mark.slow
def test_half_open_connections_of_one_address_leave_the_router_to_the_others(home: Path) -> None:
    with running(home, max_connections_per_address=20, headers_timeout_s=3) as router:
        with held(router, 300) as ours:
            for _ in range(20):
                assert router.recommend("u1")["items"]
            assert (router.get("health").status_code, router.get("metrics").status_code) == (200, 200)
            # Whoever shares the address is let in as well: one that waits makes room.
            session = requests.Session()
            session.get_adapter("http://").poolmanager.connection_pool_kw["source_address"] = (ELSEWHERE, 0)
            with session:
                assert session.get(f"{router.url}/health", timeout=300).status_code == 200
            answers = [answer_of(one) for one in ours]
            assert (408, "headers took more than 3 s; send them at once") in answers[20:]
            assert {status for status, _ in answers[:20]} == {0}
        assert router.recommend("u1")["items"]


@pytest.mark.slow
def test_headers_that_trickle_or_never_end_are_cut_off(home: Path) -> None:
    with running(home, headers_timeout_s=0.5) as router:
        with held(router, 1, b"GET /health HTTP/1.1\r\nX: " + b"x" * 3 * MAX_HEADER_BYTES) as (endless,):
            assert answer_of(endless) in (
                (431, "the headers have more than 65,536 bytes; send less"),
                (0, ""),
            )
        with held(router, 1, b"\r\n\r\n") as (empty,):
            assert answer_of(empty)[0] == 408
        with held(router, 1, b"GET /health HTTP/1.1\r\n\r\n" + HALF) as (second,):
            until(lambda: second.recv(65_536).endswith(b"}"))
            assert answer_of(second)[0] in (0, 408)  # uvicorn's own limit for idle connections is 5 s


@pytest.mark.slow
def test_a_client_that_does_not_read_its_answers_is_cut_off(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    num_sent = 2000
    with running(home) as router:
        whole = len(requests.get(f"{router.url}/openapi.json", timeout=300).content)
        asks = b"GET /openapi.json HTTP/1.1\r\nHost: router\r\n\r\n"
        with held(router, 1, asks) as (slow,):
            for _ in range(num_sent - 1):
                if not grows(slow):  # an answer is on its way that nobody takes
                    break
                slow.sendall(asks)
            else:
                pytest.fail("every answer was taken by a socket that nobody reads")
            began = time.monotonic()
            while time.monotonic() < began + 4:
                assert router.recommend("u1")["items"]  # others are answered meanwhile
            num_bytes = 0
            with contextlib.suppress(ConnectionError):
                while more := slow.recv(1 << 20):
                    num_bytes += len(more)
            assert num_bytes < num_sent * whole  # 0 where the first answer took longer than REQUEST_S


@pytest.mark.slow
def test_behind_a_trusted_proxy_requests_count_for_the_address_that_is_forwarded(home: Path) -> None:
    def half_a_body(forwarded: str) -> bytes:
        return (
            f"POST /recommend HTTP/1.1\r\nHost: router\r\nX-Forwarded-For: {forwarded}\r\n"
            "Content-Length: 20\r\n\r\n{"
        ).encode()

    def ask(forwarded: str) -> int:
        headers = {"X-Forwarded-For": forwarded}
        answer = requests.post(f"{router.url}/recommend", json={"user": "u1"}, headers=headers, timeout=300)
        return answer.status_code

    proxied = {"max_connections_per_address": 2, "trusted_proxies": ("127.0.0.0/8",)}
    with running(home, **proxied) as router, contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(held(router, 1))  # a proxy may hold any number
        # The client of the second made up the address before its own; what the proxy adds is the last one.
        for forwarded in ("192.0.2.7", "198.51.100.1, 192.0.2.7, 127.0.0.9"):
            stack.enter_context(held(router, 1, half_a_body(forwarded)))
        until(lambda: ask("192.0.2.7") == 429)
        assert (ask("192.0.2.8"), ask("192.0.2.7, 192.0.2.8")) == (200, 200)
        stack.close()
        until(lambda: ask("192.0.2.7") == 200)
    with running(home, max_connections_per_address=2, max_requests_per_s=1) as router:  # no proxy is trusted
        assert [ask("192.0.2.7"), ask("192.0.2.8")] == [200, 429]


@pytest.mark.slow
def test_once_all_places_are_taken_the_address_that_holds_most_makes_room(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 12)
    few_each = {"max_connections_per_address": 6, "headers_timeout_s": 60}
    with running(home, **few_each) as router, contextlib.ExitStack() as stack:
        few = stack.enter_context(held(router, 1, source="127.0.0.9"))
        for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
            stack.enter_context(held(router, 6, source=source))
        for _ in range(10):
            assert router.get("health").status_code == 200  # a new connection each
        few[0].settimeout(0.1)
        with pytest.raises(TimeoutError):  # it is still open
            few[0].recv(1)


def test_a_client_cannot_say_for_whom_a_request_is() -> None:
    held = Connections(RouterParams(trusted_proxies=("10.0.0.1", "192.168.0.0/16")))

    def forwarded(*values: bytes) -> str:
        return held.forwarded_for([(b"host", b"x"), *((b"x-forwarded-for", value) for value in values)])

    assert forwarded(b"1.2.3.4, 5.6.7.8, 192.168.3.3") == "5.6.7.8"
    assert forwarded(b"1.2.3.4", b" 5.6.7.8 ,10.0.0.1") == "5.6.7.8"
    assert forwarded(b"1.2.3.4, 5.6.7.8:4711, 10.0.0.1:80") == "5.6.7.8"
    assert forwarded(b"[2001:db8::7]:4711") == forwarded(b"2001:db8::7") == "2001:db8::7"
    assert [forwarded(), forwarded(b""), forwarded(b"10.0.0.1")] == ["", "", ""]
    assert [held.is_proxy(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2", "")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_proxy_that_is_no_address_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValidationError, match=r"proxy\.example is not an address or a network; write one such"
    ):
        RouterParams(trusted_proxies=("proxy.example",))
