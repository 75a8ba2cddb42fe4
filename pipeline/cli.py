"""`python -m pipeline`: one way to run a stage, for a person, for DVC and for Airflow.

Exit status: 0 done; 1 failed; 75 not yet, call again; 99 nothing to do.
"""

import argparse
import contextlib
import inspect
import json
import logging
import os
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from pipeline import stages
from pipeline.commands import COMMANDS
from pipeline.contract import older, params, records
from pipeline.contract.errors import JobError, NothingToDo, NotYet, ParamsError, PipelineError
from pipeline.contract.records import Night, Verdict
from pipeline.contract.source_code import FRAME, frame_digest, running_digest
from pipeline.contract.table import Table
from pipeline.report import notifier
from pipeline.storage import ledger, snapshots
from pipeline.warm_parent import WarmParent

log = logging.getLogger("pipeline")

NIGHT_HELP = "the night in whose folder the stage runs; the current folder if left out"
CALL_AGAIN_S = 2.0  # between two calls of a stage that answers 75, on the command line


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("great_expectations", "alembic", "mlflow", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # our own errors say when a retry gives up
    options = vars(parser(words).parse_args(words))
    command: Callable[..., int] = options.pop("command")
    try:
        return command(**options)
    except (NotYet, NothingToDo) as ended:
        log.info("%s", ended)
        return ended.exit_status
    except PipelineError as error:
        log.error("%s: %s", type(error).__name__, stages.sentence(error))
        return error.exit_status
    except BrokenPipeError:  # the reader has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        log.error("%s", stages.sentence(error))
        return 1
    except KeyboardInterrupt:
        return 130


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the parser of all commands, with the options of the stage that `words` begins with, if any."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline", description=sys.modules["pipeline"].__doc__, epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, stage in stages.STAGES.items():
        sub = commands.add_parser(name, help=stage.help, description=stage.help)
        sub.set_defaults(command=stage_command, name=name)
        if words[:1] == [name]:  # only that stage is imported
            _add_options(sub, stage.function)
        if name in stages.IN_NIGHT[1:]:
            sub.add_argument("--night", dest="in_night", default="", metavar="ID", help=NIGHT_HELP)
        if stage.waits:
            sub.add_argument("--wait", action="store_true", help="call it again until it is done")
        if stage.explain:
            sub.add_argument("--explain", action="store_true", help="put the record into words")
    functions: tuple[Callable[..., int], ...] = (night, nights, *COMMANDS)
    for function in functions:
        about = (function.__doc__ or "").splitlines()[0]
        sub = commands.add_parser(_word(function.__name__), help=about, description=about)
        sub.set_defaults(command=function)
        _add_words(sub, function)
        _add_options(sub, function)
    return parser


def _add_options(parser: argparse.ArgumentParser, function: Callable[..., object]) -> None:
    """Adds one option per keyword-only scalar; its help is its line of the docstring's Args section."""
    about = _args_section(function.__doc__ or "")
    for name, parameter in stages.options(function).items():
        kind, flag, default = parameter.annotation, f"--{_word(name)}", parameter.default
        kwargs: dict[str, typing.Any] = {"dest": name, "default": default, "help": about.get(name, "")}
        if kind is bool:
            kwargs["action"] = "store_true"
        elif kind == (list[str] | None):
            kwargs.update(action="append", metavar="KEY=VALUE")
        else:
            kwargs["type"] = _date if kind in (date, date | None) else kind
        if default is parameter.empty:
            kwargs["required"] = True
            del kwargs["default"]
        parser.add_argument(flag, **kwargs)


def _word(name: str) -> str:
    """Returns a name of Python as a word of the command line; `from_` is `from`, a keyword of Python."""
    return name.rstrip("_").replace("_", "-")


def _add_words(parser: argparse.ArgumentParser, function: Callable[..., object]) -> None:
    """Adds the words that have no flag: parameters that are not keyword-only."""
    about = _args_section(function.__doc__ or "")
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            kind = typing.get_type_hints(function)[name]
            parser.add_argument(name, type=kind, metavar=name.upper(), help=about.get(name, ""))


def _args_section(doc: str) -> dict[str, str]:
    lines = doc.partition("Args:")[2].splitlines()
    pairs = (line.strip().partition(": ") for line in lines if ": " in line)
    return {name: text for name, _, text in pairs}


def _date(text: str) -> date | None:
    if not text:
        return None  # a form field that was left empty
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date (write 2011-09-30)") from None


def stage_command(
    *, name: str, in_night: str = "", wait: bool = False, explain: bool = False, **given: object
) -> int:
    """Runs one stage, unless DVC has what it would write; `dvc repro` calls this as well."""
    if in_night:
        folder = ledger.home() / "nights" / in_night
        if not folder.exists():
            raise ParamsError(f"there is no night {in_night} in {folder.parent}; open it first")
        words = [*sys.argv[1:], "--night", ""]  # the last --night counts
        return _call(words, folder=folder)  # the night's own code, not this checkout's
    _step_in(name)
    stage, inside_dvc = stages.STAGES[name], os.environ.get("DVC_STAGE") == name
    by_dvc = bool(stage.dvc) and not inside_dvc and name in snapshots.stages()
    if by_dvc and stage.dvc == "cached" and _is_current(name):
        kind = stages.written_by(name)
        record = records.read(kind) if kind else None
    else:
        record = _until_done(name, given) if wait else stages.run(name, **given)
        snapshots.make_folders(name)
        if by_dvc:
            snapshots.record(name)
    if record is None or inside_dvc:
        return 0
    if stage.explain:
        function = stages.imported(stage.explain)
        text = function(**stages.arguments(function))
        if explain:
            print(text, flush=True)
            return 0
        log.info("%s", text)  # the task log shows what --explain does
    print(json.dumps(json.loads(records.dumps(record))), flush=True)
    return 0


def _step_in(name: str) -> None:
    """Raises ParamsError outside of a night, and writes digests of what lies elsewhere for DVC."""
    if name in stages.IN_NIGHT[1:] and not records.path_of(Night).exists():
        nights = ledger.home() / "nights"
        raise ParamsError(
            f"{Path.cwd()} is not the folder of a night; name one of {nights} by --night, "
            f"or open one with: python -m pipeline open"
        )
    if name not in stages.CHAIN[1:]:
        return
    from pipeline.machines.pricelist import REFRESHED

    prices = ledger.home() / REFRESHED
    outside = {stages.PRICES: records.digest(prices) if prices.exists() else ""}
    if not Path(FRAME).is_dir():  # Daybreak is installed elsewhere
        outside[stages.FRAME] = frame_digest()
    with contextlib.suppress(ParamsError):  # the stage that makes the workload reports it
        outside[stages.WORKLOAD] = running_digest(params.load().workload.use)
    for path, digest in outside.items():
        if not Path(path).exists() or Path(path).read_text() != f"{digest}\n":
            records.replace_text(Path(path), f"{digest}\n")
    if Table in typing.get_type_hints(stages.STAGES[name].function).values():
        _write_table(name)


def _write_table(stage: str) -> None:
    """Writes the table of the workload, unless it is there and newer than the workload's source."""
    written, source = records.path_of(Table), Path(stages.WORKLOAD)
    if written.exists() and source.exists() and written.stat().st_mtime_ns > source.stat().st_mtime_ns:
        return
    try:
        plug = params.load().workload
        table = getattr(older.workload(plug.make()), "table", None)
        if not isinstance(table, Table):
            raise ParamsError(
                f"{plug.use} has no table; declare `table = Table(...)` in the class (docs/own-data.md)"
            )
    except PipelineError as error:
        stages.mark(stage, error=stages.sentence(error))
        raise
    records.write(table)


def _is_current(name: str) -> bool:
    try:
        current = snapshots.is_current(name)
    except PipelineError as error:
        stages.mark(name, error=stages.sentence(error))
        raise
    if current:
        stages.mark(name)
    return current


def _until_done(name: str, given: dict[str, object]) -> records.Record | None:
    """Runs the stage again until it is done; shows a bar on a terminal, else logs a line each time."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = BarColumn(bar_width=30), TextColumn("{task.description}", markup=False)
    console, last = Console(stderr=True), ""
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        bar = shown.add_task("", total=1.0, visible=False)
        while True:
            try:
                return stages.run(name, **given)
            except NotYet as pending:
                if str(pending) == last:
                    pass
                elif pending.share is None or not console.is_terminal:
                    log.info("%s", pending)
                else:
                    shown.update(bar, completed=pending.share, description=str(pending), visible=True)
                last = str(pending)
                time.sleep(CALL_AGAIN_S)


def night(
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
        night: name of the night; the day if left out
        day: newest day of data to use; the source's newest if left out
        set: override a key of params.yaml for this night
        trigger: who started it, and why; kept in the ledger
        until: the last stage to run
        here: run in this folder, uncommitted changes and all
    """
    if until not in stages.CHAIN:
        raise ParamsError(f"--until {until} is not a stage of a night; name one of {', '.join(stages.CHAIN)}")
    opened = stages.run("open", night=night, day=day, set=set, trigger=trigger, here=here)
    assert isinstance(opened, Night)
    snapshots.record("open")
    began = time.monotonic()
    log.info("night %s, day %s, train until %s UTC, budget $%.2f", opened.id, opened.day,
             f"{opened.train_until:%Y-%m-%d %H:%M}", opened.budget_usd)  # fmt: skip
    try:
        status = _rest_of_night(until)
    except KeyboardInterrupt:
        from pipeline.jobs import launcher

        launcher.end_jobs(params.load().backend.make())
        again = f"python -m pipeline night --night {opened.id}"
        log.error("night %s is stopped; go on with: %s", opened.id, again)
        return 130
    verdict = records.find(Verdict)
    log.info("night %s took %.0f s: %s", opened.id, time.monotonic() - began,
             f"{verdict.action}: {verdict.reason}" if verdict else f"stopped after {until}")  # fmt: skip
    if status:
        notifier.failed(opened, verdict.reason if verdict else "see its log")
    return status


def _rest_of_night(until: str) -> int:
    """Runs the stages after `open`, and `close` whatever happened before; returns the exit status."""
    failed = 0
    with WarmParent() as parent:
        for name in stages.CHAIN[1 : stages.CHAIN.index(until) + 1]:
            stage = stages.STAGES[name]
            if failed and not stage.always:
                continue
            began = time.monotonic()
            words = [name, "--wait"] if stage.waits else [name]
            ended = parent.run(words, folder=Path.cwd(), libraries=stage.libraries)
            how = {0: "done", NothingToDo.exit_status: "nothing to do"}.get(ended.status, "failed")
            log.info("%-9s %6.1f s, %5.1f s of CPU  %s", name, time.monotonic() - began, ended.cpu_s, how)
            failed = failed or ended.status
    return 1 if failed not in (0, NothingToDo.exit_status) else 0


def _call(words: list[str], *, folder: Path) -> int:
    """Runs `python -m pipeline` in another folder, with the code that is there; returns its exit status."""
    command = [sys.executable, "-m", "pipeline", *words]
    return subprocess.run(command, cwd=folder, check=False).returncode


def nights(*, first: date, last: date, set: list[str] | None = None) -> int:
    """Run the nights of all days that have data, in a row.

    Args:
        first: first day
        last: last day
        set: override a key of params.yaml for these nights
    """
    if first > last:
        raise ParamsError(f"--first {first} is after --last {last}; exchange them")
    source = params.override(ledger.home(), set or []).source.make()
    days = [day for day in source.days() if first <= day <= last]
    if not days:
        raise NothingToDo(f"the source has no day from {first} to {last}")
    assignments = [word for assignment in set or [] for word in ("--set", assignment)]
    failures = []
    for number, day in enumerate(days, 1):
        log.info("night %d of %d: %s", number, len(days), day)
        words = ["night", "--day", str(day), "--trigger", f"nights {first} to {last}", *assignments]
        if _call(words, folder=ledger.home()):
            failures.append(str(day))
    if failures:
        raise JobError(f"{len(failures)} of {len(days)} nights failed: {', '.join(failures)}; see above")
    return 0
