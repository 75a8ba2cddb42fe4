"""Implements the commands besides stages and nights: public functions, whose parameters are the options.

`daybreak` shows the first lines of the docstrings as help, and exits with the returned status
(daybreak/cli.py).
"""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from daybreak import hooks
from daybreak.contract import forms, params, records
from daybreak.contract.errors import NothingToDo, ParamsError, PipelineError, without_password
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import OF_A_NIGHT, Night
from daybreak.report import notifier
from daybreak.storage import branch, ledger, ledger_notes
from daybreak.storage.home import Home

log = logging.getLogger("daybreak")


def rows(
    home: Home, *, night: str = "", rule: str = "", limit: int = 20, last: int = 60, json_: bool = False
) -> int:
    """Show which rows of a night failed which rules, and how each rule fared in the nights before.

    Args:
        home: whose nights these are
        night: the night; the newest if left out
        rule: only this rule, and its history night by night
        limit: rows of each rule that are shown
        last: nights of the history
        json_: as JSON, for other programs
    """
    from rich.console import Console

    from daybreak.report import bad_rows
    from daybreak.storage import night_folders

    if limit < 0 or last < 1:
        raise ParamsError(f"limit is {limit} and last {last}; give 0 or more rows and 1 or more nights")
    history = [entry for entry in ledger.history(home) if not entry.rollback]
    name = night or (history[0].night.id if history else "")
    folder = home.nights / name
    entry = next((one for one in history if one.night.id == name), None)
    if entry is None:  # it may not be closed yet
        if not name or records.find(Night, folder / records.RUN) is None:
            raise NothingToDo(f"there is no night {name}".rstrip() + "; status shows those of the ledger")
        entry = night_folders.entry_of(folder)
    bad = bad_rows.of_night(home, entry, folder, rule=rule, limit=limit)
    history = history[:last]
    nights = bad_rows.over_nights(rule, history) if rule else []
    if rule and not bad.rules and not nights:
        raise NothingToDo(f"no night of the last {last} had a rule {rule!r}; leave --rule out to see all")
    if json_:
        shown = asdict(bad) | {"history": [asdict(one) for one in nights]}
        print(json.dumps(shown))
        return 0
    for line in bad_rows.lines(bad, history, nights):
        Console().print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str))
    return 0


def events(home: Home, *, night: str = "", last: int = 30, json_: bool = False) -> int:
    """Show what happened, newest first: promotions, refusals, rollbacks, questions, failures, late nights.

    Args:
        home: whose nights these are
        night: only this night's, also while it runs
        last: number of events
        json_: as JSON: a list of events
    """
    from rich.console import Console

    from daybreak.rollout import night_events

    if last < 1:
        raise ParamsError(f"last is {last}; give 1 or more events")
    shown = (night_events.of_night(home, night) if night else night_events.newest(home, last))[:last]
    if not shown:
        raise NothingToDo(f"nothing has happened{f' in a night {night}' if night else ''} yet")
    if json_:
        print(json.dumps([json.loads(records.dumps(event)) for event in shown]))
        return 0
    for event in shown:
        Console().print(night_events.line(event), highlight=False, markup=False, soft_wrap=True)
    return 0


def verdict(home: Home, *, night: str, json_: bool = False) -> int:
    """Print the decision of a night in a line; exit status 0 if it promoted a version, else 99.

    Args:
        home: whose nights these are
        night: the night
        json_: as JSON: the event with which the night ended
    """
    from daybreak.rollout import night_events

    decided = [event for event in night_events.of_night(home, night) if event.kind in night_events.DECISIONS]
    if not decided:
        raise NothingToDo(f"night {night} has decided nothing yet")
    if json_:
        print(json.dumps(json.loads(records.dumps(decided[0]))))
    else:
        print(notifier.text_of(home, decided[0], now=decided[0].at))
    return 0 if decided[0].kind == "promoted" else NothingToDo.exit_status


def due(home: Home, *, json_: bool = False) -> int:
    """Print why the watch asks for a night now; exit status 0 if it does, else 99.

    Args:
        home: whose nights these are
        json_: as JSON: whether a night is due, and the trigger, or why none is
    """
    from daybreak.gate import retraining

    try:
        reason = retraining.trigger(home, home.params.watch)
    except NothingToDo as nothing:
        if not json_:
            raise
        print(json.dumps({"due": False, "reason": str(nothing)}), flush=True)
        return NothingToDo.exit_status
    print(json.dumps({"due": True, "reason": reason}) if json_ else reason, flush=True)
    return 0


def predict_ahead(home: Home) -> int:
    """Write the champion's predictions where they would be late by waiting for a person; 75: not yet.

    A DAG calls it beside the question, in the folder of the night: no stage is called while Airflow waits.

    Args:
        home: whose night it is
    """
    from daybreak import runner

    runner.predict_ahead(home)
    return 0


def migrate(home: Home) -> int:
    """Rewrite params.yaml of an earlier release in the current form, and say what changed."""
    path = home.folder / params.FILE
    text, changes = forms.migrate(path.read_text())
    if not changes:
        raise NothingToDo(f"{path} is in today's form")
    records.replace_text(path, text)
    for change in changes:
        print(f"{path}: {change}")
    print("Commit it: a night runs with the params.yaml of the commit that is checked out.")
    return 0


def same_recipe(home: Home, *, reason: str) -> int:
    """Declare that an edit did not change the recipe, so that the next night is a refresh of the champion.

    Args:
        home: whose nights these are
        reason: why it is the same, kept in the ledger
    """
    from daybreak.registry import lineage
    from daybreak.report import publisher

    champion = ledger.champion_at(home, branch.ledger_tip(home))
    if champion is None:
        raise NothingToDo("no version serves yet, so that there is no recipe to be the same as")
    params = home.params
    recipe = lineage.recipe(params.workload, params.train)
    if recipe == champion.lineage.get("recipe"):
        raise NothingToDo(f"the recipe is that of version {champion.version} as it is")
    text = f"the recipe was declared to be that of version {champion.version}: {reason}"
    ledger_notes.add(home, text, versions=(champion.version,), recipe=recipe)
    publisher.copy_ledger(home)
    print(text)
    return 0


def lift(home: Home, *, reason: str, by: str = "") -> int:
    """Let recipes serve by proof again that a person took back or rejected.

    Args:
        home: whose nights these are
        reason: why, kept in the ledger
        by: who; you if left out
    """
    from daybreak.contract.user import user
    from daybreak.report import publisher
    from daybreak.rollout import hold

    for held in hold.lift(home, reason=reason, by=by or user()):
        print(f"lifted: {held.hold}")
    publisher.copy_ledger(home)
    return 0


def prune(home: Home, *, dry_run: bool = False, json_: bool = False) -> int:
    """Delete old nights' data, models and predictions in var/, and exposures older than serving.keep_days.

    `close` does so after each night.

    Args:
        home: whose nights these are
        dry_run: delete nothing, and show what would be deleted
        json_: as JSON: a list of kinds with their numbers and bytes
    """
    from daybreak.contract.formats import size
    from daybreak.rollout.prune import prune as prunes

    params = home.params
    kinds = []
    try:
        for freed in prunes(home, params.night, params.register_, params.serving, dry_run=dry_run):
            kinds.append(freed)
            if not json_:
                shown = f"{size(freed.num_bytes)}: {freed.num:,} {freed.what}"
                print("\n".join([f"{'would free' if dry_run else 'freed'} {shown}", *freed.left]))
    finally:  # an open night ends it once folders were deleted
        if json_:
            print(json.dumps([asdict(freed) for freed in kinds]))
    return int(any(freed.left for freed in kinds))


def check(home: Home, *, rent: bool = False, json_: bool = False) -> int:
    """Examine the set-up and params.yaml before anything runs.

    Args:
        home: whose nights these are
        rent: also run a job of a minute on the planned machine, at its price, and show its device and speed
        json_: as JSON: a list of checks, once all are done
    """
    from daybreak.check import findings, print_checks, rented

    def checks() -> Iterator[Check]:
        is_ready = True
        for finding in findings(home):
            is_ready &= finding.ok
            yield Check(name=finding.what, ok=finding.ok, text=without_password(finding.text))
        if rent and is_ready:
            yield from rented(home, home.params)

    return print_checks(checks(), as_json=json_)


def report(home: Home, *, night: str = "", open: bool = False, all: bool = False, json_: bool = False) -> int:
    """Write the board over the nights and the report of the newest, and print where they are.

    Args:
        home: whose nights these are
        night: the night whose report is wanted; the newest if left out
        open: show the board in a browser, or the report of the night that was named
        all: only a board over the nights of each model of the fleet
        json_: write nothing; print the summary of the night and its records as JSON
    """
    from daybreak.report import outcome, page

    if all:
        boards = _boards(home, all=True)
        if not boards:
            raise NothingToDo("no extension here writes a board; restore pipeline/daybreak/extensions")
        print(*boards, sep="\n")
        if open:
            _show_in_browser(boards[0])
        return 0
    entries = ledger.history(home, limit=outcome.NIGHTS)
    folder = _newest_here(home, entries, night)
    if json_:
        print(json.dumps(page.values(home, folder, entries)))
        return 0
    boards = _boards(home, all=False)
    written = page.write(home, folder, entries)  # again, since it may have been rolled back
    for entry in entries:
        if not entry.rollback and entry.night.id != folder.name:
            try:
                page.renew(home, entry, entries)
            except PipelineError as error:
                log.warning("the page of night %s is as it was: %s", entry.night.id, error)
    shown = next((entry for entry in entries if not entry.rollback and entry.night.id == folder.name), None)
    if shown and (since := outcome.since(shown, entries)):
        log.info("%s", since)
    print(*boards, written, sep="\n")
    if open:
        _show_in_browser(boards[0] if boards and not night else written)
    return 0


def _boards(home: Home, *, all: bool) -> list[Path]:
    """Writes the boards that extensions have, and returns where they are."""
    return [write(home, all=all) for write in hooks.functions("board")]


def _newest_here(home: Home, entries: list[ledger.Entry], night: str) -> Path:
    """Returns the folder of the night, or of the newest one, whose page is here; `entries` newest first."""
    from daybreak.report import links

    ids = [night] if night else [entry.night.id for entry in entries if not entry.rollback]
    folders = [home.nights / each for each in ids]  # of a night that is open, too
    folder = next((folder for folder in folders if (folder / links.PAGE).exists()), None)
    if folder is None:
        raise NothingToDo(f"no report of {night or 'any night'} is here; MLflow keeps those of old nights")
    if folder != folders[0]:
        log.info("no report of %s, the newest night, is here; that of %s is", folders[0].name, folder.name)
    return folder


def _show_in_browser(page: Path) -> None:
    """Opens a page where there is a desktop; elsewhere Python may start a browser in the terminal."""
    import webbrowser

    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    desktop = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in screens)
    if not desktop or not webbrowser.open(page.as_uri()):
        log.info("there is no desktop here; open %s in a browser of yours", page)


def prices(
    home: Home,
    *,
    refresh: bool = False,
    machine: str = "*",
    region: str = "*",
    url: str = "",
    json_: bool = False,
) -> int:
    """Show what machines cost, each price with its date and source, or read the prices again.

    Args:
        home: whose nights these are
        refresh: read them from the Cloud Billing Catalog API, with the key in CLOUD_BILLING_API_KEY
        machine: only these, a name or a pattern such as "g2-*"
        region: only these, a name or a pattern
        url: address of the API; Google's if left out
        json_: as JSON: a list of prices, in dollars an hour
    """
    from daybreak.machines import pricelist
    from daybreak.machines import prices as list_prices

    kept = home.folder / pricelist.REFRESHED
    if not refresh and json_:
        known = list_prices.listed(kept, machine=machine, region=region)
        shown = [asdict(price) | {"total_usd_per_hour": price.total_usd_per_hour} for price in known]
        print(json.dumps(shown, default=str))
        return 0
    if not refresh:
        print("\n".join(list_prices.table(kept, machine=machine, region=region)))
        return 0
    read = list_prices.refresh(kept, url=url or list_prices.URL)
    for sentence in read.refused:
        log.warning("refused: %s", sentence)
    log.info(
        "%d prices are in %s, %d were refused, %d are not in the provider's list",
        len(read.accepted),
        kept,
        len(read.refused),
        read.num_missing,
    )
    return 0


def show(home: Home, record: str, *, night: str = "") -> int:
    """Print a record of a night as JSON, in today's form.

    Args:
        home: whose nights these are
        record: its name, as plan or verdict
        night: the night whose record is wanted; the one of this folder if left out
    """
    kinds = {kind.__name__.lower(): kind for kind in OF_A_NIGHT}
    if record not in kinds:
        raise ParamsError(f"{record} is not a record of a night; name one of {', '.join(kinds)}")
    folder = home.nights / night if night else home.tonight
    written = records.find(kinds[record], folder / records.RUN)
    if written is None:
        raise NothingToDo(f"{folder / records.RUN} has no {record} yet")
    print(json.dumps(json.loads(records.dumps(written))))
    return 0


def notify(home: Home, *, text: str = "", night: str = "", stage: str = "", late: bool = False) -> int:
    """Notify people of a failure or a missed deadline, by notify.command and notify.urls of params.yaml.

    Args:
        home: whose nights these are
        text: the message; standard input if left out
        night: the night that may be late, or whose stage failed
        stage: the stage that failed; its sentence goes into the message
        late: send a message only if the night has missed its own deadline, once
    """
    from daybreak.rollout import night_events

    folder = home.nights / night
    message = (text or sys.stdin.read()).rstrip("\n")
    is_open = bool(night) and records.find(Night, folder / records.RUN) is not None
    if late and is_open:
        noted = night_events.note(folder)
        happened = [event for event in noted if event.kind == "late" and not event.subject]
        if not happened:
            raise NothingToDo(f"night {night} has time yet, by its own deadline, or is decided")
        return 0 if notifier.tell(home, *happened) else 1
    if stage:
        left = folder / records.RUN / f"{stage}.error"
        message += f": {left.read_text().strip() if left.exists() else 'look at its log'}"
    log.warning("%s", message)
    if stage and is_open:
        return 0 if notifier.tell(home, night_events.note_failure(stage, folder)) else 1
    return 0 if notifier.send(home, message) else 1


def dags(home: Home, folder: str, *, command_: str = "") -> int:
    """Write a DAG file for this home, for an Airflow that has no Daybreak.

    Args:
        home: whose nights Airflow is to run
        folder: where that Airflow reads DAG files
        command_: the daybreak of the environment that runs the stages, where they run; this one if left out
    """
    from daybreak import dag_file

    name = home.params.register_.name
    path = Path(folder) / f"nights_{re.sub(r'[^A-Za-z0-9_]', '_', name)}.py"
    program = Path(command_) if command_ else Path(sys.executable).with_name("daybreak")
    if not program.is_absolute():
        raise ParamsError(f"--command is {command_}; write an absolute path, as tasks run in other folders")
    if not Path(folder).is_dir():
        raise ParamsError(f"{folder} is not a folder; name one in which Airflow reads DAG files")
    for used in (home.folder, program):
        if re.search("{[{%#]", str(used)):
            raise ParamsError(f"{used} has braces that Airflow takes for a template; move it to another path")
    changed = dag_file.write(
        path,
        home=home.folder,
        register=home.params.register_,
        night=home.params.night,
        command=program,
    )
    print(f"{path} {'is written' if changed else 'is as it would be written'}: its nights run {program}.")
    if not program.exists():
        print(f"There is no {program} here; it has to be wherever tasks run.")
    for other in dag_file.others(path, home=home.folder):
        print(f"{other} is of this home, too, and both start nights; delete it, and keep what is yours.")
    print("Next, in Airflow:")
    print("1. name owner, pool, queue, schedule or secrets in its last line, if you like;")
    print("2. run airflow dags reserialize, or wait until Airflow has read the file, some minutes at most;")
    print(f"3. unpause retrain.{name} and watch.{name} (airflow dags unpause), and the others if you like;")
    print(f"4. trigger retrain.{name}, and look at its task verdict.")
    for (major, minor), sentence in sorted(dag_file.lacking().items()):
        print(f"Before Airflow {major}.{minor}, {sentence}.")
    return 0
