"""Counts submissions that end in two Jobs, a Job left or a wrong state, on a cluster on loopback.

What is done to jobs is in benchmarks/disturbed.py, the cluster is tests/backends/fake_cluster.py. Of
its four processes two have a cluster with JobSets and two one without; each end is planted in both. Two
real things are compressed: an API server that is away for 90 s is one that misses 90 looks, and the launcher
asks again for a refused machine after a second instead of minutes.

QUICK=1: each eighth line, a tenth of the trials, each fault once.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import disturbed
from benchmarks.disturbed import AWAY_S, End, Fault, How, Place, looks_amid
from daybreak.contract.backend import Backend, Job
from daybreak.contract.record_parts import Rental
from daybreak.extensions.kubernetes import cluster_connection
from daybreak.extensions.kubernetes.kubernetes import Kubernetes
from daybreak.jobs import observed_job
from tests.backends import rented
from tests.backends.conftest import IMAGE, PODS
from tests.backends.fake_cluster import FakeCluster, condition
from tests.backends.rented import wait
from tests.backends.together import TrainingNight

PARTS = 4  # processes
WITH_JOB_SETS = (2, 3)  # the processes whose clusters have JobSets
PATIENCE_S = 1.0
SPOT = {"pool": "spot", "spot": "true"}
DISRUPTIONS = (
    "PreemptionByScheduler",
    "EvictionByEvictionAPI",
    "DeletionByTaintManager",
    "TerminationByKubelet",
)


class Cluster(Place):
    """The cluster on loopback, and a folder for the file of its machines."""

    hows = ("refuse", "busy", "conflict", "cut before", "cut after", "half", "hang", "hang after")

    def __init__(self, cluster: FakeCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.bucket = f"file://{folder}/bucket"

    def backend(self, **given: Any) -> Backend:
        asked = {
            "image": "eu.example/trainer:1",
            "bucket": "",
            "machines": str(self.folder / "machines.csv"),
            **given,
        }
        return Kubernetes(**asked)

    def trainer(self) -> Backend:
        return self.backend(bucket=self.bucket)

    def impatient(self) -> Backend:
        cluster_connection.RAW["_request_timeout"] = (0.3, 0.3)  # in a process that ends soon
        return self.backend()

    def job(self, folder: Path, *, name: str, script: str = "exec sleep 60", **given: object) -> Job:
        return rented.job(folder, script, name=name, **{"machine": "node", **given})

    def alone(self, name: str, handle: str) -> bool:
        with self.cluster.lock:
            jobs = self.cluster.heads().values()
            made = [job["metadata"] for job in jobs if job["metadata"]["labels"]["daybreak/job"] == name]
        secrets = [secret for secret in self.cluster.objects["secrets"] if secret == handle.partition(" ")[0]]
        return len(secrets) == 1 and [each["name"] for each in made] == [handle.partition(" ")[0]]

    def num_live(self) -> int:
        return len(self.cluster.live())

    @contextmanager
    def troubled(self, how: How) -> Iterator[None]:
        self.cluster.disturb = how
        try:
            yield
        finally:
            self.cluster.disturb = lambda: ""

    def num_calls(self) -> int:
        return len(self.cluster.calls)

    @contextmanager
    def wait_in_queue(self) -> Iterator[None]:
        self.cluster.has_controllers = False
        try:
            yield
        finally:
            self.cluster.has_controllers = True

    def rental(self, num_machines: int) -> Rental:
        return Rental(machine="node", num_machines=num_machines, strategy="spot")

    def ends(self) -> Sequence[End]:
        cluster = self.cluster
        disrupted = [
            End(reason, "preempted", reason, act=partial(cluster.disrupt, reason=reason))
            for reason in DISRUPTIONS
        ]

        def impatient(**given: Any) -> Callable[[], Backend]:
            return lambda: self.backend(wait_minutes=0, **given)

        one_of_two = 'test "$JOB_COMPLETION_INDEX" = 0 && exit 3; exec sleep 60'
        denied, nowhere = "admission webhook x denied the request", {"machine": "nowhere"}
        never = partial(End, waits=True)  # it does not run for long enough to be acted on
        ends = (
            *disrupted,
            never("done", "succeeded", script="exit 0"),
            never("an exit status of its own", "failed", "status 3", script="exit 3"),
            never("SIGKILL", "preempted", "killed", script="kill -9 $$"),
            never("SIGSEGV", "preempted", "killed", script="kill -11 $$"),
            End("out of memory", "failed", "ran out of the memory", act=cluster.run_out_of_memory),
            End("its node is gone", "preempted", "DeletionByPodGC", act=cluster.lose_node),
            End("evicted without a condition", "preempted", "disrupted", act=self._evict_only_by_status),
            End("pods gone without a word", "preempted", "is gone", act=self._forget_pods),
            End("deleted by a person", "preempted", "is gone", act=self._delete),
            never(
                "no node before its time is over", "preempted", "after its time", rental=nowhere, timeout_s=2
            ),
            never(
                "no image",
                "failed",
                "cannot start (ImagePullBackOff",
                backend=lambda: self.backend(image="eu.example/missing:1"),
            ),
            never(
                "no name of an image",
                "failed",
                "cannot start (InvalidImageName",
                backend=lambda: self.backend(image="eu.example/invalid:1"),
            ),
            never("no node like it", "refused", "no node takes", rental=nowhere, backend=impatient()),
            never(
                "pods that nobody makes",
                "refused",
                "makes no pods",
                backend=impatient(image="eu.example/forbidden:1"),
            ),
            never(
                "a volume that is not there",
                "refused",
                "does not start job",
                backend=impatient(image="eu.example/unmounted:1"),
            ),
            never(
                "no such queue of Kueue",
                "refused",
                "Inadmissible: LocalQueue nobody",
                backend=impatient(queue="nobody"),
            ),
            never("quota", "refused", "exceeded quota", around=lambda: patch.object(cluster, "quota", 0)),
            never(
                "denied by a webhook",
                "refused",
                "denied the request",
                around=lambda: patch.object(cluster, "denied", denied),
            ),
            never(
                "no such namespace",
                "refused",
                'namespaces "nowhere" not found',
                backend=lambda: self.backend(namespace="nowhere"),
            ),
            never("one of two fails", "failed", "status 3", rental={"num_machines": 2}, script=one_of_two),
            End(
                "evicted by Kueue, then admitted",
                "succeeded",
                script="test -e back || exec sleep 60",
                act=self._evict_and_admit,
            ),
            End("cancelled", "preempted", act=self._cancel),
        )
        assert len(ends) % PARTS == len(WITH_JOB_SETS), (
            "each is dealt to a cluster with JobSets and one without"
        )
        return (*ends, *ends)

    def _evict_only_by_status(self, job: str) -> None:
        with self.cluster.lock:
            for pod in self.cluster.pods_of(job):
                pod["status"]["reason"] = "Evicted"
        self.cluster.kill(job)

    def _forget_pods(self, job: str) -> None:
        """Pods that were removed by force: the Job has failed, and nobody knows why."""
        self.cluster.kill(job)
        with self.cluster.lock:
            (owner,) = {pod["metadata"]["owner"] for pod in self.cluster.pods_of(job)}
            for pod in self.cluster.pods_of(job):
                del self.cluster.objects["pods"][pod["metadata"]["name"]]
            failed = condition(
                "Failed", reason="BackoffLimitExceeded", message="Job has reached the backoff limit"
            )
            self.cluster.objects["jobs"][owner]["status"]["conditions"] = [failed]

    def _delete(self, job: str) -> None:
        path = "batch/v1/namespaces/default/jobs"
        if self.cluster.has_job_sets:
            path = "jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
        self.cluster.answer("DELETE", f"/apis/{path}/{job}", {"propagationPolicy": "Foreground"})
        wait(lambda: job not in self.cluster.heads())

    def _cancel(self, job: str) -> None:
        (handle,) = [each.handle for each in self.backend().live() if each.handle.startswith(job)]
        self.backend().cancel(handle)

    def _evict_and_admit(self, job: str) -> None:
        self.cluster.suspend(job)
        wait(lambda: not self.cluster.pods_of(job))
        (self.cluster.folder / "back").touch()
        self.cluster.admit(job)

    def faults(self) -> Sequence[Fault]:
        return (
            Fault("preempted", act=lambda night: self.cluster.disrupt(self.name_of(night))),
            Fault("node drained", act=self._drain),
            Fault("API server away for 90 s", act=looks_amid(self.cluster.away, AWAY_S), restarts=False),
            Fault("replies cut", act=looks_amid(lambda: self.troubled(lambda: "half")), restarts=False),
            Fault("conflicts", act=looks_amid(lambda: self.troubled(lambda: "conflict")), restarts=False),
            Fault("reply to the next submission lost", act=self._lost_reply),
            Fault("quota used up", act=self._quota),
            Fault("evicted by Kueue", act=self._evicted),
            Fault("container killed", act=lambda night: self.cluster.kill(self.name_of(night))),
            Fault(
                "one of two nodes lost",
                num_machines=2,
                act=lambda night: self.cluster.lose_node(self.name_of(night), indexes=(1,)),
            ),
        )

    def name_of(self, night: TrainingNight) -> str:
        """The Job that lives."""
        (job,) = self.cluster.live()
        return str(job["metadata"]["name"])

    def _drain(self, night: TrainingNight) -> None:
        (pod,) = self.cluster.pods_of(self.name_of(night))
        node = pod["spec"]["nodeName"]
        self.cluster.drain(node)
        night.until(lambda: not self.cluster.live())
        self.cluster.add_node(f"{node}x", labels=SPOT, taints=("spot",))

    def _lost_reply(self, night: TrainingNight) -> None:
        first = self.name_of(night)
        self.cluster.disrupt(first)
        with self.cluster.troubled(*["cut after"] * 6, kind="jobs"):
            night.until(lambda: any(job["metadata"]["name"] != first for job in self.cluster.live()))

    def _quota(self, night: TrainingNight) -> None:
        self.cluster.quota = 0
        self.cluster.disrupt(self.name_of(night))
        night.until(lambda: "refused" in (night.job / "orders.json").read_text())
        self.cluster.quota = None

    def _evicted(self, night: TrainingNight) -> None:
        job = self.name_of(night)
        self.cluster.suspend(job)
        night.until(lambda: not self.cluster.pods_of(job))
        for _ in range(5):
            night.looks()
        self.cluster.admit(job)


@contextmanager
def place(folder: Path, part: int) -> Iterator[Place]:
    """A cluster with a node of its own and two spot nodes."""
    (folder / "machines.csv").write_text(PODS)
    (folder / "cluster").mkdir()
    with FakeCluster(folder / "cluster", image=IMAGE) as cluster:
        cluster.queues = {"team-a": ""}
        cluster.has_job_sets = part in WITH_JOB_SETS
        cluster.add_node("a", labels={"pool": "main"})
        for name in ("b", "c"):
            cluster.add_node(name, labels=SPOT, taints=("spot",))
        soon = patch.multiple("daybreak.jobs.observed_job", PATIENCE_S=PATIENCE_S)
        no_wait = patch.multiple("daybreak.extensions.kubernetes.kubernetes", IMAGE_S=0.0)
        with patch.dict(os.environ, KUBECONFIG=str(cluster.kubeconfig)), soon, no_wait:
            yield Cluster(cluster, folder)


if __name__ == "__main__":
    assert observed_job.PATIENCE_S > PATIENCE_S
    disturbed.run(
        "kubernetes_faults",
        place,
        measures=disturbed.ALL,
        parts=PARTS,
        all_targets=disturbed.targets(lines=100, calls=40),
    )
