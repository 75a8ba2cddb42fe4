"""Settings win by their gains over several nights."""

from hypothesis import given
from hypothesis import strategies as st

from daybreak.extensions.search.winner import Try, winner

GAINS = st.lists(st.floats(-1, 1), min_size=1, max_size=6)


def tries(gains: list[float], **values: float) -> list[Try]:
    return [Try(values=values, night=f"night-{number}", gain=gain) for number, gain in enumerate(gains)]


@given(GAINS)
def test_settings_that_do_not_gain_on_average_never_win(gains: list[float]) -> None:
    lowered = [gain - sum(gains) / len(gains) - 1e-9 for gain in gains]
    assert winner(tries(lowered, rate=0.1), nights=2) is None


@given(GAINS)
def test_settings_of_too_few_nights_never_win(gains: list[float]) -> None:
    assert winner(tries(gains, rate=0.1), nights=len(gains) + 1) is None


def test_two_tries_of_one_night_count_as_one() -> None:
    twice = [Try(values={"rate": 0.1}, night="one", gain=gain) for gain in (0.5, 0.5)]
    assert winner(twice, nights=2) is None


def test_of_several_winners_the_one_that_surely_gains_most_is_taken() -> None:
    sure, unsure = tries([0.2, 0.21, 0.2], rate=0.1), tries([0.1, 0.9, 0.3], rate=0.2)
    found = winner([*sure, *unsure], nights=3)
    assert found and found.values == {"rate": 0.1} and 0.15 < found.low < found.gain
