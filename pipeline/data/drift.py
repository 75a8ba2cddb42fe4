"""Measures how far tonight's day is from the same weekdays before it: a distance per column, from 0 to 1.

Numbers (quantity, price, time of day): the two-sample Kolmogorov-Smirnov statistic, the largest gap
between the two distribution functions. Codes (country, item): the Jensen-Shannon distance to base
2. Customer: the difference of the shares of rows without one. Rows: 1 - the smaller count / the
larger. A distance says how far, not how sure: on thousands of rows every p-value is zero.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.contract.records import Drift

if TYPE_CHECKING:
    from pandas import DataFrame, Series

SAME_WEEKDAYS = 4
LEAST_WEEKDAYS = 2


def distances(
    day: "DataFrame", before: "Sequence[DataFrame]", *, limits: Mapping[str, float], limit: float
) -> tuple[Drift, ...]:
    """Returns the distance of each main column of `day` from the days `before` it, pooled.

    Frames have the raw columns; `limits` are by column, `limit` is for a column without its own.
    Returns an empty tuple if there are fewer than two days to compare with, or no rows.
    """
    import pandas as pd

    if len(before) < LEAST_WEEKDAYS or day.empty:
        return ()
    pooled = pd.concat(before)
    if pooled.empty:
        return ()
    rows = len(pooled) / len(before)
    guests = abs(float(day["customer"].isna().mean() - pooled["customer"].isna().mean()))
    measured = [
        ("quantity", "Kolmogorov-Smirnov", _gap(day["quantity"], pooled["quantity"])),
        ("price", "Kolmogorov-Smirnov", _gap(day["price"], pooled["price"])),
        ("time", "Kolmogorov-Smirnov", _gap(_minute(day["time"]), _minute(pooled["time"]))),
        ("country", "Jensen-Shannon", _divergence(day["country"], pooled["country"])),
        ("item", "Jensen-Shannon", _divergence(day["item"], pooled["item"])),
        ("customer", "difference of missing shares", guests),
        ("rows", "1 - smaller / larger", 1 - min(len(day), rows) / max(len(day), rows)),
    ]
    return tuple(
        Drift(column=column, statistic=statistic, value=value, limit=limits.get(column, limit))
        for column, statistic, value in measured
    )


def _gap(left: "Series", right: "Series") -> float:
    from scipy.stats import ks_2samp

    return float(ks_2samp(left, right, method="asymp").statistic)


def _divergence(left: "Series", right: "Series") -> float:
    import pandas as pd
    from scipy.spatial.distance import jensenshannon

    shares = pd.concat([s.value_counts(normalize=True) for s in (left, right)], axis=1).fillna(0)
    return float(jensenshannon(shares.iloc[:, 0], shares.iloc[:, 1], base=2))


def _minute(time: "Series") -> "Series":
    minutes: Series = time.dt.hour * 60 + time.dt.minute
    return minutes
