"""Stage open: fixes the deadline of a night, and lays out the folder that it runs in.

A night runs in a git worktree of its own, `nights/<id>`, at one code commit, with its own
params.yaml (overrides of the trigger written in) and its own `data/`. The deadline is fixed here,
once; a second `open` of the same night returns the same deadline. It counts from when a schedule wanted the
night, so that of H hours to train a night that opens d hours late has H - d. With less than half of them
there may be no plan: one that opens later has d hours, and all H once d is more, as where it is made up for.
"""

import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from pathlib import Path

from daybreak import hooks, warm_parent
from daybreak.contract import clock, days, disk, params, records
from daybreak.contract.errors import (
    JobError,
    NothingToDo,
    NotYet,
    ParamsError,
    PipelineError,
    ReleaseError,
    sentence,
)
from daybreak.contract.formats import counted, dollars
from daybreak.contract.record_parts import MonthBudget
from daybreak.contract.record_types import SCHEDULE, Champion, Night, Release
from daybreak.contract.sections import LiveSections, NightParams, Params
from daybreak.contract.table import Table
from daybreak.evaluation import live_judge
from daybreak.night import recipe_turns
from daybreak.night.month_budget import month_budget
from daybreak.rollout import lost_ledger
from daybreak.storage import (
    address,
    branch,
    checkout,
    erasures,
    ledger,
    night_folders,
    snapshots,
    source_code,
)
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

ARRAYS, KEYS = "data/arrays", "keys.json"
SETTLING_DAYS = 14  # that follow a cold start, before slow drift is a reason for another
NIGHTS_BACK = 7  # in which a night that predicted is looked for
UNKNOWN_S, STARTING_S = 600.0, 120.0  # that predictions take before any did; until a stage is called
LATE = timedelta(minutes=10)  # after a night was due, from when on its log says by what it goes
CARRIED = ["data/raw", "data/clean", "data/quarantine", "data/figures"]  # from night to night, by DVC


def open(
    home: Home,  # the verb of the stage
    *,
    night: str = "",
    day: date | None = None,
    due: str = "",
    set: list[str] | None = None,
    trigger: str = "manual",
    here: bool = False,
    warm: bool = False,
) -> Night:
    """Fixes the deadline, lays out the folder of the night, and changes into it.

    Args:
        home: whose nights these are.
        night: name of the night; the day if empty. A night that is open already is returned.
        day: the day whose data is the newest; if empty, the source's newest that is over in the table's zone.
        due: when a schedule wanted the night, as 2025-01-31T03:00:00+00:00: its day is the newest over then,
            and its deadline counts from then.
        set: overrides of params.yaml, `section.key=value`; with `here` they stay in this folder's own.
        trigger: who started it, and why.
        here: run in this folder, uncommitted changes and all, rather than in a worktree.
        warm: keep a process with the libraries imported, until `close`, and fork the night's stages from it.

    A night that cannot be opened has a folder, too, from which `close` writes it to the ledger as failed; the
    same name opens it again. A person at a terminal who gave wrong params only gets the error. Raises NotYet
    while another night of the home may still be decided.
    """
    root = home.tonight if here else home.folder
    if night and not records.names_folder(night):
        raise ParamsError(
            f"--night {night!r} is not a valid name; use up to 200 letters, digits, dots, dashes, underscores"
        )
    wanted = _Wanted(
        name=night,
        day=day,
        due=due,
        trigger=trigger,
        assignments=set or [],
        home=home,
        root=root,
        here=here,
    )
    if night:  # rather than import the workload first
        _expect_turn(home, night, wanted.folder)
    opened = _opened(wanted.folder, night) if night else None
    if opened is None:
        try:
            opened = _new(wanted)
        except (NotYet, NothingToDo):
            raise
        except Exception as error:  # of any kind; raised again
            # A person at a terminal sees a mistyped option; a failure that nobody sees goes into the ledger.
            is_seen = isinstance(error, ParamsError) and sys.stdin is not None and sys.stdin.isatty()
            if not here and not is_seen:
                _keep_failure(wanted, error)
            raise
    os.chdir(wanted.folder)
    clock.follow(wanted.folder)
    if warm:
        warm_parent.start(wanted.folder)
    return opened


@dataclass(kw_only=True)
class _Wanted:
    """The night that is to be opened; its name and day are "" and None until they are known."""

    name: str
    day: date | None
    due: str
    trigger: str
    assignments: list[str]
    home: Home
    root: Path  # the home, or the checkout that a night with `here` runs in
    here: bool
    proposed: list[str] = field(default_factory=list)  # assignments that come before a person's

    @property
    def folder(self) -> Path:
        return self.root if self.here else self.home.nights / self.name


def _new(wanted: _Wanted) -> Night:
    """Lays out the folder of a night that is not open yet, once its day is known."""
    overridden = params.override(wanted.root, wanted.assignments)
    if not wanted.here:  # in the home itself, the values would stay
        wanted.proposed = [
            one for propose in hooks.functions("proposal") for one in propose(wanted.home, overridden)
        ]
        overridden = params.override(wanted.root, [*wanted.proposed, *wanted.assignments])
    for _, needed in hooks.unread_keys(overridden):
        raise ParamsError(needed)
    for plug in (overridden.source, overridden.workload, overridden.backend):
        plug.find()  # rather than fail an hour later
    now, zone = datetime.now(UTC), cache(partial(zone_of, wanted.home, overridden))
    if not wanted.due and wanted.trigger == SCHEDULE and overridden.ingest.wait_hours:
        wanted.due = now.isoformat()  # the newest day of the source would never be one to wait for
    if wanted.day is None:
        due = _moment(wanted.due) if wanted.due else None
        wanted.day = days.newest_over(zone(), at=due) if due else _newest_day(overridden, zone, at=now)
    wanted.name = wanted.name or str(wanted.day)
    if not days.is_over_everywhere(wanted.day, at=now):
        days.check_over(wanted.day, zone(), at=now)
    if opened := _opened(wanted.folder, wanted.name):
        return opened
    with checkout.folders_alone(wanted.root):
        _expect_turn(wanted.home, wanted.name, wanted.folder)
        return _opened(wanted.folder, wanted.name) or _lay_out(wanted, wanted.day, overridden)


def _keep_failure(wanted: _Wanted, error: Exception) -> None:
    """Lays out a night that could not be opened, with why, and changes into its folder.

    The entry has the files of the commit, like any night, and deadline and budget as far as they can be read;
    an unknown day is replaced by the newest day that is over. An opened night of that name is left alone.
    """
    try:
        due = _moment(wanted.due) if wanted.due else datetime.now(UTC)
    except ParamsError:
        wanted.due, due = "", datetime.now(UTC)
    wanted.day = wanted.day or days.newest_over("UTC", at=due)
    wanted.name = wanted.name or str(wanted.day)
    os.chdir(wanted.root)  # not in a folder that is laid out anew
    try:
        with checkout.folders_alone(wanted.root):
            if _opened(wanted.folder, wanted.name):
                return
            address.settle(wanted.home.folder)
            commit = checkout.git("rev-parse", "HEAD", folder=wanted.root)
            _worktree(wanted.root, wanted.folder, commit)
            run, previous = wanted.folder / records.RUN, branch.newest_entry(wanted.home)
            if champion := ledger.champion_at(wanted.home, previous):
                records.write(champion, run)
            night = _night(wanted, wanted.day, wanted.home.last_params(wanted.root), commit, previous)
            records.write(night, run)
            records.replace_text(run / ledger.FAILED_TO_OPEN, sentence(error) + "\n")
    except (PipelineError, OSError) as fault:
        log.warning("night %s could not be opened, and is not kept: %s", wanted.name, sentence(fault))
        return
    os.chdir(wanted.folder)


def _opened(folder: Path, name: str) -> Night | None:
    night = records.find(Night, folder / records.RUN)
    is_open = night and night.id == name and not ledger.failed_to_open(folder)
    return night if is_open else None


def _expect_turn(home: Home, name: str, folder: Path) -> None:
    """Raises NotYet while another night of this home is undecided; passes if this night is open already.

    Passes also while users judge the other nights' challengers, where they may meet one more.
    """
    opened = _opened(folder, name)
    if opened and not ledger.commit_of(home, opened):
        return
    others = [night for night in night_folders.undecided(home) if night.id != name]
    if not others or live_judge.lets_open(home, others):
        return
    first = others[0]
    raise NotYet(
        f"night {first.id} is open, and is decided until {first.decide_until:%Y-%m-%d %H:%M} UTC; "
        f"nights of one home take turns, so night {name} opens once that one is closed; end it with: "
        f"daybreak stop --night {first.id}"
    )


def _airflow_run() -> str:
    """Returns the run of Airflow that this process is a task of, as DAG/RUN; "" outside of Airflow."""
    dag, run = (os.environ.get(f"AIRFLOW_CTX_DAG_{name}", "") for name in ("ID", "RUN_ID"))
    return f"{dag}/{run}" if dag and run else ""


def _lay_out(wanted: _Wanted, day: date, overridden: Params) -> Night:
    """Makes the folder of the night, or completes a partial one, changes into it, and returns the night.

    The record is written last, so that a folder without a record is not a night.
    """
    home, root, folder, assignments = wanted.home, wanted.root, wanted.folder, wanted.assignments
    lost_ledger.expect_ledger(home, overridden.register_, opens=True)
    address.settle(wanted.home.folder)
    commit = checkout.git("rev-parse", "HEAD", folder=root)
    previous = branch.newest_entry(home)
    if wanted.here:
        shutil.rmtree(folder / "data" / "run", ignore_errors=True)
    elif left_out := uncommitted(root):
        log.warning("%s", left_out)
    turn = None if wanted.here else _champions_turn(wanted, commit, overridden)
    if turn:
        commit = turn.commit
    elif not wanted.here:
        _check_out(wanted, commit)
    os.chdir(folder)
    overridden = (
        home.params_of(folder)
        if turn
        else params.override(folder, [*wanted.proposed, *assignments], into=folder)
    )
    params.complete(folder)
    if wanted.here and assignments:
        log.info("params.yaml here is changed: %s; git diff shows it", ", ".join(assignments))
    if turn is None:  # else it is the champion's, though this process may have imported the checkout's code
        _expect_portable_code(overridden, folder)
    champion = _restore(home, previous, day, candidate=turn.candidate if turn else None)
    booted_at = clock.read_anew()
    night = replace(
        _night(wanted, day, overridden, commit, previous, month=_month(home, overridden.night)),
        cold=_why_cold(home, champion, day, overridden),
        boot=clock.boot(),
        booted_at=booted_at,
        test_hours=_test_hours(home, overridden),
    )
    if turn is None:
        _warn_of_new_recipe(home, night, champion, overridden)
    disk.sync(folder)  # the folder is whole before it is one of a night
    records.write(night, folder / records.RUN)
    return night


def _champions_turn(wanted: _Wanted, commit: str, asked: Params) -> recipe_turns.Turn | None:
    """Returns the turn of the champion's recipe, laid out in the night's folder; None where it has none."""
    try:
        turn = recipe_turns.of_champion(
            wanted.home,
            wanted.root,
            asked,
            commit=commit,
            trigger=wanted.trigger,
            assignments=wanted.assignments,
        )
        if turn is None:
            return None
        _check_out(wanted, turn.commit)
        todays = checkout.git("show", f"{commit}:{params.FILE}", folder=wanted.root)
        records.replace_text(wanted.folder / params.FILE, todays + "\n")
        params.override(wanted.folder, [*wanted.proposed, *wanted.assignments], into=wanted.folder)
        return turn if recipe_turns.take(turn, wanted.folder) else None
    except PipelineError as error:
        why = sentence(error)
        log.warning("the champion's recipe does not have its turn (%s); tonight trains the checkout's", why)
        return None


def _check_out(wanted: _Wanted, commit: str) -> None:
    """Checks a commit out in the night's folder, which shares the home's cache of DVC."""
    _worktree(wanted.root, wanted.folder, commit)
    snapshots.share_cache(wanted.folder, cache=wanted.root / ".dvc" / "cache")


def _month(home: Home, given: NightParams) -> MonthBudget | None:
    """Returns what the month has left; None without a limit."""
    if given.usd_per_month is None:
        return None
    return month_budget([home], usd=given.usd_per_month, at=clock.utc(), zone=given.time_zone)


def _night(
    wanted: _Wanted,
    day: date,
    loaded: Params,
    commit: str,
    previous: str,
    *,
    month: MonthBudget | None = None,
) -> Night:
    """Returns the record of a night that begins now; `month` may lower its budget."""
    given = loaded.night
    now, budget_usd = clock.utc().replace(microsecond=0), given.budget_usd
    due = _moment(wanted.due).astimezone(UTC).replace(microsecond=0) if wanted.due else now
    since = _since(due, now, to_train=timedelta(hours=given.train_hours))
    if now - due >= LATE:
        from_when = "then"
        if since > due:
            from_when = f"{since:%Y-%m-%d %H:%M} UTC, as it opens after half of night.train_hours"
        log.info(
            "the night was due at %s; its deadlines count from %s", f"{due:%Y-%m-%d %H:%M} UTC", from_when
        )
    predict_until, predict_from = _to_predict(wanted.home, loaded, since)
    if month:
        is_asked = any(one.startswith("night.budget_usd=") for one in wanted.assignments)
        budget_usd = month.limit(budget_usd, alone=is_asked)
        if budget_usd < given.budget_usd:
            log.info("%s, so tonight may cost %s (night.usd_per_month)", month, dollars(budget_usd))
    return Night(
        id=wanted.name,
        day=day,
        started_at=now,
        train_until=since + timedelta(hours=given.train_hours),
        decide_until=since + timedelta(hours=given.decide_hours),
        budget_usd=budget_usd,
        trigger=wanted.trigger,
        airflow_run=_airflow_run(),
        code_commit=commit,
        previous=previous,
        month=month,
        predict_until=predict_until,
        predict_from=predict_from,
    )


def _since(due: datetime, now: datetime, *, to_train: timedelta) -> datetime:
    """Returns from when the deadlines of a night that opens now count.

    The later it opens, the later they are, and never at once by hours:

    >>> due, hour = datetime(2025, 1, 31, 3), timedelta(hours=1)
    >>> ends = [_since(due, due + late * hour, to_train=18 * hour) + 18 * hour for late in (0, 9, 10, 18, 40)]
    >>> [(end - due) / hour for end in ends]
    [18.0, 18.0, 20.0, 36.0, 58.0]
    """
    late = now - due
    return now - min(max(late, timedelta()), max(to_train - late, timedelta()))


def _to_predict(home: Home, loaded: Params, since: datetime) -> tuple[datetime | None, datetime | None]:
    """Returns when predictions have to be written, and when that has to begin; None where none are asked for.

    They may take twice as long as they took last, and at most half of the time.
    """
    if not loaded.predict.to:
        return None, None
    last = next((one.predictions for one in ledger.history(home, limit=NIGHTS_BACK) if one.predictions), None)
    given = timedelta(hours=loaded.predict.by_hours or loaded.night.decide_hours)
    takes = timedelta(seconds=2 * (last.whole_s if last else UNKNOWN_S) + STARTING_S)
    return since + given, since + given - min(takes, given / 2)


def _warn_of_new_recipe(home: Home, night: Night, champion: Champion | None, loaded: Params) -> None:
    """Warns of the differences of tonight's recipe from the champion's, so that it must be proven better."""
    from daybreak.registry import lineage

    recipe = loaded.workload, loaded.train
    if champion is None or lineage.is_refresh(champion, *recipe):
        return
    if not lineage.is_declared_equal(home, champion, *recipe):
        log.warning("%s", lineage.what_changed(home, champion, *recipe))


def _test_hours(home: Home, loaded: Params) -> float:
    """Returns how long users need to judge tonight's challenger; 0 where that is not known."""
    users = live_judge.judge_of(loaded.gate.scores)
    if users is None:
        return 0.0
    try:
        return users.hours_needed(home, loaded.only(LiveSections), hours=loaded.night.decide_hours)
    except PipelineError as error:
        log.warning("no time is planned for the live test: %s", error)
        return 0.0


def _expect_portable_code(loaded: Params, folder: Path) -> None:
    """Raises ParamsError where code cannot travel, rather than after hours of training."""
    for what, files in travelling(loaded, folder):
        source_code.expect_portable(files, what=what, max_mb=loaded.night.max_code_mb)


def travelling(loaded: Params, folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yields where files of the checkout in a folder travel, and which."""
    from daybreak.backends import staging
    from daybreak.registry import carried_code

    if loaded.backend.buckets():
        yield "to each job", staging.code_files(folder)
    yield "into each version", list(carried_code.files_of(loaded.workload.use).values())


def _newest_day(loaded: Params, zone: Callable[[], str], *, at: datetime) -> date:
    """Returns the newest day that the source has and that is over; `zone` is asked only where it matters."""
    offered: list[date] = sorted(loaded.source.make().days(), reverse=True)
    for day in offered:
        if days.is_over_everywhere(day, at=at) or day <= days.newest_over(zone(), at=at):
            return day
    if offered:
        raise NothingToDo(f"the source has no day with data that is over in {zone()}, only {offered[0]}")
    raise NothingToDo("the source has no day with data")


def zone_of(home: Home, loaded: Params) -> str:
    """Returns the zone of the table in which a day ends, as the night before has it.

    So only the first night waits until the workload is imported. `ingest` looks again, by tonight's table.
    """
    table = branch.read_at(home, branch.ledger_tip(home), Table)
    if table is None:
        table = getattr(loaded.workload.make(), "table", None)
    return table.zone if isinstance(table, Table) else "UTC"


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.min
    if moment.tzinfo is None:
        raise ParamsError(f"--due {text!r} is not a moment; write it as 2025-01-31T03:00:00+00:00")
    return moment


def uncommitted(home: Path) -> str:
    """Returns which files of the checkout are not part of a night, which runs at HEAD; "" where none are."""
    try:
        listed = checkout.git("status", "--porcelain", folder=home)
    except ReleaseError as error:  # such as an index that a failure of the power cut short; HEAD is whole
        return f"whether there are files that are not part of a night is unknown: {error}"
    changed = [line.split(maxsplit=1)[1] for line in listed.splitlines()]
    if not changed:
        return ""
    number = f"{counted(len(changed), 'uncommitted file')} {'is' if len(changed) == 1 else 'are'}"
    named = f"{', '.join(changed[:8])}{', ...' if len(changed) > 8 else ''}"
    return f"{number} not part of a night: {named}; commit, or run daybreak night --here"


def _worktree(home: Path, folder: Path, commit: str) -> None:
    """Checks `commit` out in `folder`, over what a killed `open` may have left."""
    if folder.exists():
        shutil.rmtree(folder)
    try:
        checkout.add_worktree(home, folder, commit)
    except ReleaseError as error:
        raise JobError(f"no worktree for the night: {error}") from None


def _restore(home: Home, previous: str, day: date, *, candidate: Release | None = None) -> Champion | None:
    """Restores the data and the champion as the night before left them, and returns the champion."""
    Path("data/champion").mkdir(parents=True, exist_ok=True)
    champion = ledger.champion_at(home, previous)
    if champion:
        champion = replace(_with_chain(home, champion, day), candidate=candidate)
        records.write(champion, home.records)
    lock = night_folders.lock_to_go_on_from(home, previous)
    if lock is None:
        return champion
    lock = erasures.now_of_lock(home, lock)
    if champion:
        lock = snapshots.lock_champion(lock, champion.model_digest)
    records.replace_text(Path("dvc.lock"), lock)
    by_partition = (
        [ARRAYS] if snapshots.holds(home, ARRAYS, KEYS) else []
    )  # else they are made anew each night
    snapshots.restore(home, [*CARRIED, *by_partition, "data/champion"])
    return champion


def _with_chain(home: Home, champion: Champion, day: date) -> Champion:
    """Returns the champion with the anchor that its chain is held against, and the version it replaced."""
    from daybreak.gate import chain

    made, before = ledger.promotions(home, champion.version, champion.replaced)
    return replace(
        champion,
        anchor=chain.anchor_of(champion, made, day=day),
        predecessor=before.release if before else None,
    )


def _why_cold(home: Home, champion: Champion | None, day: date, asked: Params) -> str:
    """Returns why tonight's training has to begin with new weights; "" if it need not."""
    from daybreak.gate import chain, cold_start

    erased = erasures.of_version(home, champion.version) if champion else ""
    past = ledger.entries_of(home, chain.of_a_year(ledger.commits(home), day))
    spent = cold_start.why_cold(champion, past, day=day, when_spent=asked.gate.when_spent)
    if erased or spent or asked.validate_.slow_drift != "cold":
        return erased or spent
    nights = [one for one in past if not one.rollback]
    report = next((one.report for one in nights if one.report), None)
    newest = max((one.night.day for one in nights if one.night.cold and one.training), default=date.min)
    if report is None or not report.trends or day - newest < timedelta(days=SETTLING_DAYS):
        return ""
    return f"the data drifts slowly: {report.trends[0].words}"
