"""Compares the rows that a challenger is asked in the shadow with the days that it was made of.

Routers keep a sample of the rows of requests (`serving.keep_rows`). Those of a test's newest day with enough
of them, whoever answered them, are what the challenger is asked, too. They are held against the same hours of
the last same weekdays up to the night, by the measures and limits of the watch
(daybreak/gate/served_days.py). Limits are of whole days, and a few hours may be beyond them by themselves: so
what is unlike is shown, and stops nothing.
"""

from datetime import date
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.errors import PipelineError, sentence
from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Night
from daybreak.contract.sections import ValidateParams
from daybreak.contract.table import Table
from daybreak.data.drift import LEAST_WEEKDAYS
from daybreak.data.partitions import CLEAN
from daybreak.gate.served_days import LEAST_REQUESTS, compare_requests, minutes_of_day, weekdays_before
from daybreak.storage.kept_rows import KeptRows
from daybreak.storage.traffic_log import Log
from daybreak.workloads.served_rows import conformed


def compared(log: Log, night: Night, params: ValidateParams) -> Check | None:
    """Returns what the rows are unlike, in the folder of the challenger's night; None where none are kept."""
    requests = list(log.kept_rows.newest_of(night.id, least=LEAST_REQUESTS))
    table = records.find(Table, records.RUN)
    if not requests or table is None:
        return None
    about = f"{counted(len(requests), 'request')} of {requests[0].day}"
    try:
        said = _compared(requests, table, night, params)
    except (PipelineError, OSError) as error:
        said = f"are not compared: {sentence(error)}"
    return Check(name="shadow rows", ok=True, text=f"rows of {about} {said}")


def _compared(requests: list[KeptRows], table: Table, night: Night, params: ValidateParams) -> str:
    import pyarrow as pa
    import pyarrow.compute as pc

    if len(requests) < LEAST_REQUESTS:
        return f"are too few, {LEAST_REQUESTS} requests are compared; raise serving.keep_rows"
    day = date.fromisoformat(requests[0].day)
    same = weekdays_before(day, CLEAN, until=night.day)
    if len(same) < LEAST_WEEKDAYS:
        return f"are not compared: {len(same)} of {LEAST_WEEKDAYS} {day:%A}s to compare with"
    times = pa.chunked_array([conformed(one.rows, table)[table.time].combine_chunks() for one in requests])
    ends = pc.min_max(minutes_of_day(times)).as_py()
    found = compare_requests(
        requests,
        table,
        clean=CLEAN,
        days=same,
        minutes=(ends["min"], ends["max"] + 1),
        suite_file=Path(params.suite),
        params=params,
    )
    if not found.columns:
        return "are not compared, as no column could be"
    weekdays = f"the same hours of the {day:%A}s that the challenger was made of"
    if not found.unlike:
        return f"are like {weekdays}"
    unlike = "; ".join(
        f"{one.column.removesuffix(' nulls')} {words} ({one.statistic} {one.value:.2g}, at most "
        f"{one.limit:.2g} expected)"
        for one, words in found.unlike
    )
    return f"are unlike {weekdays}: {unlike}; have them sent as the training data has them"
