"""Loads versions for a router, each into a separate process.

All versions answer from the arrays of one night (daybreak/serving/recorded.py), or from its clean rows where
another class made these, so that versions differ by their models and classes alone. A version that predicts
rows needs no arrays.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import ReleaseError
from daybreak.extensions.router.answers import Answers, Predictor, bytes_of, texts
from daybreak.registry import aliases, carried_code
from daybreak.registry.host import NoAnswer
from daybreak.serving.recorded import NightArrays, arrays_of, case_of, recorded, rows_of_others
from daybreak.serving.version_process import VersionProcess
from daybreak.storage.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient


class VersionLoader:
    """Loads versions, each into a process of its own."""

    def __init__(self, name: str, *, home: Home, top: int, keep: int, answer_s: float) -> None:
        self._home = home
        self.name, self._top, self._keep, self._answer_s = name, top, keep, answer_s

    def load(self, client: "MlflowClient", number: int, *, arrays: NightArrays | None) -> Answers | Predictor:
        """Returns the version, ready to answer from these arrays; PipelineError if it cannot be loaded."""
        night = aliases.existing(client, self.name, number).tags.get("night", "")
        version = recorded(self._home, self.name, number, night=night)
        arrays = arrays or arrays_of(self._home, version.night)
        with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
            folder = carried_code.fetch(
                self._home, f"models:/{self.name}/{number}", version, into=Path(scratch)
            )
            others = rows_of_others(self._home, version, arrays)
            case = case_of(folder, arrays.folder if arrays else None, night=others)
            process = VersionProcess(number, {**case, "threads": 1}, answer_s=self._answer_s, home=self._home)
        return served(process, number, night=arrays.night if arrays else "", top=self._top, keep=self._keep)


def served(process: VersionProcess, number: int, *, night: str, top: int, keep: int) -> Answers | Predictor:
    """Returns the version in a process, which answers users or rows; ReleaseError where it does not."""
    try:
        if process.about.get("answers") == "rows":
            return Predictor(number, process=process)
        popular = texts(process.ask("popular", most=bytes_of(top), top=top).get("items"), most=top)
        return Answers(number, night=night, process=process, popular=popular, top=top, keep=keep)
    except NoAnswer as error:
        raise ReleaseError(f"version {number} does not answer: {error}; fix its workload") from None
