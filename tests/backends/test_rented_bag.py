"""A bag on rented machines that see nothing of this disk, of which some are taken away, as is its command."""

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract.backend import Backend
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.extensions.bag.bag_estimates import Setup
from daybreak.extensions.bag.bucket_bag import opened
from daybreak.extensions.bag.dispatcher import Dispatcher
from daybreak.extensions.bag.folder import BAGS, Bag
from tests.backends import rented
from tests.backends.rented import wait

pytestmark = pytest.mark.slow

RUNS, NEEDED = 8, 6
SIMULATE = """\
import pathlib, sys, time
seed, folder = sys.argv[1:]
if seed == "1":
    sys.exit("seed 1 is of no use")
time.sleep(0.5)
pathlib.Path(folder, "result").write_text(pathlib.Path("words.txt").read_text() + seed)
"""


@dataclass
class Place:
    """Where machines are rented, and what takes one away."""

    backend: Backend
    rental: Rental
    take_one: Callable[[], object]
    num_live: Callable[[], int]

    @property
    def machine(self) -> Machine:
        return next(each for each in self.backend.machines() if each.name == self.rental.machine)


@pytest.fixture(params=["vertex", "kubernetes"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    bucket = f"file://{tmp_path}/bucket"
    if request.param == "vertex":
        service = request.getfixturevalue("service")
        where = ("us-central1", "n2-standard-8")

        def take_one() -> None:
            one, service.market.stock[where] = service.live()[0], 0  # so that it is not started again
            one.tell("preempt")
            one.thread.join()
            del service.market.stock[where]

        rental = Rental(machine=where[1], region=where[0], strategy="spot")
        backend = rented.vertex(service.url, bucket=bucket)
        return Place(backend, rental, take_one, lambda: len(service.live()))
    from daybreak.extensions.kubernetes.kubernetes import Kubernetes

    cluster = request.getfixturevalue("kubernetes")
    file = str(tmp_path / "machines.csv")
    pods = Kubernetes(image="eu.example/trainer:1", machines=file, bucket=bucket)
    return Place(
        pods,
        Rental(machine="node"),
        lambda: cluster.disrupt(cluster.live()[0]["metadata"]["name"]),
        lambda: len(cluster.live()),
    )


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A team's folder with a command, and what it reads."""
    folder = tmp_path / "team"
    folder.mkdir()
    monkeypatch.chdir(folder)
    subprocess.run(["git", "init", "--quiet"], check=True)
    Path("simulate.py").write_text(SIMULATE)
    Path("words.txt").write_text("seed ")
    return folder


def test_a_bag_on_machines_that_see_another_disk_has_each_seed_once_whatever_is_taken_away(
    place: Place, team: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / BAGS / "b"
    bag = Bag(
        name="b",
        command=("python", "simulate.py", "{seed}", "{folder}"),
        cwd=str(team),
        num_runs=RUNS,
        num_needed=NEEDED,
        rental=place.rental,
        url=f"file://{tmp_path}/bucket/bags/b",
        until=datetime.now(UTC) + timedelta(minutes=2),
    )

    def run() -> Any:
        setup = Setup(backend=place.backend, machine=place.machine, num_machines=2)
        return Dispatcher(folder, bag, setup).run(lambda state: None)

    killed = os.fork()
    if not killed:
        run()
        os._exit(1)
    (tmp_path / "onlooker").mkdir()
    onlooker = opened(tmp_path / "onlooker", bag)
    wait(lambda: onlooker.refreshed().taken)
    place.take_one()
    wait(lambda: onlooker.refreshed().done)
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    num_done = len(onlooker.refreshed().done)
    wait(lambda: len(onlooker.refreshed().done) > num_done)  # nobody hands out seeds meanwhile

    outcome = run()
    state = onlooker.refreshed()
    results = {int(path.parent.name): path.read_text() for path in folder.glob("seeds/*/result")}
    assert results == {seed: f"seed {seed}" for seed in state.done}
    assert outcome.num_done == len(results) >= NEEDED
    assert outcome.num_preempted >= 1
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert max(Counter(each["seed"] for each in events if each["event"] == "done").values()) == 1
    assert "seed 1 is of no use" in (folder / "work/1/log.txt").read_text()
    assert place.num_live() == 0
    assert (outcome.usd or 0) > 0
