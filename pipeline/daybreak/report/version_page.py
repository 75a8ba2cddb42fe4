"""Writes the page of a version in MLflow once it has a verdict: the summary of its night, then the evidence.

MLflow shows the description of a version as Markdown, and artifacts of the run by their address, so that the
interval is a picture (tried with 3.17). A person's answer changes the page; a rollback replaces its first
paragraph (daybreak/registry/description.py).
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from daybreak.contract import formats, records
from daybreak.contract.record_parts import Live
from daybreak.contract.record_types import Evaluation, Night, Verdict, Version
from daybreak.prediction import scorecard
from daybreak.registry import aliases
from daybreak.registry import approval as approvals
from daybreak.registry.description import (
    INTERVAL,
    REPORT,
    RULE,
    fitting,
    in_the_long_run,
    metrics_table,
    plain,
    table,
)
from daybreak.report import evidence, links
from daybreak.report.outcome import NightView, tested_traffic
from daybreak.report.summary import Summary, summarize
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.mlflow_client import own_run, session

if TYPE_CHECKING:
    from mlflow.entities import Metric

BUTTON = (
    "MLflow's own button *Promote model* copies this version to another registered model. It promotes "
    "nothing here: the gate does, and a person by what is said above."
)
NOTE_BEGINS = "**Verdict: "  # how a run's description begins


def show_verdict(home: Home, entry: Entry, *, over: bool = False) -> None:
    """Writes the verdict, and a person's answer to it, to the version's description, its tags and the run.

    `over` says that nobody can answer any more.
    """
    from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

    version, verdict, answer = entry.version, entry.verdict, entry.approval
    assert version and verdict
    kept = bool(entry.stopped) or (
        not answer.approved if answer else over if verdict.approve_until else verdict.action == "reject"
    )
    approval = approvals.words(verdict, answer, over=over)
    with session(home) as client:
        registered = aliases.existing(client, version.name, version.number)
        text = described(entry, _made_of(entry, version, registered.tags.get("recipe", "")), over=over)
        client.update_model_version(version.name, str(version.number), description=fitting(text))
        if approval:
            aliases.tag(client, version.name, version.number, approval=approval)
        if kept:
            aliases.reject(client, version.name, version.number)
        run_id = own_run(home, client, version.run_id)
        client.set_tag(run_id, "verdict", verdict.action)
        note = client.get_run(run_id).data.tags.get(MLFLOW_RUN_NOTE, "")
        if not note or note.startswith(NOTE_BEGINS):  # else a person has written there
            client.set_tag(run_id, MLFLOW_RUN_NOTE, fitting(_of_run(entry, over=over)))
        if metrics := _effect(verdict, entry.night):
            client.log_batch(run_id, metrics=metrics)
        client.log_text(run_id, records.dumps(verdict), "records/verdict.json")
        if answer:
            client.log_text(run_id, records.dumps(answer), "records/approval.json")


def _made_of(entry: Entry, version: Version, recipe: str) -> dict[str, str]:
    made_of = {
        "night": entry.night.id,
        "day": str(entry.night.day),
        "code commit": entry.night.code_commit,
        "training arrays": version.data_digest,
        "model": version.model_digest,
        "recipe": recipe,
    }
    return {name: value for name, value in made_of.items() if value}


def _effect(verdict: Verdict, night: Night) -> "list[Metric]":
    """Returns the effect that was judged, with its interval, as metrics by which MLflow compares runs."""
    from mlflow.entities import Metric

    if verdict.effect is None:
        return []
    at = verdict.decided_at or night.started_at  # the same when shown again, later when judged again
    stamp = int(at.timestamp() * 1000)
    ends = {"": verdict.effect.mean, "_low": verdict.effect.low, "_high": verdict.effect.high}
    return [Metric(f"effect{end}", value, stamp, 0) for end, value in ends.items() if value is not None]


def described(entry: Entry, made_of: Mapping[str, str], *, over: bool = False) -> str:
    """Returns the page of the night's version, in Markdown.

    Args:
        entry: the night, with its version and verdict.
        made_of: origin of the version, by the words that the page shows.
        over: nobody can answer any more.
    """
    assert entry.version and entry.verdict
    summary = summarize(NightView(entry=entry), places=links.places(entry))
    first = [
        _verdict(entry, entry.verdict, summary, over=over),
        f"![effect](get-artifact?path={INTERVAL}&run_uuid={entry.version.run_id})" if summary.effect else "",
        table(["", "", ""], _facts(summary)),
        _links(entry, entry.version),
        BUTTON,
    ]
    return _joined(first) + RULE + _joined(_evidence(entry, entry.verdict, summary, made_of))


def _of_run(entry: Entry, *, over: bool) -> str:
    """Returns the description of the night's run: the verdict, and where the version and the report are."""
    assert entry.version and entry.verdict
    name, number = entry.version.name, entry.version.number
    summary = summarize(NightView(entry=entry), places=links.places(entry))
    page = f"[Version {number} of {plain(name)}](#/models/{name}/versions/{number})"
    return _joined([_verdict(entry, entry.verdict, summary, over=over), f"{page} · {_report(entry.version)}"])


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)


def _verdict(entry: Entry, verdict: Verdict, summary: Summary, *, over: bool) -> str:
    """Returns the first paragraph: the verdict, its reason, and a person's answer or how to give it."""
    said = ""
    if verdict.approve_until is not None:
        words = approvals.words(verdict, entry.approval, over=over)
        said = f" **Version {verdict.challenger} {plain(words)}.**"
        if entry.approval is None and not over:
            said += (
                f" Answer in Airflow, task `review` of the night, or by "
                f"`daybreak approve --night {entry.night.id} --reason TEXT [--reject]`."
            )
    if entry.stopped:
        said = f" **The night was {plain(approvals.stopped(entry.stopped))}.**"
    return f"**Verdict: {verdict.action}.** {plain(_reason(verdict, summary))}.{said}"


def _reason(verdict: Verdict, summary: Summary) -> str:
    """Returns the reason as short as the summary has it, where that is the verdict's own alone."""
    return summary.reason if verdict.reason.startswith(summary.reason) else verdict.reason


def _facts(summary: Summary) -> Iterable[list[str]]:
    if seen := summary.effect:
        low, high = (formats.effect(bound) if bound is not None else "…" for bound in (seen.low, seen.high))
        beside = f"{low} to {high}, against {seen.against}, on {seen.on}"
        yield ["Effect on the score", f"**{formats.effect(seen.value)}**", beside]
    for fact in summary.facts:
        yield [fact.name, f"**{plain(fact.text)}**", plain(fact.beside)]


def _links(entry: Entry, version: Version) -> str:
    """Returns links to the night's report, to its run, which has data set and code, and to Airflow."""
    addresses = {
        "The run, with data set, code and figures": f"{_run(version)}?{links.TRAINING}",
        "The run in Airflow": links.places(entry).airflow_run,
    }
    named = [f"[{name}]({address})" for name, address in addresses.items() if address]
    return " · ".join([_report(version), *named])


def _report(version: Version) -> str:
    return f"[The night's report]({_run(version)}/artifacts/{REPORT}?{links.TRAINING})"


def _run(version: Version) -> str:
    return f"#/experiments/{version.experiment}/runs/{version.run_id}"


def _evidence(entry: Entry, verdict: Verdict, summary: Summary, made_of: Mapping[str, str]) -> Iterable[str]:
    if _reason(verdict, summary) != verdict.reason:
        yield f"The whole reason: {plain(verdict.reason)}."
    yield table(
        ["looked at", "", "what was seen"],
        [
            [plain(check.name), "ok" if check.ok else "**failed**", plain(check.text)]
            for check in verdict.checks
        ],
    )
    yield " ".join(in_the_long_run(verdict))
    yield _in_live(verdict.live) if verdict.live else ""
    if entry.evaluation:
        yield metrics_table(entry.evaluation.metrics)
        yield table(["slice", "samples", "challenger", "champion"], _slices(entry.evaluation))
    yield from _of_training(entry)
    if entry.profile:
        bottleneck = evidence.bottleneck(entry.profile)
        said = " ".join(part for part in (bottleneck.binds, bottleneck.done, bottleneck.gained) if part)
        yield f"Bottleneck: {plain(said)}"
    if entry.dataset:
        yield (
            f"Data: {entry.dataset.num_samples:,} training samples, {entry.dataset.first_day} to "
            f"{entry.dataset.last_day}."
        )
    yield table(["made of", ""], [[plain(name), _code(value)] for name, value in made_of.items()])


def _of_training(entry: Entry) -> Iterable[str]:
    plan, training = entry.plan, entry.training
    if plan is None or training is None:
        return
    forecast = plan.forecast
    yield table(
        ["", "planned", "actual"],
        [
            ["time", formats.duration(forecast.expected_s), formats.duration(training.took_s)],
            ["cost", formats.dollars(forecast.expected_usd), formats.dollars(training.cost_usd)],
            ["samples", f"{plan.num_samples:,}", f"{training.num_samples:,}"],
        ],
    )
    device = f" ({plain(training.device)})" if training.device else ""
    interval = f"the plan's 90 % interval, {' to '.join(map(formats.duration, forecast.interval))}"
    is_inside = scorecard.within_interval(plan, training)
    how = f"the time is {'inside' if is_inside else 'outside'} {interval}"
    if is_inside is None:
        how = f"{interval}, is for {plan.rental} alone"
    ran = [str(one.rental) for one in training.attempts if one.ran_at]
    machines = dict.fromkeys(ran or [str(plan.rental)])
    restarts = formats.counted(training.num_restarts, "restart")
    yield (
        f"Trained on {', then on '.join(machines)}{device}, with {restarts}; training ended "
        f"{evidence.STOPPED[training.stopped_by]}, and {how}."
    )


def _in_live(live: Live) -> str:
    difference, effect = "not known", live.effect
    if effect and effect.low is not None and effect.high is not None:
        mean, low, high = formats.decimals(effect.mean, effect.low, effect.high, signed=True)
        difference = f"{mean} ({low} to {high})"
    broken = [check.name for check in live.checks if not check.ok]
    return (
        f"**On live traffic:** {live.num_challenger:,} users met the challenger (at last {live.share:.0%} of "
        f"{tested_traffic(live)}) and {live.num_champion:,} the champion; effect on the score {difference}; "
        f"guardrails {'broken: ' + plain(', '.join(broken)) if broken else 'held'}. "
        f"Foretold: {plain(live.foretold)}."
    )


def _slices(evaluation: Evaluation) -> Iterable[list[str]]:
    for part in evaluation.slices:
        known = [part.score] if part.champion_score is None else [part.score, part.champion_score]
        ours, champion = (*formats.decimals(*known), "")[:2]
        yield [plain(part.name), f"{part.num_samples:,}", ours, champion]


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`"
