"""The switch stops what fails within a minute, and what does not fail hardly ever."""

from dataclasses import replace

import numpy as np
import pytest

from daybreak.extensions.router.kill_switch import KillSwitch
from daybreak.statistics.assignment import CHALLENGER, CHAMPION
from daybreak.storage.exposures import Exposure


def stream(
    *, seed: int, share: float, per_minute: int, minutes: float, ours=(0.0, 0.01), theirs=(0.0, 0.01)
) -> list[Exposure]:
    """Answers to users who come twice each; either arm has a share of errors and a mean latency."""
    rng = np.random.default_rng(seed)
    number = int(per_minute * minutes)
    given = []
    for place, time in enumerate(np.sort(rng.uniform(0, 60 * minutes, number))):
        user = int(rng.integers(number // 2))
        challenger = np.random.default_rng([seed, user]).random() < share
        errors, latency_s = ours if challenger else theirs
        given.append(
            Exposure(
                id=f"{place:032x}",
                time=float(time),
                experiment="night",
                unit=f"{user}",
                version=1 + challenger,
                arm=CHALLENGER if challenger else CHAMPION,
                share=share,
                propensity=share,
                items=(),
                latency_s=float(rng.gamma(4, latency_s / 4)),
                error="it broke" if rng.random() < errors else "",
            )
        )
    return given


def stopped_at(given: list[Exposure], **limits: float) -> tuple[float, str]:
    switch = KillSwitch(**{"max_errors": 0.01, "max_rise_s": 0.1, **limits})
    for one in given:
        if why := switch.why_stop(one):
            return one.time, why
    return float("inf"), ""


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_a_model_that_always_fails_is_stopped_within_a_minute(share: float) -> None:
    time, why = stopped_at(stream(seed=1, share=share, per_minute=2000, minutes=2, ours=(1.0, 0.01)))
    assert time <= 60
    assert "of the challenger met an error" in why


def test_a_model_that_is_slow_is_stopped_within_a_minute() -> None:
    time, why = stopped_at(stream(seed=2, share=0.05, per_minute=2000, minutes=2, ours=(0.0, 0.5)))
    assert time <= 60
    assert "waited for more than 0.1" in why


def test_where_both_fail_the_challenger_is_not_to_blame() -> None:
    broken = (0.3, 0.5)
    given = stream(seed=3, share=0.5, per_minute=1000, minutes=20, ours=broken, theirs=broken)
    assert stopped_at(given)[1] == ""


@pytest.mark.parametrize("seed", range(5))  # `make bench NAME=late_failures` has more
def test_sound_challengers_are_let_be_for_hours(seed: int) -> None:
    usual = (0.02, 0.05)
    given = stream(seed=seed, share=0.25, per_minute=100, minutes=180, ours=usual, theirs=usual)
    assert stopped_at(given)[1] == ""


def test_with_few_users_it_looks_further_back() -> None:
    time, _ = stopped_at(stream(seed=5, share=0.5, per_minute=10, minutes=30, ours=(1.0, 0.01)))
    assert time <= 600


def test_another_experiment_begins_anew_and_none_is_never_stopped() -> None:
    given = stream(seed=6, share=0.5, per_minute=2000, minutes=0.5, ours=(1.0, 0.01))
    switch = KillSwitch(max_errors=0.01, max_rise_s=0.1)
    assert not any(switch.why_stop(replace(one, experiment="")) for one in given)
    for one in given[:-50]:
        switch.why_stop(one)
    assert switch.why_stop(replace(given[-1], experiment="other")) == ""
