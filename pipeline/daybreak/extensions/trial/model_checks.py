"""Takes a batch of a team's samples through its model, loss and prediction, for row_checks.py.

A check prints a line with its result; a fault is one sentence that names the method to fix.
"""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daybreak.contract.errors import ParamsError, PipelineError
from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Tuning
from daybreak.contract.table import Table
from daybreak.contract.workload import (
    ARRAYS,
    GROUP,
    UNIT,
    State,
    TrainingProgress,
    asks_progress,
    has_estimator,
    loss_of,
    make_model,
    own_schedule,
    serves_rows,
    write_state,
)
from daybreak.evaluation import evaluator
from daybreak.evaluation.scoring import check_shape, declared, judged
from daybreak.extensions.trial import trial_cards, trial_version
from daybreak.extensions.trial.rehearsal import CODE
from daybreak.extensions.trial.trial_trees import TrialEstimator, try_trees
from daybreak.extensions.trial.trial_updates import CLOSE, TrialModel, close, note_of_rate, try_updates
from daybreak.extensions.trial.trial_version import OpenedFiles
from daybreak.registry import packaging
from daybreak.registry.carried_code import MODEL
from daybreak.registry.weights import batch_of, load_model
from daybreak.storage.home import Home
from daybreak.training.calibrated import try_calibrator
from daybreak.training.checkpoint import write_tensors
from daybreak.training.estimator_keys import expect_all_samples, expect_applicable
from daybreak.training.recipe import Clipping
from daybreak.training.sample_order import Indices
from daybreak.training.sampling import SampleOrder, Sampling, expect_by_number
from daybreak.training.tuning import (
    Tuner,
    check_model,
    check_optimizer,
    give_shapes,
    halves,
    leaves,
    new_optimizers,
    same_bits,
    tensors,
    wants_one_worker,
    wants_whole,
)
from daybreak.training.turns import by_sample
from daybreak.training.validation_score import validation_score
from daybreak.training.worker_keys import clipping_of, expect_allowed, expect_batches_alike, expect_calibrated
from daybreak.workloads.served_rows import predictions

MOST_SAMPLES = 256  # of the batch
SHOWN = 5  # files that travel nowhere
TRIED_UPDATES = 100  # of the run that a schedule is asked for


class ModelChecks:
    """The integration checks from samples on, in the folder of the arrays."""

    workload: Any
    name: str  # of its class
    table: Table
    _day: date  # whose rows the samples are made of
    again: tuple[Callable[[Any], Mapping[str, Any]], Mapping[str, Any]]  # makes the samples; which they are

    def __init__(self, home: Path) -> None:
        self._home, self._folder = home, Path.cwd()
        self._opened = OpenedFiles()
        self._params = Home(home).params
        self._began, self._cpu = time.monotonic(), time.process_time()

    def try_model(self, state: State) -> None:
        """Runs the checks from the data set on; `state` is the result of `fit`."""
        expect_calibrated(self._params.train, self.workload)
        expect_batches_alike(self._params.train.batch_by, self.workload)
        samples, batch = self._batch()
        of_samples = getattr(samples, "state", state)
        if has_estimator(self.workload):
            trial: TrialModel | TrialEstimator = self._grown(of_samples, batch)
        else:
            trial = self._update(self._model(of_samples, batch), of_samples, batch)
        predicted = self._predictions(trial, batch)
        self._reload(trial.model, batch, state, predicted)
        self._version(batch, predicted)
        if hasattr(self.workload, "cards"):
            self._cards(trial)
        stray = self._opened.stray(home=self._home.resolve(), folder=self._folder)
        for path in stray[:SHOWN]:
            self._note(
                f"{path} is read, which is in no digest and travels neither to machines nor with versions; "
                f"keep it beside the class, and open it by Path(__file__)"
            )
        if len(stray) > SHOWN:
            self._note(f"{counted(len(stray) - SHOWN, 'more file')} like these {SHOWN}")
        for address in sorted(self._opened.addresses):
            self._note(
                f"{self.name} connects to {address}, whose answers are in no digest, and which rented "
                f"machines may not reach; keep what it needs beside the class, or in the rows"
            )
        for sentence in trial_version.surroundings(type(self.workload)):
            self._note(sentence)

    def _say(self, check: str, text: str) -> None:
        now = time.monotonic()
        print(f"{check:9} {text}   {now - self._began:.2f} s", flush=True)
        self._began = now

    def _note(self, text: str) -> None:
        print(f"{'note':9} {text}", flush=True)

    def _batch(self) -> tuple[Any, Any]:
        """Returns the training samples, and a batch whose labels differ where possible."""
        with self._method("dataset"):
            samples = self.workload.dataset(ARRAYS, "train")
            expect_by_number(samples, of=self.name)
            num = min(len(samples), MOST_SAMPLES)
            order = np.arange(len(samples))
            if self.table.label and hasattr(samples, "column"):
                labels = samples.column(self.table.label.column)
                order = np.argsort(labels.reshape(len(labels), -1)[:, 0], kind="stable")
            train, sampling = self._params.train, Sampling.of(samples)
            if fault := sampling.too_large(train.batch_size):
                raise ParamsError(fault)
            if sampling.groups is None:
                self._chosen = order[np.linspace(0, len(order) - 1, num).astype(int)]
                np.random.default_rng(0).shuffle(self._chosen)  # so that labels differ in each half
            else:
                self._chosen = _whole_groups(sampling, num, seed=train.seed)
            batch = batch_of(samples, self._chosen)
            if has_estimator(self.workload):
                expect_all_samples(self.workload, samples)
            SampleOrder(
                seed=train.seed,
                num_samples=len(samples),
                sampling=sampling,
                batch_size=train.batch_size,
                by_tokens=train.batch_by == "tokens",
                grows=train.batch_growth != "none",
            )
        self._say("dataset", f"{len(samples):,} samples, a batch of {len(self._chosen)}")
        return samples, batch

    def _grown(self, state: State, batch: Any) -> TrialEstimator:
        """Returns a trial after some trees, as training grows them."""
        expect_applicable(self._params)
        with self._method("estimator"):
            model: Any = self.workload.model(state)
        with self._method("inputs"):
            data = self.workload.fit_data(batch)
        self._say("model", f"{type(model.estimator).__name__}, {data.inputs.shape[1]} inputs")
        trial = TrialEstimator(workload=self.workload, model=model)
        with self._method("estimator"):
            losses, same = try_trees(trial, data, seed=self._params.train.seed)
        how = (
            "the same after a restart" if same else "others after a restart, as its parameters draw at random"
        )
        self._say("update", f"loss {losses[0]:.4g}, then {losses[-1]:.4g}; trees are {how}")
        trial.losses.extend(losses)
        if not model.library.by_trees and self._params.train.epochs != 1:
            raise self._wrong("estimator", "returns one that is fitted at once", "set train.epochs to 1")
        return trial

    def _model(self, state: State, batch: Any) -> nn.Module:
        with self._method("model"):
            model = make_model(self.workload, state)
        if not hasattr(model, "parameters"):
            raise self._wrong("model", f"returns {type(model).__name__}", "return an nn.Module")
        if not list(model.parameters()):
            raise self._wrong("model", "returns a model without parameters", "return one that can learn")
        with self._method("loss"):
            give_shapes(model, self.workload, lambda: batch)
        check_model(model, self.workload)
        num = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        self._say("model", f"{type(model).__name__}, {num:,} parameters")
        return model

    def _update(self, model: nn.Module, state: State, batch: Any) -> TrialModel:
        """Returns a trial after some updates, as training takes them."""
        model.train()
        with self._method("optimizer"):
            optimizers = new_optimizers(self.workload, model)
            expect_allowed(
                self._params.train,
                whole=wants_whole(self.workload, model, optimizers),
                one_worker=wants_one_worker(self.workload),
            )
        for optimizer in optimizers.values():
            check_optimizer(optimizer)
        train = self._params.train
        clipping_of(self.workload, Clipping(), threads=train.threads)
        if note := note_of_rate(optimizers.values(), train.rate):
            self._note(note)
        if train.schedule == "own" or hasattr(self.workload, "schedule"):
            self._try_schedule(model)
        before = leaves(batch, Tensor.clone)
        losses = self._loss(model, batch)
        of_pass = ", the mean of its pass for each" if getattr(self.workload, "loss_is_mean", False) else ""
        self._say("loss", f"mean {losses.mean():.4g}, shape {list(losses.shape)}{of_pass}")
        if not same_bits(list(tensors(before)), list(tensors(batch))):
            raise self._wrong(
                "loss", "changes its batch in place", "change a copy, as a pass may be taken again"
            )
        if train.precision == "float16":
            with self._method("loss"), torch.no_grad():
                half = Tuner(Tuning(precision="float16"), losses.device)
                progress = TrainingProgress() if asks_progress(self.workload) else None
                rounded = by_sample(half.loss(self.workload, model, batch, progress))
            if not rounded.isfinite().all():
                raise self._wrong(
                    "loss",
                    "is not finite in float16, whose largest number is 65,504",
                    "scale what overflows, take logarithms in float32, or set train.precision to auto",
                )
            self._say("float16", f"mean loss {rounded.mean():.4g}")
        if not losses.requires_grad:
            raise self._wrong(
                "loss", "does not depend on the model's parameters", "compute it from model(batch)"
            )
        with self._method("loss"):
            trial = try_updates(
                self._new_workload, state, batch, size=_size(batch), seed=train.seed, rate=train.rate
            )
        after = self._loss(trial.model, batch).mean()
        self._say("update", f"mean loss {after:.4g}; the same when repeated, restarted and divided")
        if hasattr(trial.workload, "not_kept"):
            trial.notes += trial.workload.not_kept(trial.model)
        for sentence in trial.notes:
            self._note(sentence)
        return trial

    def _try_schedule(self, model: nn.Module) -> None:
        """Asks the class for the rates of a run, and notes that they are not taken where that is so."""
        train = self._params.train
        with self._method("schedule"):
            own = own_schedule(
                self.workload, model=model, num_updates=TRIED_UPDATES, num_epochs=max(1.0, train.epochs)
            )
            factors = [own(number / 10) for number in range(11)]
        if train.schedule == "own":
            rates = ", ".join(f"{factor * train.rate:.4g}" for factor in factors[::5])
            self._say("schedule", f"at the beginning, halfway and at the end: {rates}")
        elif any(factor != 1 for factor in factors):
            self._note(f"schedule is not called, as train.schedule is {train.schedule}; set it to own")

    def _new_workload(self) -> Any:
        """Returns the workload as a process that trains has it."""
        workload = self._params.workload.make()
        workload.dataset(ARRAYS, "train")
        return workload

    def _loss(self, model: nn.Module, batch: Any) -> Tensor:
        size = _size(batch)
        with self._method("loss"):
            returned = loss_of(self.workload, progress=TrainingProgress())(model, batch)
        for each in returned.values() if isinstance(returned, Mapping) else [returned]:
            shape = list(each.shape) if hasattr(each, "shape") else type(each).__name__
            if shape != [size]:
                wanted = f'return one a sample, shape [{size}], as by reduction="none"'
                raise self._wrong("loss", f"returns shape {shape} for {size} samples", wanted)
        losses = by_sample(returned)
        finite = losses.isfinite()
        if not finite.all():
            value = float(losses.detach()[~finite][0])
            num = int((~finite).sum())
            what = f"is {value:g} for {num} of {size} samples"
            raise self._wrong("loss", what, "look for a log or a division of 0, and for labels out of range")
        return losses

    def _predictions(self, trial: TrialModel | TrialEstimator, batch: Any) -> dict[str, Tensor]:
        """Predicts without the label, and judges that by the metrics."""
        trial.model.eval()
        predicted: dict[str, Tensor] = {}
        if hasattr(self.workload, "predict"):
            predicted = self._predicted(trial.workload, trial.model, batch)
            with self._method("predict"):
                try_calibrator(trial.workload, trial.model, batch)
            self._check_predicted(trial, batch, predicted)
            self._say("predict", shapes(predicted))
        size, metrics = _size(batch), declared(self.workload)
        if not metrics or self._params.train.validation:
            with self._method("score"), torch.inference_mode():
                scores = validation_score(trial.workload, trial.model, batch)
            check_shape("score", scores, size, self.workload)
            with self._method("score"):  # which may return bools, as training adds them up in float64, too
                self._validated = float(scores.double().mean())
        if not metrics:
            self._say("score", f"mean {self._validated:.4g}; no metrics are named")
            return predicted
        label = batch[self.table.label.column].numpy() if self.table.label else np.zeros(size)
        arrays = {"model": {name: values.numpy() for name, values in predicted.items()}}
        try:
            columns = judged(metrics, arrays, label)
        except (ValueError, TypeError, IndexError) as error:
            raise ParamsError(
                f"a metric of {self.name} does not take what predict returns, {shapes(predicted)}: {error}; "
                f"return what it is of (help(daybreak.Metric) says how)"
            ) from None
        for metric in metrics:
            values = predicted[metric.prediction]
            if getattr(metric, "of_chances", False) and (values.min() < 0 or values.max() > 1 + CLOSE):
                raise self._wrong(
                    "predict",
                    f"gives {metric.prediction!r} from {values.min():.4g} to {values.max():.4g}, and the "
                    f"metric {metric.name} is of chances from 0 to 1",
                    "return chances, as by sigmoid or softmax",
                )
        means = [f"{metric.name} {columns[f'model/{metric.name}'].mean():.4g}" for metric in metrics]
        self._say("metrics", ", ".join(means))
        return predicted

    def _check_predicted(
        self, trial: TrialModel | TrialEstimator, batch: Any, predicted: dict[str, Tensor]
    ) -> None:
        """Raises ParamsError for predictions that no metric can take, or that the rest of a batch decides."""
        size = _size(batch)
        half = halves(batch, size)[0]
        again = self._predicted(trial.workload, trial.model, batch)
        alone = self._predicted(trial.workload, trial.model, half) if _size(half) < size else {}
        for name, values in predicted.items():
            lost = values[~values.isfinite()]
            if len(lost):
                raise self._wrong(
                    "predict",
                    f"gives {name!r} that is {lost[0]:g} for {len(lost)} of {values.numel()} values",
                    "look for a log or a division of 0, and for nulls among the features",
                )
            if not close(again[name], values):
                raise self._wrong(
                    "predict",
                    f"gives another {name!r} when it is called again",
                    "draw nothing at random, keep nothing between calls, and leave the model in eval mode",
                )
            if name in alone and not close(alone[name], values[: len(alone[name])]):
                raise self._wrong(
                    "predict",
                    f"gives another {name!r} for {_size(half)} samples alone than among {size}",
                    "predict a sample from that sample alone, as users ask in batches of any size",
                )

        if size > 1 and all(bool((values == values[:1]).all()) for values in predicted.values()):
            self._note(
                f"predict gives the same for all {size} samples of the batch; look whether the model reads "
                f"its features"
            )

    def _predicted(self, workload: Any, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        labels, numbers = self.table.labels, {UNIT: "unit", GROUP: "group"}
        hidden = {*labels, *numbers}
        seen = batch
        if labels or isinstance(batch, Mapping):
            seen = {name: values for name, values in batch.items() if name not in hidden}
        with torch.inference_mode():
            try:
                return predictions(workload, model, seen, size=_size(batch))
            except KeyError as error:
                name = error.args[0] if error.args else None
                if name in numbers and name in batch:
                    raise self._wrong(
                        "predict",
                        f"reads the number of the {numbers[name]} (batch[{name!r}]), which rows that are "
                        f"served do not have",
                        "predict from features alone",
                    ) from None
                if name not in labels:
                    raise self._fails("predict", error) from error
                raise self._wrong(
                    "predict",
                    f"needs the label {name!r}, which nobody knows by then",
                    "predict from features alone",
                ) from None
            except PipelineError:
                raise
            except Exception as error:  # whatever the team's code raises
                raise self._fails("predict", error) from error

    def _reload(self, model: nn.Module, batch: Any, state: State, predicted: dict[str, Tensor]) -> None:
        """Compares the predictions of the weights once they are saved and loaded."""
        folder = self._folder / "version" / MODEL
        folder.mkdir(parents=True)
        path = folder / "model.safetensors"
        write_tensors(path, dict(model.state_dict()))
        if state:
            write_state(folder, state)
        with self._method("model"):
            workload = self._new_workload()
            loaded = load_model(workload, folder).cpu()
        again = self._predicted(workload, loaded, batch) if predicted else {}
        for name, values in predicted.items():
            size = float(values.double().abs().nanmean()) if values.numel() else 0.0
            if not torch.allclose(values, again[name], rtol=1e-4, atol=1e-4 * size, equal_nan=True):
                raise self._wrong(
                    "predict",
                    f"gives another {name!r} once the weights are saved and loaded",
                    "keep what it needs in parameters, buffers or what fit returns",
                )
        same = ", the same predictions" if predicted else ""
        self._say("weights", f"{path.stat().st_size:,} bytes, saved and loaded{same}")

    def _version(self, batch: Any, predicted: dict[str, Tensor]) -> None:
        """Compares features and predictions of the code that a version carries, run without the home's."""
        files, version = trial_version.carried(self._params), self._folder / "version"
        again, arrays = self.again
        try:
            with trial_version.unpacked(
                self._params, files, version=version, code=self._folder / CODE
            ) as workload:
                made = again(workload)
                batch = batch_of(workload.dataset(ARRAYS, "train"), self._chosen)
                model = load_model(workload, version / MODEL).cpu()
                with torch.inference_mode():
                    answers = predictions(workload, model, batch, size=_size(batch)) if predicted else {}
        except PipelineError:
            raise
        except Exception as error:  # whatever the team's code raises
            raise ParamsError(
                f"{self.name} does not run by the {counted(len(files), 'file')} of its own that a version "
                f"carries: {in_words(error)}; keep what it reads beside the class, and open it by "
                f"Path(__file__)"
            ) from error
        different = [name for name, values in arrays.items() if values.tobytes() != made[name].tobytes()]
        different += [name for name, values in predicted.items() if not close(answers[name], values)]
        if different:
            raise ParamsError(
                f"{self.name} makes another {', '.join(different)} by the files that a version carries than "
                f"by those here; keep what it reads beside the class, and open it by Path(__file__)"
            )
        text = f"{counted(len(files), 'file')} of its own" if files else "Daybreak's files alone"
        self._say("version", f"carries {text}, with the same features and predictions")
        use = self._params.workload.use
        needed = packaging.requirements(use, of_rows=serves_rows(self.workload))
        self._say("needs", ", ".join(needed))
        for sentence in packaging.unavailable(use) if files else ():
            self._note(sentence)

    def _cards(self, trial: TrialModel | TrialEstimator) -> None:
        """Asks for the cards of the day; what fails is a note, as a night goes on without it."""
        size = len(self._chosen)
        losses = [(size * number, loss) for number, loss in enumerate(trial.losses, 1)]
        with self._method("score"):
            columns = evaluator.columns_of(
                self._new_workload(),
                self._folder / "version" / MODEL,
                ARRAYS,
                batch_size=self._params.evaluate.batch_size,
            )
        counts, faults = trial_cards.try_cards(
            self._params.workload,
            Home(self._home),
            folder=self._folder,
            day=self._day,
            model=self._folder / "version" / MODEL,
            columns=columns,
            losses=losses,
            validations=[(losses[-1][0], self._validated)] if self._params.train.validation else [],
        )
        self._say("cards", counts)
        for sentence in faults:
            self._note(sentence)

    @contextlib.contextmanager
    def _method(self, name: str) -> Iterator[None]:
        """Makes a sentence of whatever a method of the team raises."""
        try:
            with self._opened.watched():
                yield
        except (PipelineError, NotImplementedError) as error:
            if isinstance(error, PipelineError):
                raise
            raise ParamsError(str(error)) from error
        except Exception as error:  # whatever the team's code raises
            raise self._fails(name, error) from error

    def _fails(self, method: str, error: Exception) -> ParamsError:
        lines = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if Path(frame.filename).is_relative_to(self._folder / CODE)
        ]
        where = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
        return ParamsError(f"{self.name}.{method} fails{where}: {in_words(error)}; fix it")

    def _wrong(self, method: str, what: str, wanted: str) -> ParamsError:
        return ParamsError(f"{self.name}.{method} {what}; {wanted}")


def in_words(error: Exception) -> str:
    """Returns an error of the team's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _whole_groups(sampling: Sampling, size: int, *, seed: int) -> Indices:
    """Returns the samples of a batch of whole groups, as training takes them, of about this size."""
    assert sampling.groups is not None
    order = SampleOrder(seed=seed, num_samples=len(sampling.groups), sampling=sampling, batch_size=size)
    assert order.batch_at
    return order.samples(0, order.batch_at(0))


def _size(batch: Any) -> int:
    first = batch
    while isinstance(first, Mapping | tuple | list):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    return len(first)


def shapes(arrays: Mapping[str, Any]) -> str:
    """Returns the names, types and shapes of arrays or tensors, in a line."""
    return ", ".join(
        f"{name} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        for name, value in arrays.items()
    )
