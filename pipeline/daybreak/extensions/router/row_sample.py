"""Checks the keys on rows that routers keep, and on nights that the watch starts, for `daybreak check`."""

from collections.abc import Iterator

from daybreak.contract.formats import counted
from daybreak.contract.sections import Params
from daybreak.contract.workload import serves_rows
from daybreak.data import suite
from daybreak.extensions.router.settings import RouterParams
from daybreak.storage.home import Home
from daybreak.storage.kept_rows import MAX_ROWS_A_DAY


def checks(home: Home, params: Params) -> Iterator[tuple[str, bool, str]]:
    """Yields a sentence on the rows that `serving.keep_rows` keeps, and one on `watch.retrain`."""
    kept = params.section(RouterParams)
    if params.watch.retrain:
        yield "watch.retrain", True, _retrains(home, params, keeps=bool(kept.keep_rows))
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
        f"{MAX_ROWS_A_DAY:,} a day, for {params.serving.keep_days:g} days: {personal}, {erased}",
    )


def _retrains(home: Home, params: Params, *, keeps: bool) -> str:
    path = home.folder / params.validate_.suite
    at_most = f"at most {counted(params.watch.retrain_per_month, 'night')} in 30 days"
    if not keeps:
        return f"a loss of quality starts a night, {at_most}; drift none, as serving.keep_rows is 0"
    if path.exists() and suite.load(path).drift == "off":
        return (
            f"a loss of quality, or drift of predictions, starts a night, {at_most}; the suite has drift: off"
        )
    return f"a loss of quality, or drift of served rows, starts a night, {at_most}"
