"""The gate's self-test, and mutants of the gate that it must catch."""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daybreak.gate import all_metrics
from daybreak.gate.all_metrics import judge_metrics
from daybreak.gate.selftest import selftest
from daybreak.statistics import paired
from daybreak.statistics.paired import Rules
from daybreak.statistics.result import Conclusion

N = 300


def case(*, refresh: bool, mean: float = 0.01, seed: int = 0) -> dict[str, Any]:
    """A night with a success metric, a guardrail and two slices."""
    rng = np.random.default_rng(seed)
    base, other = rng.random(N), rng.random(N)
    return {
        "pairs": {
            "score": (base + rng.normal(mean, 0.1, N), base),
            "coverage": (other + rng.normal(0, 0.1, N), other),
        },
        "success": ("score",),
        "guardrails": {"coverage": 0.05},
        "rules": Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=refresh),
        "slices": {"new": np.arange(N) % 3 == 0, "known": np.arange(N) % 3 > 0},
    }


@pytest.mark.parametrize("refresh", [True, False])
@pytest.mark.parametrize("mean", [-0.1, 0.0, 0.1])
def test_the_gate_passes_whatever_the_night(refresh: bool, mean: float) -> None:
    checks = selftest(**case(refresh=refresh, mean=mean))
    assert [check.name for check in checks if not check.ok] == []
    assert len(checks) == 5


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 1e-4, 0.1, 1.0]),
    st.sampled_from([0.0, 0.5]),
    st.integers(30, 80),
)
def test_the_gate_passes_on_scores_of_any_spread(
    seed: int, refresh: bool, may_lose: bool, spread: float, share: float, size: int
) -> None:
    rng = np.random.default_rng(seed)
    base = rng.random(size)
    ours = base + spread * np.where(rng.random(size) < share, 0, rng.exponential(size=size) - 1)
    checks = selftest(
        pairs={"score": (ours, base)},
        success=("score",),
        guardrails={},
        rules=Rules(alpha=0.05, margin=0.03, min_samples=30, refresh=refresh, may_lose=may_lose),
    )
    assert [check for check in checks if not check.ok] == []


def mutant(module: types.ModuleType, old: str, new: str) -> Callable[..., Conclusion]:
    """The gate with one piece of its source changed."""
    assert module.__file__ and all_metrics.__file__
    source = Path(module.__file__).read_text()
    assert source.count(old) == 1, f"{old!r} is in the source {source.count(old)} times"
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), f"mutant of {module.__file__}", "exec"), changed)
    if module is all_metrics:
        return cast(Callable[..., Conclusion], changed["judge_metrics"])
    gate: dict[str, Any] = {"__name__": all_metrics.__name__}
    exec(compile(Path(all_metrics.__file__).read_text(), all_metrics.__file__, "exec"), gate)
    gate |= {name: changed[name] for name in ("judge",) if name in changed}
    return cast(Callable[..., Conclusion], gate["judge_metrics"])


MUTANTS = [
    (paired, "return ours - theirs, few", "return theirs - ours, few"),
    (paired, "return ours - theirs, few", "return np.abs(ours - theirs), few"),
    (paired, "return ours - theirs, few", "return np.sort(ours) - np.sort(theirs)[::-1] * 0, few"),
    (paired, "return ours - theirs, few", "return ours * 0 + 1, few"),
    (paired, "if effect.low > threshold:", "if effect.high > threshold:"),
    (paired, "if effect.low > threshold:", "if effect.mean > threshold:"),
    (paired, "if effect.low > threshold:", "if True:"),
    (paired, "if effect.low > threshold:", "if False:"),
    (paired, "threshold = -rules.margin if", "threshold = -10 * rules.margin if"),
    (paired, "-float(special.ndtri(alpha / 2)) * math.sqrt(horizon) / n", "0.05 / math.sqrt(n)"),
    (paired, "width = sd * math.sqrt((n - 1) / n)", "width = 0.01 * sd * math.sqrt((n - 1) / n)"),
    (paired, "if bad:", "if False:"),
    (paired, "if num_units < max(rules.min_samples, 2):", "if num_units < 2:"),
    (paired, "(~np.isfinite(ours)).sum()", "0 * ours.size"),
    (all_metrics, "for status in _FAILED if unproven else (*_FAILED, *_UNPROVEN):", "for status in ():"),
    (
        all_metrics,
        "if not won.status.is_proof and not unproven:",
        "won = replace(won, status=Status.BETTER)\n    if False:",
    ),
    (
        all_metrics,
        "    if missing:",
        "    pairs = {**dict.fromkeys(missing, ([1.0] * 99, [0.0] * 99)), **pairs}\n    if False:",
    ),
    (
        all_metrics,
        "(*success, *guardrails) if name not in pairs]",
        "success if name not in pairs]\n"
        "    guardrails = {name: m for name, m in guardrails.items() if name in pairs}",
    ),
]


@pytest.mark.parametrize(("module", "old", "new"), MUTANTS, ids=[new.split("\n")[0] for _, _, new in MUTANTS])
def test_a_mutant_of_the_gate_is_caught(module: types.ModuleType, old: str, new: str) -> None:
    gate = mutant(module, old, new)
    caught = set()
    for refresh in (True, False):
        try:
            caught |= {check.name for check in selftest(**case(refresh=refresh), judged=gate) if not check.ok}
        except (ValueError, KeyError) as error:  # a gate that breaks is not believed either
            caught.add(repr(error))
    assert caught


def test_the_gate_itself_is_no_mutant() -> None:
    same = mutant(all_metrics, "def judge_metrics(", "def judge_metrics(")
    assert selftest(**case(refresh=True), judged=same) == selftest(**case(refresh=True))
    assert selftest(**case(refresh=True), judged=judge_metrics)
