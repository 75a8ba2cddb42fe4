"""A bag in a bucket: whoever writes at once, and whatever the bucket loses, each seed is run once."""

import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Rental
from daybreak.extensions.bag.bucket_bag import opened
from daybreak.extensions.bag.folder import LOG, Bag, BagFolder, Event
from daybreak.extensions.bag.state import BagState
from tests import cloud_storage, s3_storage

RUNS, MACHINES = 9, 3


SERVED = {"gs": cloud_storage, "s3": s3_storage}


@pytest.fixture(params=["path", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVED)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "path":
        yield f"file://{tmp_path}/bucket"
        return
    service = SERVED[request.param]
    with service.served(delay_s=0.01) as store, service.emulated(store):
        yield f"{request.param}://bucket/bag"


def bag(url: str, *, save_s: float = 0.0) -> Bag:
    return Bag(
        name="b",
        command=("true",),
        cwd="",
        num_runs=RUNS,
        num_needed=RUNS,
        save_s=save_s,
        url=url,
        rental=Rental(machine="m"),
        until=datetime.now(UTC) + timedelta(minutes=2),
    )


def seen_by(folder: Path, bag: Bag) -> BagFolder:
    """The bag as a process with that folder sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    return opened(folder, bag)


def taken(machine: BagFolder, lease: str) -> int | None:
    def take(state: BagState) -> Event | None:
        seed = state.next_seed(lease, age_s=0.0, replace_at_s=1.0)
        return None if seed is None else {"event": "take", "lease": lease, "seed": seed, "time": 1.0}

    event = machine.decide(take)
    return event and event["seed"]


def done(lease: str, seed: int) -> Event:
    return {"event": "done", "lease": lease, "seed": seed, "elapsed_s": 1.0, "time": 2.0}


def test_machines_that_write_at_once_take_each_seed_once_and_all_see_the_same(
    tmp_path: Path, url: str
) -> None:
    home = seen_by(tmp_path / "home", bag(url))
    home.publish()
    for lease in range(MACHINES):
        home.add("lease", lease=f"{lease}", time=0.0)

    def work(lease: str) -> tuple[list[int], Counter[int]]:
        machine, seeds = seen_by(tmp_path / lease, bag(url)), []
        while (seed := taken(machine, lease)) is not None:
            machine.begin(seed)
            (machine.work(seed) / LOG).write_text(f"{lease} ran {seed}")
            machine.end(done(lease, seed))
            seeds.append(seed)
        return seeds, Counter(machine.refreshed().done)

    with ThreadPoolExecutor(MACHINES) as machines:
        ended = list(machines.map(work, map(str, range(MACHINES))))
    assert sorted(seed for seeds, _ in ended for seed in seeds) == list(range(RUNS))
    assert home.refreshed().enough
    home.fetch()
    ran = {int(path.parent.name): path.read_text() for path in home.path.glob("seeds/*/log.txt")}
    assert ran == {seed: f"{lease} ran {seed}" for lease, (seeds, _) in enumerate(ended) for seed in seeds}
    events = (home.path / "events.jsonl").read_text()
    assert seen_by(tmp_path / "late", bag(url)).refreshed().done == home.state.done
    assert (tmp_path / "late" / "events.jsonl").read_text() == events
    assert events.count("take") == events.count("done") == RUNS


def test_what_a_machine_sends_that_is_given_up_for_lost_does_not_count_and_does_not_stay(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/bucket"
    home, lost, next_one = (seen_by(tmp_path / name, bag(url, save_s=1.0)) for name in ("home", "0", "1"))
    for lease in "01":
        home.add("lease", lease=lease, time=0.0)
    assert taken(lost, "0") == 0
    lost.begin(0)
    (lost.work(0) / "state").write_text("half")
    lost.save("0", 0)
    home.add("end", lease="0", state="preempted", time=1.5)
    assert taken(next_one, "1") == 0
    next_one.begin(0)
    assert (next_one.work(0) / "state").read_text() == "half"
    lost.end(done("0", 0))  # it lived on
    assert not home.refreshed().done
    next_one.end(done("1", 0))
    home.refreshed()
    home.fetch()
    assert (home.result(0) / "state").read_text() == "half"
    things = tmp_path / "bucket" / "things"
    assert not [path for path in things.rglob("*") if path.is_file()]


def test_events_that_the_bucket_has_lost_are_written_there_again(tmp_path: Path) -> None:
    each = bag(f"file://{tmp_path}/bucket")
    home = seen_by(tmp_path / "home", each)
    for number in range(5):
        home.add("lease", lease=f"{number}", time=0.0)
    shutil.rmtree(tmp_path / "bucket")
    again = seen_by(tmp_path / "home", each)
    again.publish()
    again.add("lease", lease="5", time=0.0)
    assert len(seen_by(tmp_path / "machine", each).refreshed().leases) == 6


def test_a_storage_that_writes_over_what_is_there_is_refused(tmp_path: Path) -> None:
    with cloud_storage.served(honours=False) as store, cloud_storage.emulated(store):
        home = seen_by(tmp_path / "home", bag("gs://bucket/bag"))
        with pytest.raises(JobError, match="writes over what is there"):
            home.publish()


def test_a_bucket_that_does_not_answer_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("no folder")
    with pytest.raises(JobError, match=r"file://.*/bucket does not answer .*the same command goes on"):
        seen_by(tmp_path / "home", bag(f"file://{tmp_path}/bucket")).refreshed()


def test_of_a_run_that_goes_on_no_state_is_sent_that_never_was(tmp_path: Path) -> None:
    machine = seen_by(tmp_path / "0", bag(f"file://{tmp_path}/bucket", save_s=1.0))
    machine.add("lease", lease="0", time=0.0)
    assert taken(machine, "0") == 0
    machine.begin(0)
    (machine.work(0) / LOG).write_text("only words")
    machine.save("0", 0)
    assert not machine.state.things
    over, names = threading.Event(), [f"{number}" for number in range(20)]

    def run() -> None:
        for number in itertools.count():
            for name in names:
                (machine.work(0) / f"{name}.new").write_text(f"{number}")
                (machine.work(0) / f"{name}.new").rename(machine.work(0) / name)
            if over.wait(0.02):
                return

    with ThreadPoolExecutor(1) as aside, ExitStack() as at_end:
        aside.submit(run)
        at_end.callback(over.set)
        for _ in range(30):
            machine.save("0", 0)
            if thing := machine.state.things.get(0):
                paths = [tmp_path / "bucket" / "things" / thing / name for name in names]
                written = [int(path.read_text()) if path.exists() else -1 for path in paths]
                assert written == sorted(written, reverse=True)
                assert written[0] - written[-1] <= 1
    machine.save("0", 0)
    thing = machine.state.things[0]
    machine.save("0", 0)
    assert machine.state.things == {0: thing}  # as nothing has changed
