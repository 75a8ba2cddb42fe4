"""What is asked of Vertex AI, before anything is asked: machines, strategy, times and labels."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.backends.place import SLACK_S, Refused, left_s, machines_of
from daybreak.contract.backend import Job, OutOfTime, label
from daybreak.contract.errors import JobError, ParamsError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Pool
from daybreak.extensions.vertex.job_spec import VertexSite, custom_job, disk_bytes_per_s
from daybreak.machines.catalog import rented
from daybreak.training import gpus
from tests.backends import rented as jobs

NOW = datetime(2026, 1, 2, 3, tzinfo=UTC)
LETTERS = "aB7-_ .é"
SITE = VertexSite(
    project="p", region="us-central1", image="eu.example/daybreak:1", tpu_image="eu.example/daybreak:1-tpu"
)


def asked(job: Job, *, site: VertexSite = SITE, region: str = "us-central1") -> Any:
    job = replace(job, rental=replace(job.rental, region=region))
    known = [replace(machine, joins=not machine.is_tpu) for machine in rented()]
    machines = machines_of(job, known=known, place="Vertex AI")
    labels, left = {"job": "j"}, left_s(job, NOW)
    return custom_job(job, machines, site=site, labels=labels, attempt="a", now=NOW, left_s=left)["job_spec"]


def job(**changes: Any) -> Job:
    return jobs.job(Path("/night"), **changes)


@pytest.mark.parametrize(
    ("machine", "region", "spec"),
    [
        ("g2-standard-24", "us-central1", {"accelerator_type": "NVIDIA_L4", "accelerator_count": 2}),
        ("n2-standard-8", "us-central1", {}),
        ("ct5lp-hightpu-4t", "us-central1", {"tpu_topology": "2x2"}),
        ("tpu7x-standard-4t", "us-central1", {"tpu_topology": "2x2x1"}),
    ],
)
def test_a_machine_is_named_with_its_devices(machine, region, spec):
    (pool,) = asked(job(machine=machine), region=region)["worker_pool_specs"]
    assert pool["machine_spec"] == {"machine_type": machine, **spec}
    assert pool["replica_count"] == 1


@pytest.mark.parametrize(
    ("machine", "disk_gb", "mib_per_s"),
    [
        ("n2-standard-4", 200, 240),  # all that four cores may read
        ("n2-standard-8", 200, 336),
        ("n2-standard-8", 1000, 720),
        ("a2-highgpu-1g", 4000, 800),
        ("a2-highgpu-8g", 4000, 1200),
        ("g4-standard-48", 200, 0),  # on Hyperdisk, whose rate is rented apart
        ("ct5lp-hightpu-1t", 200, 0),
    ],
)
def test_a_larger_disk_is_read_faster_as_far_as_the_machine_can(machine, disk_gb, mib_per_s):
    listed = next(each for each in rented() if each.name == machine)
    assert disk_bytes_per_s(listed, disk_gb=disk_gb) == pytest.approx(mib_per_s * 2**20)


def test_two_machines_are_two_pools_of_the_same_and_start_again_together():
    spec = asked(job(num_machines=3))
    first, others = spec["worker_pool_specs"]
    assert (first["replica_count"], others["replica_count"]) == (1, 2)
    assert first["machine_spec"] == others["machine_spec"]
    assert spec["scheduling"]["restart_job_on_worker_restart"]


def test_machines_of_two_kinds_are_pools_of_one_job_and_each_is_told_what_it_is():
    unlike = {"machine": "g2-standard-24", "num_machines": 3, "others": (Pool(machine="g2-standard-8"),)}
    given = asked(job(num_workers=2, environment={gpus.GPUS: "2 x L4"}, **unlike))["worker_pool_specs"]
    kinds = ["g2-standard-24", "g2-standard-24", "g2-standard-8"]
    assert [pool["machine_spec"]["machine_type"] for pool in given] == kinds
    assert [pool["machine_spec"]["accelerator_count"] for pool in given] == [2, 2, 1]
    assert [pool["replica_count"] for pool in given] == [1, 1, 1]
    containers = [pool["container_spec"] for pool in given]
    assert [each["command"][6] for each in containers] == ["2", "2", "1"]  # workers
    environments = [{one["name"]: one["value"] for one in each["env"]} for each in containers]
    assert [each[gpus.MACHINE] for each in environments] == kinds
    assert [each[gpus.GPUS] for each in environments] == ["2 x L4", "2 x L4", "1 x L4"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy": "flex-start", "max_wait_s": 60.0}, "such a job on Vertex AI has machines of one kind"),
        ({"others": (Pool(machine="ct5lp-hightpu-1t"),)}, "such a job on Vertex AI has machines of one kind"),
        ({"others": (Pool(machine="b7"),)}, "job j is for machine b7, which Vertex AI does not have"),
    ],
)
def test_machines_that_cannot_be_joined_are_not_asked_for(changes, reason):
    unlike = {"num_machines": 2, "others": (Pool(machine="g2-standard-24"),), **changes}
    with pytest.raises(JobError, match=reason):
        asked(job(**unlike))


def test_joined_tpu_machines_are_one_pool_whose_topology_says_how_many():
    (pool,) = asked(job(machine="ct5lp-hightpu-4t", num_machines=4))["worker_pool_specs"]
    assert (pool["replica_count"], pool["machine_spec"]["tpu_topology"]) == (1, "4x4")


def test_the_entry_point_is_told_the_module_and_its_workers():
    wanted = job(module="daybreak.training.worker", arguments=("/night/job",), num_workers=2)
    (pool,) = asked(wanted)["worker_pool_specs"]
    command = pool["container_spec"]["command"]
    assert command[5:] == ["--workers", "2", "--", "daybreak.training.worker", "/night/job"]


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "STANDARD"),
        ({"strategy": "spot"}, "SPOT"),
        ({"strategy": "flex-start", "max_wait_s": 9.0}, "FLEX_START"),
    ],
)
def test_the_strategy_is_the_jobs(changes, strategy):
    assert asked(job(**changes))["scheduling"]["strategy"] == strategy


@pytest.mark.parametrize(
    ("machine", "disk"),
    [
        ("g2-standard-8", "pd-ssd"),
        ("a2-ultragpu-1g", "pd-ssd"),
        ("a3-highgpu-8g", "pd-ssd"),
        ("ct5lp-hightpu-1t", "pd-ssd"),
        ("n2-standard-8", "pd-ssd"),
        ("a3-ultragpu-8g", "hyperdisk-balanced"),
        ("a4-highgpu-8g", "hyperdisk-balanced"),
        ("g4-standard-48", "hyperdisk-balanced"),
        ("ct6e-standard-1t", "hyperdisk-balanced"),
        ("tpu7x-standard-4t", "hyperdisk-balanced"),
    ],
)
def test_a_machine_is_asked_for_with_a_boot_disk_that_it_takes(machine, disk):
    region = next(each.region for each in rented() if each.name == machine)
    (pool,) = asked(job(machine=machine), site=replace(SITE, disk_gb=300), region=region)["worker_pool_specs"]
    assert pool["disk_spec"] == {"boot_disk_type": disk, "boot_disk_size_gb": 300}


def test_a_network_is_reached_by_peering_or_by_an_attachment_as_the_client_takes_it():
    from google.cloud.aiplatform_v1.types import CustomJobSpec

    peered = asked(job(), site=replace(SITE, network="projects/1/global/networks/default"))
    assert CustomJobSpec(peered).network == "projects/1/global/networks/default"
    name = "projects/p/regions/us-central1/networkAttachments/daybreak"
    attached = asked(job(), site=replace(SITE, network_attachment=name))
    assert CustomJobSpec(attached).psc_interface_config.network_attachment == name
    assert "psc_interface_config" not in peered
    assert "network" not in attached


def test_what_is_reserved_is_drawn_on_by_the_machines_that_it_is_for_and_not_by_fallbacks():
    reserved = {"persistent_resource": "kept", "reserved_machine": "g2-standard-8"}
    site = replace(SITE, reservation="projects/p/zones/us-central1-a/reservations/r", **reserved)
    fits = asked(job(), site=site)
    (bought,) = fits["worker_pool_specs"]
    assert bought["machine_spec"]["reservation_affinity"]["values"] == [site.reservation]
    assert fits["persistent_resource_id"] == "kept"
    for changes, region in (
        ({"strategy": "spot"}, "us-central1"),
        ({"machine": "g2-standard-24"}, "us-central1"),
        ({}, "us-east4"),
    ):
        spec = asked(job(**changes), site=site, region=region)
        assert "reservation_affinity" not in spec["worker_pool_specs"][0]["machine_spec"], changes
        assert "persistent_resource_id" not in spec, changes
    unlike = asked(job(num_machines=2, others=(Pool(machine="g2-standard-24"),)), site=site)
    assert [len(each["machine_spec"]) for each in unlike["worker_pool_specs"]] == [4, 3]  # by affinity
    assert "persistent_resource_id" not in unlike  # which has no machine for the other
    anything = asked(job(machine="g2-standard-24"), site=replace(site, reserved_machine=""))
    assert "reservation_affinity" in anything["worker_pool_specs"][0]["machine_spec"]


def test_a_region_without_the_network_attachment_is_refused_in_a_sentence():
    name = "projects/p/regions/us-central1/networkAttachments/daybreak"
    with pytest.raises(
        Refused, match="is of us-central1, and none is named for us-east4; leave us-east4 out"
    ):
        asked(job(), site=replace(SITE, network_attachment=name), region="us-east4")
    with pytest.raises(
        ParamsError, match=r"backend\.network_attachment is daybreak, which is not a full name"
    ):
        asked(job(), site=replace(SITE, network_attachment="daybreak"))


@pytest.mark.parametrize(
    ("store", "there"),
    [
        ("sqlite:////home/var/mlflow.db", ""),
        ("https://me:secret@mlflow.example", ""),
        ("https://mlflow.example", "https://mlflow.example"),
    ],
)
def test_what_is_at_home_only_or_secret_does_not_travel(store, there):
    home = {"PYTHONPATH": "/night", "MLFLOW_TRACKING_URI": store, "X": "1"}
    (pool,) = asked(job(environment=home))["worker_pool_specs"]
    variables = {variable["name"]: variable["value"] for variable in pool["container_spec"]["env"]}
    assert variables == {"MLFLOW_TRACKING_URI": there, "DAYBREAK_ATTEMPT": "a", "X": "1"}


@given(
    timeout_s=st.floats(1, 10 * 86400),
    max_wait_s=st.floats(1, 10 * 86400),
    left_s=st.floats(2 - SLACK_S, 86400),
    strategy=st.sampled_from(["on-demand", "spot", "flex-start"]),
)
def test_a_job_may_run_and_wait_as_long_as_asked_but_not_beyond_the_end_of_training(
    timeout_s, max_wait_s, left_s, strategy
):
    wanted = job(
        timeout_s=timeout_s, max_wait_s=max_wait_s, strategy=strategy, until=NOW + timedelta(seconds=left_s)
    )
    scheduling = asked(wanted)["scheduling"]
    second = timedelta(seconds=1)
    most = timedelta(seconds=left_s + SLACK_S)
    for key, asked_s in (("timeout", timeout_s), ("max_wait_duration", max_wait_s)):
        if key in scheduling:
            assert second <= scheduling[key] <= most
            assert scheduling[key] >= min(timedelta(seconds=asked_s), most) - second
    assert ("max_wait_duration" in scheduling) == (strategy == "flex-start")


def test_a_job_that_was_drawn_up_before_a_brown_out_is_asked_for_with_the_time_that_is_left():
    (pool,) = asked(late := job(timeout_s=3640, until=NOW + timedelta(seconds=3498)))["worker_pool_specs"]
    assert asked(late)["scheduling"]["timeout"] == timedelta(seconds=3618)
    assert pool["container_spec"]["command"][4] == f"{(NOW + timedelta(seconds=3618)).timestamp():.0f}"


def test_a_job_whose_time_has_passed_is_not_asked_for():
    with pytest.raises(OutOfTime, match=r"training had to end at 02:55:00 UTC, before job j was taken; al"):
        asked(job(until=NOW - timedelta(seconds=300)))
    with pytest.raises(JobError, match=r"may run for 0 s .*, which is too short; allow more by night\.tra"):
        asked(job(timeout_s=0.5))


@pytest.mark.parametrize(
    ("changes", "region", "sentence"),
    [
        ({"machine": "local"}, "us-central1", "for machine local, which Vertex AI does not have; name"),
        ({"machine": "tpu7x-standard-4t"}, "us-east4", "not offered in us-east4; set plan.regions to us-c"),
        (
            {"strategy": "flex-start", "machine": "n2-standard-8", "max_wait_s": 9.0},
            "us-central1",
            "n2-standard-8 is not rented as flex-start by Vertex AI; set plan.flex_wait_hours to 0",
        ),
        (
            {"machine": "ct5lp-hightpu-4t", "num_machines": 2, "strategy": "spot"},
            "us-central1",
            "joined are not rented as spot; set plan.spot to false",
        ),
        ({"machine": "ct5lp-hightpu-4t", "num_machines": 3}, "us-central1", "are 12 chips, which cannot be"),
    ],
)
def test_what_cannot_be_had_is_said_before_it_is_asked_for(changes, region, sentence):
    with pytest.raises(JobError, match=sentence):
        asked(job(**changes), region=region)


@given(st.text(LETTERS, max_size=70), st.text(LETTERS, max_size=70))
def test_a_label_is_valid_and_unlike_texts_stay_unlike(one, other):
    assert re.fullmatch(r"[a-z0-9_-]{1,63}", label(one))
    if {one, other} != {"", "none"}:
        assert (label(one) == label(other)) == (one == other)


def test_every_machine_of_the_catalog_can_be_asked_for_as_it_is_rented():
    def ways(machine: Machine) -> list[dict[str, Any]]:
        spot = [{"strategy": "spot"}] if machine.spot else []
        return [{}, *spot, *([{"strategy": "flex-start", "max_wait_s": 60.0}] if machine.flex else [])]

    for machine in rented():
        for way in ways(machine):
            wanted = job(machine=machine.name, region=machine.region, **way)
            assert machines_of(wanted, known=rented(), place="Vertex AI") == (machine,)
            spec = asked(wanted, region=machine.region)
            assert spec["scheduling"]["strategy"] in ("STANDARD", "SPOT", "FLEX_START"), wanted.rental


def test_a_tpu_runs_the_image_that_was_built_for_it_and_is_told_of():
    (pool,) = asked(job(machine="ct5lp-hightpu-1t"))["worker_pool_specs"]
    container = pool["container_spec"]
    assert container["image_uri"] == "eu.example/daybreak:1-tpu"
    assert {"name": "PJRT_DEVICE", "value": "TPU"} in container["env"]
    assert {"name": gpus.CHIPS, "value": "1"} in container["env"]
    with pytest.raises(JobError, match=r"backend\.tpu_image names no image for TPUs; build one with"):
        asked(job(machine="ct5lp-hightpu-1t"), site=replace(SITE, tpu_image=""))
    (pool,) = asked(job())["worker_pool_specs"]
    assert pool["container_spec"]["image_uri"] == "eu.example/daybreak:1"
    assert "PJRT_DEVICE" not in str(pool)
