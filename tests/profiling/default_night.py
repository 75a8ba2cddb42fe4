"""The profile of a default night, as it was measured on two cores on 2026-11-30, beside other work."""

from dataclasses import replace
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.record_parts import Remedy
from daybreak.contract.record_types import Profile
from daybreak.profiling.explain import ELSEWHERE, explain
from daybreak.profiling.job_facts import DeviceFacts, JobFacts, MemoryFacts, ReadFacts, StepFacts
from daybreak.profiling.remedies import offers

MEASURED = Path(__file__).with_suffix(".json")


def explained() -> str:
    """Returns what `daybreak profile --explain` says of the measurements today."""
    return explain(measured())


def measured() -> Profile:
    """Returns the profile, with the other machines that would be named for it today."""
    profile = records.loads(Profile, MEASURED.read_text(), source=str(MEASURED))
    today = {offer.remedy.name: offer.remedy for offer in offers(_facts(profile))}

    def renewed(remedy: Remedy) -> Remedy:
        return today[remedy.name] if remedy.name in ELSEWHERE and not _was_skipped(remedy) else remedy

    return replace(profile, remedies=tuple(map(renewed, profile.remedies)))


def _was_skipped(remedy: Remedy) -> bool:
    return "not tried: " in remedy.note


def _facts(profile: Profile) -> JobFacts:
    evidence, here = profile.evidence, profile.evidence["machine"]
    return JobFacts(
        bound=profile.bound,
        batch_size=evidence["batch_size"],
        load_s=profile.load_s,
        step_s=profile.step_s,
        device=DeviceFacts(
            on_cpu=True,
            num_cores=here["num_cores"],
            flops_per_s=here["flops_per_s"],
            bytes_per_s=here["bandwidth_bytes_per_s"],
            name=here["name"],
        ),
        memory=MemoryFacts(fits=True, peak_bytes=evidence["memory"]["peak_bytes"]),
        reads=ReadFacts(whole_batches=True),
        step=StepFacts(
            memory_share=evidence["memory_share"] / evidence["step_share"],
            dispatch_share=evidence["dispatch"]["share"],
        ),
    )
