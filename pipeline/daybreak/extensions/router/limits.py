"""Limits what a client may ask of a router: bytes per request, requests per second, and only with the token.

This is plain ASGI around the app, since it handles every request. A token bucket per client holds one
second's requests and refills at that rate; the buckets of the most recent clients are kept. An IPv6 address
stands for its /64, since a single host has that many, or for the IPv4 address that it carries. The buckets
are asked before anything else is done. /health and /metrics have buckets of their own, so that monitoring
goes on beside a client that sends too much; /health needs no token, so that monitoring works without one.
"""

import base64
import functools
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from ipaddress import IPv4Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from fastapi import HTTPException

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

MAX_CLIENTS = 10_000
NAT64 = IPv6Network("64:ff9b::/96")  # the IPv4 Internet in networks of IPv6 alone (RFC 6052)
MONITORED = ("/health", "/metrics")


@functools.lru_cache(4096)
def address_of(host: str) -> str:
    """Returns the address that a host counts for; the beginning of a text that is not an address.

    >>> address_of("192.0.2.7"), address_of("::ffff:192.0.2.7"), address_of("2001:db8::5:7")
    ('192.0.2.7', '192.0.2.7', '2001:db8::/64')
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host[:100]
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    if address in NAT64:
        return str(IPv4Address(int(address) & 0xFFFFFFFF))
    return str(ip_network((int(address) >> 64 << 64, 64)))


class Buckets:
    """Token buckets, one per client; a rate of 0 requests per second means no limit."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._size, self._clock = per_s, max(per_s, 1.0), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> bool:
        """Takes a token of the client; returns whether there was one."""
        if not self._per_s:
            return True
        now = self._clock()
        left, then = self._left.pop(client, (self._size, now))
        left = min(self._size, left + (now - then) * self._per_s)
        granted = left >= 1
        self._left[client] = left - granted, now
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return granted


class RequestLimiter:
    """Passes requests within the limits on to the app, and answers the others with an error."""

    def __init__(
        self,
        app: App,
        *,
        max_body_bytes: int,
        max_requests_per_s: float,
        token: str,
        browser: bool = False,
        names: Collection[str] = (),
    ) -> None:
        """`browser`: people look at it, whose browsers send the token as the password of a login.

        Not where requests change something: a browser adds its password to those that other pages make.
        `names` are those by which it may be asked, also by pages in a browser; any if there are none.
        """
        self._names = {*names}
        self._stranger = functools.lru_cache(64)(self._stranger_in)  # headers of at most 64 kB each
        self.app, self._max_body_bytes, self._browser = app, max_body_bytes, browser
        self._buckets, self._monitoring = Buckets(max_requests_per_s), Buckets(max_requests_per_s)
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request, or one message of the server's own."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not await self.admits(scope, send):
            return
        headers = dict(scope["headers"])
        if not headers.get(b"content-length", b"0").isdigit():
            await refuse(send, 400, "content-length is not a number; send one")
            return
        limit, size = self._max_body_bytes, int(headers.get(b"content-length", b"0"))
        if size > limit:
            await refuse(send, 413, f"the body has {size:,} bytes, {limit:,} are allowed; send less")
            return

        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > limit:
                raise HTTPException(413, f"the body has more than {limit:,} bytes; send less")
            return message

        await self.app(scope, counted, send)

    async def admits(self, scope: Message, send: Send) -> bool:
        """Returns whether a caller may ask for this path now; refuses one who may not."""
        buckets = self._monitoring if scope["path"] in MONITORED else self._buckets
        if not buckets.take(address_of((scope["client"] or ("",))[0])):
            await refuse(send, 429, "too many requests a second; retry in a second")
        elif refusal := self._refusal(dict(scope["headers"]), needs_token=scope["path"] != "/health"):
            login = 'Basic realm="Daybreak", charset="UTF-8"' if self._browser else "Bearer"
            await refuse(send, *refusal, login=login)
        else:
            return True
        return False

    def _refusal(self, headers: dict[bytes, bytes], *, needs_token: bool) -> tuple[int, str] | None:
        """Returns the status and the reason for a caller who may not ask; None for one who may."""
        given = headers.get(b"host", b""), headers.get(b"origin", b"")
        if self._names and (stranger := self._stranger(*given)):
            why = (
                f"{stranger} is no name of this machine; ask http://127.0.0.1, set $DAYBREAK_TOKEN, or name "
                f"a proxy in serving.trusted_proxies"
            )
            return 403, why
        if needs_token and not self._trusts(headers):
            return 401, "the token is missing or wrong; send Authorization: Bearer TOKEN"
        return None

    def _stranger_in(self, host: bytes, origin: bytes) -> str:
        """Returns the host or the page that asks by another name; "" where none does.

        A page of any site may send requests to this machine, and may give the machine a name of its own.
        """
        for given, before in ((host, b"//"), (origin, b"")):
            if given and _name_in(before + given) not in self._names:
                return f"{given.decode('latin1')!r:.80}"
        return ""

    def _trusts(self, headers: dict[bytes, bytes]) -> bool:
        given = headers.get(b"authorization", b"")
        if self._browser and given.lower().startswith(b"basic "):
            given = _as_token(given)
        return not self._expected or hmac.compare_digest(given, self._expected)


def _name_in(address: bytes) -> str:
    """Returns the host in an address, "" where it has none."""
    try:
        return (urlsplit(address.decode("latin1")).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _as_token(login: bytes) -> bytes:
    """Returns the password of a browser's login as it would be sent as a token, whatever the name."""
    try:
        _, _, password = base64.b64decode(login[len(b"basic ") :].strip(), validate=True).partition(b":")
    except ValueError:
        return b""
    return b"Bearer " + password


async def refuse(send: Send, status: int, why: str, *, close: bool = False, login: str = "Bearer") -> None:
    """Sends an error of this status, with the reason as JSON; the connection ends with it if `close`.

    `login` is how a client without a token may show one.
    """
    body = json.dumps({"error": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", login.encode()))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
