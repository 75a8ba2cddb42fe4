"""Holds the connections of a router to limits, so that one address cannot take it away from the others.

uvicorn has no limit for the time that headers take and none for an address, so this is its own protocol of
httptools with four more questions:

    when a connection comes      does its address hold `max_connections_per_address`, or do all together hold
                                 MAX_CONNECTIONS? Then a waiting connection is closed to make room: of that
                                 address, or of the address that holds most
    when headers are complete    who is the client? A proxy of `trusted_proxies` may hold any number of
                                 connections; a request that it forwards counts for the address in
                                 X-Forwarded-For until it is answered
    at each read                 have headers, trailers or what is between pieces of a body more bytes than
                                 they may, or do more requests wait than MAX_PIPELINED? Then the connection
                                 is closed
    each SWEEP_S                 have headers, or a body that is answered already, taken
                                 `headers_timeout_s`, or a request and its answer REQUEST_S? Then the
                                 connection is closed
"""

import asyncio
import functools
import json
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Any, NoReturn, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from daybreak.extensions.router.limits import Message, Receive, Send, address_of, refuse
from daybreak.extensions.router.settings import RouterParams

MAX_CONNECTIONS = 1000
MAX_HEADER_BYTES = 65_536  # of a request, with its first line; of trailers; between two pieces of a body
MAX_HEADERS, MAX_PIPELINED = 100, 16  # of a request; requests of a connection that wait for an answer
REQUEST_S = 60.0  # from a request's first byte until its answer is sent
SWEEP_S = 1.0
TOO_MANY = "this address has too many requests open; wait for their answers, or raise \
serving.max_connections_per_address"


class Connections:
    """Counts the connections of a router by address; used by its event loop alone."""

    def __init__(self, params: RouterParams, *, max_connections: int = MAX_CONNECTIONS) -> None:
        self.most, self.max_connections = params.max_connections_per_address, max_connections
        self.headers_timeout_s = params.headers_timeout_s
        self._proxies = tuple(ip_network(each) for each in params.trusted_proxies)
        self._of: dict[str, set[Connection]] = {}
        self._sweeps = False
        self.is_proxy = functools.lru_cache(4096)(self._is_proxy)

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in proxies for proxies in self._proxies)

    def forwarded_for(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Returns the last address in X-Forwarded-For that is no trusted proxy's; "" where there is none.

        Earlier addresses in the header come from the client and may be made up.
        """
        values = [value.decode("latin1") for name, value in headers if name == b"x-forwarded-for"]
        hosts = [_without_port(host.strip()) for host in ",".join(values).split(",") if host.strip()]
        return next((host for host in reversed(hosts) if not self.is_proxy(host)), "")

    def admit(self, connection: "Connection", address: str) -> bool:
        """Counts a connection for the address, maybe in the place of another; returns whether it stays."""
        held = self._of.get(address, set())
        if len(held) >= self.most and not self.is_proxy(address):
            oldest = min(filter(Connection.waits, held), key=Connection.began_at, default=None)
        elif sum(map(len, self._of.values())) >= self.max_connections:
            fullest = max(self._of.values(), key=len)
            oldest = min(fullest, key=lambda one: (not one.waits(), one.began_at()))
        else:
            self._of.setdefault(address, set()).add(connection)
            self._start_to_sweep(connection.loop)
            return True
        if oldest is None:
            return False
        oldest.abort()
        self._of.setdefault(address, set()).add(connection)
        return True

    def release(self, connection: "Connection", address: str) -> None:
        """Counts the connection for that address no longer."""
        held = self._of.get(address, set())
        held.discard(connection)
        if not held:
            self._of.pop(address, None)

    def num_of(self, address: str) -> int:
        """Returns how many connections the address holds."""
        return len(self._of.get(address, ()))

    def _start_to_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._sweeps:
            self._sweeps = True
            loop.call_later(SWEEP_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Closes the connections that take too long; comes again while there are any."""
        self._sweeps = False
        for connection in [one for held in self._of.values() for one in held]:
            connection.check(loop.time())
        if self._of:
            self._start_to_sweep(loop)


class Connection(HttpToolsProtocol):
    """A connection of uvicorn that counts for the client's address and knows how long it has waited."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._connections, self._app = connections, self.app
        self._address = self._peer = ""
        self._since: float | None = None  # when the present wait began; None while idle
        self._has_headers = self._takes_headers = False
        self._num_bytes = 0  # since headers began or were complete, or the last piece of a body
        self._why = ""  # of what the parser was stopped for
        self._closing_since: float | None = None

    def waits(self) -> bool:
        """Returns whether nothing is being answered: it is idle, or its client has yet to send something."""
        return not self._has_headers or self.cycle is None or bool(self.cycle.response_complete)

    def began_at(self) -> float:
        """Returns when it began to wait; an idle one waits the least."""
        return self.loop.time() if self._since is None else self._since

    def abort(self) -> None:
        """Closes the connection at once, whatever is still to be sent."""
        self._connections.release(self, self._address)
        self.transport.abort()

    def check(self, now: float) -> None:
        """Closes the connection if it has taken longer than it may."""
        limit_s = self._connections.headers_timeout_s if self.waits() else REQUEST_S
        if self.transport.is_closing():  # its client does not read what was answered
            self._closing_since = self._closing_since or now
            if now - self._closing_since > self._connections.headers_timeout_s:
                self.abort()
        elif self._since is not None and now - self._since > limit_s:
            if self._has_headers:
                self.abort()
            else:
                self._refuse(408, f"headers took more than {limit_s:g} s; send them at once")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admits the connection, or answers that its address has too many."""
        super().connection_made(transport)
        self._since = self.loop.time()
        host = self.client[0] if self.client else ""
        self._peer = self._address = host if self._connections.is_proxy(host) else address_of(host)
        if not self._connections.admit(self, self._address):
            self._refuse(429, TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts it no longer."""
        super().connection_lost(exc)
        self._connections.release(self, self._address)

    def data_received(self, data: bytes) -> None:
        """Reads on, unless what is no body has become too large."""
        if self._since is None:
            self._since = self.loop.time()
        self._num_bytes += len(data)
        super().data_received(data)
        if self._num_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the headers have more than {MAX_HEADER_BYTES:,} bytes; send less")

    def on_message_begin(self) -> None:
        """Begins a request."""
        super().on_message_begin()
        self._takes_headers = True
        if self.cycle is None or self.cycle.response_complete:
            self._has_headers, self._since = False, self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keeps a header, and no trailer, which nothing here reads."""
        if self._takes_headers:
            if len(self.headers) >= MAX_HEADERS:
                self._stop(f"a request has more than {MAX_HEADERS} headers; send fewer")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hands the request to the app, or answers that its address has too many open."""
        if len(self.pipeline) >= MAX_PIPELINED:
            self._stop(f"more than {MAX_PIPELINED} requests wait for an answer; wait for those before")
        self._takes_headers, self._has_headers, self._num_bytes, self.app = False, True, 0, self._app
        if self._connections.is_proxy(self._peer) and (
            host := self._connections.forwarded_for(self.scope["headers"])
        ):
            self.scope["client"] = (host, 0)
            self._move(address_of(host))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Takes a piece of a body, whose bytes the app counts."""
        self._num_bytes = 0
        super().on_body(body)

    def _stop(self, why: str) -> NoReturn:
        """Stops the parser, which then asks for the answer to a bad request."""
        self._why = why
        raise ValueError(why)

    def send_400_response(self, msg: str) -> None:
        """Answers a request that cannot be read, or that was stopped."""
        self._refuse(431 if self._why else 400, self._why or f"{msg.rstrip('.')}; send HTTP/1.1")

    def on_message_complete(self) -> None:
        """Is idle, if the request was answered before its end."""
        super().on_message_complete()
        if self.cycle is not None and self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        """Is idle, or goes on with the next request that has come."""
        self._since = self.loop.time()  # for the rest of a body, or the next request that has come
        if not self.pipeline and not self.cycle.more_body:
            self._rest()
        super().on_response_complete()

    def _rest(self) -> None:
        self._has_headers, self._since = False, None
        if self._address != self._peer:
            self._move(self._peer)

    def _move(self, address: str) -> None:
        """Counts the connection for another address; there are too many of it where that cannot be."""
        if address == self._address:
            return
        self._connections.release(self, self._address)
        if self._connections.num_of(address) < self._connections.most or address == self._peer:
            self._address = address
        else:
            self._address, self.app = self._peer, cast(Any, too_many)
        self._connections.admit(self, self._address)

    def _refuse(self, status: int, why: str) -> None:
        """Answers what no app was asked, and closes the connection."""
        body = json.dumps({"error": why}).encode()
        head = f"HTTP/1.1 {status} \r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.transport.close()


def _without_port(host: str) -> str:
    """Returns a host without the port that some proxies add.

    >>> _without_port("192.0.2.7:4711"), _without_port("[2001:db8::7]:4711"), _without_port("2001:db8::7")
    ('192.0.2.7', '2001:db8::7', '2001:db8::7')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") == 1 else host


async def too_many(scope: Message, receive: Receive, send: Send) -> None:
    """Answers a request of an address that has too many open."""
    await refuse(send, 429, TOO_MANY, close=True)
