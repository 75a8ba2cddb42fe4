"""A bag is rented in the cheaper way, goes on by its name, and refuses what cannot be done."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.backends.local import Local
from daybreak.backends.several import Several
from daybreak.contract import records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import LOCAL, Rental
from daybreak.extensions.bag.dispatcher import Dispatcher
from daybreak.extensions.bag.folder import BAGS, Bag, BagFolder
from daybreak.extensions.bag.request import BagRequest, dispatcher
from daybreak.machines.catalog import AT_HAND
from daybreak.storage.home import Home
from tests.backends.small_place import MACHINE, Cloud, SmallPlace
from tests.extensions.bag.test_dispatcher import SharedRack

HOUR_S = 3600.0
ASKED = BagRequest(command="echo {seed}", num_runs=10, num_machines=2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    return tmp_path


def way(request: BagRequest, *, lives: list[tuple[float, bool]], spot: bool = True) -> str:
    rental = Rental(machine=MACHINE.name, region=MACHINE.region)
    made = dispatcher(
        Home.here(),
        request,
        backend=SharedRack(Cloud()),
        machine=MACHINE,
        rental=rental,
        spot=spot,
        lives=lives,
    )
    return made.bag.rental.strategy


def here(request: BagRequest) -> None:
    made = dispatcher(
        Home.here(),
        request,
        backend=Local(),
        machine=AT_HAND,
        rental=Rental(machine=LOCAL),
        spot=True,
        lives=(),
    )
    records.write(made.bag, made.folder)


def test_short_runs_are_on_spot_and_long_ones_that_spot_machines_do_not_outlive_on_demand() -> None:
    die_young = [(HOUR_S, True)] * 19
    assert way(replace(ASKED, run_s=600.0), lives=die_young) == "spot"
    assert way(replace(ASKED, run_s=24 * HOUR_S), lives=die_young) == "on-demand"
    assert way(replace(ASKED, run_s=24 * HOUR_S, save_s=20.0), lives=die_young) == "spot"
    assert way(replace(ASKED, run_s=600.0), lives=die_young, spot=False) == "on-demand"


def test_a_bag_of_that_name_that_runs_another_command_is_not_gone_on_with() -> None:
    here(replace(ASKED, name="b"))
    here(replace(ASKED, name="b", num_runs=20))
    with pytest.raises(ParamsError, match="bag b runs echo"):
        here(replace(ASKED, name="b", command="echo {seed} again"))


def test_machines_that_do_not_see_this_disk_meet_in_the_bucket_of_their_backend() -> None:
    def made(backend: Backend, name: str) -> Dispatcher:
        rental = Rental(machine=MACHINE.name, region=MACHINE.region, backend=name)
        asked = replace(ASKED, name="b")
        return dispatcher(
            Home.here(), asked, backend=backend, machine=MACHINE, rental=rental, spot=True, lives=()
        )

    vertex = {
        "use": "daybreak:Vertex",
        "project": "p",
        "image": "i",
        "bucket": "gs://b/s",
    }
    several = Several(backends=[{"use": "daybreak:Local"}, vertex])
    with pytest.raises(ParamsError, match=r"do not see .*/b, .*; set backend.bucket"):
        made(SmallPlace(Cloud()), "")
    first = made(several, "vertex")
    assert re.fullmatch("gs://b/s/bags/b-[0-9a-f]{8}", first.bag.url)
    records.write(first.bag, first.folder)
    assert made(several, "vertex").bag.url == first.bag.url


def test_a_bag_whose_machines_meet_on_this_disk_goes_on_in_a_bucket_once_they_have_ended() -> None:
    asked, rental = replace(ASKED, name="b"), Rental(machine=MACHINE.name, region=MACHINE.region)
    here(asked)
    folder = BagFolder(Home.here().folder / BAGS / "b", records.read(Bag, Home.here().folder / BAGS / "b"))
    folder.add("lease", lease="1", time=0.0)
    elsewhere = SmallPlace(Cloud(), bucket="gs://b")
    with pytest.raises(ParamsError, match="wait until they have ended"):
        dispatcher(Home.here(), asked, backend=elsewhere, machine=MACHINE, rental=rental, spot=True, lives=())
    folder.add("end", lease="1", state="cancelled", time=1.0)
    made = dispatcher(
        Home.here(), asked, backend=elsewhere, machine=MACHINE, rental=rental, spot=True, lives=()
    )
    assert made.bag.url.startswith("gs://b/bags/b-")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"num_needed": 11}, "11 of 10 runs"),
        ({"hours": 0.0}, "--hours"),
        ({"name": "../b"}, "not a name"),
        ({"command": " "}, "is empty"),
        ({"command": "echo 'a"}, "No closing quotation.*check its quotes"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_do(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ParamsError, match=why):
        here(replace(ASKED, **wrong))
