"""Publishes what was decided: shows events and records to people and to other systems, after the fact.

A stage decides, and writes records, events and the ledger; only then does the runner call this. It reads what
was written and decides nothing: messages, the page of a version in MLflow, the night's report, lineage, the
copy of the ledger. Each way is taken whatever became of the others.
One that fails is logged in a sentence, what was decided stands, and the next stage, the hourly `watch` or the
same stage called again tries again: `shown.txt` in the night's folder has the digest of what MLflow shows,
and `var/shown.txt` the tip of the ledger that was shown.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak import hooks
from daybreak.contract import clock, records
from daybreak.contract.errors import sentence
from daybreak.contract.record_parts import Event
from daybreak.contract.record_types import Night, Release, ServedDays, Verdict, Version
from daybreak.evaluation.scores import SCORES, read_scores
from daybreak.gate import served_notices
from daybreak.registry import aliases, description
from daybreak.registry import approval as approvals
from daybreak.report import cards, notifier, outcome, standing
from daybreak.rollout import ledger_copy, night_events
from daybreak.storage import branch, events, ledger, mlflow_client
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry
from daybreak.storage.night_folders import entry_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

SHOWN = records.RUN / "shown.txt"  # digest of the verdict and the answer that MLflow shows
SLICES = "slices.json"  # table of the night's run in MLflow: scores by slice, with their intervals
TABLES = "mlflow.loggedArtifacts"  # tag of a run
WATCH = "daybreak watch tries again"
NEXT = "the next stage and daybreak watch try again"
TOLD_WITHIN = timedelta(days=1)  # of a commit whose process was killed before it was shown


def publish_cards(home: Home, stage: str) -> None:
    """Asks the team's class for its cards: after `prepare` and `evaluate`, and now and then in `train`."""
    _done("show the cards of the class", partial(cards.renew, home, stage), again="evaluate tries again")


def publish_night(home: Home, folder: Path, *, again: str = NEXT) -> None:
    """Shows what the night in a folder has decided by now: to people, and in MLflow."""
    _done("tell people", partial(_tell, home, folder), again=again)
    _done("show the verdict in MLflow", partial(_show_verdict, home, folder), again=again)
    _done("show the release in MLflow", partial(_show_release, home, folder), again=again)


def publish_closed(home: Home) -> None:
    """Shows tonight, with lineage and report where it is in the ledger."""
    night = records.read(Night, home.records)
    again = f"try again: daybreak close --night {night.id}"
    publish_night(home, home.tonight, again=again)
    publish_ledger(home)
    if commit := ledger.commit_of(home, night):
        _done("show the report", partial(_show_report, home, home.tonight, commit), again=again)
    write_now(home)


def publish_failure(home: Home, stage: str) -> None:
    """Shows that a stage of tonight failed for good."""
    failed = night_events.note_failure(stage, home.tonight)
    _done("tell people", partial(notifier.tell, home, failed), again=WATCH)
    write_now(home)


def publish_alarm(home: Home, text: str) -> None:
    """Sends an alarm to people; a failure to send fails no night."""
    _done("tell people", partial(notifier.alarm, home, text), again="run daybreak audit --deep")


def publish_events(home: Home, happened: Iterable[Event]) -> bool:
    """Tells people of what happened outside of a night; returns False where that is to be tried again."""
    return _done("tell people", partial(notifier.tell, home, *happened), again=WATCH)


def publish_home(home: Home) -> None:
    """Shows what no stage is there to show: open nights, a nearly full disk, a rollback, the digest."""
    _done("show open nights", partial(_publish_open, home), again=WATCH)
    _done("tell people of served rows", partial(_publish_served, home), again=WATCH)
    publish_disk(home)
    publish_ledger(home)
    write_now(home)
    for digest in hooks.functions("digest"):
        _done("send the digest", partial(_publish_digest, home, digest), again=WATCH)


def write_now(home: Home) -> None:
    """Writes what stands now to a file, which is there when no server is."""
    for write in hooks.functions("now"):
        _done("write what stands now", partial(write, home), again=WATCH)


def publish_disk(home: Home) -> None:
    """Shows that the disk of the home is nearly full, where it is."""
    _done("tell people", lambda: notifier.tell(home, *night_events.low_disk(home)), again=WATCH)


def publish_ledger(home: Home, *, done: bool = True) -> None:
    """Copies the ledger to its remote, and shows the night or rollback that it ends with, once a tip.

    Others hear what serves only where it is `done`: a task of Airflow that fails updates no asset.
    """
    _done("show the ledger", partial(_publish_ledger, home), again=WATCH)
    for tell in hooks.functions("downstream") if done else ():
        _done("tell others what serves and was predicted", partial(tell, home), again=WATCH)


def _publish_open(home: Home) -> None:
    for entry in night_events.open_nights(home):
        publish_night(home, home.nights / entry.night.id)
    for folder in night_events.unpredicted(home):
        _done("tell people", partial(_tell, home, folder), again=WATCH)


def _publish_served(home: Home) -> bool:
    """Tells people of served rows that are unlike training, once for each column of a version."""
    served = records.find(ServedDays, home.var) or ServedDays(version=0)
    told: set[str] = set()
    alarms: list[Event] = []
    for day in served.days:
        if new := {one.column for one in day.drift} - told:
            told |= new
            alarms.append(
                Event(
                    kind="alarm",
                    at=datetime.combine(day.day, time(), UTC),
                    night="",
                    subject=f"served rows of version {served.version}",
                    reason=served_notices.in_words(day, served.version),
                )
            )
    return notifier.tell(home, *alarms)


def _publish_ledger(home: Home) -> None:
    tip, shown = branch.ledger_tip(home), home.var / SHOWN.name
    if not tip or (shown.exists() and shown.read_text().strip() == tip):
        return
    done = [_done("copy the ledger", partial(copy_ledger, home), again=WATCH)]
    newest = next(iter(ledger.history(home, limit=1)), None)
    if newest is None or newest.closed_at is None or datetime.now(UTC) - newest.closed_at >= TOLD_WITHIN:
        newest = None
    if newest and newest.rollback:
        told = partial(notifier.tell, home, *night_events.of_entry(newest))
        done.append(_done("tell people of the rollback", told, again=WATCH))
        done.append(_done("show on all pages what serves now", partial(_renew_pages, home), again=WATCH))
    if newest:
        for show in hooks.functions("after_commit"):
            done.append(_done("show the commit", partial(show, home, newest.commit), again=WATCH))
    if all(done):
        records.replace_text(shown, f"{tip}\n")


def _publish_digest(home: Home, digest: Callable[..., Event | None]) -> bool:
    event = digest(home, told=notifier.subjects_told(home, "digest"))
    return event is None or notifier.tell(home, event)


def copy_ledger(home: Home) -> bool:
    """Pushes the ledger to its remote, and tells people where that has what the ledger here has not.

    Returns whether there is nothing to try again.
    """
    copy = ledger_copy.push(home)
    if copy and copy.has_more:
        notifier.alarm(home, ledger_copy.refusal(copy, branch.ledger_tip(home)))
    return copy is None or copy.state == "same" or copy.has_more


def _done(what: str, way: Callable[[], object], *, again: str) -> bool:
    """Takes one way to show what was decided; returns whether that was done."""
    try:
        return way() is not False
    except Exception as error:  # noqa: BLE001 - whatever a server or a page says, the decision stands
        log.warning("what was decided stands, but failed to %s: %s; %s", what, sentence(error), again)
        return False


def _tell(home: Home, folder: Path) -> bool:
    night = records.read(Night, folder / records.RUN)
    is_over = ledger.is_over(home, night)
    return notifier.tell(home, *(events.read(folder) if is_over else night_events.note(folder)))


def _show_verdict(home: Home, folder: Path) -> None:
    """Shows the verdict and a person's answer in MLflow, unless it does so already.

    A person who is asked reads the report, too, since the night is closed only later.
    """
    entry = entry_of(folder)
    verdict, version = entry.verdict, entry.version
    if verdict is None or version is None or verdict.challenger != version.number:
        return
    answer = approvals.answer_to(verdict, entry.approval)
    is_asked = verdict.approve_until is not None and answer is None
    over = bool(entry.stopped) or (is_asked and _is_late(home, entry.night, verdict))
    seen = " ".join(records.dumps(one) for one in (verdict, answer, entry.stopped) if one)
    digest = hashlib.md5(f"{over} {seen}".encode(), usedforsecurity=False).hexdigest()
    shown = folder / SHOWN
    if shown.exists() and shown.read_text().strip() == digest:
        return
    from daybreak.report import version_page

    version_page.show_verdict(home, replace(entry, approval=answer), over=over)
    if is_asked and not over:
        _show_report(home, folder)
    records.replace_text(shown, f"{digest}\n")


def _show_release(home: Home, folder: Path) -> None:
    """Keeps the release of a night with its version's run, and marks the version that a refit replaces."""
    entry = entry_of(folder)
    commit, judged = ledger.commit_of(home, entry.night), entry.version
    release = branch.read_at(home, commit, Release) if commit else None
    if release is None or judged is None:
        return
    serves = (entry.refit and entry.refit.in_place_of(judged.number)) or judged
    with mlflow_client.session(home) as client:
        if serves != judged:
            aliases.tag(client, judged.name, judged.number, status=aliases.REFITTED)
            aliases.tidy(client, judged.name)
        run_id = mlflow_client.own_run(home, client, serves.run_id)
        client.log_text(run_id, records.dumps(release), "records/release.json")


def _is_late(home: Home, night: Night, verdict: Verdict) -> bool:
    assert verdict.approve_until
    return clock.utc() >= verdict.approve_until or ledger.is_over(home, night)


def _show_report(home: Home, folder: Path, commit: str = "") -> None:
    """Writes the report of the night, and shows report and ledger commit (if any) in MLflow."""
    from daybreak.report import figures, page, svg

    entry, history = entry_of(folder), ledger.history(home, limit=outcome.NIGHTS)
    verdict, version = entry.verdict, entry.version
    path, copy = page.write_with_copy(home, folder, history)
    for other in _others(history, entry) if commit else []:
        page.renew(home, other, history)
    log.info("report: %s", path.resolve())
    with mlflow_client.session(home) as client:
        # The version's own run also where the home was restored, and has another token.
        if version:
            run_id = mlflow_client.own_run(home, client, version.run_id)
        else:
            run_id = mlflow_client.find_or_make_run(home, client, entry.night.id)
        client.log_text(run_id, copy, path.name)
        if entry.evaluation:
            shown = standing.table(standing.standing(entry.evaluation, read_scores(folder / SCORES)))
            client.log_text(run_id, json.dumps(shown), SLICES)
            _list_table(client, run_id)
        if verdict and (drawn := figures.effect(verdict, verdict.margin)):
            client.log_text(run_id, svg.alone(drawn), description.INTERVAL)
        if version and commit:
            aliases.tag(client, version.name, version.number, ledger=commit)
            client.set_tag(run_id, "ledger", commit)
            _reject_others(client, version, entry)


def _list_table(client: "MlflowClient", run_id: str) -> None:
    """Adds the table of slices to the list of tables that MLflow shows of the run.

    `log_table` would do so too, but appends the rows to those of a table that is there already.
    """
    tables = json.loads(client.get_run(run_id).data.tags.get(TABLES, "[]"))
    ours = {"path": SLICES, "type": "table"}
    if ours not in tables:
        client.set_tag(run_id, TABLES, json.dumps([*tables, ours]))


def _others(history: Iterable[Entry], entry: Entry) -> Iterable[Entry]:
    """Yields the nights with pages to write anew: the newest before `entry`, and the replaced one."""
    others = [one for one in history if not one.rollback and one.night.id != entry.night.id]
    for at, other in enumerate(others):
        is_replaced = entry.release and other.release and other.release.version == entry.release.replaced
        if at == 0 or is_replaced:
            yield other


def _reject_others(client: "MlflowClient", version: Version, entry: Entry) -> None:
    """Marks the versions of a night that is over which do not serve, also where its gate was not reached."""
    refitted = entry.refit.version if entry.refit else None
    for made in (version, *([refitted] if refitted else [])):
        if entry.release and entry.refit and entry.refit.in_place_of(made.number):
            aliases.tag(client, made.name, made.number, status=aliases.REFITTED)
        elif entry.release is None or made.number != entry.release.version:
            aliases.reject(client, made.name, made.number)
    text = aliases.existing(client, version.name, version.number).description or ""
    if entry.verdict and text.startswith(description.AWAITED):
        said = f"**Verdict: {entry.verdict.action}.** {description.plain(entry.verdict.reason)}."
        changed = description.fitting(description.with_first(text, said))
        client.update_model_version(
            version.name, str(version.number), description=description.fitting(changed)
        )


def _renew_pages(home: Home) -> None:
    """Has the pages of nights say what serves now, here and in MLflow."""
    from daybreak.report import page

    history = ledger.history(home, limit=outcome.NIGHTS)
    released = history[0].release
    moved = {released.version, released.replaced} if released else set()
    with mlflow_client.session(home) as client:
        for entry in (each for each in history if not each.rollback):
            page.renew(home, entry, history)
            folder = home.nights / entry.night.id
            if entry.version and entry.release and entry.release.version in moved and folder.exists():
                run_id = mlflow_client.own_run(home, client, entry.version.run_id)
                client.log_text(run_id, page.page(home, folder, history), page.FILE.name)
