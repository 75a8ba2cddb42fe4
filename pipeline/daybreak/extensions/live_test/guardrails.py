"""Tests the guardrails of an experiment that need no score: what may stop a challenger at any time.

    arms as drawn    answers per arm fit the shares (`srm`), and no user was in an arm that could not be
    frequent users   users with more visits than a person has, who are left out, fit the shares as well
    errors           requests that the model did not answer
    personal lists   answers with a list of popular items instead of the user's own
    latency          P99 of the answers at the present share (`quantiles`)
    items shown      distance between the lists of the arms (`output_drift`)
    returning users  users who come back after the time for an outcome

All may be tested at any time and as often as one likes. Each raises a false alarm in at most one of 1,000
experiments. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from daybreak.contract.formats import counted, duration, percents
from daybreak.contract.record_parts import Check
from daybreak.extensions.live_test.live_score import ShownExposure
from daybreak.extensions.live_test.observations import Observation, ObservationLog, arms, chances, settled
from daybreak.statistics import e_process, quantiles, srm
from daybreak.statistics.output_drift import witnessed
from daybreak.statistics.result import Conclusion, Status

Floats = NDArray[np.float64]
FREQUENT_AT = 1_000  # users for which their test is tuned, as they are few
WINDOWS = (1, 2, 4, 8, 16)  # of a user's answers that guardrails look at together


@dataclass(frozen=True, kw_only=True)
class GuardrailLimits:
    """How much worse than the champion the challenger may be."""

    errors: float  # share of users whose model did not answer
    attrition: float  # share of users who do not come back
    fallbacks: float  # share of users without a list of their own
    p99_s: float  # seconds that the P99 may be longer
    shift: float  # total variation distance between the items shown
    margin: float  # of the score


def as_drawn(seen: ObservationLog) -> Conclusion:
    """Returns MISMATCH where users met another arm than they could, or the arms do not fit the chances."""
    if seen.impossible:
        sentence = (
            f"{seen.impossible:,} answers came from an arm that the user could not be in; look at the routers"
        )
        return Conclusion(status=Status.MISMATCH, sentence=sentence)
    everybody = (*seen.observations, *seen.frequent)
    return srm.check(arms(everybody), chances(everybody))


def frequent_users(seen: ObservationLog) -> tuple[Check, ...]:
    """Returns the guardrail on users who are left out as they come too often; none where nobody is.

    A bound on visits may not take more users from one arm than from the other, as where a model makes them
    ask again and again.
    """
    if not seen.frequent:
        return ()
    result = srm.check(arms(seen.frequent), chances(seen.frequent), tuned_at=FREQUENT_AT)
    left_out = counted(len({one.exposures[0].unit for one in seen.frequent}), "user")
    text = f"{left_out} with more than {seen.max_visits:,} visits in a day left out: {result.sentence}"
    return (Check(name="frequent users", ok=result.status is not Status.MISMATCH, text=text),)


def guardrails(
    seen: ObservationLog, *, limits: GuardrailLimits, window_s: float, now: float, of_lists: bool = True
) -> tuple[Check, ...]:
    """Returns a check for each guardrail that needs no outcome; arguments as of `Design`.

    Those of lists are left out where users are shown none.

    Each is tested several times, alpha shared among the tests: on every user's first answer, at once, so that
    a broken model is stopped early; on all answers within a window, and within 2, 4, 8 and 16 of them, once
    these are over; and on the answers to users who come back at a later share. So a model that fails from the
    second visit on, or only after hours, is stopped as well. A user is one value, the mean over the answers
    that count.
    """
    users = list(seen.observations)
    tests = _tests(seen, window_s=window_s, now=now)

    def tested(name: str, text: str, margin: float) -> Check:
        results = [
            e_process.alarm(arms(of), chances(of), values[name], margin=margin, num_tests=len(tests))
            for of, values in tests
        ]
        worst = min(range(len(tests)), key=lambda number: results[number].p_value)
        of, values = tests[worst]
        return check(name, results[worst], shown=_means(text, arms(of), values[name]))

    latency = _latency(seen, limits)
    back_again = _returning(users, margin=limits.attrition, window_s=window_s, now=now)
    errors = tested(
        "errors",
        "the model did not answer {ours} of the requests of the challenger's users and {theirs} "
        "of those of the champion's",
        limits.errors,
    )
    if not of_lists:
        return errors, latency, back_again
    return (
        errors,
        tested(
            "personal lists",
            "{ours} of the answers to the challenger's users were no lists of their own, and "
            "{theirs} of those to the champion's",
            limits.fallbacks,
        ),
        latency,
        tested(
            "items shown",
            "{ours} of the items that the challenger shows, and {theirs} of those of the champion, "
            "are such as only it prefers",
            limits.shift,
        ),
        back_again,
    )


def _tests(
    seen: ObservationLog, *, window_s: float, now: float
) -> list[tuple[list[Observation], dict[str, list[float]]]]:
    """Returns the groups of users that are tested, each with their values by guardrail."""
    users, back = list(seen.observations), settled(seen.returned, window_s, now)
    tests = [(users, _values(users, [one.exposures[:1] for one in users]))]
    for windows in WINDOWS:
        over = settled(users, windows * window_s, now)
        tests.append((over, _values(over, [one.until(windows * window_s) for one in over])))
    return [*tests, (back, _values(back, [one.exposures for one in back]))]


def _latency(seen: ObservationLog, limits: GuardrailLimits) -> Check:
    """Returns the guardrail on the P99 of users' first answers at the present share."""
    result = quantiles.guard(
        seen.latencies_s[True],
        seen.latencies_s[False],
        quantile=0.99,
        margin=limits.p99_s,
        alpha=e_process.ALPHA,
        min_samples=2,
    )
    return check("latency", result)


def _returning(users: Sequence[Observation], *, margin: float, window_s: float, now: float) -> Check:
    """Returns the guardrail on users who do not come back, tested 2, 4, 8 and 16 windows after they came."""
    tests = []
    for windows in WINDOWS[1:]:
        over = settled(users, windows * window_s, now)
        gone = [float(not one.came_back(after_s=window_s, until_s=windows * window_s)) for one in over]
        tests.append((over, gone, windows))
    results = [
        e_process.alarm(arms(over), chances(over), gone, margin=margin, num_tests=len(tests))
        for over, gone, _ in tests
    ]
    worst = min(range(len(tests)), key=lambda number: results[number].p_value)
    over, gone, windows = tests[worst]
    if not 0 < sum(one.treated for one in over) < len(over):
        return check("returning users", results[worst])
    text = (
        f"{{ours}} of the challenger's users had not come back within {duration(windows * window_s)}, and "
        f"{{theirs}} of the champion's"
    )
    return check("returning users", results[worst], shown=_means(text, arms(over), gone))


def _values(users: list[Observation], answers: list[list[ShownExposure]]) -> dict[str, list[float]]:
    """By guardrail, a value in [0, 1] per user, higher is worse, of these answers to them."""
    lists = [[item for one in of for item in one.items] for of in answers]
    return {
        "errors": [float(np.mean([bool(one.error) for one in of])) for of in answers],
        "personal lists": [float(np.mean([one.fallback for one in of])) for of in answers],
        "items shown": [float(value) for value in witnessed(arms(users), lists)],
    }


def check(name: str, result: Conclusion, *, shown: str = "") -> Check:
    """Returns a guardrail, broken where the result is WORSE, INVALID or MISMATCH.

    `shown` has the measured values, where the result's sentence lacks them.
    """
    ok = result.status not in (Status.WORSE, Status.INVALID, Status.MISMATCH)
    if not shown:
        return Check(name=name, ok=ok, text=result.sentence)
    return Check(name=name, ok=ok, text=shown if ok else f"{shown}, {result.sentence}")


def _means(text: str, arm: NDArray[np.bool_], values: list[float] | Floats) -> str:
    """Returns the text with the mean of either arm in it."""
    ours, theirs = percents(*two_means(arm, np.asarray(values, dtype=np.float64)))
    return text.format(ours=ours, theirs=theirs)


def two_means(arm: NDArray[np.bool_], values: Floats) -> tuple[float, float]:
    """Returns the means of the challenger and the champion; NaN for an arm without users."""
    ours = float(values[arm].mean()) if arm.any() else math.nan
    theirs = float(values[~arm].mean()) if not arm.all() else math.nan
    return ours, theirs
