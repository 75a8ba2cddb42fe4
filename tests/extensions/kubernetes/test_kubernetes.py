"""A cluster on loopback: whatever goes wrong with calls, nodes or queues, one job, and a reason.

A job is an Indexed Job, or where the cluster has that kind, a JobSet; tests of what differs run with both.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from daybreak.backends.faults import COMMON
from daybreak.backends.place import Unreachable
from daybreak.contract.backend import Job, OutOfTime
from daybreak.contract.errors import JobError, NotYet, ParamsError
from daybreak.contract.record_parts import Pool
from daybreak.extensions.kubernetes import kubernetes as backend_module
from daybreak.extensions.kubernetes import manifest, pod_status
from daybreak.extensions.kubernetes.kubernetes import Kubernetes
from daybreak.extensions.kubernetes.manifest import QUEUE
from daybreak.jobs import reaper
from daybreak.machines import catalog
from daybreak.storage.home import Home
from tests import cloud_storage
from tests.backends import fake_job_sets, rented
from tests.backends.fake_cluster import VERSION
from tests.backends.rented import end, wait
from tests.fakes import read_lines
from tests.test_deploy import built

pytestmark = pytest.mark.slow  # the client takes seconds to import

ROOT = Path(__file__).parents[3]
SLEEP = "sleep 60"
both_kinds = pytest.mark.parametrize("kubernetes", ["jobs", "jobsets"], indirect=True)
job_sets = pytest.mark.parametrize("kubernetes", ["jobsets"], indirect=True)


@pytest.fixture
def made(kubernetes: Any, tmp_path: Path) -> Callable[..., Kubernetes]:
    def make(**given: Any) -> Kubernetes:
        asked = {
            "image": "eu.example/trainer:1",
            "bucket": "",
            "machines": str(tmp_path / "machines.csv"),
            **given,
        }
        return Kubernetes(**asked)

    return make


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def make(script: str = SLEEP, **given: Any) -> Job:
        return rented.job(tmp_path, script, **{"machine": "node", **given})

    return make


def name_of(handle: str) -> str:
    return handle.partition(" ")[0]


def manifest_of(asked: Job) -> dict[str, Any]:
    """A JobSet of two machines."""
    part = manifest.MachineGroup(machine=catalog.rented()[0], count=2, selector={})
    site = manifest.KubernetesSite(namespace="default", image="eu.example/trainer:1")
    attempt = manifest.JobTemplate(
        job=asked, name="daybreak-set-1", staged="job", labels={}, annotations={}, left_s=60, until=0
    )
    return manifest.job_set(attempt, [part], site=site, of_jobs={})


def reasons(folder: Path) -> list[str]:
    return [line["error"] for line in read_lines(folder / "job" / "errors.jsonl")]


@pytest.mark.parametrize(
    ("kubernetes", "kind", "how"),
    [
        *(("jobs", "jobs", how) for how in ("refuse", "busy", "conflict", "cut before", "cut after", "half")),
        ("jobs", "secrets", "cut after"),
        *(("jobsets", kind, "cut after") for kind in ("jobsets", "apis", "selfsubjectaccessreviews")),
    ],
    indirect=["kubernetes"],
)
def test_whatever_becomes_of_a_call_there_is_one_job_and_it_runs(kubernetes, made, job, tmp_path, how, kind):
    with kubernetes.troubled(how, kind=kind):
        try:
            made().submit(job("exit 0"))
        except NotYet as error:
            assert "is not known to be taken: the cluster does not answer" in str(error)
    handle = made().submit(job("exit 0"))
    assert end(made(), handle) == "succeeded"
    assert list(kubernetes.heads()) == [name_of(handle)]
    assert len(kubernetes.objects["jobs"]) == 1
    assert made().submit(job("exit 1")) == handle


def test_while_the_cluster_is_away_the_last_known_state_counts(kubernetes, made, job):
    handle = made().submit(job())
    wait(lambda: made().state(handle) == "running")
    with kubernetes.away():
        assert made().state(handle) == "running"
        with pytest.raises(NotYet, match="the cluster does not answer"):
            made().submit(job())
    assert made().submit(job()) == handle
    assert len(kubernetes.live()) == 1


def test_a_job_whose_journal_was_lost_is_adopted(kubernetes, made, job, tmp_path):
    handle = made().submit(job())
    (tmp_path / "job" / "orders.json").unlink()
    assert made().submit(job()) == handle
    assert len(kubernetes.live()) == 1


@both_kinds
def test_two_that_submit_at_once_get_the_same_job(kubernetes, made, job):
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(lambda _: made().submit(job()), range(4)))
    assert len(set(handles)) == 1
    assert len(kubernetes.live()) == 1


@job_sets
def test_a_job_is_a_job_set_where_the_cluster_has_them_and_the_account_may(kubernetes, made, job):
    """A Job stays a Job when the cluster gets JobSets, or the account the right to use JobSets."""
    kubernetes.has_job_sets = False
    first = made().submit(job(name="a"))
    kubernetes.has_job_sets = True
    kubernetes.forbidden = {"create jobsets"}
    assert made().submit(job(name="a")) == first
    second = made().submit(job(name="b"))
    kubernetes.forbidden = set()
    assert made().submit(job(name="b")) == second
    third = made().submit(job(name="c"))
    assert list(kubernetes.objects["jobsets"]) == [name_of(third)]
    assert made().submit(job(name="c")) == third
    for handle in (first, second, third):
        wait(lambda handle=handle: made().state(handle) == "running")
    assert {each.job for each in made().live()} == {"a", "b", "c"}
    kubernetes.forbidden = {"list jobsets"}
    assert made().state(third) == "running"
    assert {each.job for each in made().live()} == {"a", "b"}


@job_sets
def test_the_jobs_of_a_job_set_that_ends_end_with_it(kubernetes, made, job):
    """Nothing is restarted, and nothing is left of it when it is deleted."""
    handle = made().submit(job("exit 3", num_machines=2))
    name = name_of(handle)
    made_set = kubernetes.objects["jobsets"][name]
    wait(lambda: kubernetes.objects["jobs"])
    (child,) = kubernetes.objects["jobs"].values()
    alone = {"activeDeadlineSeconds", "backoffLimit", "completions", "podFailurePolicy", "template"}
    (template,) = made_set["spec"]["replicatedJobs"]
    assert alone <= template["template"]["spec"].keys()
    assert "daybreak" not in child["metadata"]["labels"]  # by which a home finds its jobs
    assert end(made(), handle) == "failed"
    assert [child["metadata"]["name"] for child in kubernetes.objects["jobs"].values()] == [f"{name}-first-0"]
    wait(lambda: made_set["status"].get("terminalState") == "Failed")
    made().end(name)
    wait(lambda: not kubernetes.objects["jobsets"])
    left = {kind for kind in ("jobs", "pods", "services", "secrets") if kubernetes.objects[kind]}
    assert not left


@both_kinds
def test_pods_know_their_names_and_that_of_the_first(kubernetes, made, job, tmp_path):
    code = (
        "import os, pathlib, socket; from daybreak.extensions.kubernetes.pod_entrypoint import place; "
        "here = place(os.environ); first, port = here.master.split(':'); "
        "[socket.gethostbyname(name) for name in (here.host, first)]; "
        f"path = pathlib.Path('{tmp_path}', f'{{here.rank}} of {{here.num_nodes}}'); "
        "path.write_text(here.host + ' ' + first)"
    )
    handle = made().submit(job(f'{sys.executable} -c "{code}"', num_machines=2))
    assert end(made(), handle) == "succeeded"
    name = name_of(handle)
    pods = f"{name}-first-0" if kubernetes.has_job_sets else name
    for rank in (0, 1):
        expected = f"{pods}-{rank}.{name} {pods}-0.{name}"
        assert (tmp_path / f"{rank} of 2").read_text() == expected


@both_kinds
def test_each_way_a_job_may_end_has_its_word(kubernetes, made, job, tmp_path):
    def after(name: str, act: Callable[[str], None], script: str = SLEEP) -> tuple[str, str]:
        handle = made().submit(job(script, name=name))
        wait(lambda: made().state(handle) == "running")
        act(name_of(handle))
        return end(made(), handle), reasons(tmp_path)[-1]

    state, text = after("a", kubernetes.disrupt)
    assert state == "preempted"
    assert "was disrupted on node (PreemptionByScheduler: it makes room" in text
    state, text = after("b", lambda name: kubernetes.disrupt(name, reason="EvictionByEvictionAPI"))
    assert (state, "EvictionByEvictionAPI" in text) == ("preempted", True)
    state, text = after("c", kubernetes.lose_node)
    assert (state, "DeletionByPodGC" in text) == ("preempted", True)
    state, text = after("d", kubernetes.run_out_of_memory)
    assert state == "failed"
    assert "ran out of the memory of node" in text
    assert read_lines(tmp_path / "job" / "errors.jsonl")[-1]["final"]
    handle = made().submit(job("exit 3", name="e"))
    assert end(made(), handle) == "failed"
    assert "status 3, an error of its own code (Container worker for pod team/" in reasons(tmp_path)[-1]
    handle = made().submit(job("kill -9 $$", name="f"))
    assert end(made(), handle) == "preempted"


def test_a_machine_that_no_node_is_like_is_refused_after_the_wait(kubernetes, made, job, tmp_path):
    patient, impatient = made(), made(wait_minutes=0)
    handle = patient.submit(job(machine="nowhere"))
    wait(lambda: kubernetes.objects["pods"])
    time.sleep(1.1)  # times of the API are whole seconds
    assert patient.state(handle) == "queued"
    assert end(impatient, handle) == "refused"
    assert "no node takes job j on nowhere (0/2 nodes are available" in reasons(tmp_path)[-1]
    wait(lambda: not kubernetes.live())


def waits(folder: Path) -> str:
    """What the night is told that its newest job waits for."""
    return str(json.loads((folder / "job" / "orders.json").read_text())[-1]["waits"])


def test_what_the_autoscaler_says_of_a_pod_without_a_node_is_told_while_it_waits(
    kubernetes, made, job, tmp_path
):
    handle = made().submit(job(machine="nowhere"))
    wait(lambda: kubernetes.objects["events"])
    assert made().state(handle) == "queued"
    assert waits(tmp_path) == (
        "0/2 nodes are available: none matches the node selector or has room.; "
        "NotTriggerScaleUp: pod didn't trigger scale-up: 1 max node group size reached"
    )
    kubernetes.forbidden = {"list events"}
    assert made().state(handle) == "queued"
    assert waits(tmp_path).startswith("0/2 nodes are available")


@both_kinds
@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("forbidden", "makes no pods of job j on 1 x node .*FailedCreate: Error creating: admission webhook"),
        ("unmounted", "a node does not start job j on node .FailedMount: no such disk"),
    ],
)
def test_pods_that_are_not_made_or_not_started_are_refused_after_the_wait(
    kubernetes, made, job, tmp_path, image, text
):
    image = f"eu.example/{image}:1"
    handle = made(image=image).submit(job())
    wait(lambda: kubernetes.objects["events"])
    time.sleep(1.1)  # times of the API are whole seconds
    assert made().state(handle) == "queued"
    assert waits(tmp_path)
    assert end(made(image=image, wait_minutes=0), handle) == "refused"
    assert re.search(text, reasons(tmp_path)[-1])
    wait(lambda: not kubernetes.live())


def test_an_image_that_cannot_be_pulled_is_a_final_error(kubernetes, made, job, tmp_path, monkeypatch):
    monkeypatch.setattr(backend_module, "IMAGE_S", 0.0)
    backend = made(image="eu.example/missing:1")
    handle = backend.submit(job())
    assert end(backend, handle) == "failed"
    assert (
        "cannot start (ImagePullBackOff: Back-off pulling image eu.example/missing:1)"
        in reasons(tmp_path)[-1]
    )
    assert read_lines(tmp_path / "job" / "errors.jsonl")[-1]["final"]


def test_a_quota_that_is_used_up_refuses_the_machine_and_the_next_is_asked_for(
    kubernetes, made, job, tmp_path
):
    kubernetes.quota = 0
    handle = made().submit(job())
    assert made().state(handle) == "refused"
    assert "exceeded quota: team" in reasons(tmp_path)[-1]
    kubernetes.quota = None
    again = made().submit(job())
    assert again != handle
    assert len(kubernetes.live()) == 1


@both_kinds
def test_a_queue_of_kueue_admits_a_job_when_it_is_its_turn(kubernetes, made, job, tmp_path):
    kubernetes.queues = {"team-a": ""}
    backend = made(queue="team-a")
    handle = backend.submit(job("test -e back || sleep 60"))
    (suspended,) = kubernetes.live()
    assert suspended["metadata"]["labels"][QUEUE] == "team-a"
    assert backend.state(handle) == "queued"
    assert waits(tmp_path) == "Pending: insufficient unused quota for cpu"
    assert not kubernetes.objects["pods"]
    kubernetes.admit(name_of(handle))
    wait(lambda: backend.state(handle) == "running")
    assert not waits(tmp_path)
    kubernetes.suspend(name_of(handle))
    wait(lambda: not kubernetes.pods_of(name_of(handle)))
    assert backend.state(handle) == "queued"
    assert waits(tmp_path) == "Preempted: Preempted to accommodate a workload; Pending: insufficient quota"
    (kubernetes.folder / "back").touch()
    kubernetes.admit(name_of(handle))
    assert end(backend, handle) == "succeeded"


@pytest.mark.parametrize("queue", ["nobody", "team-a"])
def test_what_kueue_will_not_admit_by_itself_is_refused_after_the_wait(
    kubernetes, made, job, tmp_path, queue
):
    kubernetes.queues = {"team-a": ""}
    handle = made(queue=queue).submit(job())
    if queue == "team-a":
        kubernetes.admit(name_of(handle))
        kubernetes.deactivate(name_of(handle))
    time.sleep(1.1)  # times of the API are whole seconds
    assert made(queue=queue).state(handle) == "queued"
    assert end(made(queue=queue, wait_minutes=0), handle) == "refused"
    why = "Inadmissible: LocalQueue nobody doesn't exist" if queue == "nobody" else "Preempted: Preempted to"
    assert f"Kueue will not admit job j on node to queue {queue} ({why}" in reasons(tmp_path)[-1]
    wait(lambda: not kubernetes.live())


def test_check_says_whether_kueue_has_the_queue(kubernetes, made):
    def checked(queue: str) -> tuple[bool, str]:
        checks = made(queue=queue, bucket="file:///tmp/b").preflight(())
        return next((ok, text) for what, ok, text in checks if what == "queue")

    assert checked("team-a") == (
        False,
        "namespace default has no LocalQueue team-a of Kueue; make it, or set backend.queue",
    )
    kubernetes.queues = {"team-a": "", "team-b": "ClusterQueue is stopped"}
    assert checked("team-a") == (True, "LocalQueue team-a takes jobs")
    assert "LocalQueue team-b takes no jobs (ClusterQueue: ClusterQueue is stopped)" in checked("team-b")[1]


@both_kinds
def test_what_the_cluster_of_the_tests_answers_is_by_the_published_schemas(kubernetes, made, job):
    made().submit(job("exit 3", name="a"))
    made().submit(job(name="b", num_machines=2))
    made().submit(job(name="c", machine="nowhere"))
    wait(lambda: kubernetes.objects["events"])
    kinds = {"jobs": "apis/batch/v1", "pods": "api/v1", "events": "api/v1", "nodes": "api/v1"}
    for kind, path in kinds.items():
        where = f"/{path}/{kind}" if kind == "nodes" else f"/{path}/namespaces/default/{kind}"
        items = kubernetes.answer("GET", where, None)["items"]
        assert items
        for each in items:
            kubernetes_validate.validate(each, VERSION, strict=True)
    for each in kubernetes.objects["jobsets"].values():
        assert not fake_job_sets.lacks(each)
    given = manifest_of(job(num_machines=2))
    assert not fake_job_sets.lacks(given)
    network = {"network": {"enableDNSHostnames": "yes"}}
    assert "valid boolean" in fake_job_sets.lacks({**given, "spec": {**given["spec"], **network}})
    nothing = {**given, "spec": {**given["spec"], "parallelism": 1}}
    assert fake_job_sets.lacks(nothing) == "unknown field .spec.parallelism"


def test_of_events_the_newest_counts_and_of_one_moment_what_came_of_the_warning():
    def event(reason: str, kind: str, **times: Any) -> dict[str, Any]:
        made = {"creationTimestamp": "2026-01-02T03:00:00Z"}
        return {"metadata": made, "reason": reason, "type": kind, **times}

    starting = pod_status.JobObservation(cause="starting")
    mount = event(
        "FailedMount", "Warning", firstTimestamp="2026-01-02T03:00:01Z", lastTimestamp="2026-01-02T03:00:09Z"
    )
    seen = pod_status.explained(starting, [mount, event("Pulling", "Normal")])
    assert (seen.cause, seen.text) == ("not started", "FailedMount")
    assert seen.since == pod_status.moment("2026-01-02T03:00:01Z")
    pulling = event("Pulling", "Normal", eventTime="2026-01-02T03:00:09.000000Z")
    assert pod_status.explained(starting, [pulling, mount]).cause == "starting"
    again = event(
        "FailedMount",
        "Warning",
        eventTime="2026-01-02T03:00:01.000000Z",
        series={"lastObservedTime": "2026-01-02T03:00:30.000000Z"},
    )
    assert pod_status.explained(starting, [pulling, again]).cause == "not started"
    assert pod_status.explained(starting, []) == starting


def test_spot_goes_to_the_nodes_of_its_options_and_tolerates_their_taint(kubernetes, made, job):
    handle = made().submit(job(strategy="spot"))
    wait(lambda: made().state(handle) == "running")
    (pod,) = kubernetes.objects["pods"].values()
    assert pod["spec"]["nodeSelector"] == {"pool": "spot", "spot": "true"}


def test_a_machine_with_tpu_chips_asks_for_its_slice_and_one_process_has_them_all(
    kubernetes, made, job, tmp_path
):
    def write(topology: str) -> None:
        kind = {"gke-tpu-accelerator": "tpu-v6e-slice", "gke-tpu-topology": topology}
        labels = " ".join(f"cloud.google.com/{key}={value}" for key, value in kind.items())
        head = "name,device,num_devices,vcpus,memory_gb,options"
        (tmp_path / "machines.csv").write_text(f"{head}\nv6e,TPU v6e,4,4,8,{labels}\n")

    write("2x2")
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "2x2",
    }
    kubernetes.add_node("t", labels=labels, taints=("google.com/tpu",), **{"google.com/tpu": "4"})
    (machine,) = made().machines()
    assert (machine.num_workers, machine.num_processes) == (4, 1)
    assert machine.speeds.link_bytes_per_s > 0
    handle = made(tpu_image="tpu:1").submit(
        job('test "$PJRT_DEVICE $DAYBREAK_CHIPS" = "TPU 4"', machine="v6e")
    )
    assert end(made(), handle) == "succeeded"
    (pod,) = kubernetes.objects["pods"].values()
    assert pod["spec"]["containers"][0]["image"] == "tpu:1"
    assert (pod["spec"]["nodeName"], pod["spec"]["nodeSelector"]) == ("t", labels)
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["google.com/tpu"] == "4"
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    write("4x4")
    with pytest.raises(ParamsError, match="v6e has 4 chips, and a slice of 4x4 has 16; name a topology of 4"):
        made().machines()


def test_the_environment_of_a_job_is_in_a_secret_that_goes_with_it(kubernetes, made, job):
    asked = replace(job("test ${#TOKEN} = 6"), environment={"TOKEN": "hidden"})
    handle = made().submit(asked)
    assert end(made(), handle) == "succeeded"
    (standing,) = kubernetes.objects["jobs"].values()
    assert "hidden" not in str(standing)
    live = made().submit(job(name="other"))
    assert len(kubernetes.objects["secrets"]) == 2
    made().cancel(live)
    wait(lambda: len(kubernetes.objects["secrets"]) == 1)


def test_what_a_job_costs_is_its_time_at_the_price_of_the_file(made, job, tmp_path):
    handle = made().submit(job("sleep 2", strategy="spot"))
    assert end(made(), handle) == "succeeded"
    usd = made().usd(tmp_path / "job")
    assert 1 * 0.36 / 3600 <= usd <= 8 * 0.36 / 3600
    attempt = name_of(handle).removeprefix("daybreak-")
    assert made().logs(handle) == f"kubectl logs --namespace default --selector daybreak/attempt={attempt}"


@pytest.fixture
def unlike(kubernetes: Any, job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """A job on a node of one kind and one of another."""
    head, *_ = (tmp_path / "machines.csv").read_text().splitlines()
    rows = "one,cpu,0,2,4,1,pool=main,,3.60,", "other,cpu,0,1,2,1,pool=spot spot=true,,1.80,"
    (tmp_path / "machines.csv").write_text("\n".join([head, *rows]))
    return lambda script=SLEEP: job(script, machine="one", num_machines=2, others=(Pool(machine="other"),))


@pytest.fixture
def meeting(tmp_path: Path) -> str:
    """A script that ends well once it runs on both machines of `unlike`."""
    both = f"until test -e {tmp_path}/one -a -e {tmp_path}/other; do sleep 0.1; done"
    return f"touch {tmp_path}/$DAYBREAK_MACHINE; {both}"


@both_kinds
def test_unlike_nodes_are_two_jobs_of_one_and_each_knows_which_machine_it_is(
    kubernetes, made, unlike, meeting
):
    handle = made().submit(unlike(meeting))
    assert made().submit(unlike(meeting)) == handle
    names = [f"{name_of(handle)}-first-0", f"{name_of(handle)}-others-0"]
    if not kubernetes.has_job_sets:
        names = [name_of(handle), f"{name_of(handle)}-others"]
    wait(lambda: list(kubernetes.objects["jobs"]) == names)
    nodes = [job["spec"]["template"]["spec"]["nodeSelector"] for job in kubernetes.objects["jobs"].values()]
    assert nodes == [{"pool": "main"}, {"pool": "spot", "spot": "true"}]
    assert end(made(), handle) == "succeeded"
    assert not kubernetes.live()


@both_kinds
@pytest.mark.parametrize("failing", ["one", "other"])
def test_an_error_on_a_node_of_either_kind_ends_the_whole_job(kubernetes, made, unlike, tmp_path, failing):
    handle = made().submit(unlike(f"test $DAYBREAK_MACHINE = {failing} && exit 3; {SLEEP}"))
    assert end(made(), handle) == "failed"
    assert "status 3, an error of its own code" in reasons(tmp_path)[-1]
    assert not kubernetes.live()


@both_kinds
def test_a_lost_node_of_the_other_kind_takes_the_whole_job_which_starts_anew(
    kubernetes, made, unlike, tmp_path
):
    handle = made().submit(unlike())
    wait(lambda: made().state(handle) == "running")
    kubernetes.lose_node(f"{name_of(handle)}-others{'-0' if kubernetes.has_job_sets else ''}")
    assert end(made(), handle) == "preempted"
    assert "DeletionByPodGC" in reasons(tmp_path)[-1]
    assert not kubernetes.live()
    again = made().submit(unlike())
    wait(lambda: made().state(again) == "running")
    made().cancel(again)
    assert not [job for job in kubernetes.objects["jobs"] if job.startswith(name_of(again))]


def test_a_job_gets_none_of_its_nodes_where_the_quota_is_of_one_job(kubernetes, made, unlike, tmp_path):
    kubernetes.quota = 1
    assert end(made(), made().submit(unlike())) == "refused"
    assert "exceeded quota" in reasons(tmp_path)[-1]
    wait(lambda: not kubernetes.objects["jobs"])


@job_sets
def test_a_job_set_gets_none_of_its_nodes_where_one_of_its_jobs_is_not_made(
    kubernetes, made, unlike, tmp_path
):
    kubernetes.quota = 1
    handle = made().submit(unlike())
    wait(lambda: kubernetes.objects["events"])
    time.sleep(1.1)  # times of the API are whole seconds
    assert made().state(handle) == "queued"
    assert "others-0" in waits(tmp_path)
    assert end(made(wait_minutes=0), handle) == "refused"
    text = r"makes no pods of job j on 1 x one \+ 1 x other .*\(JobCreationFailed: .*exceeded quota: team"
    assert re.search(text, reasons(tmp_path)[-1])
    wait(lambda: not kubernetes.heads())


@job_sets
def test_a_queue_admits_unlike_machines_as_one_job_set(kubernetes, made, unlike, meeting):
    kubernetes.queues = {"team": ""}
    backend = made(queue="team")
    assert all(machine.joins for machine in backend.machines())
    handle = backend.submit(unlike(meeting))
    wait(lambda: len(kubernetes.objects["jobs"]) == 2)
    assert backend.state(handle) == "queued"
    assert not kubernetes.objects["pods"]
    assert list(kubernetes.objects["workloads"]) == [name_of(handle)]
    kubernetes.admit(name_of(handle))
    assert end(backend, handle) == "succeeded"
    with kubernetes.away():
        assert all(machine.joins for machine in made(queue="team").machines())


def test_a_queue_which_would_admit_two_jobs_one_by_one_gets_none(kubernetes, made, unlike):
    with pytest.raises(JobError, match="such a job on the cluster has machines of one kind"):
        made(queue="team").submit(unlike())
    assert not kubernetes.objects["jobs"]


@both_kinds
def test_a_job_of_no_open_night_is_ended_by_the_reaper(kubernetes, made, job, tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "home")], check=True)
    made().submit(job())
    (one,) = made().live()
    assert (one.job, one.night) == ("j", "2026-01-02")
    monkeypatch.setattr(reaper, "YOUNG", timedelta(0))
    reaper.reap(Home.here(), backend=made())
    wait(lambda: not kubernetes.live())


def test_check_says_what_a_job_is(kubernetes, made):
    jobs, why = "jobs run as Indexed Jobs", "the cluster has no JobSets"
    assert checked(made())["JobSet"] == (True, f"{jobs}: {why}")
    text = f"{jobs}, on machines of one kind, as there is a queue: {why}"
    assert checked(made(queue="team"))["JobSet"] == (True, text)
    kubernetes.has_job_sets = True
    assert checked(made())["JobSet"] == (True, "jobs run as JobSets")
    kubernetes.forbidden = {"delete jobsets"}
    text = f"{jobs}: this account may not create, list, delete jobsets of jobset.x-k8s.io in default"
    assert checked(made())["JobSet"] == (True, text)


def test_check_says_what_the_account_may_not_do(kubernetes, made):
    text = "namespace default: this account may do what a night needs"
    assert checked(made())["cluster"] == (True, text)
    kubernetes.forbidden = {"create jobs", "list pods"}
    ok, text = checked(made())["cluster"]
    assert not ok
    assert "this account may not create jobs, list pods in namespace default; give it a role" in text
    with kubernetes.away():
        ((_, ok, text),) = made().preflight(())
    assert not ok
    assert "does not answer" in text


def checked(backend: Kubernetes) -> dict[str, tuple[bool, str]]:
    return {what: (ok, text) for what, ok, text in backend.preflight(())}


@both_kinds
def test_check_asks_for_a_job_on_each_machine_and_looks_for_its_devices(kubernetes, made, tmp_path):
    def jobs(**given: Any) -> dict[str, tuple[bool, str]]:
        texts = [(ok, text) for what, ok, text in made(**given).preflight(()) if what == "job"]
        return {text.partition(": ")[0]: (ok, text.partition(": ")[2]) for ok, text in texts}

    taken = "the cluster would take a job"
    waits = f"{taken}, which waits until an autoscaler starts a node: none has the labels in "
    machines = tmp_path / "machines.csv"
    everywhere = {"node": (True, taken), "node as spot": (True, taken)}
    assert jobs() == {**everywhere, "nowhere": (True, f"{waits}{machines}")}
    head, node, _ = machines.read_text().splitlines()
    machines.write_text("\n".join([head, node, "l4,L4,2,2,4,1,pool=main,,1.00,"]))
    kubernetes.add_node("a", labels={"pool": "main"}, **{"nvidia.com/gpu": "1"})
    ok, text = jobs()["l4"]
    why = "of the nodes 1 have its labels, and none has 2 nvidia.com/gpu, at most 1; install the devic"
    assert (ok, text[: len(why)]) == (False, why)
    kubernetes.add_node("a", labels={"pool": "main"}, **{"nvidia.com/gpu": "2"})
    assert jobs() == {**everywhere, "l4": (True, taken)}
    assert not kubernetes.heads()
    assert ("POST jobsets" in kubernetes.calls) == kubernetes.has_job_sets
    assert {text for _, text in jobs(namespace="other").values()} == {
        'namespaces "other" not found; look at namespace other, its quotas and its policies'
    }
    kubernetes.forbidden = {"list nodes"}
    ok, text = checked(made())["nodes"]
    assert (ok, "is not known: nodes is forbidden" in text) == (True, True)


def test_check_looks_for_the_image_where_this_machine_sees_its_registry(made, registry):
    assert checked(made(image=f"{registry}/daybreak:1"))["image"][0]
    ok, text = checked(made(image=f"{registry}/nothing:7"))["image"]
    assert (ok, text.partition("; ")[0]) == (False, f"backend.image {registry}/nothing:7 does not exist")
    for image, why in ((f"{registry}/secret:1", "answers 403"), ("trainer:1", "trainer:1 names no registry")):
        ok, text = checked(made(image=image))["image"]
        assert (ok, why in text, text.endswith("; check --rent pulls it")) == (True, True, True)


def test_check_wants_a_bucket_that_pods_see_and_that_can_be_written(kubernetes, made, tmp_path):
    for bucket, sentence in (
        ("", "backend.bucket is empty, and the folder of the night is on this machine only, and jobs run on"),
        (f"file://{tmp_path}", f"backend.bucket file://{tmp_path} is on this machine only, and jobs run on"),
        (f"{tmp_path}", f"backend.bucket {tmp_path} is on this machine only, and jobs run on others; set it"),
        ("abfs://b", "backend.bucket abfs://b needs a client that is not installed here ("),
    ):
        ok, text = checked(made(bucket=bucket))["bucket"]
        assert (ok, text[: len(sentence)]) == (False, sentence)
    with cloud_storage.served() as store, cloud_storage.emulated(store):
        assert checked(made(bucket="gs://bucket/b"))["bucket"] == (True, "gs://bucket/b is writable")


def test_a_job_that_is_asked_for_after_its_time_is_not_submitted(kubernetes, made, job):
    late = replace(job(), until=datetime.now(UTC) - timedelta(hours=1))
    with pytest.raises(OutOfTime, match="training had to end at"):
        made().submit(late)
    assert not kubernetes.objects["jobs"]


def test_a_deadline_that_the_cluster_keeps_is_no_error_of_the_code():
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "DeadlineExceeded",
        "message": "Job was active longer",
    }
    job = {"spec": {"completions": 1}, "status": {"conditions": [failed]}}
    assert pod_status.observation_of(job, [job], []).cause == "overtime"
    assert COMMON["overtime"].state == "preempted"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no Kustomize here; install kubectl")
def test_the_role_in_deploy_lets_the_backend_do_what_it_does_and_no_more(kubernetes, made, job):
    kubernetes.queues = {"team-a": ""}
    backend = made(queue="team-a", machines="")
    assert list(backend.preflight(()))
    for has_job_sets in (False, True):
        kubernetes.has_job_sets = has_job_sets
        backend = made(queue="team-a")
        handle = backend.submit(job(machine="nowhere", num_machines=2))
        backend.state(handle)
        kubernetes.admit(name_of(handle))
        wait(lambda: kubernetes.objects["events"])
        backend.state(handle)
        backend.cancel(handle)
    verbs = {"POST": "create", "GET": "list", "DELETE": "delete"}
    done = {(verbs[method], kind) for method, kind in (call.split() for call in kubernetes.calls)}
    roles = [each for each in built("airflow") if each["kind"] in ("Role", "ClusterRole")]
    rules = [rule for role in roles for rule in role["rules"]]
    allowed = {(verb, kind) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}
    assert done | {("list", "nodes")} == allowed | {("create", "selfsubjectaccessreviews")}
    bindings = [each for each in built("airflow") if each["kind"].endswith("Binding")]
    assert {subject["name"] for each in bindings for subject in each["subjects"]} == {"stages"}


L4_NODE = {
    "node.kubernetes.io/instance-type": "g2-standard-8",
    "cloud.google.com/gke-accelerator": "nvidia-l4",
}
H100_NODE = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "daybreak/usd-per-hour": "12.5"}
GPU = {"nvidia.com/gpu": "1", "cpu": "7910m", "memory": "29Gi"}


@pytest.fixture
def without_file(kubernetes, tmp_path, monkeypatch):
    """Two nodes with an L4, one with eight H100, a control plane, a spot node; no file of machines."""
    (tmp_path / "machines.csv").unlink()
    monkeypatch.chdir(tmp_path)
    kubernetes.objects["nodes"].clear()
    kubernetes.add_node("l4-a", labels=L4_NODE, taints=("nvidia.com/gpu",), **GPU)
    kubernetes.add_node("l4-b", labels=L4_NODE, taints=("nvidia.com/gpu",), **{**GPU, "memory": "28Gi"})
    kubernetes.add_node("h100", labels=H100_NODE, **{"nvidia.com/gpu": "8", "cpu": "96", "memory": "1Ti"})
    kubernetes.add_node("control", labels={}, taints=("node-role.kubernetes.io/control-plane",), **GPU)
    kubernetes.add_node("spot", labels={**L4_NODE, "cloud.google.com/gke-spot": "true"}, **GPU)
    return kubernetes


def test_nodes_alike_are_one_machine_where_the_team_has_no_file_of_machines(without_file, made):
    machines = {each.name: each for each in made(machines="").machines()}
    l4, h100 = machines["g2-standard-8-1x-nvidia-l4-8cpu"], machines["node-8x-nvidia-h100-80gb-hbm3-96cpu"]
    assert len(machines) == 2
    assert (l4.gpus, l4.count, l4.vcpus, l4.usd_per_hour) == ("1 x L4", 2, 8, 0.0)
    assert l4.memory_bytes == pytest.approx(28 * 2**30, abs=1e6)
    assert (h100.gpus, h100.count, h100.usd_per_hour) == ("8 x H100", 1, 12.5)
    known = {each.device: each for each in catalog.rented()}
    checks = [text for what, ok, text in made(machines="").preflight(()) if ok and what == "nodes"]
    assert checks == [f"the machines are nodes of the cluster: 2 x {l4.name}, 1 x {h100.name}"]
    assert (l4.speeds.flops_per_s, h100.speeds.flops_per_s) == (
        known["L4"].speeds.flops_per_s,
        known["H100"].speeds.flops_per_s,
    )


def test_a_job_runs_on_a_machine_that_was_read_from_nodes(without_file, made, job):
    handle = made(machines="").submit(job("exit 0", machine="g2-standard-8-1x-nvidia-l4-8cpu"))
    assert end(made(machines=""), handle) == "succeeded"
    (pod,) = without_file.objects["pods"].values()
    assert pod["spec"]["nodeSelector"] == L4_NODE
    assert pod["spec"]["nodeName"] in ("l4-a", "l4-b")


def test_a_cluster_that_does_not_answer_has_a_sentence_and_later_its_nodes_of_the_day(without_file, made):
    with (
        without_file.away(),
        pytest.raises(Unreachable, match=r"does not answer: .*; its nodes are its mach"),
    ):
        made(machines="").machines()
    seen = made(machines="").machines()
    with without_file.away():
        assert made(machines="").machines() == seen
    del without_file.objects["nodes"]["h100"]  # an autoscaler takes it
    assert made(machines="").machines() == seen


def test_a_device_that_the_catalog_does_not_know_needs_a_row_in_the_file(without_file, made, caplog):
    without_file.add_node("old", labels={"nvidia.com/gpu.product": "Tesla-K80"}, **GPU)
    assert len(made(machines="").machines()) == 2
    text = "the cluster has nodes with 1 x Tesla-K80, which the catalog does not know; write a row for each"
    assert text in caplog.text
    for name in ("l4-a", "l4-b", "h100"):
        del without_file.objects["nodes"][name]
    shutil.rmtree(Home.here().var / "nodes")
    with pytest.raises(ParamsError, match=text):
        made(machines="").machines()


def test_a_price_that_is_no_number_names_its_node(without_file, made):
    without_file.objects["nodes"]["h100"]["metadata"]["labels"]["daybreak/usd-per-hour"] = "cheap"
    with pytest.raises(ParamsError, match="of node h100 is 'cheap'; set it to dollars"):
        made(machines="").machines()
