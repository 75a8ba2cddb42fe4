"""A worker that was given GPUs and sees none: a sentence, and no training on the CPU."""

from dataclasses import replace

import pytest

from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Placement, Rental
from daybreak.jobs.backend_job import job_of
from daybreak.machines.catalog import rented
from daybreak.storage.home import Home
from daybreak.training import gpus
from daybreak.training.gpus import GpuFacts, check, driver, mismatch, unseen
from tests.jobs.calls import NIGHT
from tests.training import nights

WELL = GpuFacts(torch="2.13.0", cuda="13.0", driver="580.95.05", library=True)
GIVEN = {gpus.MACHINE: "g2-standard-24", gpus.GPUS: "2 x L4"}


@pytest.mark.parametrize(
    ("change", "why", "then"),
    [
        (
            {"library": False},
            "its driver 580.95.05 is loaded, but libcuda.so.1 is not found",
            "set LD_LIBRARY_PATH=/usr/local/nvidia/lib64 in backend.image",
        ),
        (
            {"driver": "550.90.07"},
            "its driver is 550.90.07, and CUDA 13.0 (torch 2.13.0) needs 580",
            "build backend.image for an older CUDA (--build-arg DEVICE=cu126), or name a machine "
            "with a newer driver",
        ),
        (
            {"driver": ""},
            "no NVIDIA driver is loaded",
            "run train again, and name another machine in plan.machines if it happens again",
        ),
        (
            {"cuda": ""},
            "torch 2.13.0 is built without CUDA",
            "build backend.image with a torch for CUDA (--build-arg DEVICE=cuda)",
        ),
        (
            {},
            "its driver 580.95.05 and libcuda.so.1 are there, but torch 2.13.0 finds no device",
            "look at CUDA_VISIBLE_DEVICES, and name another machine in plan.machines if it is not that",
        ),
        (
            {"driver": "535.183.01", "cuda": "12.6"},
            "its driver 535.183.01 and libcuda.so.1 are there, but torch 2.13.0 finds no device",
            "look at CUDA_VISIBLE_DEVICES, and name another machine in plan.machines if it is not that",
        ),
    ],
)
def test_the_sentence_names_machine_cause_and_remedy(change, why, then):
    sentence = unseen("g2-standard-24", "2 x L4", facts=replace(WELL, **change))
    assert sentence == f"the worker on g2-standard-24 was given 2 x L4 and sees no GPU: {why}; {then}"


@pytest.mark.parametrize(
    ("given", "names", "sentence"),
    [
        ("2 x L4", ["NVIDIA L4"], "was given 2 x L4 and sees 1 x NVIDIA L4; look at CUDA_VISIBLE_DEVICES"),
        (
            "1 x H100",
            ["NVIDIA A100-SXM4-80GB"],
            "was given 1 x H100 and sees 1 x NVIDIA A100-SXM4-80GB; fix the device of m in your machines",
        ),
        ("1 x L4", ["NVIDIA L40S"], "was given 1 x L4 and sees 1 x NVIDIA L40S; fix the device of m in"),
        ("2 x L4", ["NVIDIA L4"] * 2, ""),
        ("1 x A100 40GB", ["NVIDIA A100-SXM4-40GB"] * 4, ""),
        ("1 x H100", ["NVIDIA H100 80GB HBM3"], ""),
        ("1 x T4", ["Tesla T4"], ""),
        ("1 x RTX PRO 6000", ["NVIDIA RTX PRO 6000 Blackwell Server Edition"], ""),
        ("1 x NVIDIA H200", ["NVIDIA H200"], ""),
    ],
)
def test_fewer_devices_or_other_ones_than_were_paid_for_are_refused(given, names, sentence):
    wrong = mismatch("m", given, names=names)
    assert wrong.removeprefix("the worker on m ").startswith(sentence) if sentence else not wrong


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("something else", ""),
    ],
)
def test_the_driver_is_the_one_that_the_kernel_has_loaded(tmp_path, line, version):
    (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0\n")
    assert driver(tmp_path / "version") == version
    assert driver(tmp_path / "none") == ""


def test_a_worker_without_the_gpus_of_its_machine_raises_and_one_that_was_given_none_does_not():
    check({})
    check(gpus.environment("n2-standard-8", ""))
    with pytest.raises(JobError, match="the worker on g2-standard-24 was given 2 x L4 and sees no GPU: "):
        check(GIVEN)


def test_a_worker_that_sees_fewer_chips_than_its_machine_has_raises():
    given = {gpus.MACHINE: "v6e-4", gpus.CHIPS: "4"}
    gpus.check_chips(4, given)
    gpus.check_chips(1, {})  # as in a test on the processor
    with pytest.raises(
        JobError, match="the worker on v6e-4 was given 4 chips of a TPU and sees 1; look at the"
    ):
        gpus.check_chips(1, given)


def test_workers_are_told_of_the_gpus_of_the_machine_that_the_placement_names(tmp_path):
    gpus = {machine.name: machine.gpus for machine in rented()}
    assert [gpus[name] for name in ("g2-standard-24", "n2-standard-8", "ct5lp-hightpu-1t")] == [
        "2 x L4",
        "",
        "",
    ]
    placement = Placement(
        rental=Rental(machine="g2-standard-24"),
        expected_s=9,
        expected_usd=9,
        gpus="2 x L4",
        latest_start=NIGHT.train_until,
    )
    job = job_of(Home.here(), tmp_path, placement, planned=True, num_workers=2, timeout_s=9)
    assert GIVEN.items() <= job.environment.items()
    job = job_of(Home.here(), tmp_path, replace(placement, gpus=""), planned=True, num_workers=2, timeout_s=9)
    assert not GIVEN.keys() & job.environment.keys()


@pytest.mark.slow
def test_a_job_whose_worker_sees_no_gpu_fails_once_and_says_so(tmp_path):
    with nights.surroundings():
        nights.lay_out(tmp_path / "night")
        plan = replace(nights.plan(), gpus="1 x NVIDIA H200")
        with pytest.raises(JobError, match="worker on local was given 1 x NVIDIA H200 and sees no GPU: "):
            nights.train(nights.night(), nights.make_params(), by_plan=plan)
        (folder,) = (path for path in (tmp_path / "night/data/work/jobs").iterdir() if path.is_dir())
        assert not (folder / "progress.jsonl").exists()
        assert len((folder / "log.txt").read_text().split("sees no GPU")) == 2
