"""Do nights that are opened at once stay whole? Two to five openers, beside what else runs in a home.

Each race forks processes from one that has imported all that these commands import, so that they meet in
their work. They open one night, two, or one each, in a home with a champion, and in every second race
`watch`, `audit`, `reap`, `prune` or `rollback` runs beside them, in every tenth all of these at once. In
every third race one of them is killed by SIGKILL on its way, and its night is opened again. Then each night
has to be there as an undisturbed open leaves it: the same record for all its openers, and the data and the
champion that the ledger names. Whoever opened none has to have said why in a sentence. QUICK=1 runs a tenth
of the races, MINUTES=30 as many as fit.
"""

import importlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks import frame
from daybreak import cli
from daybreak.contract import records
from daybreak.contract.record_types import Night

NUM_RACES = 20 if frame.QUICK else 200
NUM_HOMES = 3  # side by side, as most of a race is spent waiting for locks
MINUTES = float(os.environ.get("MINUTES", "inf"))
BEGAN = time.monotonic()
DAYS = ("2026-03-03", "2026-03-04")
OTHERS = (["watch"], ["audit"], ["reap"], ["prune"], ["rollback", "--reason", "a test"])
SETS = frame.sets([*frame.SMALL, "profile.steps=2", "profile.batch_sizes=[32,64]", "gate.min_samples=5"])
LONGEST_S = 180


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int  # below 0: the signal
    text: str

    @property
    def crashed(self) -> bool:
        """Whether it said anything but a sentence."""
        return "Traceback" in self.text or (self.status not in (0, 75, 99) and "Error: " not in self.text)


class Command:
    """A command line in a fork of this process, in the home."""

    def __init__(self, words: list[str], *, home: Path, after_s: float) -> None:
        self.words, self._output = words, home.parent / f"output-{time.monotonic_ns()}"
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            os.setsid()
            with self._output.open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            time.sleep(after_s)
            os.chdir(home)
            status = cli.main(words)
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        finally:
            (home.parent / "modules").write_text("\n".join(sys.modules))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def end(self) -> Ended:
        """Wait for it."""
        until = time.monotonic() + LONGEST_S
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                self.kill()
            time.sleep(0.02)
        text = self._output.read_text() if self._output.exists() else ""
        self._output.unlink(missing_ok=True)
        return Ended(status=os.waitstatus_to_exitcode(ended[1]), text=text)

    def kill(self) -> None:
        """SIGKILL it, and what it started."""
        os.killpg(self.pid, signal.SIGKILL)


def races_of(first: int) -> Counter[str]:
    """Run every NUM_HOMES-th race, each from a home as it was before; what was counted."""
    tally: Counter[str] = Counter()
    with frame.home() as home:
        for day in DAYS:
            frame.pipeline(home, "night", "--day", day, *SETS)
        os.environ["DAYBREAK_HOME"] = str(home)
        os.chdir(home)
        logging.getLogger().handlers.clear()
        kept = home.parent / "kept"
        for name in (".git", "var"):
            shutil.copytree(home / name, kept / name, symlinks=True)
        for words in (opening("first"), *OTHERS):
            assert Command(words, home=home, after_s=0).end().status in (0, 99)
            import_all(home.parent / "modules")
        put_back(home, kept)
        opening_began = time.monotonic()
        whole = {"": undisturbed(home, "before")}
        opening_s = time.monotonic() - opening_began
        whole[night_of(home, "before").previous] = whole[""]
        assert Command(["rollback", "--reason", "a test"], home=home, after_s=0).end().status == 0
        whole[""] = undisturbed(home, "after")  # whichever commit the rollback made
        assert whole[""]["data/champion"] not in ("", contents(home, "before")["data/champion"])
        for number in range(first, NUM_RACES, NUM_HOMES):
            if time.monotonic() - BEGAN > 60 * MINUTES:
                break
            tally["races"] += 1
            put_back(home, kept)
            race(number, home, whole=whole, kill_within_s=opening_s, tally=tally)
    return tally


def main() -> None:
    """Run all races, in homes side by side."""
    with get_context("fork").Pool(NUM_HOMES) as pool:
        tally = sum(pool.map(races_of, range(NUM_HOMES), chunksize=1), Counter[str]())
    frame.finish(
        "openers",
        {
            "races": tally["races"],
            "opened": tally["opened"],
            "opened again after a kill": tally["killed"],
            "killed, and not opened again": tally["lost"],
            "refused in a sentence": tally["refused"],
            "crashed": tally["crashed"],
            "nights that are not whole": tally["not whole"],
            "openers with another record": tally["unlike"],
        },
        {
            "crashed": ("==", 0),
            "killed, and not opened again": ("==", 0),
            "nights that are not whole": ("==", 0),
            "openers with another record": ("==", 0),
        },
    )


def import_all(modules: Path) -> None:
    """Import what a command has imported, so that the forks of this process need not."""
    for name in modules.read_text().split():
        with suppress(Exception):  # as of modules that others make while they are imported
            importlib.import_module(name)


def undisturbed(home: Path, name: str) -> dict[str, str]:
    """Open a night alone; what it has."""
    alone = Command(opening(name), home=home, after_s=0).end()
    assert alone.status == 0, alone.text
    return contents(home, name)


def race(
    number: int, home: Path, *, whole: dict[str, dict[str, str]], kill_within_s: float, tally: Counter[str]
) -> None:
    """One race, and what is not as promised; `whole` by the ledger's commit that a night goes on from."""
    draw = random.Random(number)
    num_openers, num_nights = draw.randint(2, 5), draw.choice([1, 2, 5])
    names = [f"race-{number}-{place % num_nights}" for place in range(num_openers)]
    commands = {
        place: Command(opening(name), home=home, after_s=draw.random() * 0.2)
        for place, name in enumerate(names)
    }
    beside = OTHERS if number % 10 == 9 else [draw.choice(OTHERS)] if number % 2 else []
    others = [Command(words, home=home, after_s=draw.random()) for words in beside]
    if number % 3 == 0:
        time.sleep(draw.random() * kill_within_s)
        commands[0].kill()
    ended = {place: command.end() for place, command in commands.items()}
    if number % 3 == 0 and ended[0].status < 0:
        ended[0] = Command(opening(names[0]), home=home, after_s=0).end()
        tally["killed"] += 1
        tally["lost"] += bool(ended[0].status)
    count(number, [*ended.values(), *(other.end() for other in others)], tally)
    nights: dict[str, list[object]] = {}
    for place, one in ended.items():
        if one.status == 0:
            line = next(line for line in one.text.splitlines() if line.startswith('{"id"'))
            nights.setdefault(names[place], []).append(json.loads(line))
    for name, openers in nights.items():
        tally["opened"] += len(openers)
        if any(opener != openers[0] for opener in openers):
            tally["unlike"] += 1
            print(f"race {number}: {name} was opened as {openers}")
        expected = whole.get(night_of(home, name).previous, whole[""])
        if (content := contents(home, name)) != expected:
            tally["not whole"] += 1
            print(f"race {number}: {name} has {content}, undisturbed {expected}")


def count(number: int, ended: list[Ended], tally: Counter[str]) -> None:
    """Who crashed, and who refused."""
    for one in ended:
        if one.crashed:
            tally["crashed"] += 1
            print(f"race {number}: status {one.status}\n{one.text[-3000:]}")
        elif one.status:
            tally["refused"] += 1
            print(f"race {number}: {one.text.strip().splitlines()[-1][:200]}")


def opening(name: str) -> list[str]:
    """The command that opens a night."""
    return ["open", "--night", name, "--day", "2026-03-05", *SETS]


def night_of(home: Path, name: str) -> Night:
    """The record of a night."""
    return records.read(Night, home / "nights" / name / records.RUN)


def contents(home: Path, name: str) -> dict[str, str]:
    """Digests of what an open leaves, and what git says of its folder."""
    folder = home / "nights" / name
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=False
    )
    paths = ("data/raw", "data/clean", "data/champion", "data/arrays", "params.yaml")
    digests = {path: records.digest(folder / path) if (folder / path).exists() else "" for path in paths}
    return {"git": status.stdout + status.stderr, **digests}


def put_back(home: Path, kept: Path) -> None:
    """Remove the folders of all nights that are not closed, and put git and the stores back as they were."""
    for path in (home / "nights").glob("*"):
        if path.name not in DAYS:
            shutil.rmtree(path)
    for name in (".git", "var"):
        shutil.rmtree(home / name)
        shutil.copytree(kept / name, home / name, symlinks=True)


if __name__ == "__main__":
    main()
