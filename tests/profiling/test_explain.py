"""A profile in words agrees with its numbers, and leaves out fields that an old profile lacks."""

from dataclasses import replace

import pytest

from daybreak.contract.record_parts import Remedy
from daybreak.contract.record_types import Profile
from daybreak.profiling.explain import explain
from daybreak.profiling.remedies import IN_RAM
from tests.planning import jobs

EVIDENCE = {
    "batch_size": 64,
    "load_share": 0.71,
    "compute_share": 0.2,
    "memory_share": 0.09,
    "mixed": {},
    "counterfactual": {
        "no_input_gain": 0.7,
        "no_compute_gain": 0.19,
        "no_traffic_gain": -0.01,
        "agrees": True,
    },
    "roofline": {
        "flops_per_s": 4e9,
        "peak_flops_per_s": 8e10,
        "bytes_per_s": 1e9,
        "peak_bytes_per_s": 2e10,
        "gather_bytes_per_s": 1e9,
        "peak_gather_bytes_per_s": 4e9,
        "flops_per_byte": 4.0,
        "ridge_flops_per_byte": 2.5,
    },
    "memory": {"kind": "", "peak_bytes": 2e8, "device_bytes": 8e9},
    "network": {"num_workers": 2, "sync_bytes": 4e7, "share": 0.08, "bound": True},
    "symptoms": {
        "io_parsing_share": 0.66,
        "compute_fastest_times": 11_000.0,
        "fastest_device": "H200",
        "many_inputs_are_a_symptom_of": "io",
    },
    "tuned": {"before_s": 0.2, "after_s": 0.08},
}


def remedy(name: str, *, applied: bool = False, kept: bool = False, **changes: object) -> Remedy:
    plain = Remedy(
        name=name,
        bound="io",
        applies=True,
        applied=applied,
        kept=kept,
        predicted_gain=0.5,
        measured_gain=0.0,
        quality=False,
        note="at most, by the FLOP/s of T4",
    )
    return replace(plain, **changes)


def profile(**changes: object) -> Profile:
    made = replace(jobs.profile(), bound="io", evidence=EVIDENCE | changes)
    return replace(
        made,
        remedies=(
            remedy("parallelise the reads", applied=True, kept=True, measured_gain=0.6),
            remedy("pinned memory", applied=True, measured_gain=-0.1),
            remedy("compiled model", applied=True, note="failed: RuntimeError: no compiler"),
            remedy("bfloat16", note="in bfloat16; not tried: a trial takes 2.0 s and could save 0.5 s"),
            remedy("TPU"),
            remedy("smaller batch", quality=True),
            remedy("channels last", applies=False),
        ),
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "The job is bound by I/O: getting the data into the model.",
        "Of an update of 64 samples (75.6 ms on cpu) 71 % is loading, 20 % computing and 9 % memory traffic.",
        "Proof: one thing taken away at a time, an update saves 70 % without input, 19 % without its "
        "operations and 0 % without memory traffic, most for the bound itself.",
        "reaches 5 % of 80 GFLOP/s, 5 % of 20 GB/s of a copy and 25 % of 4 GB/s of random rows.",
        "It does 4 FLOP per byte, above the roofline's ridge at 2.5, where operations take longer.",
        "Memory peaks at 200 MB of 8 GB, 2.5 %.",
        "The all-reduce of 40 MB between 2 workers takes 8 % of an update, so the network binds it as well.",
        "Symptoms: 66 % of an update is preparing samples.",
        "a pass here fits up to 6,900 samples",
        "Kept: parallelise the reads (60 % saved).",
        "Tried and reverted: pinned memory (10 % more) and compiled model (failed).",
        "Not tried: bfloat16 (a trial takes 2.0 s and could save 0.5 s).",
        "Together an update takes 80 ms instead of 200 ms.",
        "Another machine could bring: TPU (50 % at most, by the FLOP/s of T4).",
        "Offered, as it touches the quality of the model: smaller batch.",
    ],
)
def test_each_number_is_said_once_and_in_its_unit(sentence):
    text = explain(profile())
    assert text.count(sentence) == 1
    assert "channels last" not in text


@pytest.mark.parametrize(
    ("note", "elsewhere"), [("at most: it waits", True), ("in memory; not tried: it takes too long", False)]
)
def test_faster_storage_is_named_where_it_is_waited_for(note, elsewhere):
    text = explain(replace(profile(), remedies=(remedy(IN_RAM, note=note),)))
    assert (f"Another machine could bring: {IN_RAM} (50 % at most: it waits)." in text) == elsewhere
    assert text.count(IN_RAM) == 1


def test_a_proof_that_is_mixed_names_both_shares():
    text = explain(profile(mixed={"io": 0.45, "compute": 0.41}))
    assert "The proof is mixed between I/O (45 %) and compute (41 %)" in text
    assert "most for the bound itself" not in text


def test_what_was_not_run_is_not_said_to_have_been():
    counterfactual = EVIDENCE["counterfactual"] | {"step_was_run": False}
    text = explain(profile(counterfactual=counterfactual))
    assert "without memory traffic (the step cannot be run without its operators" in text
    assert "cannot be run" not in explain(profile())


def test_what_does_not_fit_is_more_than_it_may_take():
    memory = {"kind": "capacity", "peak_bytes": 9e9, "device_bytes": 8e9}
    text = explain(replace(profile(memory=memory), bound="memory"))
    assert text.startswith("The job is bound by memory: what must stay on the device.")
    assert "Memory peaks at 9 GB of 8 GB, 112.5 %, more than the 90 % that it may take." in text


def test_what_fits_by_a_remedy_is_not_said_to_be_too_much():
    memory = {"kind": "capacity", "peak_bytes": 4e9, "device_bytes": 8e9}
    assert "Memory peaks at 4 GB of 8 GB, 50 %. " in explain(profile(memory=memory))


@pytest.mark.parametrize(
    ("changes", "evidence", "sentence"),
    [
        ({}, {}, "up to 6,900 samples, and passes of one sample fit"),
        (
            {},
            {"measured": {"parameter_bytes": 4e7}},
            "a model 23.92 times as large (239,202,658 parameters)",
        ),
        ({}, {"num_workers": 2}, "up to 3,300 samples, and passes of one"),
        ({"is_undivided": True}, {}, "up to 6,900 samples, and such passes fit a model 19.78 times as large"),
        (
            {"memory_bytes": jobs.line(9e9, 0)},
            {},
            "up to 0 samples, and passes of one sample fit a model 0.8",
        ),
        (
            {"memory_bytes": jobs.line(3e8, 0)},
            {},
            "fits any number of samples, and passes of one",
        ),
    ],
)
def test_the_largest_batch_and_model_that_would_fit_are_said(changes, evidence, sentence):
    text = explain(replace(profile(**evidence), **changes))
    assert "With 10 % left free, a pass here fits " in text
    assert sentence in text


def test_a_profile_that_is_reused_says_from_when_and_what_was_not_measured():
    text = explain(profile(reused={"from_night": "2011-08-30", "not_measured_tonight": "the noise scale"}))
    assert "measured in the night of 2011-08-30" in text
    assert text.endswith("not measured tonight: the noise scale.")


def test_a_profile_that_was_disturbed_says_by_how_much():
    assert "40 % of the time was spent waiting" in explain(profile(contention=0.4))
    assert "waiting for" not in explain(profile(contention=0.05))


def test_a_profile_of_an_old_night_says_what_it_has():
    assert explain(jobs.profile()) == (
        "The job is bound by compute: the operations of each step. No remedy was tried here."
    )
