import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.extensions.live_test.decisions import Decision, decide
from daybreak.extensions.live_test.forecast import forecast, volume
from daybreak.extensions.live_test.guardrails import GuardrailLimits
from daybreak.extensions.live_test.live_score import list_score
from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.live_test.ramp import Pace, RampStep
from daybreak.extensions.live_test.readout import Design, Readout, find
from daybreak.statistics.assignment import CHALLENGER
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Status
from daybreak.storage.exposures import Exposure
from tests.statistics.streams import Model, exposures, users

RULES = Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=True)
LIMITS = GuardrailLimits(errors=0.01, attrition=0.05, fallbacks=0.05, p99_s=0.1, shift=0.5, margin=0.03)
PACE = Pace(shares=(0.01, 0.5), units=50, hours=1.0)
OTHER = tuple(f"other{number}" for number in range(20))


def finding_of(log: Iterable[Exposure], *, now: float = 1e9, rules: Rules = RULES) -> Readout:
    return find(observe(log, window_s=60), Design(rules=rules, limits=LIMITS, window_s=60), now=now)


def decided(finding: Readout, *, rules: Rules = RULES, **given: object) -> tuple[Decision, RampStep]:
    asked = {"mode": "live", "share": 0.5, "units": 100, "hours": 2, "over": False, **given}
    return decide(finding, rules=rules, pace=PACE, **asked)  # type: ignore[arg-type]


def stream(challenger: Model, *, share: float = 0.5, number: int = 2000, seed: int = 0) -> list[Exposure]:
    crowd = users(seed * 10**6, number)
    return [*exposures(np.random.default_rng(seed), crowd, share=share, start=0, challenger=challenger)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("challenger", "guardrail"),
    [
        (Model(errors=0.1), "errors"),
        (Model(fallbacks=0.3), "personal lists"),
        (Model(slower_s=0.5), "latency"),
        (Model(items=OTHER), "items shown"),
        (Model(hit=0.0), "score"),
    ],
)
def test_each_guardrail_stops_what_it_guards_against_and_nothing_else_does(
    challenger: Model, guardrail: str
) -> None:
    finding = finding_of(stream(challenger, share=0.05, number=4000))
    assert [check.name for check in finding.checks if not check.ok] == [guardrail]
    decision, step = decided(finding)
    assert (decision.action, step.action, step.share) == ("reject", "stop", 0.0)
    assert decision.reason.startswith(f"stopped by {guardrail}: ")


@pytest.mark.parametrize(
    ("later", "guardrail"),
    [
        (Model(errors=0.3), "errors"),
        (Model(fallbacks=0.5), "personal lists"),
        (Model(items=OTHER), "items shown"),
    ],
)
def test_a_challenger_that_fails_from_the_second_answer_on_is_stopped(later: Model, guardrail: str) -> None:
    crowd, rng = users(0, 1500), np.random.default_rng(0)
    at_first = exposures(rng, crowd, share=0.5, start=0)
    after = [
        shown
        for seconds in (10, 20, 30)
        for shown in exposures(rng, crowd, share=0.5, start=seconds, challenger=later)
    ]
    log = sorted([*at_first, *after], key=lambda shown: shown.time)
    assert guardrail in [check.name for check in finding_of(log).checks if not check.ok]
    running = finding_of(log, now=5).checks  # no window is over: nothing but first answers counts
    assert [check.name for check in running if not check.ok] == []


def test_guardrails_over_whole_windows_do_not_stop_a_challenger_whose_users_come_often() -> None:
    crowd, rng, log = users(0, 1500), np.random.default_rng(0), []
    like = Model(errors=0.02, fallbacks=0.1)
    for seconds in (0, 10, 20):
        log += exposures(rng, crowd, share=0.5, start=seconds, champion=like, challenger=like)
    assert finding_of(sorted(log, key=lambda shown: shown.time)).broken == ()


def test_a_challenger_like_the_champion_breaks_no_guardrail() -> None:
    finding = finding_of(stream(Model()))
    assert finding.broken == ()
    assert {check.name for check in finding.checks} == {
        "arms as drawn",
        "errors",
        "personal lists",
        "latency",
        "items shown",
        "returning users",
        "score",
    }


def takes_alone(challenger: Model, *, number: int, seed: int) -> list[Exposure]:
    """Users of four visits each, whose clients post what was taken, and nothing where nothing was."""
    crowd, rng, log = users(seed * 10**6, number), np.random.default_rng(seed), []
    for seconds in (0, 10, 20, 30):
        visits = exposures(
            rng, crowd, share=0.5, start=seconds, champion=Model(outcomes=0.5), challenger=challenger
        )
        log += list(visits)
    return sorted(log, key=lambda shown: shown.time)


def test_a_challenger_whose_visits_end_in_a_take_less_often_is_worse_where_clients_post_takes_alone() -> None:
    for seed in range(3):
        finding = finding_of(takes_alone(Model(outcomes=0.3), number=1500, seed=seed))
        assert finding.result.effect is not None
        assert finding.result.effect.high < 0  # of users with a take in common it would be 0
        assert decided(finding)[0].action == "reject"


def test_visits_without_a_take_do_not_make_arms_that_are_alike_differ() -> None:
    proven = 0
    for seed in range(20):
        effect = finding_of(takes_alone(Model(outcomes=0.5), number=500, seed=seed)).result.effect
        assert effect is not None
        proven += not effect.low < 0 < effect.high
    assert proven <= 4  # 1 is expected of 20 at alpha 0.05; more than 4 come in 1 of 400 such tests


def test_the_effect_of_visits_is_on_the_scale_of_lists_that_were_taken_from() -> None:
    """So that the margin of held-out lists, which all have an outcome, holds for it."""
    log = takes_alone(Model(outcomes=0.5, hit=1.0), number=3000, seed=1)
    effect = finding_of(log).result.effect
    reported = [(one.arm, list_score(one.items, one.taken)) for one in log if one.taken is not None]
    ours, theirs = (
        [score for arm, score in reported if (arm == CHALLENGER) is mine] for mine in (True, False)
    )
    assert effect is not None
    assert effect.mean == pytest.approx(np.mean(ours) - np.mean(theirs), rel=0.1)


def test_visits_whose_outcome_is_yet_to_come_make_a_challenger_no_worse() -> None:
    """All visits are alike; the challenger's users have two more, late in the window of the first."""
    crowd, rng, log = users(0, 1500), np.random.default_rng(0), []
    for seconds in (0, 50, 57):
        visits = exposures(rng, crowd, share=0.5, start=seconds, apart_s=0.01)
        log += [one for one in visits if one.arm == CHALLENGER or not seconds]
    effect = finding_of(sorted(log, key=lambda shown: shown.time)).result.effect
    assert effect is not None
    assert effect.low < 0 < effect.high


def test_a_challenger_without_a_take_is_stopped_where_few_visits_end_in_one() -> None:
    crowd, rng, log = users(0, 1500), np.random.default_rng(0), []
    for seconds in (0, 10, 20, 30):
        rare, none = Model(outcomes=0.05, hit=1.0), Model(outcomes=0.0)
        log += exposures(rng, crowd, share=0.5, start=seconds, apart_s=0.01, champion=rare, challenger=none)
    finding = finding_of(sorted(log, key=lambda shown: shown.time))
    assert [check.name for check in finding.checks if not check.ok] == ["score"]


def test_users_who_come_back_at_another_share_or_to_another_arm_have_come_back() -> None:
    crowd, rng = users(0, 3000), np.random.default_rng(0)
    first = list(exposures(rng, crowd, share=0.25, start=0, apart_s=0.01))
    gone = {one.unit for one in first if rng.random() < (0.6 if one.arm == CHALLENGER else 0.3)}
    back = exposures(rng, [one for one in crowd if one not in gone], share=0.5, start=100, apart_s=0.001)
    finding = finding_of([*first, *back], now=1000)
    assert "returning users" in [check.name for check in finding.checks if not check.ok]


def leaving(stay: float, *, number: int, seed: int) -> list[Exposure]:
    """Users who come again after the time for an outcome: half of the champion's, `stay` of the other's."""
    crowd, rng = users(seed * 10**6, number), np.random.default_rng(seed)
    first = list(exposures(rng, crowd, share=0.5, start=0, apart_s=0.1))
    back = [one.unit for one in first if rng.random() < (stay if one.arm == CHALLENGER else 0.5)]
    return [*first, *exposures(rng, back, share=0.5, start=number * 0.1 + 90, apart_s=0.01)]


def test_users_who_no_longer_come_stop_the_challenger_that_lost_them() -> None:
    finding = finding_of(leaving(0.3, number=2000, seed=0), now=1e9)
    assert [check.name for check in finding.checks if not check.ok] == ["returning users"]
    (check,) = [check for check in finding.checks if check.name == "returning users"]
    assert "of the challenger's users had not come back" in check.text
    assert finding_of(leaving(0.5, number=2000, seed=1)).broken == ()


def test_a_leak_of_users_blocks_and_nothing_is_believed() -> None:
    rng = np.random.default_rng(0)
    leak = exposures(
        rng,
        users(0, 4000),
        share=0.5,
        start=0,
        challenger=Model(hit=1.0),
        assigned=lambda user: CHALLENGER if hash(user) % 1 or rng.random() < 0.6 else "champion",
    )
    finding = finding_of(leak)
    assert finding.arms.status is Status.MISMATCH
    decision, step = decided(finding)
    assert (decision.action, step.share) == ("no data", 0.0)
    assert "nothing that the log says is believed: arms as drawn" in decision.reason


def test_a_better_challenger_is_promoted_at_the_end_of_the_ramp_and_not_before() -> None:
    finding = finding_of(stream(Model(hit=0.9)))
    assert finding.result.effect is not None
    assert finding.result.effect.low > 0
    assert decided(finding, units=10)[0].action == "wait"
    assert decided(finding, share=0.01)[1].action == "raise"
    decision, step = decided(finding)
    assert (decision.action, step.share) == ("promote", 0.0)
    assert decision.reason.startswith("proven no worse than the champion by the margin 0.03")


def test_a_challenger_proven_worse_is_stopped_also_where_it_is_within_the_margin() -> None:
    rules = Rules(alpha=0.05, margin=0.5, min_samples=30, refresh=True)
    design = Design(rules=rules, limits=replace(LIMITS, margin=0.5), window_s=60)
    finding = find(observe(stream(Model(hit=0.3)), window_s=60), design, now=1e9)
    assert [check.name for check in finding.checks if not check.ok] == ["score"]
    decision, step = decided(finding, rules=rules, share=0.01, units=10)
    assert (decision.action, decision.inconclusive, step.action) == ("reject", False, "stop")
    assert decision.reason.startswith("stopped by score: 0.")
    assert decision.reason.endswith(f"proven worse: {finding.result.effect}")


def test_what_is_not_proven_waits_and_at_the_end_keeps_the_champion() -> None:
    finding = finding_of(stream(Model(), number=300))
    assert decided(finding)[0].action == "wait"
    decision, step = decided(finding, over=True)
    assert (decision.action, decision.inconclusive, step.share) == ("reject", True, 0.0)
    assert decision.reason.startswith("inconclusive: not proven no worse")


def test_where_both_judge_live_traffic_need_not_prove_it_but_has_to_hold_the_last_share() -> None:
    finding = finding_of(stream(Model(), number=300))
    assert decided(finding, mode="both")[0].reason.startswith("live traffic does not object: ")
    assert decided(finding, mode="both", units=10)[0].action == "wait"
    decision, _ = decided(finding, mode="both", units=10, over=True)
    assert (decision.action, decision.inconclusive) == ("reject", True)
    assert "the night ended before the last share was held" in decision.reason


def test_outcomes_that_nobody_told_are_no_proof() -> None:
    rng, silent = np.random.default_rng(0), Model(outcomes=0.0)
    log = exposures(rng, users(0, 2000), share=0.5, start=0, champion=silent, challenger=silent)
    finding = finding_of(log)
    assert "an outcome was told of 0 of" in finding.result.sentence
    assert decided(finding)[0].action == "wait"
    assert decided(finding, over=True)[0].action == "no data"


@pytest.mark.slow
def test_the_effect_is_on_the_scale_of_users_with_an_outcome() -> None:
    whole = finding_of(stream(Model(hit=0.9), number=6000)).result.effect
    log = [
        *exposures(
            np.random.default_rng(0),
            users(0, 12_000),
            share=0.5,
            start=0,
            champion=Model(outcomes=0.5),
            challenger=Model(hit=0.9, outcomes=0.5),
        )
    ]
    half = finding_of(log).result.effect
    assert whole is not None
    assert half is not None
    assert half.mean == pytest.approx(whole.mean, abs=0.05)


def test_users_whose_window_is_not_over_do_not_count_yet() -> None:
    log = stream(Model(), number=1000)
    sentence = finding_of(log, now=30).result.sentence
    assert "0 users of the challenger and 0 of the champion have had time" in sentence


def test_every_log_has_a_judgement_and_an_empty_one_waits() -> None:
    finding = finding_of([])
    assert decided(finding)[0].action == "wait"
    assert decided(finding, over=True)[0].action == "no data"


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 150),
    st.sampled_from([0.0, 0.01, 0.5]),
    st.builds(Model, hit=st.floats(0, 1), errors=st.floats(0, 1), outcomes=st.floats(0, 1)),
    st.booleans(),
    st.sampled_from([-math.inf, math.nan, 0.01]),
)
def test_whatever_the_log_says_there_is_a_reason(
    number: int, share: float, model: Model, over: bool, slower_s: float
) -> None:
    log = stream(replace(model, slower_s=slower_s), share=share, number=number)
    decision, step = decided(finding_of(log), over=over)
    assert decision.reason
    assert step.reason
    assert decision.action in ("promote", "reject", "wait", "no data")
    assert decision.action != "wait" or not over
    assert (step.share == 0) or decision.action == "wait"


@pytest.mark.slow
def test_with_a_look_every_few_users_a_ramp_promotes_nothing_that_is_not_better() -> None:
    rules = Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=False)
    promoted = 0
    for seed in range(12):
        rng, log, share, start = np.random.default_rng(seed), [], 0.05, 0.0
        for number in range(6):
            log += exposures(
                rng, users(seed * 10**6 + number * 200, 200), share=share, start=start, apart_s=30
            )
            start += 6000
            decision, step = decide(
                finding_of(log, now=start + 60, rules=rules),
                rules=rules,
                mode="live",
                pace=Pace(shares=(0.05, 0.5), units=20, hours=0),
                share=share,
                over=False,
                units=sum(shown.share == share and shown.arm == CHALLENGER for shown in log),
                hours=1,
            )
            share = step.share or share
            if decision.action != "wait":
                break
        promoted += decision.action == "promote"
    assert promoted <= 2


def test_the_traffic_of_the_last_days_tells_what_can_be_shown() -> None:
    log = [*exposures(np.random.default_rng(0), users(0, 2400), share=0.0, start=0, apart_s=36)]
    before = volume(log, now=86_400, days=7)
    assert before.users_per_hour == pytest.approx(100)
    text = forecast(before, pace=PACE, hours=10, alpha=0.05, margin=0.01)
    assert "at 100 users an hour, as in the last 1.0 days, 10.0 hours show 0." in text
    assert "more than the margin 0.01, so that it may stay inconclusive" in text
    nothing = forecast(volume([], now=0, days=7), pace=PACE, hours=10, alpha=0.05, margin=0.01)
    assert "what can be shown is not known" in nothing


def with_devices(log: Iterable[Exposure], *, lost_on_phones: float = 0.0) -> list[Exposure]:
    """The same users, of whom one in ten has a phone; so many phones that met the challenger never ask."""
    draw, kept = np.random.default_rng(7), []
    for shown in log:
        device = "phone" if int(shown.unit, 16) % 10 == 0 else "desk"
        if device == "desk" or shown.arm != CHALLENGER or draw.random() >= lost_on_phones:
            kept.append(replace(shown, attributes=(("device", device),)))
    return kept


def test_users_lost_on_one_device_are_found_where_the_shares_of_all_users_still_fit() -> None:
    log = with_devices(stream(Model(), number=6000), lost_on_phones=0.5)
    finding = finding_of(log)
    broken = {check.name: check.text for check in finding.checks if not check.ok}
    assert list(broken) == ["arms by attribute"]
    assert "device phone" in broken["arms by attribute"] and "device desk" not in broken["arms by attribute"]
    assert decided(finding)[0].action == "no data"


def test_attributes_that_fit_stop_nothing_however_many_values_come() -> None:
    log = [
        replace(shown, attributes=(("app", shown.unit[-2:]), ("device", "phone")))
        for shown in stream(Model(), number=3000)
    ]
    (check,) = [one for one in finding_of(log).checks if one.name == "arms by attribute"]
    assert check.ok and check.text.startswith("users of ")


def test_the_effect_of_each_device_is_shown_at_its_part_of_alpha_and_decides_nothing() -> None:
    good_at_desks = [
        shown if shown.attributes[0][1] == "desk" or shown.arm != CHALLENGER else replace(shown, taken=())
        for shown in with_devices(stream(Model(hit=0.9), number=6000))
    ]
    finding = finding_of(good_at_desks)
    assert [one.value for one in finding.segments] == ["desk", "phone"]  # most users first
    desk, phone = (one.effect for one in finding.segments)
    assert desk.is_proven and phone.high is not None and phone.high < 0
    alone = finding_of([one for one in good_at_desks if one.attributes[0][1] == "phone"]).segments[0].effect
    assert alone.low is not None and alone.high is not None and phone.low is not None
    assert phone.high - phone.low > alone.high - alone.low  # two intervals share alpha, one need not
    assert decided(finding)[0].action == "promote"


def test_a_program_that_asks_all_day_is_left_out_and_the_readout_says_so() -> None:
    log = stream(Model(), number=500)
    program = [replace(log[0], time=log[0].time + at, id=f"{at:032x}") for at in range(200)]
    every = sorted([*log, *program], key=lambda shown: shown.time)
    design = Design(rules=RULES, limits=LIMITS, window_s=60)
    finding = find(observe(every, window_s=60, max_visits=100), design, now=1e9)
    assert finding.num_ours + finding.num_theirs == 499
    (check,) = [one for one in finding.checks if one.name == "frequent users"]
    assert check.ok and check.text.startswith("1 user with more than 100 visits in a day left out")


def test_a_challenger_that_makes_users_ask_again_and_again_is_not_judged_by_the_others() -> None:
    log = stream(Model(hit=0.9), number=2000)
    again = [
        replace(shown, time=shown.time + at, id=f"{number:030x}{at:02x}")
        for number, shown in enumerate(log[:200])
        if shown.arm == CHALLENGER
        for at in range(1, 12)
    ]
    every = sorted([*log, *again], key=lambda shown: shown.time)
    seen = observe(every, window_s=60, max_visits=10)
    finding = find(seen, Design(rules=RULES, limits=LIMITS, window_s=60), now=1e9)
    assert "frequent users" in [check.name for check in finding.checks if not check.ok]
    assert decided(finding)[0].action == "reject"


def test_what_users_do_while_a_model_is_new_to_them_does_not_count() -> None:
    crowd, rng, log = users(0, 1500), np.random.default_rng(0), []
    curious, after = Model(hit=0.9), Model(hit=0.4)
    for seconds in (0, 100, 200):
        hits = curious if seconds == 0 else after
        log += exposures(rng, crowd, share=0.5, start=seconds, challenger=hits, apart_s=0.01)
    log.sort(key=lambda shown: shown.time)
    new = find(observe(log, window_s=60), Design(rules=RULES, limits=LIMITS, window_s=60), now=1e9)
    worn = Design(rules=RULES, limits=LIMITS, window_s=60, novelty_s=90)
    old = find(observe(log, window_s=60, novelty_s=90), worn, now=1e9)
    assert new.result.status.is_proof and new.result.effect and new.result.effect.low > 0
    assert old.result.effect and old.result.effect.high < 0


def test_a_user_who_is_gone_once_the_novelty_is_over_scores_as_one_who_took_nothing() -> None:
    crowd, rng, log = users(0, 2000), np.random.default_rng(0), []
    for seconds in (0, 100):
        log += exposures(rng, crowd, share=0.5, start=seconds, apart_s=0.01)
    gone = [one for one in log if one.time < 90 or one.arm != CHALLENGER or int(one.unit, 16) % 2]
    seen = observe(sorted(gone, key=lambda shown: shown.time), window_s=60, novelty_s=90)
    design = Design(rules=RULES, limits=LIMITS, window_s=60, novelty_s=90)
    effect = find(seen, design, now=1e9).result.effect
    assert effect and effect.high < 0
