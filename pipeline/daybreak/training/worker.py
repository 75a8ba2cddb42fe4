"""Runs one training process: `python -m daybreak.training.worker FOLDER`, under torchrun.

FOLDER holds `job.json` (a Recipe). The worker resumes from the newest checkpoint there, or begins, and writes

    checkpoints/    see checkpoint.py                starts.jsonl    one line per start of worker 0
    progress.jsonl  heartbeats of worker 0           errors.jsonl    the errors that ended workers
    moving          touched in place of a heartbeat that found no space on the disk, and while no update ends
    model/          model.safetensors, model.json    result.json     written last: the model is complete

The launcher may write `end_by.json`: a time before `train_until` to end by, since the budget ends first.
Exit status 0: result.json exists; 143: told to end, and saved; 1: see errors.jsonl.
Torch is imported late, so that a worker without work, or without a parent, ends at once.
"""

import json
import logging
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from daybreak import hooks
from daybreak.contract import clock, disk, records
from daybreak.contract.errors import DataError, JobError, NotFinite, PipelineError
from daybreak.contract.record_parts import Epoch
from daybreak.contract.sections import Plug
from daybreak.contract.workload import STATE, Workload, has_estimator, is_over_batch, own_schedule
from daybreak.storage import jsonl
from daybreak.storage.home import Home
from daybreak.training import gpus, worker_errors
from daybreak.training.recipe import (
    END_BY,
    MOVING,
    Averaging,
    Clipping,
    Progress,
    Recipe,
    Result,
    WarmStart,
)
from daybreak.training.termination import Termination, die_with_parent, sigterm_blocked
from daybreak.training.watchdog import Watchdog
from daybreak.training.worker_keys import clipping_of, expect_batches_alike

if TYPE_CHECKING:
    from torch import Tensor

    from daybreak.training.checkpoint_copies import CheckpointCopies
    from daybreak.training.engine import TorchEngine
    from daybreak.training.estimator_engine import EstimatorEngine
    from daybreak.training.trainer import RunOutcome
    from daybreak.training.validation import Validator
    from daybreak.training.weight_average import WeightAverage

    AnyEngine = TorchEngine | EstimatorEngine

log = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"


def main(folder: Path) -> int:
    """Trains the job in `folder` to its end, and returns the exit status."""
    clock.follow(Path.cwd())
    _die_with_torchrun()
    rank = int(os.environ.get("RANK", "0"))
    _record_errors(folder)
    if (folder / "result.json").exists():
        return 0
    if worker_errors.hopeless(folder):
        return 1
    from daybreak.training.calibrated import calibrated

    recipe = records.loads(Recipe, (folder / "job.json").read_text(), source=str(folder / "job.json"))
    with ExitStack() as stack:
        if rank == 0:
            note_start(folder)
            stack.enter_context(_tracking(folder, recipe))
        trained = _train(folder, recipe)
        stack.callback(trained.engine.close)
        if trained.outcome.stopped_by == "terminated":
            return 128 + signal.SIGTERM
        weights = trained.model.weights()
        kept = None
        if recipe.carries_optimizer:  # which estimator_keys.py refuses for what is no network
            kept = cast("TorchEngine", trained.engine).updater.save()
        if rank == 0:
            _check_attempt(folder)
            _check_finite(weights, _parameters(trained.engine), update=trained.outcome.num_updates)
            num_validated = recipe.validation.num_samples if trained.scores else 0
            weights = calibrated(
                weights,
                trained.workload,
                trained.dataset,
                recipe,
                num_validated=num_validated,
                alive=trained.alive,
            )
            _export(folder, recipe, weights, trained, kept=kept)
    return 0


@dataclass(frozen=True, kw_only=True)
class _Trained:
    """A run that has ended, and the engine that took its updates."""

    engine: "AnyEngine"
    workload: Workload
    dataset: Sized  # that it trains on
    model: "Validator | WeightAverage | AnyEngine"  # which has its weights
    scores: tuple[tuple[int, float], ...]  # of its validations
    outcome: "RunOutcome"
    warm: bool  # it began from the champion's weights
    epochs: tuple[Epoch, ...]  # whose samples are proven
    alive: Callable[[], None]  # shows that what follows is no hang


def _train(folder: Path, recipe: Recipe) -> _Trained:
    """Trains from the newest checkpoint, or from the start, until the run ends or is told to stop."""
    from daybreak.training import moments
    from daybreak.training.checkpoint_copies import CheckpointCopies
    from daybreak.training.devices import peak_memory_bytes
    from daybreak.training.sampling import Sampling
    from daybreak.training.trainer import Trainer
    from daybreak.training.validation import Validator, finite
    from daybreak.training.weight_average import WeightAverage

    gpus.check()
    supervision = _Supervision(folder, hang_after_s=recipe.hang_after_s)
    workload: Workload = Plug(use=recipe.workload, **recipe.arguments).make()
    expect_batches_alike(recipe.batch_by, workload)
    engine, dataset = _engine(recipe, workload, supervision.alive)
    warm = _start_warm(engine, recipe.warm_start) if recipe.warm_start else False
    if warm and recipe.warm_start and recipe.carries_optimizer:
        moments.take_over(cast("TorchEngine", engine).updater, Path(recipe.warm_start.folder))
    copies = CheckpointCopies(recipe.copies) if recipe.copies else None
    average = None
    if recipe.averaging != Averaging():
        base_size = recipe.rate.base_batch_size or recipe.batch_size
        average = WeightAverage(engine, recipe.averaging, base_size=base_size)
    validator = None
    if recipe.validation.num_samples and engine.can_score:
        validator = Validator(
            engine, recipe.validation, num_all=len(dataset), average=average, alive=supervision.alive
        )
    elif recipe.validation.num_samples:
        log.warning(
            "each worker has a share of the weights, so training takes all samples, and is not validated"
        )
    epoch_samples = len(dataset) - (recipe.validation.num_samples if validator else 0)
    run: Any = {
        "num_updates": math.ceil(recipe.num_samples / recipe.batch_size),
        "num_epochs": recipe.num_samples / (epoch_samples - recipe.first_sample),
    }
    if hasattr(workload, "know_run"):
        workload.know_run(**run)
    trainer = Trainer(
        engine,
        recipe,
        folder=folder / "checkpoints",
        epoch_samples=epoch_samples,
        sampling=Sampling.of(dataset),
        parameters=_parameters(engine),
        told_to_stop=supervision.told_to_stop,
        report=partial(supervision.report, engine),
        memory_bytes=lambda: max(peak_memory_bytes(), engine.peak_bytes),
        copies=copies,
        end_by=supervision.end_by,
        schedule=own_schedule(
            workload,
            model=engine.model,
            **run,
        )
        if recipe.rate.schedule == "own"
        else None,
        average=average,
        validator=validator,
        least_batch=2 if is_over_batch(workload) else 1,  # as a sample by itself is compared with nothing
    )
    path = _newest(trainer.saver.folder, folder, recipe, engine, copies)
    if path:
        trainer.resume(path)
    if validator and engine.rank == 0 and not has_estimator(workload):
        _try_calibrator(cast("TorchEngine", engine), workload, dataset, recipe)
    how = "going on" if path else "beginning"
    log.info("%s from %d of %d samples", how, trainer.seen, recipe.num_samples)
    supervision.begin(update=lambda: trainer.num_updates + 1)
    outcome = trainer.run()
    supervision.end()
    epochs: tuple[Epoch, ...] = ()
    if outcome.stopped_by != "terminated":
        engine.finish()
        trainer.save()
        trainer.saver.wait()
        epochs = trainer.audit.proven() if engine.rank == 0 else ()
    return _Trained(
        engine=engine,
        workload=workload,
        dataset=dataset,
        model=validator or average or engine,
        scores=finite(validator.scores) if validator else (),
        outcome=outcome,
        warm=warm,
        epochs=epochs,
        alive=supervision.alive,
    )


def _engine(recipe: Recipe, workload: Workload, alive: Callable[[], None]) -> tuple["AnyEngine", Sized]:
    """Returns what takes the updates of a job, with the samples that it trains on.

    The micro-batches are those that fitted this machine before. Raises DataError where there is no sample.
    """
    from daybreak.training import column_files, micro_batch

    home = Home.here_or_none()
    with sigterm_blocked():
        dataset: Any = workload.dataset(Path(recipe.arrays), recipe.split)
    if not len(dataset):
        raise DataError(f"{recipe.arrays} holds no sample to train on; look at prepare.window_days")
    if has_estimator(workload):
        from daybreak.training.estimator_engine import EstimatorEngine

        return EstimatorEngine(workload, dataset, seed=recipe.seed, alive=alive), dataset
    clipping = clipping_of(workload, recipe.clipping, threads=recipe.threads)
    engine = _engine_class(recipe, alive)(
        workload,
        dataset,
        seed=recipe.seed,
        micro_batch_size=micro_batch.at_most(
            home, recipe.workload, recipe.arguments, micro_batch_size=recipe.micro_batch_size
        ),
        tuning=recipe.tuning,
        on_shrink=lambda size: micro_batch.remember(
            home, recipe.workload, recipe.arguments, micro_batch_size=size
        ),
        column_files=column_files.open_files(
            home, dataset, workload=recipe.workload, arguments=recipe.arguments, arrays=Path(recipe.arrays)
        )
        if recipe.tuning.in_memory
        else None,
        follow_memory=recipe.follow_memory,
        clipping=clipping if clipping != Clipping() else None,
    )
    return engine, dataset


def _try_calibrator(engine: "TorchEngine", workload: Workload, dataset: Sized, recipe: Recipe) -> None:
    """Raises ParamsError for a calibrator that does not take what `predict` returns, before training."""
    from daybreak.training.calibrated import try_calibrator
    from daybreak.training.tuning import read, to

    if getattr(workload, "calibrator", None) is None:
        return
    first = len(dataset) - recipe.validation.num_samples
    samples = list(range(first, min(len(dataset), first + engine.micro_batches.size)))
    try_calibrator(workload, engine.model, to(read(dataset, samples), engine.device))


class _Supervision:
    """Tells others how training goes on, and training when it has to end.

    The watchdog ends a worker that hangs, SIGTERM one that is to save first, and the launcher may set a time.
    """

    def __init__(self, folder: Path, *, hang_after_s: float) -> None:
        rank = int(os.environ.get("RANK", "0"))
        self._folder = folder
        self._watchdog = Watchdog(
            hang_after_s=hang_after_s,
            on_hang=lambda message: worker_errors.leave(folder, message, rank=rank),
        )
        self._termination = Termination()
        self._limit = _Limit(folder)
        self._device_use = _DeviceUse()

    def begin(self, *, update: Callable[[], int]) -> None:
        """Holds SIGTERM back and watches for hangs from now on; an error is recorded with its update."""
        self._limit.poll()
        self._termination.listen()
        self._watchdog.start()
        _record_errors(self._folder, update=update)

    def end(self) -> None:
        """Stops watching, after the last update."""
        _record_errors(self._folder)
        self._watchdog.stop()

    def alive(self) -> None:
        """Shows that a worker without an update is not a hang."""
        self._watchdog.alive()
        (self._folder / MOVING).touch()

    def told_to_stop(self) -> bool:
        """Returns whether SIGTERM has come; called before each update, which the watchdog sees by it."""
        self._watchdog.beat()
        return self._termination()

    def end_by(self) -> float:
        """Returns the time to end by, in seconds since 1970; infinity where the launcher has set none."""
        return self._limit.time

    def report(self, engine: "AnyEngine", progress: Progress) -> None:
        """Writes a heartbeat, and reads the time to end by again."""
        self._limit.poll()
        use = self._device_use.since_last(progress.time.timestamp(), waited_s=engine.waited_s)
        _report(self._folder, replace(progress, device=engine.devices, device_use=use))


def _newest(
    checkpoints: Path, folder: Path, recipe: Recipe, engine: "AnyEngine", copies: "CheckpointCopies | None"
) -> Path | None:
    """Returns the newest good checkpoint of the job, the same on all workers; None where there is none."""
    from daybreak.training import checkpoint
    from daybreak.training.process_group import agreed

    path: Path | None = None
    if engine.rank == 0:
        finite = worker_errors.met_not_finite(folder)
        if copies:
            copies.fetch(checkpoints, finite=finite)
        path = checkpoint.take_over(checkpoints, identity=recipe.identity, finite=finite)
    path = cast(Path | None, agreed(path))
    if copies and path and not path.exists():  # it is on the machine of worker 0
        copies.fetch_one(path)
    return path


def _engine_class(recipe: Recipe, alive: Callable[[], None]) -> "Callable[..., TorchEngine]":
    """Returns the engine by which this job's workers take updates together.

    Raises JobError where the job asks for one that no extension here has.
    """
    from daybreak.training.engine import TorchEngine

    for engine_of in hooks.functions("engine"):
        if engine := cast("Callable[..., TorchEngine] | None", engine_of(recipe, alive)):
            return engine
    for asked, key in ((recipe.threads == "auto", "train.threads"), (recipe.sync.every > 1, "train.sync")):
        if asked:
            raise JobError(
                f"no extension here takes updates as {key} asks; restore pipeline/daybreak/extensions, or "
                f"remove {key}"
            )
    return TorchEngine


def _start_warm(engine: "AnyEngine", start: WarmStart) -> bool:
    """Begins from the weights that the recipe names; the bytes that are compared are those that are used."""
    from safetensors.torch import load

    folder = Path(start.folder)
    weights = folder / WEIGHTS
    content = weights.read_bytes()
    digest = records.digest(
        folder,
        of_file=lambda path: records.bytes_digest(content) if path == weights else records.digest(path),
    )
    if start.digest and digest != start.digest:
        raise DataError(
            f"the model in {folder} has digest {digest}, and the night began with {start.digest}; "
            f"open the night anew, which restores it"
        )
    warm = engine.begin_from(load(content))
    if not warm:
        log.warning("the model in %s has other shapes; starting cold", folder)
    return warm


def _export(
    folder: Path,
    recipe: Recipe,
    weights: dict[str, "Tensor"],
    trained: _Trained,
    *,
    kept: "tuple[dict[str, Tensor], Any] | None",
) -> None:
    """Writes the model, then the result, each whole or not at all."""
    from daybreak.training import checkpoint, moments

    engine, outcome = trained.engine, trained.outcome
    stopped_by: Literal["finished", "validation"]
    stopped_by = "validation" if outcome.stopped_by == "validation" else "finished"
    fresh = folder / f".model.{os.getpid()}"
    fresh.mkdir()
    checkpoint.write_tensors(fresh / "model.safetensors", weights)
    if kept:
        moments.write(fresh, *kept)
    digest = complete_model(fresh, recipe, seen=outcome.seen)
    disk.sync(fresh)
    shutil.rmtree(folder / "model", ignore_errors=True)
    fresh.rename(folder / "model")
    result = Result(
        model_digest=digest,
        num_samples=outcome.seen,
        num_updates=outcome.num_updates,
        stopped_by=ended_early_by(folder, recipe) if outcome.stopped_by == "deadline" else stopped_by,
        validations=trained.scores,
        warm=trained.warm,
        ended_at=clock.utc(),
        epochs=trained.epochs,
        noise_scale=outcome.noise_scale,
        device=engine.devices,
        sync=engine.sync,
        short_of_memory=engine.short_of_memory,
        num_skipped=engine.num_skipped,
    )
    records.write(result, folder)


def complete_model(folder: Path, recipe: Recipe, *, seen: int) -> str:
    """Lays beside a model's weights what loading needs: facts and state; returns the digest of all."""
    write_facts(folder, recipe, seen=seen)
    if (state := Path(recipe.arrays) / STATE).exists():
        shutil.copytree(state, folder / STATE)
    return records.digest(folder)


def write_facts(folder: Path, recipe: Recipe, *, seen: int) -> None:
    """Writes `model.json`: how to construct the model that the tensors beside it belong to."""
    facts = {
        "workload": recipe.workload,
        "arguments": recipe.arguments,
        "seen": seen,
        "data_digest": recipe.data_digest,
        "last_day": recipe.last_day.isoformat(),
    }
    if recipe.last_trained_day:
        facts["last_trained_day"] = recipe.last_trained_day.isoformat()
    if recipe.tuning.band_rate:
        facts["band_rate"] = recipe.tuning.band_rate
    records.replace_text(folder / "model.json", json.dumps(facts, indent=2) + "\n")


def ended_early_by(folder: Path, recipe: Recipe) -> Literal["deadline", "budget"]:
    """Returns which of the two limits came first."""
    limit = _Limit(folder)
    limit.poll()
    return "budget" if limit.time < recipe.train_until.timestamp() else "deadline"


class _Limit:
    """The time to end by that the launcher has set; infinity where it has set none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / END_BY
        self.time = math.inf
        self.poll()

    def poll(self) -> None:
        """Reads the time again."""
        self.time = math.inf
        with suppress(FileNotFoundError):  # the launcher may just have removed it
            self.time = json.loads(self._path.read_text())["time"]


class _DeviceUse:
    """The share of the time in which the device of worker 0 did not wait for samples."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def since_last(self, now: float, *, waited_s: float | None) -> float | None:
        """Returns the share since the call before; None at the first one, and where nothing is known."""
        if waited_s is None:
            return None
        before, self._before = self._before, (now, waited_s)
        if before is None or now <= before[0]:
            return None
        return max(0.0, 1 - (waited_s - before[1]) / (now - before[0]))


def _report(folder: Path, progress: Progress) -> None:
    _check_attempt(folder)
    if not jsonl.append(folder / "progress.jsonl", json.loads(records.dumps(progress))):
        with suppress(OSError):
            (folder / MOVING).touch()  # takes no space, and shows the launcher that this is not a hang
            os.utime(folder / MOVING, (clock.now(), clock.now()))


def _check_attempt(folder: Path) -> None:
    """Raises JobError if the job was restarted meanwhile: the new workers own the folder."""
    own, path = os.environ.get(worker_errors.ATTEMPT), folder / "attempt"
    if own and path.exists() and path.read_text() != own:
        raise JobError(f"job {folder.name} was started again; this worker belongs to an older start and ends")


def _tracking(folder: Path, recipe: Recipe) -> ExitStack:
    """Starts live metrics in a separate process, so that MLflow cannot slow training down."""
    stack = ExitStack()
    if os.environ.get("MLFLOW_TRACKING_URI"):
        command = [sys.executable, "-m", "daybreak.training.run_logger", str(folder), recipe.night]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert process.stdin
        stack.callback(process.stdin.close)  # also closed by our death: the logger sends the rest and ends
    return stack


def note_start(folder: Path) -> None:
    """Records that the first worker of a job began, and since when its machine has been there."""
    booted_at = datetime.fromtimestamp(clock.booted_at(), UTC)
    line = {"time": clock.utc().isoformat(), "booted_at": booted_at.isoformat()}
    line["attempt"] = os.environ.get(worker_errors.ATTEMPT, "")
    jsonl.append(folder / "starts.jsonl", line)


def _record_errors(folder: Path, *, update: Callable[[], int | None] = lambda: None) -> None:
    """Lets an error that ends this process leave a record, with the update that it was taking."""
    rank = int(os.environ.get("RANK", "0"))
    sys.excepthook = lambda kind, error, trace: leave_error(folder, rank, error, update=update())


def leave_error(folder: Path, rank: int, error: BaseException, *, update: int | None = None) -> None:
    """Records what ended this worker in errors.jsonl, and prints it."""
    worker_errors.leave(folder, error, rank=rank, update=update)
    if isinstance(error, PipelineError):
        log.error("%s: %s", type(error).__name__, error)
    else:
        traceback.print_exception(error)


def _parameters(engine: "AnyEngine") -> list[str]:
    """Returns the names of the weights that are learned; buffers such as masks may hold infinities."""
    return [name for name, _ in engine.model.named_parameters()]


def _check_finite(weights: dict[str, "Tensor"], parameters: Sequence[str], *, update: int) -> None:
    """Raises NotFinite where the last update left such a weight, which no loss has shown."""
    for name in parameters:
        if not weights[name].isfinite().all():
            raise NotFinite(
                f"weight {name} is not finite after update {update}, the last one, though its loss is; look "
                f"for a gradient that is not (a root or a logarithm of 0), or lower train.rate",
                update=update,
            )


def _die_with_torchrun() -> None:
    """Lets no orphan train beside a new start. Raises JobError where torchrun has already ended."""
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent or parent == 1:
        raise JobError("torchrun has ended before its worker began; the job is started again")


def set_up_process() -> None:
    """Sends logs to standard error, and turns off core dumps, which could fill the disk."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    set_up_process()
    sys.exit(main(Path(sys.argv[1])))
