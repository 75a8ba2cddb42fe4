"""Loads a version and answers for it, in a process that has nothing else: `version_process.py` starts it.

    python -m daybreak.registry.confined daybreak.serving.version_worker SOCKET

The first document is the case: the folder of the version, which was verified, and that of the arrays. The
reply says what the version does: it recommends to `users`, predicts `rows`, or scores `samples` alone.
Each later document is a request, and has one reply:

    {"users": [...], "top": 20}   {"items": [[...], ...]}    an empty list for a user who is not known
    {"popular": 20}               {"items": [...]}
    {"likely": 2000}              {"users": [...]}
    {"rows": [{...}, ...]}        {"columns": {...}}          a list for each prediction
    {"samples": [3, 0]}           {"scores": [...]}
    {"day": "2025-01-31", "clean": FOLDER, "to": FILE}   {}   what it predicts of the day is in the file

or {"error": ..., "kind": the name of its class, "sentence": whether it is one of ours}.
"""

import logging
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
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
from daybreak.serving import frames
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
        """Returns what the version does; of rows also their unit, and the predictions that metrics are of."""
        kind = "rows" if self._rows else "users" if self._served is not None else "samples"
        known: dict[str, Any] = {"answers": kind, "workload": type(self._workload).__qualname__}
        if self._rows:
            judged = sorted({metric.prediction for metric in declared(self._workload)})
            known |= {"unit": self._workload.table.unit, "judged": judged}
        return known

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the reply to one request."""
        if "users" in request:
            lists = self._workload.recommend(self._model, self._served, request["users"], request["top"])
            return {"items": [list(items) for items in lists]}
        if "popular" in request:
            return {"items": list(self._workload.popular(self._served, request["popular"]))}
        if "likely" in request:
            likely = getattr(self._workload, "likely", None)
            return {"users": list(likely(self._served, request["likely"])) if likely else []}
        if "rows" in request:
            return {"columns": self._predicted(request["rows"])}
        if "day" in request:
            return self._write_day(request)
        return {"scores": self._scores(request["samples"])}

    def _predicted(self, rows: Any) -> dict[str, Any]:
        assert self._rows is not None
        return {name: values.tolist() for name, values in self._rows.predict(rows).items()}

    def _write_day(self, request: Mapping[str, Any]) -> dict[str, Any]:
        import pyarrow.parquet as pq

        assert self._rows is not None
        day = date.fromisoformat(request["day"])
        pq.write_table(predict_day(self._rows, day, Path(request["clean"])), request["to"])
        return {}

    def _warm(self, example: Sequence[Any]) -> None:
        """Predicts rows that the version carries, together and alone, so that no user is the first."""
        try:
            for rows in (example, example[:1]):
                if rows:
                    self._predicted(rows)
        except Exception:  # it was tried before it was released; users are answered, if later
            log.exception("the version does not predict its own example")

    @cached_property
    def _tested(self) -> Any:
        """Returns the samples that were held out."""
        return self._workload.dataset(self._arrays, "test")

    def _scores(self, numbers: Sequence[int]) -> list[float]:
        import torch

        if not all(0 <= number < len(self._tested) for number in numbers):
            raise ValueError(f"samples are numbered from 0 to {len(self._tested) - 1}")
        with torch.inference_mode():
            batch = placed(batch_of(self._tested, numbers), self._model)
            scores: list[float] = self._workload.score(self._model, batch).cpu().tolist()
        return scores


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


def main(number: int) -> None:
    """Answers the documents that come over the socket of that number, until the other side ends."""
    version: LoadedVersion | None = None
    with socket.socket(fileno=number) as other:
        while True:
            try:
                document = frames.receive(other)
            except EOFError:
                return
            try:
                if version is None:
                    version = LoadedVersion(document)
                    reply = version.about()
                else:
                    reply = version.reply(document)
            except Exception as error:  # noqa: BLE001 - the caller is sent whatever a workload raises
                reply = _error(error, is_loaded=version is not None)
            frames.send(other, reply)


def _error(error: Exception, *, is_loaded: bool) -> dict[str, Any]:
    """Returns the reply for an error; a sentence of ours about loading, or about rows, is marked as such."""
    ours = isinstance(error, DataError if is_loaded else PipelineError)
    if not ours:
        traceback.print_exc()
    return {"error": str(error), "kind": type(error).__name__, "sentence": ours}


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    main(int(sys.argv[1]))
