import asyncio

from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.router import limits
from daybreak.extensions.router.limits import Buckets, Message, Receive, RequestLimiter, Send, address_of


@given(st.floats(1, 50), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_nobody_is_let_through_more_often_than_the_rate_allows(per_s: float, waits: list[float]) -> None:
    now = [0.0]
    buckets = Buckets(per_s, clock=lambda: now[0])
    granted = 0
    for wait in waits:
        now[0] += wait
        granted += buckets.take("one")
        assert granted <= per_s * (now[0] + 1) + 1e-6
    now[0] += 1.001  # floats round
    assert buckets.take("one")


def test_clients_do_not_hold_up_each_other() -> None:
    buckets = Buckets(1, clock=lambda: 0.0)
    assert [buckets.take(client) for client in ("a", "a", "b", "b")] == [True, False, True, False]


def test_no_limit_lets_everybody_through() -> None:
    buckets = Buckets(0, clock=lambda: 0.0)
    assert all(buckets.take("one") for _ in range(100))


def test_only_the_newest_clients_are_remembered() -> None:
    buckets = Buckets(1, clock=lambda: 0.0)
    for number in range(limits.MAX_CLIENTS + 5):
        buckets.take(str(number))
    assert len(buckets._left) == limits.MAX_CLIENTS
    assert buckets.take("0")
    assert not buckets.take(str(limits.MAX_CLIENTS))


def test_addresses_of_one_host_are_one() -> None:
    assert address_of("2001:db8::5:7") == address_of("2001:db8::1") == "2001:db8::/64"
    assert address_of("64:ff9b::c000:207") == "192.0.2.7" != address_of("64:ff9b::c000:208")
    assert address_of("::ffff:192.0.2.7") == address_of("192.0.2.7") == "192.0.2.7"
    assert address_of("x" * 200) == "x" * 100


def test_a_host_with_many_addresses_has_one_rate() -> None:
    async def app(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})

    limited = RequestLimiter(app, max_body_bytes=1, max_requests_per_s=1e-9, token="")
    statuses = []

    async def receive() -> Message:
        raise AssertionError("nothing reads the body")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def ask(*hosts: str) -> None:
        for host in hosts:
            scope = {"type": "http", "path": "/", "client": (host, 1), "headers": []}
            await limited(scope, receive, send)

    asyncio.run(ask("2001:db8::5:7", "2001:db8::1", "2001:db8:0:1::1", "192.0.2.7", "::ffff:192.0.2.7"))
    assert statuses == [200, 429, 200, 200, 429]
