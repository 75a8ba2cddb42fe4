"""Writes the report of a night, one self-contained HTML page: first the verdict, then its evidence.

The page works with whatever records the night has; a night that stopped early has only the first of them,
and its page says what stopped it. The page loads nothing from the network: styles and charts are in it.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from pipeline.contract import formats, params, records
from pipeline.contract.errors import ParamsError
from pipeline.contract.records import Expectation, Report
from pipeline.data.validator import DOCS
from pipeline.evaluation.scores import SCORES, read_scores
from pipeline.planning import rationale
from pipeline.profiling.explain import explain
from pipeline.registry import approval
from pipeline.registry.description import in_the_long_run
from pipeline.report import bad_rows, charts, figures, links, outcome, planned, predictions, profiled
from pipeline.report.night_folder import entry_of, texts_of
from pipeline.report.standing import Standing, standing
from pipeline.report.templates import render
from pipeline.storage import checkout
from pipeline.storage.ledger import Entry

FILE = links.PAGE
# The space between a figure and its unit.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?B|[µm]?s|min|[MGT]FLOP/s)(?!\w))")


def write(folder: Path, history: Sequence[Entry]) -> Path:
    """Writes the page of the night in `folder` to data/run/report.html; returns its path."""
    path = folder / FILE
    records.replace_text(path, page(folder, history, in_folder=True))
    return path


def alone(text: str) -> str:
    """Returns a page without its links to files, for where it is shown away from them, as in MLflow."""
    return links.OTHER_PAGES.sub("", text)


def renew(entry: Entry, history: Sequence[Entry]) -> None:
    """Brings the page of an earlier night up to date, where it is here: its links, and a rollback since."""
    home = checkout.home()
    folder = home / "nights" / entry.night.id
    if not (folder / FILE).exists():
        return
    text = (folder / FILE).read_text()
    if str(escape(outcome.since(entry, history))) not in text:
        write(folder, history)
        return
    around = links.around(entry, history, folder, home=home)
    fresh = links.OTHER_PAGES.sub(lambda _: render("page_links.html", around=around), text, count=1)
    if fresh != text:
        records.replace_text(folder / FILE, fresh)


def page(folder: Path, history: Sequence[Entry], *, in_folder: bool = False) -> str:
    """Returns the page of the night in `folder`; `history` is the ledger, newest first.

    Only the page that stays in the folder shows bad rows and links to Data Docs beside it: a copy elsewhere
    would outlive the rows when they are erased.

    The ledger may or may not have tonight's entry yet. Raises DataError if the night has no Night record, or
    a record that is broken.
    """
    entry = entry_of(folder, history)
    errors, skips = texts_of(folder, "error"), texts_of(folder, "skipped")
    margin = _margin(entry, folder)
    now = standing(entry.evaluation, read_scores(folder / SCORES)) if entry.evaluation else None
    return render(
        "page.html",
        entry=entry,
        errors=errors,
        headline=outcome.headline(entry, errors, skips, history),
        since=outcome.since(entry, history),
        around=links.around(entry, history, folder, home=checkout.home()),
        servers=links.servers(entry),
        chain=outcome.chain(entry, errors, skips),
        margin=margin,
        standing=now,
        charts=_charts(entry, margin, now, history),
        batch_size=figures.batch_size(entry),
        error=figures.error,
        broken=_broken(entry.report),
        bad=bad_rows.of_night(entry, folder, stopped="validate" in errors) if in_folder else None,
        before=lambda rule: bad_rows.before(rule, history, entry.night.id),
        row_text=bad_rows.texts,
        docs=_docs(folder) if in_folder else {},
        options=entry.plan.options[: rationale.ROWS] if entry.plan else (),
        beside=rationale.around(entry.plan, entry.night) if entry.plan else (),
        priced=rationale.price(entry.plan) if entry.plan and not entry.plan.rental.is_local else "",
        chance=rationale.percent,
        proven=outcome.proven(entry.training.epochs) if entry.training else "",
        in_live=outcome.in_live,
        in_the_long_run=in_the_long_run(entry.verdict) if entry.verdict else (),
        explained=_UNIT.sub("\N{NO-BREAK SPACE}", explain(entry.profile)) if entry.profile else "",
        evidence=grouped({k: v for k, v in entry.profile.evidence.items() if k != "timeline"})
        if entry.profile
        else {},
        lineage=_lineage(entry),
        scorecard=predictions.card(entry, history),
    )


def grouped(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Returns nested values as groups of figures with their units; the group "" has those outside of groups.

    >>> grouped({"load_s": 0.5, "memory": {"peak_bytes": 3e8, "batch_sizes": [1, 2]}})
    {'': {'load': '500 ms'}, 'memory': {'peak': '300 MB', 'batch sizes': '1, 2'}}
    """
    groups: dict[str, dict[str, str]] = {"": {}}
    for name, value in values.items():
        if isinstance(value, Mapping):
            groups[_words(name)] = {_words(key): _figure(key, part) for key, part in value.items()}
        else:
            groups[""][_words(name)] = _figure(name, value)
    return {name: group for name, group in groups.items() if group}


def _figure(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(key)} {_figure(key, part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_figure(name, part) for part in value)
    return formats.named(name, value)


def _words(name: str) -> str:
    """Returns a key as words, without its unit, which the figure has."""
    plain = name if name.endswith("_per_s") else name.removesuffix("_s").removesuffix("_bytes")
    return plain.removesuffix("_usd").replace("_", " ")


def _charts(
    entry: Entry, margin: float | None, now: Standing | None, history: Sequence[Entry]
) -> dict[str, Markup | None]:
    """Returns the charts that tonight's records allow, None for the others."""
    points = figures.points_until(entry, history)
    drawn = {
        "used": figures.used(entry, entry.plan) if entry.plan else None,
        "drift": figures.drift(entry.report.drift) if entry.report and entry.report.drift else None,
        "effect": figures.effect(entry.verdict, margin) if entry.verdict else None,
        "scores": figures.scores(now) if now else None,
        "trend": charts.trend(points) if len(points) > 1 else None,
        "predicted": predictions.picture(entry, history),
    }
    if entry.plan:
        drawn |= planned.pictures(entry.plan, entry.night)
    if entry.profile:
        drawn |= profiled.pictures(entry.profile, num_samples=figures.batch_size(entry))
    return {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}


def _broken(report: Report | None) -> list[Expectation]:
    """Returns the rules that rows failed or that do not hold: first those, then by the number of rows."""
    broken = [e for e in report.expectations if e.num_failed or not e.success] if report else []
    return sorted(broken, key=lambda e: (e.success, -e.num_failed))


def _docs(folder: Path) -> dict[str, str]:
    """Returns the pages of Data Docs by what they judge, as links from the report.

    Their first page, which lists these, is empty without the network; they are not.
    """
    pages = sorted((folder / DOCS / "validations").glob("*/*/*/*.html"))
    by_group = {path.relative_to(folder / DOCS).parts[1]: path for path in pages}
    return {group: quote(str(path.relative_to(folder / records.RUN))) for group, path in by_group.items()}


def _lineage(entry: Entry) -> dict[str, str]:
    """Returns where everything came from: commits, digests, version and run."""
    version, training, dataset = entry.version, entry.training, entry.dataset
    lineage = {
        "Night": entry.night.id,
        "Started by": entry.night.trigger,
        "Code commit": entry.night.code_commit,
        "Ledger commit": entry.commit,
        "Ledger before": entry.night.previous,
        "Raw data": entry.batch.digest if entry.batch else "",
        "Clean data": entry.report.digest if entry.report else "",
        "Training arrays": dataset.digest if dataset else "",
        "Model": training.model_digest if training else "",
        "Trained from": _began(entry),
        "Version": f"{version.name} {version.number}" if version else "",
        "Refit": _refit(entry),
        "Approval": approval.words(entry.verdict, entry.approval, over=bool(entry.commit))
        if entry.verdict
        else "",
        "MLflow run": version.run_id if version else "",
        "Serving": f"version {outcome.champion(entry)}" if outcome.champion(entry) else "",
        "Served before": f"version {entry.champion.version}" if entry.champion else "",
    }
    if entry.release:
        lineage |= {f"Release, {key}": value for key, value in entry.release.lineage.items()}
    return {key: value for key, value in lineage.items() if value}


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


def _margin(entry: Entry, folder: Path) -> float | None:
    """Returns the non-inferiority margin of the verdict; that of params.yaml where it has none."""
    if entry.verdict and entry.verdict.margin is not None:
        return entry.verdict.margin
    try:
        return params.load(folder).gate.margin
    except ParamsError:
        return None
