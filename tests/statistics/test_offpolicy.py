import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.statistics.offpolicy import advise

ACTIONS = 5
TRUE = np.array([0.1, 0.2, 0.3, 0.5, 0.7])  # mean reward of each action, more in the second context
LOGGED = np.array([[0.4, 0.3, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.2, 0.2]])  # by context
WANTED = np.array([[0.1, 0.1, 0.2, 0.3, 0.3], [0.05, 0.05, 0.2, 0.3, 0.4]])


def world(seed: int, size: int, *, wrong: float = 0.0) -> dict[str, Any]:
    """A log of two contexts and five actions; the guesses are wrong by as much."""
    rng = np.random.default_rng(seed)
    context = rng.integers(0, 2, size)
    means = TRUE + 0.1 * context[:, None]
    action = (rng.random(size)[:, None] > LOGGED[context].cumsum(1)).sum(1).clip(max=ACTIONS - 1)
    here = np.arange(size)
    return {
        "rewards": (rng.random(size) < means[here, action]).astype(float),
        "shown": LOGGED[context, action],
        "wanted": WANTED[context, action],
        "guess_shown": means[here, action] + wrong * action,
        "guess_wanted": (WANTED[context] * (means + wrong * np.arange(ACTIONS))).sum(1),
    }


VALUE = float(np.mean([WANTED[c] @ (TRUE + 0.1 * c) for c in (0, 1)]))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_the_estimates_are_unbiased_where_the_truth_is_known(wrong: float) -> None:
    found = [advise(**world(seed, 1000, wrong=wrong)) for seed in range(300)]
    for name in ("ips", "snips", "doubly_robust"):
        means = np.array([getattr(one, name).mean for one in found])
        assert abs(means.mean() - VALUE) < 3.5 * means.std() / math.sqrt(len(means)), name


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    found = [advise(**world(seed, 1000)) for seed in range(300)]
    for name in ("ips", "snips", "doubly_robust"):
        held = [getattr(one, name).low <= VALUE <= getattr(one, name).high for one in found]
        assert 0.92 <= np.mean(held) <= 0.98, name


def test_a_good_guess_makes_it_sharper() -> None:
    found = advise(**world(0, 5000))
    assert found.ips is not None
    assert found.doubly_robust is not None
    assert found.doubly_robust.high - found.doubly_robust.low < found.ips.high - found.ips.low


def test_with_the_same_policy_it_is_the_plain_mean() -> None:
    told = world(1, 1000)
    found = advise(told["rewards"], told["shown"], told["shown"])
    assert found.ips is not None
    assert found.snips is not None
    assert found.ips.mean == pytest.approx(told["rewards"].mean())
    assert found.snips.mean == pytest.approx(told["rewards"].mean())
    assert found.effective == pytest.approx(1000)


ONES = np.ones(1000)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rewards": [], "shown": [], "wanted": []}, "no exposure"),
        ({"rewards": ONES * math.nan}, "no number"),
        ({"shown": ONES * 0}, "could not be"),
        ({"wanted": ONES * 0}, "only 0% of what the model would show was ever shown"),
        ({"wanted": ONES * 0.2}, "only 40% of what the model would show"),
        ({"support": 0.5}, "only 50% of what the model would show"),
        ({"shown": ONES * 0.1}, "the weights average 5.00, not 1"),
        ({"rewards": ONES[:50], "shown": ONES[:50], "wanted": ONES[:50]}, "worth 50 exposures"),
        ({"wanted": ONES[:3]}, "1,000 rewards"),
    ],
)
def test_where_the_log_says_nothing_the_reason_is_given(changed: dict[str, Any], words: str) -> None:
    found = advise(**{"rewards": ONES, "shown": ONES * 0.5, "wanted": ONES * 0.5, **changed})
    assert found.ips is None
    assert found.reason.startswith("nothing can be said: ")
    assert words in found.reason


def test_weights_are_cut_and_that_is_said() -> None:
    told = world(2, 5000)
    found = advise(told["rewards"], told["shown"], told["wanted"], cap=2.0, support=1.0)
    assert found.clipped > 0
    assert "of the weights cut to 2" in found.reason


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)), max_size=50),
    st.floats(0.01, 1000),
)
def test_every_log_has_an_answer(rows: list[tuple[float, float, float]], cap: float) -> None:
    rewards, shown, wanted = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    assert advise(rewards, shown, wanted, cap=cap).reason
