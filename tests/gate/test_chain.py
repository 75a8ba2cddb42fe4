"""A chain of refreshes is held against its anchor, however small each of its losses is."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from scipy import stats

from daybreak.contract.record_parts import Chain, Difference, MeasuredEffect
from daybreak.contract.record_types import (
    Anchor,
    Champion,
    Evaluation,
    Night,
    Refit,
    Release,
    Verdict,
    Version,
)
from daybreak.gate.chain import MOST_DAYS, anchor_of, apply_chain, chain_of, is_spent, sentence
from daybreak.registry.description import in_the_long_run
from daybreak.statistics.level import Level
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_night, minimal_training

FIRST = date(2026, 1, 1)
ANCHOR = Anchor(release=Release(version=1, replaced=0), since=FIRST)
CHAMPION = Champion(version=5, replaced=4, anchor=ANCHOR)
MARGIN, NUM_SAMPLES = 0.03, 100


def night(number: int, *, cold: str = "") -> Night:
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return minimal_night(at, id=str(number), day=FIRST + timedelta(days=number), cold=cold)


def verdict(action: str = "promote", *, low: float = -0.01, chain: Chain | None = None) -> Verdict:
    return Verdict(
        action=action,
        champion=4,
        challenger=5,
        effect=MeasuredEffect(mean=low + 0.01, low=low, high=low + 0.02),
        num_samples=NUM_SAMPLES,
        reason="proven no worse",
        chain=chain,
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


def not_served(entry: Entry, *, inconclusive: bool) -> Entry:
    """The night, had its challenger been rejected."""
    rejected = replace(entry.verdict, action="reject", inconclusive=inconclusive)
    return replace(entry, verdict=rejected, release=None)


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
    rejected = apply_chain(verdict(chain=None), chain)
    assert rejected.action == "reject"
    assert rejected.reason.startswith("the chain since version 1 stands at -0.02")
    assert (
        "of the margin 0.03, which spends it; it would have been promoted: proven no worse" in rejected.reason
    )


def test_a_chain_that_loses_nothing_goes_on() -> None:
    chain = stands(0.001, [served(8 - number, 0.0) for number in range(8)])
    assert not chain.spent
    assert apply_chain(verdict(), chain).action == "promote"


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


def nightly(num_nights: int, test_days: int, draw: np.random.Generator, **asked) -> list[Entry]:
    """Nights that hold out their newest days, by models without any difference; newest first."""
    per_day, past = 20, list[Entry]()
    fixed = draw.normal(size=(2, num_nights + test_days, per_day))  # the champion and the anchor, by day
    for number in range(num_nights):
        held_out = slice(number, number + test_days)
        evaluation = Evaluation(
            model_digest="",
            data_digest="",
            num_samples=test_days * per_day,
            metrics={},
            slices=(),
            days=tuple(FIRST + timedelta(days=number + day) for day in range(test_days)),
            num_by_day=(per_day,) * test_days,
        )
        champion, anchor = (one[held_out].ravel() for one in fixed)
        scores = {
            "challenger": champion + 1e-9,
            "champion": champion,
            "anchor": anchor,
            "predecessor": anchor,
        }
        chain = chain_of(scores, CHAMPION, past, night=night(number), evaluation=evaluation, **asked)
        made = verdict("reject", chain=chain)
        entry = replace(served(number, 0.0), release=None, evaluation=evaluation)
        made = replace(made, champion=CHAMPION.version, inconclusive=True)
        past.insert(0, replace(entry, verdict=made))
    return past


@pytest.mark.slow
@pytest.mark.parametrize("test_days", [1, 3, 7])
def test_the_level_misses_as_often_as_stated_however_many_days_a_night_holds_out(test_days: int) -> None:
    draw, missed, num_chains, chance = np.random.default_rng(test_days), 0, 60, 0.05
    for _ in range(num_chains):
        past = nightly(12, test_days, draw, refresh=True, margin=1e-6, alpha=chance * 365)
        missed += abs(past[0].chain.level) > past[0].chain.half_width
    assert stats.binomtest(missed, num_chains, 2 * chance, alternative="greater").pvalue > 0.01


def test_a_day_counts_in_the_first_night_that_scores_it() -> None:
    past = nightly(4, 3, np.random.default_rng(0), refresh=True, margin=1e-6, alpha=0.05)
    for name in ("challenger", "champion", "predecessor"):
        counted = [len(getattr(one.chain, name).days) for one in reversed(past)]
        assert counted == [3, 1, 1, 1]
    again = chain_of(
        {name: np.arange(60.0) for name in ("challenger", "champion", "anchor")},
        CHAMPION,
        past,
        night=night(4),
        evaluation=past[0].evaluation,
        refresh=True,
        margin=1e-6,
        alpha=0.05,
    )
    assert again.challenger.days == ()  # a second night of the same days adds nothing
    assert (again.level, again.num_nights) == (past[0].chain.level, 4)


def test_what_a_later_night_adds_is_foretold_by_its_new_days() -> None:
    asked = {"refresh": True, "margin": 0.5, "alpha": 0.05}
    first, later = (nightly(2, days, np.random.default_rng(0), **asked)[0].chain for days in (1, 7))
    assert later.step.error < first.step.error / 2
    assert 0.5 < later.nights_to_show / first.nights_to_show < 2


def test_a_workload_that_tells_no_days_apart_is_warned_as_if_its_nights_were_whole() -> None:
    """What 28 nights of a week each leave unseen says nothing of how many days each of them holds out."""
    asked = {"refresh": True, "margin": 1e-6, "alpha": 0.05}
    (week,) = nightly(1, 7, np.random.default_rng(0), **asked)
    (day,) = nightly(1, 1, np.random.default_rng(0), **asked)
    untold = replace(week.evaluation, num_by_day=())
    draw = np.random.default_rng(1)
    scores = {name: draw.normal(size=140) for name in ("challenger", "champion", "anchor")}
    apart, whole = (
        chain_of(scores, CHAMPION, [], night=night(9), evaluation=one, **asked).least_margin
        for one in (untold, replace(day.evaluation, num_by_day=(140,), num_samples=140))
    )
    assert apart == pytest.approx(whole)


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
    promoted = apply_chain(verdict(), below)
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


def test_with_few_nights_half_of_the_margin_is_kept_back() -> None:
    unknown = Level(mean=-0.014, half_width=0.5, num_nights=1)
    assert not is_spent(unknown, MARGIN)
    assert is_spent(replace(unknown, mean=-0.016), MARGIN)
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
    assert apply_chain(verdict(), chain, gain=0.2).chain.renewed == 0


@pytest.mark.parametrize("spoils", ["", "spent", "rollback"])
def test_what_the_chain_lost_beyond_the_gain_of_a_changed_recipe_stays_lost(spoils: str) -> None:
    """It is known of the nights before, or of tonight's champion where these say nothing any more."""
    past = [served(8 - number, -0.02) for number in range(8)]
    if spoils == "spent":
        past[0] = served(8, -0.2, spent=True)
    elif spoils == "rollback":
        past[0] = replace(past[0], rollback=True, verdict=None)
    chain = chain_of(
        columns(0.0, champion=-0.02), CHAMPION, past, night=night(9), refresh=False, margin=MARGIN, alpha=0.05
    )
    renewed = [apply_chain(verdict(), chain, gain=gain).chain.renewed for gain in (0.005, 0.05, 0.0)]
    assert renewed == [pytest.approx(-0.015), 0, pytest.approx(-0.02)]


def test_a_refresh_that_was_lucky_for_a_night_hides_nothing_of_what_its_chain_has_lost() -> None:
    past = [served(8 - number, -0.02) for number in range(8)]
    lucky = apply_chain(verdict(low=0.01), stands(0.0, past))
    assert lucky.action == "promote"
    assert lucky.chain.renewed is None


def test_a_refresh_proven_better_serves_although_the_chain_is_spent() -> None:
    spent = stands(-0.05, [])
    assert spent.spent
    better = apply_chain(verdict(low=0.01), spent)
    assert (better.action, better.chain.renewed) == ("promote", None)
    assert better.reason.endswith("of the margin 0.03, which is spent")


def test_challengers_that_did_not_serve_count_unless_they_were_proven_worse() -> None:
    """Those that served alone would be the lucky ones."""
    nights = [served(8 - number, 0.0) for number in range(8)]
    unproven = [not_served(one, inconclusive=True) for one in nights]
    assert stands(0.0, unproven, spread=0.2).num_nights == stands(0.0, nights, spread=0.2).num_nights > 1
    worse = [not_served(one, inconclusive=False) for one in nights]
    assert stands(0.0, worse, spread=0.2).num_nights == 1


def test_cold_trainings_of_a_spent_chain_tell_of_each_other_and_not_of_warm_ones() -> None:
    warm, cold = served(6, -0.2, spent=True), served(7, -0.1, spent=True)
    cold = replace(cold, training=minimal_training(warm=False))
    assert stands(0.0, [warm], spread=0.2).num_nights == 1
    assert stands(0.0, [cold, warm], spread=0.2).num_nights == 2


def test_what_was_lost_before_stays_lost_to_the_next_anchor() -> None:
    lost = replace(CHAMPION, anchor=replace(ANCHOR, offset=-0.02))
    chain = stands(-0.005, [], champion=lost, night=night(MOST_DAYS, cold="the anchor is old"))
    assert chain.level == pytest.approx(-0.025)
    assert chain.spent
    fresh = stands(-0.005, [], night=night(MOST_DAYS, cold="the anchor is old"))
    assert fresh.renewed == pytest.approx(-0.005)
    assert stands(-0.005, [], night=night(MOST_DAYS)).renewed is None  # tonight's training was not cold
    unknown = stands(-0.005, [], spread=0.1, night=night(MOST_DAYS, cold="the anchor is old"))
    assert (unknown.renewed, unknown.spent, unknown.least_margin) == (None, False, None)


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


def test_without_scores_of_the_anchor_the_chain_says_nothing() -> None:
    scores = {name: one for name, one in columns(0.0).items() if name != "anchor"}
    chain = chain_of(scores, CHAMPION, [], night=night(9), refresh=True, margin=MARGIN, alpha=0.05)
    assert chain is not None
    assert (chain.challenger, chain.level, sentence(chain)) == (None, None, "")
    assert apply_chain(verdict(), chain).action == "promote"
