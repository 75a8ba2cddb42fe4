"""What the benchmarks of kills and of power cuts share: nights and commands, interrupted and run on.

A home of the shop and one of the fraud example, which trains again on held-out days, have two nights. From
there a third night is run stage by stage, and then `rollback`, `watch`, `audit`, `repair` of damage that is
done before, `prune` and `erase`; first undisturbed, then, in the home as it was before, with each of them
interrupted again and again at a random moment of the time that it took, and at last run to its end: a round,
of which there are some. Both examples run beside each other. Each command is a fork of this process, which
has imported everything, so that most of what is interrupted is work. Both ends must be the same: the same
bytes of data and model, verdict, entries of the ledger, versions, objects in DVC's cache and files in the
home, none more; no process; and an audit without a fault. The seeds are fixed. MINUTES=60 interrupts nothing
more after an hour, ends the rounds that have begun, and counts what was done. QUICK=1 does one round, in the
shop alone.
"""

import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import great_expectations  # noqa: F401  imported before the forks, as all below
import pyarrow.parquet as pq

import daybreak.night.closing
import daybreak.night.opening
import daybreak.runner  # noqa: F401
from benchmarks import frame
from benchmarks.bench_interrupted import processes_in
from daybreak import cli, stages
from daybreak.contract import disk, records
from daybreak.contract.record_types import Refit, Training, Verdict
from daybreak.rollout import rot
from daybreak.storage import branch, dvc_cache, erasures, ledger
from daybreak.storage.home import Home

NUM_ROUNDS = 1 if frame.QUICK else 4
TIMES = 2 if frame.QUICK else 4  # that each command is interrupted, a round
MINUTES = float(os.environ.get("MINUTES", "inf"))
BEGAN = time.monotonic()
LONGEST_S = 600
NIGHT = "third"
COMPARED_AFTER = ("close", "repair", "erase")
KEPT = (".git", ".dvc", "nights", "var")
SHOP = [*frame.SMALL, "profile.steps=2", "profile.batch_sizes=[32,64]", "gate.min_samples=5"]
FRAUD = [
    "source.start=2026-01-25",
    "source.today=2026-03-06",
    "source.rows_per_day=1600",
    "source.num_accounts=300",
    "source.fraud_share=0.05",
    "ingest.history_days=24",
    "profile.steps=2",
    "profile.batch_sizes=[64]",
    "smoke_test.samples=20",
    "train.epochs=1",
    "gate.refit_epochs=1",
    "gate.margin=0.05",
]
BEGIN = """\
git init -q && git config user.name Bench && git config user.email bench@example.org
dvc init --quiet && python -m daybreak.dvc_file
printf '__pycache__/\\n/nights/\\n/var/\\n/data/*\\n!/data/expectations.yaml\\n' > .gitignore
git add --all && git commit -q -m Begin
"""
# What differs from run to run by its nature: names, times, logs and what git keeps.
NOT_COMPARED = re.compile(
    r"(^|/)(\.git|__pycache__|logs?|jobs|digests|docs|passes|tmp|profiles|machines)(/|$)|\.lock$|\.log$"
)


class Machine:
    """A machine for nights: a folder for the home, and a way to end all processes at once."""

    folder: Path | None = None  # of temporary files where it is None

    def interrupt(self, pid: int, home: Path) -> None:
        """SIGKILL a command and all other processes of the home."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while left := processes_in(home):
            for process in left:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.01)


def finish(name: str, called: str, machines: Callable[[], AbstractContextManager[Machine]]) -> NoReturn:
    """Interrupt the nights of both examples, each on a machine of its own, and hold the ends to the targets.

    `called` is the word for the interruptions.
    """
    examples = ("shop",) if frame.QUICK else ("shop", "fraud")
    with get_context("fork").Pool(len(examples)) as pool:
        tally = sum(pool.map(partial(nights_of, machines=machines), examples, chunksize=1), Counter[str]())
    frame.finish(
        name,
        {
            **{f"{called} in {example}": tally[f"interrupted in {example}"] for example in examples},
            called: tally["interrupted"],
            "calls that ended before": tally["early"],
            "rounds": tally["rounds"],
            "refits": tally["refits"],
            "minutes": (time.monotonic() - BEGAN) / 60,
            "ends that differ": tally["differ"],
            "faults of audit": tally["faults"],
            "processes left": tally["processes"],
            "examples that broke off": tally["broken"],
        },
        {
            "ends that differ": ("==", 0),
            "faults of audit": ("==", 0),
            "processes left": ("==", 0),
            "examples that broke off": ("==", 0),
        },
    )


def nights_of(example: str, machines: Callable[[], AbstractContextManager[Machine]]) -> Counter[str]:
    """Run all rounds of an example; what was counted, also where it breaks off."""
    tally: Counter[str] = Counter()
    try:
        with machines() as machine, home_of(example, folder=machine.folder) as (home, sets, unit_column):
            trial(example, home, sets, column=unit_column, machine=machine, tally=tally)
    except Exception:  # noqa: BLE001  shown, and the benchmark fails
        traceback.print_exc()
        tally["broken"] += 1
    tally[f"interrupted in {example}"] = tally["interrupted"]
    return tally


def time_left() -> bool:
    """Whether there is time for another interruption."""
    return time.monotonic() - BEGAN < 60 * MINUTES


@contextmanager
def home_of(example: str, *, folder: Path | None) -> Iterator[tuple[Path, list[str], str]]:
    """A home with two nights in a folder, the assignments of its nights, and the column of its unit."""
    os.environ.pop("DAYBREAK_HOME", None)
    if example == "shop":
        with frame.home(folder) as home:
            for day in ("2026-03-02", "2026-03-03"):
                frame.pipeline(home, "night", "--day", day, *frame.sets(SHOP))
            yield home, SHOP, "customer"
        return
    around = Path(tempfile.mkdtemp(prefix="daybreak-", dir=folder))
    try:
        home = around / "home"
        shutil.copytree(frame.ROOT / "pipeline" / "daybreak" / "examples" / example, home)
        environment = {**frame.environment(home), "PYTHONPATH": str(frame.ROOT)}
        os.environ["PYTHONPATH"] = str(frame.ROOT)
        subprocess.run(["bash", "-euc", BEGIN], cwd=home, env=environment, check=True)
        for day in ("2026-03-02", "2026-03-03"):
            frame.pipeline(home, "night", "--day", day, *frame.sets(FRAUD))
        yield home, FRAUD, "account"
    finally:
        shutil.rmtree(around, ignore_errors=True)


def trial(
    example: str, home: Path, sets: list[str], *, column: str, machine: Machine, tally: Counter[str]
) -> None:
    """Run the third night and the commands undisturbed, and interrupted in each round, and compare."""
    os.environ["DAYBREAK_HOME"] = str(home)
    logging.getLogger().handlers.clear()
    (home / erasures.KEY).write_text("ab" * 32)  # else each run would make its own
    kept = home.parent / "kept"
    kept.mkdir()
    subprocess.run(["cp", "-a", *KEPT, kept], cwd=home, check=True)  # in one: it keeps links between them
    commands = commands_of(home, sets, unit=a_unit(home, column))
    took, undisturbed = [], {}
    for words, folder in commands:
        prepare(words, home)
        begun = time.monotonic()
        run_to_the_end(words, folder)
        took.append(time.monotonic() - begun)
        if words[0] in COMPARED_AFTER:
            undisturbed[words[0]] = outcome(home)
    for number in range(NUM_ROUNDS):
        if not time_left():
            break
        for name in KEPT:
            shutil.rmtree(home / name)
        subprocess.run(["cp", "-a", *KEPT, home], cwd=kept, check=True)
        disk.sync(home)  # of what was before, nothing may be lost
        print(f"{example}, round {number}", flush=True)
        draw = random.Random(f"{example} {number}")
        for (words, folder), seconds in zip(commands, took, strict=True):
            interrupt_often(words, folder, home, draw=draw, within_s=seconds, machine=machine, tally=tally)
            prepare(words, home)
            run_to_the_end(words, folder)
            so_far = f"{tally['interrupted']} interruptions so far"
            print(f"{words[0]:9} {seconds:5.1f} s undisturbed, {so_far}", flush=True)
            if words[0] in undisturbed:
                compare(words[0], outcome(home), undisturbed[words[0]], tally)
        tally["refits"] += undisturbed["close"]["refit"]
        tally["faults"] += bool(status_of(["audit"], home))
        tally["processes"] += len(processes_in(home))
        tally["rounds"] += 1


def commands_of(home: Path, sets: list[str], *, unit: str) -> list[tuple[list[str], Path]]:
    """The stages of the third night and the commands after it, with the folder that each runs in."""
    commands = [(["open", "--night", NIGHT, "--day", "2026-03-04", *frame.sets(sets)], home)]
    for name in stages.CHAIN[1:]:
        words = [name, "--wait"] if stages.STAGES[name].waits else [name]
        commands.append((words, home / "nights" / NIGHT))
    promoted = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert promoted is not None and promoted.replaced
    back = ["rollback", "--to", str(promoted.replaced), "--reason", "a test"]
    for words in (back, ["watch"], ["audit"], ["repair"], ["prune"], ["erase", "--unit", unit, "--yes"]):
        commands.append((words, home))
    return commands


def prepare(words: list[str], home: Path) -> None:
    """Damages a model before each call of `repair`: removes a file and tears another.

    MLflow has both, too.
    """
    if words[0] != "repair":
        return
    lock = str(branch.text_at(Home.here(), branch.ledger_tip(Home.here()), "dvc.lock"))
    files = dict(dvc_cache.files_of(Home.here(), dvc_cache.outputs(lock)))
    lost, *_, torn = sorted({digest for path, digest in files.items() if path.startswith("data/run/model")})
    dvc_cache.path_of(Home.here(), lost).unlink(missing_ok=True)
    path = dvc_cache.path_of(Home.here(), torn)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"damaged")
    path.chmod(0o444)


def started(words: list[str], folder: Path) -> int:
    """A fork of this process that runs a command in a folder; its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        with output_of(words).open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        status = cli.main(words)
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    except BaseException:  # noqa: BLE001  shown, and the benchmark fails
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def output_of(words: list[str]) -> Path:
    """Where the output of a command goes, beside the home."""
    return Path(os.environ["DAYBREAK_HOME"]).parent / f"output-{words[0]}"


def status_of(words: list[str], folder: Path) -> int:
    """Run a command; its exit status."""
    pid, until = started(words, folder), time.monotonic() + LONGEST_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return os.waitstatus_to_exitcode(ended[1])


def run_to_the_end(words: list[str], folder: Path) -> None:
    """Run a command, which must end well, or with nothing to do."""
    status = status_of(words, folder)
    if status not in (0, 99):
        text = output_of(words).read_text()
        raise RuntimeError(f"{words[0]} ended with {status}:\n{text[-3000:]}")


def interrupt_often(
    words: list[str],
    folder: Path,
    home: Path,
    *,
    draw: random.Random,
    within_s: float,
    machine: Machine,
    tally: Counter[str],
) -> None:
    """Interrupt a command TIMES times, unless it ends before again and again.

    Where it ended before, as on a machine that has less to do by now, the next moment is drawn of that time.
    """
    wanted = tally["interrupted"] + TIMES
    for _ in range(2 * TIMES):
        if tally["interrupted"] < wanted and time_left():
            prepare(words, home)
            begun = time.monotonic()
            pid = started(words, folder if folder.exists() else home)
            if ends_within(draw.random() * within_s, pid=pid):
                tally["early"] += 1
                within_s = time.monotonic() - begun
            else:
                machine.interrupt(pid, home)
                tally["interrupted"] += 1


def ends_within(seconds: float, *, pid: int) -> bool:
    """Wait for a child so long; whether it has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.005)
    return False


def a_unit(home: Path, column: str) -> str:
    """A unit that has rows."""
    [*_, part] = sorted(home.glob("nights/*/data/clean/day=*/part.parquet"))
    counts = pq.read_table(part, partitioning=None)[column].to_pandas().value_counts()
    return str(counts.index[0])


def outcome(home: Path) -> dict[str, Any]:
    """What the home came to."""
    folder = home / "nights" / NIGHT
    verdict, trained = (
        records.find(Verdict, folder / records.RUN),
        records.find(Training, folder / records.RUN),
    )
    refit, entries = records.find(Refit, folder / records.RUN), ledger.history(Home.here())
    cache = home / ".dvc" / "cache" / "files" / "md5"
    return {
        "ledger": [(entry.night.id, entry.rollback) for entry in entries],
        "served": entries[0].serving and entries[0].serving.version,
        "alias": alias(home),
        "verdict": verdict and (verdict.action, verdict.effect and verdict.effect.mean),
        "model": trained and trained.model_digest,
        "refit": bool(refit and refit.version),
        "refitted": refit and refit.version and refit.version.model_digest,
        **{
            path: records.digest(folder / "data" / path) if (folder / "data" / path).exists() else ""
            for path in ("raw", "clean", "quarantine", "arrays")
        },
        "damaged": [
            str(fault)
            for fault in (
                *rot.in_cache(Home.here(), dvc_cache.objects(Home.here())),
                *rot.in_nights(Home.here()),
            )
        ],
        "erased": [
            (one.unit, one.num_rows, len(one.digests), one.versions) for one in erasures.erasures(Home.here())
        ],
        "cache": sorted(f"{path.parent.name}{path.name}" for path in cache.glob("??/*") if not timed(path)),
        "number of records in the cache": sum(map(timed, cache.glob("??/*"))),
        "jobs": len(list((folder / "data/work/jobs").glob("*/job.json"))),
        "files": sorted(names(home)),
    }


def timed(path: Path) -> bool:
    """Whether an object is a record as JSON, which DVC keeps of the runs of a stage: some have times."""
    return path.read_bytes()[:2] == b"{\n"


def names(home: Path) -> set[str]:
    """Files of the home by their names, without those that differ by their nature."""
    relative_names = set()
    for name in ("nights", "var"):
        for path in (home / name).rglob("*"):
            relative = path.relative_to(home).as_posix()
            if path.is_file() and not NOT_COMPARED.search(relative):
                relative_names.add(re.sub(r"[0-9a-f]{32}", "#", relative))
    return relative_names


def alias(home: Path) -> int:
    """The version that MLflow's alias names, asked in a process of its own."""
    code = "import sys, pathlib; from benchmarks import frame; "
    code += f"print(frame.champion_of(pathlib.Path({str(home)!r})))"
    return int(subprocess.check_output([sys.executable, "-c", code], cwd=frame.ROOT, text=True).split()[-1])


def compare(name: str, actual: dict[str, Any], expected: dict[str, Any], tally: Counter[str]) -> None:
    """Count and show what is not the same."""
    for key, value in expected.items():
        if actual[key] == value:
            continue
        tally["differ"] += 1
        if isinstance(value, list):
            more, fewer = (
                [one for one in a if one not in b][:5]
                for a, b in ((actual[key], value), (value, actual[key]))
            )
            print(f"after {name}: {key} has more {more}, fewer {fewer}", flush=True)
        else:
            print(f"after {name}: {key} is {actual[key]}, undisturbed {value}", flush=True)
