import numpy as np

from daybreak.extensions.live_test.guardrails import GuardrailLimits
from daybreak.extensions.live_test.shadowed import Shadowed, read
from daybreak.statistics import e_process
from daybreak.storage.exposures import Shadow, ShadowedExposure

LIMITS = GuardrailLimits(errors=0.01, attrition=0.05, fallbacks=0.05, p99_s=0.1, shift=0.5, margin=0.03)


def answers(
    number: int, *, errors: float = 0.0, fallbacks: float = 0.0, slower_s: float = 0.0, dropped: int = 0
) -> list[ShadowedExposure]:
    """Answers to so many users; the champion fails for one in a hundred, and the challenger as often more."""
    draw, made = np.random.default_rng(number), []
    for place in range(number):
        shadow = Shadow(
            exposure=f"{place:032x}",
            version=3,
            dropped=place < dropped,
            latency_s=float(draw.gamma(4, 0.002)) + slower_s,
            error="it broke" if draw.random() < 0.01 + errors else "",
            fallback=bool(draw.random() < fallbacks),
            difference=0.25,
        )
        made.append(
            ShadowedExposure(
                unit=f"{place:016x}",
                time=float(place),
                latency_s=float(draw.gamma(4, 0.002)),
                error="it broke" if draw.random() < 0.01 else "",
                fallback=False,
                shadow=shadow,
            )
        )
    return made


def broken(found: Shadowed) -> list[str]:
    return [check.name for check in found.checks if not check.ok]


def test_each_failure_in_the_shadow_breaks_its_guardrail_and_no_other() -> None:
    assert broken(read(answers(2000), limits=LIMITS, of_lists=True)) == []
    assert broken(read(answers(400, errors=0.2), limits=LIMITS, of_lists=True)) == ["shadow errors"]
    assert broken(read(answers(400, fallbacks=0.3), limits=LIMITS, of_lists=True)) == ["shadow lists"]
    assert broken(read(answers(2000, slower_s=0.5), limits=LIMITS, of_lists=True)) == ["shadow latency"]


def test_the_difference_is_shown_and_stops_nothing() -> None:
    difference = read(answers(200), limits=LIMITS, of_lists=False).checks[-1]
    assert difference.ok and "differ by 25" in difference.text


def test_dropped_requests_are_no_users_and_are_said() -> None:
    found = read(answers(50, dropped=20), limits=LIMITS, of_lists=True)
    assert (found.num_users, found.num_dropped) == (30, 20)
    assert found.waits(30) == ""
    assert found.waits(40).startswith(
        "in the shadow 30 of 40 users were put to the challenger, and 20 requests"
    )
    assert read([], limits=LIMITS, of_lists=True).checks == ()


def test_of_challengers_that_fail_as_often_as_the_champion_hardly_any_is_stopped() -> None:
    draw = np.random.default_rng(3)
    pairs = draw.random((400, 2, 300)) < 0.1
    alarms = [e_process.paired_alarm(ours, theirs, margin=0.01, alpha=0.05) for ours, theirs in pairs]
    assert sum(alarm.status.name == "WORSE" for alarm in alarms) <= 20  # at most 5 %, with any margin
