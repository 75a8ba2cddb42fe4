"""What has the user decided? `params.yaml`: three plugs and one section per stage.

A plug names a class by its import path, with or without arguments:

    backend: pipeline.backends.local:Local
    source: {use: pipeline.data.shop:Shop, seed: 7}

A section is checked as a whole before anything runs; an error names the key.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from datetime import date
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.contract import older
from pipeline.contract.errors import ParamsError
from pipeline.contract.records import replace_text

FILE = Path("params.yaml")


class Section(BaseModel):
    """Base of the sections: frozen, unknown keys refused, types not guessed."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Plug(Section):
    """A class by its import path `package.module:Class`, and the arguments to make it with."""

    model_config = ConfigDict(frozen=True, extra="allow")
    use: str = Field(pattern=r"^[\w.]+:\w+$")

    @field_validator("use")
    @classmethod
    def _where_it_is_now(cls, use: str) -> str:
        return older.import_path(use)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    def find(self) -> None:
        """ParamsError if there is no such module; cheap, since the module itself is not imported."""
        module = self.use.partition(":")[0]
        try:
            found = importlib.util.find_spec(module)
        except ImportError:
            found = None
        if found is None:
            raise ParamsError(
                f"{self.use} does not import: there is no module {module}; name a class as "
                f"package.module:Class that python can import here"
            )

    def make(self) -> Any:
        """The object; ParamsError if it cannot be imported or refuses its arguments."""
        module, _, name = self.use.partition(":")
        arguments = self.model_extra or {}
        try:
            kind = getattr(importlib.import_module(module), name)
        except Exception as error:  # whatever the module does while it is imported
            raise ParamsError(
                f"{self.use} does not import: {type(error).__name__}: {error}; name a class as "
                f"package.module:Class that python can import here"
            ) from error
        try:
            return kind(**arguments)
        except TypeError as error:
            raise ParamsError(
                f"{self.use} refuses its arguments: {error}; look at {', '.join(arguments)}"
            ) from error


class NightParams(Section):
    """The deadline and the budget."""

    train_hours: float = Field(18, gt=0)
    decide_hours: float = Field(24, gt=0)
    budget_usd: float = Field(50, ge=0)
    keep: int = Field(7, ge=1)  # worktrees of closed nights kept to look at

    @model_validator(mode="after")
    def _decide_after_training(self) -> Self:
        if self.decide_hours < self.train_hours:
            raise ValueError(f"decide_hours {self.decide_hours:g} is before train_hours {self.train_hours:g}")
        return self


class IngestParams(Section):
    """What comes in besides the day asked for."""

    history_days: int = Field(400, ge=0)  # brought in on the first night
    late_days: int = Field(7, ge=0)  # earlier days looked at again each night


class ValidateParams(Section):
    """When is the data not to be trusted?"""

    suite: str = "data/expectations.yaml"
    max_quarantined: float = Field(0.05, ge=0, le=1)  # share of tonight's rows
    max_drift: float = Field(0.35, gt=0)  # distance from the last four same weekdays


class PrepareParams(Section):
    """Which days become arrays."""

    window_days: int = Field(400, ge=1)
    test_days: int = Field(1, ge=1)  # newest trading days, held out from training
    leave_out_items: tuple[str, ...] = ()  # non-product lines: postage, fees, test codes
    engine: str = "duckdb"  # an Ibis backend


class ProfileParams(Section):
    """What the profiler may do."""

    batch_sizes: tuple[PositiveInt, ...] = Field((64, 128, 256, 512), min_length=1)
    steps: int = Field(5, ge=2)  # measured per batch size, after warm-up
    machine: str = Field("here", min_length=1)  # or one of the catalog, by a job through the backend
    reuse_days: int = Field(7, ge=0)  # that a profile stands if nothing it rests on has changed; 0: none does
    quality_remedies: Literal["offer", "allow"] = "offer"


class PlanParams(Section):
    """What may be rented, and what is best."""

    objective: Literal["cost", "time", "knee"] = "cost"
    confidence: float = Field(0.99, gt=0, lt=1)
    machines: tuple[str, ...] = Field(("local",), min_length=1)  # names, or patterns such as "a3-*"
    regions: tuple[str, ...] = Field(("us-central1",), min_length=1)
    spot: bool = True  # spot machines allowed
    flex_wait_hours: float = Field(0, ge=0)  # that flex-start may wait for its machine; 0: none is planned
    max_machines: int = Field(1, ge=1)
    batch_sizes: tuple[PositiveInt, ...] = ()  # to choose among; none: train.batch_size
    explore_usd: float = Field(0, ge=0)  # that trying other batch sizes and counts may cost in 30 nights


class TrainParams(Section):
    """How a model is trained: cold from its initial weights, or warm from the champion's."""

    epochs: float = Field(3, gt=0)
    batch_size: int = Field(64, ge=1)  # global
    num_workers: int = Field(1, ge=1)  # training processes on the local machine
    # Shares of workers: by speed, unlike ones are done together, but sums round otherwise each time; even, a
    # run can be repeated bit for bit. auto: by speed on several machines; workers of one are alike.
    batching: Literal["auto", "by_speed", "even"] = "auto"
    # When workers agree: with each gradient, or on weights after sync_every updates, for slow networks.
    sync: Literal["every_update", "every_h_updates"] = "every_update"
    sync_every: int = Field(32, ge=2)
    seed: int = 0
    rate: float = Field(2e-3, gt=0)  # learning rate, at its peak, for batches of batch_size
    # How it follows another batch size: by the rule of the workload's optimizer, by AdaScale (SGD), or not.
    scaling: Literal["by_optimizer", "adascale", "fixed"] = "by_optimizer"
    batch_growth: Literal["none", "goodput"] = "none"  # within a run, where that is faster for its progress
    warmup: float = Field(0.05, ge=0, lt=1)  # share of the samples
    decay: float = Field(0.5, ge=0, le=1)  # share of the samples, at the end
    cold_every: int = Field(7, ge=1)  # nights between cold starts; 1: never start warm
    warm_share: float = Field(0.1, gt=0, le=1)  # of the samples, the newest: what a warm start trains on
    warm_epochs: float = Field(1, gt=0)  # over that share
    warm_rate: float = Field(5e-4, gt=0)
    checkpoint_every_s: float | None = Field(None, gt=0)  # None: the plan decides
    # Folder for copies of checkpoints that outlive the machine, at any URL of fsspec, as gs://bucket/checkpoints,
    # or a path. "": they lie in the job's folder only. Credentials belong in the environment.
    checkpoints: str = ""
    hang_after_s: float = Field(120, gt=0)  # without an update, or 10 times what one takes: start again

    @model_validator(mode="after")
    def _agree_on_what_is_decided(self) -> Self:
        if self.sync == "every_h_updates" and (self.batch_growth != "none" or self.scaling == "adascale"):
            told = "batch_growth: goodput" if self.batch_growth != "none" else "scaling: adascale"
            raise ValueError(f"sync: every_h_updates leaves workers apart, and {told} needs them together")
        return self


class EvaluateParams(Section):
    """How held-out samples are scored."""

    batch_size: int = Field(256, ge=1)


class RegisterParams(Section):
    """Where models are kept."""

    name: str = Field("daybreak", pattern=r"^[\w.-]+$")


class GateParams(Section):
    """When is a challenger better, or no worse?"""

    alpha: float = Field(0.05, gt=0, lt=1)  # chance of promoting what is worse by the margin
    margin: float = Field(0.03, gt=0)  # non-inferiority margin, in units of the score
    min_samples: int = Field(30, ge=2)
    success: tuple[str, ...] = ("score",)  # metrics of which one must be better; "-NAME": lower is better
    guardrails: dict[str, Annotated[float, Field(gt=0)]] = {}  # metrics that must hold, and their margins
    resamples: int = Field(1000, ge=0)  # of the bootstrap
    fit_samples: int = Field(1000, ge=0)  # scored in a clean process, as whatever serves would; 0: none are
    max_start_s: float = Field(120, gt=0)  # of CPU, until it has answered the first request
    max_p99_s: float = Field(5, gt=0)  # of requests for one sample
    max_memory_bytes: int = Field(0, ge=0)  # of the process that serves; 0: any
    # What judges a challenger: held-out scores of both models on the same samples (replay), users who meet
    # one or the other (live), or both: live traffic only meets what the scores promote, and may reject it.
    scores: Literal["replay", "live", "both"] = "replay"
    ramp: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.01, 0.05, 0.25, 0.5), min_length=1)
    ramp_users: int = Field(200, ge=1)  # that meet the challenger at a share, before the next one
    ramp_hours: float = Field(1, ge=0)  # at a share, before the next one
    outcome_hours: float = Field(1, gt=0)  # after which a user's outcomes do not count any more
    # Guardrails of live traffic: what the challenger may be worse by. They act at once.
    max_errors: float = Field(0.01, gt=0, lt=1)  # share of a user's requests that the model did not answer
    max_fallbacks: float = Field(0.05, gt=0, lt=1)  # share of a user's answers that were not of their own
    max_p99_rise_s: float = Field(0.1, gt=0)
    max_shift: float = Field(0.5, gt=0, lt=1)  # total variation distance between the items shown

    @model_validator(mode="after")
    def _ramp_climbs(self) -> Self:
        if list(self.ramp) != sorted(set(self.ramp)):
            raise ValueError(f"ramp {list(self.ramp)} does not climb")
        return self


class ReleaseParams(Section):
    """Whom the gate has to ask."""

    # By a person, until the night's decide_until: what is not proven; always: what the gate promotes, too.
    approval: Literal["never", "inconclusive", "always"] = "never"


class WatchParams(Section):
    """What the hourly look at the champion may do."""

    alias_edits: Literal["report", "revert", "adopt"] = "revert"
    holdback: float = Field(0, ge=0, le=0.5)  # share of users who still meet the version that was replaced


class ServingParams(Section):
    """What answers users: `python -m pipeline serve`, or an endpoint."""

    # URL of exposures and outcomes. One with a password belongs in $DAYBREAK_LOG, which comes first.
    log: str = ""  # "": a SQLite file under $PIPELINE_HOME/var
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=0, le=65_535)
    timeout_s: float = Field(1, gt=0)  # of a request; then the popular items are shown
    max_top: int = Field(100, ge=1)  # items of an answer
    max_body_bytes: int = Field(16_384, ge=1)
    max_requests_per_s: float = Field(1000, ge=0)  # of an address, be it a proxy; 0: any
    keep_users: int = Field(100_000, ge=1)  # whose answers are kept in memory, per version
    keep_days: float = Field(90, gt=0)  # that exposures and outcomes are kept
    # pipeline.rollout.endpoint:Endpoint serves on Vertex AI; none: only the routers do
    endpoint: Plug | None = None


class NotifyParams(Section):
    """Who hears of failures, missed deadlines, promotions, refusals, rollbacks and questions."""

    command: str = ""  # run by the shell with the message on its standard input; "": the task log only


class Sections(Section):
    """Base of what a stage reads of params.yaml: several sections, by the names that they have there."""


class JobSections(Sections):
    """Sections that say what is trained, and how."""

    workload: Plug
    train: TrainParams = TrainParams()


class ProfileSections(JobSections):
    """Sections that stage profile reads."""

    profile: ProfileParams = ProfileParams()


class TrainSections(JobSections):
    """Sections that stage train reads."""

    plan: PlanParams = PlanParams()


class PlanSections(ProfileSections, TrainSections):
    """Sections that stage plan reads."""

    backend: Plug
    prepare: PrepareParams = PrepareParams()


class Params(PlanSections):
    """The whole of params.yaml."""

    source: Plug
    night: NightParams = NightParams()
    ingest: IngestParams = IngestParams()
    validate_: ValidateParams = Field(ValidateParams(), alias="validate")
    evaluate: EvaluateParams = EvaluateParams()
    register_: RegisterParams = Field(RegisterParams(), alias="register")
    gate: GateParams = GateParams()
    release: ReleaseParams = ReleaseParams()
    watch: WatchParams = WatchParams()
    serving: ServingParams = ServingParams()
    notify: NotifyParams = NotifyParams()


def load(folder: Path = Path()) -> Params:
    """Params of the folder, checked; ParamsError names the key and what is wrong with it."""
    path = folder / FILE
    try:
        values = YAML(typ="safe").load(path.read_text())
    except FileNotFoundError:
        raise ParamsError(f"{path} is missing; run in a checkout, or restore it with git") from None
    except YAMLError as error:
        raise ParamsError(f"{path} is not YAML: {' '.join(str(error).split())}; mend it") from None
    return check(values, source=str(path))


def check(values: Any, *, source: str = str(FILE)) -> Params:
    """Params from plain values; ParamsError names the key and what is wrong with it."""
    for key, value in _leaves(values):
        if isinstance(value, date):
            raise ParamsError(
                f'{source}: {key} is a date without quotes, which DVC does not take; write "{value}"'
            )
    try:
        return Params.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or source
        told = first["msg"][0].lower() + first["msg"][1:]
        if first["type"] == "extra_forbidden":
            told = "is no such key"
        else:
            told = f"is {first['input']!r}, but {told}"
        raise ParamsError(f"{source}: {key} {told}; mend it in {source}") from None


def _leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested mappings."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def override(folder: Path, assignments: list[str], *, into: Path | None = None) -> Params:
    """Params of the folder with `section.key=value` assignments on top; values are read as YAML.

    With `into` they are written to that folder's params.yaml too, comments kept. Nothing is written
    unless the outcome is valid.
    """
    load(folder)  # the file's own faults are told as such
    yaml = YAML()
    values = yaml.load((folder / FILE).read_text())
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        *sections, last = key.strip().split(".")
        if not equals or not last:
            raise ParamsError(f"--set {assignment} is no assignment; write --set section.key=value")
        section = values
        for name in sections:
            if isinstance(section.get(name), str):
                section[name] = {"use": section[name]}
            section = section.setdefault(name, {})
        try:
            value = YAML(typ="safe").load(text)
            section[last] = text if isinstance(value, date) else value
        except YAMLError:
            raise ParamsError(f"--set {assignment}: {text!r} is not YAML; quote it") from None
    params = check(values, source=f"--set {' '.join(assignments)}" if assignments else str(folder / FILE))
    if into is not None and assignments:
        stream = StringIO()
        yaml.dump(values, stream)
        replace_text(into / FILE, stream.getvalue())
    return params
