"""Each seed counts once, whatever machines are lost and whoever comes late."""

from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.bag.state import BagState

NEVER = float("inf")


def state(*events: tuple[str, str, dict[str, object]], runs: int = 3, needed: int = 3) -> BagState:
    each = BagState(num_runs=runs, num_needed=needed)
    each.fold(
        {"event": event, "lease": lease, "time": 1.0 + number, **facts}
        for number, (event, lease, facts) in enumerate(events)
    )
    return each


def test_a_run_that_a_machine_took_with_it_is_run_again_first() -> None:
    lost = state(
        ("lease", "a", {}),
        ("begin", "a", {}),
        ("take", "a", {"seed": 0}),
        ("end", "a", {"state": "preempted"}),
        ("lease", "b", {}),
        ("begin", "b", {}),
    )
    assert lost.next_seed("b", age_s=0.0, replace_at_s=NEVER) == 0
    assert len(lost.lost) == 1


def test_a_run_that_is_cancelled_does_not_count_as_lost() -> None:
    ended = state(("lease", "a", {}), ("take", "a", {"seed": 0}), ("end", "a", {"state": "cancelled"}))
    assert (ended.free()[0], ended.lost) == (0, [])


def test_a_machine_that_is_too_old_gets_no_seed() -> None:
    assert state(("lease", "a", {})).next_seed("a", age_s=10.0, replace_at_s=9.0) is None


def test_a_worker_that_counts_as_lost_has_no_run_to_end() -> None:
    gone = state(("lease", "a", {}), ("take", "a", {"seed": 0}), ("end", "a", {"state": "preempted"}))
    assert not gone.holds("a", 0)
    assert gone.next_seed("a", age_s=0.0, replace_at_s=NEVER) is None


def test_a_job_that_begins_anew_has_lost_its_run() -> None:
    again = state(("lease", "a", {}), ("begin", "a", {}), ("take", "a", {"seed": 0}), ("begin", "a", {}))
    assert again.next_seed("a", age_s=0.0, replace_at_s=NEVER) == 0


def test_a_seed_that_failed_twice_is_given_up_and_too_many_of_them_end_the_bag() -> None:
    twice = [("take", "a", {"seed": 0}), ("failed", "a", {"seed": 0})] * 2
    assert state(("lease", "a", {}), *twice, needed=2).given_up == [0]
    assert not state(("lease", "a", {}), *twice, needed=2).hopeless
    assert state(("lease", "a", {}), *twice, needed=3).hopeless


def test_no_machine_is_asked_for_that_would_find_no_seed() -> None:
    asked = state(("lease", "a", {}), ("take", "a", {"seed": 0}), ("lease", "b", {}))
    assert asked.num_wanted(num_machines=8) == 1


@given(st.data())
def test_whatever_happens_enough_seeds_are_done_once_each(data: st.DataObject) -> None:
    runs = data.draw(st.integers(1, 6))
    bag = BagState(num_runs=runs, num_needed=data.draw(st.integers(1, runs)))
    done: list[int] = []
    for number in range(400):
        if bag.enough:
            break
        for _ in range(bag.num_wanted(num_machines=3)):
            bag.fold([{"event": "lease", "lease": f"{len(bag.leases)}", "time": 1.0 + number}])
        lease = data.draw(st.sampled_from(bag.live)).name if bag.live else ""
        held = next((seed for seed, (by, _) in bag.taken.items() if by == lease), None)
        if not lease:
            continue
        if number % 7 == 6:
            events = [{"event": "end", "state": "preempted"}]
        elif held is not None:
            events, done = [{"event": "done", "seed": held, "elapsed_s": 1.0}], [*done, held]
        else:
            seed = bag.next_seed(lease, age_s=0.0, replace_at_s=NEVER)
            ends = {"event": "end", "state": "succeeded"}
            events = [ends if seed is None else {"event": "take", "seed": seed}]
        bag.fold([{**event, "lease": lease, "time": 1.0 + number} for event in events])
    assert bag.enough
    assert sorted(done) == sorted(set(done)) == sorted(bag.done)
