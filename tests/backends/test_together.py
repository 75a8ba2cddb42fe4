"""Two machines train tonight's model together, also when both are taken away, wherever they are rented.

Each place is seen in what is its own: disks that go with the machines on Vertex AI, a job of unlike parts on
Slurm, a number of workers that changes in a JobSet on Kubernetes. How jobs of alike and unlike machines end
in each place is in test_contract.py and in the place's own tests.
"""

from pathlib import Path
from typing import Any

import pytest

from daybreak.backends.submission_journal import SubmissionJournal
from daybreak.contract.record_parts import Pool, Rental
from daybreak.extensions.kubernetes.kubernetes import Kubernetes
from daybreak.extensions.slurm import slurm_client
from daybreak.extensions.slurm.slurm import Slurm
from tests.backends.rented import vertex, wait
from tests.backends.together import TrainingNight
from tests.fakes import read_lines

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a night, which becomes the current one."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "night"


def spot(machine: str, **given: Any) -> Rental:
    return Rental(machine=machine, num_machines=2, strategy="spot", **given)


def trained_by_two(night: TrainingNight) -> None:
    """Look after the job to its end: two workers, one restart, all samples."""
    training = night.finish()
    assert night.workers == {"worker 0 of 2", "worker 1 of 2"}
    assert training.num_restarts >= 1
    night.assert_whole()


def test_two_machines_of_vertex_ai_whose_disks_are_taken_too(service, folder, tmp_path):
    bucket = f"file://{tmp_path}/bucket"
    backend = vertex(service.url, bucket=bucket)
    rental = spot("g2-standard-8", region="us-central1")
    night = TrainingNight(folder, backend, rental=rental, bucket=bucket)
    night.ask()
    spec = service.only().job.job_spec
    assert [pool.replica_count for pool in spec.worker_pool_specs] == [1, 1]
    assert spec.scheduling.strategy.name == "SPOT"
    environment = {v.name: v.value for v in spec.worker_pool_specs[1].container_spec.env}
    assert environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    there = (tmp_path / "bucket").rglob
    wait(lambda: (any(there("heads/*.json")) and any(there("starts.jsonl"))) or not service.live())
    assert service.live(), service.log()
    service.only().tell("preempt")
    trained_by_two(night)
    assert night.training
    assert "going on from" in service.log()
    assert night.training.num_restarts == 1
    assert read_lines(night.job / "progress.jsonl")[-1]["seen"] == 3000
    assert night.training.cost_usd == pytest.approx(backend.usd(night.job), rel=0.1)
    assert not (night.job / "checkpoints").exists()
    assert len(service.jobs) == 1


def test_unlike_nodes_of_slurm_share_batches_by_speed_and_lose_one_of_them(cluster, folder, tmp_path):
    (tmp_path / "machines.csv").write_text(
        "name,device,num_devices,vcpus,memory_gb,options,usd_per_hour\n"
        "one,cpu,0,1,1,--partition=urgent --nodelist=n1,3.60\n"
        "other,cpu,0,2,1,--partition=scavenge --nodelist=n2,1.80\n"
    )
    backend = Slurm(machines=str(tmp_path / "machines.csv"))
    rental = Rental(machine="one", num_machines=2, others=(Pool(machine="other"),))
    night = TrainingNight(folder, backend, rental=rental, num_samples=3000, slow_machine="other")
    night.until_saved()
    cluster.set_node("n2", "down")
    wait(lambda: any(each.state == "NODE_FAIL" for each in slurm_client.listed()))
    cluster.set_node("n2", "resume")
    trained_by_two(night)
    assert "workers differ in speed; shares of a batch are now" in (night.job / "log.txt").read_text()
    assert night.training
    assert night.training.device == "2 x CPU"


def test_nodes_of_slurm_come_and_go_without_another_job_also_the_first(cluster, folder, tmp_path):
    urgent = cluster.occupy("n2")
    wait(lambda: any(each.phase == "runs" for each in slurm_client.listed(name="urgent")))
    night = TrainingNight(
        folder, Slurm(machines=str(tmp_path / "machines.csv"), min_machines=1), rental=spot("node")
    )
    night.be_slow()
    night.until(lambda: night.workers == {"worker 0 of 1"})  # begins with the node that is there
    night.forget_workers()
    cluster.call("scancel", urgent)
    night.until(lambda: night.workers == {"worker 0 of 2", "worker 1 of 2"})
    night.until_saved()
    night.forget_workers()
    urgent = cluster.occupy("n1")  # the host of the rendezvous is preempted
    night.until(lambda: night.workers == {"worker 0 of 1"})
    night.forget_workers()
    cluster.call("scancel", urgent)
    (submission,) = SubmissionJournal(night.job).submissions()

    def hurried() -> bool:
        cluster.hurry(f"{submission.handle}_0")
        return night.workers == {"worker 0 of 2", "worker 1 of 2"}

    night.until(hurried)
    night.be_quick()
    training = night.finish()
    night.assert_whole()
    assert training.num_restarts >= 3
    assert len(SubmissionJournal(night.job).submissions()) == 1
    wait(lambda: not any(each.phase != "over" for each in slurm_client.listed()))


@pytest.mark.parametrize("kubernetes", ["jobsets"], indirect=True)
def test_pods_start_with_the_nodes_there_go_on_without_the_first_and_take_in_those_that_come(
    kubernetes, folder, tmp_path
):
    bucket = f"file://{tmp_path}/bucket"
    backend = Kubernetes(
        image="eu.example/trainer:1", machines=str(tmp_path / "machines.csv"), bucket=bucket, min_machines=1
    )
    pool = {"pool": "spot", "spot": "true"}
    kubernetes.add_node("b", labels=pool, taints=("spot",), pods=1)
    night = TrainingNight(folder, backend, rental=spot("node"), bucket=bucket)
    night.be_slow()
    night.until(lambda: night.workers == {"worker 0 of 1"})
    night.forget_workers()
    kubernetes.add_node("c", labels=pool, taints=("spot",), pods=1)
    night.until(lambda: night.workers == {"worker 0 of 2", "worker 1 of 2"})
    night.until_saved()
    (job,) = kubernetes.objects["jobs"]
    night.forget_workers()
    kubernetes.lose_node(job, indexes=(0,), returns=False)  # without notice, and others meet at it
    night.until(lambda: night.workers == {"worker 0 of 1"})
    night.forget_workers()
    kubernetes.add_node("d", labels=pool, taints=("spot",), pods=1)
    night.until(lambda: night.workers == {"worker 0 of 2", "worker 1 of 2"})
    night.be_quick()
    training = night.finish()
    night.assert_whole()
    assert training.num_restarts >= 2
    assert list(kubernetes.objects["jobs"]) == [job]
    wait(lambda: not kubernetes.live())
