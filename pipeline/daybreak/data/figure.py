"""Names the figures of a day, their families, which share a rate of false alarms, and their sentences.

daybreak/data/day_figures.py computes them, daybreak/data/daily_limits.py learns their limits. A figure is
named by its sort and the columns that it is of, which may have any name. Pure.
"""

from enum import Enum
from typing import Literal, NamedTuple

Kind = Literal["count", "share", "rate", "mean", "factor", "hours", "correlation"]
Family = Literal[
    "volume",
    "repetition",
    "values",
    "columns",
    "relations",
    "times",
    "spikes",
    "sequences",
    "labels",
    "parts of labels",
    "labels of rows",
]


class Sort(Enum):
    """A sort of figures: the name, the family, and the sentence of those of the columns {0}, {1} and {2}."""

    def __init__(self, name: str, family: Family, sentence: str) -> None:
        self.template, self.family, self.sentence = name, family, sentence

    ROWS = "rows", "volume", "{value} rows"
    DISTINCT = "distinct {0}", "columns", "{value} different values of {0}"
    MISSING = "missing {0}", "values", "{0} is missing in {value} of the rows"
    NEW = "new {0}", "values", "{0} is new in {value} of the rows"
    TOP = "top {0}", "columns", "the most frequent {0} has {value} of the rows"
    SIZE = "size {0}", "columns", "{0} is {value} in the geometric mean"
    NEGATIVE = "negative {0}", "columns", "{0} is negative in {value} of the rows"
    ZERO = "zero {0}", "columns", "{0} is zero in {value} of the rows"
    MEAN = "mean {0}", "columns", "the mean {0} is {value}"  # of 0 and 1
    NEITHER = "neither {0}", "columns", "{0} is neither 0 nor 1 in {value} of the rows"
    # A value of a small category.
    SLICE = "{0} = {1}", "columns", "{0} = {1} in {value} of the rows"
    # By how much the share of one value of a number is above its usual share: a sentinel, or a default.
    SPIKE = "spike {0}", "spikes", "one value of {0} is in {value} more of the rows than usual"
    # A join to the rows of another day, or one that carries values forward.
    COPIED = "copied {0}", "sequences", "{value} of the values of {0} follow one another as on an earlier day"
    REPEATED = "repeated {0}", "sequences", "{value} of the values of {0} are the third alike in a row"
    # Two known values that are new together: an item's description, a customer's country.
    NEW_PAIR = "new {0} with {1}", "relations", "{0} with {1} is new in {value} of the rows"
    # A number beside the usual one for the value of a key, such as an item's price.
    USUAL = "{0} by {1}", "relations", "{0} by its {1} is {value} times the usual"
    FAR = (
        "far {0} by {1}",
        "relations",
        "{0} by {1} is off by more than a factor of two in {value} of the rows",
    )
    # Customers of one invoice.
    SEVERAL = "several {0} of {1}", "relations", "{value} of the values of {1} come with several of {0}"
    CORRELATION = "{0} against {1}", "relations", "{0} and {1} are correlated by {value}"
    FIRST_HOUR = "first hour", "times", "the first row comes at {value}"
    LAST_HOUR = "last hour", "times", "the last row comes at {value}"
    MEAN_HOUR = "mean hour", "times", "the mean hour is {value}"
    LONGEST_GAP = "longest gap", "times", "the longest time without a row is {value}"
    COPIES = "copies", "repetition", "{value} of the rows are alike to another but for ids and time"
    AGAIN = (
        "as an earlier day",
        "repetition",
        "{value} of the rows are those of an earlier day but for ids and time",
    )
    QUARANTINED = "quarantined", "repetition", "{value} of the rows are in quarantine"
    # The label beside what the features lead one to expect (daybreak/data/label_forecast.py).
    ODDS_BESIDE = (
        "{0} beside its forecast",
        "labels",
        "the odds of {0} are {value} times what the features lead one to expect",
    )
    LABEL_BESIDE = (
        "{0} beside its forecast",
        "labels",
        "{0} is {value} above what the features lead one to expect",
    )
    LABEL_FORECAST = (
        "{0} against its forecast",
        "labels",
        "{0} is correlated by {value} with its forecast",
    )
    # The slope of calibration (Cox 1958), which is near 1 on a day of any rate.
    LABEL_SLOPE = (
        "{0} by its forecast",
        "labels",
        "{0} rises by {value} where its forecast by the features rises by 1",
    )
    # Row by row, also by the labels of other rows (daybreak/data/label_neighbours.py).
    LABEL_UNLIKE = (
        "{0} beside its neighbours",
        "labels of rows",
        "{value} of the values of {0} are far from what features and neighbouring rows lead one to expect",
    )
    # The same for the rows of a value, beside the other rows.
    ODDS_WHERE = (
        "{0} where {1} = {2}",
        "parts of labels",
        "where {1} = {2}, the odds of {0} are {value} times those expected beside the other rows",
    )
    LABEL_WHERE = (
        "{0} where {1} = {2}",
        "parts of labels",
        "where {1} = {2}, {0} is {value} above what is expected beside the other rows",
    )
    LABEL_CORRELATION = "{0} against {1}", "parts of labels", "{0} and {1} are correlated by {value}"


# Which are of its family where they are of the label.
OF_LABEL = (Sort.MEAN, Sort.MISSING, Sort.NEITHER, Sort.COPIED, Sort.REPEATED)


class Amount(NamedTuple):
    """What a figure amounts to, and the error that the day's rows alone would give it.

    `num` is the number of independent units that a share or a rate is of; `error` the standard error of what
    is neither. A `rate` is the share of labels that are 1; a `factor` is a logarithm.
    """

    kind: Kind
    value: float
    num: float = 0.0
    error: float = 0.0


class Figure(NamedTuple):
    """A figure of a day: what it is of, and an `Amount`."""

    sort: Sort
    of: tuple[str, ...]  # columns, and a value of them
    kind: Kind
    value: float
    num: float = 0.0
    error: float = 0.0

    @property
    def name(self) -> str:
        """The name, such as `missing price`.

        >>> Figure(Sort.SEVERAL, ("customer", "invoice"), "share", 0.1).name
        'several customer of invoice'
        """
        return self.sort.template.format(*self.of)

    def in_words(self, value: str) -> str:
        """Returns what the figure is, as a sentence with this value."""
        return self.sort.sentence.format(*self.of, value=value)

    def family(self, label: str) -> Family:
        """Returns the figures that share a rate of false alarms evenly with it.

        >>> Figure(Sort.MEAN, ("fraud",), "rate", 0.1).family("fraud")
        'labels'
        """
        return "labels" if self.sort in OF_LABEL and self.of == (label,) else self.sort.family
