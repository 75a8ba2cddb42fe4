"""Does a night end the same whatever is wrong with its disk? In each stage it takes nothing for a while.

The shop has a night, and another is run on a disk of its own; first undisturbed, then on a disk that is by
turns full, without inodes, read-only and in part another user's, and on one whose quota is used up
(tests/bad_disks.py). Each stage is called alone while the disk is bad, once for each kind; and amid the night
the disk goes bad with the record of that stage. Each call must end in one sentence that names the cause and
the way on. Then the disk is repaired, the night goes on by the command that was named, and must come to the
same as the undisturbed one (interruptions.py says what is compared). No disk can be made read-only amid a
night, as files are open. Needs root, to mount. QUICK=1 disturbs three stages.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

from benchmarks import frame, interruptions
from benchmarks.bench_interrupted import processes_in
from benchmarks.interruptions import NIGHT, SHOP
from daybreak import stages
from daybreak.contract import records
from daybreak.contract.record_parts import Record
from daybreak.storage import erasures
from tests import bad_disks

DISTURBED = ("open", "prepare", "promote") if frame.QUICK else stages.CHAIN
GO_ON = f"go on with: daybreak night --night {NIGHT}"
# Of root: files of others are changed, read and looked into as if they were its own.
CAPABILITIES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3}
PR_CAPBSET_DROP, CAPABILITY_VERSION = 24, 0x20080522  # of linux/prctl.h and linux/capability.h


def main() -> None:
    """Run a night on each kind of bad disk, and hold the ends to that of an undisturbed night."""
    tally: Counter[str] = Counter()
    began = time.monotonic()
    with frame.home() as home, tempfile.TemporaryDirectory(prefix="daybreak-kept-") as kept:
        os.environ["DAYBREAK_HOME"] = str(home)
        (home / erasures.KEY).parent.mkdir(exist_ok=True)
        (home / erasures.KEY).write_text("ab" * 32)  # else each run would make its own
        night("second", "2026-03-03", home, meet=lambda *_: None)
        copy(home, Path(kept))
        night(NIGHT, "2026-03-04", home, meet=lambda *_: None)
        undisturbed = interruptions.outcome(home)
        for mount, kinds in DISKS.items():
            with mount(home) as disk:
                copy(Path(kept), home)
                amid = cycle(kind for kind in kinds if kind != "read-only")
                try:
                    meet = partial(disturb, home, kinds, amid=amid, disk=disk, tally=tally)
                    night(NIGHT, "2026-03-04", home, meet=meet)
                    end = interruptions.outcome(home)
                    interruptions.compare(" and ".join(kinds), end, undisturbed, tally)
                    for key in ("ledger", "cache", "files"):
                        tally["lost"] += sum(each not in end[key] for each in undisturbed[key])
                    tally["processes"] += len(processes_in(home))
                except RuntimeError as error:
                    print(f"{kinds}: {error}", flush=True)
                    tally["broken"] += 1
                finally:
                    end_all(home)
    calls = {f"calls: {kind}": tally[kind] for kind in bad_disks.TROUBLES}
    faults = {
        "said otherwise": tally["otherwise"],
        "tracebacks": tally["traceback"],
        "records torn": tally["torn"],
        "ends that differ": tally["differ"],
        "files, objects and entries lost": tally["lost"],
        "processes left": tally["processes"],
        "nights that did not go on": tally["broken"],
    }
    frame.finish(
        "disks",
        {
            **calls,
            "calls": sum(calls.values()),
            "ended in a sentence": tally["sentence"],
            "ended well all the same": tally["well"],
            "minutes": (time.monotonic() - began) / 60,
            **faults,
        },
        {key: ("==", 0) for key in faults},
    )


@contextmanager
def in_memory(home: Path) -> Iterator[Path]:
    """Mounts a disk at the home; the folder by which it is made bad and repaired."""
    with bad_disks.in_memory(f"size=1g,nr_inodes={bad_disks.NUM_FILES}", at=home):
        yield home


@contextmanager
def with_quotas(home: Path) -> Iterator[Path]:
    """The same, with quotas."""
    with bad_disks.with_quotas() as disk, bad_disks.mounted(f"--bind {disk / 'home'}", at=home):
        yield disk


DISKS = {in_memory: ("full", "files", "read-only", "owner"), with_quotas: ("quota",)}


def night(name: str, day: str, home: Path, *, meet: Callable[[str, list[str]], None]) -> None:
    """Runs a night to its end; before each stage, `meet` is given its name and its words."""
    for stage in stages.CHAIN:
        words = [stage, "--wait"] if stages.STAGES[stage].waits else [stage]
        if stage == "open":
            words += ["--night", name, "--day", day, *frame.sets(SHOP)]
        meet(stage, words)
        expect_well(words, home if stage == "open" else home / "nights" / name)
    expect_well(["night", "--night", name], home)


def disturb(
    home: Path,
    kinds: Iterable[str],
    stage: str,
    words: list[str],
    *,
    amid: Iterator[str],
    disk: Path,
    tally: Counter[str],
) -> None:
    """Calls a stage alone on each bad disk, and then the night, whose disk goes bad with that record."""
    folder = home / "nights" / NIGHT
    if stage not in DISTURBED:
        return
    for kind in kinds:
        if kind == "owner" and stage == "open":  # there is no folder yet
            continue
        with trouble(kind, disk, home):
            judge(kind, words, status_of(words, home if stage == "open" else folder), home, tally)
    if not (record := record_of(stage, folder)):
        return
    kind = next(amid)
    go_on = ["night", *(words[1:] if stage == "open" else ("--night", NIGHT))]
    running = started(go_on, home)
    while running.is_alive() and not record.exists():
        time.sleep(0.02)
    with trouble(kind, disk, home):
        running.join()
        judge(kind, go_on, running.exitcode, home, tally)


def trouble(kind: str, disk: Path, home: Path) -> AbstractContextManager[None]:
    """Makes a disk bad, and repairs it."""
    return bad_disks.TROUBLES[kind][0](home / "nights" / NIGHT / "data" if kind == "owner" else disk)


def record_of(name: str, folder: Path) -> Path | None:
    """The record that a stage writes; None where it writes none."""
    kind = typing.get_type_hints(stages.STAGES[name].function)["return"]
    writes = isinstance(kind, type) and issubclass(kind, Record)
    return records.path_of(kind, folder / records.RUN) if writes else None


def judge(kind: str, words: list[str], status: int | None, home: Path, tally: Counter[str]) -> None:
    """Counts how a call ended while the disk was bad."""
    text = interruptions.output_of(words).read_text()
    cause = bad_disks.TROUBLES[kind][1].format(re.escape(str(home)))
    tally[kind] += 1
    if "Traceback (most recent call last)" in text:
        ended = "traceback"
    elif status in (0, 99):
        ended = "well"
    elif status == 1 and re.search(f"{cause}.*({GO_ON}|run this again)", text):
        ended = "sentence"
    else:
        ended = "otherwise"
    tally[ended] += 1
    print(f"{kind}: {' '.join(words[:3])} ended with {status}: {ended}", flush=True)
    if ended in ("traceback", "otherwise"):
        print(text[-3000:], flush=True)
    for path in (home / "nights" / NIGHT / records.RUN).glob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            print(f"{kind}: {path} is torn", flush=True)
            tally["torn"] += 1


def started(words: list[str], folder: Path) -> ForkProcess:
    """A fork of this process that runs a command, without root's capabilities to change others' files."""

    def run() -> None:
        give_up_capabilities()
        sys.exit(interruptions.status_of(words, folder))

    process = get_context("fork").Process(target=run)
    process.start()
    return process


def status_of(words: list[str], folder: Path) -> int:
    """Run such a command; its exit status."""
    process = started(words, folder)
    process.join()
    return typing.cast(int, process.exitcode)


def expect_well(words: list[str], folder: Path) -> None:
    """Runs a command, which must end well, or with nothing to do."""
    status = status_of(words, folder)
    if status not in (0, 99):
        raise RuntimeError(
            f"{words[0]} ended with {status}:\n{interruptions.output_of(words).read_text()[-3000:]}"
        )


def give_up_capabilities() -> None:
    """Lets this process and those that it starts change only files that are their user's."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    done = libc.capget(header, sets)
    for number in CAPABILITIES.values():
        done |= libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
        for which in range(3):  # effective, permitted, inheritable: of the first 32
            sets[which] &= ~(1 << number)
    done |= libc.capset(header, sets)
    if done:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def copy(home: Path, into: Path) -> None:
    subprocess.run(["cp", "-a", f"{home}/.", into], check=True)


def end_all(home: Path) -> None:
    """Kills what is left of a night."""
    while left := processes_in(home):
        for process in left:
            with suppress(ProcessLookupError):
                process.kill()
        time.sleep(0.05)


if __name__ == "__main__":
    main()
