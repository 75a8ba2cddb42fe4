"""Loads a version and answers for it, in a process that has nothing else: `version_process.py` starts it.

`load` is the first verb (daybreak/registry/host.py), and says what the version does: it recommends to
`users`, predicts `rows`, or scores `samples` alone.

    load       version, arrays, online, threads      the kind of its answers, and what they are of
    recommend  users, top                            items: a list each, empty for a user who is not known
    popular    top                                   items
    likely     num                                   users
    predict    rows                                  columns: a list for each prediction
    score      samples                               scores
    write_day  day, clean, to                        nothing: what it predicts of the day is in the file
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError, PipelineError, ReleaseError
from daybreak.contract.workload import serves_rows
from daybreak.data.partitions import part_of, partitions
from daybreak.evaluation.scoring import declared
from daybreak.registry import carried_code
from daybreak.registry.row_packaging import read_example
from daybreak.registry.weights import batch_of, load_model, load_rows, placed
from daybreak.workloads.served_rows import ServedRows, beside_predictions, conformed

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


def expect_online(workload: Any) -> None:
    """Raises ReleaseError unless the workload answers online: users, or by predictions of rows."""
    if serves_rows(workload):
        return
    missing = [name for name in ("recommend", "popular") if not hasattr(workload, name)]
    if missing:
        raise ReleaseError(
            f"{type(workload).__qualname__} does not serve users online: it has no {' and no '.join(missing)}"
            f"; give it both (help(daybreak.Workload) says how), or `features` and `predict`, or leave "
            f"serving to MLflow"
        )


class LoadedVersion:
    """A version, ready to answer.

    Of the case: `version` and `arrays` are folders; `online` says whether it has to answer users or rows;
    `threads` is how many a model may take, 0 as many as it likes.
    """

    def __init__(self, case: Mapping[str, Any]) -> None:
        import torch

        if case["threads"]:
            torch.set_num_threads(case["threads"])
        folder, self._arrays = Path(case["version"]), Path(case["arrays"]) if case["arrays"] else None
        self._workload = carried_code.workload_of(folder)
        if case["online"]:
            expect_online(self._workload)
        self._rows = self._served = None
        if serves_rows(self._workload):
            self._rows = load_rows(self._workload, folder / carried_code.MODEL.parent)
            self._model = self._rows.model
            self._warm(read_example(folder))
            return
        recommends = hasattr(self._workload, "recommend") and hasattr(self._workload, "popular")
        if recommends and self._arrays:
            self._served = self._workload.dataset(self._arrays, "serve")
        elif case["online"]:
            raise ReleaseError("no night has its arrays here any more; run a night")
        self._model = load_model(self._workload, folder / carried_code.MODEL)

    def about(self) -> dict[str, Any]:
        """Returns what the version does; of rows also unit and zone, and the predictions that are judged."""
        kind = "rows" if self._rows else "users" if self._served is not None else "samples"
        known: dict[str, Any] = {"answers": kind, "workload": type(self._workload).__qualname__}
        if self._rows:
            judged = sorted({metric.prediction for metric in declared(self._workload)})
            table = self._workload.table
            known |= {"unit": table.unit, "zone": table.zone, "judged": judged}
        return known

    def recommend(self, users: Sequence[str], top: int) -> dict[str, Any]:
        """Returns a list of items for each user."""
        lists = self._workload.recommend(self._model, self._served, users, top)
        return {"items": [list(items) for items in lists]}

    def popular(self, top: int) -> dict[str, Any]:
        """Returns the items for users who are not known."""
        return {"items": list(self._workload.popular(self._served, top))}

    def likely(self, num: int) -> dict[str, Any]:
        """Returns users who are likely to come first; none if the workload does not say."""
        likely = getattr(self._workload, "likely", None)
        return {"users": list(likely(self._served, num)) if likely else []}

    def predict(self, rows: Any) -> dict[str, Any]:
        """Returns the predictions for rows, a list for each of their names."""
        assert self._rows is not None
        return {"columns": {name: values.tolist() for name, values in self._rows.predict(rows).items()}}

    def score(self, samples: Sequence[int]) -> dict[str, Any]:
        """Returns the scores of held-out samples by their numbers."""
        import torch

        if not all(0 <= number < len(self._tested) for number in samples):
            raise ValueError(f"samples are numbered from 0 to {len(self._tested) - 1}")
        with torch.inference_mode():
            batch = placed(batch_of(self._tested, samples), self._model)
            return {"scores": self._workload.score(self._model, batch).cpu().tolist()}

    def write_day(self, day: str, clean: str, to: str) -> dict[str, Any]:
        """Writes the predictions for a day's clean rows to a file."""
        import pyarrow.parquet as pq

        assert self._rows is not None
        pq.write_table(predict_day(self._rows, date.fromisoformat(day), Path(clean)), to)
        return {}

    def _warm(self, example: Sequence[Any]) -> None:
        """Predicts rows that the version carries, together and alone, so that no user is the first."""
        try:
            for rows in (example, example[:1]):
                if rows:
                    self.predict(rows)
        except Exception:  # it was tried before it was released; users are answered, if later
            log.exception("the version does not predict its own example")

    @cached_property
    def _tested(self) -> Any:
        """Returns the samples that were held out."""
        return self._workload.dataset(self._arrays, "test")


def predict_day(served: ServedRows, day: date, clean: Path) -> "pa.Table":
    """Returns the version's predictions for a day's clean rows; DataError where the rows do not fit it.

    Features may look back on other days of the folder.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def read(other: date) -> "pa.Table":
        return pq.read_table(part_of(other, clean), partitioning=None, page_checksum_verification=True)

    table, rows = served.workload.table, read(day)
    # The columns of the version's table; the rows may have a column that is newer.
    rows = rows.select([name for name in rows.column_names if name in table.columns])
    if not len(rows):
        raise DataError(f"{clean} has no row of {day}; look at data/quarantine")
    taken = conformed(rows, table)
    columns: dict[str, Any] = {
        name: taken[name] for name in beside_predictions(table) if name in taken.column_names
    }
    for name, values in replace(served, days=partitions(clean), read=read).of(taken).items():
        columns[name] = values if values.ndim == 1 else pa.array(values.tolist())
    return pa.table(columns)


def load(**case: Any) -> dict[str, Any]:
    """Loads the version of this process, and returns what it does."""
    version = LoadedVersion(case)
    VERBS.update({verb: getattr(version, verb) for verb in ANSWERS})
    return version.about()


ANSWERS = ("recommend", "popular", "likely", "predict", "score", "write_day")
VERBS: dict[str, Callable[..., dict[str, Any]]] = {"load": load}
SENTENCES = {"load": PipelineError, **dict.fromkeys(ANSWERS, DataError)}
