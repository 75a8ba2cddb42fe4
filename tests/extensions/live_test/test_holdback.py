"""Users who return while refreshes come and go: a mean that grows with each visit may be looked at again."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from daybreak.extensions.live_test.guardrails import GuardrailLimits
from daybreak.extensions.live_test.holdback import _outcomes_of_each
from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.live_test.readout import Design, Readout, find
from daybreak.statistics.paired import Rules
from daybreak.storage.exposures import Exposure
from tests.statistics.streams import Model, exposures, users

DAY = 24 * 3600.0
RULES = Rules(alpha=0.05, margin=0.03, min_samples=20, refresh=True)
LIMITS = GuardrailLimits(errors=0.01, attrition=0.05, fallbacks=0.05, p99_s=0.1, shift=0.5, margin=0.03)


def visits(number: int, *, days: int, lost: float) -> Iterator[list[Exposure]]:
    """Visits of each day, of users of whom some return; what serves loses so much of its hits."""
    draw = np.random.default_rng(number)
    everybody = users(10**6 * number, 400)
    tastes = draw.beta(4, 4, len(everybody))
    for day in range(days):
        here = [(user, taste) for user, taste in zip(everybody, tastes, strict=True) if draw.random() < 0.3]
        yield [
            replace(one, time=one.time + place)
            for place, (user, taste) in enumerate(here)
            for one in exposures(
                draw,
                [user],
                share=0.2,
                start=day * DAY,
                experiment="holdback-1",
                champion=Model(hit=taste - lost),
                challenger=Model(hit=taste),
            )
        ]


def looks(number: int, *, days: int = 24, every: int = 4, lost: float = 0.0) -> Iterator[Readout]:
    """What the watch finds of all that served, every few days."""
    shown: list[Exposure] = []
    for day, of_day in enumerate(visits(number, days=days, lost=lost), 1):
        shown += of_day
        if day % every == 0:
            whole = _outcomes_of_each(shown, window_s=3600, now=day * DAY)
            seen = observe(whole, window_s=float("inf")).swapped
            yield find(seen, Design(rules=RULES, limits=LIMITS, window_s=3600), now=day * DAY)


@pytest.mark.slow
def test_users_who_return_bring_back_no_anchor_that_is_no_better() -> None:
    false = sum(any(finding.broken for finding in looks(number)) for number in range(12))
    assert false <= 2  # of 0.6 at most on average


@pytest.mark.slow
def test_a_loss_shows_the_more_the_oftener_the_same_users_return() -> None:
    findings = list(looks(1, lost=0.12))
    effects = [finding.result.effect for finding in findings if finding.result.effect]
    assert effects[-1].high - effects[-1].low < 0.8 * (effects[0].high - effects[0].low)
    assert effects[-1].num_samples < 1.4 * effects[0].num_samples


def test_an_outcome_counts_by_the_window_of_its_own_answer() -> None:
    (shown,) = exposures(np.random.default_rng(0), users(0, 1), share=0.5, start=0)
    late, soon = (replace(shown, taken=("i1",), taken_at=at) for at in (61.0, 59.0))
    kept = list(_outcomes_of_each([late, soon, replace(soon, time=50.0)], window_s=60, now=100))
    assert [one.taken for one in kept] == [None, ("i1",)]  # told too late; in time; the third is not yet over
