"""Stage refit: trains a version that is to be promoted on the held-out days too, before it serves.

Held-out days are days that a model has not learned from, so more of them (`prepare.test_days`) mean a less
fresh model. If `gate.refit_epochs` asks for it, the judged weights are trained on these days once the verdict
promotes them, at the rate of a warm start. The result is a separate version. No scores compare it: its scores
are the judged version's before the refit. So it must pass the smoke test, and its outputs must be near the
judged version's, by the test that guards users in a live test (daybreak/statistics/output_drift.py). If it
fails, if training fails, or if the time until `night.decide_until` does not suffice, the judged version
serves unchanged, and the record says why.

It is a stage rather than a part of `promote`, since it has a job to look after, and a model that DVC has to
keep, from which the next night begins. A decision on a version is final, so that an interrupted promotion
goes on with the same version.
"""

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from daybreak.contract import clock, records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import JobError, NothingToDo, NotYet, ParamsError, sentence
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import (
    Approval,
    Bill,
    Dataset,
    Evaluation,
    Night,
    Plan,
    Refit,
    Training,
    Verdict,
    Version,
)
from daybreak.contract.sections import EvaluateParams, GateSections, PlanParams
from daybreak.contract.workload import ARRAYS, Workload, serves_rows
from daybreak.data.partitions import held_out_days
from daybreak.evaluation.evaluator import columns_of
from daybreak.evaluation.held_out import arrays_of
from daybreak.evaluation.scores import Columns, read_scores, with_prefix
from daybreak.evaluation.smoke_test import smoke_test
from daybreak.jobs import launcher
from daybreak.jobs.cost_tracker import JOBS, spent_usd
from daybreak.registry import approval as approvals
from daybreak.registry.register import register_refit
from daybreak.registry.weights import MODEL, load_model
from daybreak.statistics.output_drift import shifted
from daybreak.statistics.result import Status
from daybreak.storage import ledger, snapshots
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

REFITTED = launcher.REFITTED
NUM_USERS, TOP = 1000, 20  # whose lists are compared, and how many items of each
NUM_BINS = 10  # of predictions, which each hold as many of the judged version's
Lists = list[list[str]]


def refit(
    night: Night,
    dataset: Dataset,
    plan: Plan,
    training: Training,
    evaluation: Evaluation,
    *,
    home: Home,
    version: Version,
    verdict: Verdict,
    backend: Backend,
    workload: Workload,
    params: GateSections,
    limits: PlanParams,
    scoring: EvaluateParams,
    approval: Approval | None = None,
    before: Refit | None = None,
) -> Refit | None:
    """Returns what became of the version that is to be promoted; None where no refit is asked for, or due.

    Raises NotYet while its job runs, or a person may still answer.
    """
    if not params.gate.refit_epochs or verdict.challenger != version.number:
        return None
    if before and before.judged == version.number:
        return before
    if ledger.is_over(home, night) or ledger.overtaken(home, night):  # `promote` says why
        return None
    try:
        approvals.check_promotion(night, verdict, approval, now=clock.utc())
    except NothingToDo:  # `promote` says why
        return None
    try:
        if (known := snapshots.stages(home.tonight)) and "refit" not in known:
            raise ParamsError(
                "dvc.yaml has no stage refit, so the model would not be kept; write it anew by "
                "python -m daybreak.dvc_file, and commit it"
            )
        trained = launcher.refit(
            home,
            night,
            dataset,
            plan,
            training,
            num_samples=_num_samples(evaluation, workload, params),
            last_day=max(held_out_days()),
            backend=backend,
            workload=params.workload,
            train=params.train,
            limits=limits,
        )
        return _tried(
            home, trained, night, evaluation, version, workload=workload, params=params, scoring=scoring
        )
    except NotYet:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, a version that was proven is there to serve
        log.warning("version %d serves as it was judged: %s", version.number, sentence(error))
        if usd := spent_usd(JOBS, night=night.id):
            records.write(Bill(usd=usd), home.records)
        return Refit(judged=version.number, why_not=sentence(error))


def _num_samples(evaluation: Evaluation, workload: Workload, params: GateSections) -> int:
    """Returns the held-out samples to train on, all passes together."""
    num_samples = evaluation.num_samples
    if evaluation.seen_days:  # which were not scored
        num_samples = len(workload.dataset(ARRAYS, "test"))  # type: ignore[arg-type]
    return max(1, round(params.gate.refit_epochs * num_samples))


def _tried(
    home: Home,
    trained: Training,
    night: Night,
    evaluation: Evaluation,
    judged: Version,
    *,
    workload: Workload,
    params: GateSections,
    scoring: EvaluateParams,
) -> Refit:
    """Returns the record of a refit whose training has ended, with the version where it is fit to serve."""
    made = Refit(judged=judged.number, training=trained)
    if trained.stopped_by != "finished":
        raise JobError(
            f"the refit was ended by the {trained.stopped_by} after {trained.num_samples:,} samples; "
            f"allow more by night.decide_hours or night.budget_usd"
        )
    arrays = arrays_of(evaluation.days)
    ours = columns_of(workload, REFITTED, arrays, batch_size=scoring.batch_size)
    drift = _drift(workload, ours, read_scores() or {}, margin=params.gate.max_shift)
    made = replace(made, checks=(drift,))
    if not drift.ok:
        return _unfit(made)
    version = register_refit(
        home,
        judged,
        night=night,
        model=REFITTED,
        training=trained,
        workload=params.workload,
        train=params.train,
    )
    predicted = with_prefix(ours, "prediction") if serves_rows(workload) else {}
    checks = smoke_test(
        home, version, None, ours["challenger"], params.smoke_test, predicted=predicted, arrays=arrays
    )
    made = replace(made, version=version, checks=(drift, *checks))
    return made if all(check.ok for check in made.checks) else _unfit(made)


def _unfit(made: Refit) -> Refit:
    failed = "; ".join(f"{check.name}: {check.text}" for check in made.checks if not check.ok)
    return replace(made, why_not=f"the refit is not fit to serve: {failed}")


def _drift(workload: Any, ours: Columns, theirs: Columns, *, margin: float) -> Check:
    """Checks that the refitted model outputs about what the judged one does, to the same users or samples."""
    if hasattr(workload, "recommend") and hasattr(workload, "likely"):
        name = "items shown"
        samples = workload.dataset(ARRAYS, "serve")
        users = workload.likely(samples, NUM_USERS)
        judged, refitted = (
            workload.recommend(load_model(workload, model), samples, users, TOP)
            for model in (MODEL, REFITTED)
        )
    else:
        name = "predictions"
        judged, refitted = _binned(_outputs(theirs), _outputs(ours))
    result = shifted(judged, refitted, margin=margin)
    ok = result.status is Status.OPEN
    return Check(name=name, ok=ok, text=f"beside the judged version's: {result.sentence} of {len(judged):,}")


def _outputs(columns: Columns) -> Columns:
    """Returns the model's named predictions, or its scores where it has none; shape [n, k] each."""
    named = with_prefix(columns, "prediction") or {"score": columns["challenger"]}
    return {name: values.reshape(len(values), -1).astype(float) for name, values in named.items()}


def _binned(judged: Columns, refitted: Columns) -> tuple[Lists, Lists]:
    """Returns for each sample the bins that its predictions are in, of both models.

    Bins are between quantiles of the judged model's predictions, with a separate bin for non-finite values.
    """
    edges = {
        name: np.quantile(values[np.isfinite(values).all(1)], np.linspace(0, 1, NUM_BINS + 1), axis=0)
        for name, values in judged.items()
    }

    def lists(columns: Columns) -> Lists:
        bins_of_samples: Lists = [[] for _ in next(iter(columns.values()))]
        for name, values in columns.items():
            for place in range(values.shape[1]):
                column = values[:, place]
                bins = np.searchsorted(edges[name][:, place], column)
                for items, number, finite in zip(bins_of_samples, bins, np.isfinite(column), strict=True):
                    items.append(f"{name}/{place}/{number if finite else 'not finite'}")
        return bins_of_samples

    return lists(judged), lists(refitted)
