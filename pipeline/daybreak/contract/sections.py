"""Defines the sections of `params.yaml`, what the user decides: three plugs, and a section for each stage.

A plug names a class by its import path, with or without arguments:

    backend: daybreak:Local
    source: {use: daybreak.examples.shop.simulated_shop:Shop, seed: 7}

A function names the sections that it reads in its signature, each by its type: `prepare: PrepareParams`,
`workload: WorkloadPlug`. Of those that read many, a few name one of the groups at the end.
"""

import importlib
import importlib.util
import inspect
import posixpath
import re
from collections.abc import Callable, Mapping
from datetime import date
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    PrivateAttr,
    field_validator,
    model_validator,
)

from daybreak import hooks
from daybreak.contract import code_path, extras
from daybreak.contract.errors import ParamsError, has_password
from daybreak.contract.record_parts import EVERY_UPDATE, Sync
from daybreak.contract.trigger_lines import opposed, parse

A_CENTURY = 36_525  # days; a calendar ends
HOURS, MINUTES = 24 * A_CENTURY, 1440 * A_CENTURY  # of a century
# Tags that versions and runs have in MLflow, by which Daybreak finds and verifies them.
OUR_TAGS = (
    *("night", "home", "code_commit", "model_digest", "recipe", "status", "version", "verdict", "approval"),
    *("ledger", "pruned", "erased", "refit_of", "adopted_from"),
)
# Of tags, as MLflow takes them: names also of a path in normal form that does not lead upwards.
TAG, MAX_TAG, MAX_TAG_VALUE = re.compile(r"(?!/|\.\.|\.$)[/\w.\- :]{1,250}"), 250, 8000
SEVERAL = "daybreak:Several"  # what a list of backends is made to
MAX_ASSET = 1500  # characters of the URI of an asset of Airflow
CRON = r"^\s*([\d*/,A-Za-z-]+\s+){4}[\d*/,#A-Za-z-]+\s*$"  # five fields; Airflow judges their values


class Section(BaseModel):
    """Base of the sections: frozen, unknown keys and numbers that are not finite refused, types not guessed.

    JSON, which records are written in, has no infinity: a limit of `.inf` would leave a record without it.

    The string below a field describes its key: docs/params.md is made of them (`make docs`), and nothing else
    reads them, as that parses each class.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Plug(Section):
    """A class by its import path `package.module:Class`, and the arguments to make it with."""

    model_config = ConfigDict(frozen=True, extra="allow")
    use: str = Field(pattern=r"^[\w.]+:\w+$")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    def find(self) -> None:
        """Raises ParamsError if there is no such module; cheap, since the module itself is not imported."""
        module = self.use.partition(":")[0]
        code_path.find_teams()
        try:
            spec = importlib.util.find_spec(module)
        except ImportError:
            spec = None
        if spec is None:
            raise ParamsError(
                f"{self.use} does not import: there is no module {module}; name a class as "
                f"package.module:Class that python can import here"
            )

    def make(self, home: Any = None) -> Any:
        """Returns the object; ParamsError if it cannot be imported or refuses its arguments.

        A class whose constructor has a parameter `home` is given the home that it is made for.
        """
        module, _, name = self.use.partition(":")
        arguments = self.model_extra or {}
        code_path.find_teams()
        try:
            kind = getattr(importlib.import_module(module), name)
        except Exception as error:  # whatever the module does while it is imported
            if lacks := extras.missing(error):
                raise ParamsError(f"{self.use} does not import: {lacks}") from error
            raise ParamsError(
                f"{self.use} does not import: {type(error).__name__}: {error}; name a class as "
                f"package.module:Class that python can import here"
            ) from error
        if home is not None and _takes(kind, "home"):
            arguments = {"home": home, **arguments}
        try:
            return self._made(kind, arguments)
        except TypeError as error:
            raise ParamsError(
                f"{self.use} refuses its arguments: {error}; look at {', '.join(arguments)}"
            ) from error

    def _made(self, kind: Any, arguments: Mapping[str, Any]) -> Any:
        return kind(**arguments)


def _takes(kind: Any, name: str) -> bool:
    """Returns whether a class has an argument of that name, or passes others on to a parent that has it."""
    for each in getattr(kind, "__mro__", (kind,)):
        try:
            parameters = inspect.signature(each).parameters
        except (TypeError, ValueError):  # not a class, or one of C without a signature
            return False
        if name in parameters:
            return True
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return False
    return False


class WorkloadPlug(Plug):
    """The class of what is trained; the argument `variant` names one of those that it offers."""

    def _made(self, kind: Any, arguments: Mapping[str, Any]) -> Any:
        return made_of(kind, arguments)


def made_of(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Returns the workload of a class, or the variant of it that the argument `variant` names.

    A class that takes `variant` by itself gets it as any other argument. A variant offers none of its own, as
    no key would name these. Raises ParamsError where the class offers no variant of that name.
    """
    given = dict(arguments)
    if "variant" not in given or _takes(kind, "variant"):
        return kind(**given)
    name = given.pop("variant")
    workload = kind(**given)
    if not name:
        return workload
    offered = workload.variants() if hasattr(workload, "variants") else {}
    if name not in offered:
        there = f"there are {', '.join(offered)}" if offered else "its method `variants` would return them"
        raise ParamsError(f"{kind.__name__} offers no variant {name!r}; {there} (key workload.variant)")
    chosen = offered[name]
    chosen.variants = dict
    return chosen


class SourcePlug(Plug):
    """The class of where the data comes from."""


class BackendPlug(Plug):
    """The class of where jobs run; a list of classes is made one that tries them in turn."""

    @model_validator(mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        if not value:
            raise ValueError("a list of backends names at least one")
        return {"use": SEVERAL, "backends": [Plug.model_validate(each).model_dump() for each in value]}

    def buckets(self) -> list[str]:
        """Returns the buckets by which jobs are staged, of each backend that has one."""
        given = self.model_extra or {}
        each = [given, *given.get("backends", ())]
        return [str(one["bucket"]).rstrip("/") for one in each if one.get("bucket")]


class NightParams(Section):
    """When a night starts, its deadline and its budget."""

    schedule: str = Field("0 3 * * *", pattern=CRON)
    """When Airflow starts a night, as cron reads it, in `time_zone`. The night trains on the newest day
    that is over then where the data comes from."""
    assets: tuple[str, ...] = ()
    """URIs of Airflow's assets: once each of them was updated, Airflow starts a night, and none by
    `schedule`. The night's day is that of the update, `extra: {"day": "2025-01-31"}`, else the newest that is
    over then."""
    time_zone: str = "UTC"
    """Time zone of `schedule`, such as `America/New_York`. A day of the data ends where the `zone` of the
    workload's table says."""
    train_hours: float = Field(18, gt=0, le=HOURS)
    """Hours to the end of training, into which the plan must fit. They count from when the schedule wanted
    the night, and without one from its opening. A night that opens when more than half of them are gone has
    as many as are gone, up to all of them."""
    decide_hours: float = Field(24, gt=0, le=HOURS)
    """Hours to the decision, counted as `train_hours`: evaluation, a live test and a person's approval must
    end by then, or the champion stays. At least `train_hours`."""
    budget_usd: float = Field(50, ge=0)
    """US dollars that training may cost in a night. A plan or a job that would cost more is refused or
    stopped."""
    usd_per_month: float | None = Field(None, gt=0)
    """US dollars that the nights of a calendar month of `time_zone` may cost. A night may cost its part of
    what the month has left, spread over the nights to come, and `budget_usd` at most; one whose trigger sets
    `budget_usd` may take all that is left. At 80 and 100 % people are told. Empty: no limit."""
    keep: int = Field(7, ge=1)
    """Closed nights whose folders stay in `nights/`; the ledger keeps all nights. Lower it to free disk."""
    keep_days: float = Field(90, gt=0, le=A_CENTURY)
    """Days for which data and models of a night are kept, so that a rollback can bring them back, and what it
    predicted below the home's `var/`. What serves and what it replaced are kept longer, the records of all
    nights always. Lower it to free disk."""
    max_code_mb: float = Field(1000, gt=0)
    """Megabytes that the code of a night may hold: all of the checkout that git does not ignore, for a
    rented job, and the package of the workload, for a version."""
    reread_nights: int = Field(7, ge=1)
    """Nights within which every byte of DVC's cache is read again and compared with its digest, a share
    at each `close`."""
    ledger_remote: str = Field("", pattern=r"^([^-].*)?$")
    """Git remote, by name or URL, that `close`, `promote` and `rollback` push the ledger to; no night fails
    because of it. Where it has what the ledger has not, `open` refuses. Empty: nothing is pushed."""

    @field_validator("assets")
    @classmethod
    def _are_uris(cls, assets: tuple[str, ...]) -> tuple[str, ...]:
        for uri in assets:
            if not uri.strip() or len(uri) > MAX_ASSET or uri.lower().startswith("airflow:"):
                raise ValueError(
                    f"{uri!r:.60} is not the URI of an asset: Airflow takes 1 to {MAX_ASSET:,} characters, "
                    f"and keeps airflow:// to itself; name one such as s3://shop/sales"
                )
        return assets

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder, as America
            raise ValueError("no such time zone is known; name one such as America/New_York") from None
        return zone

    @model_validator(mode="after")
    def _decide_after_training(self) -> Self:
        if self.decide_hours < self.train_hours:
            raise ValueError(f"decide_hours {self.decide_hours:g} is before train_hours {self.train_hours:g}")
        return self


class IngestParams(Section):
    """Which days come in besides the day asked for."""

    history_days: int = Field(400, ge=0, le=A_CENTURY)
    """Days before the night's day that the first night brings in."""
    late_days: int = Field(7, ge=0, le=A_CENTURY)
    """Earlier days that each night looks at again for late or restated rows."""
    wait_hours: float = Field(0, ge=0, le=HOURS)
    """Hours from the opening of the night that its day may be late. The night waits no longer than training
    can still be done in time, by the night before. 0: a day that is not there is left to the next night."""
    settle_minutes: float = Field(0, ge=0, le=MINUTES)
    """Minutes for which the day's files, or its number of rows in a database, must not have changed: a day
    that is still being written is not there yet. 0: it is there at once."""
    newer_day: bool = False
    """A day is not there before a newer day has data, as of a stream that never says when a day is whole."""

    @model_validator(mode="after")
    def _settles_while_waiting(self) -> Self:
        if self.settle_minutes and self.wait_hours * 60 <= self.settle_minutes:
            raise ValueError(
                f"settle_minutes {self.settle_minutes:g} are looked at while a night waits, at most "
                f"wait_hours {self.wait_hours:g}; raise wait_hours"
            )
        return self


class ValidateParams(Section):
    """When the data is not to be trusted."""

    suite: str = "data/expectations.yaml"
    """Path of the rules that the data must obey. A change of the rules validates all partitions again."""
    max_quarantined: float = Field(0.05, ge=0, le=1)
    """Share of tonight's rows that may be quarantined; more stops the night."""
    max_drift: float = Field(0.35, gt=0)
    """Distance from the last four same weekdays that a column may have, from 0 (alike) to 1 (nothing in
    common); more stops the night. The suite may set another limit for a column."""
    false_alarms_per_year: float = Field(2.0, ge=0)
    """Sound days a year of which some figure may be outside the limits that are learned from the days before:
    labels, rows, new values, an item's usual price, a repeated day. 0: nothing is learned."""
    unusual_day: Literal["warn", "hold", "refuse"] = "hold"
    """What happens to a day with a figure outside these limits. `warn`: the report says so; `hold`: the night
    stops until a person opens one that accepts the day; `refuse`: the night stops. The suite may say another
    for a figure."""
    slow_drift: Literal["off", "warn", "cold", "hold"] = "warn"
    """What happens where a figure has changed a little each day of the last sixty: rows, missing values,
    sizes, labels. `warn`: the report says so, with a chart; `cold`: the next night also trains with new
    weights, at most once in two weeks; `hold`: the night stops until a person opens one that accepts the
    day, from which on the figures are looked at anew. A tenth of `false_alarms_per_year` is for it."""
    accepted_days: tuple[date, ...] = ()
    """Days that a person has looked at, and that are trained on although they are unlike the days
    before. Meant for a single night: `--set validate.accepted_days=[2025-01-31]`."""


class PrepareParams(Section):
    """Which days become arrays to train from."""

    window_days: int = Field(400, ge=1, le=A_CENTURY)
    """Days up to the night's day that the arrays hold. Lower it if old days no longer help the model."""
    test_days: int = Field(1, ge=1, le=A_CENTURY)
    """Newest trading days, held out from training to judge the models on. With more, the gate has more
    samples, and the model is less fresh."""
    refit_days: int = Field(30, ge=1)
    """Days after which the workload's `fit` is run again; all days are then prepared again, and training
    takes all samples. Lower it where new categories come often."""
    engine: str = "duckdb"
    """Name of the Ibis backend that judges and prepares the data: `duckdb`, `pyspark`, `bigquery`; with any
    other, DuckDB judges it. Change it if the data outgrows one machine."""


class ProfileParams(Section):
    """What the profiler may do."""

    batch_sizes: tuple[PositiveInt, ...] = Field((64, 128, 256, 512), min_length=1)
    """Batch sizes, in samples, at which load, step and memory are measured. Choose them around
    `train.batch_size` and those of `plan.batch_sizes`."""
    steps: int = Field(5, ge=2)
    """Updates measured at each batch size, after warm-up. Raise it on a machine whose times vary a lot."""
    machine: str = Field("here", min_length=1)
    """Where to measure: `here`, or the name of a machine of the catalog, which is rented through the backend
    for a short job."""
    reuse_days: int = Field(7, ge=0, le=A_CENTURY)
    """Days that a profile may be reused while machine, code, params and the shape of the data stay the same;
    0: measure every night."""
    quality_remedies: Literal["offer", "allow"] = "offer"
    """Whether remedies that touch the model's quality (a smaller batch, fewer epochs) are only offered, or
    allowed."""


class PlanParams(Section):
    """What may be rented, and which plan is best."""

    objective: Literal["cost", "time", "knee", "quality"] = "cost"
    """Which feasible plan to take: the cheapest (`cost`); the cheapest that is surely slower than no other
    (`time`); or the `knee`, where half the time is worth at most twice the dollars. `quality`: the
    cheapest, on as many more samples as nights have shown to raise the score, within hours and budget."""
    usd_per_hour_saved: float | None = Field(None, ge=0)
    """US dollars that being done an hour sooner is worth to `time` and `knee`, which save no hour for more;
    empty: `time` pays any price within the budget for what is surely faster, and nothing for less than the
    error of the forecasts."""
    confidence: float = Field(0.99, gt=0, lt=1)
    """Chance of being done within `night.train_hours` that a plan must have. Lower it to accept cheaper,
    riskier plans."""
    machines: tuple[str, ...] = Field(("local",), min_length=1)
    """Machines to choose among: names of the catalog, or patterns such as `a3-*`. `local` is the machine at
    hand; `daybreak prices` lists the others."""
    regions: tuple[str, ...] = Field(("us-central1",), min_length=1)
    """Regions to rent in. Name several, so that there is a way out when one has no capacity."""
    spot: bool = Field(default_factory=lambda: bool(hooks.paths("steering")))
    """Whether spot machines may be rented: cheaper, but they may be taken away. Without the extension spot
    none is."""
    flex_wait_hours: float = Field(0, ge=0, le=HOURS)
    """Hours that a flex-start job may wait for its machine; 0: flex-start is not planned."""
    max_machines: int = Field(1, ge=1)
    """Machines that a plan may rent at once, alike or, where `batching` shares by speed, of two kinds."""
    batch_sizes: tuple[PositiveInt, ...] = ()
    """Global batch sizes, in samples, to choose among; empty: only `train.batch_size`. A larger one trains
    on more samples, by the noise scale."""
    explore_usd: float = Field(0, ge=0)
    """US dollars that trying other batch sizes and machine counts, for `quality` also more samples, may
    cost in 30 nights; 0: nothing is tried, nor for `knee` or with
    `usd_per_hour_saved` for `time`."""

    triggers: tuple[str, ...] = ()
    """What a job does where a measured figure stays beyond a limit, such as
    `device_use < 0.3 for 10 min: step down` (docs/train.md)."""

    @field_validator("triggers")
    @classmethod
    def _are_triggers(cls, lines: tuple[str, ...]) -> tuple[str, ...]:
        if why := opposed(tuple(map(parse, lines))):
            raise ValueError(why)
        return lines

    @property
    def ranking(self) -> Literal["cost", "time", "knee"]:
        """Returns by what the plans for a number of samples are ranked."""
        return "cost" if self.objective == "quality" else self.objective


class TrainParams(Section):
    """How a model is trained: cold from its initial weights, or warm from the champion's."""

    epochs: float = Field(3, gt=0)
    """Passes over the samples in a cold start; with `EstimatorWorkload`, the number of trees."""
    batch_size: int = Field(64, ge=1)
    """Samples of an update, over all workers. `rate` belongs to it."""
    batch_by: Literal["samples", "tokens"] = "samples"
    """What batches have alike: `samples`, or `tokens` of a data set with `lengths`, as many as `batch_size`
    samples have on average."""
    num_workers: int = Field(1, ge=1)
    """Training processes on the local machine; more than it has GPUs share them. The catalog says how
    many a rented machine runs."""
    threads: Literal["fixed", "auto"] = "fixed"
    """`auto`: a process on each core that others leave free, without GPUs; runs can then not be
    repeated bit for bit (docs/train.md)."""
    batching: Literal["auto", "by_speed", "even"] = "auto"
    """How workers share a batch. `by_speed`: unlike workers finish together, with sums rounded
    differently in each run; `even`: a run can be repeated bit for bit; `auto`: by speed on several
    machines, even on one."""
    sync: Literal["every_update", "every_h_updates", "no_barrier", "auto"] = "every_update"
    """When workers agree: on each gradient, or on weights after every `sync_every` updates, for slow
    networks; `no_barrier`: likewise, without waiting. `auto`: as the plan finds best; training undoes
    it where it does not pay."""
    sync_every: int = Field(32, ge=2)
    """Updates between two agreements on weights; only for `sync: every_h_updates` and `no_barrier`."""
    seed: int = 0
    """Seed of the initial weights and of the order of the samples."""
    rate: float = Field(2e-3, gt=0)
    """Learning rate at its peak, for batches of `batch_size`."""
    scaling: Literal["by_optimizer", "adascale", "fixed"] = "by_optimizer"
    """How the learning rate follows another batch size: by the rule of the workload's optimizer, by AdaScale
    (SGD only), or not at all."""
    batch_growth: Literal["none", "goodput"] = "none"
    """`goodput`: the batch grows within a run where that makes faster progress, and shrinks again, to
    the planned size at least."""
    warmup: float = Field(0.05, ge=0, lt=1)
    """Share of the samples over which the learning rate rises."""
    decay: float = Field(0.5, ge=0, le=1)
    """Share of the samples, at the end, over which the learning rate falls. A run that is late decays
    sooner."""
    schedule: Literal["stable", "linear", "cosine", "constant", "own"] = "stable"
    """The learning rate after the warm-up. `stable`: at its peak until the decay; `linear`, `cosine`: falling
    to 0 from then on; `constant`: at its peak to the end; `own`: by `schedule(done)` of the class, without a
    warm-up."""
    precision: Literal["auto", "float16"] = "auto"
    """The type of matrix products; weights are float32. `auto`: bfloat16 where the profile finds it faster
    and harmless; `float16`: for GPUs without bfloat16, with a loss that is scaled. The plan reckons with what
    the profile measured without it."""
    clip_norm: float | None = Field(None, gt=0)
    """The most that the norm of a gradient may be, over all weights; empty: no limit."""
    clip_value: float | None = Field(None, gt=0)
    """The most that a number of a gradient may be, either way; empty: no limit."""
    ema: float | None = Field(None, gt=0, lt=1)
    """Decay of an exponential average of the weights, such as 0.999, for updates of `batch_size`: the
    average is scored and serves. Empty: the newest weights do."""
    average_last: float = Field(0.0, ge=0, lt=1)
    """Share of the samples, at the end, after whose updates the weights are averaged, each counting alike."""
    validation: float = Field(0.0, ge=0, lt=0.5)
    """Share of the samples, the newest days before the held-out ones, by which training on all samples is
    validated, and on which it does not train. The weights with the best score there are the model. 0: no
    validation."""
    patience: int | None = Field(None, ge=1)
    """Validations in a row without a better score after which the rate falls to 0, over the share `decay`,
    and training ends; there are up to 20 in all. Trees, and `decay: 0`, end at once. Empty: it goes on."""
    cold_every: int = Field(7, ge=1)
    """Nights between cold starts; 1: never start warm. Other nights start from the champion's weights,
    unless the gate asks for a cold start (docs/gate.md)."""
    warm_share: float = Field(0.1, gt=0, le=1)
    """Share of the samples, the newest, that a warm start trains on. After missed nights it trains on all
    days that the champion has not seen, if time and budget suffice."""
    warm_epochs: float = Field(1, gt=0)
    """Passes over the samples of a warm start."""
    warm_rate: float = Field(5e-4, gt=0)
    """Learning rate of a warm start, at its peak."""
    carry_optimizer: bool = False
    """A warm start also takes over what the optimizer kept, such as Adam's moments, when it trained the
    champion; versions then carry it, two more copies of the weights for Adam."""
    band_rate: float = Field(0.0, ge=0, lt=1)
    """Share of the spectrum, its highest frequencies, that convolutions leave out in training and
    serving, so that training takes less memory. It changes the model."""
    follow_memory: Literal["off", "same_gradient", "band_limited"] = "same_gradient"
    """What a run does where the memory that it may use falls while it trains. `same_gradient`: smaller
    passes, activations computed again; `band_limited`: where that does not suffice, convolutions
    without high frequencies too, which may cost quality; `off`: nothing (docs/train.md)."""
    checkpoint_every_s: float | None = Field(None, gt=0)
    """Seconds between checkpoints; empty: the plan decides, from the hazard of losing machines."""
    checkpoints: str = ""
    """Folder for copies of checkpoints that outlive the machine: a path, or a URL of fsspec such as
    `gs://bucket/checkpoints`; empty: they stay in the job's folder."""
    hang_after_s: float = Field(120, gt=0)
    """Seconds without an update, or ten times what one takes if that is longer, after which workers are
    started again."""

    @model_validator(mode="after")
    def _agree_on_what_is_decided(self) -> Self:
        together = {
            "batch_growth: goodput": self.batch_growth != "none",
            "scaling: adascale": self.scaling == "adascale",
            "ema": self.ema is not None,
            "average_last": self.average_last > 0,
            "validation": self.validation > 0,
            "precision: float16": self.precision == "float16",
        }
        if self.sync != "every_update" and any(together.values()):
            key = next(key for key, is_set in together.items() if is_set)
            raise ValueError(f"sync: {self.sync} leaves workers apart, and {key} needs them together")
        whole = together | {
            "num_workers": self.num_workers != 1,
            "sync": self.sync != "every_update",
            "clip_norm": self.clip_norm is not None,
            "clip_value": self.clip_value is not None,
            "carry_optimizer": self.carry_optimizer,
        }
        if self.threads == "auto" and any(whole.values()):
            key = next(key for key, is_set in whole.items() if is_set).partition(":")[0]
            raise ValueError(f"threads: auto divides batches itself; leave {key} at its default")
        if self.batch_by == "tokens" and self.batch_growth != "none":
            raise ValueError(
                "batch_by: tokens sets the samples of each batch, and batch_growth too; leave one"
            )
        if self.patience and not self.validation:
            raise ValueError(
                f"patience: {self.patience} counts validations; set validation: 0.1 to have some"
            )
        if self.average_last and (self.patience or self.scaling == "adascale"):
            key = "patience" if self.patience else "scaling: adascale"
            raise ValueError(f"average_last is of a run's end, and {key} may end it before; take ema")
        if self.ema and self.average_last:
            raise ValueError("ema and average_last each say which weights are averaged; leave one out")
        return self

    @property
    def fixed_sync(self) -> Sync | None:
        """Returns when workers agree; None where the plan says it."""
        if self.sync == "auto":
            return None
        if self.sync == "every_update":
            return EVERY_UPDATE
        return Sync(every=self.sync_every, is_late=self.sync == "no_barrier")


class EvaluateParams(Section):
    """How held-out samples are scored."""

    batch_size: int = Field(256, ge=1)
    """Samples scored at once. Lower it if evaluation runs out of memory."""
    explain: bool = True
    """Whether the report shows by which columns and on which samples challenger and champion differ. Takes at
    most a twentieth of the night's time, and no verdict rests on it."""


class RegisterParams(Section):
    """Where models are kept."""

    name: str = Field("daybreak", pattern=r"^[\w.-]+$")
    """Name of the registered model in MLflow."""
    tracking_uri: str = Field("", pattern=r"^$|^[a-z+0-9-]+://?[^@]*$")
    """URI of an MLflow that you already have, such as `https://mlflow.example.org`, without a password;
    `$MLFLOW_TRACKING_URI` wins over it. Empty: a SQLite file in `var/`."""
    experiment: str = Field("", pattern=r"^[^']*$")
    """Experiment of MLflow that the runs of nights are in; empty: `daybreak`, or in a fleet its model."""
    tags: dict[str, str] = {}
    """Tags of your own for each run and version, such as `{team: shop}`."""
    artifacts: tuple[str, ...] = ()
    """Where your MLflow keeps artifacts that its clients read and write by themselves, such as
    `[s3://team/mlflow]`; a server that serves them needs none. Nothing is read or written at
    other places."""

    @field_validator("tags")
    @classmethod
    def _of_a_team(cls, tags: dict[str, str]) -> dict[str, str]:
        if taken := sorted(name for name in tags if name in OUR_TAGS or name.startswith("mlflow.")):
            raise ValueError(f"the tag {taken[0]} is Daybreak's or MLflow's own; choose another name")
        for name, value in tags.items():
            if not TAG.fullmatch(name) or posixpath.normpath(name) != name:
                raise ValueError(
                    f"MLflow takes no tag {name!r}; write 1 to {MAX_TAG} letters, digits, spaces and "
                    f"_ - . :, with single slashes between them"
                )
            if len(value) > MAX_TAG_VALUE:
                raise ValueError(
                    f"the tag {name} has {len(value):,} characters, and MLflow keeps {MAX_TAG_VALUE:,} of a "
                    f"run's; shorten it"
                )
        return tags

    @field_validator("tracking_uri")
    @classmethod
    def _without_token(cls, uri: str) -> str:
        if has_password(uri):
            raise ValueError(
                "tracking_uri has a password or token, and params.yaml is in git; leave it out, and set "
                "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_URI with all of it"
            )
        return uri


class GateParams(Section):
    """When a challenger is better, or no worse."""

    alpha: float = Field(0.05, gt=0, lt=1)
    """Chance of promoting a model that is worse by the margin. Lower it to demand more evidence."""
    margin: float | None = Field(None, gt=0)
    """Non-inferiority margin, in units of the score: what a refresh may be worse by. A lower one needs more
    samples. Empty: the first metric's own share of the champion's value, 1 % where it names none."""
    min_samples: int = Field(30, ge=2)
    """Held-out samples below which nothing is judged; the champion stays."""
    success: tuple[str, ...] = ("score",)
    """Metrics of which at least one must be better, and none worse; `-NAME` if lower is better."""
    guardrails: dict[str, Annotated[float, Field(gt=0)]] = {}
    """Metrics that must hold, and what each may be worse by, in its own unit."""
    false_alarms_per_year: float = Field(2.0, ge=0)
    """Sound nights a year whose evaluation may be taken for implausible, since the champion or a baseline
    scores unlike in its last 28 nights; the champion then stays. 0: nothing is checked."""
    when_spent: Literal["cold", "anchor"] = "cold"
    """What follows when refreshes have lost the margin little by little. `cold`: the next training
    begins anew, on all samples; `anchor`: the watch lets the last version that was proven better serve
    again."""
    min_nights: int = Field(7, ge=1)
    """Nights with held-out days of their own that a changed recipe is judged by, at least; a week has each
    weekday once. 1: a night's own samples decide, as if no recipe were better on some days than on others."""
    false_discovery_rate: float = Field(0.1, gt=0, lt=1)
    """Share of promotions of changed recipes that are expected to be false, at most: the more were tried
    within a year without a promotion, the more evidence the next one needs."""
    refit_epochs: float = Field(0, ge=0)
    """Passes over the held-out days by which a promoted version is trained further before it serves, at
    `train.warm_rate`; 0: it serves as it was judged. Nothing compares the result: it must only pass the
    smoke test, and output about what it did."""
    max_shift: float = Field(0.5, gt=0, lt=1)
    """Total variation distance, from 0 (the same) to 1, that there may be between the items that two models
    show: a refitted version and the one that was judged, or both of a live test."""
    resamples: int = Field(1000, ge=0)
    """Resamples of the bootstrap that checks the interval of the effect; 0: no bootstrap."""
    scores: Literal["replay", "live", "both"] = "replay"
    """What judges a challenger. `replay`: held-out scores of both models on the same samples; `live`: users
    who meet one or the other; `both`: users only meet what the scores promote, and may reject it."""


class SmokeTestParams(Section):
    """What the packaged version must do in a clean process before it may serve."""

    samples: int = Field(1000, ge=0)
    """Held-out samples that the packaged version scores in a clean process before it may serve; 0: no smoke
    test."""
    max_start_s: float = Field(120, gt=0)
    """Seconds of CPU that the version may take in the smoke test until it has answered its first request."""
    max_p99_s: float = Field(5, gt=0)
    """Seconds that 99 of 100 requests for one sample may take in the smoke test, without those in which other
    processes had the CPU."""
    max_memory_bytes: int = Field(0, ge=0)
    """Bytes of memory that the process of the smoke test may take; 0: any number."""


class ReleaseParams(Section):
    """Whom the gate has to ask, and who vouches for the ledger."""

    approval: Literal["never", "inconclusive", "always"] = "never"
    """When a person is asked, until `night.decide_hours`. `inconclusive`: where the gate rejects for want of
    proof alone; `always`: also for what the gate promotes. Without an answer the champion stays. Of a
    recipe that a person took back, a person is asked in any case."""
    signing_key: str = ""
    """File of the SSH key that signs the ledger's commits, by git's own SSH signing; empty: none are signed,
    or with `require_signature` by the key of git's `user.signingkey`."""
    require_signature: bool = False
    """Whether a ledger counts only where its newest commit is signed by a key of git's
    `gpg.ssh.allowedSignersFile`. Read from the params.yaml of the home."""


class WatchParams(Section):
    """What the hourly look at the champion may do."""

    alias_edits: Literal["report", "revert", "adopt"] = "revert"
    """What to do where somebody moved the champion's alias in MLflow by hand: report it, move it back, or
    let that version serve."""
    retrain: bool = False
    """Whether drift of served rows since a promotion, or a loss of quality for which the watch rolled back,
    starts a night at once: in Airflow by the DAG `watch`, else where `daybreak due` ends with exit status
    0. Each finding starts one night, and none while another is open."""
    retrain_per_month: int = Field(4, ge=1)
    """Nights within 30 days that the watch may start."""


class PredictParams(Section):
    """What the version that serves predicts at the end of each night, and where that is written."""

    to: str = ""
    """Where predictions are written, with `{day}` or `{day:%Y/%m/%d}` for the night's day: a folder at any
    URL of fsspec, such as `gs://bucket/predictions/{day}`, which gets Parquet files and then `_SUCCESS`; a
    file that ends with .parquet or .csv; or a database by its URL of SQLAlchemy. Variables of the environment
    are filled in. A path without a root is below the home. Empty: nothing is predicted."""
    table: str = Field("predictions", pattern=r"^[\w.]+$")
    """Table of the database, or `schema.name`; it is made if it is missing."""
    source: Plug | None = None
    """Class of a source whose rows of the night's day are predicted, in the form of `source`. Empty: rows of
    the workload's `score_rows` if it has that, else the clean rows of the day; of a workload that recommends,
    the lists of all its users."""
    by_hours: float = Field(0, ge=0, le=HOURS)
    """Hours until predictions are written, counted as `night.train_hours`, and more than these. If they would
    be late by waiting for the decision, the champion's are written before it. 0: as `night.decide_hours`."""
    top: int = Field(20, ge=1)
    """Items in the list of a user."""
    rows_per_file: int = Field(100_000, ge=1)
    """Rows, or a tenth as many users, of one file, which is predicted at once and kept after a kill. Lower it
    if memory is short."""
    drift: Literal["off", "warn", "refuse"] = "warn"
    """What happens where predictions are further than `max_drift` from those of the day before, and of the
    same weekday. `warn`: the report says so; `refuse`: they are not written, and the stage fails."""
    max_drift: float = Field(0.35, gt=0)
    """Distance that a prediction may have from those of both days, as `validate.max_drift` has it, wider by
    what samples of so many rows differ by chance."""


class ServingParams(Section):
    """The service that answers users, and the log of exposures and outcomes."""

    log: str = ""
    """URL of the SQL database of exposures and outcomes; empty: a SQLite file in `var/`. `$DAYBREAK_LOG`
    comes first, and is the place for a URL with a password."""
    keep_days: float = Field(90, gt=0)
    """Days that exposures and outcomes are kept."""
    endpoint: Plug | None = None
    """Class of an endpoint that serves users: `daybreak:Endpoint` for Vertex AI;
    empty: only the routers serve."""


NotifyEvent = Literal[
    "promoted",
    "refused",
    "stopped",
    "rolled back",
    "question",
    "failed",
    "late",
    "over budget",
    "month budget",
    "calibration lost",
    "disk low",
    "alarm",
    "digest",
]


class NotifyParams(Section):
    """Who hears of what happens in nights, and when."""

    command: str = ""
    """Command that the shell runs with each message on its standard input; without it and `urls`, messages
    stay in the task log."""
    urls: tuple[str, ...] = ()
    """URLs of Apprise that each message is sent to: Slack, mail, Teams, a webhook. Environment variables are
    filled in, which is the place for a URL with a token: `$SLACK_URL`."""
    on: tuple[NotifyEvent, ...] = get_args(NotifyEvent)
    """Which messages are sent; `digest` needs no place here, as `digest_at` asks for it."""
    urgent: tuple[NotifyEvent, ...] = ("question", "failed", "late", "rolled back", "disk low")
    """Which of them are urgent: not held back by `quiet_hours`, and sent by `urgent_urls` too."""
    urgent_urls: tuple[str, ...] = ()
    """URLs of Apprise that urgent messages are sent to at any hour, such as PagerDuty. Empty: `command`
    and `urls` have them at any hour."""
    quiet_hours: str = Field("", pattern=r"^$|^([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d$")
    """From when to when messages that are not urgent wait, such as `22:00-07:00`, in `night.time_zone`.
    Empty: never."""
    min_free_gb: float = Field(2.0, ge=0)
    """Gigabytes that should be free on the disk of the home: with less, `disk low` is sent, once a day."""


S = TypeVar("S", bound=Section)
N = TypeVar("N", bound="Sections")


class Sections(Section):
    """Base of several sections of params.yaml, by the names that they have there."""

    _brought: dict[type[Section], Section] = PrivateAttr(default_factory=dict)

    def section(self, kind: type[S]) -> S:
        """Returns what an extension brings to params.yaml, by its model in `hooks.Extension.sections`."""
        brought = self._brought.get(kind)
        return brought if isinstance(brought, kind) else kind()

    def only(self, kind: type[N]) -> N:
        """Returns the sections that `kind` names, without those of the core that it does not."""
        values = {name: getattr(self, name) for name in kind.model_fields}
        made = cast(N, kind.model_construct(**values))
        made._brought = self._brought
        return made


class LiveSections(Sections):
    """Sections of the core that whoever judges versions by their users reads."""

    register_: RegisterParams
    gate: GateParams
    serving: ServingParams
    validate_: ValidateParams


class WatchSections(LiveSections):
    """Sections that the hourly look at the champion goes by."""

    watch: WatchParams


class GateSections(Sections):
    """Sections that a verdict goes by."""

    workload: WorkloadPlug
    train: TrainParams
    register_: RegisterParams
    gate: GateParams
    smoke_test: SmokeTestParams
    release: ReleaseParams
    serving: ServingParams
    validate_: ValidateParams


class PredictSections(Sections):
    """Sections by which a night's predictions are made."""

    predict: PredictParams
    register_: RegisterParams


class PlanSections(Sections):
    """Sections that a plan goes by."""

    workload: WorkloadPlug
    prepare: PrepareParams
    profile: ProfileParams
    plan: PlanParams
    train: TrainParams
    gate: GateParams


class Params(Sections):
    """The whole of params.yaml, in the order of dvc.yaml and of docs/params.md."""

    backend: BackendPlug
    """Where jobs run: `daybreak:Local`, this machine; `daybreak:Vertex`, rented machines;
    `daybreak:Slurm` and `daybreak:Kubernetes`, your own cluster; or your own class. Several in a list
    are each other's fallbacks, and `train.checkpoints` has to be a folder that all reach."""
    register_: RegisterParams = Field(RegisterParams(), alias="register")
    gate: GateParams = GateParams()
    serving: ServingParams = ServingParams()
    night: NightParams = NightParams()
    predict: PredictParams = PredictParams()
    watch: WatchParams = WatchParams()
    workload: WorkloadPlug
    """What is trained: `daybreak.examples.shop.recommender:Recommender`,
    `daybreak.examples.shop.regression:Regression`, or your own class."""
    prepare: PrepareParams = PrepareParams()
    train: TrainParams = TrainParams()
    plan: PlanParams = Field(default_factory=PlanParams)
    smoke_test: SmokeTestParams = SmokeTestParams()
    release: ReleaseParams = ReleaseParams()
    profile: ProfileParams = ProfileParams()
    source: SourcePlug
    """Where the data comes from: `daybreak.examples.shop.simulated_shop:Shop`, a simulated shop;
    `daybreak:Files`, files at any URL of fsspec; `daybreak:AsOf`, several
    tables joined as of time; or your own class."""
    ingest: IngestParams = IngestParams()
    validate_: ValidateParams = Field(ValidateParams(), alias="validate")
    evaluate: EvaluateParams = EvaluateParams()
    notify: NotifyParams = NotifyParams()

    @model_validator(mode="after")
    def _triggers_have_sizes(self) -> Self:
        asked = [line for line in self.plan.triggers if parse(line).action.endswith("batch")]
        if asked and self.train.batch_growth == "none":
            raise ValueError(
                f"plan.triggers has {asked[0]!r}, and train.batch_growth is none, so that there is no other "
                f"size to train with; set it to goodput"
            )
        return self
