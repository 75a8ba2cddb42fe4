"""Defines the records that stages write and read: frozen dataclasses, one JSON file each.

A night is a chain of records (daybreak/contract/records.py reads and writes them). Units are in the names:
`_s` seconds, `_bytes`, `_usd`; counts begin with `num_`; digests are DVC's (md5, `.dir` for a folder). All
times are UTC.
"""

from dataclasses import dataclass, field, replace
from datetime import date, datetime
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from pydantic import ConfigDict

Strategy = Literal["on-demand", "spot", "flex-start"]  # how a machine is rented
LOCAL = "local"  # the machine at hand, which is not rented
Action = Literal["promote", "reject", "wait", "no data"]  # what a gate decides


class Record:
    """Base of all records; it only switches off unknown keys."""

    __pydantic_config__: ClassVar["ConfigDict"] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Chosen(Record):
    """Values that a night has of the keys in `plan.quality_choices` (extensions/exploration)."""

    values: dict[str, int]  # by key
    rest: str  # digest of all else that decides the model: nights are compared where it is the same
    tried: str = ""  # key whose value is on trial tonight; "": none
    usual_usd: float = 0.0  # what training costs without that
    is_refresh: bool = False  # of the champion's recipe but for values that earlier nights proved better
    reason: str = ""  # why these values; clauses for a sentence


@dataclass(frozen=True, kw_only=True)
class Night(Record):
    """A night and its deadline, which `open` fixes once and no stage moves."""

    id: str
    day: date
    started_at: datetime
    train_until: datetime
    decide_until: datetime
    budget_usd: float
    trigger: str  # who started it and why: "schedule", or "manual: REASON"
    code_commit: str
    previous: str  # commit of the ledger that this night follows; "" before the first
    airflow_run: str = ""  # DAG/RUN of the run of Airflow that opened it; "": none did
    cold: str = ""  # why training has to begin cold, on all samples; "": as `train` says
    boot: str = ""  # name of the boot of the machine that opened it, and when that was by its clock then, in
    booted_at: float = 0.0  # seconds since 1970 (daybreak/contract/clock.py)
    test_hours: float = 0.0  # that a live test needs, by the traffic of the last days; 0: none is planned for
    chosen: Chosen | None = None  # None: the objective is not quality, or there is nothing to choose


@dataclass(frozen=True, kw_only=True)
class Batch(Record):
    """What came in tonight: one partition a day, `data/raw/day=YYYY-MM-DD/`."""

    day: date
    num_rows: int  # of all days that came in tonight
    num_bytes: int
    digest: str  # of data/raw, all days
    late_days: tuple[date, ...]  # earlier days that came in, or changed, tonight
    joined: dict[str, str] = field(default_factory=dict)  # digest of the rows of each other table that these
    # days were joined with (daybreak/data/as_of.py)


@dataclass(frozen=True, kw_only=True)
class Expectation(Record):
    """One rule of the suite, and its result tonight."""

    rule: str
    column: str
    num_failed: int
    success: bool


@dataclass(frozen=True, kw_only=True)
class Drift(Record):
    """Distance of one column of tonight's data from the last same weekdays."""

    column: str
    statistic: str
    value: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Trend(Record):
    """A figure of the data that has changed a little each day of the last weeks."""

    figure: str
    words: str  # of the change
    days: tuple[date, ...]
    values: tuple[float, ...]  # of the figure on these days
    began: float  # the fitted line on the first of them
    ended: float  # and on the last


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
class Dataset(Record):
    """Arrays that training maps into memory, `data/arrays/`."""

    digest: str
    num_samples: int  # of the training split
    num_bytes: int
    first_day: date
    last_day: date  # last day of the training split; what follows is held out
    num_unripe_days: int = 0  # of the window, whose labels are not yet known: neither trained on nor judged
    num_of_days: dict[str, int] = field(default_factory=dict)  # samples of each training day; {}: not known

    def num_after(self, day: date) -> int:
        """Returns the samples of the training split on later days; by its share of days if not known."""
        if self.num_of_days:
            return sum(num for of, num in self.num_of_days.items() if of > str(day))
        num_days = (self.last_day - self.first_day).days + 1
        later = min(num_days, max(0, (self.last_day - day).days))
        return ceil(self.num_samples * later / num_days)


@dataclass(frozen=True, kw_only=True)
class Line(Record):
    """`fixed + per_sample * batch`, each with the half-width of its 90 % interval."""

    fixed: float
    per_sample: float
    fixed_error: float
    per_sample_error: float

    def __call__(self, num_samples: float) -> float:
        """Returns the value of the line at a batch of `num_samples`."""
        return self.fixed + self.per_sample * num_samples


@dataclass(frozen=True, kw_only=True)
class Tuning(Record):
    """How a step is taken; with all of it off, as torch does it.

    It costs no quality of the model, but for `band_rate`, which the team sets.
    """

    num_loaders: int = 0  # threads that get batches ready; 0: the training thread does
    loader_processes: bool = False  # processes in place of these threads
    in_memory: bool = False  # samples stay in columns in memory once they were read
    pinned: bool = False  # batches in page-locked memory, from which an accelerator copies by itself
    precision: Literal["float32", "bfloat16"] = "float32"  # of products; weights are float32
    band_rate: float = 0.0  # share of the spectrum that convolutions leave out, as `train.band_rate` says
    compiled: bool = False
    fused: bool = False  # the optimizer updates all weights in one kernel
    channels_last: bool = False  # order of images in memory
    sparse: bool = False  # gradients of large embedding tables have only the rows that were looked up
    recompute: bool = False  # activations are computed again in the backward pass instead of kept
    sharded: bool = False  # each worker holds its share of the optimizer's state (ZeRO, 2020)
    sharded_weights: bool = False  # and its share of weights and gradients, whole only while they are used


@dataclass(frozen=True, kw_only=True)
class Remedy(Record):
    """A change that could make the job faster, and its result. Gains are time saved / time."""

    name: str
    bound: str
    applies: bool
    applied: bool
    kept: bool
    predicted_gain: float
    measured_gain: float
    quality: bool  # touches the quality of the model: offered, not applied
    note: str


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
    tuning: Tuning = (
        Tuning()
    )  # what the kept remedies came to; the lines are of the job before all but those to fit the memory


@dataclass(frozen=True, kw_only=True)
class Pool(Record):
    """Machines of one kind among those of a job."""

    machine: str
    num_machines: int = 1

    def __str__(self) -> str:
        """Returns them in a few words."""
        return f"{self.num_machines} x {self.machine}" if self.num_machines > 1 else self.machine


@dataclass(frozen=True, kw_only=True)
class Rental(Record):
    """Which machines, how many, where, and how they are rented.

    >>> str(Rental(machine="g2-standard-8", num_machines=2, region="us-central1", strategy="spot"))
    '2 x g2-standard-8, spot, in us-central1'
    >>> str(Rental(machine=LOCAL))
    'local'
    >>> str(Rental(machine="a100", num_machines=3, others=(Pool(machine="l4", num_machines=2),)))
    'a100 + 2 x l4'
    """

    machine: str
    num_machines: int = 1  # all of the job, `others` included
    region: str = ""  # "" for the machine at hand
    strategy: Strategy = "on-demand"
    max_wait_s: float = 0.0  # in the queue of flex-start; others are rented at once
    backend: str = ""  # name in params.yaml; "" where there is only one
    others: tuple[Pool, ...] = ()  # machines of another kind than `machine`

    @property
    def pools(self) -> tuple[Pool, ...]:
        """Returns its machines by kind."""
        first = self.num_machines - sum(pool.num_machines for pool in self.others)
        return Pool(machine=self.machine, num_machines=first), *self.others

    @property
    def one(self) -> "Rental":
        """Returns one machine of its first kind, rented the same way."""
        return replace(self, num_machines=1, others=())

    @property
    def is_local(self) -> bool:
        """Returns whether it is the machine at hand, which costs nothing."""
        return self.machine == LOCAL

    @property
    def is_spot(self) -> bool:
        """Returns whether the machines may be preempted."""
        return self.strategy == "spot"

    @property
    def is_queued(self) -> bool:
        """Returns whether the job queues for the machines, which may never come."""
        return self.strategy == "flex-start"

    @property
    def on_demand(self) -> "Rental":
        """Returns the same machines, rented on demand."""
        return replace(self, strategy="on-demand", max_wait_s=0.0)

    def __str__(self) -> str:
        """Returns the rental in a few words for a person."""
        what = " + ".join(map(str, self.pools))
        how = f", {self.strategy}" if self.strategy != "on-demand" else ""
        where = f", in {self.region}" if self.region else ""
        by = f", by {self.backend}" if self.backend else ""
        return f"{what}{how}{where}{by}"


@dataclass(frozen=True, kw_only=True)
class Size(Record):
    """A batch size that fits some machines, and how they take an update of it."""

    batch_size: int  # global
    micro_batch_size: int
    update_s: float


@dataclass(frozen=True, kw_only=True)
class Placement(Record):
    """Machines to fall back on and the latest time at which starting them still makes the deadline."""

    rental: Rental
    expected_s: float
    expected_usd: float
    latest_start: datetime
    usd_per_hour: float | None = None  # of one machine; of unlike ones, the mean
    gpus: str = ""  # of one machine of the first kind, "2 x L4"; "" for none
    micro_batch_size: int = 0  # that fits these machines; 0: as the plan says
    sizes: tuple[Size, ...] = ()  # of batches on these machines; none: as the plan says


@dataclass(frozen=True, kw_only=True)
class Sync(Record):
    """When the workers of a job agree.

    >>> str(Sync(every=16))
    'averages every 16 updates'
    """

    every: int = 1  # updates between averages of weights; 1: gradients are added up at each update
    is_late: bool = False  # an average is taken up one interval later, so that nobody waits for it

    def __str__(self) -> str:
        """Returns it in a few words."""
        if self.every == 1:
            return "sums at every update"
        return f"averages every {self.every} updates{', without a barrier' if self.is_late else ''}"


EVERY_UPDATE = Sync()


@dataclass(frozen=True, kw_only=True)
class Option(Record):
    """One way to run the job that was weighed, and the number that decided against it."""

    rental: Rental
    batch_size: int
    expected_s: float
    interval: tuple[float, float]  # 90 %, of the seconds
    expected_usd: float
    chance: float  # of being done in time
    feasible: bool
    frontier: bool  # nothing beats it in both time and cost
    why_not: str  # "" for the plan itself
    sync: Sync = EVERY_UPDATE


@dataclass(frozen=True, kw_only=True)
class Portion(Record):
    """A part of what the plan expects to take."""

    name: str
    expected_s: float
    expected_usd: float


@dataclass(frozen=True, kw_only=True)
class SpotOutlook(Record):
    """What a plan on spot expects of losing its machines."""

    mean_time_to_loss_s: float  # of all machines of the job together
    checkpoints_s: tuple[float, ...]  # from a machine's start on, where its danger changes with age
    basis: str  # of lifetimes and checkpoints, and the cost at worst, in words
    worst_usd: float | None = None  # if the rest has to be bought; None: it cannot be


@dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """What to rent, for how long, at what price."""

    rental: Rental
    batch_size: int
    micro_batch_size: int
    num_samples: int  # to train on, all epochs together
    checkpoint_every_s: float
    expected_s: float
    expected_usd: float
    interval: tuple[float, float]  # 90 %, of the seconds
    fallbacks: tuple[Placement, ...]
    runner_up: str  # the next best and the number that decided
    tuning: Tuning = Tuning()
    chance: float | None = None  # of being done in time
    usd_per_hour: float | None = None  # of one machine; of unlike ones, the mean
    price_source: str = ""  # whose price that is
    price_dated: date | None = None
    options: tuple[Option, ...] = ()  # what was weighed: the plan, the next best, the frontier
    portions: tuple[Portion, ...] = ()  # of `expected_s` and `expected_usd`, in order
    basis: str = ""  # what the time rests on: measurements, earlier nights, priors
    spot: SpotOutlook | None = None  # None: on demand, or without the extension `spot`
    widened: float = 1.0  # times the plain interval, since earlier ones were too narrow
    after: tuple[Portion, ...] = ()  # what follows training until the decision; not billed
    sizes: tuple[Size, ...] = ()  # of batches to choose among, the planned one first; none where it stays
    # Of expected_usd: beyond the best that is known, to learn; below 0 where it costs less if it is in time.
    explore_usd: float = 0.0
    gpus: str = ""  # of one machine, "2 x L4"; "" for none
    share: str = ""  # of the machines that it has in common with other models; "" where it has none
    num_left_out: int = 0  # samples of missed nights, for which there was no time or money
    base_samples: int = 0  # `num_samples` in batches of the recipe's size; 0: as many as the recipe says
    cheaper: tuple[Placement, ...] = ()  # too slow for the whole job; taken where it is far ahead
    sync: Sync = EVERY_UPDATE  # when its workers agree
    samples_reason: str = ""  # why so many samples, a sentence; "": the objective is not quality


@dataclass(frozen=True, kw_only=True)
class Epoch(Record):
    """An epoch of which the sample audit proves that each sample came exactly once."""

    num_samples: int
    whole: bool  # or the part that was trained on
    digest: str  # of the samples that were given to a step, in any order


@dataclass(frozen=True, kw_only=True)
class Taken(Record):
    """A fallback that training took to be done in time and within the budget, or to cost less."""

    time: datetime
    name: Literal["on-demand", "next fallback", "scale up", "step down", "undo", "finish early", "checkpoint"]
    usd: float  # expected extra cost of the rest of the work; below 0: saved
    reason: str


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """What came back from the job, `data/run/model/`."""

    model_digest: str
    num_samples: int  # trained on: the last value of `seen`
    num_updates: int
    num_restarts: int
    elapsed_s: float
    cost_usd: float
    stopped_by: Literal["finished", "deadline", "budget"]
    epochs: tuple[Epoch, ...] = ()  # in order; none where no ledger was kept
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
    # Updates of worker 0 that were taken otherwise than planned, as memory was short, by how.
    short_of_memory: dict[str, int] = field(default_factory=dict)

    @property
    def took_s(self) -> float:
        """Returns the seconds that a plan predicts: from the first submission, the queue included."""
        return self.elapsed_s + (self.start_s or 0.0)


@dataclass(frozen=True, kw_only=True)
class Slice(Record):
    """Mean score over part of the held-out samples."""

    name: str
    num_samples: int
    score: float
    champion_score: float | None = None


@dataclass(frozen=True, kw_only=True)
class Judged(Record):
    """A metric that the workload names, and what the gate is to make of it."""

    name: str
    role: Literal["success", "guardrail", "report"]
    margin: float  # what it may be worse by, as a share of the champion's value
    higher_is_better: bool


@dataclass(frozen=True, kw_only=True)
class LiveMetric(Record):
    """A metric that users judge predictions of rows by: its values are of single samples."""

    name: str = ""  # with a minus where lower is better; "": made before that was kept
    use: str = ""  # import path of its class; "": none of the workload's metrics is such
    arguments: dict[str, Any] = field(default_factory=dict)
    is_first: bool = True  # of the workload's metrics
    has_label: bool = True  # else it is of the prediction alone
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ..., by which users' labels may come
    margin: float = 0.0  # what it may be worse by
    low: float = 0.0  # the middle 99.8 % of the champion's held-out values are from here
    high: float = 0.0  # to here


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
    mlmodel: str = ""  # text of its file MLmodel, which no other version has; "": made before that was kept
    experiment: str = "0"  # of MLflow, that the run is in; "0": made before that was kept


@dataclass(frozen=True, kw_only=True)
class Ingredients(Record):
    """The parts of a version's recipe, by which a later night can name a change."""

    files: dict[str, str]  # digests of the workload's files by their names
    values: dict[str, Any]  # of the workload's arguments and of `train`, by key


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """Something that was checked before a verdict, and its result."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Live(Record):
    """Results of a live test: of users who met the challenger, or the champion meanwhile."""

    experiment: str
    began_at: datetime  # by the clock of the log of serving, as ends_at
    foretold: str  # before the first user: the smallest effect that the traffic can show
    share: float = 0.0  # of the challenger, at last
    num_challenger: int = 0  # users whose arm was left to chance
    num_champion: int = 0
    effect: float | None = None  # challenger - champion; None without evidence
    low: float | None = None
    high: float | None = None
    reason: str = ""
    checks: tuple[Check, ...] = ()  # the guardrails
    ends_at: datetime  # as planned when it began


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """Mean difference of two models' scores on a night's samples, and its standard error."""

    mean: float = 0.0
    error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Chain(Record):
    """Where a chain of refreshes stands against its anchor (daybreak/gate/chain.py), in the score's units."""

    anchor: int  # version
    since: date  # it is the anchor
    margin: float  # what the chain may lose
    offset: float = 0.0  # loss of the chain before this anchor; 0 or below
    step: Difference | None = None  # of the challenger from the champion
    challenger: Difference | None = None  # from the anchor; None: of another recipe, or not scored
    champion: Difference | None = None  # from the anchor; None: it is the anchor, or not scored
    predecessor: Difference | None = None  # of the champion from the version that it replaced
    level: float | None = None  # of the challengers of the newest nights, offset included
    half_width: float | None = None  # of its interval
    num_nights: int = 0  # that it is the mean of
    spent: bool = False  # whether the margin is
    least_margin: float | None = None  # that nights like these could guard; None: they can guard this one
    renewed: float | None = None  # offset with which tonight's version is the next anchor; None: it is not
    nights_to_show: int | None = (
        None  # as tonight's, until `watch` shows a loss of the margin; None: not known
    )


@dataclass(frozen=True, kw_only=True)
class RecipeTest(Record):
    """Tonight's part of a test of a changed recipe over nights (daybreak/gate/recipe_test.py)."""

    recipe: str  # that is tested, a digest
    against: str  # the champion's
    days: tuple[date, ...]  # held-out days of tonight that no earlier night of the test has had
    metrics: tuple[str, ...] = ()  # by which it is judged, the first by the name that the workload has for it
    differences: dict[str, Difference] = field(default_factory=dict)  # from the champion's recipe, by metric
    is_turn: bool = False  # of the champion's recipe, so that the recipe under test is the older one
    num_nights: int = 0  # so far, of `least_nights` at least
    least_nights: int
    effect: float | None = None  # mean over nights of the first metric; None: nothing was scored
    low: float | None = None  # ends of its interval, which hold on all nights at once; None: without end
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict(Record):
    """A decision at release time. Versions are 0 where there is none."""

    action: Action
    champion: int
    challenger: int
    effect: float | None = None  # challenger - champion; None without evidence
    low: float | None = None
    high: float | None = None
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
    night: str = ""
    lineage: dict[str, str] = field(default_factory=dict)


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
class Watch(Record):
    """Result of the hourly watch over the version that serves. Versions are 0 where there is none."""

    outcome: Literal["kept", "rolled back", "no data"]
    serving: int  # when it was looked at
    predecessor: int  # that it replaced, and is compared with
    effect: float | None  # serving - predecessor; None without evidence
    low: float | None
    high: float | None
    num_samples: int
    reason: str


EventKind = Literal[
    "opened",
    "drift",
    "planned",
    "over budget",
    "question",
    "approved",
    "declined",
    "promoted",
    "refused",
    "stopped",
    "rolled back",
    "late",
    "failed",
    "calibration lost",
    "disk low",
    "alarm",
]


@dataclass(frozen=True, kw_only=True)
class Event(Record):
    """Something that happened in a night, or a rollback, which is not part of any night.

    `promoted` and `rolled back` let `version` serve in place of `champion`; `question`, `approved`,
    `declined`, `refused` and `stopped` are about `version`, while `champion` serves. Either is 0 where none
    is meant.
    """

    kind: EventKind
    at: datetime
    night: str  # its id; of a rollback, the night that made the version which serves again
    subject: str = ""  # what it is about; the same kind and subject are written once a night
    version: int = 0
    champion: int = 0
    by: str = ""  # who decided: a person, "gate" or "watch"; "": nobody did
    reason: str = ""  # why, or what was seen, with its figures
    until: datetime | None = None  # a question can be answered


@dataclass(frozen=True, kw_only=True)
class Events(Record):
    """The events of a night so far, or the event of a rollback, in the order of writing."""

    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True)
class Erasure(Record):
    """What was erased (daybreak/storage/erasures.py)."""

    unit: str  # keyed hash of the unit
    key: str  # hash of the key, which tells keys apart
    num_rows: int  # of the distinct partitions that held any
    days: tuple[str, ...]  # of these rows
    digests: dict[str, str]  # what a file, or the list of a folder's files, became; "": nothing
    versions: tuple[int, ...]  # that learned from these rows


@dataclass(frozen=True, kw_only=True)
class Note(Record):
    """What the ledger has to say besides nights and rollbacks."""

    at: str  # 2011-09-30 03:00 UTC
    text: str
    versions: tuple[int, ...]  # that it is about
    recipe: str = ""  # that a person declared to be the one these versions were made by
    lifts: tuple[str, ...] = ()  # commits of rollbacks and nights whose holds end
    erasure: Erasure | None = None

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
    Evaluation,
    Version,
    Verdict,
    Approval,
    Hold,
    Refit,
    Release,
    Stop,
    Events,
)
