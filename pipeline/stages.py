"""Lists the stages, and fills the arguments of each: the signature is the contract.

A stage is a plain function. Its arguments are filled by their types: a record from its file, a
section from params.yaml, a protocol from its plug; keyword-only scalars are options of the command
line. What it returns is written as a record. The functions are named, not imported, so that a
stage loads only what it needs.
"""

import errno
import importlib
import inspect
import logging
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from pipeline.contract import params, records
from pipeline.contract.backend import Backend
from pipeline.contract.data_source import Source
from pipeline.contract.errors import NothingToDo, NotYet, PipelineError, without_password
from pipeline.contract.params import Params, Section, Sections
from pipeline.contract.records import Record
from pipeline.contract.workload import Workload

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage by the import path of its function, and all that is special about it."""

    path: str
    help: str
    part: Literal["night", "answer", "any time"] = "night"  # answer: given by a person before `promote`
    # cached: DVC runs the stage where anything that it reads has changed; frozen: the stage has effects
    # outside of its folder, so each call runs it, and DVC keeps what it wrote; "": DVC does nothing
    dvc: Literal["", "cached", "frozen"] = ""
    reads: tuple[str, ...] = ()  # beside records, in the folder of the night
    writes: tuple[str, ...] = ()  # beside its record
    persists: tuple[str, ...] = ()  # those of `writes` that are added to, not replaced
    waits: bool = False  # answers 75 until it is done
    libraries: tuple[str, ...] = ()  # long to import, that no stage before it names (pipeline/warm_parent.py)
    explain: str = ""  # import path of a function that puts its record into words
    always: bool = False  # runs however the stages before it ended

    @property
    def function(self) -> Callable[..., Record | None]:
        """Returns the function, which is imported now."""
        function: Callable[..., Record | None] = imported(self.path)
        return function


WORKLOAD = "data/run/workload.txt"  # digest of the code that prepares its rows, wherever that is
FRAME = "data/run/daybreak.txt"  # digest of Daybreak's code, where it is installed outside of the home
PRICES = "data/run/prices.txt"  # digest of the prices that were read last, which belong to no night
STAGES = {
    "open": Stage(
        path="pipeline.night:open", help="fix the deadline, lay out the folder of the night",
        dvc="frozen", writes=("data/champion",), persists=("data/champion",),
    ),
    "ingest": Stage(
        path="pipeline.data.ingest:ingest", help="bring in the day, and late days",
        dvc="frozen", writes=("data/raw",), persists=("data/raw",), libraries=(
            "pandas", "pyarrow.parquet", "pydantic", "ruamel.yaml", "tenacity", "psutil", "torch",
            "scmrepo.git", "dvc.repo", "dvc_render",
        ),
    ),
    "validate": Stage(
        path="pipeline.data.validator:validate", help="judge the rows, quarantine the bad",
        dvc="cached", reads=("data/expectations.yaml", "data/raw"), writes=("data/clean", "data/quarantine"),
        persists=("data/clean", "data/quarantine"),
        libraries=("duckdb", "scipy.stats", "great_expectations"),
    ),
    "prepare": Stage(
        path="pipeline.data.prepare:prepare", help="make arrays to train from",
        dvc="cached", reads=(WORKLOAD, "data/clean"), writes=("data/arrays",), persists=("data/arrays",),
        libraries=("ibis.backends.duckdb",),
    ),
    "profile": Stage(
        path="pipeline.profiling.profile_stage:profile", help="measure what binds the training",
        dvc="cached", reads=(WORKLOAD, "data/arrays"), explain="pipeline.profiling.explain:explain",
        libraries=("safetensors.torch",),
    ),
    "plan": Stage(
        path="pipeline.planning.plan_stage:plan", help="choose the machine that meets the deadline",
        dvc="cached", reads=(WORKLOAD, PRICES, "data/champion"),
        explain="pipeline.planning.rationale:rationale",
    ),
    "train": Stage(
        path="pipeline.jobs.launcher:train", help="submit, attach to, or collect the job", waits=True,
        dvc="frozen", reads=(WORKLOAD, "data/arrays", "data/champion"), writes=("data/run/model",),
    ),
    "evaluate": Stage(
        path="pipeline.evaluation.evaluator:evaluate", help="score the held-out samples",
        dvc="cached", reads=(WORKLOAD, "data/arrays", "data/run/model", "data/champion"),
        writes=("data/run/scores.npy",),
    ),
    "register": Stage(
        path="pipeline.registry.register:register", help="make it a version in MLflow",
        libraries=(
            "mlflow", "mlflow.store.tracking.sqlalchemy_store",
            "mlflow.store.model_registry.sqlalchemy_store", "alembic.command", "rich.progress",
        ),
    ),
    "gate": Stage(
        path="pipeline.gate.judge:gate", help="decide: promote, reject, wait, no data",
        reads=("data/run/scores.npy",), waits=True,
    ),
    "promote": Stage(
        path="pipeline.rollout.promote:promote", help="let the promoted version serve", waits=True
    ),
    "close": Stage(path="pipeline.night:close", help="write the night to the ledger", always=True),
    "approve": Stage(
        path="pipeline.gate.review:approve", help="answer a verdict that waits for a person", part="answer"
    ),
    "watch": Stage(
        path="pipeline.gate.watch:watch", help="check the champion; run it hourly", part="any time"
    ),
    "reap": Stage(
        path="pipeline.jobs.reaper:reap", help="end jobs that no open night needs; hourly", part="any time"
    ),
    "rollback": Stage(
        path="pipeline.rollout.rollback:rollback", help="let an earlier version serve again", part="any time"
    ),
}  # fmt: skip
CHAIN = tuple(name for name, stage in STAGES.items() if stage.part == "night")  # in order
IN_NIGHT = tuple(name for name, stage in STAGES.items() if stage.part != "any time")

OPTION_TYPES: tuple[Any, ...] = (str, int, float, bool, date, date | None, list[str] | None)


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the parameters that are options of the command line: keyword-only scalars."""
    hints = typing.get_type_hints(function)
    return {
        name: parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and hints[name] in OPTION_TYPES
    }


def arguments(function: Callable[..., Any], folder: Path = Path()) -> dict[str, Any]:
    """Returns the other arguments, filled by their types from the folder of a night."""
    hints = typing.get_type_hints(function)
    wanted = set(inspect.signature(function).parameters) - set(options(function))
    kinds = {name: hints[name] for name in inspect.signature(function).parameters if name in wanted}
    loaded = params.load(folder) if any(not _is_record(kind) for kind in kinds.values()) else None
    return {name: _fill(kind, loaded, folder) for name, kind in kinds.items()}


def run(name: str, **given: Any) -> Record | None:
    """Runs a stage here, and writes and returns its record; data/run says how it ended until it succeeds.

    `<stage>.error` holds the sentence of a failure, `<stage>.skipped` why there was nothing to do.
    """
    function = STAGES[name].function
    try:
        record = function(**arguments(function), **given)
        if record is not None and name in IN_NIGHT:
            records.write(record)
    except NotYet:
        raise
    except NothingToDo as reason:
        mark(name, skipped=str(reason))
        raise
    except Exception as error:  # is raised again; `close` and the report read the mark
        mark(name, error=sentence(error))
        raise
    mark(name)
    return record


def sentence(error: Exception) -> str:
    """Returns an exception as a sentence; its class is named only where the text is not our own."""
    if isinstance(error, PipelineError):
        return without_password(str(error))
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error.filename or Path.cwd()}); free some space and run this again"
    return without_password(f"{type(error).__name__}: {error}")


def written_by(name: str) -> type[Record] | None:
    """Returns the kind of record that a stage writes; None where it writes none."""
    kind = typing.get_type_hints(STAGES[name].function)["return"]
    return kind if _is_record(kind) else None


def mark(name: str, **marks: str) -> None:
    """Leaves the given ones of `<stage>.error` and `<stage>.skipped` in the night's folder, no others."""
    if name not in CHAIN or not records.RUN.exists():
        return  # no night here, or no stage of it: a person's wrong answer is not a failure of the night
    for ending in ("error", "skipped"):
        path = records.RUN / f"{name}.{ending}"
        if ending in marks:
            records.replace_text(path, marks[ending] + "\n")
        else:
            path.unlink(missing_ok=True)


def imported(path: str) -> Any:
    """Returns what an import path `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _fill(kind: Any, loaded: Params | None, folder: Path) -> Any:
    if isinstance(kind, types.UnionType):  # `Champion | None`: None where the file is missing
        return records.find(kind.__args__[0], folder / records.RUN)
    if _is_record(kind):
        return records.read(kind, folder / records.RUN)
    assert loaded is not None
    if issubclass(kind, Sections):
        return kind.model_construct(**{name: getattr(loaded, name) for name in kind.model_fields})
    if issubclass(kind, Section):
        sections = (getattr(loaded, name) for name in Params.model_fields)
        return next(section for section in sections if type(section) is kind)
    plugs: dict[Any, params.Plug] = {
        Source: loaded.source, Workload: loaded.workload, Backend: loaded.backend,
    }  # fmt: skip
    return plugs[kind].make()


def _is_record(kind: Any) -> bool:
    if isinstance(kind, types.UnionType):
        kind = kind.__args__[0]
    return isinstance(kind, type) and issubclass(kind, Record)
