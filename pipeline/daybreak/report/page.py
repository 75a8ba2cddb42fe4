"""Writes the report of a night, one self-contained HTML page: first the verdict, then its evidence.

The page works with any records that the night has; a night that stopped early has only the first ones, and
its page gives the reason. The page loads nothing from the network: styles and charts are embedded.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from daybreak.contract import records
from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.contract.record_types import OF_A_NIGHT, Cards, ChangedLists
from daybreak.data import data_docs
from daybreak.data.data_docs import DOCS
from daybreak.evaluation.scores import SCORES, read_scores
from daybreak.planning import rationale
from daybreak.prediction.scorecard import within_interval
from daybreak.profiling.explain import explain
from daybreak.registry.description import in_the_long_run
from daybreak.report import (
    bad_rows,
    charts,
    day_looks,
    evidence,
    figures,
    gantt,
    links,
    outcome,
    planned,
    predictions,
    profiled,
)
from daybreak.report.model_looks import model_looks
from daybreak.report.outcome import NightView, view_of
from daybreak.report.stage_times import StageTime, stage_times
from daybreak.report.standing import Standing, standing
from daybreak.report.summary import Summary, summarize
from daybreak.report.templates import render
from daybreak.storage import checkout, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

FILE = links.PAGE
SHOWN_TRENDS = 6  # figures that drift slowly, the plainest
SHOWN_COMMITS = 5  # that may have changed the recipe
_BUTTON = re.compile(r'class="button[^>]*>([^<]*)</a>')
# The space between a figure and its unit.
_UNIT = re.compile(r"(?<=\d) (?=(?:%|[kMGT]?B|[µm]?s|min|[MGT]FLOP/s)(?!\w))")


def write(home: Home, folder: Path, history: Sequence[Entry]) -> Path:
    """Writes the page of the night in `folder` to data/run/report.html; returns its path."""
    path = folder / FILE
    records.replace_text(path, _in_folder(home, folder, _shown(home, folder, history)))
    return path


def write_with_copy(home: Home, folder: Path, history: Sequence[Entry]) -> tuple[Path, str]:
    """Writes the page as `write` does; returns its path, and the page without links to files, for MLflow.

    The charts, which take most of the time, are drawn once.
    """
    path, shown = folder / FILE, _shown(home, folder, history)
    records.replace_text(path, _in_folder(home, folder, shown))
    return path, links.OTHER_PAGES.sub("", _elsewhere(shown))


def renew(home: Home, entry: Entry, history: Sequence[Entry]) -> None:
    """Updates the page of an earlier night, if it is here: the actions possible now, and the links."""
    folder = home.nights / entry.night.id
    if not (folder / FILE).exists():
        return
    text = (folder / FILE).read_text()
    summary = _summary(home, folder, view_of(folder, history))
    if str(escape(summary.since)) not in text or _BUTTON.findall(text) != [a.name for a in summary.actions]:
        write(home, folder, history)
        return
    around = links.around(entry, history, folder, home=home.folder)
    fresh = links.OTHER_PAGES.sub(lambda _: render("page_links.html", around=around), text, count=1)
    if fresh != text:
        records.replace_text(folder / FILE, fresh)


def page(home: Home, folder: Path, history: Sequence[Entry]) -> str:
    """Returns the page of the night in `folder`; `history` is the ledger, newest first.

    Only the page that stays in the folder shows bad rows and links to Data Docs beside it: a copy elsewhere
    would outlive the rows when they are erased.

    The ledger may or may not have tonight's entry yet. Raises DataError if the night has no Night record, or
    a record that is broken.
    """
    return _elsewhere(_shown(home, folder, history))


def _elsewhere(shown: dict[str, Any]) -> str:
    return render("page.html", **shown, bad=None, looks=None, changed=(), docs={}, files={})


def _in_folder(home: Home, folder: Path, shown: dict[str, Any]) -> str:
    held = "validate" in shown["errors"]
    bad = bad_rows.of_night(home, shown["entry"], folder, stopped=held)
    looks = day_looks.day_looks(folder, held=held)
    lists = records.find(ChangedLists, folder / records.LOOKS)
    changed = lists.lists if lists else ()
    return render(
        "page.html",
        **shown,
        bad=bad,
        looks=looks,
        changed=changed,
        docs=_docs(folder),
        files=_records(folder),
    )


def _shown(home: Home, folder: Path, history: Sequence[Entry]) -> dict[str, Any]:
    """Returns what each page of the night shows, wherever it is."""
    view = view_of(folder, history)
    entry = view.entry
    margin = _margin(home, entry, folder)
    now = standing(entry.evaluation, read_scores(folder / SCORES)) if entry.evaluation else None
    times = stage_times(entry, history)
    return dict(
        hover=True,
        entry=entry,
        errors=view.errors,
        summary=_summary(home, folder, view),
        around=links.around(entry, history, folder, home=home.folder),
        servers=links.servers(entry),
        chain=outcome.chain(view),
        reason=outcome.headline(view).reason,
        margin=margin,
        standing=now,
        differences=entry.evaluation.differences if entry.evaluation else None,
        checks=evidence.checks(entry),
        glances=evidence.glances(entry, now, times),
        charts=_charts(entry, margin, now, history, times),
        batch_size=figures.batch_size(entry),
        error=figures.error,
        broken=evidence.broken(entry.report),
        before=lambda rule: bad_rows.before(rule, history, entry.night.id),
        row_text=bad_rows.texts,
        options=entry.plan.reasons.options[: rationale.ROWS] if entry.plan else (),
        beside=rationale.around(entry.plan, entry.night) if entry.plan else (),
        planned=_unbroken(" ".join(rationale.sentences(entry.plan, entry.night))) if entry.plan else "",
        chance=rationale.chance_in_percent,
        within_interval=within_interval,
        stopped=evidence.STOPPED,
        waits=outcome.waits,
        learning=evidence.learning(entry.training) if entry.training else "",
        proven=outcome.proven(entry.training.epochs) if entry.training else "",
        in_live=outcome.in_live,
        segment_effect=outcome.segment_effect,
        in_the_long_run=in_the_long_run(entry.verdict) if entry.verdict else (),
        bottleneck=evidence.bottleneck(entry.profile) if entry.profile else None,
        explained=_unbroken(explain(entry.profile)) if entry.profile else "",
        measured=evidence.measured(entry.profile) if entry.profile else {},
        stage_times=times,
        model=model_looks(entry, history),
        cards=records.find(Cards, folder / records.LOOKS),
        timeline=evidence.timeline(entry),
        lineage=evidence.lineage(entry) | _recipe_changes(home, entry),
        ledger_page=_ledger_page(home, entry, folder),
        scorecard=predictions.card(entry, history),
    )


def _unbroken(words: str) -> str:
    """Returns words in which no figure is on another line than its unit."""
    return _UNIT.sub("\N{NO-BREAK SPACE}", words)


def _summary(home: Home, folder: Path, view: NightView) -> Summary:
    night = view.entry.night
    failed = view.errors or (view.entry.verdict and view.entry.verdict.failed)
    if failed and ledger.overtaken(home, night):
        view = replace(view, new_night=ledger.new_night(home, night))
    return summarize(view, places=links.places(view.entry), margin=_margin(home, view.entry, folder))


def values(home: Home, folder: Path, history: Sequence[Entry]) -> dict[str, Any]:
    """Returns the summary and the records of the night in `folder` as JSON values."""
    view = view_of(folder, history)
    kept = {kind.__name__.lower(): getattr(view.entry, kind.__name__.lower()) for kind in OF_A_NIGHT}
    return {
        "summary": asdict(_summary(home, folder, view)),
        "records": {name: json.loads(records.dumps(one)) for name, one in kept.items() if one},
    }


def _charts(
    entry: Entry,
    margin: float | None,
    now: Standing | None,
    history: Sequence[Entry],
    times: Sequence[StageTime],
) -> dict[str, Markup | None]:
    """Returns the charts that tonight's records allow, None for the others."""
    nights = figures.until(entry, history)
    drawn = {
        "used": figures.used(entry, entry.plan) if entry.plan else None,
        "drift": figures.drift(entry.report.drift) if entry.report and entry.report.drift else None,
        "slow_drift": charts.slow_drift(entry.report.trends[:SHOWN_TRENDS])
        if entry.report and entry.report.trends
        else None,
        "effect": figures.effect(entry.verdict, margin) if entry.verdict else None,
        "scores": figures.scores(now) if now else None,
        "trend": charts.trend(nights) if len(nights) > 1 else None,
        "predicted": predictions.picture(entry, history),
        "gantt": gantt.gantt(times, entry.night),
    }
    if entry.plan:
        drawn |= planned.pictures(entry.plan, entry.night)
    if entry.profile:
        drawn |= profiled.pictures(entry.profile, num_samples=figures.batch_size(entry))
    return {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}


def _records(folder: Path) -> dict[str, str]:
    """Returns the files of the night's records by what they are, as links from the report."""
    paths = (records.path_of(kind, folder / records.RUN) for kind in OF_A_NIGHT)
    return {path.stem: path.name for path in paths if path.exists()}


def _recipe_changes(home: Home, entry: Entry) -> dict[str, str]:
    """Returns who committed what between the champion's code and tonight's, where its recipe is another.

    All of these commits, as what a workload imports may be anywhere: not each of them changed the recipe.
    """
    verdict, champion = entry.verdict, entry.champion
    before = champion.lineage if champion else {}
    if not (verdict and verdict.recipe and before.get("recipe") and before.get("code_commit")):
        return {}
    if verdict.recipe == before["recipe"]:
        return {}
    words = ("log", "--no-merges", f"--max-count={SHOWN_COMMITS + 1}", "--format=%h by %an on %as: %s")
    try:
        said = checkout.git(*words, f"{before['code_commit']}..{entry.night.code_commit}", folder=home.folder)
    except ReleaseError:  # as a commit that this clone has not
        return {}
    commits = said.splitlines()
    more = ["and more before"] if len(commits) > SHOWN_COMMITS else []
    return (
        {"Commits since the champion's recipe": "; ".join([*commits[:SHOWN_COMMITS], *more])}
        if commits
        else {}
    )


def _ledger_page(home: Home, entry: Entry, folder: Path) -> str:
    """Returns the address of the night's commit at the host of the ledger's remote; "" without one."""
    try:
        remote = home.params_of(folder).night.ledger_remote
    except ParamsError:
        return ""
    if not remote or not entry.commit:
        return ""
    address = checkout.git("ls-remote", "--get-url", remote, folder=home.folder)
    return links.commit(address.strip(), entry.commit)


def _docs(folder: Path) -> dict[str, str]:
    """Returns the pages of Data Docs by what they judge, as links from the report."""
    pages = sorted(path for path in (folder / DOCS).glob("*.html") if path.name != data_docs.INDEX)
    return {path.stem: quote(str(path.relative_to(folder / records.RUN))) for path in pages}


def _margin(home: Home, entry: Entry, folder: Path) -> float | None:
    """Returns the non-inferiority margin of the verdict; that of params.yaml where it has none."""
    if entry.verdict and entry.verdict.margin is not None:
        return entry.verdict.margin
    try:
        return home.params_of(folder).gate.margin
    except ParamsError:
        return None
