"""What does one training process do? `python -m pipeline.training.worker FOLDER`, under torchrun.

FOLDER holds `job.json` (a Recipe). The worker goes on from the newest checkpoint there, or begins, and leaves

    checkpoints/    see checkpoint.py                starts.jsonl    one line per start of worker 0
    progress.jsonl  heartbeats of worker 0           errors.jsonl    what ended a worker
    model/          model.safetensors, model.json    result.json     written last: the model is complete

Exit status 0: result.json is there; 143: told to end, and saved; 1: see errors.jsonl.
With `--profile FOLDER` it measures the job instead, by the Request in job.json, and leaves profile.json.
Torch is imported late, so that a worker that has nothing to do, or nobody to do it for, ends at once.
"""

import ctypes
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import traceback
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pipeline import records
from pipeline.errors import DataError, JobError, PipelineError
from pipeline.params import Plug
from pipeline.records import Epoch
from pipeline.training.notice import Notice, unheard
from pipeline.training.recipe import Progress, Recipe, Result

if TYPE_CHECKING:
    from pipeline.training.engine import TorchEngine
    from pipeline.training.trainer import Outcome

log = logging.getLogger(__name__)

ATTEMPT = "PIPELINE_ATTEMPT"  # in the environment: which start of the job a worker belongs to
PR_SET_PDEATHSIG = 1


def main(folder: Path) -> int:
    """Train the job in `folder` to its end; the exit status."""
    _die_with_parent()
    rank = int(os.environ.get("RANK", "0"))
    sys.excepthook = lambda kind, error, trace: _leave_error(folder, rank, error, trace)
    if (folder / "result.json").exists():
        return 0
    if _hopeless(folder):
        return 1
    recipe = records.loads(Recipe, (folder / "job.json").read_text(), source=str(folder / "job.json"))
    with ExitStack() as stack:
        if rank == 0:
            append(folder / "starts.jsonl", {"time": datetime.now(UTC).isoformat()})
            stack.enter_context(_tracking(folder, recipe))
        outcome, warm, engine, epochs = _train(folder, recipe)
        stack.callback(engine.close)
        if outcome.stopped_by == "told":
            return 128 + signal.SIGTERM
        if rank == 0:
            _check_attempt(folder)
            _export(folder, recipe, engine, outcome, warm=warm, epochs=epochs)
    return 0


def profile(folder: Path) -> int:
    """Measure the job that `folder` asks for, and leave profile.json there; the exit status."""
    _die_with_parent()
    sys.excepthook = lambda kind, error, trace: _leave_error(folder, 0, error, trace)
    from pipeline.profiling import profiler
    from pipeline.profiling.profiles import Request

    told = records.loads(Request, (folder / "job.json").read_text(), source=str(folder / "job.json"))
    records.write(profiler.profile(told.dataset, told.workload.make(), told.profile, told.train), folder)
    return 0


def _train(folder: Path, recipe: Recipe) -> tuple["Outcome", bool, "TorchEngine", tuple[Epoch, ...]]:
    from pipeline.training import checkpoint, passes
    from pipeline.training.bucket import Bucket
    from pipeline.training.engine import TorchEngine, agreed, peak_memory_bytes
    from pipeline.training.periodic import PeriodicEngine
    from pipeline.training.trainer import Trainer

    workload = Plug(use=recipe.workload, **recipe.arguments).make()
    with unheard():
        dataset = workload.dataset(Path(recipe.arrays), "train")
    if not len(dataset):
        raise DataError(f"{recipe.arrays} holds no sample to train on; look at prepare.window_days")
    kind = partial(PeriodicEngine, sync_every=recipe.sync_every) if recipe.sync_every > 1 else TorchEngine
    engine: TorchEngine = kind(
        workload,
        dataset,
        seed=recipe.seed,
        micro_batch_size=passes.at_most(
            recipe.workload, recipe.arguments, micro_batch_size=recipe.micro_batch_size
        ),
        tuning=recipe.tuning,
        shrunk=lambda size: passes.remember(recipe.workload, recipe.arguments, micro_batch_size=size),
    )
    warm = _start_warm(engine, Path(recipe.warm_from)) if recipe.warm_from else False
    notice = Notice()
    bucket = Bucket(recipe.copies) if recipe.copies else None
    trainer = Trainer(
        engine,
        recipe,
        folder=folder / "checkpoints",
        epoch_samples=len(dataset),
        block=getattr(dataset, "block", 1),
        told_to_stop=notice,
        report=lambda progress: _report(folder, progress),
        memory_bytes=peak_memory_bytes,
        bucket=bucket,
    )
    found = None
    if engine.rank == 0:
        if bucket:
            bucket.bring(trainer.saver.folder)
        found = checkpoint.take_over(trainer.saver.folder, identity=recipe.identity)
    found = agreed(found)
    if bucket and found and not found.exists():  # it lies on the machine of worker 0
        bucket.bring(trainer.saver.folder)
    if found:
        trainer.resume(found)
    how = "going on" if found else "beginning"
    log.info("%s from %d of %d samples", how, trainer.seen, recipe.num_samples)
    notice.listen()
    outcome = trainer.run()
    epochs: tuple[Epoch, ...] = ()
    if outcome.stopped_by != "told":
        trainer.save()
        trainer.saver.wait()
        epochs = trainer.tally.proven() if engine.rank == 0 else ()
    return outcome, warm, engine, epochs


def _start_warm(engine: "TorchEngine", folder: Path) -> bool:
    from safetensors.torch import load_file

    warm = engine.begin_from(load_file(folder / "model.safetensors"))
    if not warm:
        log.warning("the model in %s has other shapes; starting cold", folder)
    return warm


def _export(
    folder: Path,
    recipe: Recipe,
    engine: "TorchEngine",
    outcome: "Outcome",
    *,
    warm: bool,
    epochs: tuple[Epoch, ...],
) -> None:
    """Write the model, then the result: whole or not at all."""
    from pipeline.training import checkpoint

    fresh = folder / f".model.{os.getpid()}"
    fresh.mkdir()
    checkpoint.write_tensors(fresh / "model.safetensors", dict(engine.model.state_dict()))
    write_facts(fresh, recipe, seen=outcome.seen)
    digest = records.digest(fresh)
    shutil.rmtree(folder / "model", ignore_errors=True)
    fresh.rename(folder / "model")
    result = Result(
        model_digest=digest,
        num_samples=outcome.seen,
        num_updates=outcome.num_updates,
        stopped_by="finished" if outcome.stopped_by == "finished" else "deadline",
        warm=warm,
        ended_at=datetime.now(UTC),
        epochs=epochs,
        noise_scale=outcome.noise_scale,
    )
    records.write(result, folder)


def write_facts(folder: Path, recipe: Recipe, *, seen: int) -> None:
    """Write `model.json`: how to make the model that the tensors beside it belong to."""
    facts = {
        "workload": recipe.workload,
        "arguments": recipe.arguments,
        "seen": seen,
        "data_digest": recipe.data_digest,
        "last_day": recipe.last_day.isoformat(),
    }
    records.replace_text(folder / "model.json", json.dumps(facts, indent=2) + "\n")


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON by one write; a disk that is full is warned of, and no reason to stop."""
    try:
        with path.open("ab", buffering=0) as file:
            file.write((json.dumps(line) + "\n").encode())
    except OSError as error:
        log.warning("no line for %s: %s; going on", path, error)


def _report(folder: Path, progress: Progress) -> None:
    _check_attempt(folder)
    append(folder / "progress.jsonl", json.loads(records.dumps(progress)))


def _check_attempt(folder: Path) -> None:
    """End if the job was started again meanwhile: the new workers own the folder."""
    own, path = os.environ.get(ATTEMPT), folder / "attempt"
    if own and path.exists() and path.read_text() != own:
        raise JobError(f"job {folder.name} was started again; this worker is of an older start and ends")


def _tracking(folder: Path, recipe: Recipe) -> ExitStack:
    """Start live metrics in a process of their own, so that MLflow cannot slow training."""
    stack = ExitStack()
    if os.environ.get("MLFLOW_TRACKING_URI"):
        command = [sys.executable, "-m", "pipeline.training.tracking", str(folder), recipe.night]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert process.stdin
        stack.callback(process.stdin.close)  # closed, also by our death: it sends the rest and ends
    return stack


def _leave_error(folder: Path, rank: int, error: BaseException, trace: TracebackType | None) -> None:
    told = isinstance(error, PipelineError)
    line = {
        "attempt": os.environ.get(ATTEMPT, ""),
        "rank": rank,
        "error": str(error) if told else f"{type(error).__name__}: {error}",
        "final": told,  # trying again would end the same
    }
    append(folder / "errors.jsonl", line)
    traceback.print_exception(error) if not told else log.error("%s: %s", type(error).__name__, error)


def _hopeless(folder: Path) -> bool:
    """Whether this start of the job has met an error that trying again does not mend."""
    path, own = folder / "errors.jsonl", os.environ.get(ATTEMPT, "")
    lines = path.read_text().splitlines() if path.exists() else []
    return any(line["final"] and line["attempt"] == own for line in map(json.loads, lines))


def _die_with_parent() -> None:
    """Let the kernel end this process with torchrun, so that no orphan trains beside a new start."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        raise JobError("torchrun has ended before its worker began; the job is started again")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.exit(profile(Path(sys.argv[2])) if sys.argv[1] == "--profile" else main(Path(sys.argv[1])))
