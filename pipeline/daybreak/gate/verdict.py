"""Makes the verdict on held-out scores, or on a recipe over nights. Pure.

The challenger is compared with the champion; before the first champion, with a baseline of the workload.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Action, Champion, Evaluation, Verdict, Version
from daybreak.contract.workload import UNIT
from daybreak.evaluation.scores import Columns, with_prefix
from daybreak.gate import recipe_test
from daybreak.gate.all_metrics import judge_metrics, pairs_of
from daybreak.gate.selftest import selftest
from daybreak.statistics.paired import Rules, judge
from daybreak.statistics.result import Conclusion, Status

FIRST_BASELINE = "popularity"  # what the first model must beat, where the workload has it
ACTIONS: dict[Status, Action] = {
    Status.BETTER: "promote",
    Status.NO_WORSE: "promote",
    Status.WORSE: "reject",
    Status.INVALID: "reject",
    Status.INCONCLUSIVE: "reject",
    Status.OPEN: "wait",
    Status.MISMATCH: "no data",
    Status.NO_DATA: "no data",
}


def decide(
    scores: Columns | None,
    *,
    evaluation: Evaluation,
    version: Version,
    champion: Champion | None,
    rules: Rules,
    kind: str = "",
    success: Sequence[str] = ("score",),
    guardrails: Mapping[str, float] | None = None,
    believed: Check | None = None,
    over_nights: Conclusion | None = None,
) -> Verdict:
    """Returns the verdict on the columns of scores.npy, or on a recipe over nights where it is tested so.

    The verdict is "no data" where the gate fails its own test on the scores, or where the scores are not
    plausible (daybreak/gate/plausibility.py).
    """
    scores = scores or {}
    checks: tuple[Check, ...] = ()
    why = ""
    if nothing := _cannot_judge(evaluation, champion):
        result = Conclusion(status=Status.NO_DATA, sentence=nothing)
    elif champion is None and not with_prefix(scores, "baseline"):
        result = _judge_alone(scores.get("challenger"), rules)
    else:
        case = _case(scores, champion, rules=rules, success=success, guardrails=guardrails or {})
        result = judge_metrics(**case)
        checks = selftest(**case) if result.effect else ()
        result = recipe_test.with_tonight(over_nights, result) if over_nights else result
        kind = kind or ("refresh" if rules.refresh else "changed recipe")
        why = f"{kind if champion else 'no champion yet'}: "
    believed = believed if champion else None  # before the first, nothing was scored
    result = _if_believed(_if_scored(result, evaluation), believed, checks)
    effect, inconclusive = result.effect, result.status is Status.INCONCLUSIVE
    return Verdict(
        action=ACTIONS[result.status],
        champion=champion.version if champion else 0,
        challenger=version.number,
        effect=effect.measured if effect else None,
        num_samples=evaluation.num_samples,
        num_units=effect.num_samples if effect and effect.of == "unit" else 0,
        reason=f"{'' if inconclusive else why}{result.sentence}{_left_out(evaluation)}{_lost(evaluation)}",
        inconclusive=inconclusive,
        checks=(believed, *checks) if believed else checks,
        margin=rules.margin if champion else None,
    )


def _cannot_judge(evaluation: Evaluation, champion: Champion | None) -> str:
    """Returns why no scores can be compared; "" where they can be."""
    if champion is not None and evaluation.metrics.get("champion_has_seen"):
        return f"version {champion.version} was trained on held-out days, so its scores prove nothing"
    return evaluation.cannot_judge


def _if_scored(result: Conclusion, evaluation: Evaluation) -> Conclusion:
    """Returns the result, or INVALID where the night has no finite score."""
    if result.status is Status.NO_DATA or "score" in evaluation.metrics:
        return result
    lost = int(evaluation.metrics.get("num_not_finite", 0))
    sentence = (
        f"{counted(lost, 'score')} of this night's models are not finite, so that nothing can be judged; "
        f"look at what predict returns: daybreak try"
        if lost
        else "evaluation.json has no metric named score"
    )
    return Conclusion(status=Status.INVALID, sentence=sentence)


def _if_believed(result: Conclusion, believed: Check | None, checks: Sequence[Check]) -> Conclusion:
    """Returns the result, or NO_DATA where the scores or the gate's own tests are not in order."""
    if believed and not believed.ok and result.status is not Status.NO_DATA:
        sentence = f"tonight's scores are not believed, so nothing is judged by them: {believed.text}"
        return replace(result, status=Status.NO_DATA, sentence=sentence)
    if broken := next((check for check in checks if not check.ok), None):
        sentence = (
            f"the gate failed its own test ({broken.name}: {broken.text}), so its verdict is not believed"
        )
        return replace(result, status=Status.NO_DATA, sentence=sentence)
    return result


def _left_out(evaluation: Evaluation) -> str:
    """Returns on how many held-out days models were compared, where that is not on all, to end a sentence."""
    if not evaluation.seen_days:
        return ""
    num_days = len(evaluation.days)
    return (
        f"; compared on {counted(num_days, 'held-out day')} of {num_days + len(evaluation.seen_days)} "
        f"({evaluation.num_samples:,} samples), as a model was trained on days up to "
        f"{max(evaluation.seen_days)}"
    )


def _lost(evaluation: Evaluation) -> str:
    """Returns how many values of scores and metrics are not finite, to end a sentence."""
    num = int(evaluation.metrics.get("num_not_finite", 0))
    return f"; left out of the means: {counted(num, 'value')} that are not finite" if num else ""


def _case(
    scores: Columns,
    champion: Champion | None,
    *,
    rules: Rules,
    success: Sequence[str],
    guardrails: Mapping[str, float],
) -> dict[str, Any]:
    """Returns the arguments of `judge_metrics`: against the champion, or the first model's baseline."""
    if champion is not None:
        return {
            "pairs": pairs_of(scores),
            "success": success,
            "guardrails": guardrails,
            "rules": rules,
            "against": "the champion",
            "slices": with_prefix(scores, "slice"),
            "units": scores.get(UNIT),
        }
    baselines = with_prefix(scores, "baseline")
    weakest = min(baselines, key=lambda name: float(baselines[name].sum()))
    name = FIRST_BASELINE if FIRST_BASELINE in baselines else weakest
    return {
        "pairs": {"score": (scores.get("challenger"), baselines[name])},
        "success": ("score",),
        "guardrails": {},
        "rules": replace(rules, refresh=False),
        "against": f"the baseline {name}",
        "slices": None,
        "units": scores.get(UNIT),
    }


def _judge_alone(ours: NDArray[Any] | None, rules: Rules) -> Conclusion:
    """Returns NO_WORSE, for want of anything to compare with, where the scores are enough and finite."""
    itself = judge(ours, ours, rules=rules)
    if itself.effect is None:
        return replace(itself, sentence=f"no champion yet: {itself.sentence}")
    sentence = "no champion yet, and the workload has no baseline to beat"
    return Conclusion(status=Status.NO_WORSE, sentence=sentence)
