"""Selects success metrics and guardrails: from params.yaml, else by the workload's roles."""

from daybreak.contract.params import GateParams
from daybreak.contract.record_types import Evaluation, Judged

LEAST_MARGIN = 1e-9  # of a champion whose value is zero


def success_of(params: GateParams, evaluation: Evaluation) -> tuple[str, ...]:
    """Returns the success metrics, of which one must improve: from params.yaml, else from the workload."""
    if params.success != ("score",) or not evaluation.judged:
        return params.success
    others = [one for one in evaluation.judged[1:] if one.role == "success"]
    return ("score", *(_signed(one) for one in others))


def guardrails_of(params: GateParams, evaluation: Evaluation) -> dict[str, float]:
    """Returns the metrics that must hold, and what each may be worse by; params.yaml comes first."""
    own = {
        _signed(one): one.margin * abs(evaluation.metrics.get(f"champion/{one.name}", 1.0)) or LEAST_MARGIN
        for one in evaluation.judged
        if one.role == "guardrail"
    }
    return own | params.guardrails


def _signed(metric: Judged) -> str:
    return metric.name if metric.higher_is_better else f"-{metric.name}"
