"""Is a release all or nothing? Promotions and rollbacks killed, at each step and at random, and raced.

Every trial is a process forked from one that has imported everything, on the same home, which is put back as
it was before each: a ledger in git, MLflow in SQLite, and a second target beside the alias. After a kill
another process does what the hourly watch does first, recover, and an audit; then ledger, alias and target
have to be all old or all new. QUICK=1 kills at every third step, ten times at random, and races five times.
"""

import contextlib
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

# Before the forks: what MLflow imports when it is first asked is most of what a trial would take.
import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

from benchmarks import frame
from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.record_types import Champion, Night, Release
from daybreak.extensions.care import audit as auditing
from daybreak.gate import watch
from daybreak.rollout import promote, rollback, saga
from daybreak.rollout.targets import Alias, Target
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.fakes import FolderTarget
from tests.toy.nights import FIRST, PARAMS, make_night
from tests.toy.stages import judge_night, promote_night

EVERY = 3 if frame.QUICK else 1
NUM_RANDOM = 10 if frame.QUICK else 200
NUM_RACES = 5 if frame.QUICK else 1000
TARGETS = {
    "neither all old nor all new": ("==", 0.0),
    "audits that found a fault": ("==", 0.0),
    "rollback s, read back": ("<=", 60.0),
    "races without exactly one winner": ("==", 0.0),
}
Standing = tuple[int, int, int]  # version by ledger, alias and folder


class Killer(logging.Handler):
    """Ends this process as SIGKILL does at the n-th step of a saga; counts them where n is 0."""

    def __init__(self, at: int) -> None:
        super().__init__(logging.DEBUG)
        self.at, self.reached = at, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a step."""
        self.reached += record.getMessage().startswith("saga: ")
        if self.at and self.reached == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class TriedHome:
    """A home with a champion and two nights that could replace it."""

    def __init__(self, folder: Path) -> None:
        self.home, self.kept = folder / "home", folder / "kept"
        os.environ["DAYBREAK_HOME"] = str(self.home)
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        self.folder_target = FolderTarget(self.home / "var" / "target")
        for module in (promote, rollback, watch, auditing):
            module.release_targets = self.release_targets  # type: ignore[attr-defined]
        (self.home / "var").mkdir(parents=True)
        (self.home / ".dvc").mkdir()
        (self.home / ".dvc" / "config").write_text("")
        (self.home / ".gitignore").write_text("/nights/\n/var/\n/data/*\n")
        (self.home / "params.yaml").write_text(PARAMS)
        for words in (
            ["init", "--quiet", "--initial-branch=main"],
            ["config", "user.name", "A Benchmark"],
            ["config", "user.email", "bench@example.org"],
            ["config", "gc.auto", "0"],
            ["add", "--all"],
            ["commit", "--quiet", "--message=Begin"],
        ):
            subprocess.run(["git", *words], cwd=self.home, check=True)
        in_child(self._nights)

    def release_targets(self, home: Home, client: Any, model: str) -> list[Target]:
        """The alias, and the folder."""
        return [Alias(home, client, model), self.folder_target]

    def _nights(self) -> None:
        mlflow_client.create(Home.here())
        os.chdir(make_night(self.home, 0, weight=1.0))
        judge_night()
        made = promote_night()
        ledger.commit_night(Home.here(), records.read(Night, records.RUN), message="first")
        champion = Champion(**vars(made))
        for number in (1, 2):
            os.chdir(make_night(self.home, number, weight=1.0, champion=champion))
            judge_night()

    def keep(self) -> None:
        """Take what is here now as what a trial begins with."""
        shutil.rmtree(self.kept, ignore_errors=True)
        self.kept.mkdir()
        for name in (".git", "var"):
            subprocess.run(["cp", "-a", self.home / name, self.kept / name], check=True)

    def put_back(self) -> None:
        """Begin anew."""
        for name in (".git", "var"):
            shutil.rmtree(self.home / name)
            subprocess.run(["cp", "-a", self.kept / name, self.home / name], check=True)
        for number in (1, 2):
            records.path_of(Release, self.night(number) / records.RUN).unlink(missing_ok=True)

    def night(self, number: int) -> Path:
        """Folder of a night."""
        return self.home / "nights" / str(FIRST + timedelta(days=number))

    def promote(self, number: int = 1) -> None:
        """Stage promote of a night."""
        os.chdir(self.night(number))
        promote_night()

    def rollback(self) -> None:
        """Stage rollback, one promotion back."""
        os.chdir(self.home)
        rollback.rollback(Home.here(), params.load(self.home).register_, reason="to see that it works")

    def settled(self) -> list[str]:
        """Recover as `watch` does, and what the audit finds."""
        os.chdir(self.home)
        with mlflow_client.session(Home.here()) as client:
            saga.recover(Home.here(), self.release_targets(Home.here(), client, "daybreak"))
        settings = params.load(self.home)
        return [
            f"{check.name}: {check.text}" for check in auditing.audit(Home.here(), settings) if not check.ok
        ]

    def standing(self) -> Standing:
        """Who serves by ledger, alias and folder; MLflow's database is read without MLflow."""
        now = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
        with sqlite3.connect(self.home / "var" / "mlflow.db") as database:
            asked = "select version from registered_model_aliases where alias = 'champion'"
            row = database.execute(asked).fetchone()
        return now.version if now else 0, row[0] if row else 0, self.folder_target.shown()


def start(work: Callable[[], Any], *, kill_at: int | None = None) -> tuple[int, Any]:
    """Process id of a fork that does the work, and the end of a pipe that tells what came of it."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid:
        writing.close()
        return pid, reading
    status = 1
    try:
        killer = Killer(kill_at or 0)
        logging.getLogger("daybreak").setLevel(logging.ERROR)
        steps = logging.getLogger(saga.__name__)
        steps.setLevel(logging.DEBUG)
        steps.propagate = False
        steps.addHandler(killer)
        try:
            done = work()
            writing.send(("done", killer.reached if kill_at == 0 else done))
        except (ReleaseError, NothingToDo) as error:
            writing.send(("refused", str(error)))
        status = 0
    except BaseException:  # noqa: BLE001  told, and the benchmark fails
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def end(pid: int, reading: Any) -> tuple[str, Any]:
    """How a fork ended: done, refused or killed, and what it told."""
    result: tuple[str, Any] = ("killed", None)
    with contextlib.suppress(EOFError):
        result = reading.recv()
    reading.close()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return "killed", None
    if os.WEXITSTATUS(status):
        raise RuntimeError("a trial broke; see above")
    return result


def in_child(work: Callable[[], Any], *, kill_at: int | None = None) -> tuple[str, Any]:
    """Do the work in a fork and wait for it."""
    return end(*start(work, kill_at=kill_at))


def judged(home: TriedHome, *, old: int, new: int, tally: Counter[str]) -> None:
    """Recover after a kill, and count what is not as promised."""
    _, faults = in_child(home.settled)
    standing = home.standing()
    tally["trials"] += 1
    tally["all new"] += standing == (new,) * 3
    if standing not in ((old,) * 3, (new,) * 3):
        tally["neither"] += 1
        print(f"neither old {old} nor new {new}: {standing}")
    if faults:
        tally["faults"] += 1
        print("; ".join(faults))


def killed(home: TriedHome, work: Callable[[], None], *, old: int, new: int, tally: Counter[str]) -> float:
    """Kill the work at its steps and at random; seconds that it takes unharmed."""
    home.keep()
    began = time.monotonic()
    _, num_steps = in_child(work, kill_at=0)
    took = time.monotonic() - began
    for at in range(1, num_steps + 1, EVERY):
        home.put_back()
        how, _ = in_child(work, kill_at=at)
        assert how == "killed"
        judged(home, old=old, new=new, tally=tally)
    rng = random.Random(num_steps)
    for _ in range(NUM_RANDOM // 2):
        home.put_back()
        pid, reading = start(work)
        time.sleep(rng.uniform(0, took))
        os.kill(pid, signal.SIGKILL)
        end(pid, reading)
        judged(home, old=old, new=new, tally=tally)
    home.put_back()
    return took


def race(home: TriedHome) -> bool:
    """Two nights that follow the same one promote at once: is there one winner, whom all name?"""
    home.put_back()
    ends = [end(*started) for started in [start(lambda n=n: home.promote(n)) for n in (1, 2)]]  # type: ignore[misc]
    won = [number for number, (how, _) in enumerate(ends, 2) if how == "done"]
    return len(won) == 1 and home.standing() == (won[0],) * 3


def main() -> None:
    """Kill, race, and hold what came out against the targets."""
    folder = Path(tempfile.mkdtemp(prefix="daybreak-"))
    try:
        tally: Counter[str] = Counter()
        home = TriedHome(folder)
        took = {"promotion s": killed(home, home.promote, old=1, new=2, tally=tally)}
        wrong = sum(not race(home) for _ in range(NUM_RACES))
        home.put_back()
        in_child(home.promote)
        took["rollback s, read back"] = killed(home, home.rollback, old=2, new=1, tally=tally)
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    figures = {
        "kills": tally["trials"],
        "of them all new": tally["all new"],
        "neither all old nor all new": tally["neither"],
        "audits that found a fault": tally["faults"],
        **took,
        "races": NUM_RACES,
        "races without exactly one winner": wrong,
    }
    frame.finish("saga", {name: float(value) for name, value in figures.items()}, TARGETS)


if __name__ == "__main__":
    main()
