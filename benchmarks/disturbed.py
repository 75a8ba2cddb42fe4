"""What the benchmarks of faults share: submissions that are disturbed, planted ends, nights that train.

Each line: a process that submits is killed, as by SIGKILL, at each line of the backend that a submission
runs, and another submits anew. Each call: every call of a submission goes wrong in every way that the place
knows. At random: up to four processes in a row, killed at random lines, with random trouble on every third
call, among them a place that answers nothing, and then one undisturbed; then the night is gone, and the
reaper looks. Ends: one job for each way in which a job may end, and the word for it. Training: tonight's
model is really trained, while something happens to its machines or to the place.

Almost all of the time is spent in waiting. So lines and trials are dealt out to processes, each with a place
and a home of its own. Within one, whoever submits is a fork of an interpreter that has imported the client.
"""

import logging
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

from benchmarks import frame
from daybreak.backends.ownership import home_token
from daybreak.backends.submission_journal import SubmissionJournal
from daybreak.contract.backend import LIVE, Backend, Job, JobState
from daybreak.contract.record_parts import Rental
from daybreak.jobs.reaper import orphans
from daybreak.storage.home import Home
from tests.backends import killed
from tests.backends.rented import end
from tests.backends.together import TrainingNight
from tests.training import nights

How = Callable[[], str]  # of the next call, how it goes wrong; "" for not at all
NUM_ENDS = NUM_TRAINED = 20
AWAY_S = 90  # that a place is away, and a look each second
ENDING_S = 60.0  # in which a job that has written its result ends


@dataclass(frozen=True)
class End:
    """A way in which a job ends: the state and the sentence to expect, and how to cause it."""

    name: str
    state: JobState
    words: str = ""  # that the reason has in it
    script: str = "exec sleep 60"
    rental: Mapping[str, object] | None = None  # beside the machine
    act: Callable[[str], object] = lambda handle: None  # once it runs
    backend: Callable[[], Backend] | None = None  # another than that of the place
    around: Callable[[], AbstractContextManager[object]] = nullcontext  # while it is submitted
    waits: bool = False  # it never runs
    timeout_s: float = 600


@dataclass(frozen=True)
class Fault:
    """What happens while a model is trained."""

    name: str
    act: Callable[[TrainingNight], object]
    restarts: bool = True  # the job has to start again
    num_machines: int = 1


def looks_amid(
    trouble: Callable[[], AbstractContextManager[object]], number: int = 10
) -> Callable[[TrainingNight], None]:
    """What lets a night look so often while there is trouble."""

    def act(night: TrainingNight) -> None:
        with trouble():
            for _ in range(number):
                night.looks()

    return act


class Place(ABC):
    """A place where jobs run, and what may go wrong there."""

    hows: Sequence[str]  # of a call

    @abstractmethod
    def backend(self) -> Backend:
        """The backend as another process has it."""

    @abstractmethod
    def job(self, folder: Path, *, name: str, script: str = "exec sleep 60", **given: object) -> Job:
        """A job that runs a script."""

    @abstractmethod
    def alone(self, name: str, handle: str) -> bool:
        """Whether the job of that handle lives, and no other of that name."""

    @abstractmethod
    def num_live(self) -> int:
        """Jobs that have not ended."""

    @abstractmethod
    def troubled(self, how: How) -> AbstractContextManager[None]:
        """Calls go wrong meanwhile."""

    @abstractmethod
    def num_calls(self) -> int:
        """Calls so far."""

    def let_late_ones_act(self) -> None:  # noqa: B027 a place may have none
        """Wait until requests that are on their way have arrived."""

    def impatient(self) -> Backend:
        """A backend that gives up on a call after moments."""
        return self.backend()

    def trainer(self) -> Backend:
        """The backend that trains, which may need a bucket."""
        return self.backend()

    def wait_in_queue(self) -> AbstractContextManager[None]:
        """Jobs do not start meanwhile, as it is submissions that are counted."""
        return nullcontext()

    def ends(self) -> Sequence[End]:
        """Twenty ways in which a job ends."""
        return ()

    def faults(self) -> Sequence[Fault]:
        """What may happen while a model is trained."""
        return ()

    def rental(self, num_machines: int) -> Rental:
        """What a model is trained on."""
        raise NotImplementedError

    bucket = ""  # URL, where machines share no folder with this one


def scripted(*hows: str) -> How:
    """The next calls go wrong one after the other; those after them do not."""
    left = list(hows)
    return lambda: left.pop(0) if left else ""


def submitted(place: Place, job: Job) -> str:
    """The handle that a night has of a job after a look.

    Where an older request arrives after it was submitted again, the look keeps the older job, and the night
    submits once more and gets that.
    """
    handle = place.backend().submit(job)
    place.let_late_ones_act()
    return handle if place.backend().state(handle) in LIVE else place.backend().submit(job)


def at_each_line(place: Place, folder: Path, part: int, parts: int) -> dict[str, float]:
    """Kill a submission at each of its lines, submit again, and count jobs."""
    lines = killed.lines_of(place.backend, place.job(folder / "first", name="first"))
    step = 8 if frame.QUICK else 1
    wrong = 0
    points = list(range(1, lines + 1, step))[part::parts]
    for line in points:
        name = f"line{line}"
        job = place.job(folder / name, name=name)
        status, _ = killed.submit(place.backend, job, line=line)
        if status == 0 and line > lines - 3:
            continue  # it waited once less than when its lines were counted
        if status != killed.KILLED:
            raise RuntimeError(f"line {line} of {lines} was not reached: {status}")
        wrong += not place.alone(name, submitted(place, job))
    return {"lines killed at": len(points), "killed at a line, not one job": wrong}


def at_each_call(place: Place, folder: Path, part: int, parts: int) -> dict[str, float]:
    """Disturb each call of a submission in each way, submit again if it failed, and count jobs."""
    before = place.num_calls()
    place.backend().submit(place.job(folder / "calls", name="calls"))
    num_calls = place.num_calls() - before
    wrong = tried = 0
    for number in range(num_calls):
        for how in place.hows[part::parts]:
            for times in (1, 2):
                name = f"call{number}-{how.replace(' ', '-')}-{times}"
                job = place.job(folder / name, name=name)
                with place.troubled(scripted(*[""] * number, *[how] * times)):
                    killed.submit(place.impatient, job)
                handle = submitted(place, job)
                tried, wrong = tried + 1, wrong + (not place.alone(name, handle))
    return {"calls disturbed": tried, "a call disturbed, not one job": wrong}


def at_random(place: Place, folder: Path, part: int, parts: int) -> dict[str, float]:
    """Kill and disturb at random, then look for orphans when nights have gone."""
    wrong = left = lost = 0
    lines = killed.lines_of(place.backend, place.job(folder / "again", name="again"))
    seeds = range(part, num_trials(), parts)
    for seed in seeds:
        rng = random.Random(seed)
        name = f"random{seed}"
        job = place.job(folder / name, name=name, night=f"night{seed}")
        for _ in range(rng.randint(1, 4)):
            share = 1.0 if rng.random() < 0.1 else 1 / 3  # 1: the place is away
            line = rng.choice([0, rng.randint(1, 2 * lines)])
            with place.troubled(_at_times(rng, place.hows, share)):
                killed.submit(place.impatient, job, line=line)
        backend = place.backend()
        if seed % 3:
            handle = submitted(place, job)
            wrong += not place.alone(name, handle)
            alive = [each.handle for each in backend.live() if each.night == f"night{seed}"]
            lost += handle.partition(" ")[0] not in {each.partition(" ")[0] for each in alive}
        else:  # the night is never asked for again; a kill may come before its folder is made
            shutil.rmtree(folder / name, ignore_errors=True)
        later = datetime.fromtimestamp(time.time() + 3600, UTC)
        for orphan in orphans(backend.live(), {}, now=later):
            backend.cancel(orphan.handle)
        left += place.num_live()
    return {
        "random trials": len(seeds),
        "random trials, not one job": wrong,
        "orphans after the reaper": left,
        "wanted jobs ended by the reaper": lost,
    }


def _at_times(rng: random.Random, hows: Sequence[str], share: float) -> How:
    return lambda: rng.choice(hows) if rng.random() < share else ""


def planted_ends(place: Place, folder: Path, part: int, parts: int) -> dict[str, float]:
    """Bring about each end, and compare what is said of it."""
    wrong = 0
    mine = place.ends()[part::parts]
    for number, planted in enumerate(mine):
        where = folder / f"end{number}"
        job = place.job(
            where,
            name=f"end{part}-{number}",
            script=planted.script,
            timeout_s=planted.timeout_s,
            **(planted.rental or {}),
        )
        make = planted.backend or place.backend
        state = "none"
        with place.troubled(lambda: ""):  # which ends what was done to the place
            with planted.around():
                handle = make().submit(job)
            try:
                if not planted.waits:
                    end(_Until(make(), "running"), handle)
                planted.act(handle.partition(" ")[0])
                state = end(make(), handle, timeout_s=120)
            except AssertionError as error:
                print(f"{planted.name}: {error}", file=sys.stderr)
        reason = SubmissionJournal(where / "job").submissions()[-1].reason
        right = state == planted.state and planted.words in reason
        wrong += not right
        print(f"{part} {planted.name}: {state}{'' if right else f', {reason!r}'}", file=sys.stderr)
        make().cancel(handle)
    return {"planted ends": len(mine), "planted ends with a wrong word": wrong}


@dataclass(frozen=True)
class _Until:
    """A backend whose jobs are over once they are in a state."""

    backend: Backend
    wanted: JobState

    def state(self, handle: str) -> JobState:
        state = self.backend.state(handle)
        return "queued" if state in LIVE and state != self.wanted else "succeeded"


def training(place: Place, folder: Path, part: int, parts: int) -> dict[str, float]:
    """Train tonight's model through each fault, and look at the model and at what is left."""
    wrong = twice = left = 0
    all_faults = place.faults()
    count = len(all_faults) if frame.QUICK else NUM_TRAINED
    chosen = [all_faults[number % len(all_faults)] for number in range(count)][part::parts]
    for number, fault in enumerate(chosen):
        began = time.monotonic()
        night = TrainingNight(
            folder / f"night{number}",
            place.trainer(),
            rental=place.rental(fault.num_machines),
            bucket=place.bucket and f"{place.bucket}/night{number}",
            name=f"n{part}-{number}",
            num_samples=6000,
        )
        most = 0

        def look(night: TrainingNight = night) -> None:
            nonlocal most
            most = max(most, place.num_live())
            night.ask()

        try:
            night.be_slow()  # so that it is not over before something happens
            night.until_saved()
            fault.act(night)
            night.be_quick()
            night.looks = look
            result = night.finish()
        except Exception:  # noqa: BLE001 whatever it is, the other nights are still to be seen
            traceback.print_exc()
            wrong += 1
            for lost in place.backend().live():
                place.backend().cancel(lost.handle)
            continue
        whole = [each.whole for each in result.epochs[: result.num_samples // 1000]]
        good = result.stopped_by == "finished" and result.num_samples == night.num_samples and all(whole)
        good = good and (result.num_restarts > 0) == fault.restarts
        wrong, twice, left = wrong + (not good), twice + (most > 1), left + still_live(place)
        print(
            f"{part} {fault.name}: {time.monotonic() - began:.0f} s, {'as it should' if good else result}",
            file=sys.stderr,
        )
    return {
        "nights trained through a fault": len(chosen),
        "nights without all samples once, or restarted in vain": wrong,
        "nights with two jobs at once": twice,
        "jobs left by nights": left,
    }


def still_live(place: Place) -> int:
    """Returns the number of jobs still running a while after their results."""
    until = time.monotonic() + ENDING_S
    while (live := place.num_live()) and time.monotonic() < until:
        time.sleep(0.5)
    return live


def num_trials() -> int:
    """How many random trials there are."""
    return 20 if frame.QUICK else 200


def targets(*, lines: int, calls: int) -> dict[str, frame.Target]:
    """What has to come out."""
    return {
        "lines killed at": (">=", lines // 8 if frame.QUICK else lines),
        "killed at a line, not one job": ("==", 0),
        "calls disturbed": (">=", calls),
        "a call disturbed, not one job": ("==", 0),
        "random trials": ("==", num_trials()),
        "random trials, not one job": ("==", 0),
        "orphans after the reaper": ("==", 0),
        "wanted jobs ended by the reaper": ("==", 0),
        "planted ends": (">=", NUM_ENDS),
        "planted ends with a wrong word": ("==", 0),
        "nights trained through a fault": (">=", 1 if frame.QUICK else NUM_TRAINED),
        "nights without all samples once, or restarted in vain": ("==", 0),
        "nights with two jobs at once": ("==", 0),
        "jobs left by nights": ("==", 0),
    }


Measure = Callable[[Place, Path, int, int], dict[str, float]]
Make = Callable[
    [Path, int], AbstractContextManager[Place]
]  # of a place in a folder, for the part of that number


@dataclass(frozen=True)
class _Part:
    """A share of it, in a process of its own."""

    make: Make
    measures: Sequence[Measure]
    parts: int

    def __call__(self, part: int) -> dict[str, float]:
        logging.getLogger("daybreak").setLevel(logging.ERROR)
        figures: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as scratch, nights.surroundings():
            folder = Path(scratch).resolve()
            with patch.dict(os.environ, DAYBREAK_HOME=str(folder / "home")), self.make(folder, part) as place:
                assert home_token(Home.here())
                for measure in self.measures:
                    began = time.monotonic()
                    with place.wait_in_queue() if measure in SUBMISSIONS else nullcontext():
                        figures |= measure(place, folder, part, self.parts)
                    print(f"{part} {measure.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr)
        return figures


SUBMISSIONS: tuple[Measure, ...] = (at_each_line, at_each_call, at_random)
ALL: tuple[Measure, ...] = (*SUBMISSIONS, planted_ends, training)


def run(
    name: str,
    make: Make,
    *,
    measures: Sequence[Measure],
    parts: int,
    all_targets: Mapping[str, frame.Target],
) -> NoReturn:
    """Run all of it in so many processes, and add up."""
    figures = dict.fromkeys(all_targets, 0.0)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(parts, mp_context=context) as pool:
        for part in pool.map(_Part(make, measures, parts), range(parts)):
            for key, figure in part.items():
                figures[key] += figure
    frame.finish(name, figures, all_targets)
