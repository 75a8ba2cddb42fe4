"""Loads a version and answers for it, in a process that has nothing else: `version_process.py` starts it.

`load` is the first verb (daybreak/registry/host.py), and says what the version does: it recommends to
`users`, predicts `rows`, or scores `samples` alone.

    load       version, arrays, night, online, threads
                                                     the kind of its answers, and what they are of
    recommend  users, top                            items: a list each, empty for a user who is not known
    popular    top                                   items
    likely     num                                   users
    predict    rows                                  columns: a list for each prediction
    score      samples                               scores
    candidates day, clean, to                        nothing: the rows that it names are in the file
    write_rows rows, clean, to, beside               nothing: what it predicts of a file of rows is in another
    write_lists first, num, top, to, beside          nothing: the lists of some of its users are in the file
"""

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import replace
from datetime import date, timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError, PipelineError, ReleaseError
from daybreak.contract.workload import serves_rows
from daybreak.data.features import past_of
from daybreak.data.partitions import part_of, partitions
from daybreak.evaluation.scoring import declared
from daybreak.registry import carried_code
from daybreak.registry.row_packaging import read_example
from daybreak.registry.weights import batch_of, load_model, load_rows, placed
from daybreak.workloads.served_rows import ServedRows, beside_predictions, conformed

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

WRITING: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
USERS_AT_ONCE = 512  # whose candidates are in memory


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

    Of the case: `version` and `arrays` are folders, and so is `night`, of whose clean rows it makes arrays of
    its own where it is named; `online` says whether it has to answer users or rows; `threads` is how many a
    model may take, 0 as many as it likes.
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
            if case["night"]:
                self._arrays = self._own_arrays(folder, Path(case["night"]))
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
            known |= {
                "beside": beside_predictions(table),
                "names_rows": hasattr(self._workload, "score_rows"),
            }
        if self._served is not None and hasattr(self._workload, "users"):
            known |= {"num_users": len(self._users), "beside": (self._unit, "rank")}
        return known

    def recommend(self, users: Sequence[str], top: int) -> dict[str, Any]:
        """Returns a list of items for each user."""
        lists = self._workload.recommend(self._model, self._served, users, top)
        return {"items": [list(items)[:top] for items in lists]}

    def popular(self, top: int) -> dict[str, Any]:
        """Returns the items for users who are not known."""
        return {"items": list(self._workload.popular(self._served, top))[:top]}

    def likely(self, num: int) -> dict[str, Any]:
        """Returns users who are likely to come first; none if the workload does not say."""
        likely = getattr(self._workload, "likely", None)
        return {"users": list(likely(self._served, num))[:num] if likely else []}

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

    def candidates(self, day: str, clean: str, to: str) -> dict[str, Any]:
        """Writes the rows that the workload names to predict, once the data up to a day is there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table, newest = self._workload.table, date.fromisoformat(day)
        past = past_of(
            self._workload, newest + timedelta(days=1), partitions(Path(clean)), read=reader(Path(clean))
        )
        named = self._workload.score_rows(newest, past)
        tables = (conformed(rows, table) for rows in ([named] if isinstance(named, pa.Table) else named))
        first = next(tables, None)
        if first is None:
            raise DataError("score_rows returns no table; return at least one row")
        with pq.ParquetWriter(to, first.schema) as file:
            for rows in chain([first], tables):
                file.write_table(rows)
        return {}

    def write_rows(self, rows: str, clean: str, to: str, beside: dict[str, Any]) -> dict[str, Any]:
        """Writes the predictions for the rows of a file, each with the values of `beside`."""
        import pyarrow.parquet as pq

        assert self._rows is not None
        read = pq.read_table(rows, partitioning=None)
        pq.write_table(_with(predict_rows(self._rows, read, Path(clean)), beside), to, **WRITING)
        return {}

    def write_lists(self, first: int, num: int, top: int, to: str, beside: dict[str, Any]) -> dict[str, Any]:
        """Writes the lists of some users, a row an item, the best of a user with rank 1."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        names: dict[str, list[Any]] = {"user": [], "rank": [], "item": []}
        for start in range(first, min(first + num, len(self._users)), USERS_AT_ONCE):
            users = self._users[start : min(start + USERS_AT_ONCE, first + num)]
            for user, items in zip(users, self.recommend(users, top)["items"], strict=True):
                names["user"] += [user] * len(items)
                names["rank"] += range(1, len(items) + 1)
                names["item"] += items
        texts = {
            self._unit: pa.array(names["user"], pa.string()),
            "rank": pa.array(names["rank"], pa.int32()),
        }
        lists = pa.table({**texts, "item": pa.array(names["item"], pa.string())})
        pq.write_table(_with(lists, beside), to, **WRITING)
        return {}

    def _own_arrays(self, version: Path, night: Path) -> Path:
        """Makes arrays of the clean rows of a night, where another class made those that are there.

        A class that reads clean rows by itself has none. Raises ReleaseError where its arrays are not made of
        the whole window at once.
        """
        assert self._arrays is not None
        if hasattr(self._workload, "features"):
            raise ReleaseError(
                f"{type(self._workload).__qualname__} makes lists of samples by `features`, and the newest "
                f"are by another class; take its own class again for a night, by params.yaml"
            )
        if not hasattr(self._workload, "arrays"):
            return self._arrays
        from daybreak.data import prepare

        own = Path(tempfile.mkdtemp(prefix="arrays-"))
        with chdir(night):
            prepare.remake(self._workload, version / carried_code.MODEL, own)
        return own

    @property
    def _unit(self) -> str:
        """Returns the name of the column of users."""
        return self._workload.table.unit or "user"

    @cached_property
    def _users(self) -> Sequence[str]:
        """Returns the users whose lists are made each night, in their order."""
        users: Sequence[str] = self._workload.users(self._served)
        return users

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


def predict_rows(served: ServedRows, rows: "pa.Table", clean: Path) -> "pa.Table":
    """Returns the version's predictions for rows; DataError where they do not fit it.

    Features may look back on the days of the folder `clean`. The rows may have columns that its table lacks.
    """
    import pyarrow as pa

    table = served.workload.table
    taken = conformed(rows.select([name for name in rows.column_names if name in table.columns]), table)
    columns: dict[str, Any] = {
        name: taken[name] for name in beside_predictions(table) if name in taken.column_names
    }
    for name, values in replace(served, days=partitions(clean), read=reader(clean)).of(taken).items():
        columns[name] = values if values.ndim == 1 else pa.array(values.tolist())
    return pa.table(columns)


def reader(clean: Path) -> "Callable[[date], pa.Table]":
    """Returns a function that reads the clean rows of a day in a folder."""
    import pyarrow.parquet as pq

    return lambda day: pq.read_table(part_of(day, clean), partitioning=None, page_checksum_verification=True)


def _with(table: "pa.Table", values: Mapping[str, Any]) -> "pa.Table":
    """Returns a table with a column more for each value; one that ends with _day is a date."""
    import pyarrow as pa

    for name, value in values.items():
        scalar = pa.scalar(date.fromisoformat(value) if name.endswith("_day") else value)
        table = table.append_column(name, pa.repeat(scalar, len(table)))
    return table


def load(**case: Any) -> dict[str, Any]:
    """Loads the version of this process, and returns what it does."""
    version = LoadedVersion(case)
    VERBS.update({verb: getattr(version, verb) for verb in ANSWERS})
    return version.about()


ANSWERS = ("recommend", "popular", "likely", "predict", "score", "candidates", "write_rows", "write_lists")
VERBS: dict[str, Callable[..., dict[str, Any]]] = {"load": load}
SENTENCES = {"load": PipelineError, **dict.fromkeys(ANSWERS, DataError)}
