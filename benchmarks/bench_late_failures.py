"""A challenger that fails late is stopped: on later visits, on one device, in one hour of the day, slowly.

Users come again and again through a night's test, by their own habits; a share of a thousand of all requests
fail anyway. The ramp is climbed as the gate climbs it, with a look every half hour, and the router's kill
switch sees every answer. Each failure has its own time, by which it has to be stopped. A sound challenger
must not be. Nothing was fitted on these streams. QUICK=1: a third of them.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import frame
from daybreak.contract.sections import GateParams
from daybreak.contract.units import HOUR_S
from daybreak.extensions.live_test.guardrails import GuardrailLimits, guardrails
from daybreak.extensions.live_test.live_test import pace
from daybreak.extensions.live_test.observations import observe
from daybreak.extensions.live_test.ramp import step
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router.kill_switch import KillSwitch
from daybreak.statistics.assignment import CHALLENGER, arm_of, propensity
from daybreak.storage.exposures import Exposure

HOURS = 12  # of a test
NUM_USERS, VISITS = 40_000, 2.0  # in these hours, a user
LOOK_S = 1800.0
USUAL_ERRORS = 0.001
NUM_TRIES = 3 if frame.QUICK else 10
LIMITS = LiveTestParams()


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A request of a user."""

    time: float  # since the test began
    user: str
    number: int  # of the user's visits, from 0
    device: int  # one of ten


Fails = Callable[[Visit], float]  # chance of an error, or seconds that the answer takes longer


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How a challenger fails, and hours of the test by which it has to be stopped."""

    errors: Fails = lambda visit: 0.0
    slower_s: Fails = lambda visit: 0.0
    until: float


FAILURES = {
    "on every visit but the first": Failure(errors=lambda visit: 0.8 * (visit.number > 0), until=8),
    "on one device of ten": Failure(errors=lambda visit: 0.9 * (visit.device == 3), until=6),
    "in the sixth hour": Failure(errors=lambda visit: 0.5 * (5 <= visit.time / HOUR_S < 6), until=6.1),
    "slowly: ever more errors": Failure(errors=lambda visit: 0.03 * visit.time / HOUR_S, until=8),
    "slowly: ever longer answers": Failure(slower_s=lambda visit: 0.05 * visit.time / HOUR_S, until=10),
    "not at all": Failure(until=HOURS),
}


def main() -> None:
    """Try each failure on several streams, and hold the times against the targets."""
    cases = [(name, seed) for name in FAILURES for seed in range(NUM_TRIES)]
    stopped: dict[str, list[tuple[float, str]]] = {}
    with ProcessPoolExecutor(2) as pool:
        for (name, _), end in zip(cases, pool.map(_tried, cases), strict=True):
            stopped.setdefault(name, []).append(end)
            print(".", end="", file=sys.stderr, flush=True)
    rows, figures, targets = [], {}, {}
    for name, failure in FAILURES.items():
        times = np.array([hours for hours, _ in stopped[name]])
        in_time = float(np.mean(times <= failure.until))
        by = sorted({by for _, by in stopped[name] if by})
        rows.append(
            {
                "fails": name,
                "stopped in time": in_time if by else "",
                "by hour": failure.until,
                "median hour": float(np.median(times)),
                "latest hour": float(times.max()),
                "by": ", ".join(by),
            }
        )
        if name == "not at all":
            figures["sound challengers that were stopped"] = float(np.isfinite(times).sum())
            targets["sound challengers that were stopped"] = ("==", 0.0)
        else:
            figures[f"{name}: stopped by hour {failure.until:g}"] = in_time
            figures[f"{name}: median hour"] = float(np.median(times))
            targets[f"{name}: stopped by hour {failure.until:g}"] = (">=", 0.95)
    frame.table(rows)
    frame.finish("late_failures", figures, targets)


def _tried(case: tuple[str, int]) -> tuple[float, str]:
    return hours_until_stopped(FAILURES[case[0]], seed=case[1])


def hours_until_stopped(failure: Failure, *, seed: int) -> tuple[float, str]:
    """Hours of the test until the challenger was stopped, infinite if it never was, and by whom."""
    rng = np.random.default_rng([seed, 11])
    switch = KillSwitch(max_errors=LIMITS.max_errors, max_rise_s=LIMITS.max_p99_rise_s)
    shown: list[Exposure] = []
    share, changed_at, looked_at = LIMITS.ramp[0], 0.0, 0.0
    limits = GuardrailLimits(
        errors=LIMITS.max_errors,
        attrition=LIMITS.max_attrition,
        fallbacks=LIMITS.max_fallbacks,
        p99_s=LIMITS.max_p99_rise_s,
        shift=GateParams().max_shift,
        margin=GateParams().margin or 0.03,
    )
    for visit in _visits(rng):
        while visit.time > looked_at + LOOK_S:
            looked_at += LOOK_S
            seen = observe(shown, window_s=LIMITS.outcome_hours * HOUR_S)
            checks = guardrails(
                seen, limits=limits, window_s=LIMITS.outcome_hours * HOUR_S, now=looked_at, of_lists=False
            )
            if broken := [check.name for check in checks if not check.ok]:
                return looked_at / HOUR_S, broken[0]
            hours = (looked_at - changed_at) / HOUR_S
            after = step(pace(LIMITS), share=share, units=seen.counts(share)[0], hours=hours)
            if after.share != share:
                share, changed_at = after.share, looked_at
        exposure = _answered(visit, failure, share=share, rng=rng, number=len(shown))
        shown.append(exposure)
        if switch.why_stop(exposure):
            return visit.time / HOUR_S, "kill switch"
    return float("inf"), ""


def _visits(rng: np.random.Generator) -> Iterator[Visit]:
    number = rng.poisson(VISITS, NUM_USERS)
    users = np.repeat(np.arange(NUM_USERS), number)
    times = rng.uniform(0, HOURS * HOUR_S, users.size)
    order = np.argsort(times)
    count = np.zeros(NUM_USERS, dtype=int)
    for user, time in zip(users[order].tolist(), times[order].tolist(), strict=True):
        yield Visit(time=time, user=f"{user:016x}", number=int(count[user]), device=user % 10)
        count[user] += 1


def _answered(
    visit: Visit, failure: Failure, *, share: float, rng: np.random.Generator, number: int
) -> Exposure:
    arm = arm_of(visit.user, experiment="test", share=share)
    ours = arm == CHALLENGER
    errors = max(USUAL_ERRORS, failure.errors(visit) if ours else 0.0)
    latency_s = float(rng.gamma(4, 0.005)) + (failure.slower_s(visit) if ours else 0.0)
    exposure = Exposure(
        id=f"{number:032x}",
        time=visit.time,
        experiment="test",
        unit=visit.user,
        arm=arm,
        version=1 + ours,
        share=share,
        propensity=propensity(arm, share),
        items=(),
        latency_s=latency_s,
    )
    return replace(exposure, error="it broke") if rng.random() < errors else exposure


if __name__ == "__main__":
    main()
