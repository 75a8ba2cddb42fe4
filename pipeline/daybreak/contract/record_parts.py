"""Defines the base of all records, and the parts that the records of a night are made of.

They are frozen dataclasses, as the records themselves (daybreak/contract/record_types.py), in the order of
the stages that write them first. Units are in the names: `_s` seconds, `_bytes`, `_usd`; counts begin with
`num_`; digests are DVC's (md5, `.dir` for a folder). All times are UTC.
"""

from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from daybreak.contract.formats import counted, dollars

if TYPE_CHECKING:  # pydantic takes longer to import than a plan to make
    from pydantic import ConfigDict

Strategy = Literal["on-demand", "spot", "flex-start"]  # how a machine is rented
LOCAL = "local"  # the machine at hand, which is not rented


class Record:
    """Base of all records; it only switches off unknown keys."""

    __pydantic_config__: ClassVar["ConfigDict"] = {"extra": "forbid"}


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
class ServedDrift(Drift):
    """Distance of a column of served rows, or of predictions, from the days that the version was made of."""

    words: str  # both values
    since: date | None  # the newest served day on which it was as in training; None: there was none


@dataclass(frozen=True, kw_only=True)
class ServedDay(Record):
    """What a day's rows that a version predicted are unlike, compared with the days that it was made of."""

    day: date
    num_requests: int
    drift: tuple[ServedDrift, ...] = ()  # beyond its limit
    compared: tuple[str, ...] = ()  # columns
    fault: str = ""  # why all or some of it was not compared


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
class ColumnDistribution(Record):
    """How often a column has each value, or a number in each range, tonight and on the days before.

    Shares are of the rows that have a value. The label's mean is None where too few rows have one.
    """

    column: str
    values: tuple[str, ...]  # single values, or ranges of numbers: "2 to 3"
    edges: tuple[float, ...] = ()  # between the ranges, one fewer than there are; none of single values
    tonight: tuple[float, ...]
    before: tuple[float, ...]  # none where there was no value
    missing: tuple[float, float]  # share of the rows without a value, tonight and before
    label_tonight: tuple[float | None, ...] = ()  # its mean for each value; none where it is not known yet
    label_before: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FigureSeries(Record):
    """A figure of each of the last days, and the limits that the days before each one give it."""

    figure: str
    column: str  # that it is shown with; "" where it is of the day as a whole, or outside its limits
    words: str  # of tonight's value and limits
    is_share: bool
    holds: bool  # tonight; also where tonight lacks the figure
    days: tuple[date, ...]
    values: tuple[float, ...]
    lows: tuple[float | None, ...]  # None where too few days were known
    highs: tuple[float | None, ...]
    stops: bool = False  # the day, as it does not hold and no person has accepted that


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
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of products; weights are float32
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
class JobForecast(Record):
    """What a plan expects its job to take, from the first submission on, the queue included."""

    expected_s: float
    interval: tuple[float, float]  # 90 %, of the seconds
    expected_usd: float
    chance: float | None = None  # of being done in time
    widened: float = 1.0  # times the plain interval, since earlier ones were too narrow
    portions: tuple[Portion, ...] = ()  # of `expected_s` and `expected_usd`, in order
    longest_s: float | None = None  # within which it is done, with the chance that plan.confidence asks for

    def lasting(self, expected_s: float) -> "JobForecast":
        """Returns the forecast of a job like it that takes so long, at the same price and pace."""
        share = expected_s / self.expected_s if self.expected_s else 1.0
        return replace(
            self,
            expected_s=expected_s,
            interval=(self.interval[0] * share, self.interval[1] * share),
            expected_usd=self.expected_usd * share,
            longest_s=None if self.longest_s is None else self.longest_s * share,
        )


@dataclass(frozen=True, kw_only=True)
class PriceSource(Record):
    """The list that a price comes from, and its date."""

    source: str
    dated: date


@dataclass(frozen=True, kw_only=True)
class PlanReasons(Record):
    """Why a plan is as it is, for a person: nothing is decided by it."""

    runner_up: str  # the next best and the number that decided
    options: tuple[Option, ...] = ()  # what was weighed: the plan, the next best, the frontier
    basis: str = ""  # what the time rests on: measurements, earlier nights, priors
    price: PriceSource | None = None
    samples: str = ""  # why so many samples, a sentence; "": the objective is not quality
    share: str = ""  # of the machines that it has in common with other models; "" where it has none


@dataclass(frozen=True, kw_only=True)
class SpotOutlook(Record):
    """What a plan on spot expects of losing its machines."""

    mean_time_to_loss_s: float  # of all machines of the job together
    checkpoints_s: tuple[float, ...]  # from a machine's start on, where its danger changes with age
    basis: str  # of lifetimes and checkpoints, and the cost at worst, in words
    worst_usd: float | None = None  # if the rest has to be bought; None: it cannot be


@dataclass(frozen=True, kw_only=True)
class Epoch(Record):
    """An epoch of which the sample audit proves that each sample came as often as it was due."""

    num_samples: int
    whole: bool  # or the part that was trained on
    digest: str  # of the samples that were given to a step, in any order


@dataclass(frozen=True, kw_only=True)
class JobSpan(Record):
    """A request of a night's job for machines, from asking for them to their end."""

    rental: Rental
    asked_at: datetime
    ran_at: datetime | None = None  # when its job was first seen running; None: it never was
    ended_at: datetime
    end: str  # "finished", "preempted", "refused", "failed", "hung" or "moved"
    usd: float = 0.0  # at the price that was planned with, for the time that it ran


@dataclass(frozen=True, kw_only=True)
class StageSpan(Record):
    """When a stage was called: once, or again and again as it waited or failed alike."""

    stage: str
    began_at: datetime  # of the first call
    last_call_at: datetime  # when the last call began; until then it waited, or failed the same way
    ended_at: datetime
    num_calls: int = 1
    num_waits: int = 0  # of the calls that others followed, those that answered that it waits
    end: Literal["done", "nothing to do", "failed", "waits"]
    why: str = ""  # what the last call that did not do its work said


@dataclass(frozen=True, kw_only=True)
class Taken(Record):
    """A fallback that training took to be in time and within the budget, to cost less, or by a trigger."""

    time: datetime
    name: Literal[
        "on-demand",
        "next fallback",
        "scale up",
        "step down",
        "undo",
        "triggered move",
        "triggered batch",
        "finish early",
        "checkpoint",
    ]
    usd: float  # expected extra cost of the rest of the work; below 0: saved
    reason: str


@dataclass(frozen=True, kw_only=True)
class Slice(Record):
    """Mean score over part of the held-out samples."""

    name: str
    num_samples: int
    score: float
    champion_score: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReliabilityBin(Record):
    """Samples of like chances: how many, the chance that they were given, and how often it happened."""

    num_samples: int
    predicted: float
    observed: float


@dataclass(frozen=True, kw_only=True)
class Reliability(Record):
    """How often what a model gives a chance happens, in bins of as many samples each, by rising chance."""

    challenger: tuple[ReliabilityBin, ...]
    champion: tuple[ReliabilityBin, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Confusion(Record):
    """How many samples of each class, a row each, were taken for each class, a column each."""

    classes: tuple[str, ...]
    challenger: tuple[tuple[int, ...], ...]
    champion: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ListReach(Record):
    """What the lists that a model recommends reach: different items, and items that few buy."""

    num_items: int  # different ones in all lists: coverage
    beyond_popular: float  # share of the places with an item that is not among the most popular: novelty


@dataclass(frozen=True, kw_only=True)
class RecommendedLists(Record):
    """What challenger and champion recommend to the same users."""

    num_users: int
    top: int  # items of a list, and of the most popular
    challenger: ListReach
    champion: ListReach | None = None  # None: there is none, or it runs other code than today's
    kept: float | None = None  # share of the champion's items that the challenger's list has, too


@dataclass(frozen=True, kw_only=True)
class ListChange(Record):
    """The lists that one user would get from the champion and from the challenger, best first."""

    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class OwnCard(Record):
    """What a team's class shows of a night: a text, figures, a table, an image, or why it shows none."""

    title: str
    text: str = ""  # Markdown
    head: tuple[str, ...] = ()  # of a table; figures have none
    rows: tuple[tuple[str, ...], ...] = ()  # of a table; of figures, each a name and a value
    png: str = ""  # in base64
    note: str = ""  # what was left out
    failed: str = ""  # why it is not shown


@dataclass(frozen=True, kw_only=True)
class ColumnUse(Record):
    """By how much each model's score falls where the values of a column are shuffled among rows of a day."""

    column: str
    challenger: float
    champion: float | None = None  # None: there is none, or it runs other code than today's


@dataclass(frozen=True, kw_only=True)
class DifferingSamples(Record):
    """Held-out samples on which challenger and champion differ by another amount than on the others."""

    name: str  # "origin is EWR"
    num_samples: int
    difference: float  # of the mean scores, challenger less champion
    elsewhere: float


@dataclass(frozen=True, kw_only=True)
class Differences(Record):
    """How challenger and champion differ on held-out rows, to be shown; no verdict rests on it."""

    columns: tuple[ColumnUse, ...]  # the greatest fall first
    left_out: tuple[str, ...]  # columns for which there was no time
    num_shuffled: int  # rows
    samples: tuple[DifferingSamples, ...]  # the greatest difference first
    num_groups: int  # of samples, that were looked at; 0: models were not compared, or units are few
    elapsed_s: float


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
class Check(Record):
    """Something that was checked before a verdict, and its result."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class MeasuredEffect(Record):
    """A mean difference of scores with its interval; an end is None where so few samples do not bound it."""

    mean: float
    low: float | None
    high: float | None

    @property
    def is_proven(self) -> bool:
        """Returns whether all of the interval is above 0."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True, kw_only=True)
class Segment(Record):
    """Results of a live test among the users of whom clients say the same, such as their device."""

    attribute: str
    value: str
    num_challenger: int
    num_champion: int
    effect: MeasuredEffect  # challenger - champion, at gate.alpha divided by the number of segments


@dataclass(frozen=True, kw_only=True)
class Live(Record):
    """Results of a live test: of users who met the challenger, or the champion meanwhile."""

    experiment: str
    began_at: datetime  # by the clock of the log of serving, as ends_at
    foretold: str  # before the first user: the smallest effect that the traffic can show
    share: float = 0.0  # of the challenger, at last
    num_slots: int = 1  # equal parts of the users, of which the challenger had one
    num_challenger: int = 0  # users whose arm was left to chance
    num_champion: int = 0
    effect: MeasuredEffect | None = None  # challenger - champion; None without evidence
    reason: str = ""
    checks: tuple[Check, ...] = ()  # the guardrails
    segments: tuple[Segment, ...] = ()  # which decide nothing
    ends_at: datetime  # as planned when it began


@dataclass(frozen=True, kw_only=True)
class Difference(Record):
    """Mean difference of two models' scores on a night's samples, and its standard error."""

    mean: float = 0.0
    error: float = 0.0
    days: tuple[date, ...] = ()  # held-out days of these samples by which it counts; (): not known, or none
    counts: bool = True  # whether a day is among them that no earlier night had counted


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
    effect: MeasuredEffect | None = None  # mean over nights of the first metric; None: nothing was scored


@dataclass(frozen=True, kw_only=True)
class MonthBudget(Record):
    """The dollars of a calendar month, as a night finds them when it opens.

    >>> str(MonthBudget(usd=300, spent_usd=180, num_nights=12))
    "$120.00 of this month's $300.00 are left for 12 nights"
    """

    usd: float  # night.usd_per_month
    spent_usd: float  # by the nights before
    num_nights: int  # to come this month, tonight's among them

    @property
    def left_usd(self) -> float:
        """Returns the dollars that the month has left."""
        return max(0.0, self.usd - self.spent_usd)

    def limit(self, budget_usd: float, *, alone: bool) -> float:
        """Returns the dollars of a night with its own budget; `alone`: up to all that the month has left."""
        return min(budget_usd, self.left_usd / (1 if alone else self.num_nights))

    def binds(self, budget_usd: float) -> bool:
        """Returns whether the budget of a night is what the month leaves, rather than its own."""
        return budget_usd in (self.left_usd, self.left_usd / self.num_nights)

    def __str__(self) -> str:
        """Returns what is left in a few words."""
        nights = counted(self.num_nights, "night")
        return f"{dollars(self.left_usd)} of this month's {dollars(self.usd)} are left for {nights}"


EventKind = Literal[
    "opened",
    "drift",
    "planned",
    "over budget",
    "month budget",
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
    "digest",
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
class Erasure(Record):
    """What was erased (daybreak/storage/erasures.py)."""

    unit: str  # keyed hash of the unit
    key: str  # hash of the key, which tells keys apart
    num_rows: int  # of the distinct partitions that held any
    days: tuple[str, ...]  # of these rows
    digests: dict[str, str]  # what a file, or the list of a folder's files, became; "": nothing
    versions: tuple[int, ...]  # that learned from these rows
