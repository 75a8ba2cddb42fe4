import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.statistics.e_process import ALPHA, alarm, log_evidence
from daybreak.statistics.result import Status


def drawn(rng: np.random.Generator, *, chance: float, ours: float, theirs: float, size: int) -> tuple:
    arm = rng.random(size) < chance
    return arm, np.full(size, chance), (rng.random(size) < np.where(arm, ours, theirs)).astype(float)


@pytest.mark.slow
@pytest.mark.parametrize("chance", [0.01, 0.25, 0.5])
@pytest.mark.parametrize(("ours", "theirs"), [(0.01, 0.0), (0.06, 0.05), (0.51, 0.5)])
def test_at_the_margin_false_alarms_are_rare_however_often_one_looks(
    chance: float, ours: float, theirs: float
) -> None:
    rng, alpha = np.random.default_rng(1), 0.05
    raised = [
        log_evidence(*drawn(rng, chance=chance, ours=ours, theirs=theirs, size=2000), margin=0.01).max()
        >= math.log(1 / alpha)
        for _ in range(200)
    ]
    assert np.mean(raised) <= alpha


def test_the_evidence_is_worth_no_more_than_it_was_on_average() -> None:
    rng = np.random.default_rng(2)
    wealth = [
        math.exp(log_evidence(*drawn(rng, chance=0.3, ours=0.3, theirs=0.3, size=20), margin=0.05)[-1])
        for _ in range(4000)
    ]
    assert np.mean(wealth) <= 1.02


def test_a_model_that_never_answers_is_found_by_its_third_user_at_one_in_a_hundred() -> None:
    rng = np.random.default_rng(3)
    arm, chance, values = drawn(rng, chance=0.01, ours=1.0, theirs=0.0, size=2000)
    alarmed = log_evidence(arm, chance, values, margin=0.01) >= math.log(1 / ALPHA)
    assert arm[: int(np.argmax(alarmed)) + 1].sum() <= 3


def test_what_is_better_raises_no_alarm() -> None:
    arm, chance, values = drawn(np.random.default_rng(4), chance=0.5, ours=0.1, theirs=0.4, size=5000)
    assert alarm(arm, chance, values, margin=0.01).p_value == 1.0


def test_an_alarm_stays_raised_when_more_users_come() -> None:
    rng = np.random.default_rng(5)
    bad = drawn(rng, chance=0.5, ours=0.5, theirs=0.1, size=500)
    good = drawn(rng, chance=0.5, ours=0.0, theirs=0.5, size=5000)
    both = [np.concatenate(pair) for pair in zip(bad, good, strict=True)]
    assert alarm(*bad, margin=0.05).status is Status.WORSE
    assert alarm(*both, margin=0.05).status is Status.WORSE


def test_tests_that_are_made_together_share_alpha() -> None:
    stream = drawn(np.random.default_rng(6), chance=0.5, ours=0.5, theirs=0.1, size=40)
    alone, together = alarm(*stream, margin=0.05), alarm(*stream, margin=0.05, num_tests=2)
    assert together.p_value == 2 * alone.p_value
    assert alarm(*stream, margin=0.05, alpha=alone.p_value).status is Status.WORSE
    assert alarm(*stream, margin=0.05, alpha=alone.p_value, num_tests=2).status is Status.OPEN


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.booleans(), st.floats(0.01, 0.99), st.floats(0, 1)), max_size=30),
    st.floats(0.01, 0.9),
)
def test_every_stream_has_finite_evidence(stream: list[tuple[bool, float, float]], margin: float) -> None:
    arm, chance, values = (list(column) for column in zip(*stream, strict=True)) if stream else ([], [], [])
    evidence = alarm(arm, chance, values, margin=margin)
    assert 0 < evidence.p_value <= 1
    assert len(log_evidence(arm, chance, values, margin=margin)) == len(stream)


@pytest.mark.parametrize(
    ("chance", "value", "margin"), [(0.5, math.nan, 0.1), (0.5, 2.0, 0.1), (1.0, 0.5, 0.1), (0.5, 0.5, 0.0)]
)
def test_what_is_no_bet_is_refused(chance: float, value: float, margin: float) -> None:
    with pytest.raises(ValueError, match="values outside"):
        log_evidence([True], [chance], [value], margin=margin)
