"""How fast is a step, what does it need, which of I/O, compute and memory binds it, and what mends that?

What was found (`diagnosis`) leads to remedies; they are tried, and those that help are kept (`mender`).
"""

from pipeline.contract.params import ProfileParams, TrainParams
from pipeline.contract.records import Dataset, Profile
from pipeline.contract.workload import Workload
from pipeline.profiling import line_fit, remedies
from pipeline.profiling.diagnosis import ARRAYS, diagnose

__all__ = ["ARRAYS", "profile"]


def profile(dataset: Dataset, workload: Workload, params: ProfileParams, training: TrainParams) -> Profile:
    """The profile of the job on this machine.

    Raises ParamsError or DataError in one sentence for a loss that is no loss per sample, NaN, or no samples;
    PlanError if not even the smallest batch fits the memory.
    """
    from pipeline.profiling import tuner
    from pipeline.profiling.timeline import timelines

    found = diagnose(workload, params, training)
    harness, here = found.harness, found.evidence["machine"]
    job = remedies.JobFacts(
        bound=found.verdict.bound,
        batch_size=found.batch_size,
        load_s=found.load_s,
        step_s=found.step_s,
        whole_batches=hasattr(harness.data, "__getitems__"),
        num_cores=here["num_cores"],
        on_cpu=harness.device.type == "cpu",
        flops_per_s=here["flops_per_s"],
        bfloat16_flops_per_s=found.ceilings.bfloat16_flops_per_s,
        fits=found.verdict.kind != "capacity",
        rungs=found.rungs,
        most_samples=0 if found.room.fits else found.most_samples,
    )
    mended = tuner.tune(harness, job, training, quality=params.quality_remedies)
    runs = (
        {}  # one worker has no room for the state of an optimizer that others must share
        if harness.tuning.sharded
        else timelines(
            workload,
            harness.data,
            training,
            first=harness.tuning,
            tuning=mended.tuning,
            most_samples=found.most_samples,
            update_s=found.changes.update_s,
        )
    )
    return Profile(
        device=harness.device.type,
        load_s=found.load_s,
        step_s=found.step_s,
        memory_bytes=found.memory_bytes,
        sync_bytes=line_fit.constant(float(harness.num_sync_bytes())),
        flops_per_sample=found.flops_per_sample,
        noise_scale=_noise_scale(*found.gradient, dataset.num_samples),
        bound=found.verdict.bound,
        evidence=found.evidence | {"mended": mended.evidence, "timeline": runs},
        remedies=mended.remedies,
        tuning=mended.tuning,
    )


def _noise_scale(square: float, variance: float, num_samples: int) -> float:
    """tr(Sigma) / |g|^2 in samples; where noise hides the gradient, all samples together at least show it."""
    if variance <= 0:
        return 0.0
    return min(variance / square, float(num_samples)) if square > 0 else float(num_samples)
