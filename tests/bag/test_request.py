"""A bag is rented in the cheaper way, goes on by its name, and refuses what cannot be done."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.backends.local import Local
from pipeline.bag.request import Request, dispatcher
from pipeline.contract import records
from pipeline.contract.errors import ParamsError
from pipeline.contract.records import LOCAL, Rental
from pipeline.machines.catalog import AT_HAND
from tests.backends.small_place import MACHINE, Cloud
from tests.bag.test_dispatcher import SharedRack

HOUR_S = 3600.0
ASKED = Request(command="echo {seed}", num_runs=10, num_machines=2)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_HOME", str(tmp_path))
    return tmp_path


def way(request: Request, *, lives: list[tuple[float, bool]], spot: bool = True) -> str:
    rental = Rental(machine=MACHINE.name, region=MACHINE.region)
    made = dispatcher(
        request, backend=SharedRack(Cloud()), machine=MACHINE, rental=rental, spot=spot, lives=lives
    )
    return made.bag.rental.strategy


def here(request: Request) -> None:
    made = dispatcher(
        request, backend=Local(), machine=AT_HAND, rental=Rental(machine=LOCAL), spot=True, lives=()
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


@pytest.mark.parametrize(
    ("wrong", "why"),
    [({"num_needed": 11}, "11 of 10 runs"), ({"hours": 0.0}, "--hours"), ({"name": "../b"}, "not a name"),
     ({"command": " "}, "is empty")],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_with_what_to_do(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ParamsError, match=why):
        here(replace(ASKED, **wrong))
