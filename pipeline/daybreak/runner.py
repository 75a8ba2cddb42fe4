"""Runs a stage here, or a whole night stage after stage.

A stage is a plain function, and its signature is the contract: arguments are filled by type, a record from
its file, a section from params.yaml, a protocol from its plug. Keyword-only scalars are options of the
command line (daybreak/cli.py). The returned record is written to its file.
"""

import contextlib
import json
import logging
import os
import subprocess
import sys
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal

from daybreak import airflow_question, hooks, stages, warm_parent
from daybreak.contract import clock, disk, params, records
from daybreak.contract.backend import Backend
from daybreak.contract.code_path import source_of
from daybreak.contract.data_source import Source
from daybreak.contract.days import newest_over
from daybreak.contract.errors import (
    FINAL,
    JobError,
    NothingToDo,
    NotYet,
    ParamsError,
    PipelineError,
    sentence,
)
from daybreak.contract.record_parts import Record, StageSpan
from daybreak.contract.record_types import ADOPTS, Approval, Night, Predictions, Stop, Verdict
from daybreak.contract.sections import Params, Section, Sections
from daybreak.contract.table import Table
from daybreak.contract.workload import Workload
from daybreak.evaluation.live_judge import LiveJudge, judge_of
from daybreak.jobs.cost_tracker import JOBS
from daybreak.registry import approval
from daybreak.report import publisher
from daybreak.storage import branch, erasures, ledger, snapshots, spans
from daybreak.storage.home import Home
from daybreak.storage.source_code import frame_digest, running_digest

log = logging.getLogger("daybreak")

OPTION_TYPES: tuple[Any, ...] = (str, int, int | str, float, bool, date, date | None, list[str] | None)
ENDING = ("predict", "close", "stop")  # a night can be ended whatever is wrong with it
PREDICT_AGAIN_S = 300.0  # after predictions have failed while a stage waits
QUESTION = "review"  # what predictions come ahead of where Airflow asks a person (dags/review.py)
CALL_AGAIN_S = 2.0  # between two calls of a stage that answers 75, on the command line


def stage(home: Home, *, name: str, wait: bool = False, explain: bool = False, **given: object) -> int:
    """Runs one stage, unless DVC has the outputs already; `dvc repro` calls this as well."""
    clock.follow(home.tonight)
    _step_in(home, name)
    chosen, inside_dvc = stages.STAGES[name], os.environ.get("DVC_STAGE") == name
    by_dvc = bool(chosen.dvc) and not inside_dvc and name in snapshots.stages(home.tonight)
    if by_dvc and chosen.dvc == "cached" and _is_current(home, name):
        kind = written_by(name)
        record = records.read(kind, home.records) if kind else None
    else:
        if by_dvc and chosen.reads and snapshots.LOCK.exists():
            with _marking(home, name):
                _expect_intact(home, chosen)
        record = _until_done(home, name, given) if wait else run(home, name, **given)
        snapshots.make_folders(home.tonight, name)
        if by_dvc and record is not None:
            snapshots.record(home, name)
            if name == "ingest" and not snapshots.is_recorded(records.path_of(Night, Path(records.RUN))):
                snapshots.record(home, "open")  # the night waited in vain, and is of another day since
    if record is None or inside_dvc:
        return 0
    if chosen.explain:
        function = hooks.imported(chosen.explain)
        text = function(**arguments(home, function, home.tonight))
        if explain:
            print(text, flush=True)
            return 0
        log.info("%s", text)  # the task log shows what --explain does
    print(json.dumps(json.loads(records.dumps(record))), flush=True)
    return 0


def _step_in(home: Home, name: str) -> None:
    """Raises ParamsError outside of a night, and writes digests of what lies elsewhere for DVC."""
    if name in stages.IN_NIGHT[1:] and not records.path_of(Night, home.records).exists():
        nights = home.nights
        raise ParamsError(
            f"{home.tonight} is not the folder of a night; name one of {nights} by --night, "
            f"or open one with: daybreak open"
        )
    if name not in stages.OF_NIGHTS:
        return
    snapshots.recover(home)
    from daybreak.machines.pricelist import REFRESHED

    prices = home.folder / REFRESHED
    outside = {
        stages.PRICES: records.digest(prices) if prices.exists() else "",
        stages.EXTENSIONS: frame_digest("extensions", "jobs"),  # some lean on how jobs are looked after
    }
    if source_of(home.tonight) is None:  # Daybreak is installed elsewhere
        outside[stages.FRAME] = frame_digest()
    with contextlib.suppress(ParamsError):  # the stage that makes the workload reports it
        outside[stages.WORKLOAD] = running_digest(home.params_of(home.tonight).workload.use)
    for path, digest in outside.items():
        if not Path(path).exists() or Path(path).read_text() != f"{digest}\n":
            records.replace_text(Path(path), f"{digest}\n")
    if Table in typing.get_type_hints(stages.STAGES[name].function).values():
        _write_table(home, name)


def _write_table(home: Home, stage: str) -> None:
    """Writes the table of the workload, unless it is there and newer than the workload's source."""
    written, source = records.path_of(Table, home.records), Path(stages.WORKLOAD)
    if written.exists() and source.exists() and written.stat().st_mtime_ns > source.stat().st_mtime_ns:
        return
    try:
        plug = home.params_of(home.tonight).workload
        table = getattr(plug.make(), "table", None)
        if not isinstance(table, Table):
            raise ParamsError(
                f"{plug.use} has no table; declare `table = Table(...)` in the class (docs/own-data.md)"
            )
    except PipelineError as error:
        _name_new_night(home, stage, error)
        mark(home, stage, error=sentence(error))
        raise
    records.write(table, home.records)


def _expect_intact(home: Home, stage: stages.Stage) -> None:
    """Raises DataError where the files of tonight that a stage is about to read have changed on the disk.

    A stage that is called until a job ends reads them when it sends the job.
    """
    if stage.waits and stage.dvc == "frozen" and any(JOBS.glob("*/")):
        return
    previous = records.read(Night, home.records).previous
    before = branch.text_at(home, previous, snapshots.LOCK) if previous else ""
    snapshots.expect_intact(home, stage.reads, before=erasures.now_of_lock(home, before) if before else "")


@contextlib.contextmanager
def _marking(home: Home, name: str) -> Iterator[None]:
    """Marks the stage as failed where a fault is found before it runs."""
    try:
        yield
    except PipelineError as error:
        mark(home, name, error=sentence(error))
        raise


def _is_current(home: Home, name: str) -> bool:
    with _marking(home, name):
        current = snapshots.is_current(name)
    if current:
        mark(home, name)
        _timer(home, name)("done", why="its outputs are there, of inputs that have not changed since")
    return current


def _until_done(home: Home, name: str, given: dict[str, object]) -> Record | None:
    """Runs the stage again until it is done; shows a bar on a terminal, else logs a line each time."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=30), TextColumn("{task.description}", markup=False)
    console, last = Console(stderr=True), ""
    shown = Progress(*columns, console=console, transient=True)
    with contextlib.ExitStack() as drawn:
        while True:
            try:
                return run(home, name, **given)
            except NotYet as pending:
                if str(pending) == last:
                    pass
                elif pending.share is None or not console.is_terminal:
                    log.info("%s", pending)
                else:
                    if not shown.tasks:  # until then, what the first call transfers has the line
                        drawn.enter_context(shown)
                        shown.add_task("", total=1.0)
                    shown.update(shown.tasks[0].id, completed=pending.share, description=str(pending))
                last = str(pending)
                time.sleep(pending.again_s or CALL_AGAIN_S)


def night(
    home: Home,
    *,
    night: str = "",
    day: date | None = None,
    set: list[str] | None = None,
    trigger: str = "manual",
    until: str = "close",
    here: bool = False,
) -> int:
    """Run a whole night, stage after stage; run it again to go on where it stopped.

    Args:
        home: whose nights these are
        night: name of the night; the day if left out
        day: newest day of data; if left out, the source's newest; of a schedule that waits, the newest over
        set: override a key of params.yaml for this night
        trigger: who started it, and why; kept in the ledger
        until: the last stage to run
        here: run in this folder, uncommitted changes and all
    """
    if until not in stages.CHAIN:
        raise ParamsError(f"--until {until} is not a stage of a night; name one of {', '.join(stages.CHAIN)}")
    chain = stages.CHAIN[1 : stages.CHAIN.index(until) + 1]
    return _night(
        home, {name: () for name in chain}, night=night, day=day, set=set, trigger=trigger, here=here
    )


def adopt(
    home: Home,
    model: str,
    *,
    output: str = "",
    last_day: date | None = None,
    night: str = "",
    day: date | None = None,
    set: list[str] | None = None,
    here: bool = False,
) -> int:
    """Make a model that already serves the first champion, by a night that trains none.

    Args:
        home: whose nights these are
        model: the model in MLflow, as models:/NAME/VERSION
        output: which of several outputs is the prediction: the name of a column, or its number from 0
        last_day: last day of data that it was trained on; the day on which it was registered if left out
        night: name of the night; the day if left out
        day: newest day of data to use; the source's newest if left out
        set: override a key of params.yaml for this night
        here: run in this folder, uncommitted changes and all
    """
    from daybreak.gate import adoption

    adoption.expect_first(ledger.champion_at(home, branch.ledger_tip(home)))
    adoption.find(home, model, home.params.workload)
    words = ["--model", model, "--output", output]
    words += ["--last-day", str(last_day)] if last_day else []
    chain: dict[str, Sequence[str]] = {name: () for name in stages.ADOPTION[1:]}
    chain["admit"] = words
    return _night(home, chain, night=night, day=day, set=set, trigger=f"{ADOPTS}{model}", here=here)


def _night(home: Home, chain: Mapping[str, Sequence[str]], **options: Any) -> int:
    """Opens a night and runs these stages, each with its words, and returns the exit status."""
    try:
        opened = run(home, "open", **options)
    except Exception:
        if ledger.failed_to_open(home.tonight):
            _close_unopened(home)
        raise
    assert isinstance(opened, Night)
    snapshots.record(home, "open")
    began = time.monotonic()
    log.info(
        "night %s, day %s, train until %s UTC, budget $%.2f",
        opened.id,
        opened.day,
        f"{opened.train_until:%Y-%m-%d %H:%M}",
        opened.budget_usd,
    )
    try:
        failed = _rest_of_night(home, chain)
    except KeyboardInterrupt:
        from daybreak.jobs import launcher

        launcher.end_jobs(home, home.params_of(home.tonight).backend.make(home))
        again = f"daybreak night --night {opened.id}"
        log.error("night %s is stopped; go on with: %s", opened.id, again)
        return 130
    verdict = records.find(Verdict, home.records)
    log.info(
        "night %s took %.0f s: %s",
        opened.id,
        time.monotonic() - began,
        approval.ending(verdict, records.find(Approval, home.records))
        if verdict
        else f"stopped after {['open', *chain][-1]}",
    )
    if verdict and not (failed or options["here"]):
        use_leftover(home, trigger=options["trigger"])
    for stage, status in failed.items():  # the first one is the cause
        publisher.publish_failure(home, stage)
        return FINAL if status == FINAL else 1
    return 0


def use_leftover(home: Home, *, trigger: str) -> None:
    """Has extensions use the time that a night left, unless others of nights in a row are waiting."""
    if not trigger.startswith("nights "):
        for use in hooks.functions("leftover"):
            use(home)


def _close_unopened(home: Home) -> None:
    """Writes the night of this folder, which could not be opened, to the ledger."""
    publisher.publish_failure(home, "open")
    try:
        run(home, "predict")
    except NothingToDo as reason:
        log.info("%s", reason)
    except PipelineError as error:
        log.error("nothing is predicted: %s", sentence(error))
    try:
        run(home, "close")
    except PipelineError as error:
        log.error("the night that could not be opened is not in the ledger: %s", sentence(error))


def _rest_of_night(home: Home, chain: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Runs the stages after `open`, each with its words, and `close` whatever happened before.

    After one that failed, or had nothing to do, no other runs. Returns the exit status of each that failed.
    """
    ended_at, failed = "", {}
    with warm_parent.running(home.tonight), Path(os.devnull).open("w") as nowhere:
        for name, given in chain.items():
            stage = stages.STAGES[name]
            if ended_at and not stage.always:
                continue
            began = time.monotonic()
            words = [name, *given, *(["--wait"] if stage.waits else [])]
            ended = warm_parent.run(
                words, folder=home.tonight, libraries=stage.libraries, stdout=nowhere.fileno()
            )
            how = {0: "done", NothingToDo.exit_status: "nothing to do"}.get(ended.status, "failed")
            log.info("%-9s %6.1f s, %5.1f s of CPU  %s", name, time.monotonic() - began, ended.cpu_s, how)
            if ended.status:
                ended_at = ended_at or name
            if how == "failed":
                failed[name] = ended.status
    return failed


def nights(
    home: Home,
    *,
    first: date | None = None,
    last: date | None = None,
    missing: bool = False,
    set: list[str] | None = None,
) -> int:
    """Run the nights of all days that have data, in a row, oldest first.

    Args:
        home: whose nights these are
        first: first day
        last: last day
        missing: only days since the first night that no night brought in, between these if they are given
        set: override a key of params.yaml for these nights
    """
    if first and last and first > last:
        raise ParamsError(f"--first {first} is after --last {last}; exchange them")
    if not missing and not (first and last):
        raise ParamsError("name the days by --first and --last, or --missing")
    loaded = params.override(home.folder, set or [])
    source = loaded.source.make()
    offered = source.days()
    if missing:
        from daybreak.night.opening import zone_of

        newest = newest_over(zone_of(home, loaded), at=datetime.now(UTC))
        offered = missing_days(home, offered, newest=newest)
    days = [day for day in offered if (first or date.min) <= day <= (last or date.max)]
    if not days:
        kind = "no missing day" if missing else f"no day from {first} to {last}"
        raise NothingToDo(f"the source has {kind}")
    assignments = [word for assignment in set or [] for word in ("--set", assignment)]
    failures = []
    for number, day in enumerate(days, 1):
        log.info("night %d of %d: %s", number, len(days), day)
        words = ["night", "--day", str(day), "--trigger", f"nights {days[0]} to {days[-1]}", *assignments]
        if _exit_status(home, [sys.executable, "-P", "-m", "daybreak", *words]):
            failures.append(str(day))
    if failures:
        raise JobError(f"{len(failures)} of {len(days)} nights failed: {', '.join(failures)}; see above")
    return 0


def missing_days(home: Home, offered: Iterable[date], *, newest: date) -> list[date]:
    """Returns the offered days up to `newest` that no night brought in, since that of the first night.

    Raises NothingToDo before the first night.
    """
    batches = [entry.batch for entry in ledger.history(home) if entry.batch and not entry.rollback]
    if not batches:
        raise NothingToDo("no night has brought in a day yet, so none is missing; run one")
    had = {day for batch in batches for day in (batch.day, *batch.late_days)}
    begin = min(batch.day for batch in batches)
    return [day for day in offered if begin <= day <= newest and day not in had]


def _exit_status(home: Home, command: list[str]) -> int:
    """Runs a night as a process of its own in the home, and returns its exit status.

    A terminal's Ctrl-C reaches the night too, which then ends its jobs: `subprocess.run` would kill it after
    a quarter of a second, and a rented machine would go on costing money. A second Ctrl-C waits no longer.
    """
    night = subprocess.Popen(command, cwd=home.folder)
    try:
        return night.wait()
    except KeyboardInterrupt:
        night.wait()
        raise


def arguments(
    home: Home, function: Callable[..., Any], folder: Path, *, last: bool = False
) -> dict[str, Any]:
    """Returns the arguments that are not options, filled by their types from the folder of a night.

    `last` reads other params where those of the night cannot be read, so that it can be ended.
    """
    hints = typing.get_type_hints(function)
    kinds = {name: kind for name, kind in hints.items() if name != "return" and kind not in OPTION_TYPES}
    loaded = None
    if any(kind is not Home and not _is_record(kind) for kind in kinds.values()):
        loaded = home.last_params(folder) if last else home.params_of(folder)
    return {name: home if kind is Home else _fill(home, kind, loaded, folder) for name, kind in kinds.items()}


def run(home: Home, name: str, **given: Any) -> Record | None:
    """Runs a stage here, writes and returns its record, and then publishes what has been decided by now.

    Until it succeeds, `<stage>.error` in data/run holds why it failed, `<stage>.skipped` why it had nothing
    to do, and `<stage>.waits` what it waits for.
    """
    try:
        record = _run(home, name, given)
    except Exception:
        if name != "open":  # there is no night yet
            _publish(home, name, done=False)
        raise
    _publish(home, name, done=True)
    if name == "close":
        _tidy(home)
    if record and stages.STAGES[name].part == "answer" and "AIRFLOW_CTX_DAG_ID" not in os.environ:
        airflow_question.answer(home, records.read(Night, home.records), record)  # which Airflow brings else
    return record


def _run(home: Home, name: str, given: dict[str, Any]) -> Record | None:
    """Runs a stage, writes and returns its record, and marks how it ended."""
    stage = stages.STAGES[name]
    function = stage.function
    marked = "" if given.get("to") else name  # predictions by hand say nothing about the night's own
    ended = _timer(home, marked)
    try:
        if name in stages.OF_NIGHTS and not stage.always:
            _expect_undecided(home)
        record: Record | None = function(
            **arguments(home, function, home.tonight, last=name in ENDING), **given
        )
        if record is not None and name in stages.IN_NIGHT:
            disk.sync(home.tonight)  # what the record says is done
            records.write(record, home.records)
    except NotYet as pending:
        mark(home, marked, waits=str(pending))
        ended("waits", why=str(pending))
        if name in stages.CHAIN[1:]:
            _predict_in_time(home, name)
        raise
    except NothingToDo as reason:
        mark(home, marked, skipped=str(reason))
        ended("nothing to do", why=str(reason))
        raise
    except Exception as error:  # is raised again; `close` and the report read the mark
        _name_new_night(home, name, error)
        mark(home, marked, error=sentence(error))
        ended("failed", why=sentence(error))
        raise
    mark(home, marked)
    ended("done")
    return record


def _timer(home: Home, name: str) -> Callable[..., None]:
    """Returns what keeps, with how a call of a stage ended, when it began and ended."""
    began_at = clock.utc()

    def ended(how: Literal["done", "nothing to do", "failed", "waits"], *, why: str = "") -> None:
        opened = name == "open" and how == "done"  # which sets the night's clock
        if not opened and name not in stages.OF_NIGHTS:
            return
        if not records.path_of(Night, home.records).exists():
            return
        call = StageSpan(
            stage=name,
            began_at=records.read(Night, home.records).started_at if opened else began_at,
            last_call_at=began_at,
            ended_at=clock.utc(),
            end=how,
            why=why,
        )
        spans.add(call, home.tonight)

    return ended


def _predict_in_time(home: Home, waiting: str) -> None:
    """Writes the champion's predictions while a stage waits, once they would be late by waiting with it.

    After a failure it is tried again, but not at each look.
    """
    night = records.read(Night, home.records)
    if night.predict_from is None or clock.utc() < night.predict_from:
        return
    failure = home.records / "predict.error"
    if records.find(Predictions, home.records) or (home.records / "predict.skipped").exists():
        return
    if failure.exists() and time.time() - failure.stat().st_mtime < PREDICT_AGAIN_S:
        return
    try:
        run(home, "predict", ahead_of=waiting)
    except Exception as error:  # noqa: BLE001 - whatever it is, the stage that waits goes on
        log.warning("predictions are not written while %s waits: %s", waiting, sentence(error))


def predict_ahead(home: Home) -> None:
    """Writes the champion's predictions where they would be late by waiting for a person's answer.

    Raises NotYet before they are due, or after a failure, and NothingToDo where no person is asked.
    """
    clock.follow(home.tonight)
    night, verdict = records.read(Night, home.records), records.find(Verdict, home.records)
    if night.predict_from is None or verdict is None:
        raise NothingToDo("the night has no predictions to write, or no verdict yet")
    written = records.find(Predictions, home.records)
    if written and written.ahead_of == QUESTION:  # also for a worker that died before it could say so
        return
    _expect_undecided(home)
    try:
        approval.check_promotion(night, verdict, records.find(Approval, home.records), now=clock.utc())
    except NotYet as pending:
        _predict_in_time(home, QUESTION)
        if records.find(Predictions, home.records):
            return
        at = f"{night.predict_from:%Y-%m-%d %H:%M} UTC"
        raise NotYet(f"{pending}; the champion's predictions are written from {at}") from None
    raise NothingToDo("no person is asked any more, so that predictions wait for promote")


def _name_new_night(home: Home, stage: str, error: Exception) -> None:
    """Adds to an error that asks for an edit that the night keeps its own files, and how to open another."""
    if getattr(error, "exit_status", None) != FINAL or stage not in stages.OF_NIGHTS:
        return
    night = records.find(Night, home.records)
    if night and home.tonight == home.nights / night.id:
        error.args = (
            f"{error}; night {night.id} keeps the params.yaml, suite and code of its opening, so commit "
            f"an edit and open another: {ledger.new_night(home, night)}",
        )


def _expect_undecided(home: Home) -> None:
    """Raises NothingToDo where a person has stopped the night, or another has overtaken it."""
    if word := records.find(Stop, home.records):
        raise NothingToDo(f"the night was {approval.stopped(word)}; the champion stays")
    night = records.read(Night, home.records)
    if (overtaken := ledger.overtaken(home, night)) and not ledger.is_over(home, night):
        raise NothingToDo(
            f"night {night.id} {overtaken}; open a new night for its day with: "
            f"{ledger.new_night(home, night)}"
        )


def _tidy(home: Home) -> None:
    """Frees disk once the night is shown; a failure marks `close` as failed, and `close` may be repeated."""
    from daybreak.night import closing

    try:
        alarm = closing.tidy(**arguments(home, closing.tidy, home.tonight, last=True))
    except Exception as error:
        mark(home, "close", error=sentence(error))
        raise
    if alarm:
        publisher.publish_alarm(home, alarm)


def _publish(home: Home, stage: str, *, done: bool) -> None:
    """Shows what has been decided by now, also by stages before; `done` says that this stage has ended."""
    if stage in stages.IN_NIGHT and records.path_of(Night, home.records).exists():
        if done if stage in ("prepare", "evaluate") else stage == "train":
            publisher.publish_cards(home, stage)
        if stage == "close":
            publisher.publish_closed(home)
        elif not ledger.failed_to_open(home.tonight):  # that is shown once it is closed
            publisher.publish_night(home, home.tonight)
    if stage in ("promote", "predict") and done:
        publisher.publish_ledger(home)
    if stage == "watch" or (stage == "rollback" and done):
        publisher.publish_home(home)
    if stage in ("promote", "rollback") and not done and home.release_journal.path.exists():
        publisher.publish_ledger(home, done=False)  # which may have it, though a target failed since
        publisher.write_now(home)
    if stage == "open":
        publisher.publish_disk(home)


def written_by(name: str) -> type[Record] | None:
    """Returns the kind of record that a stage writes; None where it writes none."""
    kind = typing.get_type_hints(stages.STAGES[name].function)["return"]
    if isinstance(kind, types.UnionType):  # `Refit | None`
        kind = kind.__args__[0]
    return kind if _is_record(kind) else None


def mark(home: Home, name: str, **marks: str) -> None:
    """Leaves the given ones of `<stage>.error`, `.skipped` and `.waits` in the night's folder, no others."""
    if name not in stages.OF_NIGHTS or not home.records.exists():
        return  # no stage of a night here: a person's wrong answer is not a failure of it
    for ending in ("error", "skipped", "waits"):
        path = home.records / f"{name}.{ending}"
        try:
            if ending in marks:
                records.replace_text(path, marks[ending] + "\n")
            else:
                path.unlink(missing_ok=True)
        except OSError as error:  # as on a full disk: what the stage says matters more
            log.warning("%s is not marked in %s: %s", name, path, error)


def _fill(home: Home, kind: Any, loaded: Params | None, folder: Path) -> Any:
    if kind == LiveJudge | None:
        assert loaded is not None
        return judge_of(loaded.gate.scores)
    if isinstance(kind, types.UnionType):  # `Champion | None`: None where the file is missing
        return records.find(kind.__args__[0], folder / records.RUN)
    if _is_record(kind):
        return records.read(kind, folder / records.RUN)
    assert loaded is not None
    if issubclass(kind, Sections):
        return loaded.only(kind)
    if issubclass(kind, Section):
        sections = (getattr(loaded, name) for name in Params.model_fields)
        return next(section for section in sections if type(section) is kind)
    plugs = {
        Source: loaded.source,
        Workload: loaded.workload,
        Backend: loaded.backend,
    }
    return plugs[kind].make(home)


def _is_record(kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        kind = kind.__args__[0]
    return isinstance(kind, type) and issubclass(kind, Record)
