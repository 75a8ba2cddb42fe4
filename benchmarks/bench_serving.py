"""How fast does the router answer, and does it lose anything? By wrk, against a bare FastAPI app.

    speed      requests/s and P99 at 1, 8 and 64 connections, of users whose answers are kept, every exposure
               logged; the bare app answers a constant. In turns, the median of the rounds.
    computed   the same with no answer kept: each one is computed by the model
    swaps      versions are swapped under 64 connections: requests that were not answered with 200
    killed     SIGKILL while 8 clients report outcomes, then restarted: acknowledged outcomes that are gone
    before     with BEFORE=COMMIT, that alone: our router and that of an earlier commit, in turns, each over a
               home of its own code's; how long each takes until it serves, and to load a version;
               and how much of its time a router waits for a core

Targets: a bare app is the least that any FastAPI service costs, and an answer is also assigned, counted and
logged; half of its requests/s and twice its P99 say that all of this costs no more than the web server does.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import psutil
import requests
import torch
from safetensors.torch import save_file

from benchmarks import frame
from daybreak.contract import records
from daybreak.examples.shop.recommender import Recommender
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from tests.conftest import make_repository
from tests.examples.arrays import make_shop, write
from tests.extensions.router.homes import add_version
from tests.toy.nights import PARAMS

CONNECTIONS = (1, 8, 64)
ROUNDS = 1 if frame.QUICK else 5
ROUND_S = 2 if frame.QUICK else 4
SWAPS = 4 if frame.QUICK else 12
KILLS = 1 if frame.QUICK else 5
ACKNOWLEDGED = 300 if frame.QUICK else 1000  # outcomes before each kill
KINDS = {  # of figures beside an earlier router
    "per_s": "requests/s",
    "p50_ms": "P50 ms",
    "p99_ms": "P99 ms",
    "waited": "share of time waiting for a core",
}
USERS, ITEMS, LINES = 3000, 2000, 300_000
WORKLOAD = "daybreak.examples.shop.recommender:Recommender"
BEFORE = os.environ.get("BEFORE", "")
THEIRS = """
import sys, time; from pathlib import Path; from {module} import greet, make_home, router
home = make_home(Path(sys.argv[1]))
began = time.monotonic()
with router(home) as url:
    took_s = time.monotonic() - began
    greet(url)
    print(url, took_s, flush=True)
    sys.stdin.read()
"""
# Starts a version's process at each line that it reads, and says how long that took.
STARTS = """
import os, sys, time; from pathlib import Path
if Path("benchmarks").exists():
    from daybreak.extensions.router import loading; from daybreak.storage import mlflow_client
    from daybreak.storage.home import Home; home = Home.here(); session = mlflow_client.session(home)
else:  # the older package; the newer one is installed
    from importlib import import_module; loading = import_module("pipeline.serving.loading")
    mlflow_client = import_module("pipeline.storage.mlflow_client")
    home = Path(os.environ["PIPELINE_HOME"]); session = mlflow_client.session()
class Timed(loading.VersionProcess):
    def __init__(self, *given, **named):
        began = time.monotonic()
        super().__init__(*given, **named)
        print("started", time.monotonic() - began, flush=True)
loading.VersionProcess = Timed
with session as client:
    name = client.search_registered_models()[0].name
    loader = loading.VersionLoader(name, home=home, top=20, keep=10, answer_s=60)
    for _ in sys.stdin:
        loader.load(client, 1, arrays=None).close()
"""
BARE = """
from fastapi import FastAPI
app = FastAPI()
@app.post("/recommend")
async def recommend() -> dict[str, str]:
    return {"answer": "the same for all"}
"""
ASK = """
function request()
  return wrk.format("POST", "/recommend", {["content-type"] = "application/json"},
                    '{"user":"' .. math.random(0, %d) .. '"}')
end
"""


def main() -> None:
    if shutil.which("wrk") is None:
        print(
            "bench_serving needs the load generator wrk; install it (apt-get install wrk) and run this again"
        )
        print(json.dumps({"name": "serving", "figures": {}, "targets": {}, "ok": False}))
        sys.exit(1)
    figures: dict[str, float] = {}
    if BEFORE:
        since(figures)
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name, contextlib.ExitStack() as servers:
        folder = Path(name)
        home = make_home(folder)
        (folder / "ask.lua").write_text(ASK % (USERS - 1))
        (folder / "bare.py").write_text(BARE)
        bare = servers.enter_context(served(folder, "uvicorn", "bare:app", "--no-access-log"))
        with router(home) as url:
            greet(url)
            speed(figures, bare, url, folder)
            figures["swaps"], figures["lost_in_swaps"] = swapped(url, home, folder)
        with router(home, "serving: {max_requests_per_s: 0, keep_users: 1}") as url:
            for connections in CONNECTIONS:
                loaded = load(url, connections, ROUND_S, folder)
                figures[f"computed_per_s_{connections}"] = loaded["per_s"]
                figures[f"computed_p99_ms_{connections}"] = loaded["p99_ms"]
        acknowledged, lost = killed(home)
        figures |= {"acknowledged": acknowledged, "acknowledged_and_lost": lost}
    targets: dict[str, frame.Target] = {
        **{f"speed_ratio_{connections}": (">=", 0.5) for connections in CONNECTIONS},
        **{f"p99_ratio_{connections}": ("<=", 2.0) for connections in CONNECTIONS},
        "lost_in_swaps": ("==", 0),
        "swaps": (">=", SWAPS),
        "acknowledged_and_lost": ("==", 0),
    }
    frame.finish("serving", figures, targets)


def since(figures: dict[str, float]) -> NoReturn:
    """Compares our router with that of `BEFORE`, and ends."""
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name, contextlib.ExitStack() as routers:
        folder, theirs = Path(name), Path(name) / "checkout"
        (folder / "ask.lua").write_text(ASK % (USERS - 1))
        subprocess.run(
            ["git", "worktree", "add", "--detach", str(theirs), BEFORE], cwd=frame.ROOT, check=True
        )
        routers.callback(
            subprocess.run, ["git", "worktree", "remove", "--force", str(theirs)], cwd=frame.ROOT, check=True
        )
        urls = {}
        roots = {"before": theirs, "now": frame.ROOT}
        for who, root in roots.items():
            urls[who], figures[f"{who}, until it serves s"] = routers.enter_context(
                router_of(root, folder / who)
            )
        for connections in CONNECTIONS:
            rounds: dict[str, list[dict[str, float]]] = {who: [] for who in urls}
            for _ in range(ROUNDS):
                for who, url in urls.items():
                    before = time_of(url)
                    loaded = load(url, connections, ROUND_S, folder)
                    ran, waited = (now - then for now, then in zip(time_of(url), before, strict=True))
                    rounds[who].append(loaded | {"waited": waited / (ran + waited)})
            for key, words in KINDS.items():
                both = {who: statistics.median(one[key] for one in rounds[who]) for who in urls}
                figures |= {f"{who}, {words}, {connections} connections": each for who, each in both.items()}
                if key != "waited":  # which may be nothing
                    ratio = both["now"] / both["before"]
                    figures[f"now over before, {words}, {connections} connections"] = ratio
        with contextlib.ExitStack() as starters:
            starts = {
                who: starters.enter_context(starts_of(root, folder / who)) for who, root in roots.items()
            }
            took = {who: list[float]() for who in roots}
            for _ in range(ROUNDS):
                for who, start in starts.items():
                    took[who].append(start())
        both = {who: statistics.median(each) for who, each in took.items()}
        figures |= {f"{who}, start of a version's process s": each for who, each in both.items()}
        figures["now over before, start of a version's process"] = both["now"] / both["before"]
    targets: dict[str, frame.Target] = {}
    for connections in CONNECTIONS:
        targets[f"now over before, requests/s, {connections} connections"] = (">=", 0.95)
        targets[f"now over before, P99 ms, {connections} connections"] = ("<=", 1 / 0.95)
    frame.finish("serving", figures, targets)


def time_of(url: str) -> tuple[float, float]:
    """Seconds that the threads of a server have run, and that they have waited for a core, by Linux."""
    port = int(url.rpartition(":")[2])
    (pid,) = {one.pid for one in psutil.net_connections("tcp") if one.laddr.port == port and not one.raddr}
    seconds = [0.0, 0.0]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            ran, waited, _ = map(int, (thread / "schedstat").read_text().split())
            seconds = [seconds[0] + ran / 1e9, seconds[1] + waited / 1e9]
    return seconds[0], seconds[1]


@contextlib.contextmanager
def router_of(root: Path, folder: Path) -> Iterator[tuple[str, float]]:
    """The router of a checkout, by its own bench and code: its address, and the seconds until it served."""
    module = f"{'tests.' if is_older(root) else ''}benchmarks.bench_serving"
    folder.mkdir()
    with of_checkout(root, THEIRS.format(module=module), folder) as process:
        assert process.stdout
        line = next(line for line in process.stdout if line.startswith("http://"))
        yield line.split()[0], float(line.split()[1])


@contextlib.contextmanager
def starts_of(root: Path, folder: Path) -> Iterator[Callable[[], float]]:
    """What starts the process of a version of that router's home once, and returns the seconds it took."""
    with of_checkout(root, STARTS, folder) as process:

        def start() -> float:
            assert process.stdin and process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            return float(next(line for line in process.stdout if line.startswith("started")).split()[1])

        yield start


def is_older(root: Path) -> bool:
    """Whether the checkout has the package `pipeline`, whose rooms would hide standard modules."""
    return not (root / "benchmarks").exists()


@contextlib.contextmanager
def of_checkout(root: Path, code: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs a text by the code of a checkout, until its input ends."""
    home = str(folder / "home")
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root) + f"{os.pathsep}{root / 'pipeline'}" * (not is_older(root)),
            "DAYBREAK_HOME": home,
            "PIPELINE_HOME": home,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate()  # it ends with its input


def make_home(folder: Path) -> Path:
    """A home with two promoted versions of the default workload, over the arrays of a shop."""
    for name in ("MLFLOW_TRACKING_URI", "DAYBREAK_LOG", "DAYBREAK_TOKEN"):
        os.environ.pop(name, None)
    os.environ["DAYBREAK_HOME"] = str(folder / "store")
    mlflow_client.create(Home.here())
    os.environ.pop("MLFLOW_TRACKING_URI", None)  # which MLflow sets
    os.environ["DAYBREAK_HOME"] = str(folder / "home")
    home = make_repository(folder / "home", store=folder / "store" / "var" / "mlflow.db")
    (home / "params.yaml").write_text(PARAMS.replace("toy:Toy", WORKLOAD))
    shop = make_shop(num_days=300, num_customers=USERS, num_items=ITEMS, num_lines=LINES)

    def alter(night: Path) -> str:
        shutil.rmtree(night / "data" / "arrays")
        write(shop, night / "data" / "arrays")
        shutil.copy(home / "params.yaml", night / "params.yaml")
        model = night / records.RUN / "model"
        torch.manual_seed(int(night.name[-2:]))
        save_file(Recommender().model().state_dict(), model / "model.safetensors")
        facts = json.loads((model / "model.json").read_text()) | {"workload": WORKLOAD, "arguments": {}}
        (model / "model.json").write_text(json.dumps(facts))
        return records.digest(model)

    for number in range(2):
        add_version(home, number, alter=alter)
    os.chdir(frame.ROOT)
    return home


@contextlib.contextmanager
def served(folder: Path, *words: str, **environment: str) -> Iterator[str]:
    """A server, as `python -m WORDS --port PORT`, once it listens; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = (folder / f"{port}.log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", *words, "--port", str(port)],
        cwd=folder,
        stdout=log,
        stderr=log,
        env={**os.environ, "PYTHONPATH": str(frame.ROOT), **environment},
    )
    url = f"http://127.0.0.1:{port}"
    PROCESSES[url] = process
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield url
        process.send_signal(signal.SIGINT)
        if process.wait(30) not in (0, -signal.SIGKILL, -signal.SIGINT):
            raise RuntimeError((folder / f"{port}.log").read_text()[-2000:])
    finally:
        process.kill()
        process.wait()
        log.close()


PROCESSES: dict[str, subprocess.Popen[bytes]] = {}


@contextlib.contextmanager
def router(home: Path, section: str = "serving: {max_requests_per_s: 0}") -> Iterator[str]:
    """The router of that home, once it is ready; its address."""
    kept = [
        line for line in (home / "params.yaml").read_text().splitlines() if not line.startswith("serving")
    ]
    (home / "params.yaml").write_text("\n".join([*kept, section, ""]))
    with served(home.parent, "daybreak", "serve", DAYBREAK_HOME=str(home)) as url:
        for _ in range(600):
            if requests.get(f"{url}/health", timeout=30).status_code == 200:
                break
            time.sleep(0.1)
        yield url


def greet(url: str) -> None:
    """Ask for every user once, so that answers are kept."""

    def ask(first: int) -> None:
        with requests.Session() as session:
            for number in range(first, USERS, 8):
                session.post(f"{url}/recommend", json={"user": str(number)}, timeout=30).raise_for_status()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))


def load(url: str, connections: int, seconds: float, folder: Path) -> dict[str, float]:
    """Requests/s, P99 in ms and requests that were not answered with 200, by wrk."""
    words = "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(folder / "ask.lua"), url
    output = subprocess.run(["wrk", *words], capture_output=True, text=True, check=True).stdout
    shares = dict(re.findall(r"(50|99)%\s+([\d.]+(?:us|ms|s))\b", output))
    errors = re.findall(r"Non-2xx or 3xx responses: (\d+)", output)
    sockets = re.findall(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", output)
    return {
        "per_s": float(re.findall(r"Requests/sec:\s+([\d.]+)", output)[0]),
        "p50_ms": milliseconds(shares["50"]),
        "p99_ms": milliseconds(shares["99"]),
        "num": float(re.findall(r"(\d+) requests in", output)[0]),
        "lost": float(sum(map(int, [*errors, *(sockets[0] if sockets else ())]))),
    }


def milliseconds(text: str) -> float:
    """A time as wrk writes it, in ms."""
    value, unit = re.findall(r"([\d.]+)(us|ms|s)", text)[0]
    return float(value) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit]


def speed(figures: dict[str, float], bare: str, url: str, folder: Path) -> None:
    """Both servers in turns."""
    rows = []
    for connections in CONNECTIONS:
        rounds: dict[str, list[dict[str, float]]] = {bare: [], url: []}
        for _ in range(ROUNDS):
            for each in (bare, url):
                rounds[each].append(load(each, connections, ROUND_S, folder))
        theirs, ours = (
            {key: statistics.median(one[key] for one in rounds[each]) for key in ("per_s", "p99_ms")}
            for each in (bare, url)
        )
        figures |= {
            f"per_s_{connections}": ours["per_s"],
            f"speed_ratio_{connections}": ours["per_s"] / theirs["per_s"],
            f"p99_ms_{connections}": ours["p99_ms"],
            f"p99_ratio_{connections}": ours["p99_ms"] / theirs["p99_ms"],
        }
        rows.append(
            {
                "connections": connections,
                "bare requests/s": theirs["per_s"],
                "requests/s": ours["per_s"],
                "bare P99 ms": theirs["p99_ms"],
                "P99 ms": ours["p99_ms"],
            }
        )
    frame.table(rows)


def swapped(url: str, home: Path, folder: Path) -> tuple[float, float]:
    """Swaps that were done under load, and requests that were not answered with 200."""
    log, done, totals = open_log(f"sqlite:///{home / 'var' / 'serving.db'}"), 0, {"lost": 0.0, "num": 1.0}
    ended = threading.Event()

    def press() -> None:
        while not ended.is_set():
            for key, value in load(url, 64, 2, folder).items():
                totals[key] = totals.get(key, 0) + value

    thread = threading.Thread(target=press)
    thread.start()
    for number in range(SWAPS):
        champion = 1 + number % 2
        log.traffic.change(lambda now, champion=champion: replace(now, champion=champion))
        if wait_for(url, champion):
            done += 1
    ended.set()
    thread.join()
    log.close()
    print(f"{done} swaps under {totals['num']:,.0f} requests")
    return float(done), totals["lost"]


def wait_for(url: str, champion: int) -> bool:
    for _ in range(300):
        if requests.get(f"{url}/health", timeout=30).json()["champion"] == champion:
            return True
        time.sleep(0.1)
    return False


def killed(home: Path) -> tuple[float, float]:
    """Outcomes acknowledged while the router was killed again and again, and those that the log has not."""
    acknowledged: dict[str, str] = {}
    for _ in range(KILLS):
        with router(home) as url:
            threads = [
                threading.Thread(target=report, args=(url, number, acknowledged)) for number in range(8)
            ]
            for thread in threads:
                thread.start()
            before = len(acknowledged)
            while len(acknowledged) < before + ACKNOWLEDGED and any(thread.is_alive() for thread in threads):
                time.sleep(0.05)
            PROCESSES[url].kill()
            for thread in threads:
                thread.join()
    log: Log = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    with router(home):
        pass
    kept = {exposure.id: exposure.taken for exposure in log.exposures.of("")}
    log.close()
    return float(len(acknowledged)), float(
        sum(kept.get(exposure) != (item,) for exposure, item in acknowledged.items())
    )


def report(url: str, number: int, acknowledged: dict[str, str]) -> None:
    """Ask and report, until nobody answers."""
    with contextlib.suppress(requests.RequestException), requests.Session() as session:
        while True:
            number = (number + 8) % USERS
            shown: dict[str, Any] = session.post(
                f"{url}/recommend", json={"user": str(number), "top": 5}, timeout=30
            ).json()
            body = {"exposure": shown["exposure"], "user": str(number), "items": shown["items"][:1]}
            if session.post(f"{url}/outcomes", json=body, timeout=30).status_code == 200:
                acknowledged[shown["exposure"]] = shown["items"][0]


if __name__ == "__main__":
    main()
