import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.router import limits
from daybreak.extensions.router.front import Front
from daybreak.extensions.router.limits import App, Buckets, Message, Receive, RequestLimiter, Send, address_of
from daybreak.extensions.router.server import own_names
from daybreak.extensions.router.settings import RouterParams


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


async def answers(scope: Message, receive: Receive, send: Send) -> None:
    """An app that answers whatever reaches it."""
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b""})


def replies(app: App, *asked: tuple[str, dict[str, str]]) -> list[tuple[int, str]]:
    """Status and reason of what the app answers to paths with headers, all from one client."""

    async def ask(path: str, headers: dict[str, str]) -> tuple[int, str]:
        sent: list[Message] = []

        async def receive() -> Message:
            raise AssertionError("nothing reads the body")

        async def send(message: Message) -> None:
            sent.append(message)

        given = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await app({"type": "http", "path": path, "client": ("127.0.0.1", 1), "headers": given}, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"] or b'{"error": ""}')["error"]

    async def all_of_them() -> list[tuple[int, str]]:
        return [await ask(path, headers) for path, headers in asked]

    return asyncio.run(all_of_them())


def limited(token: str = "", per_s: float = 0) -> RequestLimiter:
    """A limiter as `daybreak serve` makes it on loopback."""
    names = own_names("127.0.0.1", RouterParams(), token=token)
    return RequestLimiter(answers, max_body_bytes=1, max_requests_per_s=per_s, token=token, names=names)


PATHS_OF_STRANGERS = ("/health", "/metrics", "/recommend", "/docs", "/models/fraud/health")


@pytest.mark.parametrize("path", PATHS_OF_STRANGERS)
@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_no_path_answers_a_page_of_a_stranger(path: str, header: str) -> None:
    front = Front(limited(), {"fraud": limited()})
    stranger, own = {header: "http://evil.example"[7 * (header == "Host") :]}, {"Host": "127.0.0.1:8000"}
    (status, why), (own_status, _) = replies(front, (path, stranger), (path, own))
    assert (status, "evil.example' is no name of this machine" in why) == (403, True)
    assert own_status == 200


def test_what_a_front_knows_of_its_models_is_for_those_who_may_ask() -> None:
    front = Front(limited("s3cret"), {"fraud": limited("s3cret"), "shop": limited("s3cret")})
    front._faults["shop"] = "postgresql://db.internal does not answer"
    paths = ("/models/fraud/metrics", "/models/shop/metrics", "/models/nobody/metrics", "/models/shop")
    assert {status for status, _ in replies(front, *((path, {}) for path in paths))} == {401}
    shown = replies(front, *((path, {"Authorization": "Bearer s3cret"}) for path in paths))
    assert [status for status, _ in shown] == [200, 503, 404, 503]
    assert [status for status, _ in replies(front, ("/models/shop/health", {}))] == [503]  # for monitoring


def test_paths_of_no_model_have_the_same_rate() -> None:
    front = Front(limited(per_s=1e-9), {"fraud": limited()})
    asked = [(f"/models/{number}/recommend", {}) for number in range(3)]
    assert [status for status, _ in replies(front, *asked)] == [404, 429, 429]


def test_a_host_with_many_addresses_has_one_rate() -> None:
    limited = RequestLimiter(answers, max_body_bytes=1, max_requests_per_s=1e-9, token="")
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
