"""How often is the gate wrong? Streams of which the truth is known, looked at every minute of a day.

    false promotions   of challengers that are no better, one-sided, promoted at any of 1,440 looks
    power              of challengers better by what the gate says beforehand that it can show
    live users         the same two, of users who meet one model or the other while the traffic ramps up, at
                       the planned looks of a test whose end is known, and at any time
    users needed       by the planned looks, and at any time, beside one z-test at the end, for the same
                       power: of scores of all users, and where 3 % take anything
    units              false promotions of held-out samples that come in units, of one size or heavy-tailed,
                       and are correlated within them
    rare outcomes      false promotions and false "worse" where few users take anything, at 24 looks of a ramp
                       and at 24 looks of a share of 1 %, planned and at any time
    sample ratio       a leak of one user in a hundred at 100,000 users, and false alarms without a leak
    reference values   of four public packages, to their printed digits

Most looks are far from any proof. The gate's code is asked at those where the effect is more than
`LEAST_Z` standard errors, without which no bound of it can be passed; in every fiftieth stream it is asked at
all, and has to agree. QUICK=1 takes a tenth of the streams.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import numpy as np
from scipy import optimize, stats

from benchmarks import frame
from daybreak.extensions.live_test.looks import NUM_LOOKS as NUM_PLANNED
from daybreak.extensions.live_test.looks import Look, Looks, last_bound
from daybreak.extensions.live_test.readout import too_rare
from daybreak.statistics import quantiles, srm, unpaired
from daybreak.statistics.paired import Rules, detectable, interval, judge
from daybreak.statistics.sequential import (
    crossing,
    family,
    group_bounds,
    inflation,
    log_mixture,
    mixture_bound,
    mixture_rho,
    spend,
)
from tests.statistics.reference import reference

NUM_STREAMS = 200 if frame.QUICK else 2000
NUM_LOOKS, PER_LOOK = 1440, 2
SIZE = NUM_LOOKS * PER_LOOK
ALPHA = 0.05
RULES = Rules(alpha=ALPHA, margin=0.03, min_samples=30, refresh=False)
LEAST_Z = 1.5  # of the effect where it may be proven: a single look at alpha asks for 1.645
ASKED_ALWAYS = 50  # in each of so many streams the gate's code is asked at every look
NUM_TESTS = 2_000 if frame.QUICK else 20_000
USERS, USERS_PER_LOOK = 100_000, 1_000
CHANCES = np.repeat([0.01, 0.05, 0.25, 0.5], [SIZE // 8, SIZE // 8, SIZE // 4, SIZE // 2])  # of the ramp
CLOCK = float((CHANCES * (1 - CHANCES)).sum())
UNITS = [
    (size, correlation) for size in (1, 24, 100, 0) for correlation in (0.0, 0.1, 0.3)
]  # 0: heavy-tailed
TAKERS = (0.01, 0.03, 0.3)
NUM_HOURS = 24
FEWER = np.array([1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0])  # times fewer users, of a z-test
RARE, RARE_USERS = 0.03, 40_000
SURE = 0.99  # of the exact test by which a cell has more false alarms than stated
TARGETS = {
    "false promotions, horizon known": ("<=", ALPHA),
    "false promotions, no horizon": ("<=", ALPHA),
    "power at the stated effect": (">=", 0.8),
    "false promotions, live users, end known": ("<=", ALPHA),
    "false promotions, live users, no end": ("<=", ALPHA),
    "power at the stated effect, live users, end known": (">=", 0.8),
    "power at the stated effect, live users, no end": (">=", 0.8),
    "users needed / one z-test, end known": ("<=", 1.15),
    "leak found": (">=", 0.95),
    "false alarms of the ratio": ("<=", 0.001),
    "reference values that differ": ("==", 0.0),
    "cells with more false alarms than stated": ("==", 0.0),
}


def stream(number: int, *, mean: float = 0.0) -> np.ndarray:
    """Paired differences of a day, shape [SIZE], sd 0.2: normal, or as of baskets, skewed to either side."""
    rng = np.random.default_rng([7, number])
    if number % 2:
        return rng.normal(mean, 0.2, SIZE)
    sign = 1 if number % 4 else -1
    drawn = np.where(rng.random(SIZE) < 0.5, 0.0, rng.beta(1, 4, SIZE) - 0.2)
    return mean + sign * drawn * (0.2 / SD_OF_BASKETS)


SD_OF_BASKETS = math.sqrt(0.5 * (stats.beta(1, 4).var()))


def promoted(values: np.ndarray, *, horizon: int | None, always: bool) -> bool:
    """Is the challenger promoted at any look? The whole of `judge` is asked where its interval is above 0."""
    n = np.arange(1, SIZE + 1)
    means = values.cumsum() / n
    likely = means * np.sqrt(n) > LEAST_Z * np.sqrt(np.maximum((values**2).cumsum() / n - means**2, 0.0))
    for n in range(PER_LOOK, SIZE + 1, PER_LOOK):
        if n < RULES.min_samples or not (always or likely[n - 1]):
            continue
        if interval(values[:n], alpha=ALPHA, horizon=horizon, tuned_at=SIZE).low > 0:
            assert likely[n - 1]
            if horizon is None:
                return True
            return judge(values[:n], np.zeros(n), rules=RULES, horizon=horizon).status.is_proof
    return False


def met(number: int, *, gain: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Who of a night met the challenger, and their scores, which rise with the hours; shape [SIZE] each."""
    rng = np.random.default_rng([8, number])
    arm = rng.random(SIZE) < CHANCES
    return arm, stream(number) + 0.3 + np.linspace(0, 0.2, SIZE) + gain * arm


def promoted_live(number: int, *, gain: float = 0.0, planned: bool) -> bool:
    """Is the challenger promoted by its users at any look?"""
    arm, scores = met(number, gain=gain)
    if planned:
        return any(low > 0 for low, _ in ends(arm, CHANCES, scores))
    always, likely = number % ASKED_ALWAYS == 0, likely_live(arm, scores)
    for n in range(PER_LOOK, SIZE + 1, PER_LOOK):
        if min(arm[:n].sum(), n - arm[:n].sum()) < RULES.min_samples or not (always or likely[n - 1]):
            continue
        if unpaired.effect(arm[:n], CHANCES[:n], scores[:n], alpha=ALPHA, tuned_at=CLOCK).low > 0:
            assert likely[n - 1]
            return True
    return False


def likely_live(arm: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Whether the effect of the first n users is more than LEAST_Z standard errors, for each n; shape [SIZE].

    The sums of u and of its squares, u = (A - p)(y - m), over the users of each chance so far.
    """
    total, square = np.zeros(SIZE), np.zeros(SIZE)
    for chance in np.unique(CHANCES):
        among = chance == CHANCES
        ours, y = np.where(among, arm - CHANCES, 0.0), np.where(among, scores, 0.0)
        mean = y.cumsum() / np.maximum(among.cumsum(), 1)
        total += (ours * y).cumsum() - mean * ours.cumsum()
        square += (ours**2 * y**2).cumsum() - 2 * mean * (ours**2 * y).cumsum()
        square += mean**2 * (ours**2).cumsum()
    return total > LEAST_Z * np.sqrt(np.maximum(square, 0.0))


def ends(arm: np.ndarray, chances: np.ndarray, scores: np.ndarray) -> Iterator[tuple[float, float]]:
    """Both ends of the interval at each planned look of a day in which users come evenly."""
    ready = np.arange(1, len(arm) + 1) / len(arm) * NUM_PLANNED
    for look in looks_of(chances.tobytes()):
        n = int((ready <= look.time).sum())
        if min(arm[:n].sum(), n - arm[:n].sum()) < RULES.min_samples:
            continue
        if too_rare(arm[:n], scores[:n], least=RULES.min_samples):
            continue
        effect = unpaired.effect(arm[:n], chances[:n], scores[:n], alpha=ALPHA, bound=look.bound)
        yield effect.low, effect.high


@lru_cache
def looks_of(chances: bytes) -> list[Look]:
    """The planned looks of a day in which users come evenly: they go by the chances alone, not by scores."""
    p = np.frombuffer(chances)
    looks = Looks(began=0.0, ends=float(NUM_PLANNED))
    ready = np.arange(1, len(p) + 1) / len(p) * NUM_PLANNED
    newest = (
        looks.newest(ready, p * (1 - p), now=float(hour), alpha=ALPHA) for hour in range(1, NUM_PLANNED + 1)
    )
    return [look for look in newest if look is not None]


def gained(number: int, *, rare: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Arms, chances and scores of a day with a gain that one z-test at the end shows at a power of 90 %."""
    chances = np.repeat(CHANCES, RARE_USERS // SIZE) if rare else CHANCES
    sd = 0.5 * math.sqrt(RARE) if rare else 0.21
    clock = float((chances * (1 - chances)).sum())
    gain = (stats.norm.isf(ALPHA) + stats.norm.isf(0.1)) * sd / math.sqrt(clock)
    if not rare:
        arm, scores = met(NUM_STREAMS + number, gain=gain)
        return arm, chances, scores
    rng = np.random.default_rng([11, number])
    arm = rng.random(chances.size) < chances
    taken = rng.random(chances.size) < RARE + arm * gain / 0.5
    return arm, chances, np.where(taken, rng.beta(2, 2, chances.size), 0.0)


def shown(rare: bool, number: int) -> list[bool]:
    """Is the gain shown, by planned looks, by looks at any time, and by one z-test of ever fewer users?"""
    arm, chances, scores = gained(number, rare=rare)
    clock = float((chances * (1 - chances)).sum())
    proofs = [any(low > 0 for low, _ in ends(arm, chances, scores)), False]
    for n in np.linspace(0, len(arm), NUM_HOURS + 1)[1:].astype(int):
        too_few = min(arm[:n].sum(), n - arm[:n].sum()) < RULES.min_samples
        if not too_few and not too_rare(arm[:n], scores[:n], least=RULES.min_samples):
            effect = unpaired.effect(arm[:n], chances[:n], scores[:n], alpha=ALPHA, tuned_at=clock)
            proofs[1] = proofs[1] or effect.low > 0
    draw = np.random.default_rng([12, number]).random(len(arm))
    z = float(stats.norm.isf(ALPHA))
    for times in FEWER:
        of = draw < 1 / times
        proofs.append(unpaired.effect(arm[of], chances[of], scores[of], alpha=ALPHA, bound=z).low > 0)
    return proofs


def users_needed(pool: Any) -> dict[str, float]:
    """How many times the users of a z-test show as much: where its power falls to that of the looks."""
    figures: dict[str, float] = {}
    for rare, of in ((False, ""), (True, f", {RARE:.0%} take")):
        jobs = [(rare, number) for number in range(NUM_STREAMS)]
        power = np.mean(pool.starmap(shown, jobs, 20), axis=0)
        for ours, kind in zip(power[:2], ("end known", "no end"), strict=True):
            times = np.interp(-ours, -np.minimum.accumulate(power[2:]), FEWER)
            figures[f"users needed / one z-test, {kind}{of}"] = float(times)
            figures[f"power beside it, {kind}{of}"] = float(ours)
    return figures


def of_units(size: int, correlation: float, number: int) -> bool:
    """Is a challenger promoted that is no better, by 100 units of so many samples? 0: heavy-tailed sizes."""
    rng = np.random.default_rng([9, size, int(100 * correlation), number])
    sizes = np.minimum(rng.zipf(1.7, 100), 1000) if size == 0 else np.full(100, size)
    units = np.repeat(np.arange(100), sizes)
    shared = rng.normal(0, math.sqrt(correlation), 100)[units]
    values = 0.2 * (shared + rng.normal(0, math.sqrt(1 - correlation), units.size))
    return judge(values, np.zeros(units.size), rules=RULES, units=units).status.is_proof


def of_rare(takers: float, share: float, planned: bool, number: int) -> tuple[bool, bool]:
    """Whether 24 looks at users of whom few take anything ever prove the challenger better, and worse.

    At one share, or on the ramp where it is 0; both arms are alike.
    """
    rng = np.random.default_rng([10, int(1000 * takers), int(100 * share), number])
    num_users = 20_000 if share else SIZE
    chances = np.full(num_users, share) if share else CHANCES
    arm = rng.random(num_users) < chances
    values = np.where(rng.random(num_users) < takers, rng.beta(2, 2, num_users), 0.0)
    if planned:
        intervals = [*ends(arm, chances, values)]
        return any(low > 0 for low, _ in intervals), any(high < 0 for _, high in intervals)
    clock = float((chances * (1 - chances)).sum())
    better = worse = False
    for n in np.linspace(0, num_users, NUM_HOURS + 1)[1:].astype(int):
        if min(arm[:n].sum(), n - arm[:n].sum()) < RULES.min_samples:
            continue
        if too_rare(arm[:n], values[:n], least=RULES.min_samples):
            continue
        effect = unpaired.effect(arm[:n], chances[:n], values[:n], alpha=ALPHA, tuned_at=clock)
        better, worse = better or effect.low > 0, worse or effect.high < 0
    return better, worse


def cells(pool: Any) -> dict[str, float]:
    """Share of false alarms in each cell, and how many cells have more than stated by an exact test."""
    alarms_by_cell: dict[str, int] = {}
    for size, correlation in UNITS:
        jobs = [(size, correlation, number) for number in range(NUM_STREAMS)]
        kind = f"units of {size}" if size else "units of heavy-tailed sizes"
        alarms_by_cell[f"false promotions, {kind}, correlation {correlation:g}"] = sum(
            pool.starmap(of_units, jobs, 50)
        )
    for takers in TAKERS:
        for share, where in ((0.0, "ramp"), (0.01, "share of 1 %")):
            for planned, kind in ((True, "end known"), (False, "no end")):
                jobs = [(takers, share, planned, number) for number in range(NUM_STREAMS)]
                both = pool.starmap(of_rare, jobs, 50)
                of = f"{takers:.0%} take, {where}, {kind}"
                alarms_by_cell[f"false promotions, {of}"] = sum(better for better, _ in both)
                alarms_by_cell[f"false worse, {of}"] = sum(worse for _, worse in both)
    more = [
        name
        for name, count in alarms_by_cell.items()
        if stats.binomtest(count, NUM_STREAMS, stated(name), alternative="greater").pvalue < 1 - SURE
    ]
    print("more than stated:", *(more or ["none"]), sep="\n  ")
    shares = {name: count / NUM_STREAMS for name, count in alarms_by_cell.items()}
    return shares | {"cells with more false alarms than stated": float(len(more))}


def stated(cell: str) -> float:
    """How often an end may fail: of held-out scores half of alpha, at one look; of users alpha, at all."""
    return ALPHA / 2 if "units" in cell else ALPHA


def trial(job: tuple[str, int]) -> bool:
    """One stream: was it promoted?"""
    kind, number = job
    always = number % ASKED_ALWAYS == 0
    if kind == "live":
        return promoted_live(number, planned=False)
    if kind == "live, planned":
        return promoted_live(number, planned=True)
    # 0.21: the spread of scores within an hour, and their rise over the night
    if kind == "live power":
        gain = unpaired.detectable(sd=0.21, clock=CLOCK, alpha=ALPHA)
        return promoted_live(number, gain=gain, planned=False)
    if kind == "live power, planned":
        bound = bound_at_the_end()
        gain = unpaired.detectable(sd=0.21, clock=CLOCK, alpha=ALPHA, bound=bound)
        return promoted_live(number, gain=gain, planned=True)
    if kind == "power":
        mean = detectable(sd=0.2, num_samples=SIZE, alpha=ALPHA)
        return promoted(stream(number, mean=mean), horizon=SIZE, always=always)
    return promoted(stream(number), horizon=SIZE if kind == "horizon" else None, always=always)


@lru_cache
def bound_at_the_end() -> float:
    """The bound of z at the last planned look of the ramp."""
    shares = [(hour + 1) / NUM_PLANNED for hour in range(NUM_PLANNED)]
    known = np.cumsum(CHANCES * (1 - CHANCES))
    clocks = [float(known[round(share * SIZE) - 1]) for share in shares]
    return last_bound(clocks, shares, alpha=ALPHA)


def alarms(share: float, seed: int) -> float:
    """Share of tests of USERS users in which the sample ratio check objects at any look."""
    rng = np.random.default_rng(seed)
    came = rng.binomial(USERS_PER_LOOK, share, (NUM_TESTS, USERS // USERS_PER_LOOK)).cumsum(1)
    n = np.arange(1, came.shape[1] + 1) * USERS_PER_LOOK
    counts = np.stack([came, n - came], axis=-1)
    k = srm.concentration(srm.TUNED_AT, alpha=srm.ALPHA)
    evidence = srm.log_evidence(counts, [0.5, 0.5], concentration=k)
    return float((evidence.max(1) >= math.log(1 / srm.ALPHA)).mean())


Compared = Iterator[tuple[str, float, float, float]]  # name, ours, the reference's, how far off it may be


def any_time() -> Compared:
    """Values of confseq and Growthbook."""
    known = reference()
    mix = known["confseq"]
    for sides, name in ((1, "one_sided_normal_mixture"), (2, "two_sided_normal_mixture")):
        rho = mixture_rho(100, alpha=0.05 * (2 if sides == 1 else 1))
        yield name, mixture_bound(100, alpha=0.05, rho=rho, sides=sides), mix[name]["bound_v100"], 1e-5
        yield name, log_mixture(10, 100, rho=rho, sides=sides), mix[name]["log_mixture_s10_v100"], 1e-5
    k = mixture_rho(100, alpha=0.05) / 0.16 - 1
    evidence = float(srm.log_evidence([135, 490], [0.2, 0.8], concentration=k))
    yield "beta-binomial", evidence, mix["beta_binomial_g0.2_h0.8"]["two_sided_log_mixture"], 1e-5
    for case in mix["bernoulli_confidence_interval"]:
        for end, ours in zip(case["ci"], share_interval(case), strict=True):
            yield f"share {case['successes']}/{case['trials']}", ours, end, 2e-6
    for case in mix["quantile_ab_p_value"]:
        ours = np.arange(1, 1001)
        p = quantiles.p_value(ours, ours + case["offset"], quantile=case["p"], tuned_at=100)
        yield f"quantile {case['p']} {case['offset']}", p, case["value"], 1e-6
    for case in known["growthbook_msprt"]["cases"]:
        n = case["a"]["n"] + case["b"]["n"]
        rho = mixture_rho(case["tuning"], alpha=case["alpha"])
        width = case["stddev"] * mixture_bound(n, alpha=case["alpha"], rho=rho, sides=2) / math.sqrt(n)
        # its stddev is printed to five digits, so the width has no more than four
        yield f"mSPRT of a {case['kind']}", width, (case["ci"][1] - case["ci"][0]) / 2, 1e-3 * width


def at_looks() -> Compared:
    """Values of the tables, rpact and gsDesign."""
    seq = reference()["group_sequential"]
    constants = seq["constants_two_sided_alpha_0.05"]
    for name, delta in (("pocock_C", 0.5), ("obrien_fleming_C", 0.0)):
        for looks, value in constants[name].items():
            yield (
                f"{name} {looks}",
                family(evenly(int(looks)), alpha=0.05, delta=delta, sides=2)[-1],
                value,
                5.1e-4,
            )
    for looks, value in constants["naive_1.96_two_sided_error"].items():
        z = [stats.norm.isf(0.025)] * int(looks)
        yield f"peeking {looks}", crossing(evenly(int(looks)), z, sides=2)[-1], value, 5.1e-5
    for name, times, delta in (
        ("obf_inverse_normal_K3_one_sided_0.025", evenly(3), 0.0),
        ("wang_tsiatis_0.3_info_0.2_0.5_1", [0.2, 0.5, 1.0], 0.3),
    ):
        bounds = family(times, alpha=0.025, delta=delta, sides=1)
        spent = crossing(times, bounds, sides=1)
        for i in range(3):
            yield f"rpact {name} z{i}", bounds[i], seq["rpact"][name]["z"][i], 6e-8
            yield f"rpact {name} spent{i}", spent[i], seq["rpact"][name]["alpha_spent"][i], 1.1e-8
    for looks, delta, name in ((4, 0.5, "pocock_K4_beta0.2_max_n_pct"), (5, 0.0, "obf_K5_beta0.2_max_n_pct")):
        bounds = family(evenly(looks), alpha=0.05, delta=delta, sides=2)
        grown = 100 * inflation(evenly(looks), bounds, alpha=0.05, power=0.8, sides=2)
        yield f"gsDesign {name}", grown, seq["gsDesign"][name], 0.051


def spent_quadratically() -> Compared:
    """Values of Spotify's package."""
    known = reference()
    run = known["spotify_confidence"]["run_over"]
    times = np.array(run["total_n_by_day"]) / max(run["total_n_by_day"])
    p_values = 2 * stats.norm.sf(group_bounds(times.tolist(), spend(times, alpha=run["alpha"] / 2), sides=1))
    for ours, theirs in zip(p_values, run["adjusted_alpha"], strict=True):
        yield "spotify run over", ours, theirs, 5.1e-6
    for case in known["spotify_confidence"][
        "sequential_bounds"
    ]:  # its search stops within 1e-7 of a look's share
        due = np.diff(spend(case["information_times"], alpha=case["alpha"] / 2), prepend=0)
        spent = np.diff(crossing(case["information_times"], case["expected_z_bounds"], sides=1), prepend=0)
        for ours, theirs in zip(spent, due, strict=True):
            yield "spotify's bound, what it spends", ours, theirs, 1.5e-7


def evenly(num_looks: int) -> list[float]:
    """Looks at equal shares of the information."""
    return [(look + 1) / num_looks for look in range(num_looks)]


def share_interval(case: dict[str, Any]) -> tuple[float, float]:
    """Interval of a share that the martingale does not object to."""
    hits, n, alpha = case["successes"], case["trials"], case["alpha"]
    k = srm.concentration(case["t_opt"], alpha=alpha)

    def excess(p: float) -> float:
        return float(srm.log_evidence([hits, n - hits], [p, 1 - p], concentration=k)) - math.log(1 / alpha)

    low, high = 1e-9, 1 - 1e-9
    return (
        optimize.brentq(excess, low, hits / n) if excess(low) > 0 else 0.0,
        optimize.brentq(excess, hits / n, high) if excess(high) > 0 else 1.0,
    )


def main() -> None:
    """Run all streams, and hold what came out against the targets."""
    figures: dict[str, float] = {}
    names = {
        "horizon": "false promotions, horizon known",
        "none": "false promotions, no horizon",
        "power": "power at the stated effect",
        "live": "false promotions, live users, no end",
        "live, planned": "false promotions, live users, end known",
        "live power": "power at the stated effect, live users, no end",
        "live power, planned": "power at the stated effect, live users, end known",
    }
    with get_context("fork").Pool(2) as pool:
        for kind, name in names.items():
            jobs = [(kind, number) for number in range(NUM_STREAMS)]
            figures[name] = float(np.mean(pool.map(trial, jobs, chunksize=20)))
        figures |= users_needed(pool)
        figures |= cells(pool)
    figures["stated effect, in sd"] = detectable(sd=1, num_samples=SIZE, alpha=ALPHA)
    figures["leak found"] = alarms(0.51, 1)
    figures["false alarms of the ratio"] = alarms(0.5, 2)
    values = [*any_time(), *at_looks(), *spent_quadratically()]
    off = [(name, ours, theirs) for name, ours, theirs, within in values if abs(ours - theirs) > within]
    for name, ours, theirs in off:
        print(f"{name}: {ours:.8g}, the reference has {theirs:.8g}")
    figures["reference values"] = len(values)
    figures["reference values that differ"] = len(off)
    frame.finish("gate", figures, TARGETS)


if __name__ == "__main__":
    main()
