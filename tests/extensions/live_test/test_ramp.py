import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.live_test.ramp import Pace, clock_by, step

PACE = Pace(shares=(0.01, 0.05, 0.25, 0.5), units=200, hours=1.0)
SHARES = st.sampled_from((0.0, *PACE.shares))


@given(SHARES, st.integers(0, 10**6), st.floats(0, 100), st.lists(st.text(min_size=1), max_size=2))
def test_a_ramp_never_jumps_and_stops_at_once(
    share: float, units: int, hours: float, broken: list[str]
) -> None:
    decision = step(PACE, share=share, units=units, hours=hours, broken=broken)
    if broken:
        assert (decision.action, decision.share) == ("stop", 0.0)
        return
    place = ((0.0, *PACE.shares).index(share), (0.0, *PACE.shares).index(decision.share))
    assert place[1] - place[0] in (0, 1)
    assert (place[1] > place[0]) == (decision.action == "raise")
    if share and (units < PACE.units or hours < PACE.hours):
        assert decision.action == "hold"
    assert decision.reason


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 10), st.floats(0, 10))
def test_more_users_and_more_time_never_lower_the_share(a: int, b: int, c: float, d: float) -> None:
    few = step(PACE, share=0.05, units=min(a, b), hours=min(c, d))
    many = step(PACE, share=0.05, units=max(a, b), hours=max(c, d))
    assert many.share >= few.share


def test_a_ramp_is_climbed_to_its_end_and_then_done() -> None:
    share, taken = 0.0, []
    for _ in range(5):
        decision = step(PACE, share=share, units=200, hours=1)
        taken.append(decision.action)
        share = decision.share
    assert taken == ["raise", "raise", "raise", "raise", "done"]
    assert share == 0.5


@given(st.floats(0, 1e5), st.floats(0, 24), st.floats(0, 24))
def test_more_hours_and_more_users_never_teach_less(per_hour: float, hours: float, more: float) -> None:
    clock = clock_by(PACE, units_per_hour=per_hour, hours=hours)
    assert 0 <= clock <= clock_by(PACE, units_per_hour=per_hour, hours=hours + more) + 1e-9
    assert clock <= per_hour * hours * 0.25 + 1e-9


def test_nobody_teaches_nothing() -> None:
    assert clock_by(PACE, units_per_hour=0, hours=24) == 0


@pytest.mark.parametrize("share", PACE.shares)
def test_with_little_traffic_the_first_share_lasts_all_night(share: float) -> None:
    clock = clock_by(PACE, units_per_hour=10, hours=20)
    assert clock == pytest.approx(10 * 20 * 0.01 * 0.99)
