"""How an evening is divided among models: no machine twice, nobody left out, deadlines before dollars."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.extensions.fleets import sharing
from daybreak.extensions.fleets.sharing import ROOM, EveningDemand, Share, Way, divide

MACHINES = {"a": 2, "b": 1}


def way(
    machine: str = "a", num_machines: int = 1, hours: float = 1.0, usd: float = 1.0, **shares: float
) -> Way:
    seconds = 3600 * hours
    return Way(
        machine=machine, num_machines=num_machines, seconds=seconds, late_s=1.2 * seconds, usd=usd, **shares
    )


def demand(model: str, *ways: Way, hours: float = 24, **given: float) -> EveningDemand:
    return EveningDemand(model=model, ways=ways, deadline_s=3600 * hours, **given)


ways = st.builds(
    way,
    st.sampled_from(["a", "b"]),
    st.integers(1, 2),
    st.floats(0.1, 5),
    st.floats(0.1, 9),
    busy=st.floats(0.2, 1),
    memory=st.floats(0.2, 1),
)
evenings = st.lists(st.lists(ways, min_size=1, max_size=4), min_size=1, max_size=5).map(
    lambda all_of: [demand(f"m{number}", *each) for number, each in enumerate(all_of)]
)


@settings(max_examples=40, deadline=None)
@given(evenings)
def test_no_machine_is_used_by_more_than_it_has_room_for_and_nobody_is_left_out(
    demands: list[EveningDemand],
) -> None:
    division = divide(demands, machines=MACHINES)
    could = {d.model for d in demands if any(w.num_machines <= MACHINES[w.machine] for w in d.ways)}
    assert {share.model for share in division.shares} == could
    assert set(division.left_out) == {d.model for d in demands} - could
    for now in (share.start_s for share in division.shares):
        for name, count in MACHINES.items():
            there = [s for s in division.shares if s.way.machine == name and s.start_s <= now < s.end_s]
            for kind in ("busy", "memory"):
                used = sum(getattr(s.way, kind) * s.way.num_machines for s in there)
                assert used <= count * ROOM + 1e-6


@settings(max_examples=40, deadline=None)
@given(evenings, st.floats(0.1, 30))
def test_the_dollars_of_all_together_suffice_for_the_shares(
    demands: list[EveningDemand], budget_usd: float
) -> None:
    division = divide(demands, machines=MACHINES, budget_usd=budget_usd)
    assert sum(share.way.usd for share in division.shares) <= budget_usd + 1e-6


def test_models_take_other_machines_rather_than_wait_for_the_best_one() -> None:
    both = [way("a", 2, 1.0, 4), way("b", 1, 1.5, 1)]
    division = divide([demand("x", *both), demand("y", *both)], machines=MACHINES)
    assert max(share.end_s for share in division.shares) == 1.5 * 3600
    assert {share.way.machine for share in division.shares} == {"a", "b"}


def test_who_is_due_first_goes_first_though_the_other_offered_before() -> None:
    division = divide([demand("x", way("b"), hours=9), demand("y", way("b"), hours=1.3)], machines=MACHINES)
    assert [share.model for share in division.shares] == ["y", "x"]


def test_two_jobs_share_a_machine_only_where_its_time_and_memory_hold_both() -> None:
    def ends(**shares: float) -> list[float]:
        demands = [demand(name, way("b", **shares)) for name in ("x", "y")]
        return [share.end_s / 3600 for share in divide(demands, machines=MACHINES).shares]

    assert ends(busy=0.5, memory=0.4) == [1, 1]
    assert ends(busy=0.6, memory=0.4) == [1, 2]
    assert ends(busy=0.5, memory=0.7) == [1, 2]


def test_who_was_left_out_goes_first_on_the_next_evening() -> None:
    x, y = demand("x", way(usd=1), value=2), demand("y", way(usd=1))
    first = divide([x, y], machines=MACHINES, budget_usd=1.5)
    assert (first.of("x") is not None, first.left_out) == (True, ("y",))
    second = divide([x, replace(y, left_out=1)], machines=MACHINES, budget_usd=1.5)
    assert (second.of("y") is not None, second.left_out) == (True, ("x",))


@pytest.mark.parametrize("left_s", [60.0, 7200.0])
def test_what_waits_begins_when_the_running_job_is_expected_to_be_done(left_s: float) -> None:
    running = Share(model="x", way=replace(way("b"), seconds=left_s), start_s=0)
    division = divide([demand("y", way("b"))], machines=MACHINES, running=[running])
    assert division.shares[0].start_s == left_s


def test_a_way_that_costs_more_stays_where_it_is_done_in_time_more_surely() -> None:
    steady = replace(way(hours=2, usd=2), late_s=2.2 * 3600)
    risky = replace(way(hours=1, usd=1), late_s=9 * 3600)  # as on spot
    division = divide([demand("a", risky, steady, hours=3)], machines=MACHINES)
    assert division.of("a") == Share(model="a", way=steady, start_s=0.0)


def test_an_evening_of_many_models_is_divided_within_a_bound_of_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid, lay_out = [], sharing._laid_out

    def counted(order: sharing.Order, **given: Any) -> list[Share]:
        laid.append(len(order))
        return lay_out(order, **given)

    monkeypatch.setattr(sharing, "_laid_out", counted)
    both = [way("a", 1, 2.0, 2), way("a", 2, 1.1, 2.5), way("b", 1, 3.0, 1)]
    demands = [demand(f"m{number:02}", *both, hours=number + 2) for number in range(24)]
    division = divide(demands, machines=MACHINES)
    assert len(division.shares) == 24
    assert len(laid) <= sharing.MOST_LAYOUTS
