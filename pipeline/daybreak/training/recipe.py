"""Defines what a job trains, and how far: `job.json` holds all that a worker needs, and names the job."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass, field, replace
from datetime import date, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from daybreak.contract.record_parts import EVERY_UPDATE, Epoch, Placement, Record, Rental, Size, Sync, Tuning
from daybreak.contract.record_types import Champion, Dataset, Night
from daybreak.contract.records import digest
from daybreak.contract.workload import ARRAYS, STATE, read_state
from daybreak.storage.source_code import source_digest
from daybreak.training.learning_rate import Schedule

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from daybreak.contract.sections import TrainParams, WorkloadPlug

log = logging.getLogger(__name__)


CHAMPION = Path("data/champion")
FACTS = CHAMPION / "model.json"
# Parts of a checkpoint; the first that it has is the model: the best by validation, then the average.
BEST, AVERAGE, NEWEST = "best", "average", "model"
FORM = 4  # of checkpoints: raise it where those of before can no longer be read, so that a job begins anew
END_BY = "end_by.json"  # where the budget ends before the time: the launcher writes it, worker 0 reads it
BATCH = "batch.json"  # the size of batches that a trigger asks for: likewise
MOVING = "moving"  # touched where a heartbeat finds no space on the disk, and while no update is taken


@dataclass(frozen=True, kw_only=True)
class Course:
    """How far tonight's training goes, and from which weights."""

    warm: bool  # from the champion's weights, if they have the shapes of tonight's model
    newest: bool  # on the newest samples alone, not on all
    first_sample: int
    epochs: float  # over the samples from `first_sample` on
    num_samples: int  # to train on, all epochs together
    rate: float  # learning rate, at its peak
    num_missed: int = (
        0  # of the newest, beyond `train.warm_share`, as nights were missed: no version saw them
    )
    num_validated: int = 0  # the newest, which training is validated on

    def without_missed(self) -> "Course":
        """Returns the course that leaves out the samples of missed nights."""
        num_newest = round(self.num_samples / self.epochs) - self.num_missed
        return replace(
            self,
            first_sample=self.first_sample + self.num_missed,
            num_missed=0,
            num_samples=max(1, round(self.epochs * num_newest)),
        )


def course(
    night: Night,
    dataset: Dataset,
    champion: Champion | None,
    workload: "WorkloadPlug",
    train: "TrainParams",
) -> Course:
    """Returns tonight's course: warm from the champion on the newest samples, or cold on all samples.

    The newest are `train.warm_share` of all, and at least those of the days that the champion has not seen.

    A start is cold every `train.cold_every` nights, where the night says why (`Night.cold`), and where the
    champion is another workload. One that was
    edited, has other arguments or was fitted again begins with the champion's weights, but trains on all
    samples: they may suit it less.
    """
    whole = Course(
        warm=False,
        newest=False,
        first_sample=0,
        epochs=train.epochs,
        num_samples=round(train.epochs * dataset.num_samples),
        rate=train.rate,
    )
    if champion is None or begins_cold(night, champion, workload, train):
        num_validated = num_newest(dataset, train.validation) if train.validation else 0
        num_samples = round(train.epochs * (dataset.num_samples - num_validated))
        return replace(whole, num_validated=num_validated, num_samples=num_samples)
    model = json.loads(FACTS.read_text())
    if change := _changed(champion, model, workload, train):
        log.warning("%s; training on all samples, from its weights if they have the same shapes", change)
        return replace(whole, warm=True)
    share = max(1, round(train.warm_share * dataset.num_samples))
    seen = date.fromisoformat(model.get("last_trained_day", model["last_day"]))
    newest = min(dataset.num_samples, max(share, dataset.num_after(seen)))
    _warn_of_unknown(dataset, newest)
    return Course(
        warm=True,
        newest=True,
        first_sample=dataset.num_samples - newest,
        epochs=train.warm_epochs,
        num_samples=round(train.warm_epochs * newest),
        rate=train.warm_rate,
        num_missed=max(0, newest - share),
    )


def _warn_of_unknown(dataset: Dataset, newest: int) -> None:
    """Warns of auxiliary labels that are known of none of the newest samples."""
    for name, until in dataset.known_until.items():
        if until and (later := dataset.num_after(date.fromisoformat(until))) >= newest:
            log.warning(
                "the %d newest samples, which a warm start trains on, have no value of the auxiliary label "
                "%s, known until %s, so the night learns nothing by it; set train.warm_share above %.2g, or "
                "train.cold_every to 1",
                newest,
                name,
                until,
                later / dataset.num_samples,
            )


def num_newest(dataset: Dataset, share: float) -> int:
    """Returns the samples of the newest whole days that are at most a share of all; one day at least.

    Where days are not known, or the newest is more than half of all, it is the share itself.
    """
    total = 0
    for day in sorted(dataset.num_of_days, reverse=True):
        if total and total + dataset.num_of_days[day] > share * dataset.num_samples:
            break
        total += dataset.num_of_days[day]
    return total if 0 < total <= dataset.num_samples / 2 else round(share * dataset.num_samples)


def last_trained_day(dataset: Dataset, num_validated: int) -> date:
    """Returns the last day with samples that are all trained on, where the newest are validated on."""
    if not dataset.num_of_days:
        num_days = (dataset.last_day - dataset.first_day).days + 1
        return dataset.last_day - timedelta(days=ceil(num_days * num_validated / dataset.num_samples))
    for day, num in sorted(dataset.num_of_days.items(), reverse=True):
        if num_validated <= 0:
            return date.fromisoformat(day)
        num_validated -= num
    return dataset.first_day - timedelta(days=1)


def begins_cold(
    night: Night, champion: Champion | None, workload: "WorkloadPlug", train: "TrainParams"
) -> bool:
    """Returns whether tonight's training begins with new weights, and not with the champion's."""
    on_cold_day = night.day.toordinal() % train.cold_every == 0
    if champion is None or on_cold_day or not champion.version or not FACTS.exists():
        return True
    if night.cold:
        log.info("%s; starting cold", night.cold)
        return True
    if why_cold := _unlike(champion, json.loads(FACTS.read_text()), workload):
        log.warning("%s; starting cold", why_cold)
    return bool(why_cold)


def _unlike(champion: Champion, model: dict[str, Any], workload: "WorkloadPlug") -> str:
    """Returns why the champion's weights mean nothing to tonight's model; "" if they do."""
    if model["workload"] != workload.use:
        return "the champion is another workload"
    if champion.model_digest and digest(CHAMPION) != champion.model_digest:
        return f"{CHAMPION} is not the model of version {champion.version}"
    if moved := _moved_names():
        return (
            f"`fit` was run again since version {champion.version} was trained, and {moved} has other places"
        )
    return ""


def _moved_names() -> str:
    """Returns an array of names in the state, such as a vocabulary, that is not the champion's; "" if none.

    A weight belongs to the place of a name, so that one of the same shape may be of another name.
    """
    before, now = read_state(CHAMPION), read_state(ARRAYS)
    return next(
        (
            name
            for name, names in before.items()
            if names.dtype.kind == "U" and name in now and now[name].tolist() != names.tolist()
        ),
        "",
    )


def _changed(
    champion: Champion, model: dict[str, Any], workload: "WorkloadPlug", train: "TrainParams"
) -> str:
    """Returns what has changed in the workload since the champion was trained; "" if nothing has."""
    if model["arguments"] != (workload.model_extra or {}):
        return f"the workload has other arguments than version {champion.version}"
    if (rate := model.get("band_rate", 0.0)) != train.band_rate:
        return f"train.band_rate is {train.band_rate:g}, and version {champion.version} has {rate:g}"
    source = source_digest(workload.use)
    if champion.lineage.get("source", source) != source:
        return f"the workload was edited since version {champion.version} was trained"
    if digest(ARRAYS / STATE) != digest(CHAMPION / STATE):
        return f"`fit` was run again since version {champion.version} was trained"
    return ""


@dataclass(frozen=True, kw_only=True)
class WarmStart(Record):
    """The model that training begins with."""

    folder: str
    digest: str  # "": not known


@dataclass(frozen=True, kw_only=True)
class LearningRate(Record):
    """The learning rate over a run, and how it follows the size of the batch."""

    peak: float
    warmup: float  # share of the samples
    decay: float  # share of the samples, at the end
    schedule: Schedule = "stable"  # between warm-up and decay
    scaling: Literal["by_optimizer", "adascale", "fixed"] = "by_optimizer"  # how it follows the batch
    base_batch_size: int = 0  # the size that the peak is for; 0: that of the recipe
    base_samples: int = 0  # to train on in batches of that size; 0: as many as the recipe says


@dataclass(frozen=True, kw_only=True)
class Clipping(Record):
    """The limits of a gradient; 0 for none."""

    norm: float = 0.0  # of all numbers together
    value: float = 0.0  # of each number, either way


@dataclass(frozen=True, kw_only=True)
class Averaging(Record):
    """Which weights of a run are averaged into those that are scored and served; none where both are 0."""

    ema: float = 0.0  # decay of an exponential average, an update of the base batch size
    last: float = 0.0  # share of the samples, at the end, after whose updates weights count alike


@dataclass(frozen=True, kw_only=True)
class Validation(Record):
    """How a run is validated while it trains."""

    num_samples: int = 0  # the newest of all, which are not trained on; 0: there is no validation
    num_scored: int = 0  # of these, spread over them, each time
    every: int = 0  # samples trained on from one validation to the next
    patience: int = 0  # validations without a better score, after which the rate falls to the end; 0: never


@dataclass(frozen=True, kw_only=True)
class SaveTimes(Record):
    """The times at which a job saves a checkpoint, and where copies go."""

    every_s: float  # the first one
    mean_time_to_loss_s: float | None = None  # of one machine of the job; None: the interval stays fixed
    schedule_s: tuple[float, ...] = ()  # intervals from a start on, the last repeated; none: as above
    copies: str = ""  # URL of a folder for copies of all jobs' checkpoints; "" for none


@dataclass(frozen=True, kw_only=True)
class Recipe(Record):
    """One training job. Paths are relative to the folder of the night, where the workers run."""

    night: str
    code_commit: str
    workload: str  # import path of the class
    arguments: dict[str, Any]  # of its constructor
    arrays: str
    data_digest: str
    last_day: date  # that the model has seen: of the training split, or by the weights it begins with
    last_trained_day: date | None = None  # where it was validated on later ones; None: the last day
    warm_start: WarmStart | None = None  # None: a cold start
    seed: int
    num_samples: int  # to train on, all epochs together
    batch_size: int  # global
    batch_by: Literal["samples", "tokens"] = "samples"  # tokens: it is the mean of batches of as many tokens
    micro_batch_size: int  # per device and pass
    rate: LearningRate
    saves: SaveTimes
    clipping: Clipping = field(default_factory=Clipping)
    averaging: Averaging = field(default_factory=Averaging)
    carries_optimizer: bool = False  # its moments, from the champion's training, and to that of its successor
    validation: Validation = field(default_factory=Validation)
    train_until: datetime
    split: Literal["train", "test"] = "train"  # test: a refit on the held-out samples
    first_sample: int = 0  # earlier samples are left out: a warm start trains on the newest
    tuning: Tuning = field(default_factory=Tuning)
    batching: Literal["by_speed", "even"] = "even"  # shares of workers; the gradient is the same
    hang_after_s: float = 120.0  # without an update
    sync: Sync = EVERY_UPDATE  # when its workers agree
    sync_is_tried: bool = False  # and summed at every update where averages do not pay
    threads: Literal["fixed", "auto"] = "fixed"  # auto: asynchronous workers on free cores
    # What a worker may change where memory becomes short.
    follow_memory: Literal["off", "same_gradient", "band_limited"] = "off"
    sizes: tuple[Size, ...] = ()  # of batches to choose among on its machines; none: the size stays
    source_digest: str = ""  # of the workload's source files: an edited model is another job
    frame_digest: str = ""  # of Daybreak's code, which may be updated while a night is open

    def on(self, placement: Placement) -> "Recipe":
        """Returns the same recipe in passes and batches for these machines; its identity stays."""
        return replace(
            self,
            micro_batch_size=placement.micro_batch_size or self.micro_batch_size,
            sizes=self.sizes and (placement.sizes or self.sizes),
        )

    @property
    def copies(self) -> str:
        """URL of the folder for copies of this job's checkpoints; "" for none."""
        folder = self.saves.copies.rstrip("/")
        return folder and f"{folder}/{self.night}/{self.identity[:12]}"

    @property
    def signal_updates(self) -> int:
        """Updates until all workers have what one signals, at most."""
        return self.sync.every * (2 if self.sync.is_late else 1)

    @property
    def identity(self) -> str:
        """Digest of what is learned: any machine may continue a checkpoint of the same identity."""
        return _digest(
            FORM,
            self.workload,
            self.arguments,
            self.data_digest,
            self.warm_start.digest if self.warm_start else "",
            self.seed,
            self.num_samples,
            self.first_sample,
            self.batch_size,
            self.rate.peak,
            self.rate.warmup,
            self.rate.decay,
            self.tuning.precision,
            self.rate.base_batch_size,
            self.rate.base_samples,
            self.rate.scaling,
            self.sync.every,
            bool(self.sizes),
            self.source_digest,
            *([self.batch_by] if self.batch_by != "samples" else []),
            *([self.split] if self.split != "train" else []),
            *([self.rate.schedule] if self.rate.schedule != "stable" else []),
            *([asdict(self.clipping)] if self.clipping != Clipping() else []),
            *([asdict(self.averaging)] if self.averaging != Averaging() else []),
            *([asdict(self.validation)] if self.validation != Validation() else []),
            *(["moments"] if self.carries_optimizer else []),
            *([self.tuning.band_rate] if self.tuning.band_rate else []),
            *([self.threads] if self.threads != "fixed" else []),
            *(["late"] if self.sync.is_late else []),
            *(["tried"] if self.sync_is_tried else []),
            *([self.follow_memory] if self.follow_memory == "band_limited" else []),
        )


@dataclass(frozen=True, kw_only=True)
class Progress(Record):
    """A heartbeat: one line of `progress.jsonl`."""

    time: datetime
    seen: int
    num_updates: int
    loss: float  # mean per sample since the line before
    rate: float
    samples_per_s: float  # since the line before
    memory_bytes: int  # peak of worker 0
    batch_size: int = 0  # of the newest update
    noise_scale: float | None = None  # of gradients, in samples; None: too few measurements
    end: int = 0  # predicted end of the run, in samples; 0: unknown
    num_samples: int = 0  # it would end there if time suffices: earlier where validation found nothing better
    device: str = ""  # of all workers, `2 x NVIDIA L4`
    device_use: float | None = None  # share of the time that worker 0's waited for no samples; None: not told
    memory_use: float | None = None  # share of the memory of worker 0's device that is in use, by whomever
    queue_length: int | None = None  # passes that loaders of worker 0 hold ready; None: it reads for itself


@dataclass(frozen=True, kw_only=True)
class Result(Record):
    """`result.json`, written last: once it exists, the model beside it is complete."""

    model_digest: str
    num_samples: int
    num_updates: int
    stopped_by: Literal["finished", "validation", "deadline", "budget"]
    warm: bool
    ended_at: datetime
    epochs: tuple[Epoch, ...] = ()  # by the sample audit
    noise_scale: float | None = None
    validations: tuple[tuple[int, float], ...] = ()  # samples trained on until then, and the mean score
    device: str = ""  # that the workers trained on
    sync: Sync = EVERY_UPDATE  # when they agreed at last
    short_of_memory: dict[str, int] = field(default_factory=dict)  # updates taken otherwise, by how
    num_skipped: int = 0  # updates whose gradients overflowed in float16


def name_of(recipe: Recipe, rental: Rental, *, num_workers: int) -> str:
    """Returns the name of the job: a digest of all inputs, so that a second submission starts nothing."""
    return _digest(
        recipe.identity,
        recipe.night,
        recipe.code_commit,
        recipe.micro_batch_size,
        asdict(recipe.tuning),
        recipe.batching,
        recipe.train_until.isoformat(),
        num_workers,
        recipe.frame_digest,
        rental.machine,
        rental.num_machines,
        rental.region,
        rental.strategy,
        rental.max_wait_s,
        *([rental.backend] if rental.backend else []),
        *map(str, rental.others),
    )[:12]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
