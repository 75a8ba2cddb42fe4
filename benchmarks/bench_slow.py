"""Does a router answer others while one address holds thousands of connections that never end their headers?

    attack     CONNECTIONS half-open connections from 127.0.0.2, opened again as the router closes them, while
               REQUESTS come from 127.0.0.1, each on a connection of its own: those that were refused or not
               answered with 200, and their P99
    proxied    the same by way of a proxy that the router trusts: bodies that never end, forwarded for one
               address, while the requests are forwarded for others
    watched    /health and /metrics, asked all the while from a third address

Target: nobody is refused, and P99 stays below serving.timeout_s, by which a user has an answer.
"""

import contextlib
import http.client
import itertools
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import frame
from benchmarks.bench_serving import USERS, greet, make_home, router

CONNECTIONS = 200 if frame.QUICK else 2000
REQUESTS = 1000 if frame.QUICK else 10_000
CLIENTS = 8
ATTACKER, MONITOR = "127.0.0.2", "127.0.0.3"
TIMEOUT_S = 1.0  # serving.timeout_s, as it is by default
HALF = b"POST /recommend HTTP/1.1\r\nHost: router\r\nX-"
HALF_BODY = (
    b"POST /recommend HTTP/1.1\r\nHost: router\r\nX-Forwarded-For: 192.0.2.7\r\nContent-Length: 99\r\n\r\n{"
)
SETTINGS = f"timeout_s: {TIMEOUT_S}, max_requests_per_s: 0"


def main() -> None:
    """Attack both routers, and hold what others met against the targets."""
    figures: dict[str, float] = {}
    targets: dict[str, frame.Target] = {}
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        home = make_home(Path(name))
        with router(home, f"serving: {{{SETTINGS}}}") as url:
            greet(url)
            figures["quiet: P99 s"] = ask_all(url, forwarded="")[1]
            measure(figures, targets, "attack", url, half=HALF, source=ATTACKER, forwarded="")
        with router(home, f"serving: {{{SETTINGS}, trusted_proxies: [{ATTACKER}, 127.0.0.1]}}") as url:
            greet(url)
            measure(
                figures, targets, "proxied", url, half=HALF_BODY, source=ATTACKER, forwarded="198.51.100."
            )
    frame.finish("slow", figures, targets)


def measure(
    figures: dict[str, float],
    targets: dict[str, frame.Target],
    name: str,
    url: str,
    *,
    half: bytes,
    source: str,
    forwarded: str,
) -> None:
    """Ask under attack; adds the figures and their targets."""
    with attacked(url, half=half, source=source) as held, watched(url) as seen:
        refused, p99_s = ask_all(url, forwarded=forwarded)
    measured = {
        "refused": float(refused),
        "P99 s": p99_s,
        "unwatched": float(seen.count(0)),
        "opened": float(held[-1]),
    }
    figures |= {f"{name}: {key}": value for key, value in measured.items()}
    targets |= {
        f"{name}: refused": ("==", 0),
        f"{name}: P99 s": ("<=", TIMEOUT_S),
        f"{name}: unwatched": ("==", 0),
        f"{name}: opened": (">=", CONNECTIONS),
    }
    print(f"{name}: {sum(seen):,} looks of a monitor, {held[-1]:,} connections were opened")


def place_of(url: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


@contextlib.contextmanager
def attacked(url: str, *, half: bytes, source: str) -> Iterator[list[int]]:
    """Holds CONNECTIONS half-open connections; yields the number opened so far."""
    ended, held, opened = threading.Event(), [], [0]

    def open_one() -> None:
        one = socket.create_connection(place_of(url), timeout=30, source_address=(source, 0))
        held.append(one)
        opened.append(opened[-1] + 1)
        with contextlib.suppress(OSError):  # the router may have closed it again
            one.sendall(half)

    def go_on() -> None:
        while not ended.wait(0.01):
            held.pop(0).close()
            open_one()

    for _ in range(CONNECTIONS):
        open_one()
    try:
        with _beside(go_on, ended):
            yield opened
    finally:
        for one in held:
            one.close()


@contextlib.contextmanager
def watched(url: str) -> Iterator[list[int]]:
    """Asks for /health and /metrics from the address of a monitor; yields 1 for an answer of 200, else 0."""
    ended, seen = threading.Event(), [1]

    def look() -> None:
        while not ended.wait(0.1):
            for path in ("/health", "/metrics"):
                seen.append(int(asked(url, "GET", path, source=MONITOR) == 200))

    with _beside(look, ended):
        yield seen


@contextlib.contextmanager
def _beside(work: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Works in a thread of its own until the end, which it is told by the event."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def asked(
    url: str,
    method: str,
    path: str,
    *,
    body: str | None = None,
    forwarded: str = "",
    source: str = "127.0.0.1",
) -> int:
    """Status of a request on a connection of its own; 0 where there is none."""
    connection = http.client.HTTPConnection(*place_of(url), timeout=30, source_address=(source, 0))
    try:
        headers = {"X-Forwarded-For": forwarded} if forwarded else {}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
    return answer.status


def ask_all(url: str, *, forwarded: str) -> tuple[int, float]:
    """How many of REQUESTS were not answered with 200, and the P99 of all in seconds."""
    numbers, times, refused = itertools.count(), [], []

    def ask(_: int) -> None:
        while (number := next(numbers)) < REQUESTS:
            body = json.dumps({"user": str(number % USERS)})
            client = f"{forwarded}{number % 250}" if forwarded else ""
            began = time.perf_counter()
            if asked(url, "POST", "/recommend", body=body, forwarded=client) != 200:
                refused.append(number)
            times.append(time.perf_counter() - began)

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(ask, range(CLIENTS)))
    return len(refused), statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
