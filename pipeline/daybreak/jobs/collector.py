"""Collects the job's result: the finished model, or past the deadline the newest valid checkpoint."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from daybreak.contract import records
from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import JobSpan
from daybreak.contract.record_types import Training
from daybreak.contract.units import HOUR_S
from daybreak.jobs import observed_lifetimes
from daybreak.jobs.cost_tracker import usd_per_hour
from daybreak.jobs.heartbeats import thinned
from daybreak.jobs.submissions import JobAttempt, JobAttempts
from daybreak.machines.startup import IN_RUN_S
from daybreak.storage import jsonl
from daybreak.training import checkpoint, moments, worker_errors
from daybreak.training.recipe import AVERAGE, BEST, NEWEST, Recipe, Result
from daybreak.training.supervision import ended_early_by
from daybreak.training.trained_model import complete_model
from daybreak.training.validation import finite

log = logging.getLogger(__name__)

MODEL = records.RUN / "model"
POINTS = 60  # of the curve of the loss that is kept


def has_ended(folder: Path) -> bool:
    """Whether the job has left a result."""
    return records.path_of(Result, folder).exists()


def ended_at(folder: Path) -> float:
    """Returns when the job ended, in seconds since 1970."""
    return records.read(Result, folder).ended_at.timestamp()


def from_checkpoint(folder: Path, recipe: Recipe, *, now: float) -> Result:
    """Makes the newest good checkpoint the result of a job that ran out of time or money, and returns it.

    A good one is whole, and its weights are finite. Raises JobError if there is none: the champion stays.
    """
    _fetch_copies(folder, recipe)
    path = checkpoint.newest(folder / "checkpoints", identity=recipe.identity, finite=True)
    by = ended_early_by(folder, recipe)
    if path is None:
        when, more = f"{recipe.train_until:%Y-%m-%d %H:%M:%S} UTC", "night.train_hours"
        if by == "budget":
            when, more = "the time that its budget ended", "night.budget_usd"
        raise JobError(
            f"training did not reach a checkpoint by {when} "
            f"({worker_errors.reason(folder)}); the champion stays; allow more by {more}, or train less"
        )
    from daybreak.training.sample_audit import SampleAudit

    scalars = checkpoint.scalars(path)
    model = folder / "model"
    shutil.rmtree(model, ignore_errors=True)
    model.mkdir()
    parts = (path / f"{part}.safetensors" for part in (BEST, AVERAGE, NEWEST))
    shutil.copy(next(part for part in parts if part.exists()), model / "model.safetensors")
    if recipe.carries_optimizer:
        shutil.copy(path / moments.TENSORS, model)
        (model / moments.TREE).write_text(json.dumps(scalars["optimizer"]))
    result = Result(
        model_digest=complete_model(model, recipe, seen=scalars["seen"]),
        num_samples=scalars["seen"],
        num_updates=scalars["num_updates"],
        stopped_by=by,
        warm=recipe.warm_start is not None,
        ended_at=datetime.fromtimestamp(now, UTC),
        epochs=SampleAudit.load(scalars["sample_audit"]).proven() if "sample_audit" in scalars else (),
        validations=finite(scalars.get("validations", ())),
        device=scalars.get("device", ""),
        num_skipped=scalars.get("num_skipped", 0),
    )
    records.write(result, folder)
    return result


def _fetch_copies(folder: Path, recipe: Recipe) -> None:
    """Fetches what a machine saved before it was lost; if that fails, the newest checkpoint here is used."""
    if not recipe.copies:
        return
    from daybreak.training.checkpoint_copies import CheckpointCopies

    try:
        CheckpointCopies(recipe.copies).fetch(folder / "checkpoints", finite=True)
    except Exception as error:  # noqa: BLE001 each storage has its own errors
        log.warning("copies of checkpoints in %s cannot be read: %s", recipe.copies, error)


def _first_run(
    starts: Sequence[Mapping[str, Any]], beats: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Returns the heartbeats of the workers before their first restart; none without one."""
    if len(starts) < 2:
        return []
    began, again = (datetime.fromisoformat(each["time"]) for each in starts[:2])
    return [beat for beat in beats if began <= datetime.fromisoformat(beat["time"]) < again]


def _before_restart(
    starts: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]]
) -> tuple[float, int] | None:
    """Returns the seconds and updates of the workers before their first restart; None without one.

    `first` are the heartbeats of that run. Where the first of them has more updates than the run's rate
    explains, the run went on from a checkpoint, and counts from that heartbeat.
    """
    if not first:
        return None
    began = datetime.fromisoformat(starts[0]["time"])
    seconds = [(datetime.fromisoformat(beat["time"]) - began).total_seconds() for beat in first]
    if first[0]["num_updates"] * seconds[-1] > 2 * first[-1]["num_updates"] * seconds[0]:
        between_s = seconds[-1] - seconds[0]
        if not between_s:
            return None
        return round(IN_RUN_S + between_s, 3), first[-1]["num_updates"] - first[0]["num_updates"]
    return round(seconds[-1], 3), first[-1]["num_updates"]


def collect(
    folder: Path, attempts: JobAttempts, *, cost_usd: float, logs: str, into: Path = MODEL
) -> Training:
    """Copies the model to the folder `into`, whole or not at all, and returns the record of the training.

    Raises JobError if the model does not match the digest in its result.
    """
    result = records.read(Result, folder)
    source = folder / "model"
    if records.digest(source) != result.model_digest:
        records.path_of(Result, folder).unlink()
        raise JobError(
            f"the model of job {folder.name} does not match its digest {result.model_digest}; "
            f"run train again, it goes on from the last checkpoint"
        )
    fresh = into.with_name(".model")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, fresh)
    shutil.rmtree(into, ignore_errors=True)
    fresh.rename(into)
    starts = jsonl.whole(folder / "starts.jsonl")
    began = datetime.fromisoformat(starts[0]["time"]) if starts else result.ended_at
    elapsed_s = max(0.0, (result.ended_at - began).total_seconds())
    submissions = [{"time": each.at, "strategy": each.placement.rental.strategy} for each in attempts.all]
    losses = [
        {"time": each.ended_at} for each in attempts.all if each.ended == "preempted" and not each.leaving
    ]
    beats = jsonl.whole(folder / "progress.jsonl")
    first = _first_run(starts, beats)
    shares = [each["device_use"] for each in beats if each.get("device_use") is not None]
    return Training(
        before_restart=_before_restart(starts, first),
        first_device=str(first[-1].get("device") or "") if first else "",
        model_digest=result.model_digest,
        num_samples=result.num_samples,
        num_updates=result.num_updates,
        num_restarts=max(0, len(starts) - 1),
        elapsed_s=round(elapsed_s, 3),
        cost_usd=cost_usd,
        stopped_by=result.stopped_by,
        epochs=result.epochs,
        validations=result.validations,
        ended_at=result.ended_at,
        start_s=observed_lifetimes.start_s(submissions, starts),
        spot_lives=observed_lifetimes.lifetimes(submissions, starts=starts, heartbeats=beats, losses=losses),
        noise_scale=result.noise_scale,
        device=result.device,
        device_use=fmean(shares) if shares else None,
        logs=logs,
        # An early end that was later revoked does not count.
        fallbacks=tuple(
            t
            for t in attempts.taken
            if t.name != "finish early" or result.stopped_by in {"deadline", "budget"}
        ),
        warm=result.warm,
        sync=result.sync,
        short_of_memory=result.short_of_memory,
        num_skipped=result.num_skipped,
        losses=loss_points(beats),
        attempts=tuple(_span(each, starts, until=result.ended_at) for each in attempts.all),
        restarted_at=tuple(datetime.fromisoformat(each["time"]) for each in starts[1:]),
    )


def loss_points(beats: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, float], ...]:
    """Returns the curve of the loss for people to look at, of what was trained twice the last.

    A restart goes back to a checkpoint: what came after that is no more part of the model.
    """
    kept: list[tuple[int, float]] = []
    for each in beats:
        while kept and kept[-1][0] >= each["seen"]:
            kept.pop()
        kept.append((int(each["seen"]), float(each["loss"])))
    finite_ones = [(seen, loss) for seen, loss in kept if isfinite(loss)]
    return tuple((int(seen), float(f"{loss:.6g}")) for seen, loss in thinned(finite_ones, most=POINTS))


def _span(attempt: JobAttempt, starts: Sequence[Mapping[str, Any]], *, until: datetime) -> JobSpan:
    """Returns a request for machines as the record of the training has it; the last one ends with the job.

    Where a job began and ended between two looks, its first worker tells when it ran.
    """
    asked = datetime.fromtimestamp(attempt.at, UTC)
    end = attempt.ended or "finished"
    ended = datetime.fromtimestamp(attempt.ended_at, UTC) if attempt.ended_at else until
    if end in {"finished", "succeeded"}:
        ended = min(ended, until)  # the end is seen later than it was
    began = (datetime.fromisoformat(each["time"]) for each in starts)
    first = next((each for each in began if asked <= each <= ended), None)
    ran = datetime.fromtimestamp(attempt.run_at, UTC) if attempt.run_at else first
    held_s = (ended - ran).total_seconds() if ran else 0.0
    return JobSpan(
        rental=attempt.placement.rental,
        asked_at=asked,
        ran_at=ran,
        ended_at=ended,
        end="moved" if attempt.to else "hung" if attempt.hung else "finished" if end == "succeeded" else end,
        usd=round(usd_per_hour(attempt.placement) * max(0.0, held_s) / HOUR_S, 4),
    )
