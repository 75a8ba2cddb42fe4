"""What grows over 1,000 nights, and over 48 hours of servers that are asked and a home that is watched?

nights   each has its folder, an object in DVC's cache, a version in MLflow and an entry of the ledger, by the
         product's own code and by the clock of its day; every 50th runs evaluate to close, and close prunes.
         The page of what stands now is written after each, as the runner does.
         `status`, `report` (the board) and `watch` are processes of their own, whose CPU time counts from the
         start of the interpreter
hours    a router and the pages on loopback answer 60 requests each in an hour, in which `watch`, `reap` and
         `due` run; another version serves every six hours. An hour passes as all that the log has becomes an
         hour older; what the router does each hour it does each second. The log keeps a quarter of the hours

The ledger, its rows and its board, and what MLflow keeps may grow with nights (GROW). Nothing else may once
as many nights have passed as are kept, and in the later half of the hours nothing at all but noise: LATER
says how much that is.
"""

import contextlib
import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import psutil
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from benchmarks import frame
from daybreak import cli
from daybreak.contract import clock, records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.record_types import Night, Verdict, Version
from daybreak.contract.units import HOUR_S
from daybreak.report import publisher
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from tests.conftest import make_repository
from tests.extensions.router.moves import pass_time
from tests.extensions.router.running import until
from tests.rollout.test_prune import put_folder
from tests.toy.nights import FIRST, OWN, PARAMS, make_model, make_night, make_version
from tests.toy.stages import close_night, judge_night, promote_night

MARKS = (1, 10, 50, 100) if frame.QUICK else (1, 10, 200, 1000)
WHOLE = 10 if frame.QUICK else 50  # every so many nights one runs from evaluate to close
# Of data and models; with the days of data that a night has, fewer than nights before the last mark but one.
KEEP_DAYS, WINDOW = 20 if frame.QUICK else 90, 28
DAY_BYTES = 20_000
CALLS = ("status", "report", "watch")
GROW = (".git", "var/mlflow.db", "var/artifacts", "var/night_rows.jsonl", "var/board.html")
PLACES = ("nights", ".dvc", *GROW, "other")
HOURS = 24 if frame.QUICK else 48
ASKED = 60  # requests to each server in an hour
KEPT_USERS = 200  # whose answers the router keeps: of ten hours
SERVING = f"serving: {{max_requests_per_s: 0, keep_days: {HOURS / 96}, keep_users: {KEPT_USERS}}}\n"
# What may come on top between the middle and the end of the hours, as a mean of three hours each.
LATER = {
    "MB of the router": 4.0,
    "MB of the pages": 4.0,
    "descriptors of the router": 0.5,
    "descriptors of the pages": 0.5,
    "threads of the router": 0.5,
    "threads of the pages": 0.5,
    "processes": 0.0,
    "kB of the home": 100.0,
    "files of the home": 0.5,
    "temporary files": 0.5,
}
# The period of what the router does each hour is a module's constant: an hour passes in seconds here.
START = (
    "import sys; from daybreak.extensions.router import model_manager as manager; manager.FORGET_S = 1.0; "
    "from daybreak import cli; sys.exit(cli.main(sys.argv[1:]))"
)


def main() -> None:
    """Lets nights and hours pass, and holds what grew against the targets."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        figures |= hours(make_home(Path(name) / "hours"))
        figures |= nights(make_home(Path(name) / "nights"))
    first, last = (f"night {mark:,}" for mark in MARKS[-2:])
    targets: dict[str, frame.Target] = {
        f"{last}, nights MB": ("<=", 1.1 * figures[f"{first}, nights MB"]),
        f"{last}, .dvc MB": ("<=", 1.1 * figures[f"{first}, .dvc MB"]),
        f"{last}, other MB": ("<=", 1.1 * figures[f"{first}, other MB"]),
        **{f"a night adds to {place} kB": ("<=", 2.0) for place in GROW},
        "files that a night adds": ("<=", 2.0),
        **{
            f"{last}, {kind}": ("<=", figures[f"{first}, {kind}"])
            for kind in ("descriptors", "threads")  # of the process that ran them all
        },
        **{f"{last}, {call} CPU s": ("<=", 1.5 * figures[f"night 10, {call} CPU s"]) for call in CALLS},
        **{f"{kind}, later hours": ("<=", most) for kind, most in LATER.items()},
    }
    frame.finish("growth", figures, targets)


def make_home(folder: Path) -> Path:
    """Returns a home of the toy workload with an MLflow of its own, as the home of this process."""
    for name in ("MLFLOW_TRACKING_URI", "DAYBREAK_LOG", "DAYBREAK_TOKEN"):
        os.environ.pop(name, None)
    os.environ["TMPDIR"] = str(folder / "tmp")
    (folder / "tmp").mkdir(parents=True)
    tempfile.tempdir = None
    os.environ["PYTHONPATH"] = os.pathsep.join([str(frame.ROOT), str(OWN)])
    os.environ["DAYBREAK_HOME"] = str(folder / "empty")
    mlflow_client.create(Home.here())
    os.environ["DAYBREAK_HOME"] = str(folder / "home")
    home = make_repository(folder / "home", store=folder / "empty" / "var" / "mlflow.db")
    (home / "params.yaml").write_text(f"{PARAMS}{SERVING}night: {{keep_days: {KEEP_DAYS}}}\n")
    return home


def nights(home: Path) -> dict[str, float]:
    """Returns the bytes of a home and the CPU seconds of commands after some of its nights."""
    figures: dict[str, float] = {}
    began = time.monotonic()
    start = (datetime.now(UTC).date() - FIRST).days - MARKS[-1]
    parts: list[str] = []
    for number in range(1, MARKS[-1] + 1):
        follow(FIRST + timedelta(days=start + number))
        parts = [*parts, f"{number}".ljust(DAY_BYTES, ".")][-WINDOW:]
        is_whole = number in MARKS or number % WHOLE == 0
        one_night(home, start + number, put_folder(*parts), is_whole=is_whole)
        if number in MARKS:
            about = f"night {number:,}"
            figures |= {f"{about}, {place} MB": sizes / 1e6 for place, sizes in places(home).items()}
            figures[f"{about}, files"] = float(num_files(home))
            figures[f"{about}, descriptors"] = float(psutil.Process().num_fds())
            figures[f"{about}, threads"] = float(psutil.Process().num_threads())
            figures |= {f"{about}, {call} CPU s": cpu_s(call) for call in CALLS}
            print(json.dumps(figures), file=sys.stderr, flush=True)
    clock._CLOCK = clock.Clock()
    since = MARKS[-1] - MARKS[-2]
    for place in GROW:
        grew = figures[f"night {MARKS[-1]:,}, {place} MB"] - figures[f"night {MARKS[-2]:,}, {place} MB"]
        figures[f"a night adds to {place} kB"] = 1e3 * grew / since
    grew = figures[f"night {MARKS[-1]:,}, files"] - figures[f"night {MARKS[-2]:,}, files"]
    figures["files that a night adds"] = grew / since
    return figures | {"nights took s": time.monotonic() - began}


def follow(day: date) -> None:
    """Lets the clock of this process stand at the evening of a day."""
    at = datetime(day.year, day.month, day.day, 23, tzinfo=UTC).timestamp()
    clock._CLOCK = clock.Clock(wall=lambda: at, passed=lambda: 0.0)


def one_night(home: Path, number: int, data: str, *, is_whole: bool) -> None:
    """Makes a night with that data; a whole one is judged, promoted and closed, another one is refused."""
    tip = branch.ledger_tip(Home.here())
    champion = ledger.champion_at(Home.here(), tip) if tip else None
    folder = make_night(home, number, weight=1.0)
    (folder / "dvc.lock").write_text(f"stages: {{ingest: {{outs: [{{path: data/raw, md5: {data}}}]}}}}\n")
    os.chdir(folder)
    if champion:
        records.write(champion, records.RUN)
        trained = date.fromisoformat(champion.night) - timedelta(days=1)
        make_model(folder / "data" / "champion", 1.0, last_day=trained)
    if is_whole:
        judge_night()
        with contextlib.suppress(NothingToDo):
            promote_night()
        close_night()
    else:
        night = records.read(Night, records.RUN)
        version = register(night)
        serves = champion.version if champion else 0
        verdict = Verdict(action="reject", champion=serves, challenger=version.number, reason="worse")
        for record in (version, verdict):
            records.write(record, records.RUN)
        ledger.commit_night(Home.here(), night, message=f"{night.day}: reject")
    publisher.write_now(Home.here())
    os.chdir(home)


def register(night: Night) -> Version:
    """Registers the model of a night, in the current folder, as a version with a run of its own."""
    model = records.RUN / "model"
    with mlflow_client.session(Home.here()) as client:
        run = mlflow_client.find_or_make_run(Home.here(), client, night.id)
        client.log_metric(run, "score", 0.5)
        client.log_artifacts(run, str(model), "model")
        source = f"{client.get_run(run).info.artifact_uri}/model"
        made = client.create_model_version("daybreak", source, run, tags={"night": night.id})
    version = make_version(int(made.version), model_digest=records.digest(model), night=night.id)
    return replace(version, run_id=run)


def places(home: Path) -> dict[str, float]:
    """Returns the bytes of each place of a home."""
    sizes = dict.fromkeys(PLACES, 0.0)
    for path in home.rglob("*"):
        if path.is_file() and not path.is_symlink():
            inside = path.relative_to(home).as_posix()
            place = next((one for one in PLACES if inside == one or inside.startswith(f"{one}/")), "other")
            sizes[place] += path.stat().st_size
    return sizes


def num_files(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def cpu_s(command: str) -> float:
    """Returns the CPU seconds of a command in a process of its own, those of git included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "daybreak", command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@dataclass(frozen=True)
class Server:
    """A server in a process of its own."""

    url: str
    process: psutil.Process

    def family(self) -> list[psutil.Process]:
        """Returns the process and those that it has started."""
        return [self.process, *self.process.children(recursive=True)]


@contextlib.contextmanager
def server(home: Path, *words: str, says: str) -> Iterator[Server]:
    """A server of the home, once it says its address."""
    log = home.parent / f"{words[0]}.log"
    with log.open("w") as output:
        command = [sys.executable, "-c", START, *words, "--port", "0"]
        process = subprocess.Popen(command, cwd=home, stdout=output, stderr=output)
    try:
        until(lambda: re.search(says, log.read_text()))
        found = re.search(says, log.read_text())
        assert found
        yield Server(url=found[1], process=psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait()


def hours(home: Path) -> dict[str, float]:
    """Returns the growth in the later half of the hours, and the figures of the first and the last hour."""
    for number in range(2):  # two versions, which serve in turn
        one_night(home, number, put_folder("rows"), is_whole=True)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert champion
    log, began = open_log(f"sqlite:///{home / 'var' / 'serving.db'}"), time.monotonic()
    seen: list[dict[str, float]] = []
    with (
        server(home, "serve", says=r"answers on (http://\S+) \(POST") as router,
        server(home, "pages", says=r"(http://\S+)/nights") as pages,
    ):
        until(lambda: requests.get(f"{router.url}/health", timeout=60).status_code == 200)
        for hour in range(HOURS):
            if hour % 6 == 5:
                swap(log, (champion.version, champion.replaced), router.url)
            ask(hour, router.url, pages.url)
            for command, ends in (("watch", 0), ("reap", 0), ("due", NothingToDo.exit_status)):
                called(command, hour, expect=ends)
            pass_time(log, HOUR_S)
            seen.append(look(home, router, pages))
            print(json.dumps({"hour": hour + 1} | seen[-1]), file=sys.stderr, flush=True)
    middle, end = (
        {kind: sum(one[kind] for one in hours) / 3 for kind in LATER}
        for hours in (seen[HOURS // 2 - 3 : HOURS // 2], seen[-3:])
    )
    first = {f"{kind}, hour 1": seen[0][kind] for kind in LATER}
    last = {f"{kind}, hour {HOURS}": seen[-1][kind] for kind in LATER}
    later = {f"{kind}, later hours": end[kind] - middle[kind] for kind in LATER}
    return first | last | later | {"hours took s": time.monotonic() - began}


def swap(log: Log, versions: tuple[int, int], url: str) -> None:
    """Lets the other version serve, once the router has it."""
    other = versions[log.traffic.read().champion == versions[0]]
    log.traffic.change(lambda now: replace(now, champion=other))
    until(lambda: requests.get(f"{url}/health", timeout=60).json()["champion"] == other)


def ask(hour: int, router: str, pages: str) -> None:
    """Asks both servers as often as in an hour: users, what they took, health, metrics, board, a night."""
    again = Retry(
        5, connect=0, read=0, other=0, status_forcelist=[503], allowed_methods=None, backoff_factor=0.5
    )
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=again))  # what a busy router asks for with its 503

        def get(url: str) -> requests.Response:
            answer = session.get(url, timeout=60)
            answer.raise_for_status()
            return answer

        for number in range(ASKED // 3):
            user = f"u{hour * ASKED + number}"
            shown = session.post(f"{router}/recommend", json={"user": user, "top": 5}, timeout=60).json()
            taken = {"exposure": shown["exposure"], "user": user, "items": shown["items"][:1]}
            posted = session.post(f"{router}/outcomes", json=taken, timeout=60)
            posted.raise_for_status()
            get(f"{router}/{'metrics' if number % 2 else 'health'}")
        board = get(f"{pages}/nights").text
        night = re.findall(r'href="(/nights/[^"?]+/)"', board)[0]
        for number in range(ASKED - 1):
            get(f"{pages}{night if number % 2 else '/nights'}")


def called(command: str, hour: int, *, expect: int) -> None:
    """Runs a command as a scheduler does, by a clock that is so many hours later."""
    call = multiprocessing.get_context("fork").Process(target=_called, args=(command, hour))
    call.start()
    call.join()
    if call.exitcode != expect:
        raise RuntimeError(f"{command} ended with {call.exitcode} in hour {hour}")


def _called(command: str, hour: int) -> None:
    clock._CLOCK = clock.Clock(wall=lambda: time.time() + hour * HOUR_S)
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        status = cli.main([command])
    sys.exit(status)


def look(home: Path, router: Server, pages: Server) -> dict[str, float]:
    """Returns what the servers and the home hold now."""
    families = {"router": router.family(), "pages": pages.family()}
    held: dict[str, Callable[[psutil.Process], float]] = {
        "MB": lambda one: one.memory_info().rss / 1e6,
        "descriptors": lambda one: one.num_fds(),
        "threads": lambda one: one.num_threads(),
    }
    seen = {
        f"{kind} of the {name}": float(sum(of(one) for one in family))
        for kind, of in held.items()
        for name, family in families.items()
    }
    return seen | {
        "processes": float(sum(map(len, families.values()))),
        "kB of the home": sum(places(home).values()) / 1e3,
        "files of the home": float(num_files(home)),
        "temporary files": float(num_files(Path(tempfile.gettempdir()))),
    }


if __name__ == "__main__":
    main()
