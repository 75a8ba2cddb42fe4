"""The workload of a version that wraps a model which a team had before: a pyfunc of MLflow.

The pyfunc is called on raw rows, as its own server calls it, in the place of features, and the network only
passes its predictions on. So what scores, tests, serves and rolls back versions does so with this one.

The pyfunc lies in the state of the version, as the bytes of an archive, and may be a pickle. It is loaded
where the code of a version runs, without secrets and network (daybreak/registry/confined.py), and nowhere
else.
"""

import atexit
import io
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import DataError
from daybreak.contract.sections import made_of
from daybreak.contract.workload import Batch, State

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from daybreak.data.features import Past

USE = f"{__name__}:AdoptedModel"
PYFUNC = "pyfunc"  # array of the state
PREFIX = "predicted "  # of arrays with predictions, so that none has the name of a label
OF_ROWS = ("looks_back", "reaches_back", "corrected", "score_rows")  # of the class, where it has them


class AdoptedModel:
    """A pyfunc in the place of the model of a class, whose table and metrics it is judged by."""

    def __init__(self, *, of: str, arguments: Mapping[str, Any], flavour: str, output: str = "") -> None:
        """Makes the class that the model is adopted for.

        Args:
            of: import path of the class.
            arguments: to make it with.
            flavour: what MLflow calls the kind of the model.
            output: which of several outputs is the prediction: the name of a column, or its number.
        """
        module, _, name = of.partition(":")
        # As the statement does: in the process of a version it leads to the code that the version carries.
        own = made_of(getattr(__import__(module, fromlist=[name]), name), arguments)
        self.table, self.metrics = own.table, own.metrics
        for each in OF_ROWS:
            if hasattr(own, each):
                setattr(self, each, getattr(own, each))
        self._flavour, self._output = flavour, output

    def dataset(self, folder: Any, split: Any) -> Any:
        """Returns the samples of a split."""
        from daybreak.workloads.samples import Samples

        return Samples(folder, split)

    def model(self, state: State) -> "nn.Module":
        """Loads the pyfunc and returns a network without weights; DataError where a library is missing."""
        import mlflow.pyfunc
        from torch import nn

        folder = tempfile.mkdtemp(prefix="adopted-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        with zipfile.ZipFile(io.BytesIO(state[PYFUNC].tobytes())) as packed:
            packed.extractall(folder)
        try:
            self._pyfunc = mlflow.pyfunc.load_model(folder, suppress_warnings=True)
        except ImportError as error:
            raise DataError(
                f"it is of the flavour {self._flavour}, which needs {error.name or error}; install that "
                f"where nights run"
            ) from error
        except Exception as error:  # whatever a model of a team's raises
            raise DataError(
                f"it is of the flavour {self._flavour} and does not load: {_words(error)}"
            ) from error
        return nn.Identity()

    def features(self, rows: "pa.Table", state: State, past: "Past") -> "dict[str, NDArray[Any]]":
        """Returns what the pyfunc predicts of rows, by name; DataError where that is nothing to be judged."""
        schema = self._pyfunc.metadata.get_input_schema()
        try:
            answer = self._pyfunc.predict(_sent(rows, schema))
        except Exception as error:  # whatever a model of a team's raises
            more = "" if schema else "; without a signature, which names columns, it was given all of them"
            raise DataError(f"it does not predict rows of the table: {_words(error)}{more}") from error
        named = self._named(answer)
        for name, values in named.items():
            if values.ndim == 0 or len(values) != len(rows) or values.dtype.kind not in "biuf":
                raise DataError(
                    f"it returns {name!r} of shape {list(values.shape)} and type {values.dtype} for "
                    f"{len(rows):,} rows; adopt a model that returns numbers for each row"
                )
        return {f"{PREFIX}{name}": values for name, values in named.items()}

    def predict(self, model: "nn.Module", batch: Batch) -> "dict[str, Tensor]":
        """Returns what the pyfunc has predicted."""
        return {
            name.removeprefix(PREFIX): values for name, values in batch.items() if name.startswith(PREFIX)
        }

    def _named(self, answer: Any) -> "dict[str, NDArray[Any]]":
        """Returns the outputs by name; an output alone, or the chosen one, gets the name that is judged."""
        import numpy as np
        import pandas as pd

        if isinstance(answer, pd.DataFrame):
            answer = {str(name): answer[name].tolist() for name in answer.columns}
        named = (
            {str(name): np.asarray(values) for name, values in answer.items()}
            if isinstance(answer, Mapping)
            else {"": np.asarray(answer)}
        )
        if self._output and list(named) == [""] and named[""].ndim == 2:
            named = {str(number): column for number, column in enumerate(named[""].T)}
        if self._output and self._output not in named:
            raise DataError(
                f"it has no output {self._output!r}, only {', '.join(filter(None, named)) or 'one'}; name "
                f"one of these by --output"
            )
        if self._output or len(named) == 1:
            (values,) = [named[self._output]] if self._output else named.values()
            named = {self.metrics[0].prediction: values}
        return {name: v[:, 0] if v.ndim == 2 and v.shape[1] == 1 else v for name, v in named.items()}


def _sent(rows: "pa.Table", schema: Any) -> "pd.DataFrame":
    """Returns the columns of rows that a model's signature names, all where it has none, in its types."""
    import numpy as np
    import pandas as pd

    frame: pd.DataFrame = rows.to_pandas()
    if schema is None:
        return frame
    sent: pd.DataFrame = frame[[name for name in schema.input_names() if name in frame]].copy()
    for name, kind in zip(schema.input_names(), schema.input_types(), strict=True):
        to = np.dtype(kind.to_numpy()) if name in sent and hasattr(kind, "to_numpy") else None
        if to is None or to.kind not in "iufM":
            continue
        column = sent[name]
        if to.kind != "M" and not pd.api.types.is_numeric_dtype(column):  # as a category of numbers
            column = pd.to_numeric(column)
        if to.kind in "fM" or (column.notna().all() and (column == column.astype(to)).all()):
            sent[name] = column.astype("datetime64[ns]" if to.kind == "M" else to)
    return sent


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]
