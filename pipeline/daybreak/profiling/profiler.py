"""Profiles a job: measures the step, finds the bound (I/O, compute or memory), and tries remedies.

The measurements (`diagnosis`) suggest remedies; they are tried, and those that help are kept (`tuner`).
"""

import math
from dataclasses import replace

from daybreak.contract.record_types import Dataset, Profile
from daybreak.contract.sections import ProfileParams, TrainParams
from daybreak.contract.workload import ARRAYS, Workload, has_estimator, is_encoded, is_undivided
from daybreak.machines import contention
from daybreak.profiling import estimator_profile, line_fit
from daybreak.profiling.diagnosis import Diagnosis, diagnose
from daybreak.profiling.job_facts import DeviceFacts, JobFacts, MemoryFacts, ReadFacts, StepFacts
from daybreak.storage.home import Home

__all__ = ["ARRAYS", "profile"]


def profile(
    home: Home | None,
    dataset: Dataset,
    workload: Workload,
    params: ProfileParams,
    training: TrainParams,
    *,
    limit_s: float = math.inf,
) -> Profile:
    """Returns the profile of the job on this machine, measured in about `limit_s` seconds at most.

    Of a job with long steps smaller batches are measured, and the lines through them say the rest.

    Raises ParamsError or DataError in one sentence for a loss that is not one value per sample, for NaN, or
    for no samples; PlanError if not even the smallest batch fits the memory.
    """
    with contention.measured() as seen:
        if has_estimator(workload):
            measured = estimator_profile.profile(home, workload, training, limit_s=limit_s)
        else:
            measured = _measured(home, dataset, workload, params, training, limit_s=limit_s)
    return replace(measured, evidence=measured.evidence | {"contention": seen.share})


def _measured(
    home: Home | None,
    dataset: Dataset,
    workload: Workload,
    params: ProfileParams,
    training: TrainParams,
    *,
    limit_s: float,
) -> Profile:
    from daybreak.profiling import tuner
    from daybreak.profiling.timeline import timelines
    from daybreak.training.tuning import wants_one_worker, wants_whole

    diagnosis = diagnose(home, workload, params, training, limit_s=limit_s / 2)
    harness, breakdown = diagnosis.harness, diagnosis.breakdown
    # A batch that may not be divided and does not fit here is tried as one that does.
    is_short = is_undivided(workload) and not diagnosis.lines.room.fits
    tried = breakdown.num_samples if is_short else breakdown.timed_samples
    training = training.model_copy(update={"batch_size": tried})
    job = _facts(diagnosis, dataset)
    tuned = tuner.tune(harness, job, training, quality=params.quality_remedies, limit_s=limit_s / 2)
    runs = (
        {}  # one worker has no memory for an optimizer state that several must share
        if harness.tuning.sharded
        else timelines(
            workload,
            harness.data,
            training,
            first=harness.tuning,
            tuning=tuned.tuning,
            most_samples=diagnosis.most_samples,
            update_s=breakdown.changes.update_s,
        )
    )
    return Profile(
        device=harness.device.type,
        load_s=diagnosis.lines.load_s,
        step_s=diagnosis.lines.step_s,
        memory_bytes=diagnosis.lines.memory_bytes,
        sync_bytes=line_fit.constant(float(harness.num_sync_bytes())),
        flops_per_sample=breakdown.flops / breakdown.num_samples,
        noise_scale=_noise_scale(*breakdown.gradient, dataset.num_samples),
        bound=diagnosis.verdict.bound,
        evidence=diagnosis.evidence | {"tuned": tuned.evidence, "timeline": runs},
        remedies=tuned.remedies,
        tuning=tuned.tuning,
        wants_whole=wants_whole(workload, harness.model, harness.optimizers),
        wants_one_worker=wants_one_worker(workload),
        is_undivided=is_undivided(workload),
        is_encoded=is_encoded(workload),
    )


def _facts(diagnosis: Diagnosis, dataset: Dataset) -> JobFacts:
    """Returns what remedies depend on, by the measurements."""
    harness, lines, verdict = diagnosis.harness, diagnosis.lines, diagnosis.verdict
    here = diagnosis.evidence["machine"]
    return JobFacts(
        bound=verdict.bound,
        batch_size=lines.batch_size,
        load_s=lines.load_s,
        step_s=lines.step_s,
        device=DeviceFacts(
            on_cpu=harness.device.type == "cpu",
            num_cores=here["num_cores"],
            flops_per_s=here["flops_per_s"],
            bfloat16_flops_per_s=diagnosis.breakdown.ceilings.bfloat16_flops_per_s,
            bytes_per_s=here["bandwidth_bytes_per_s"],
            storage_bytes_per_s=here["storage_bytes_per_s"],
            name=here["name"],
        ),
        memory=MemoryFacts(
            fits=verdict.kind != "capacity",
            peak_bytes=lines.room.peak_bytes,
            remedies=diagnosis.memory_remedies,
            most_samples=0 if lines.room.fits else diagnosis.most_samples,
        ),
        reads=ReadFacts(
            whole_batches=hasattr(harness.data, "__getitems__"),
            waited_share=diagnosis.evidence["storage"]["waited_share"],
            array_bytes=dataset.num_bytes,
        ),
        step=StepFacts(
            memory_share=verdict.shares["memory"] / (1 - verdict.shares["io"] or 1),
            dispatch_share=diagnosis.breakdown.dispatch_share,
            activation_share=diagnosis.activation_share,
        ),
    )


def _noise_scale(square: float, variance: float, num_samples: int) -> float:
    """Returns the noise scale tr(Sigma) / |g|^2 in samples; where noise hides the gradient, all samples."""
    if variance <= 0:
        return 0.0
    return min(variance / square, float(num_samples)) if square > 0 else float(num_samples)
