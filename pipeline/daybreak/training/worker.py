"""Runs one training process: `python -m daybreak.training.worker FOLDER`, under torchrun.

FOLDER holds `job.json` (a Recipe). The worker resumes from the newest checkpoint there, or begins, and writes

    checkpoints/    see checkpoint.py                starts.jsonl    one line per start of worker 0
    progress.jsonl  heartbeats of worker 0           errors.jsonl    the errors that ended workers
    moving          touched in place of a heartbeat that found no space on the disk, and while no update ends
    model/          model.safetensors, model.json    result.json     written last: the model is complete

The launcher may write `end_by.json`: a time before `train_until` to end by, since the budget ends first; and
`batch.json`: the size of batches that a trigger asks for.
Exit status 0: result.json exists; 143: told to end, and saved; 1: see errors.jsonl.
Torch is imported late, so that a worker without work, or without a parent, ends at once.
"""

import logging
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sized
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from daybreak import hooks
from daybreak.contract import clock, records
from daybreak.contract.errors import DataError, Interrupted, JobError
from daybreak.contract.record_parts import Epoch
from daybreak.contract.sections import WorkloadPlug
from daybreak.contract.workload import Workload, has_estimator, is_over_batch, own_schedule
from daybreak.storage.home import Home
from daybreak.training import gpus, worker_errors
from daybreak.training.recipe import Averaging, Clipping, Recipe, WarmStart
from daybreak.training.supervision import (
    Supervision,
    check_attempt,
    note_start,
    record_errors,
    set_up_process,
)
from daybreak.training.termination import die_with_parent, sigterm_blocked
from daybreak.training.trained_model import WEIGHTS, Trained, check_finite, export, parameters_of
from daybreak.training.worker_keys import clipping_of, expect_batches_alike

if TYPE_CHECKING:
    from daybreak.training.checkpoint_copies import CheckpointCopies
    from daybreak.training.engine import TorchEngine
    from daybreak.training.supervision import AnyEngine

log = logging.getLogger(__name__)


def main(folder: Path) -> int:
    """Trains the job in `folder` to its end, and returns the exit status."""
    clock.follow(Path.cwd())
    _die_with_torchrun()
    rank = int(os.environ.get("RANK", "0"))
    record_errors(folder)
    if (folder / "result.json").exists():
        return 0
    check_attempt(folder)  # torchrun of an older start may start its workers again
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
            check_attempt(folder)
            check_finite(weights, parameters_of(trained.engine), update=trained.outcome.num_updates)
            num_validated = recipe.validation.num_samples if trained.scores else 0
            weights = calibrated(
                weights,
                trained.workload,
                trained.dataset,
                recipe,
                num_validated=num_validated,
                alive=trained.alive,
            )
            export(folder, recipe, weights, trained, kept=kept)
    return 0


def _train(folder: Path, recipe: Recipe) -> Trained:
    """Trains from the newest checkpoint, or from the start, until the run ends or is told to stop."""
    from daybreak.training import moments
    from daybreak.training.checkpoint_copies import CheckpointCopies
    from daybreak.training.devices import peak_memory_bytes
    from daybreak.training.sampling import Sampling
    from daybreak.training.trainer import Trainer
    from daybreak.training.validation import Validator, finite
    from daybreak.training.weight_average import WeightAverage

    gpus.check()
    supervision = Supervision(folder, hang_after_s=recipe.hang_after_s)
    workload: Workload = WorkloadPlug(use=recipe.workload, **recipe.arguments).make()
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
    sampling = Sampling.of(dataset)
    if not engine.rank and (fault := sampling.too_large(recipe.batch_size)):
        log.warning("%s", fault)
    trainer = Trainer(
        engine,
        recipe,
        folder=folder / "checkpoints",
        epoch_samples=epoch_samples,
        sampling=sampling,
        parameters=parameters_of(engine),
        told_to_stop=supervision.told_to_stop,
        report=partial(supervision.report, engine),
        memory_bytes=lambda: max(peak_memory_bytes(), engine.peak_bytes),
        copies=copies,
        end_by=supervision.end_by,
        asked_size=supervision.batch_size,
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
    return Trained(
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


def _tracking(folder: Path, recipe: Recipe) -> ExitStack:
    """Starts live metrics in a separate process, so that MLflow cannot slow training down."""
    stack = ExitStack()
    if os.environ.get("MLFLOW_TRACKING_URI"):
        command = [sys.executable, "-m", "daybreak.training.run_logger", str(folder), recipe.night]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert process.stdin
        stack.callback(process.stdin.close)  # also closed by our death: the logger sends the rest and ends
    return stack


def _die_with_torchrun() -> None:
    """Lets no orphan train beside a new start. Raises Interrupted where torchrun has already ended."""
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent or parent == 1:
        raise Interrupted("torchrun has ended before its worker began; the job is started again")


if __name__ == "__main__":
    set_up_process()
    sys.exit(main(Path(sys.argv[1])))
