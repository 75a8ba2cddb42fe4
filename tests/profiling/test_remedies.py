"""Remedies offered follow from the job; a night applies only a kept remedy that is worth the change."""

from dataclasses import fields, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Remedy, Tuning
from daybreak.contract.record_types import Profile
from daybreak.machines.catalog import rented
from daybreak.profiling.job_facts import DeviceFacts, JobFacts, MemoryFacts, ModelFacts, ReadFacts, StepFacts
from daybreak.profiling.remedies import COMPILED_MODEL, SMALLER_BATCH, STORED, apply_kept, offers
from tests.planning.jobs import line, profile

BATCH = 64


def job(**changed) -> JobFacts:
    facts = {
        "bound": "io",
        "batch_size": BATCH,
        "load_s": line(1e-3, 1e-3),
        "step_s": line(1e-3, 1e-5),
        "whole_batches": False,
        "num_cores": 2,
        "on_cpu": True,
        "flops_per_s": 2e11,
        "fits": True,
        "epochs": 10.0,
        "columns_bytes": 10**6,
        "memory_bytes": 10**9,
    }
    return facts_of({**facts, **changed})


def facts_of(facts: dict[str, object]) -> JobFacts:
    """Returns the facts, each in the group that has a field of its name."""
    groups = {
        "device": DeviceFacts,
        "memory": MemoryFacts,
        "reads": ReadFacts,
        "step": StepFacts,
        "model": ModelFacts,
    }
    names = {group: {each.name for each in fields(kind)} & set(facts) for group, kind in groups.items()}
    grouped = {group: kind(**{name: facts[name] for name in names[group]}) for group, kind in groups.items()}
    rest = {name: fact for name, fact in facts.items() if name not in set().union(*names.values())}
    return JobFacts(**rest, **grouped)


def applying(**changed) -> list[str]:
    return [each.remedy.name for each in offers(job(**changed)) if each.remedy.applies]


def kept(name: str, gain: float) -> Remedy:
    return Remedy(
        name=name,
        bound="io",
        applies=True,
        applied=True,
        kept=True,
        predicted_gain=gain,
        measured_gain=gain,
        quality=False,
        note="",
    )


def test_rows_read_one_by_one_are_kept_in_columns_and_read_ahead():
    assert applying() == [STORED, "parallelise the reads"]


def test_samples_that_are_too_many_or_unlike_are_not_kept_in_memory():
    assert STORED not in applying(columns_bytes=0)
    assert STORED not in applying(columns_bytes=10**10)


def test_a_first_epoch_gains_nothing_from_memory():
    assert STORED not in applying(epochs=1.0)


def test_storage_that_is_waited_for_is_said_with_the_machine_that_keeps_the_arrays_in_memory():
    waiting = {
        "columns_bytes": 0,
        "waited_share": 0.9,
        "storage_bytes_per_s": 80e6,
        "array_bytes": 200 * 10**9,
    }
    remedy = named("storage with higher throughput", **waiting)
    assert remedy.applies
    assert remedy.predicted_gain == pytest.approx(0.9 * job(**waiting).load_share)
    assert "which reads 80 MB/s" in remedy.note
    cheapest = remedy.note.rpartition("the cheapest is ")[2]
    assert min(m.memory_bytes for m in rented() if m.name == cheapest) >= 400 * 10**9
    assert (
        "plan.machines"
        not in named("storage with higher throughput", **waiting | {"array_bytes": 10**15}).note
    )
    assert not named("storage with higher throughput", **waiting | {"waited_share": 0.0}).applies


def test_days_that_are_kept_over_the_nights_gain_in_the_first_epoch_too():
    whole, by_day = named(STORED, epochs=2.0), named(STORED, epochs=1.0, new_share=0.1)
    assert by_day.applies
    assert by_day.predicted_gain == pytest.approx(1.8 * whole.predicted_gain)
    assert "90% of them from files of earlier nights" in by_day.note


def test_a_parser_of_single_samples_is_sent_to_the_door_that_keeps_columns_over_the_nights():
    assert "`features`" in named(STORED, epochs=1.0).note
    assert "`features`" in named(STORED, columns_bytes=10**10).note
    assert "`features`" not in named(STORED).note
    assert "`features`" not in named(STORED, epochs=1.0, draws=True).note


def test_whole_batches_are_held_in_memory_instead_of_stored_anew():
    assert "storage with higher throughput" in applying(whole_batches=True)
    assert STORED not in applying(whole_batches=True)


def test_a_job_that_does_not_fit_is_offered_less_memory_first():
    names = applying(bound="memory", fits=False, blocks=True, num_workers=2)
    assert [name for name in names if name not in (STORED, "parallelise the reads")] == [
        "micro-batches",
        "activation checkpointing",
        "sharded optimizer",
        "sharded weights",
        "more memory per worker",
        "fewer layers",
        "smaller batch",
    ]


def named(remedy: str, /, **changed) -> Remedy:
    return next(each.remedy for each in offers(job(**changed)) if each.remedy.name == remedy)


def test_tables_with_dense_gradients_are_offered_sparse_ones_as_equal_or_as_touching_quality():
    facts = {"bound": "memory", "sparse_rows": 0.001, "table_share": 0.9, "step_s": line(1e-1, 1e-5)}
    assert named("sparse gradients", **facts, sparse_equal=True).applies
    touching = named("sparse gradients", **facts)
    assert touching.applies
    assert touching.quality
    assert "SparseAdam" in touching.note
    assert not named("sparse gradients", **{**facts, "sparse_rows": 0.0}).applies


def test_accelerators_are_those_that_help_from_the_device_that_the_job_is_on():
    facts = {"bound": "compute", "load_s": line(0, 0), "step_s": line(0, 1e-3), "on_cpu": False}
    on_t4 = named("faster accelerator", **facts, flops_per_s=65e12, bytes_per_s=3.2e11)
    assert on_t4.applies
    assert "T4" not in on_t4.note
    fastest = {"flops_per_s": 1e17, "bytes_per_s": 1e15}
    assert not named("faster accelerator", **facts, **fastest).applies
    assert not named("newer generation", **facts, **fastest).applies
    few_bytes = named("faster accelerator", **facts, flops_per_s=1e17, bytes_per_s=3e11, memory_share=1.0)
    assert few_bytes.applies  # bandwidth is what it lacks
    assert named("newer generation", **facts, flops_per_s=65e12, dispatch_share=1.0).predicted_gain == 0


ACCELERATORS = {each.device: each.speeds for each in rented() if each.num_devices}
SHARES = (0.1, 0.4, 0.89, 0.9, 1.0)  # of its own sheet, that a device was measured to reach
MOVES = ("faster accelerator", "newer generation", "TPU")


@pytest.mark.parametrize("memory_share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("device", ACCELERATORS)
def test_whatever_share_of_its_sheet_was_measured_a_device_is_sent_only_to_one_with_a_better_sheet(
    device, memory_share
):
    here, machines = ACCELERATORS[device], {each.name: each for each in rented()}
    told = set()
    for of_flops, of_bytes, move in product(SHARES, SHARES, MOVES):
        remedy = named(
            move,
            bound="compute",
            load_s=line(0, 0),
            step_s=line(0, 1e-3),
            on_cpu=False,
            num_workers=8,
            memory_share=memory_share,
            flops_per_s=of_flops * here.flops_per_s,
            bytes_per_s=of_bytes * here.bandwidth_bytes_per_s,
            name=f"NVIDIA {device}",
        )
        told.add((move, remedy.note, remedy.predicted_gain))
        if not remedy.applies:
            assert remedy.note == "no machine of the catalog is faster for this job"
            continue
        (name,) = (word for word in remedy.note.split() if word in machines)
        there = machines[name].speeds
        takes = (1 - memory_share) * here.flops_per_s / there.flops_per_s
        takes += memory_share * here.bandwidth_bytes_per_s / there.bandwidth_bytes_per_s
        assert remedy.predicted_gain == pytest.approx(1 - takes)
        assert takes <= 0.95
        assert machines[name].device != device
    assert len(told) == len(MOVES)  # the share changes nothing


def test_more_flops_with_less_bandwidth_do_not_help_a_job_that_moves_bytes():
    """An L4 has 1.9 times the FLOP/s of a T4, and 0.94 of its bandwidth."""
    facts = {"bound": "compute", "load_s": line(0, 0), "step_s": line(0, 1e-3), "on_cpu": False}
    on_t4 = facts | {"name": "Tesla T4", "flops_per_s": 4e13, "bytes_per_s": 2.6e11}
    assert "L4" in named("faster accelerator", **on_t4).note
    assert "L4" not in named("faster accelerator", **on_t4, memory_share=1.0).note


@pytest.mark.parametrize("share", [0.8, 0.89])
def test_an_unknown_device_is_compared_by_the_share_that_is_typical(share):
    facts = {"bound": "compute", "load_s": line(0, 0), "step_s": line(0, 1e-3), "on_cpu": False}
    fastest = ACCELERATORS["H200"].flops_per_s
    unknown = {"name": "NVIDIA X1", "flops_per_s": share * fastest, "bytes_per_s": 1e15, "num_workers": 8}
    assert named("newer generation", **facts, **unknown).applies == (share < 0.85)


def test_a_job_too_large_for_every_machine_is_told_how_large_a_model_would_fit():
    note = named("more memory per worker", bound="memory", fits=False, peak_bytes=1e12).note
    assert note == (
        "no machine of the catalog has room for its 1000.0 GB; "
        "H200 has the most, for a model or batch 0.13 times as large"
    )


def test_a_job_of_one_worker_is_not_sent_to_a_machine_of_eight_devices():
    facts = {
        "bound": "compute",
        "load_s": line(0, 0),
        "step_s": line(0, 1e-3),
        "on_cpu": False,
        "flops_per_s": 65e12,
        "bytes_per_s": 3.2e11,
    }
    devices = {machine.name: machine.num_devices for machine in rented()}
    for num_workers, most in ((1, 1), (4, 4), (8, 8)):
        for name in ("faster accelerator", "newer generation", "TPU"):
            note = named(name, **facts, num_workers=num_workers).note
            (machine,) = (word for word in note.split() if word in devices)
            assert 1 <= devices[machine] <= most, note
    assert "a3-highgpu-1g" in named("newer generation", **facts).note  # not sold on demand


def test_small_operators_are_offered_a_compiler_and_a_larger_batch():
    facts = {"bound": "compute", "load_s": line(0, 0), "step_s": line(1e-2, 1e-6)}
    plain, small = (named("compiled model", **facts, dispatch_share=share) for share in (0.1, 0.9))
    assert small.predicted_gain > plain.predicted_gain
    larger = named("larger batch", **facts)
    assert larger.applies
    assert larger.quality
    assert larger.predicted_gain == pytest.approx(0.5, abs=0.01)


@given(
    st.sampled_from(["io", "compute", "memory"]),
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
def test_those_that_touch_quality_come_last_and_no_gain_is_all(bound, load, step, fits, on_cpu):
    offered = offers(
        job(bound=bound, load_s=line(1e-3, load), step_s=line(1e-3, step), fits=fits, on_cpu=on_cpu)
    )
    quality = [each.remedy.quality for each in offered]
    assert quality == sorted(quality)
    assert all(each.remedy.predicted_gain <= 1 for each in offered)
    assert not any(each.remedy.applied or each.remedy.kept for each in offered)


def tuned_profile(*remedies: Remedy, **changed) -> Profile:
    """A job whose updates of `BATCH` samples load for 65 ms and step for 74 ms."""
    measured = profile(load_s=1e-3)
    return replace(measured, evidence={"batch_size": BATCH}, bound="io", remedies=remedies, **changed)


def test_faster_reads_shorten_the_load_and_no_step_on_any_machine():
    measured = tuned_profile(kept(STORED, 0.4), tuning=Tuning(in_memory=True))
    tuned, tuning = apply_kept(measured, epochs=3, num_samples=10**6, at_hand=True)
    assert tuning == measured.tuning
    assert tuned.step_s == measured.step_s
    total_s = measured.load_s(BATCH) + measured.step_s(BATCH)
    assert tuned.load_s(BATCH) == pytest.approx(measured.load_s(BATCH) - 0.4 * total_s)


@given(st.floats(0, 0.9), st.floats(0, 0.9))
def test_kept_remedies_make_an_update_shorter_by_what_was_measured(io, compute):
    measured = tuned_profile(kept(STORED, io), replace(kept("fused optimizer", compute), bound="compute"))
    tuned, _ = apply_kept(measured, epochs=3, num_samples=10**6, at_hand=True)
    total_s = measured.load_s(BATCH) + measured.step_s(BATCH)
    assert tuned.load_s(BATCH) + tuned.step_s(BATCH) == pytest.approx((1 - io) * (1 - compute) * total_s)
    assert min(tuned.load_s(BATCH), tuned.step_s(BATCH)) >= 0
    if io * total_s <= measured.load_s(BATCH):
        assert tuned.step_s(BATCH) >= measured.step_s(BATCH) - compute * (1 - io) * total_s - 1e-12


def test_a_smaller_batch_is_in_the_lines_already():
    measured = tuned_profile(kept(SMALLER_BATCH, 0.3))
    assert apply_kept(measured, epochs=3, num_samples=10**6, at_hand=True) == (measured, Tuning())


def test_a_warm_night_of_one_epoch_keeps_nothing_in_memory():
    measured = replace(profile(), remedies=(kept(STORED, 0.5),), tuning=Tuning(in_memory=True))
    tuned, tuning = apply_kept(measured, epochs=1, num_samples=10**6, at_hand=True)
    assert (tuned, tuning) == (replace(measured), Tuning())


@pytest.mark.parametrize(("kept_by_day", "at_hand"), [(True, True), (True, False), (False, True)])
def test_a_warm_night_uses_the_files_of_earlier_ones_where_they_are(kept_by_day, at_hand):
    measured = tuned_profile(kept(STORED, 0.4), tuning=Tuning(in_memory=True))
    measured = replace(measured, evidence=measured.evidence | {"tuned": {"kept_by_day": kept_by_day}})
    tuned, tuning = apply_kept(measured, epochs=1, num_samples=10**6, at_hand=at_hand)
    assert tuning.in_memory == (kept_by_day and at_hand)
    assert (tuned.load_s(BATCH) < measured.load_s(BATCH)) == tuning.in_memory


@pytest.mark.parametrize(("num_samples", "compiled"), [(1000, False), (10**7, True)])
def test_a_model_is_compiled_where_the_night_is_long_enough(num_samples, compiled):
    measured = replace(profile(), remedies=(kept(COMPILED_MODEL, 0.3),), tuning=Tuning(compiled=True))
    tuned, tuning = apply_kept(measured, epochs=3, num_samples=num_samples, at_hand=True)
    assert tuning.compiled == compiled
    assert (tuned.step_s == measured.step_s) != compiled
