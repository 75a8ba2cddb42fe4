"""Tries the models that `init` may write on the newest days, to say which to write and for how many epochs.

The days that the first night is judged by stay out of it. Of the days before, the newest fifth is scored, and
the models are fitted on the rest. The network is trained anew for 1, 2, 4, ... epochs, since a run whose rate
falls to 0 is better than a longer one at that moment, until more epochs were worse twice in a row. A trial
takes about a minute at most, so that of a large table it takes a part of the rows.
"""

import importlib.util
import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daybreak.contract import records
from daybreak.contract.errors import NotFinite, sentence
from daybreak.contract.formats import counted
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import make_model, write_state
from daybreak.data import casts, prepare
from daybreak.data.bad_cells import without_texts
from daybreak.data.dialects import DUCKDB
from daybreak.data.engines import read_parts
from daybreak.data.features import is_ripe, past_of, samples_of
from daybreak.data.partitions import PART
from daybreak.data.source import write_partition
from daybreak.extensions.init.module_text import NETWORK, NUM_TREES, Choice
from daybreak.extensions.init.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


EPOCHS = (1, 2, 4, 8, 16, 32)
WORSE = 2  # numbers of epochs in a row, after which no more are tried
MOST_S = 60.0  # of the network
MOST_ROWS, MOST_NUMBERS, MOST_IMAGES = 200_000, 50_000_000, 5_000  # looked at, and the numbers in them
LEAST_SCORED = 100  # rows; the score of fewer says too little, as does a model that learned from fewer
SCORED_AT_ONCE = 10_000


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A model, and the mean of its first metric on the scored rows."""

    model: str
    epochs: int
    value: float

    def __str__(self) -> str:
        epochs = f" ({counted(self.epochs, 'epoch')})" if self.model == NETWORK else ""
        return f"{self.model} {self.value:.4g}{epochs}"


def choose(survey: Survey, modules: Mapping[str, str], class_name: str, *, batch_size: int) -> Choice:
    """Returns the model that predicts the newest days best, of those whose `modules` are given by name.

    Where there are too few days or rows for a trial, it is the first model.
    """
    first = next(iter(modules))
    train, scored = _split(survey)
    held_out = f"before the {counted(survey.test_days, 'day')} held out"
    for days in (scored, train):
        num = sum(_num_labels(survey, day) for day in days)
        if num < LEAST_SCORED:
            return Choice(
                model=first,
                reason=f"no model was tried, as {counted(num, 'row')} of {counted(len(days), 'day')} "
                f"{held_out} are too few; chose {first}",
            )
    with tempfile.TemporaryDirectory() as folder:
        trial = _FamilyTrial(survey, train, scored, folder=Path(folder), batch_size=batch_size)
        best_of_each, said = [], []
        for name, text in modules.items():
            try:
                best_of_each.append(trial.best(name, text, class_name))
                said.append(str(best_of_each[-1]))
            except Exception as error:  # noqa: BLE001 whatever a library raises on such rows; others may not
                said.append(f"{name} failed ({sentence(error)})")
        values = ", ".join(said)
        if not best_of_each:
            return Choice(model=first, reason=f"the trial of models ended: {values}; chose {first}")
        constant = trial.constant()
    best = min(best_of_each, key=lambda tried: tried.value)
    is_in_vain = best.value >= constant
    return Choice(
        model=best.model,
        epochs=best.epochs,
        reason=f"{trial.metric.name} on {counted(len(scored), 'day')} {held_out}: {values}, constant "
        f"{constant:.4g}; chose {best.model}{', though the constant is better' if is_in_vain else ''}",
    )


def _split(survey: Survey) -> tuple[list[date], list[date]]:
    """Returns the days to train on and the days to score, of those whose labels are known."""
    ripe = [day for day in sorted(survey.rows) if is_ripe(survey.table, day, by=max(survey.rows))]
    ours = ripe[: -survey.test_days]
    num_scored = max(1, len(ours) // 5)
    return ours[:-num_scored], ours[-num_scored:]


def _num_labels(survey: Survey, day: date) -> int:
    labels = survey.rows[day][survey.label_column]
    return int(len(labels) - labels.null_count)


class _FamilyTrial:
    """The rows of a trial, and the models that are fitted on them."""

    def __init__(
        self, survey: Survey, train: Sequence[date], scored: Sequence[date], *, folder: Path, batch_size: int
    ) -> None:
        self._survey, self._folder, self._batch_size = survey, folder, batch_size
        share = _share(survey, [*train, *scored])
        self._rows = {days[-1]: _part_of(survey, days, share) for days in (train, scored)}
        self._label = survey.label_column

    def best(self, name: str, text: str, class_name: str) -> Tried:
        """Returns the best of a model's runs, which is fitted by the class in the text of a module."""
        workload, arrays = _workload(text, class_name, self._folder / f"{name}.py"), self._folder / name
        self._write_samples(workload, arrays)
        self.metric = workload.metrics[0]
        self._labels = [workload.dataset(arrays, split).column(self._label) for split in ("train", "test")]
        if name != NETWORK:
            runs = _FamilyRuns(workload, arrays, batch_size=len(self._labels[0]))
            return Tried(model=name, epochs=NUM_TREES, value=self._value(runs, NUM_TREES))
        return self._best_network(_FamilyRuns(workload, arrays, batch_size=self._batch_size))

    def _best_network(self, runs: "_FamilyRuns") -> Tried:
        epoch_s, ends = runs.fit_into(MOST_S / sum(EPOCHS[: WORSE + 1])), time.monotonic() + MOST_S
        tried: list[Tried] = []
        for epochs in EPOCHS:
            if tried and time.monotonic() + epochs * epoch_s > ends:
                break
            tried.append(Tried(model=NETWORK, epochs=epochs, value=self._value(runs, epochs)))
            best = min(tried, key=lambda each: each.value)
            if len(tried) - tried.index(best) > WORSE:
                break
        return best

    def _value(self, runs: "_FamilyRuns", epochs: int) -> float:
        """Returns the mean of the first metric after so many epochs; the lower the better."""
        try:
            predicted = runs.predicted(epochs)[self.metric.prediction]
        except NotFinite:  # as it diverged; another number of epochs may not
            return math.inf
        value = float(self.metric.values(predicted, self._labels[1]).mean())
        return value if math.isfinite(value) else math.inf

    def constant(self) -> float:
        """Returns the mean of the first metric of the constant that is best on the rows to train on."""
        constant = np.atleast_1d(self.metric.constant(self._labels[0]))
        constant = np.pad(constant, (0, max(0, self._survey.num_classes - len(constant))))
        label = self._labels[1]
        return float(self.metric.values(np.broadcast_to(constant, (len(label), len(constant))), label).mean())

    def _write_samples(self, workload: Any, folder: Path) -> None:
        train, scored = self._rows
        write_partition(self._rows[train], self._folder)
        state = prepare.fitted(workload, read_parts({train: self._folder / PART}, engine=DUCKDB))
        folder.mkdir()
        write_state(folder, state)
        for day, rows in self._rows.items():
            made = samples_of(workload, rows, state, past_of(workload, day, ()))
            prepare.write_samples(folder / f"day={day}", made)
        meta = {"first_day": str(train), "last_day": str(train), "test_days": [str(scored)]}
        records.replace_text(folder / "meta.json", json.dumps(meta))


class _FamilyRuns:
    """Runs of training over the samples of a folder, each from the beginning."""

    def __init__(self, workload: Any, arrays: Path, *, batch_size: int) -> None:
        self._workload = workload
        self._train, self._scored = (workload.dataset(arrays, split) for split in ("train", "test"))
        self._params = TrainParams(batch_size=batch_size)  # whose schedule a new home has
        self._samples = np.arange(len(self._train))

    def fit_into(self, epoch_s: float) -> float:
        """Leaves out so many samples that an epoch takes at most so long, and returns how long it takes."""
        from daybreak.training.short_run import ShortRun

        sample_s = ShortRun(self._workload, self._train, self._params, samples=self._samples).sample_s()
        num = min(len(self._samples), max(self._params.batch_size, round(epoch_s / sample_s)))
        self._samples = np.linspace(0, len(self._train) - 1, num).round().astype(np.int64)
        return num * sample_s

    def predicted(self, epochs: int) -> "dict[str, NDArray[Any]]":
        """Returns what the model predicts of the scored samples after so many epochs."""
        import torch
        from tqdm import tqdm

        from daybreak.evaluation.scoring import ScoredModel, predict
        from daybreak.training.short_run import ShortRun

        train = self._params.model_copy(update={"epochs": epochs})
        run = ShortRun(self._workload, self._train, train, samples=self._samples)
        with tqdm(total=run.num_samples, desc="try models", unit="row", unit_scale=True, disable=None) as bar:
            for _ in run.updates():
                bar.update(run.seen - bar.n)
        model = make_model(self._workload, self._train.state)
        model.load_state_dict(run.engine.weights())
        run.engine.close()
        arm = ScoredModel(
            name="challenger", workload=self._workload, model=model.eval(), samples=self._scored
        )
        with torch.no_grad():
            return predict(arm, batch_size=SCORED_AT_ONCE)


def _share(survey: Survey, days: Sequence[date]) -> float:
    """Returns the share of the rows of these days that a trial takes."""
    width = sum(getattr(column, "size", 0) or 1 for column in survey.table.features.values())
    most = MOST_IMAGES if survey.images else min(MOST_ROWS, MOST_NUMBERS // max(width, 1))
    return min(1.0, most / sum(_num_labels(survey, day) for day in days))


def _part_of(survey: Survey, days: Sequence[date], share: float) -> "pa.Table":
    """Returns a share of the labelled rows of each day, drawn by a fixed seed, as the table declares them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rng, parts, table = np.random.default_rng(0), [], survey.table
    for day in days:
        rows = survey.rows[day]
        known = pc.and_(pc.is_valid(rows[survey.label_column]), pc.is_valid(rows[table.time]))
        rows = rows.filter(known)
        chosen = np.flatnonzero(rng.random(len(rows)) < share)
        declared: Any = table
        parts.append(without_texts(casts.conform(rows.take(chosen), declared, origin=str(day))))
    return pa.concat_tables(parts)


def _workload(text: str, class_name: str, path: Path) -> Any:
    """Returns the workload of a module's text, which no other import finds."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"daybreak_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, class_name)()
