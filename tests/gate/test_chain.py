"""A chain of refreshes is held against its anchor, however small each of its losses is."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest

from daybreak.contract.record_parts import Chain, Difference, Live, MeasuredEffect
from daybreak.contract.record_types import (
    Anchor,
    Champion,
    Night,
    Refit,
    Release,
    Training,
    Verdict,
    Version,
)
from daybreak.gate.chain import MOST_DAYS, anchor_of, apply_chain, chain_of, is_spent, sentence, why_cold
from daybreak.registry.description import in_the_long_run
from daybreak.statistics.level import Level
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night

FIRST = date(2026, 1, 1)
ANCHOR = Anchor(release=Release(version=1, replaced=0), since=FIRST)
CHAMPION = Champion(version=5, replaced=4, anchor=ANCHOR)
MARGIN, NUM_SAMPLES = 0.03, 100
TRAINING = Training(
    model_digest="",
    num_samples=1,
    num_updates=1,
    num_restarts=0,
    elapsed_s=1,
    cost_usd=0,
    stopped_by="finished",
    warm=False,
)


def night(number: int, *, cold: str = "") -> Night:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return minimal_night(at, id=str(number), day=FIRST + timedelta(days=number), cold=cold)


def verdict(
    action: str = "promote",
    *,
    effect: float | None = None,
    low: float = -0.01,
    chain: Chain | None = None,
    **more,
) -> Verdict:
    return Verdict(
        action=action,
        champion=4,
        challenger=5,
        effect=MeasuredEffect(mean=low + 0.01 if effect is None else effect, low=low, high=low + 0.02),
        num_samples=NUM_SAMPLES,
        reason="proven no worse",
        chain=chain,
        **more,
    )


def served(number: int, mean: float, *, error: float = 0.004, **more) -> Entry:
    """A night whose challenger served, by `mean` better than the anchor."""
    stands = Chain(
        anchor=1, since=FIRST, margin=MARGIN, challenger=Difference(mean=mean, error=error), **more
    )
    return Entry(
        commit=str(number),
        subject="",
        rollback=False,
        night=night(number),
        champion=CHAMPION,
        verdict=verdict(chain=stands),
        release=Release(version=5, replaced=4),
    )


def cold(day: int, *, gained: float = 0.0, error: float = 0.004, promoted: bool = True) -> Entry:
    """A night that trained cold, `gained` over the champion."""
    entry = served(day, 0.0)
    stands = replace(entry.verdict.chain, step=Difference(mean=gained, error=error))
    return replace(
        entry,
        training=replace(TRAINING, warm=False),
        verdict=replace(entry.verdict, chain=stands),
        release=entry.release if promoted else None,
    )


def columns(challenger: float, *, champion: float = 0.0, spread: float = 0.04) -> dict[str, np.ndarray]:
    """Scores that are by this much better than the anchor's."""
    draw = np.random.default_rng(2)
    noise = draw.normal(0, spread, NUM_SAMPLES)
    anchor = draw.random(NUM_SAMPLES)
    ours = anchor + challenger + noise - noise.mean()
    return {"anchor": anchor, "champion": anchor + champion, "challenger": ours}


def stands(challenger: float, past: list[Entry], *, spread: float = 0.04, **more) -> Chain:
    asked = {"night": night(9), "refresh": True, "margin": MARGIN, "alpha": 0.05} | more
    champion = asked.pop("champion", CHAMPION)
    chain = chain_of(columns(challenger, spread=spread), champion, past, **asked)
    assert chain is not None
    return chain


def test_many_small_losses_spend_the_margin_though_each_passes() -> None:
    past = [served(8 - number, -0.025 + 0.001 * number) for number in range(8)]
    chain = stands(-0.026, past, spread=0.1)
    assert chain.spent
    rejected = apply_chain(verdict(chain=None), chain, changed=False)
    assert rejected.action == "reject"
    assert rejected.reason.startswith("the chain since version 1 stands at -0.02")
    assert (
        "of the margin 0.03, which spends it; it would have been promoted: proven no worse" in rejected.reason
    )


def test_a_chain_that_loses_nothing_goes_on() -> None:
    chain = stands(0.001, [served(8 - number, 0.0) for number in range(8)])
    assert not chain.spent
    assert apply_chain(verdict(), chain, changed=False).action == "promote"


def test_a_night_whose_version_serves_as_a_refit_counts_and_one_of_another_release_does_not() -> None:
    def with_release(entry: Entry, number: int) -> Entry:
        made = Version(name="m", number=6, night="n", data_digest="", model_digest="", run_id="")
        refit = Refit(judged=5, version=made)
        return replace(entry, refit=refit, release=Release(version=number, replaced=4))

    past = [served(8 - number, 0.0) for number in range(2)]
    assert stands(0.001, past).num_nights == stands(0.001, [with_release(one, 6) for one in past]).num_nights
    assert not with_release(past[0], 5).promoted
    assert with_release(past[0], 6).promoted


def test_only_as_many_nights_are_averaged_as_it_takes() -> None:
    before = [served(8 - number, 0.05) for number in range(8)]
    assert stands(-0.02, before).num_nights == 1  # its standard error of 0.004 is enough
    noisy = stands(-0.02, before, spread=0.2)
    assert 1 < noisy.num_nights < 9


def test_it_says_after_how_many_nights_a_loss_of_the_margin_shows() -> None:
    few, many = (stands(0.0, [], spread=spread).nights_to_show for spread in (0.02, 0.4))
    assert few == 1
    assert many is not None and many > 20
    refused = chain_of(
        columns(0.0, spread=0.4), CHAMPION, [], night=night(9), refresh=False, margin=MARGIN, alpha=0.05
    )
    assert refused is not None and refused.nights_to_show == many  # of a changed recipe too
    (said,) = in_the_long_run(verdict(chain=refused))
    assert said == (
        "If it were worse by the margin 0.03, the watch would show it after about "
        f"{many} nights like this one."
    )


def test_a_margin_that_four_weeks_cannot_guard_is_said_with_the_least_that_they_could() -> None:
    """A loss stays unseen below 1.38 standard errors of a night: twice what 28 nights leave open."""
    below, above = (stands(0.0, [], spread=spread) for spread in (0.25, 0.19))
    assert above.least_margin is None
    assert below.step is not None
    assert below.least_margin == pytest.approx(1.375 * below.step.error, rel=0.01)
    promoted = apply_chain(verdict(), below, changed=False)
    assert promoted.action == "promote"
    assert promoted.reason == (
        "proven no worse; losses of many refreshes may add up to more than the margin 0.03 unseen, since 28 "
        "nights like these need a margin of 0.033; raise gate.margin to that, or hold out 1.3 times as many "
        "samples, or more where nights differ"
    )
    assert stands(0.0, [], spread=0.25, margin=0.033).least_margin is None
    unlike = [served(8 - number, 0.05 * (-1) ** number) for number in range(8)]  # nights differ, by 0.05
    assert above.step is not None
    assert stands(0.0, unlike, spread=0.19).least_margin > 1.375 * above.step.error


def test_with_few_nights_three_quarters_of_the_margin_are_kept_back() -> None:
    unknown = Level(mean=-0.007, half_width=0.5, num_nights=1)
    assert not is_spent(unknown, MARGIN)
    assert is_spent(replace(unknown, mean=-0.008), MARGIN)
    known = Level(mean=-0.024, half_width=0.005, num_nights=9)
    assert not is_spent(known, MARGIN)
    assert is_spent(replace(known, mean=-0.026), MARGIN)


@pytest.mark.parametrize("spoils", ["rollback", "spent", "other anchor"])
def test_nights_of_another_chain_are_not_counted(spoils: str) -> None:
    bad = [served(7 - number, -0.2, error=0.0005) for number in range(7)]
    if spoils == "rollback":
        bad[0] = replace(bad[0], rollback=True, verdict=None)
    elif spoils == "spent":
        bad = [served(7, -0.2, spent=True), *bad[1:]]
    else:
        bad = [served(7 - number, -0.2, renewed=None) for number in range(7)]
        bad = [
            replace(one, verdict=replace(one.verdict, chain=replace(one.verdict.chain, anchor=99)))
            for one in bad
        ]
    assert stands(0.0, bad).num_nights == 1


def test_a_changed_recipe_has_no_place_in_the_chain_and_is_the_anchor_once_it_is_proven_better() -> None:
    chain = stands(0.2, [], refresh=False)
    assert (chain.challenger, chain.spent) == (None, False)
    proven = apply_chain(verdict(effect=0.2, low=0.05), chain, changed=True)
    assert proven.chain is not None
    assert proven.chain.renewed == 0


def test_what_the_chain_lost_beyond_the_gain_of_a_changed_recipe_stays_lost() -> None:
    past = [served(8 - number, -0.02) for number in range(8)]
    chain = stands(0.0, past, refresh=False)
    assert chain.level == pytest.approx(-0.02)
    at = datetime(2026, 1, 9, tzinfo=UTC)
    users = Live(experiment="", began_at=at, foretold="", ends_at=at)
    (little, much, of_users) = (
        apply_chain(verdict(effect=effect, low=0.001, live=live), chain, changed=True)
        for effect, live in ((0.005, None), (0.05, None), (0.05, users))
    )
    assert little.chain.renewed == pytest.approx(-0.015)
    assert much.chain.renewed == 0
    assert of_users.chain.renewed == pytest.approx(-0.02)  # a gain in orders is none in NDCG


def test_a_refresh_that_was_lucky_for_a_night_hides_nothing_of_what_its_chain_has_lost() -> None:
    past = [served(8 - number, -0.02) for number in range(8)]
    lucky = apply_chain(verdict(effect=0.02, low=0.01), stands(0.0, past), changed=False)
    assert lucky.action == "promote"
    assert lucky.chain.renewed is None


def test_what_was_lost_before_stays_lost_to_the_next_anchor() -> None:
    lost = replace(CHAMPION, anchor=replace(ANCHOR, offset=-0.02))
    chain = stands(-0.005, [], champion=lost, night=night(MOST_DAYS, cold="the anchor is old"))
    assert chain.level == pytest.approx(-0.025)
    assert chain.spent
    fresh = stands(-0.005, [], night=night(MOST_DAYS, cold="the anchor is old"))
    assert fresh.renewed == pytest.approx(-0.005)
    assert stands(-0.005, [], night=night(MOST_DAYS)).renewed is None  # tonight's training was not cold


def test_the_anchor_is_the_last_version_that_was_proven_better() -> None:
    first = Entry(
        commit="0", subject="", rollback=False, night=night(0), verdict=verdict(), release=ANCHOR.release
    )
    assert anchor_of(ANCHOR.release, first, day=FIRST) == ANCHOR
    refresh = served(3, 0.0)
    assert anchor_of(Release(version=5, replaced=4), refresh, day=FIRST) == ANCHOR
    better = served(3, 0.1, renewed=0.0)
    anchor = anchor_of(Release(version=5, replaced=4), better, day=FIRST)
    assert (anchor.release.version, anchor.since) == (5, FIRST + timedelta(days=3))


def test_training_begins_cold_where_the_chain_is_spent_or_its_anchor_is_old() -> None:
    spent = served(7, -0.2, spent=True)
    day = FIRST + timedelta(days=8)
    assert "spent the margin" in why_cold(CHAMPION, [spent, cold(6)], day=day, when_spent="cold")
    assert why_cold(CHAMPION, [spent, cold(6)], day=day, when_spent="anchor") == ""
    assert why_cold(CHAMPION, [served(7, 0.0), cold(6)], day=day, when_spent="cold") == ""
    late = FIRST + timedelta(days=MOST_DAYS)
    recent = [cold(MOST_DAYS - 1)]
    assert "28 days old" in why_cold(CHAMPION, recent, day=late, when_spent="cold")
    asked = replace(recent[0], night=replace(recent[0].night, cold="the anchor is 28 days old"))
    assert why_cold(CHAMPION, [asked], day=late, when_spent="cold") == ""  # a week passes before the next try
    assert why_cold(None, [], day=late, when_spent="cold") == ""


def test_a_cold_training_follows_a_week_after_the_last_as_long_as_none_was_compared() -> None:
    past = [served(3, 0.0), cold(2)]
    sixth, seventh = (
        why_cold(CHAMPION, past, day=FIRST + timedelta(days=day), when_spent="cold") for day in (8, 9)
    )
    assert sixth == ""
    assert (
        seventh
        == "no training that served began cold for 7 days, in which warm starts may lose half of the margin"
    )


def test_cold_trainings_follow_as_fast_as_warm_starts_lose_by_what_they_gained() -> None:
    """Eight days of warm starts have lost 0.024, so half of the margin of 0.03 is lost within 5 days."""
    past = [cold(9, gained=0.024), *(served(8 - number, 0.0) for number in range(7)), cold(1)]
    days = [
        day
        for day in range(10, 40)
        if why_cold(CHAMPION, past, day=FIRST + timedelta(days=day), when_spent="cold")
    ]
    assert min(days) == 14
    level = [cold(9, gained=0.0), *past[1:]]
    days = [
        day
        for day in range(10, 28)
        if why_cold(CHAMPION, level, day=FIRST + timedelta(days=day), when_spent="cold")
    ]
    assert min(days) == 9 + 18  # at the upper end of the interval of 0 a day, 1.64 times 0.004 / 8


def test_a_cold_training_is_tried_again_unless_cold_trainings_are_the_worse_ones() -> None:
    day = FIRST + timedelta(days=10)
    past = [
        cold(9, gained=-0.001, error=0.012, promoted=False),
        *(served(8 - number, 0.0) for number in range(7)),
        cold(1),
    ]
    assert "began cold for 9 days" in why_cold(CHAMPION, past, day=day, when_spent="cold")
    worse = [cold(9, gained=-0.1, promoted=False), *past[1:]]
    assert why_cold(CHAMPION, worse, day=day, when_spent="cold") == ""


def test_without_scores_of_the_anchor_the_chain_says_nothing() -> None:
    scores = {name: one for name, one in columns(0.0).items() if name != "anchor"}
    chain = chain_of(scores, CHAMPION, [], night=night(9), refresh=True, margin=MARGIN, alpha=0.05)
    assert chain is not None
    assert (chain.challenger, chain.level, sentence(chain)) == (None, None, "")
    assert apply_chain(verdict(), chain, changed=False).action == "promote"
