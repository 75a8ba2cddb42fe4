"""Lists the stages, and all that is special about each; its signature says the rest (daybreak/runner.py).

The functions are named, not imported, so that a stage loads only what it needs and help loads none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from daybreak.hooks import imported

if TYPE_CHECKING:
    from daybreak.contract.record_parts import Record


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage by the import path of its function, and all that is special about it."""

    path: str
    help: str
    # adoption: in the place of all from `profile` to `refit`; answer: a person's answer to a running night
    part: Literal["night", "adoption", "answer", "any time"] = "night"
    # cached: DVC runs the stage if an input has changed; frozen: the stage has effects outside of its folder,
    # so each call runs it, and DVC keeps the outputs; "": DVC does nothing
    dvc: Literal["", "cached", "frozen"] = ""
    reads: tuple[str, ...] = ()  # beside records, in the folder of the night
    writes: tuple[str, ...] = ()  # beside its record
    persists: tuple[str, ...] = ()  # those of `writes` that are added to, not replaced
    waits: bool = False  # answers 75 until it is done
    libraries: tuple[str, ...] = ()  # long to import, that no stage before it names (daybreak/warm_parent.py)
    explain: str = ""  # import path of a function that puts its record into words
    always: bool = False  # runs however the stages before it ended

    @property
    def function(self) -> "Callable[..., Record | None]":
        """Returns the function, which is imported now."""
        return imported(self.path)  # type: ignore[no-any-return]


WORKLOAD = "data/run/workload.txt"  # digest of the code that prepares its rows, wherever that is
FRAME = "data/run/daybreak.txt"  # digest of Daybreak's code, where it is installed outside of the home
EXTENSIONS = (
    "data/run/extensions.txt"  # digest of the extensions, which a stage reaches by hooks, not imports
)
PRICES = "data/run/prices.txt"  # digest of the prices that were read last, which belong to no night
STAGES = {
    "open": Stage(
        path="daybreak.night.opening:open",
        help="fix the deadline, lay out the folder of the night",
        dvc="frozen",
        writes=("data/champion",),
        persists=("data/champion",),
        waits=True,
    ),
    "ingest": Stage(
        path="daybreak.data.ingest:ingest",
        help="wait for the day, bring it in, and late days",
        dvc="frozen",
        waits=True,
        writes=("data/raw",),
        persists=("data/raw",),
        libraries=(
            "pandas",
            "pyarrow.parquet",
            "pydantic",
            "ruamel.yaml",
            "tenacity",
            "psutil",
            "torch",
            "scmrepo.git",
            "dvc.repo",
            "dvc_render",
        ),
    ),
    "validate": Stage(
        path="daybreak.data.validator:validate",
        help="judge the rows, quarantine the bad",
        dvc="cached",
        reads=("data/expectations.yaml", "data/raw"),
        writes=("data/clean", "data/quarantine", "data/figures"),
        persists=("data/clean", "data/quarantine", "data/figures"),
        libraries=("duckdb", "scipy.stats", "great_expectations"),
    ),
    "prepare": Stage(
        path="daybreak.data.prepare:prepare",
        help="make arrays to train from",
        dvc="cached",
        reads=(WORKLOAD, "data/clean"),
        writes=("data/arrays",),
        persists=("data/arrays",),
        libraries=("ibis.backends.duckdb",),
    ),
    "profile": Stage(
        path="daybreak.profiling.profile_stage:profile",
        help="measure what binds the training",
        dvc="cached",
        reads=(WORKLOAD, EXTENSIONS, "data/arrays"),
        explain="daybreak.profiling.explain:explain",
        libraries=("safetensors.torch",),
    ),
    "plan": Stage(
        path="daybreak.planning.plan_stage:plan",
        help="choose the machine that meets the deadline",
        dvc="cached",
        reads=(WORKLOAD, EXTENSIONS, PRICES, "data/champion"),
        waits=True,
        explain="daybreak.planning.rationale:rationale",
    ),
    "train": Stage(
        path="daybreak.jobs.launcher:train",
        help="submit, attach to, or collect the job",
        waits=True,
        dvc="frozen",
        reads=(WORKLOAD, "data/arrays", "data/champion"),
        writes=("data/run/model",),
    ),
    "evaluate": Stage(
        path="daybreak.evaluation.evaluator:evaluate",
        help="score the held-out samples",
        dvc="cached",
        reads=(WORKLOAD, EXTENSIONS, "data/arrays", "data/run/model", "data/champion"),
        writes=("data/run/scores.npy",),
    ),
    "register": Stage(
        path="daybreak.registry.register:register",
        help="make it a version in MLflow",
        libraries=(
            "mlflow",
            "mlflow.store.tracking.sqlalchemy_store",
            "mlflow.store.model_registry.sqlalchemy_store",
            "alembic.command",
            "rich.progress",
        ),
    ),
    "gate": Stage(
        path="daybreak.gate.judge:gate",
        help="decide: promote, reject, wait, no data",
        reads=("data/run/scores.npy",),
        waits=True,
    ),
    "refit": Stage(
        path="daybreak.gate.refit:refit",
        help="train what is promoted on the held-out days too",
        waits=True,
        dvc="frozen",
        reads=(WORKLOAD, "data/arrays", "data/run/model", "data/run/scores.npy"),
        writes=("data/run/refitted/model",),
    ),
    "promote": Stage(
        path="daybreak.rollout.promote:promote", help="let the promoted version serve", waits=True
    ),
    "predict": Stage(
        path="daybreak.batch_inference.predict:predict",
        help="write what the version that serves predicts for the next day",
        always=True,
    ),
    "close": Stage(path="daybreak.night.closing:close", help="write the night to the ledger", always=True),
    "admit": Stage(
        path="daybreak.gate.adoption:admit",
        help="score a model that a team had before, and make it a version",
        part="adoption",
        dvc="frozen",
        reads=(WORKLOAD, "data/arrays"),
        writes=("data/run/adopted/model",),
    ),
    "approve": Stage(
        path="daybreak.gate.review:approve", help="answer a verdict that waits for a person", part="answer"
    ),
    "stop": Stage(
        path="daybreak.gate.stop:stop", help="end a running night; the champion stays", part="answer"
    ),
    "watch": Stage(
        path="daybreak.gate.watch:watch", help="check the champion; run it hourly", part="any time"
    ),
    "reap": Stage(
        path="daybreak.jobs.reaper:reap", help="end jobs that no open night needs; hourly", part="any time"
    ),
    "rollback": Stage(
        path="daybreak.rollout.rollback:rollback", help="let an earlier version serve again", part="any time"
    ),
}
CHAIN = tuple(name for name, stage in STAGES.items() if stage.part == "night")  # in order
ADOPTION = ("open", "ingest", "validate", "prepare", "admit", "promote", "predict", "close")
OF_NIGHTS = frozenset((*CHAIN, *ADOPTION)) - {"open"}
IN_NIGHT = tuple(name for name, stage in STAGES.items() if stage.part != "any time")
