"""Loads a version for MLflow: the model as code and safetensors, by MLflow's models-from-code.

MLflow runs this file when it loads a version; nothing is unpickled. The version carries its own weights
(`model/`, with the workload named in model.json) and its own code, so that it scores as it did when trained.
Python could import the code from the archive, but a module may read files beside it, so it is unpacked.
"""

import atexit
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

BATCH_SIZE = 256


class Served(PythonModel):
    """Predicts raw rows where the workload does, else scores samples of arrays on disk."""

    def load_context(self, context: PythonModelContext) -> None:
        """Loads the weights into the workload that model.json names, as the version's code has it."""
        folder = Path(context.artifacts["model"])
        _unpack(folder.parents[1] / "code" / "code.zip")
        from daybreak.contract.sections import WorkloadPlug
        from daybreak.contract.workload import serves_rows
        from daybreak.registry.carried_code import check_inside
        from daybreak.registry.weights import load_model, load_rows

        check_inside(folder.parents[1])
        facts = json.loads((folder / "model.json").read_text())
        self.workload = WorkloadPlug(use=facts["workload"], **facts["arguments"]).make()
        self.rows = load_rows(self.workload, folder.parent) if serves_rows(self.workload) else None
        self.model = self.rows.model if self.rows else load_model(self.workload, folder)
        self.opened: Any = None

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> Any:
        """Returns what the model predicts of rows, a column a name, or the scores of samples, shape [n].

        Samples are those whose numbers are in the column `sample`; `params` name the `folder` of the arrays,
        and the `split` of it that the numbers index.
        """
        import numpy as np
        import torch

        from daybreak.registry.weights import batch_of, placed

        if self.rows:
            predicted = self.rows.predict(model_input)
            return pd.DataFrame(
                {name: values if values.ndim == 1 else values.tolist() for name, values in predicted.items()}
            )
        chosen = {"folder": "data/arrays", "split": "test"} | (params or {})
        samples = self._samples(Path(chosen["folder"]), chosen["split"])
        indices = [int(number) for number in model_input["sample"]]
        scores = np.zeros(len(indices))
        with torch.inference_mode():
            for start in range(0, len(indices), BATCH_SIZE):
                numbers = indices[start : start + BATCH_SIZE]
                batch = placed(batch_of(samples, numbers), self.model)
                scores[start : start + len(numbers)] = self.workload.score(self.model, batch).cpu().numpy()
        return scores

    def _samples(self, folder: Path, split: Any) -> Any:
        """Returns the data set, opened once for the same arrays, so that requests do not pay for it."""
        opened = (folder.resolve(), split, folder.stat().st_mtime_ns)
        if self.opened != opened:
            self.samples = self.workload.dataset(folder, split)
            self.opened = opened
        return self.samples


def _unpack(archive: Path) -> None:
    """Unpacks the code into a folder that Python imports from while this process lives."""
    code = tempfile.mkdtemp(prefix="version-")
    atexit.register(shutil.rmtree, code, ignore_errors=True)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(code)
    sys.path.insert(0, code)


set_model(Served())
