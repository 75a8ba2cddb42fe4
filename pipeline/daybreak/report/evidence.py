"""Turns the records of a night into the folded sections of the page, each with a summary line.

Figures of use to programs only, such as the measurements behind a profile, stay in the records, to which the
page links. Pure.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from daybreak.contract import formats
from daybreak.contract.formats import count, duration, operations, percent, size
from daybreak.contract.record_parts import Check, Event, Expectation
from daybreak.contract.record_types import Evaluation, Plan, Profile, Report, Training
from daybreak.prediction import scorecard
from daybreak.profiling.explain import BOUNDS, MEANING
from daybreak.registry import approval
from daybreak.report import outcome
from daybreak.report.stage_times import StageTime
from daybreak.report.standing import Standing
from daybreak.rollout import night_events
from daybreak.storage.ledger import Entry


@dataclass(frozen=True, kw_only=True)
class TimelineEntry:
    """Something that happened in a night, or a limit of it, which is `planned`."""

    at: datetime
    what: str
    planned: bool = False


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """The bound of the job, the remedies, and the gain, a sentence each; "" where there is none."""

    binds: str
    done: str
    gained: str


Show = Callable[[Any], str]
# Figures of a profile that people read: path in the evidence, name, and format.
_MEASURED: tuple[tuple[str, tuple[tuple[str, str, Show], ...]], ...] = (
    (
        "Time of an update",
        (
            ("load_share", "share of loading", percent),
            ("compute_share", "share of computing", percent),
            ("memory_share", "share of memory traffic", percent),
            ("input_bound", "how much its input binds it", formats.quantity),
            ("contention", "waiting for other processes", percent),
        ),
    ),
    (
        "An update with one thing taken away saves",
        (
            ("counterfactual.no_input_gain", "without its input", percent),
            ("counterfactual.no_compute_gain", "without its operations", percent),
            ("counterfactual.no_traffic_gain", "without its memory traffic", percent),
        ),
    ),
    (
        "Rates of a step, and the most that was measured here",
        (
            ("roofline.flops_per_s", "operations a second", operations),
            ("roofline.peak_flops_per_s", "most operations a second", operations),
            ("roofline.bytes_per_s", "bytes moved a second", size),
            ("roofline.peak_bytes_per_s", "most bytes a second", size),
            ("roofline.flops_per_byte", "operations a byte", formats.quantity),
        ),
    ),
    (
        "Memory",
        (
            ("memory.peak_bytes", "at the peak", size),
            ("memory.device_bytes", "of the device", size),
            ("measured.parameter_bytes", "of the parameters", size),
        ),
    ),
    (
        "Operators and network",
        (
            ("dispatch.num_operators", "operators a step", count),
            ("dispatch.share", "share of a step to dispatch them", percent),
            ("network.sync_bytes", "exchanged in an update", size),
            ("network.share", "share of an update to exchange them", percent),
        ),
    ),
    (
        "How this was measured",
        (
            ("measured.batch_sizes", "batch sizes", lambda sizes: ", ".join(count(one) for one in sizes)),
            ("measured.num_samples", "samples", count),
            ("measured.elapsed_s", "time of the measurement", duration),
            ("tuned.elapsed_s", "time of trying remedies", duration),
            ("origin.night", "measured in night", formats.quantity),
        ),
    ),
)


def measured(profile: Profile) -> dict[str, dict[str, str]]:
    """Returns the figures of a profile that say something to a person, by group and label."""
    groups = {}
    for group, figures in _MEASURED:
        known = {label: (_at(profile.evidence, path), show) for path, label, show in figures}
        shown = {label: show(value) for label, (value, show) in known.items() if value not in (None, "")}
        if shown:
            groups[group] = shown
    return groups


def _at(evidence: Mapping[str, Any], path: str) -> Any:
    value: Any = evidence
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def bottleneck(profile: Profile) -> Bottleneck:
    """Describes the bound of the job, the remedies, and the gain."""
    if profile.is_estimator:
        name = _at(profile.evidence, "estimator.name")
        return Bottleneck(
            binds=f"{name} is no network; what binds it is not measured.",
            done="Nothing: remedies are for networks.",
            gained="",
        )
    kept = [f"{one.name} ({percent(one.measured_gain)} saved)" for one in profile.remedies if one.kept]
    tried = [one.name for one in profile.remedies if one.applied and not one.kept]
    before_s, after_s = (_at(profile.evidence, f"tuned.{name}") for name in ("before_s", "after_s"))
    gained = ""
    if before_s and after_s:
        gained = (
            f"An update takes {duration(after_s)} instead of {duration(before_s)}: "
            f"{percent(1 - after_s / before_s)} saved."
        )
    done = [f"Kept: {', '.join(kept)}." if kept else "Nothing was changed."]
    if tried:
        done.append(f"Tried without gain: {', '.join(tried)}.")
    return Bottleneck(
        binds=f"Bound by {BOUNDS[profile.bound]}: {MEANING[profile.bound]}.",
        done=" ".join(done),
        gained=gained,
    )


def timeline(entry: Entry) -> list[TimelineEntry]:
    """Returns what happened when, in order, and the limits of the night."""
    events: tuple[Event, ...] = ()  # of an open night that noted none, nobody knows when they were
    if entry.events or entry.closed_at:
        events = night_events.of_entry(entry)
    moments = [TimelineEntry(at=event.at, what=night_events.sentence(event)) for event in events]
    if not moments:
        moments = [TimelineEntry(at=entry.night.started_at, what=f"opened: {entry.night.trigger}")]
    return sorted([*moments, *_moments(entry)], key=lambda moment: moment.at)


def _moments(entry: Entry) -> Iterator[TimelineEntry]:
    """Yields what is not an event: the limits, how long training took, and when the night was closed."""
    night, training, verdict = entry.night, entry.training, entry.verdict
    yield TimelineEntry(at=night.train_until, what="deadline of training", planned=True)
    yield TimelineEntry(at=night.decide_until, what="deadline of the decision", planned=True)
    if training:
        ended = training.ended_at or night.started_at + timedelta(seconds=training.elapsed_s)
        began = ended - timedelta(seconds=training.elapsed_s)
        yield TimelineEntry(at=max(began, night.started_at), what="training began")
        yield TimelineEntry(at=ended, what=f"training ended ({STOPPED[training.stopped_by]})")
        for fallback in training.fallbacks:
            more = formats.dollars(fallback.usd)
            yield TimelineEntry(at=fallback.time, what=f"{fallback.name}, for {more} more: {fallback.reason}")
    if verdict and verdict.live:
        yield TimelineEntry(at=verdict.live.began_at, what="test on live traffic began")
    if entry.closed_at:
        yield TimelineEntry(at=entry.closed_at, what="closed")


FEWEST_VALIDATIONS = 5  # fewer are no curve
MOST_HELPFUL = 0.8  # share of the samples after which a best score is near the end

STOPPED = {
    "finished": "to its end",
    "validation": "earlier, as validation found nothing better",
    "deadline": "by the deadline",
    "budget": "by the budget",
}


def learning(training: Training) -> str:
    """Returns what the learning curve says about training on fewer samples; "" where that is nothing."""
    if len(training.validations) < FEWEST_VALIDATIONS:
        return ""
    best_at, _ = max(training.validations, key=lambda each: each[1])
    last_at, _ = training.validations[-1]
    if best_at > MOST_HELPFUL * last_at:
        return ""
    found = f"What was trained on after {formats.count(best_at)} samples brought nothing better"
    if training.stopped_by != "finished":
        return f"{found}."
    return f"{found}: with train.patience, or less of it, such a run ends earlier; or try fewer train.epochs."


def checks(entry: Entry) -> list[Check]:
    """Returns all that was checked before the verdict, what failed first."""
    all_checks = list(entry.verdict.checks) if entry.verdict else []
    if entry.verdict and entry.verdict.live:
        all_checks += entry.verdict.live.checks
    if entry.refit:
        all_checks += entry.refit.checks
    return sorted(all_checks, key=lambda check: check.ok)


def broken(report: Report | None) -> list[Expectation]:
    """Returns the rules that rows failed or that do not hold: first those, then by the number of rows."""
    failed = [e for e in report.expectations if e.num_failed or not e.success] if report else []
    return sorted(failed, key=lambda e: (e.success, -e.num_failed))


def broken_rules(report: Report) -> list[Expectation]:
    """Returns the rules that do not hold and that no row is put aside for: on days, or on the schema."""
    return [one for one in report.expectations if not one.success and not one.num_failed]


def glances(entry: Entry, standing: Standing | None, times: Sequence[StageTime]) -> dict[str, str]:
    """Returns the line of each part that is shown while it is folded, by the part's name; "" for none."""
    return {
        "checks": _of_checks(checks(entry)),
        "slices": _of_slices(standing) if standing else "",
        "differences": _of_differences(entry.evaluation) if entry.evaluation else "",
        "data": _of_data(entry.report) if entry.report else "",
        "bottleneck": _of_profile(entry.profile) if entry.profile else "",
        "plan": _of_plan(entry.plan, entry.training) if entry.plan else "",
        "timeline": _of_time(entry, times),
    }


def _of_time(entry: Entry, times: Sequence[StageTime]) -> str:
    opened = f"opened {entry.night.started_at:%-d %B, %H:%M UTC}"
    longer = [one.name for one in times if one.why]
    return f"{opened}; longer than expected: {', '.join(longer)}" if longer else opened


def _of_checks(all_checks: Sequence[Check]) -> str:
    failed = [check.name for check in all_checks if not check.ok]
    if failed:
        return f"{len(failed)} of {len(all_checks)} failed: {failed[0]}"
    return f"{formats.counted(len(all_checks), 'check')} passed" if all_checks else ""


def _of_slices(standing: Standing) -> str:
    compared = [row for row in standing.slices if row.difference]
    if not compared:
        return formats.counted(len(standing.slices), "slice") if standing.slices else ""
    worst = min(compared, key=lambda row: row.difference.value if row.difference else 0.0)
    assert worst.difference
    least = f"least {formats.effect(worst.difference.value)} in {worst.name}"
    return f"{formats.counted(len(standing.slices), 'slice')}, {least}"


def _of_differences(evaluation: Evaluation) -> str:
    """Returns the group that differs most, and the column that matters most to the challenger."""
    found = evaluation.differences
    if not found:
        return ""
    parts = [f"challenger {formats.effect(one.difference)} where {one.name}" for one in found.samples[:1]]
    parts += [f"{one.column} matters most" for one in found.columns[:1]]
    return "; ".join(parts)


def _of_data(report: Report) -> str:
    num_broken, num_failed = len(broken_rules(report)), sum(one.num_failed > 0 for one in report.expectations)
    drifted = sum(one.value > one.limit for one in report.drift)
    rules = (
        f"rows failed {num_failed} of {len(report.expectations)} rules" if num_failed else "all rules hold"
    )
    broken = f", {formats.counted(num_broken, 'rule')} broken" if num_broken else ""
    columns = formats.counted(drifted, "column") if drifted else "no column"
    slowly = f", {formats.counted(len(report.trends), 'figure')} slowly" if report.trends else ""
    return f"{rules}{broken}, {columns} drifted{slowly}"


def _of_profile(profile: Profile) -> str:
    if profile.is_estimator:
        return "no network"
    before_s, after_s = (_at(profile.evidence, f"tuned.{name}") for name in ("before_s", "after_s"))
    saved = f", {percent(1 - after_s / before_s)} of the time saved" if before_s and after_s else ""
    return f"{BOUNDS[profile.bound]}{saved}"


def _of_plan(plan: Plan, training: Training | None) -> str:
    if training is None:
        expected = f"{duration(plan.forecast.expected_s)}, {formats.dollars(plan.forecast.expected_usd)}"
        return f"{plan.rental}: {expected} planned"
    is_inside = scorecard.within_interval(plan, training)
    how = {True: "inside its interval", False: "outside its interval", None: "on other machines"}
    return f"{duration(training.took_s)} of {duration(plan.forecast.expected_s)} planned, {how[is_inside]}"


def lineage(entry: Entry) -> dict[str, str]:
    """Returns where everything came from: commits, digests, version and run."""
    version, training, dataset = entry.version, entry.training, entry.dataset
    rows = {
        "Night": entry.night.id,
        "Started by": entry.night.trigger,
        "Code commit": entry.night.code_commit,
        "Ledger commit": entry.commit,
        "Ledger before": entry.night.previous,
        "Raw data": entry.batch.digest if entry.batch else "",
        **{
            f"Joined from {name}": digest
            for name, digest in (entry.batch.joined if entry.batch else {}).items()
        },
        "Clean data": entry.report.digest if entry.report else "",
        "Training arrays": dataset.digest if dataset else "",
        "Model": training.model_digest if training else "",
        "Trained from": _began(entry),
        "Version": f"{version.name} {version.number}" if version else "",
        "Refit": _refit(entry),
        "Approval": approval.words(entry.verdict, entry.approval, over=bool(entry.commit))
        if entry.verdict
        else "",
        "Stopped": approval.stopped(entry.stopped) if entry.stopped else "",
        "MLflow run": version.run_id if version else "",
        "Serving": f"version {outcome.champion(entry)}" if outcome.champion(entry) else "",
        "Served before": f"version {entry.champion.version}" if entry.champion else "",
    }
    if entry.release:
        known = set(rows.values())
        released = entry.release.lineage.items()
        rows |= {_RELEASED.get(key, key): value for key, value in released if value not in known}
    return {key: value for key, value in rows.items() if value}


_RELEASED = {
    "night": "Night of the release",
    "day": "Day of the release",
    "code_commit": "Code of the release",
    "data_digest": "Data of the release",
    "model_digest": "Model of the release",
    "dvc_lock": "dvc.lock",
    "recipe": "Recipe",
    "source": "Source files of the workload",
    "daybreak": "Source files of Daybreak",
    "refit_of": "Refit of version",
}


def _refit(entry: Entry) -> str:
    """Returns what a refit on the held-out days came to; "" where none was asked for."""
    if entry.refit is None:
        return ""
    if entry.refit.why_not or entry.refit.version is None:
        return f"none: {entry.refit.why_not}"
    return f"version {entry.refit.version.number}; the scores are those of version {entry.refit.judged}"


def _began(entry: Entry) -> str:
    """Returns which weights training began with; "" where nobody told."""
    if entry.training is None or entry.training.warm is None:
        return ""
    if entry.training.warm and entry.champion:
        return f"the weights of version {entry.champion.version}"
    return "new weights"
