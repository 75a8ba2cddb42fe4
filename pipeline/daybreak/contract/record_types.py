"""Defines the records that stages write and read: frozen dataclasses, one JSON file each.

A night is a chain of records (daybreak/contract/records.py reads and writes them). What they are made of is
in record_parts.py. Units are in the names: `_s` seconds, `_bytes`, `_usd`; counts begin with `num_`; digests
are DVC's (md5, `.dir` for a folder). All times are UTC.
"""

from dataclasses import dataclass, field
from datetime import date, datetime
from math import ceil
from typing import Any, Literal

from daybreak.contract.record_parts import (
    EVERY_UPDATE,
    Chain,
    Check,
    ColumnDistribution,
    Confusion,
    Differences,
    Drift,
    Epoch,
    Erasure,
    Event,
    Expectation,
    FigureSeries,
    JobForecast,
    JobSpan,
    Judged,
    Line,
    ListChange,
    Live,
    LiveMetric,
    MeasuredEffect,
    MonthBudget,
    OwnCard,
    Placement,
    PlanReasons,
    Portion,
    RecipeTest,
    RecommendedLists,
    Record,
    Reliability,
    Remedy,
    Rental,
    ServedDay,
    Size,
    Slice,
    SpotOutlook,
    StageSpan,
    Sync,
    Taken,
    Trend,
    Tuning,
)

ADOPTS = "adopt: "  # how the trigger of a night begins that adopts a model, which it names
SCHEDULE = "schedule"  # the trigger of a night by a schedule, of cron too
BEFORE_TRAINING = 0.05  # share of the time until training ends that plans keep for the stages before it
LIVE_TEST = "live test"  # name of the portion that a plan keeps for users to judge, where it has the time
Action = Literal["promote", "reject", "wait", "no data"]  # what a gate decides


@dataclass(frozen=True, kw_only=True)
class Night(Record):
    """A night and its deadline, which `open` fixes once and no stage moves."""

    id: str
    day: date
    started_at: datetime
    train_until: datetime
    decide_until: datetime
    budget_usd: float
    trigger: str  # who started it and why: "schedule", "manual: REASON", or "watch: FINDING: REASON"
    code_commit: str
    previous: str  # commit of the ledger that this night follows; "" before the first
    airflow_run: str = ""  # DAG/RUN of the run of Airflow that opened it; "": none did
    cold: str = ""  # why training has to begin cold, on all samples; "": as `train` says
    boot: str = ""  # name of the boot of the machine that opened it, and when that was by its clock then, in
    booted_at: float = 0.0  # seconds since 1970 (daybreak/contract/clock.py)
    test_hours: float = 0.0  # that a live test needs, by the traffic of the last days; 0: none is planned for
    month: MonthBudget | None = None  # None: nothing limits a month
    predict_until: datetime | None = None  # predictions are written by then; None: none are asked for
    predict_from: datetime | None = None  # the champion's are written from then on, decision or not

    @property
    def command(self) -> str:
        """Returns the words after `daybreak` by which a night of its kind is opened, without options."""
        return f"adopt {self.trigger.removeprefix(ADOPTS)}" if self.trigger.startswith(ADOPTS) else "night"

    @property
    def last_decision(self) -> datetime:
        """Returns by when a decision has to be there, if the predictions are to be of what it lets serve."""
        return min(self.decide_until, self.predict_from or self.decide_until)


@dataclass(frozen=True, kw_only=True)
class Batch(Record):
    """What came in tonight: one partition a day, `data/raw/day=YYYY-MM-DD/`."""

    day: date
    num_rows: int  # of all days that came in tonight
    num_bytes: int
    digest: str  # of data/raw, all days
    late_days: tuple[date, ...]  # earlier days that came in, or changed, tonight
    # Digest of the rows of each other table that these days were joined with (daybreak/data/as_of.py).
    joined: dict[str, str] = field(default_factory=dict)
    waited_hours: float = 0.0  # from the opening until the day was there; 0: it was there at once


@dataclass(frozen=True, kw_only=True)
class Report(Record):
    """Whether the data can be trusted; `num_clean + num_quarantined == num_rows` always holds."""

    num_rows: int
    num_clean: int
    num_quarantined: int
    expectations: tuple[Expectation, ...]
    drift: tuple[Drift, ...]
    digest: str  # of data/clean, all days
    trends: tuple[Trend, ...] = ()  # slow drift


@dataclass(frozen=True, kw_only=True)
class Distributions(Record):
    """What the day looks like beside the days before, to be shown: no verdict rests on it.

    It stays in the folder of the night, also of one that is stopped by what it shows, and nowhere else.
    """

    day: date
    before: tuple[date, ...]  # that columns are compared with
    label: str  # column; "" for a table without
    drifted: tuple[str, ...]  # columns that are too far from the same weekdays before
    columns: tuple[ColumnDistribution, ...]
    left_out: tuple[str, ...]  # columns beyond the most that are shown
    figures: tuple[FigureSeries, ...]  # outside their limits, the farthest first; then by column


@dataclass(frozen=True, kw_only=True)
class ChangedLists(Record):
    """The lists that challenger and champion differ in most, without whose they are.

    They stay in the folder of the night, and nowhere else.
    """

    lists: tuple[ListChange, ...]  # the most different first


@dataclass(frozen=True, kw_only=True)
class Cards(Record):
    """What the team's class shows of a night; no verdict rests on it, and the ledger does not keep it."""

    at: datetime
    cards: tuple[OwnCard, ...]


@dataclass(frozen=True, kw_only=True)
class Dataset(Record):
    """Arrays that training maps into memory, `data/arrays/`."""

    digest: str
    num_samples: int  # of the training split
    num_bytes: int
    first_day: date
    last_day: date  # last day of the training split; what follows is held out
    num_unripe_days: int = 0  # of the window, whose labels are not yet known: neither trained on nor judged
    num_of_days: dict[str, int] = field(default_factory=dict)  # samples of each training day; {}: not known
    # The last training day on which an auxiliary label has values, by its column; "": none has.
    known_until: dict[str, str] = field(default_factory=dict)
    made_by: str = ""  # digest of the class that made the arrays, its arguments and source; "": not known

    def num_after(self, day: date) -> int:
        """Returns the samples of the training split on later days; by its share of days if not known."""
        if self.num_of_days:
            return sum(num for of, num in self.num_of_days.items() if of > str(day))
        num_days = (self.last_day - self.first_day).days + 1
        later = min(num_days, max(0, (self.last_day - day).days))
        return ceil(self.num_samples * later / num_days)


@dataclass(frozen=True, kw_only=True)
class Profile(Record):
    """Speed and memory of a step, and whether I/O, compute or memory binds the job."""

    device: str
    load_s: Line  # seconds to get a batch ready
    step_s: Line  # seconds of forward, backward and update
    memory_bytes: Line  # peak on the device
    sync_bytes: Line  # bytes to all-reduce an update
    flops_per_sample: float
    noise_scale: float
    bound: Literal["io", "compute", "memory"]
    evidence: dict[str, Any]
    remedies: tuple[Remedy, ...]
    # What the kept remedies came to; the lines are of the job before all but those to fit the memory.
    tuning: Tuning = field(default_factory=Tuning)
    is_estimator: bool = False  # no network: an update is a tree, of all samples, on one machine's CPU
    # Each worker needs the whole model, and all agree at every update; train.precision may ask for it, too.
    wants_whole: bool = False
    wants_one_worker: bool = False  # as the class keeps state of its own, or a batch is undivided
    is_undivided: bool = False  # a batch is one pass, as the loss is over all of its samples
    is_encoded: bool = False  # so is the loss, and parts of a batch are encoded twice


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """What to rent, for how long, at what price."""

    rental: Rental
    usd_per_hour: float | None = None  # of one machine; of unlike ones, the mean
    gpus: str = ""  # of one machine, "2 x L4"; "" for none
    forecast: JobForecast
    after: tuple[Portion, ...] = ()  # what follows training until the decision; not billed
    batch_size: int
    micro_batch_size: int
    sizes: tuple[Size, ...] = ()  # of batches to choose among, the planned one first; none where it stays
    tuning: Tuning = field(default_factory=Tuning)
    sync: Sync = EVERY_UPDATE  # when its workers agree
    num_samples: int  # to train on, all epochs together
    base_samples: int = 0  # `num_samples` in batches of the recipe's size; 0: as many as the recipe says
    num_left_out: int = 0  # samples of missed nights, for which there was no time or money
    checkpoint_every_s: float
    fallbacks: tuple[Placement, ...]
    cheaper: tuple[Placement, ...] = ()  # too slow for the whole job; taken where it is far ahead
    spot: SpotOutlook | None = None  # None: on demand, or without the extension `spot`
    # Of expected_usd: beyond the best that is known, to learn; below 0 where it costs less if it is in time.
    explore_usd: float = 0.0
    waited_s: float = 0.0  # that the night had waited, for its day or for machines
    reasons: PlanReasons


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """What came back from the job, `data/run/model/`."""

    model_digest: str
    num_samples: int  # trained on: the last value of `seen`
    num_updates: int
    num_restarts: int
    elapsed_s: float
    cost_usd: float
    stopped_by: Literal["finished", "validation", "deadline", "budget"]
    epochs: tuple[Epoch, ...] = ()  # in order; none where no ledger was kept
    validations: tuple[tuple[int, float], ...] = ()  # samples trained on until then, and the mean score
    ended_at: datetime | None = None
    start_s: float | None = None  # from the first submission to the first worker, before `elapsed_s`
    spot_lives: tuple[tuple[float, bool], ...] = ()  # of spot machines: seconds lived, and was it preempted
    noise_scale: float | None = None  # of gradients towards the end, in samples; None: not enough was seen
    fallbacks: tuple[Taken, ...] = ()  # as they were taken
    device: str = ""  # that the workers trained on at last, "2 x NVIDIA L4"; "" where nobody told
    device_use: float | None = None  # share of the time that it waited for no samples; None: not measured
    logs: str = ""  # where a person reads what the last job printed: a path or an address
    warm: bool | None = None  # did it begin with the champion's weights? None: nobody told
    sync: "Sync | None" = None  # when its workers agreed at last; None: nobody told
    # Seconds and updates from their first start to the last heartbeat before the next; None: there was none.
    before_restart: tuple[float, int] | None = None
    first_device: str = ""  # that they trained on before that; "" without a restart, or where nobody told
    # Updates of worker 0 that were taken otherwise than planned, as memory was short, by how.
    short_of_memory: dict[str, int] = field(default_factory=dict)
    num_skipped: int = 0  # updates whose gradients overflowed in float16
    losses: tuple[
        tuple[int, float], ...
    ] = ()  # samples trained on until then, and the mean loss since before
    attempts: tuple[JobSpan, ...] = ()  # in order; none: made before they were kept
    restarted_at: tuple[datetime, ...] = ()  # when workers started anew

    @property
    def took_s(self) -> float:
        """Returns the seconds that a plan predicts: from the first submission, the queue included."""
        return self.elapsed_s + (self.start_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """Held-out scores; the per-sample ones are in `data/run/scores.npy`."""

    model_digest: str
    data_digest: str
    num_samples: int
    metrics: dict[str, float]
    slices: tuple[Slice, ...]
    elapsed_s: float | None = None
    judged: tuple[Judged, ...] = ()  # the first decides; none where the workload scores samples by itself
    live: LiveMetric | None = None  # None: users are shown lists, which are scored by their NDCG
    live_others: tuple[LiveMetric, ...] = ()  # the other metrics whose values are of single samples
    days: tuple[date, ...] = ()  # held-out days that were scored; none: made before that was kept
    num_by_day: tuple[int, ...] = ()  # samples of each of these days; none: the workload does not tell
    seen_days: tuple[date, ...] = ()  # held-out days left out, since a model was trained on them
    cannot_judge: str = ""  # why no model can be judged on these samples, and what to do
    differences: Differences | None = None  # None: not asked for, or the workload has no features and metrics
    # By metric and slice, "" for all samples: the challenger's mean and its standard error.
    by_slice: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    reliability: Reliability | None = None  # None: no metric is of the chance of one class
    confusion: Confusion | None = None  # None: no metric is of classes
    lists: RecommendedLists | None = None  # None: the workload recommends nothing, or has no likely users


@dataclass(frozen=True, kw_only=True)
class Version(Record):
    """A model in the registry."""

    name: str
    number: int
    night: str
    data_digest: str
    model_digest: str
    run_id: str
    files_digest: str = ""  # of all its files, code included
    files: dict[str, int] = field(default_factory=dict)  # bytes of each, by its name
    mlmodel: str = ""  # text of its file MLmodel, which no other version has; "": made before that was kept
    experiment: str = "0"  # of MLflow, that the run is in; "0": made before that was kept
    adopted: str = ""  # URI of the team's model that it wraps; "": a night trained it


@dataclass(frozen=True, kw_only=True)
class Ingredients(Record):
    """The parts of a version's recipe, by which a later night can name a change."""

    files: dict[str, str]  # digests of the workload's files by their names
    values: dict[str, Any]  # of the workload's arguments and of `train`, by key


@dataclass(frozen=True, kw_only=True)
class Verdict(Record):
    """A decision at release time. Versions are 0 where there is none."""

    action: Action
    champion: int
    challenger: int
    effect: MeasuredEffect | None = None  # challenger - champion; None without evidence
    num_samples: int = 0
    reason: str
    num_units: int = 0  # that these samples are of; 0: each counts by itself
    decided_at: datetime | None = None  # by the gate
    inconclusive: bool = False  # rejected for want of proof only
    checks: tuple[Check, ...] = ()  # of the gate on itself, and of the model's fitness to serve
    approve_until: datetime | None = None  # a person has to approve before then; None: nobody is asked
    live: Live | None = None  # where users met the challenger
    failed: str = ""  # the stage that failed before anything could be judged
    margin: float | None = None  # what a refresh may be worse by, in units of the score
    chain: Chain | None = None  # of refreshes; None without a champion
    recipe_test: RecipeTest | None = None  # over nights; None: no recipe is tested, or tonight alone judges
    false_promotion_chance: float | None = None  # where it is no better; None: no changed recipe was tried
    false_promotions_expected: float | None = None  # of all recipes of a year, at most, if none were better
    recipe: str = ""  # of the challenger, a digest
    held: tuple[str, ...] = ()  # commits of the holds on this recipe, which a promotion ends
    held_chance: float | None = None  # of a false proof against them; None: none was tried


@dataclass(frozen=True, kw_only=True)
class Approval(Record):
    """A person's answer to a verdict that waited for one. The first answer stands."""

    champion: int
    challenger: int
    action: str  # of the verdict that was answered
    approved: bool
    by: str
    reason: str
    answered_at: datetime


@dataclass(frozen=True, kw_only=True)
class Hold(Record):
    """A person's word against recipes, which a rollback or a rejection with a reason leaves.

    A version of such a recipe serves only if a person approves it, or once one is proven better on days that
    nobody had seen then (daybreak/rollout/hold.py).
    """

    recipes: tuple[str, ...]  # digests
    what: Literal["took back", "rejected"]
    versions: tuple[int, ...]  # that this was about
    since: date  # newest day of data then
    until: date | None  # last night that it binds; None: until it is lifted
    by: str
    reason: str
    at: datetime

    def __str__(self) -> str:
        """Returns who said what of which versions, when and why."""
        versions = f"version{'s' * (len(self.versions) > 1)} {', '.join(map(str, self.versions))}"
        return f"{self.by} {self.what} {versions} on {self.at:%Y-%m-%d}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Stop(Record):
    """A person's word that a running night ends without a decision: the champion stays."""

    by: str
    reason: str
    stopped_at: datetime


@dataclass(frozen=True, kw_only=True)
class Bill(Record):
    """The dollars of all jobs of a night, where a training or a refit did not come to its end."""

    usd: float


@dataclass(frozen=True, kw_only=True)
class Refit(Record):
    """What became of a version that was promoted, by training it on the held-out days too."""

    judged: int  # the version that the verdict is on
    version: Version | None = None  # that it became; None: it was not registered
    training: Training | None = None  # of the refit; with the cost of all jobs of the night
    checks: tuple[Check, ...] = ()  # of its fitness to serve, and of its outputs beside the judged version's
    why_not: str = ""  # why the judged version serves as it is; "": the refitted one does

    def in_place_of(self, judged: int) -> Version | None:
        """Returns the version that serves in place of the judged one; None where that serves itself."""
        return self.version if self.judged == judged and not self.why_not else None


@dataclass(frozen=True, kw_only=True)
class Release(Record):
    """Which version serves. Versions are 0 where there is none."""

    version: int
    replaced: int
    model_digest: str = ""
    files_digest: str = ""  # of all files of the version, code included
    files: dict[str, int] = field(default_factory=dict)  # bytes of each, by its name
    night: str = ""
    lineage: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Predictions(Record):
    """What the version that served predicted for the day after the night's, and where that was written."""

    night: str
    day: date  # newest day of data, which `{day}` of the URL stands for
    version: int
    to: str  # URL, with variables of the environment as params.yaml names them
    of: str  # what was predicted: clean rows, the workload's score_rows, a source, or lists of users
    older: date | None = (
        None  # whose rows these are, where the night's day had none; None: they are the day's
    )
    num_rows: int  # written
    digest: str  # of the rows as files, whatever they were written to
    drift: tuple[Drift, ...] = ()  # from the predictions of days before
    elapsed_s: float  # that the last call took
    num_kept: int = 0  # files of rows that calls before had scored, of num_files
    num_files: int = 1
    written_at: datetime
    until: datetime | None = None  # they were to be written by then
    ahead_of: str = ""  # stage that the night still waited in; "": they are by what the night decided

    @property
    def is_late(self) -> bool:
        """Returns whether they were written after their deadline."""
        return self.until is not None and self.written_at > self.until

    @property
    def whole_s(self) -> float:
        """Returns the seconds that the last call would have taken without files of calls before."""
        return self.elapsed_s * self.num_files / max(1, self.num_files - self.num_kept)


@dataclass(frozen=True, kw_only=True)
class Anchor(Record):
    """The version that a chain of refreshes is held against."""

    release: Release
    since: date
    offset: float = 0.0  # what the chain had lost before, in units of the score; 0 or below


@dataclass(frozen=True, kw_only=True)
class Champion(Release):
    """The version that served when the night was opened; its model is in `data/champion/`."""

    anchor: Anchor | None = None  # of its chain
    predecessor: Release | None = None  # the version that it replaced; None: none, or the ledger has it not
    candidate: Release | None = (
        None  # newest version of a recipe under test, while the champion's has its turn
    )


@dataclass(frozen=True, kw_only=True)
class ServedDays(Record):
    """The served days of the version that serves, each of which is compared once, oldest first."""

    version: int
    days: tuple[ServedDay, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watch(Record):
    """Result of the hourly watch over the version that serves. Versions are 0 where there is none."""

    outcome: Literal["kept", "rolled back", "no data"]
    serving: int  # when it was looked at
    predecessor: int  # that it replaced, and is compared with
    effect: MeasuredEffect | None  # serving - predecessor; None without evidence
    num_samples: int
    reason: str
    served: ServedDay | None = None  # the newest day whose rows were compared with those of training


@dataclass(frozen=True, kw_only=True)
class Events(Record):
    """The events of a night so far, or the event of a rollback, in the order of writing."""

    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Spans(Record):
    """When the stages of a night were called, in order; in the ledger, those before its commit."""

    stages: tuple[StageSpan, ...]


@dataclass(frozen=True, kw_only=True)
class Note(Record):
    """What the ledger has to say besides nights and rollbacks."""

    at: str  # 2011-09-30 03:00 UTC
    text: str
    versions: tuple[int, ...]  # that it is about
    recipe: str = ""  # that a person declared to be the one these versions were made by
    lifts: tuple[str, ...] = ()  # commits of rollbacks and nights whose holds end
    erasure: Erasure | None = None
    predictions: Predictions | None = None  # of a night that was in the ledger before they were written

    def __str__(self) -> str:
        """Returns it as a line for a person."""
        return f"{self.at}: {self.text}"


OF_A_NIGHT = (
    Night,
    Champion,
    Batch,
    Report,
    Dataset,
    Profile,
    Plan,
    Training,
    Bill,
    Evaluation,
    Version,
    Verdict,
    Approval,
    Hold,
    Refit,
    Release,
    Predictions,
    Stop,
    Events,
    Spans,
)
