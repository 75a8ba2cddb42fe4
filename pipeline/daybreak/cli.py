# PYTHON_ARGCOMPLETE_OK
"""`daybreak`: one way to run a stage, for a person, for DVC and for Airflow.

Exit status: 0 done; 1 failed; 75 not yet, call again; 78 failed, and fails again until something is changed;
99 nothing to do.
"""

# A command's imports happen when it is called. Options are read from the source of the function, so that
# help, and the call of a stage in another folder, import nothing.

import argparse
import ast
import difflib
import logging
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path

from daybreak import hooks, stages, warm_parent
from daybreak.contract import code_path, environment, extras, formats
from daybreak.contract.errors import FINAL, NothingToDo, NotYet, ParamsError, PipelineError, sentence
from daybreak.storage.home import VARIABLE, Home

log = logging.getLogger("daybreak")

NIGHTS, COMMANDS = "daybreak.runner", "daybreak.commands"  # modules whose functions are commands
WHOLE = ("night", "nights", "adopt")  # those of the first
HOME_HELP = "the home, as $DAYBREAK_HOME; of the checkout around the current folder if left out"
NIGHT_HELP = "the night in whose folder the stage runs; the current folder if left out"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    words = list(sys.argv[1:] if argv is None else argv)
    _show_messages()
    environment.forget_repository(os.environ)
    environment.spare_loopback(os.environ)
    words = _take_home(words)
    parsing = parser(words)
    if why := _refusal(words):
        parsing.error(why)
    options = vars(parsing.parse_args(words))
    try:
        return _run(words, **options)
    except (NotYet, NothingToDo) as ended:
        log.info("%s", ended)
        return ended.exit_status
    except PipelineError as error:
        log.error("%s: %s", type(error).__name__, sentence(error))
        return error.exit_status
    except BrokenPipeError:  # the reader has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # a library's own, for one of the system's
        from daybreak.contract import disk

        lacks = extras.missing(error)
        if not lacks and not isinstance(error, OSError) and not disk.fault(error):
            raise
        log.error("%s", sentence(error))
        return FINAL if lacks else 1


def _refusal(words: Sequence[str]) -> str:
    """Returns why no command takes these words, "" where the parser of a command may say."""
    for word in words:
        if any("\ud800" <= letter <= "\udfff" for letter in word):  # a byte that Python could not decode
            return f"{word!a} is not UTF-8, so no record could keep it; write it in UTF-8"
    if words and not words[0].startswith("-") and words[0] not in _commands():
        meant = difflib.get_close_matches(words[0], _commands(), n=1)
        hint = f"did you mean {meant[0]}?" if meant else "see daybreak --help"
        return f"{words[0]} is not a command; {hint}"
    return ""


def _show_messages() -> None:
    """Has messages of ours shown, and of libraries those that matter."""
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(_Plain("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[shown])
    for noisy in ("great_expectations", "alembic", "mlflow", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # raises what it logs
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # our own errors say when a retry gives up


def _complete() -> None:
    """Tells the shell that asks how its line may go on, and exits."""
    import argcomplete

    def nights(action: argparse.Action, **_: typing.Any) -> list[str]:
        folder = Home.here().nights
        is_night = action.dest in ("night", "in_night") and folder.exists()
        return [path.name for path in folder.iterdir()] if is_night else []

    typed = os.environ["COMP_LINE"].split()[int(os.environ["_ARGCOMPLETE"]) :]
    argcomplete.autocomplete(parser(typed), default_completer=nights)  # type: ignore[arg-type]


def _take_home(words: list[str]) -> list[str]:
    """Takes `--home FOLDER` out of a command line, the home of this process and all it starts."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--home")
    taken, left = own.parse_known_args(words)
    if taken.home:
        os.environ[VARIABLE] = str(Path(taken.home).resolve())
    return left


def _night_of(home: Home, given: str, *, may_be_new: bool = False) -> str:
    """Returns the id of the night named by an id, a short id or a day; the text itself for a new night.

    A day stands for the night of that day which was opened last.
    """
    if (home.nights / given).exists():
        return given
    if re.fullmatch(r"\d{4}-\d\d-\d\d", given) and not may_be_new:
        return _night_of_day(home, given)
    if not re.fullmatch(formats.SHORT_ID, given):
        return given
    from daybreak.storage import ledger

    ids = {path.name for path in home.nights.glob("*")}
    ids |= {commit.night for commit in ledger.commits(home)}
    meant = sorted(night for night in ids if formats.short_id(night) == given)
    if len(meant) > 1:
        raise ParamsError(f"--night {given} may be one of {', '.join(meant)}; write it whole")
    return meant[0] if meant else given


def _night_of_day(home: Home, day: str) -> str:
    """Returns the id of the night of a day, the text itself where there is none."""
    from daybreak.contract import records
    from daybreak.contract.record_types import Night
    from daybreak.storage import ledger

    nights = {entry.night.id: entry.night for entry in ledger.history(home) if not entry.rollback}
    for path in home.nights.glob("*"):
        if night := records.find(Night, path / records.RUN):
            nights[night.id] = night
    of_day = [night for night in nights.values() if str(night.day) == day]
    meant = max(of_day, key=lambda night: night.started_at).id if of_day else day
    if day not in nights and len(of_day) > 1:
        log.info("of %d nights of %s, %s was opened last", len(of_day), day, meant)
    return day if day in nights else meant


class _Plain(logging.Formatter):
    """Leaves out what would steer a terminal: a message may hold what data or people say."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text)


def _run(words: list[str], *, command: str, in_night: str = "", **options: typing.Any) -> int:
    """Runs a command here; runs a stage in the night's folder, in a fork of the warm parent if there is one.

    A night's folder has its own code, which runs instead of this checkout's.
    """
    folder, (module, _, name) = Path(), command.partition(":")
    if any(parameter.arg == "home" for parameter in _functions(module)[name].args.args):
        home = options["home"] = Home.here()
        if options.get("night"):
            may_be_new = options.get("name") == "open" or command in (f"{NIGHTS}:night", f"{NIGHTS}:adopt")
            options["night"] = _night_of(home, options["night"], may_be_new=may_be_new)
    if in_night:
        words = [*words, "--night", ""]  # the last one counts
        in_night = _night_of(home, in_night)
        folder = home.nights / in_night
        if not folder.exists():
            raise ParamsError(f"there is no night {in_night} in {folder.parent}; open it first")
    stage = stages.STAGES.get(options.get("name", ""))
    if stage and (folder / warm_parent.NOTE).exists() and not os.environ.get(warm_parent.ASKED):
        return warm_parent.run(words, folder=folder, libraries=stage.libraries).status
    if in_night:
        call, own = [sys.executable, "-P", "-m", "daybreak", *words], code_path.environment(folder)
        return subprocess.run(call, cwd=folder, env={**os.environ, **own}, check=False).returncode
    status: int = hooks.imported(command)(**options)
    return status


def parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Returns the parser of all commands, with the options of the stage that `words` begins with, if any."""
    parser = argparse.ArgumentParser(
        prog="daybreak",
        description=sys.modules["daybreak"].__doc__,
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # It is taken out before (`_take_home`).
    parser.add_argument("--home", metavar="FOLDER", default=argparse.SUPPRESS, help=HOME_HELP)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, stage in stages.STAGES.items():
        sub = commands.add_parser(name, help=stage.help, description=stage.help)
        sub.set_defaults(command=f"{NIGHTS}:stage", name=name)
        if words[:1] == [name]:
            module, _, called = stage.path.partition(":")
            _add_options(sub, _functions(module)[called])
        if name in stages.IN_NIGHT[1:]:
            sub.add_argument("--night", dest="in_night", default="", metavar="ID", help=NIGHT_HELP)
        if stage.waits:
            sub.add_argument("--wait", action="store_true", help="call it again until it is done")
        if stage.explain:
            sub.add_argument("--explain", action="store_true", help="put the record into words")
    nights = {f"{NIGHTS}:{name}": _functions(NIGHTS)[name] for name in WHOLE}
    for path, function in (nights | _others()).items():
        about = (ast.get_docstring(function) or "").splitlines()[0]
        sub = commands.add_parser(_word(function.name), help=about, description=about)
        sub.set_defaults(command=path)
        _add_options(sub, function)
    return parser


def _commands() -> list[str]:
    """Returns the words that a command line may begin with."""
    others = (_word(function.name) for function in _others().values())
    return [*stages.STAGES, *WHOLE, *others]


def _others() -> dict[str, ast.FunctionDef]:
    """Returns the functions of the commands that are neither stages nor nights, by import path."""
    return {
        f"{module}:{name}": function
        for module in (COMMANDS, *hooks.paths("commands"))
        for name, function in _functions(module).items()
    }


@cache
def _functions(module: str) -> dict[str, ast.FunctionDef]:
    """Returns the public functions in the source of one of our modules."""
    folder = hooks.FOLDER.parent if module in hooks.paths("commands") else Path(__file__).parent
    parsed = ast.parse(folder.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()).body
    return {n.name: n for n in parsed if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}


def options(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, str, ast.expr | None]]:
    """Yields the parameters that are options, keyword-only scalars: each with its type and default."""
    for parameter, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
        if kind in TYPES or kind in ("bool", "list[str] | None"):
            yield parameter, kind, default


def _add_options(parser: argparse.ArgumentParser, function: ast.FunctionDef) -> None:
    """Adds an option for each keyword-only scalar, with help from the docstring's Args section.

    Other parameters are words without a flag in a command; in a stage they are filled (daybreak/runner.py).
    """
    about = _args_section(ast.get_docstring(function) or "")
    for parameter in function.args.args:
        kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
        if kind in TYPES:
            name = parameter.arg
            parser.add_argument(name, type=TYPES[kind], metavar=name.upper(), help=about.get(name, ""))
    for parameter, kind, default in options(function):
        name = parameter.arg
        kwargs: dict[str, typing.Any] = {"dest": name, "help": about.get(name, "")}
        if kind == "bool":
            kwargs["action"] = "store_true"
        elif kind in TYPES:
            kwargs.update(type=TYPES[kind], metavar=name.rstrip("_").upper())
        else:
            kwargs.update(action="append", metavar="KEY=VALUE" if name == "set" else name.upper())
        if default is None:
            kwargs["required"] = True
        else:
            kwargs["default"] = ast.literal_eval(default)
        parser.add_argument(f"--{_word(name)}", **kwargs)


def _word(name: str) -> str:
    """Returns a name of Python as a word of the command line; `from_` is `from`, a keyword of Python."""
    return name.rstrip("_").replace("_", "-")


def _args_section(doc: str) -> dict[str, str]:
    """Returns what the docstring says of each argument; a line that is indented further goes on with it."""
    about: dict[str, str] = {}
    name = ""
    for line in doc.partition("Args:\n")[2].splitlines():
        if not line.startswith("    "):  # the end of the section
            break
        if line.startswith("        "):
            about[name] += f" {line.strip()}"
        else:
            name, _, text = line.strip().partition(": ")
            about[name] = text
    return about


def _date(text: str) -> date | None:
    if not text:
        return None  # a form field that was left empty
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date (write 2011-09-30)") from None


TYPES: dict[str, typing.Callable[[str], typing.Any]] = {
    "str": str,
    "int | str": str,
    "int": int,
    "float": float,
    "date": _date,
    "date | None": _date,
}
