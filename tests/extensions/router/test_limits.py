from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.router import limits
from daybreak.extensions.router.limits import Buckets


@given(st.floats(1, 50), st.lists(st.floats(0, 0.5), min_size=1, max_size=200))
def test_nobody_is_let_through_more_often_than_the_rate_allows(per_s: float, waits: list[float]) -> None:
    now = [0.0]
    buckets = Buckets(per_s, clock=lambda: now[0])
    granted = 0
    for wait in waits:
        now[0] += wait
        granted += buckets.take("one")
        assert granted <= per_s * (now[0] + 1) + 1e-6
    now[0] += 1.001  # floats round
    assert buckets.take("one")


def test_clients_do_not_hold_up_each_other() -> None:
    buckets = Buckets(1, clock=lambda: 0.0)
    assert [buckets.take(client) for client in ("a", "a", "b", "b")] == [True, False, True, False]


def test_no_limit_lets_everybody_through() -> None:
    buckets = Buckets(0, clock=lambda: 0.0)
    assert all(buckets.take("one") for _ in range(100))


def test_only_the_newest_clients_are_remembered() -> None:
    buckets = Buckets(1, clock=lambda: 0.0)
    for number in range(limits.MAX_CLIENTS + 5):
        buckets.take(str(number))
    assert len(buckets._left) == limits.MAX_CLIENTS
    assert buckets.take("0")
    assert not buckets.take(str(limits.MAX_CLIENTS))
