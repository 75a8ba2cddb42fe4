"""What is the next thing to do about tonight's training? Stage train: a reconciler, called until it is done.

Each call looks at the job and takes the one next action: submit, wait, submit again, end it at the deadline,
or collect. Killed at any line and called again, it comes to the same end. All it knows is in files:
`data/work/jobs/NAME/`, and the name of the job is a digest of all that goes in.
"""

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from pipeline import records
from pipeline.backends import Backend, Job
from pipeline.errors import JobError, NotYet
from pipeline.params import Params
from pipeline.planning.catalog import LOCAL
from pipeline.records import Champion, Dataset, Night, Plan, Training
from pipeline.release import tracking
from pipeline.spot import lives, steering
from pipeline.spot.preemptions import mean_time_to_loss_s
from pipeline.spot.states import Place
from pipeline.training import checkpoint
from pipeline.training.recipe import CHAMPION, Progress, Recipe, Result, course, name_of
from pipeline.training.worker import append, write_facts

log = logging.getLogger(__name__)

JOBS = Path("data/work/jobs")
MODEL = records.RUN / "model"
MAX_RESTARTS = 5  # by us, of the whole job
WORKER_RESTARTS = 3  # by torchrun, of the workers in a job
GRACE = timedelta(seconds=20)  # after train_until, for the job to end by itself
SHUTDOWN_S = 20  # for workers to save when told to end


def train(
    night: Night,
    dataset: Dataset,
    plan: Plan,
    champion: Champion | None,
    *,
    backend: Backend,
    params: Params,
) -> Training:
    """Train by the plan and return what came back; the model is in data/run/model.

    Raises NotYet while the job runs, and JobError if it cannot be brought to an end with a model.
    """
    recipe = recipe_of(night, dataset, plan, champion, params)
    workers = params.train.num_workers
    name = name_of(
        recipe, machine=plan.machine, num_machines=plan.num_machines, num_workers=workers, spot=plan.spot
    )
    folder = JOBS / name
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(name):
        end_jobs(backend, but=name)
        return _Reconciler(recipe, folder=folder, plan=plan, backend=backend, num_workers=workers).act()


def recipe_of(
    night: Night, dataset: Dataset, plan: Plan, champion: Champion | None, params: Params
) -> Recipe:
    """What is to be trained tonight: from the champion, or cold every `train.cold_every` nights."""
    told = params.train
    arguments = params.workload.model_extra or {}
    tonight = course(night, dataset, champion, params)
    return Recipe(
        night=night.id,
        code_commit=night.code_commit,
        workload=params.workload.use,
        arguments=arguments,
        arrays="data/arrays",
        data_digest=dataset.digest,
        last_day=dataset.last_day,
        warm_from=str(CHAMPION) if tonight.warm else "",
        warm_digest=champion.model_digest if champion and tonight.warm else "",
        seed=told.seed,
        first_sample=tonight.first_sample,
        num_samples=plan.num_samples,
        batch_size=plan.batch_size,
        micro_batch_size=plan.micro_batch_size,
        tuning=plan.tuning,
        batching=_batching(told.batching, num_machines=plan.num_machines),
        rate=tonight.rate,
        base_batch_size=told.batch_size,
        base_samples=tonight.num_samples,
        scaling=told.scaling,
        sync_every=told.sync_every if told.sync == "every_h_updates" else 1,
        sizes=plan.sizes,
        warmup=told.warmup,
        decay=told.decay,
        checkpoint_every_s=told.checkpoint_every_s or plan.checkpoint_every_s,
        mean_time_to_loss_s=None
        if told.checkpoint_every_s
        else plan.mean_time_to_loss_s
        or mean_time_to_loss_s(num_machines=plan.num_machines, spot=plan.spot, owned=plan.machine == LOCAL),
        checkpoints_s=() if told.checkpoint_every_s else plan.checkpoints_s,
        train_until=night.train_until,
        checkpoints=told.checkpoints,
    )


def _batching(told: Literal["auto", "by_speed", "even"], *, num_machines: int) -> Literal["by_speed", "even"]:
    if told == "auto":
        return "by_speed" if num_machines > 1 else "even"
    return told


class _Reconciler:
    """One look at one job, and one action."""

    def __init__(
        self, recipe: Recipe, *, folder: Path, plan: Plan, backend: Backend, num_workers: int
    ) -> None:
        self.recipe, self.folder, self.plan, self.backend = recipe, folder, plan, backend
        self.num_workers = num_workers
        self.submissions = folder / "submissions.jsonl"

    def act(self) -> Training:
        if (self.folder / "result.json").exists():
            return self._collect()
        now = datetime.now(UTC)
        lines = _lines(self.submissions)
        left = bool(lines) and lines[-1].get("left", False)
        state = self.backend.state(lines[-1]["handle"]) if lines and not left else None
        if now > self.recipe.train_until + GRACE:
            return self._end(lines)
        place = self._place(lines, now, queued=state == "queued")
        bought = place is not None and not place.spot
        if state == "queued" and bought and lines[-1].get("spot", False) and now < self.recipe.train_until:
            self._leave_queue(lines)
        elif state in ("queued", "running"):
            raise NotYet(self._progress(state))
        if (self.folder / "result.json").exists():  # it ended while we asked
            return self._collect()
        if state == "preempted":
            append(self.folder / "losses.jsonl", {"time": now.timestamp()})
        if state in ("failed", "succeeded"):
            self._give_up_if_hopeless(lines)
        if now >= self.recipe.train_until:
            return self._end(lines)
        if place is None:
            raise NotYet(f"job {self.folder.name}: waits for spot capacity that lasts")
        self._submit(restart=state not in (None, "queued"), spot=place.spot)
        raise NotYet(self._progress("queued"))

    def _place(self, lines: list[dict[str, Any]], now: datetime, *, queued: bool) -> Place | None:
        """Where spot/steering.py wants the job; None: nowhere yet, or in the queue for spot."""
        heard = [Progress(**line) for line in _lines(self.folder / "progress.jsonl")]
        rates = [beat.samples_per_s for beat in heard]
        facts = steering.Facts(
            now=now.timestamp(),
            deadline=self.recipe.train_until.timestamp(),
            seen=heard[-1].seen if heard else 0,
            samples_per_s=sum(rates) / len(rates) if rates else None,
            attempts=steering.attempts(self.plan, lines),
            queued=queued,
        )
        return steering.place(self.plan, facts)

    def _leave_queue(self, lines: list[dict[str, Any]]) -> None:
        """Ask for spot no more; no worker has started yet."""
        log.warning("job %s leaves the queue for spot, to be on demand", self.folder.name)
        self.backend.cancel(lines[-1]["handle"])
        append(self.submissions, {**lines[-1], "left": True})

    def _submit(self, *, restart: bool, spot: bool) -> None:
        folder = str(self.folder.resolve())
        left = self.recipe.train_until - datetime.now(UTC) + 2 * GRACE
        job = Job(
            # Another name for another way to hold a machine: a backend attaches to a job of the same.
            name=self.folder.name if spot == self.plan.spot else f"{self.folder.name}-bought",
            command=(
                "torchrun",
                "--nnodes=1",
                f"--nproc-per-node={self.num_workers}",
                f"--max-restarts={WORKER_RESTARTS}",
                f"--shutdown-timeout={SHUTDOWN_S}",
                "-m",
                "pipeline.training.worker",
                folder,
            ),
            machine=self.plan.machine,
            num_machines=self.plan.num_machines,
            folder=folder,
            timeout_s=left.total_seconds(),
            spot=spot,
            environment=_environment(),
        )
        if not (self.folder / "job.json").exists():
            records.replace_text(self.folder / "job.json", records.dumps(self.recipe))
        if restart:
            log.warning("job %s was ended: %s; starting it again", job.name, self._reason())
        handle = self.backend.submit(job)
        append(self.submissions, {"handle": handle, "time": time.time(), "spot": spot})

    def _give_up_if_hopeless(self, lines: list[dict[str, Any]]) -> None:
        """Raise the worker's reason if starting again would not help; the next call begins to count anew."""
        final = [line for line in _lines(self.folder / "errors.jsonl") if line["final"]]
        if not final and len(lines) <= MAX_RESTARTS:
            return
        reason = final[-1]["error"] if final else self._reason()
        (self.folder / "errors.jsonl").unlink(missing_ok=True)
        self.submissions.unlink(missing_ok=True)
        if final:
            raise JobError(reason)
        raise JobError(
            f"job {self.folder.name} ended {len(lines)} times, at last by: {reason}; "
            f"look at {self.folder / 'log.txt'} and run train again"
        )

    def _reason(self) -> str:
        """Why the job ended, as its first worker to fail in the newest start has it."""
        lines = _lines(self.folder / "errors.jsonl")
        newest = [line for line in lines if line["attempt"] == lines[-1]["attempt"]]
        return str(newest[0]["error"]) if newest else "killed from outside"

    def _progress(self, state: str) -> str:
        name, total = self.folder.name, self.recipe.num_samples
        lines = _lines(self.folder / "progress.jsonl")
        if not lines:
            return f"job {name}: {'starting' if state == 'running' else state}"
        last = Progress(**lines[-1])
        speed = max(last.samples_per_s, 1e-9)
        return (
            f"job {name}: {last.seen / total:.0%} of {total:,} samples, {speed:,.0f} samples/s, "
            f"ETA {(total - last.seen) / speed:,.0f} s; loss {last.loss:.4g}"
        )

    def _end(self, lines: list[dict[str, Any]]) -> Training:
        """Past the deadline: end the job and take the last good checkpoint as the model."""
        for handle in {line["handle"] for line in lines}:
            self.backend.cancel(handle)
        if (self.folder / "result.json").exists():
            return self._collect()
        self._bring_copies()
        path = checkpoint.newest(self.folder / "checkpoints", identity=self.recipe.identity)
        if path is None:
            raise JobError(
                f"training did not reach a checkpoint by {self.recipe.train_until:%Y-%m-%d %H:%M:%S} UTC "
                f"({self._reason()}); the champion stays; allow more by night.train_hours, or train less"
            )
        from pipeline.training.tally import Tally

        told = checkpoint.scalars(path)
        model = self.folder / "model"
        shutil.rmtree(model, ignore_errors=True)
        model.mkdir()
        shutil.copy(path / "model.safetensors", model)
        write_facts(model, self.recipe, seen=told["seen"])
        result = Result(
            model_digest=records.digest(model),
            num_samples=told["seen"],
            num_updates=told["num_updates"],
            stopped_by="deadline",
            warm=bool(self.recipe.warm_from),
            ended_at=datetime.now(UTC),
            epochs=Tally.load(told["tally"]).proven() if "tally" in told else (),
        )
        records.write(result, self.folder)
        return self._collect()

    def _bring_copies(self) -> None:
        """What a machine has saved that is gone; without it, the newest here has to do."""
        if not self.recipe.copies:
            return
        from pipeline.training.bucket import Bucket

        try:
            Bucket(self.recipe.copies).bring(self.folder / "checkpoints")
        except (OSError, ValueError) as error:
            log.warning("copies of checkpoints in %s cannot be read: %s", self.recipe.copies, error)

    def _collect(self) -> Training:
        """Bring the model to the night's folder, whole or not at all."""
        result = records.read(Result, self.folder)
        source = self.folder / "model"
        if records.digest(source) != result.model_digest:
            (self.folder / "result.json").unlink()
            raise JobError(
                f"the model of job {self.folder.name} does not match its digest {result.model_digest}; "
                f"run train again, it goes on from the last checkpoint"
            )
        fresh = MODEL.with_name(".model")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, fresh)
        shutil.rmtree(MODEL, ignore_errors=True)
        fresh.rename(MODEL)
        starts = _lines(self.folder / "starts.jsonl")
        began = datetime.fromisoformat(starts[0]["time"]) if starts else result.ended_at
        elapsed_s = max(0.0, (result.ended_at - began).total_seconds())
        return Training(
            model_digest=result.model_digest,
            num_samples=result.num_samples,
            num_updates=result.num_updates,
            num_restarts=max(0, len(starts) - 1),
            elapsed_s=round(elapsed_s, 3),
            cost_usd=steering.usd(
                self.plan,
                steering.attempts(self.plan, _lines(self.submissions)),
                elapsed_s=elapsed_s,
                ended=result.ended_at.timestamp(),
            ),
            stopped_by=result.stopped_by,
            epochs=result.epochs,
            ended_at=result.ended_at,
            start_s=lives.start_s(_lines(self.submissions), starts),
            spot_lives=lives.lives(
                _lines(self.submissions),
                starts=starts,
                heartbeats=_lines(self.folder / "progress.jsonl"),
                losses=_lines(self.folder / "losses.jsonl"),
            ),
            noise_scale=result.noise_scale,
        )


def _environment() -> dict[str, str]:
    """The night's own code comes first; live metrics go where the night's do (nowhere, if set to "")."""
    told = {name: os.environ[name] for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID") if name in os.environ}
    if "MLFLOW_TRACKING_URI" not in told:
        told["MLFLOW_TRACKING_URI"] = tracking.tracking_uri()
    paths = [str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Else workers that were started again may meet by addresses of the dead (pytorch issue 135712).
    told["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    return {"PYTHONPATH": os.pathsep.join(paths), **told}


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One call at a time looks after the jobs of a night; the kernel lets go of the lock of a killed one."""
    with (JOBS / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotYet(f"job {name}: another call looks after it") from None
        yield


def end_jobs(backend: Backend, *, but: str = "") -> None:
    """End the jobs of the night in this folder, except the one named; what they saved is kept."""
    for submissions in JOBS.glob("*/submissions.jsonl"):
        name = submissions.parent.name
        if name == but:
            continue
        for handle in {line["handle"] for line in _lines(submissions)}:
            if backend.state(handle) in ("queued", "running"):
                log.warning(
                    "job %s is ended: %s", name, "plan or params were changed" if but else "interrupted"
                )
                backend.cancel(handle)


def _lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of JSON; the last may be half written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
