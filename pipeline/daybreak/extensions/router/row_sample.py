"""Says before a night which rows of requests the routers keep, for `daybreak check`."""

from collections.abc import Iterator

from daybreak.contract.sections import Params
from daybreak.contract.workload import serves_rows
from daybreak.extensions.router.settings import RouterParams
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import MAX_ROWS_A_DAY


def checks(home: Home, params: Params) -> Iterator[tuple[str, bool, str]]:
    """Yields what `serving.keep_rows` keeps, and whose rows they are; nothing where it keeps none."""
    kept = params.section(RouterParams)
    if not kept.keep_rows:
        return
    workload = params.workload.make()
    if not serves_rows(workload):
        yield "serving.keep_rows", False, f"{params.workload.use} predicts no rows; remove serving.keep_rows"
        return
    table = workload.table
    texts = [name for name, column in table.features.items() if column.kind in ("id", "text")]
    personal = f"{', '.join(texts)} may name persons" if texts else "no column is an id or a text"
    erased = f"daybreak erase finds them by {table.unit}" if table.unit else "no unit says whose they are"
    yield (
        "serving.keep_rows",
        True,
        f"the log of serving keeps the rows of {kept.keep_rows:.3g} of the requests for predictions, at most "
        f"{MAX_ROWS_A_DAY:,} a day, for {kept.keep_days:g} days: {personal}, {erased}",
    )
