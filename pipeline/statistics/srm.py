"""Were users shared out among the arms as they should have been? A check that may be made all the time.

If they were not, what the arms show differs for another reason than the models (a sample ratio mismatch),
and no verdict is believed. Under the null, n users fall into arms with the shares p. The Dirichlet
distribution with parameters k p puts a prior on what the shares may be instead, and the ratio of likelihoods

    M = Gamma(k) / Gamma(k + n) * prod_a Gamma(k p_a + c_a) / (Gamma(k p_a) p_a^c_a)

is a martingale: it passes 1/alpha at any time with probability at most alpha (Lindon & Malek 2022, the
sequential chi-square; for two arms the beta-binomial mixture of Howard et al. 2021). The larger k, the
closer to p are the shares that it finds soonest. Pure: numpy and scipy only.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from pipeline.statistics.sequential import mixture_rho

Floats = NDArray[np.float64]
ALPHA = 0.001  # a false alarm stops a whole test, so it has to be rare
TUNED_AT = 100_000  # users


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Whether the shares can be believed; `p_value` holds at any time."""

    ok: bool
    p_value: float
    reason: str


def concentration(tuned_at: int, *, alpha: float) -> float:
    """The k that finds a mismatch soonest that can just be found by `tuned_at` users."""
    return max(mixture_rho(tuned_at, alpha=alpha) - 1, 1e-3)


def log_evidence(counts: ArrayLike, shares: Sequence[float], *, concentration: float) -> Floats:
    """Log of the martingale at the counts so far, shape [..., arms]; counts may be fractions.

    >>> round(float(log_evidence([135, 490], [0.2, 0.8], concentration=12.60056 / 0.16 - 1)), 5)
    -0.6941
    """
    seen, prior = np.asarray(counts, dtype=np.float64), concentration * np.asarray(shares, dtype=np.float64)
    posterior = special.gammaln(prior + seen).sum(-1) - special.gammaln(concentration + seen.sum(-1))
    before = special.gammaln(prior).sum() - special.gammaln(concentration)
    return np.asarray(posterior - before - special.xlogy(seen, shares).sum(-1))


def check(
    counts: Mapping[str, int], shares: Mapping[str, float], *, alpha: float = ALPHA, tuned_at: int = TUNED_AT
) -> Ratio:
    """Do the counts of users by arm fit the shares? Every input has an answer; one that cannot be read is no.

    False alarms over all looks together: at most alpha.
    """
    problem = _problem(counts, shares)
    if problem:
        return Ratio(ok=False, p_value=math.nan, reason=problem)
    names = sorted(shares)
    seen, due = [counts.get(name, 0) for name in names], [shares[name] for name in names]
    found = float(log_evidence(seen, due, concentration=concentration(tuned_at, alpha=alpha)))
    p_value = math.exp(-max(found, 0.0))
    total = sum(seen)
    told = ", ".join(
        f"{n} {c:,} of {total:,} ({s:.2%} due)" for n, c, s in zip(names, seen, due, strict=True)
    )
    if p_value <= alpha:
        reason = (
            f"users are not shared out as they should be: {told}, p {p_value:.2g}; look at the assignment"
        )
        return Ratio(ok=False, p_value=p_value, reason=reason)
    return Ratio(ok=True, p_value=p_value, reason=told)


def _problem(counts: Mapping[str, int], shares: Mapping[str, float]) -> str:
    if (
        len(shares) < 2
        or not math.isclose(sum(shares.values()), 1, abs_tol=1e-9)
        or min(shares.values()) <= 0
    ):
        return f"shares {dict(shares)} are not of two arms or more, each above 0, in sum 1"
    if strange := sorted(set(counts) - set(shares)):
        return f"users in arm {strange[0]}, which has no share"
    if any(not math.isfinite(count) or count < 0 for count in counts.values()):
        return f"counts {dict(counts)} are not numbers of users"
    if not sum(counts.values()):
        return "no user has come yet"
    return ""
