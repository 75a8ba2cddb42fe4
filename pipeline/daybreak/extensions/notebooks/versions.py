"""Gives a version of a home to predict by.

It is fetched from the registry, checked against the ledger, and runs its own code in a process of its own
that has none of this one's secrets, as a router runs it.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError, ReleaseError
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from daybreak.contract.workload import Workload

ROWS = 1000  # of one request to the process
ANSWER_S = 600.0  # that it may take to answer one


@dataclass(frozen=True)
class OpenVersion:
    """A version in the registry of a home."""

    home: Home
    number: int

    def predict(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        """Returns what the version predicts of rows: a column for each prediction, with the rows' index.

        The columns are those of the version's table; the label may be left out. Features look back on the
        days that the version carries.

        Raises:
            DataError: the rows are not rows of the version's table; the sentence names what is wrong.
            ReleaseError: the version cannot be loaded, or does not predict rows.
        """
        import pandas as pd

        from daybreak.extensions.router.answers import Predictor
        from daybreak.registry.host import NoAnswer
        from daybreak.serving.recorded import case_of
        from daybreak.serving.version_process import VersionProcess

        with self._files() as folder:
            process = VersionProcess(
                self.number, case_of(folder, None, online=False), answer_s=ANSWER_S, home=self.home
            )
        try:
            if process.about.get("answers") != "rows":
                raise ReleaseError(
                    f"version {self.number} is of {process.about.get('workload')}, which predicts no rows; "
                    f"give it `features` and `predict`"
                )
            version, wanted = Predictor(self.number, process=process), _records(rows)
            parts = [wanted[start : start + ROWS] for start in range(0, len(wanted), ROWS)]
            predicted = [row for part in parts for row in json.loads(version.of(part)[0])]
            return pd.DataFrame(predicted, index=rows.index)
        except NoAnswer as error:
            raise ReleaseError(
                f"version {self.number} does not predict these rows: {error}; fix its workload"
            ) from None
        finally:
            process.close()

    def load(self, workload: "Workload") -> "nn.Module":
        """Returns the model with the version's weights, made by a workload of this process.

        For a look inside, by your own code, where `predict` runs that of the version. Raises DataError where
        the weights do not fit the workload, and ReleaseError where the version cannot be fetched.
        """
        from daybreak.registry.carried_code import MODEL
        from daybreak.registry.weights import load_model

        with self._files() as folder:
            return load_model(workload, folder / MODEL)

    @contextmanager
    def _files(self) -> Iterator[Path]:
        """Yields a folder with the version's files, verified against the ledger."""
        from daybreak.registry import aliases, carried_code
        from daybreak.serving.recorded import recorded

        with session(self.home) as client, tempfile.TemporaryDirectory() as scratch:
            name = self.home.params.register_.name
            night = aliases.existing(client, name, self.number).tags.get("night", "")
            version = recorded(self.home, name, self.number, night=night)
            yield carried_code.fetch(self.home, f"models:/{name}/{self.number}", version, into=Path(scratch))


def _records(rows: "pd.DataFrame") -> list[dict[str, Any]]:
    """Returns rows as a client of a router would send them; DataError where there are none, or no such."""
    import pyarrow as pa

    from daybreak.workloads.served_rows import as_records

    if not len(rows):
        raise DataError("there are no rows to predict; give at least one")
    try:
        table = pa.Table.from_pandas(rows, preserve_index=False)
    except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's among them
        reason = str(error).splitlines()[0]
        raise DataError(
            f"these rows cannot be sent: {reason}; give each column its own name and values of one type"
        ) from None
    return as_records(table)
