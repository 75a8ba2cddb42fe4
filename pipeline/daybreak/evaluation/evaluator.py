"""Stage evaluate: scores challenger and champion on days that neither of them has seen.

Challenger and champion score the same held-out samples, batch by batch and side by side, so that every
comparison downstream is paired; `data/run/scores.npy` keeps a value per sample
(daybreak/evaluation/scores.py).

A model that was trained on a held-out day would look too good on that day. So both models are compared on
days after everything that either has seen, initial weights included: a champion that was refitted on the days
that judged it has seen some of tonight's days where `prepare.test_days` is above 1. Where no day is left, the
champion is not scored: the metric `champion_has_seen` is 1, and the gate has no evidence. Each model is
scored by the workload that its model.json names; its folder must have the digest on record. A champion whose
workload was edited since is scored by the code in its version, in a separate process
(daybreak/evaluation/own_code.py).

So are the anchor of its chain (daybreak/gate/chain.py) and the version that it replaced, to detect a loss
that no single night shows, and a candidate: the newest version of a recipe that is tested over nights, where
the champion's recipe has its turn tonight. A night goes on where these cannot be scored.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError, PipelineError, without_password
from daybreak.contract.record_parts import (
    Confusion,
    Differences,
    Judged,
    LiveMetric,
    RecommendedLists,
    Reliability,
    Slice,
)
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Release, Training
from daybreak.contract.records import digest
from daybreak.contract.sections import EvaluateParams, RegisterParams
from daybreak.contract.table import Label
from daybreak.contract.workload import ARRAYS, STATE, UNIT, Workload, serves_rows
from daybreak.data.partitions import held_out_days
from daybreak.evaluation import diagnostics, lists, own_code
from daybreak.evaluation.differences import find as find_differences
from daybreak.evaluation.differences import seconds_for
from daybreak.evaluation.held_out import arrays_of, comparable_days
from daybreak.evaluation.scores import Columns, with_prefix, write_scores
from daybreak.evaluation.scoring import (
    ScoredModel,
    check_shape,
    declared,
    judged,
    live_metrics,
    predict,
    score,
)
from daybreak.registry import carried_code
from daybreak.registry.weights import MODEL, batch_of, check_digest, load_model
from daybreak.storage.home import Home
from daybreak.storage.source_code import source_digest
from daybreak.workloads.metrics import Metric

log = logging.getLogger(__name__)

CHAMPION = Path("data/champion")
EARLIER = ("champion", "anchor", "predecessor", "candidate")  # versions that are scored beside tonight's


def evaluate(
    dataset: Dataset,
    training: Training,
    champion: Champion | None,
    workload: Workload,
    params: EvaluateParams,
    *,
    home: Home,
    registered: RegisterParams,
) -> Evaluation:
    """Scores all held-out samples, writes `data/run/scores.npy`, and returns the means.

    A mean is left out of the metrics where a score is not finite; `num_not_finite` counts such scores.
    Raises DataError if a model folder is not the one on record, or does not fit its workload.
    """
    import torch

    began = time.monotonic()
    check_digest(MODEL, training.model_digest, record="training.json")
    everything = held_out_days()
    days = _compared_days(workload, champion) if champion else everything
    arrays = arrays_of(days)
    samples = workload.dataset(arrays, "test")
    num_samples = len(samples)  # type: ignore[arg-type]
    challenger = _challenger(workload, MODEL, samples)
    versions = _ScoredVersions(
        challenger, home=home, registered=registered.name, days=days, batch_size=params.batch_size
    )
    facts: dict[str, float] = {}
    if champion and days:
        versions.add_champion(champion)
        versions.add_references(champion)
    elif champion:
        facts["champion_has_seen"] = 1.0
        log.warning("the champion was trained on held-out days; it is not compared")
    metrics = declared(workload)
    with torch.inference_mode():
        found = _scored(versions.todays, versions.by_own_code, batch_size=params.batch_size)
    columns, by_row = found.columns, found.by_row
    columns |= _baselines(workload, arrays, num_samples)
    write_scores(columns, num_samples)
    explains = params.explain and bool(metrics) and serves_rows(workload)
    differences = (
        _differences(versions, columns, days or everything, limit_s=seconds_for(training.took_s))
        if explains
        else None
    )
    recommended = _lists(versions) if lists.recommends(workload) else None
    metric_slices = getattr(workload, "metric_slices", {})
    by_slice = diagnostics.by_slice(columns, metrics, without=metric_slices)
    columns = _of_slices(columns, metric_slices)
    return Evaluation(
        model_digest=training.model_digest,
        data_digest=dataset.digest,
        num_samples=num_samples,
        metrics=facts | means(columns),
        slices=_slices(columns),
        elapsed_s=round(time.monotonic() - began, 3),
        judged=_roles(metrics),
        live=next(iter(by_row), LiveMetric()) if serves_rows(workload) else None,
        live_others=by_row[1:] if serves_rows(workload) else (),
        days=days or everything,
        num_by_day=getattr(samples, "num_by_day", ()),
        seen_days=tuple(day for day in everything if day not in (days or everything)),
        cannot_judge=_one_label(workload, samples) or _without_value(metrics, columns),
        differences=differences,
        by_slice=by_slice,
        reliability=found.reliability,
        confusion=found.confusion,
        lists=recommended,
    )


def evaluate_predicted(
    workload: Workload, columns: Columns, days: Sequence[date], *, model_digest: str, data_digest: str
) -> Evaluation:
    """Scores what a version has predicted by its own code, as `evaluate` does, without a champion.

    `columns` are those of own_code.py, on held-out `days`. Raises ParamsError where a metric of the workload
    judges none of the predictions.
    """
    predicted, metrics = with_prefix(columns, "prediction"), declared(workload)
    samples: Any = workload.dataset(arrays_of(days), "test")
    label, classes = _label(workload, samples)
    scored = judged(metrics, {"challenger": predicted}, label) | _predicted(predicted)
    if UNIT in samples[0]:
        scored[UNIT] = samples.column(UNIT)
    scored |= _baselines(workload, arrays_of(days), len(samples))
    write_scores(scored, len(samples))
    by_row = live_metrics(
        metrics, predicted, label, has_label=workload.table.label is not None, classes=classes
    )
    return Evaluation(
        model_digest=model_digest,
        data_digest=data_digest,
        num_samples=len(samples),
        metrics=means(scored),
        slices=(),
        judged=_roles(metrics),
        live=next(iter(by_row), LiveMetric()),
        live_others=by_row[1:],
        days=tuple(days),
        num_by_day=samples.num_by_day,
        seen_days=tuple(day for day in held_out_days() if day not in days),
        cannot_judge=_one_label(workload, samples) or _without_value(metrics, scored),
    )


def columns_of(workload: Workload, model: Path, arrays: Path, *, batch_size: int) -> Columns:
    """Returns what scores.npy has of a challenger, for this model and these held-out samples."""
    import torch

    samples = workload.dataset(arrays, "test")
    with torch.inference_mode():
        return _scored([_challenger(workload, model, samples)], {}, batch_size=batch_size).columns


def _challenger(workload: Workload, model: Path, samples: Any) -> ScoredModel:
    return ScoredModel(
        name="challenger", workload=workload, model=load_model(workload, model), samples=samples
    )


@dataclass(frozen=True, kw_only=True)
class _HeldOutScores:
    """The columns of scores.npy, and of a workload that names metrics, those for users and diagnostics."""

    columns: Columns
    by_row: tuple[LiveMetric, ...] = ()
    reliability: Reliability | None = None
    confusion: Confusion | None = None


def _scored(arms: list[ScoredModel], theirs: Mapping[str, Columns], *, batch_size: int) -> _HeldOutScores:
    """Returns the columns of the scores, and what follows from the metrics that the workload names."""
    if declared(arms[0].workload):
        return _judged(arms, theirs, batch_size=batch_size)
    columns = score(arms, len(arms[0].samples), batch_size=batch_size)
    for scored in theirs.values():
        columns |= scored
    if serves_rows(arms[0].workload):
        columns |= _predicted(predict(arms[0], batch_size=batch_size))
    return _HeldOutScores(columns=columns)


def _compared_days(workload: Workload, champion: Champion) -> tuple[date, ...]:
    """Returns the held-out days that neither challenger nor champion has seen."""
    check_digest(CHAMPION, champion.model_digest, record="champion.json")
    return comparable_days(workload, seen_until=max(_last_day(MODEL), _last_day(CHAMPION)))


class _ScoredVersions:
    """The versions that score the held-out samples: by today's code, or each by its own."""

    def __init__(
        self, challenger: ScoredModel, *, home: Home, registered: str, days: Sequence[date], batch_size: int
    ) -> None:
        self._home, self._registered, self._days, self.batch_size = home, registered, days, batch_size
        self.todays = [challenger]
        self.by_own_code: dict[str, Columns] = {}

    def add_champion(self, champion: Champion) -> None:
        """Adds the champion with the model in `CHAMPION`; code other than today's is fetched."""
        if _is_todays(champion, CHAMPION):
            self._add_todays("champion", CHAMPION)
            return
        with own_code.fetched(self._home, champion, name=self._registered) as folder:
            self._add_by_own_code("champion", champion, folder)

    def add_references(self, champion: Champion) -> None:
        """Adds the champion's anchor, predecessor and candidate.

        A version is left out where it cannot be scored, or was trained on a held-out day.
        """
        references: dict[str, Release | None] = {
            "anchor": champion.anchor.release if champion.anchor else None,
            "predecessor": champion.predecessor,
            "candidate": champion.candidate,
        }
        for name, release in references.items():
            if release is None or release.version == champion.version:
                continue
            try:
                with own_code.fetched(self._home, release, name=self._registered) as folder:
                    self._add_reference(name, release, folder)
            except PipelineError as error:
                log.warning("the %s is not compared: %s", name, error)

    def _add_reference(self, name: str, release: Release, folder: Path) -> None:
        model = folder / carried_code.MODEL
        if _last_day(model) >= min(self._days):
            log.warning("the %s was trained on held-out days; it is not compared", name)
        elif _is_todays(release, model):
            self._add_todays(name, model)
        else:
            self._add_by_own_code(name, release, folder)

    def _add_todays(self, name: str, model: Path) -> None:
        challenger = self.todays[0]
        self.todays.append(replace(challenger, name=name, model=load_model(challenger.workload, model)))

    def _add_by_own_code(self, name: str, release: Release, folder: Path) -> None:
        columns = own_code.columns(
            self._home, release, folder, arm=name, days=self._days, batch_size=self.batch_size
        )
        _check_same_samples(next(iter(columns.values())), len(self.todays[0].samples))
        self.by_own_code[name] = columns


def _differences(
    versions: _ScoredVersions, columns: Columns, days: Sequence[date], *, limit_s: float
) -> Differences | None:
    """Returns how challenger and champion differ; None where the workload does not take shuffled rows."""
    import torch

    try:
        with torch.inference_mode():
            return find_differences(
                versions.todays, columns, days, limit_s=limit_s, batch_size=versions.batch_size
            )
    except Exception as error:  # noqa: BLE001 - of a team's class
        log.warning("the report cannot say why the models differ: %s", without_password(str(error)))
        return None


def _lists(versions: _ScoredVersions) -> RecommendedLists | None:
    """Returns what the lists of challenger and champion reach, and keeps those that changed most here."""
    import torch

    try:
        with torch.inference_mode():
            found, changed = lists.compare(versions.todays)
        records.LOOKS.mkdir(parents=True, exist_ok=True)
        records.write(changed, records.LOOKS)
    except Exception as error:  # noqa: BLE001 - of a team's class
        log.warning("the report cannot say how lists differ: %s", without_password(str(error)))
        return None
    return found


def _roles(metrics: Sequence[Metric]) -> tuple[Judged, ...]:
    """Returns how each metric judges; the first decides, whatever its role."""
    return tuple(
        Judged(
            name=one.name,
            role=one.role if number else "success",
            margin=one.margin,
            higher_is_better=one.higher_is_better,
        )
        for number, one in enumerate(metrics)
    )


def _judged(arms: list[ScoredModel], theirs: Mapping[str, Columns], *, batch_size: int) -> _HeldOutScores:
    """Returns the columns of the metrics that the challenger's workload names, and those for users."""
    workload, samples = arms[0].workload, arms[0].samples
    predicted = {arm.name: predict(arm, batch_size=batch_size) for arm in arms}
    for name, scored in theirs.items():
        named = with_prefix(scored, "prediction")
        if named:
            predicted[name] = named
        elif name == "champion":
            raise DataError(
                "the champion's workload predicts nothing that the metrics of today's could be of; let the "
                "workload score samples by itself (`score`, no `metrics`), or start with a new register.name"
            )
    has_label = workload.table.label is not None
    label, classes = _label(workload, samples)
    metrics = declared(workload)
    columns = judged(metrics, predicted, label)
    usual = predicted.get("champion", predicted["challenger"])
    live = live_metrics(metrics, usual, label, has_label=has_label, classes=classes)
    if hasattr(workload, "slices"):
        columns |= _sliced(workload, arms[0], batch_size=batch_size)
    if UNIT in samples[0]:
        columns[UNIT] = samples.column(UNIT)
    shown: dict[str, Columns] = {
        arm: predicted[arm] for arm in predicted if arm in ("challenger", "champion")
    }
    return _HeldOutScores(
        columns=columns | _predicted(predicted["challenger"]),
        by_row=live,
        reliability=diagnostics.reliability(metrics, shown, label) if has_label else None,
        confusion=diagnostics.confusion(metrics, shown, label, classes=classes) if has_label else None,
    )


def _label(workload: Workload, samples: Any) -> tuple[Any, tuple[str, ...]]:
    """Returns the labels of samples, shape [n], zeros where there is none, and what they stand for."""
    label = workload.table.label
    return (samples.column(label.column), label.classes) if label else (np.zeros(len(samples)), ())


def _predicted(named: Columns) -> Columns:
    """Returns what the challenger predicts as columns, which the smoke test compares with."""
    return {f"prediction/{name}": values for name, values in named.items()}


def _sliced(workload: Any, arm: ScoredModel, *, batch_size: int) -> Columns:
    """Returns the masks of the workload's slices, shape [n] each."""
    masks: dict[str, list[Any]] = {}
    for start in range(0, len(arm.samples), batch_size):
        indices = range(start, min(start + batch_size, len(arm.samples)))
        for name, mask in workload.slices(batch_of(arm.samples, indices)).items():
            check_shape(f"slice {name}", mask, len(indices), workload)
            masks.setdefault(f"slice/{name}", []).append(mask.cpu().numpy().astype(bool))
    return {name: np.concatenate(parts) for name, parts in masks.items()}


def _is_todays(release: Release, model: Path) -> bool:
    """Returns whether the workload of a model is today's, to the last byte of its source, and its state."""
    ours, theirs = _facts(MODEL), _facts(model)
    if (ours["workload"], ours["arguments"]) != (theirs["workload"], theirs["arguments"]):
        return False
    if {digest(folder / STATE) for folder in (MODEL, model)} != {digest(MODEL / STATE)}:
        return False
    today = source_digest(ours["workload"])
    return release.lineage.get("source", today) == today


def _check_same_samples(theirs: Any, num_samples: int) -> None:
    if len(theirs) != num_samples:
        raise DataError(
            f"the champion's workload {_facts(CHAMPION)['workload']} has {len(theirs):,} held-out samples, "
            f"the challenger's {num_samples:,}; give both the same samples"
        )


def _baselines(workload: Any, arrays: Path, num_samples: int) -> Columns:
    """Returns scores of simple rules: the workload's own, or the best constant for its first metric."""
    if metrics := declared(workload):
        return _constant(workload, arrays, metrics[0])
    if not hasattr(workload, "baselines"):
        return {}
    baselines = workload.baselines(arrays)
    for name, values in baselines.items():
        check_shape(f"baseline {name}", values, num_samples, workload)
    return {f"baseline/{name}": values.cpu().numpy().astype(np.float32) for name, values in baselines.items()}


def _one_label(workload: Any, samples: Any) -> str:
    """Returns why held-out samples of a single label judge no model; "" where they are of several."""
    table = getattr(workload, "table", None)
    if table is None or table.label is None or not hasattr(samples, "column") or not len(samples):
        return ""
    name = table.label.column
    labels = samples.column(name)
    if labels.ndim > 1 or labels.min() != labels.max():
        return ""
    values = np.unique(workload.dataset(ARRAYS, "train").column(name))
    others = [_label_in_words(value, table.label) for value in values if value != labels[0]]
    only = _label_in_words(labels[0], table.label)
    lack = f"no sample whose label is {others[0]}"
    if len(others) != 1:
        lack = f"only samples whose label is {only}"
    return (
        f"the held-out days have {lack}, so that their {len(labels):,} samples cannot tell a model from one "
        f"that always answers {only}; hold out more days (prepare.test_days)"
    )


def _label_in_words(value: Any, label: Label) -> str:
    place = int(value)
    return repr(label.classes[place]) if 0 <= place < len(label.classes) else f"{value:g}"


def _without_value(metrics: Sequence[Metric], columns: Columns) -> str:
    """Names metrics without a value although all predictions are finite, and a remedy; "" for none."""
    predicted = with_prefix(columns, "prediction").values()
    if not all(np.isfinite(values).all() for values in predicted):
        return ""  # which is the model's own fault
    lost = [one.name for one in metrics if not np.isfinite(columns[f"metric/{one.name}"]).all()]
    if not lost:
        return ""
    return (
        f"{' and '.join(lost)} of the held-out samples is not a number, though all predictions are; hold out "
        f"more days (prepare.test_days), or look at the labels"
    )


def _constant(workload: Any, arrays: Path, metric: Any) -> Columns:
    if workload.table.label is None:
        return {}
    name = workload.table.label.column
    constant = metric.constant(workload.dataset(ARRAYS, "train").column(name))
    if constant is None:
        return {}
    label = workload.dataset(arrays, "test").column(name)
    values = metric.values(np.broadcast_to(constant, (len(label), *np.shape(constant))), label)
    return {"baseline/constant": (values if metric.higher_is_better else -values).astype(np.float32)}


def _of_slices(columns: Columns, slices: Mapping[str, str]) -> Columns:
    """Returns the columns, those of the metrics that `slices` names cut to that slice's samples.

    Raises ParamsError where the workload has no such slice.
    """
    masks = with_prefix(columns, "slice")
    if unknown := sorted(set(slices.values()) - masks.keys()):
        raise ParamsError(
            f"metric_slices of the workload names the slice {unknown[0]!r}, but `slices` returns "
            f"{', '.join(sorted(masks)) or 'none'}; name one of these"
        )
    cut = {
        f"{arm}/{metric}": columns[f"{arm}/{metric}"][masks[name]]
        for metric, name in slices.items()
        for arm in ("metric", "champion")
        if f"{arm}/{metric}" in columns
    }
    return columns | cut


def means(columns: Columns) -> dict[str, float]:
    """Returns the means of the columns, by the names that metrics have in the record."""
    named: dict[str, float] = {}
    num_not_finite = 0
    for column, values in columns.items():
        if column.startswith(("slice/", "prediction/")) or column == UNIT or not values.size:
            continue
        if lost := int((~np.isfinite(values)).sum()):
            num_not_finite += lost
            continue
        own = {"challenger": "score"} | {arm: f"{arm}_score" for arm in EARLIER}
        named[own.get(column, column.removeprefix("metric/"))] = float(values.mean(dtype=np.float64))
    return named | ({"num_not_finite": float(num_not_finite)} if num_not_finite else {})


def _slices(columns: Columns) -> tuple[Slice, ...]:
    """Returns the mean of both models on each slice that has a sample and only finite scores."""
    slices = []
    for name, mask in sorted(with_prefix(columns, "slice").items()):
        means = {
            arm: float(columns[arm][mask].mean(dtype=np.float64))
            for arm in ("challenger", "champion")
            if arm in columns and mask.any() and np.isfinite(columns[arm][mask]).all()
        }
        if "challenger" in means:
            size, other = int(mask.sum()), means.get("champion")
            slices.append(Slice(name=name, num_samples=size, score=means["challenger"], champion_score=other))
    return tuple(slices)


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / "model.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
        date.fromisoformat(facts["last_day"])
        return facts | {"workload": str(facts["workload"]), "arguments": dict(facts["arguments"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} does not say what the model is ({error!r}); train again") from None


def _last_day(folder: Path) -> date:
    return date.fromisoformat(_facts(folder)["last_day"])
