"""A Slurm cluster of two nodes: whatever goes wrong with calls, nodes or requests, one job, and a reason."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.backends.faults import fault_sentence
from daybreak.backends.place import Unreachable
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract.backend import Job, OutOfTime
from daybreak.contract.errors import NotYet
from daybreak.contract.record_parts import Pool, Rental
from daybreak.extensions.slurm import slurm_client as client
from daybreak.extensions.slurm.slurm import CAUSES, Slurm
from daybreak.extensions.slurm.slurm_node import PORTS, place
from daybreak.jobs import reaper
from daybreak.storage.home import Home
from tests.backends import rented
from tests.backends.rented import end, wait
from tests.fakes import read_lines

pytestmark = pytest.mark.slow  # Slurm looks for work each second

ROOT = Path(__file__).parents[2]
SLEEP = "sleep 60"


@pytest.fixture
def backend(cluster: Any, tmp_path: Path) -> Slurm:
    return Slurm(machines=str(tmp_path / "machines.csv"))


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    def made(script: str = SLEEP, **given: Any) -> Job:
        asked = rented.job(tmp_path, script, **{"machine": "node", **given})
        return replace(asked, environment={"PYTHONPATH": str(ROOT)})

    return made


def reasons(folder: Path) -> list[str]:
    return [line["error"] for line in read_lines(folder / "job" / "errors.jsonl")]


def num_live() -> int:
    return sum(each.phase != "over" for each in client.listed())


def test_while_the_controller_is_away_the_job_goes_on_as_it_was_and_no_second_one_is_made(
    cluster, backend, job
):
    handle = backend.submit(job())
    wait(lambda: backend.state(handle) == "running")
    with cluster.away():
        assert backend.state(handle) == "running"
        with pytest.raises(NotYet, match="job j is not known to be taken: the cluster does not answer"):
            backend.submit(job())
    assert backend.submit(job()) == handle
    assert num_live() == 1


def test_a_job_whose_submission_was_killed_before_the_answer_is_adopted(backend, job, tmp_path):
    handle = backend.submit(job())
    (tmp_path / "job" / "orders.json").unlink()
    assert backend.submit(job()) == handle
    assert num_live() == 1


def test_two_that_submit_at_once_get_the_same_job(backend, job):
    with ThreadPoolExecutor(4) as pool:
        handles = list(pool.map(lambda _: backend.submit(job()), range(4)))
    assert len(set(handles)) == 1
    assert num_live() == 1


def test_a_second_job_that_came_late_is_ended_at_the_next_look(backend, job, tmp_path):
    handle = backend.submit(job())
    facts = next(each for each in client.listed() if each.id == handle.partition(" ")[0])
    client.submit(
        [f"--job-name={facts.name}", f"--comment={facts.comment}", "--time=1", "--output=/dev/null"],
        f"#!/bin/sh\n{SLEEP}\n",
        environment=dict(os.environ),
    )
    assert num_live() == 2
    backend.state(handle)
    wait(lambda: num_live() == 1)
    assert backend.submit(job()) == handle


def test_a_machine_that_slurm_does_not_take_is_refused_with_its_own_words(backend, job, tmp_path):
    handle = backend.submit(job(machine="broken"))
    assert backend.state(handle) == "refused"
    (text,) = reasons(tmp_path)
    assert "Slurm does not take job j on broken (sbatch: error: invalid partition specified: nowhere" in text
    assert backend.submit(job(machine="broken")) != handle  # asked anew, as the cluster may have changed
    checks = {text.partition(":")[0]: ok for _, ok, text in backend.preflight(())}
    assert checks == {"node": True, "node as spot": True, "broken": False}
    spoiled = (tmp_path / "machines.csv").read_text().replace("--partition=scavenge", "--partition=nowhere")
    (tmp_path / "machines.csv").write_text(spoiled)
    checks = {text.partition(":")[0]: ok for _, ok, text in backend.preflight(())}
    assert checks == {"node": True, "node as spot": False, "broken": False}


def test_a_job_that_can_never_run_is_refused_rather_than_waited_for(backend, job, tmp_path):
    limited = (tmp_path / "machines.csv").read_text().replace("--partition=nowhere", "--partition=brief")
    (tmp_path / "machines.csv").write_text(limited)
    handle = backend.submit(job(machine="broken", timeout_s=3600))
    assert end(backend, handle) == "refused"
    assert "can never run on broken (PartitionTimeLimit)" in reasons(tmp_path)[-1]
    assert num_live() == 0


def test_a_job_that_waits_for_nodes_says_so_in_slurms_word(backend, job, tmp_path):
    first = backend.submit(job(num_machines=2, name="first"))
    wait(lambda: backend.state(first) == "running")
    second = backend.submit(job(name="second"))

    def waits() -> str:
        assert backend.state(second) == "queued"
        return SubmissionJournal(tmp_path / "job").submissions()[-1].waits

    assert wait(waits) in ("Resources", "Priority")
    backend.cancel(first)
    wait(lambda: backend.state(second) == "running")


def test_a_job_that_slurm_has_forgotten_ended_as_its_first_node_has_written(cluster, backend, job, tmp_path):
    handle = backend.submit(job("exit 0"))
    wait(lambda: any((tmp_path / "job" / "ended").glob("*")))
    with cluster.away():
        shutil.rmtree(cluster.folder / "state")
        (cluster.folder / "state").mkdir()
        with (cluster.folder / "slurm.conf").open("a") as conf:
            conf.write("FirstJobId=1000\n")  # nodes remember the ids that it has forgotten
    wait(cluster.is_idle)
    assert not client.listed()
    assert backend.state(handle) == "succeeded"
    assert backend.submit(job("exit 1")) == handle


@pytest.mark.parametrize(
    ("listing", "ends"),  # what sacct 22.05 says, with slurmdbd and MariaDB
    [
        ("7|PREEMPTED|j||2026-11-26T06:55:45|2026-11-26T06:55:45|2026-11-26T06:55:47|None", "preempted"),
        (
            "7|OUT_OF_MEMORY|j||2026-11-26T06:55:45|2026-11-26T06:55:45|2026-11-26T06:55:47|None",
            "out of memory",
        ),
        ("7|CANCELLED by 0|j||2026-11-26T06:56:15|2026-11-26T06:56:15|2026-11-26T06:56:16|None", "cancelled"),
        (
            "7+1|CANCELLED|j||2026-11-26T06:55:24|2026-11-26T06:55:25|2026-11-26T06:55:47|None\n"
            "7+0|NODE_FAIL|j||2026-11-26T06:55:24|2026-11-26T06:55:25|2026-11-26T06:55:47|None",
            "node failed",
        ),
        ("7|COMPLETED|j||2026-11-26T06:56:05|2026-11-26T06:56:05|2026-11-26T06:56:08|None", "succeeded"),
        # Of a job whose end never came to the accounts, of no such job, and where there are no accounts.
        ("7|RUNNING|j||2026-11-26T06:56:05|2026-11-26T06:56:05|Unknown|None", "killed"),
        ("", "killed"),
        ("Slurm accounting storage is disabled", "killed"),
    ],
)
def test_a_job_that_slurm_has_forgotten_ended_as_its_accounts_say(tmp_path, monkeypatch, listing, ends):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path / "home"))
    backend = Slurm(machines="machines.csv")
    name = f"daybreak-{backend.home_token}-j"
    if "disabled" in listing:
        says = f"echo {listing}; exit 1"
    else:
        text = listing.replace("|j|", f"|{name}|").replace("|", client.SEPARATOR)
        says = f'case "$*" in *--jobs=7*--name={name}*) echo "{text}";; *) exit 2;; esac'
    (tmp_path / "sacct").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "sacct").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    asked = Submission(
        name="a",
        job="j",
        rental=Rental(machine="node"),
        asked_at="2026-11-26T06:55:00+00:00",
        handle="7",
    )
    ended = backend.explained(None, asked, tmp_path)
    assert ("succeeded" if ended.state == "succeeded" else ended.cause) == ends
    last = listing.partition("\n")[0].split("|")[-2:][0]
    assert (ended.ended_at and f"{ended.ended_at:%FT%T}") == (last if ends != "killed" else None)


def test_a_worker_that_is_killed_is_no_error_of_its_code(backend, job, tmp_path):
    handle = backend.submit(job("kill -9 $$"))
    assert end(backend, handle) == "preempted"
    assert "was killed on node" in reasons(tmp_path)[-1]
    second = backend.submit(job("exit 3"))
    assert end(backend, second) == "failed"
    assert "status 3, an error of its own code" in reasons(tmp_path)[-1]


def test_an_error_on_any_node_is_that_of_the_job(backend, job, tmp_path):
    script = 'test "$SLURM_NODEID" = 1 && exit 3; exec sleep 60'
    handle = backend.submit(job(script, num_machines=2))
    assert end(backend, handle) == "failed"
    assert "status 3, an error of its own code" in reasons(tmp_path)[-1]


@pytest.fixture
def unlike(cluster: Any, job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """A job on a node of one kind and one of another."""
    rows = (
        "one,cpu,0,1,1,1,--partition=urgent --nodelist=n1,,3.60,",
        "other,cpu,0,2,1,1,--partition=scavenge --nodelist=n2,,1.80,",
    )
    head = (tmp_path / "machines.csv").read_text().splitlines()[0]
    (tmp_path / "machines.csv").write_text("\n".join([head, *rows]))
    return lambda script=SLEEP: job(script, machine="one", num_machines=2, others=(Pool(machine="other"),))


def test_unlike_nodes_are_parts_of_one_job_and_each_knows_which_machine_it_is(backend, unlike, tmp_path):
    script = f'echo "$SLURMD_NODENAME $DAYBREAK_MACHINE" > {tmp_path}/node-$SLURMD_NODENAME'
    handle = backend.submit(unlike(script))
    assert backend.submit(unlike(script)) == handle
    assert end(backend, handle) == "succeeded"
    assert {path.read_text() for path in tmp_path.glob("node-*")} == {"n1 one\n", "n2 other\n"}
    assert len([each for each in client.listed() if each.name == f"daybreak-{backend.home_token}-j"]) == 1
    usd = backend.usd(tmp_path / "job")
    (ran,) = SubmissionJournal(tmp_path / "job").submissions()
    hours = (
        datetime.fromisoformat(ran.ended_at) - datetime.fromisoformat(ran.there_at)
    ).total_seconds() / 3600
    assert usd == pytest.approx(5.40 * hours)


def test_a_lost_node_of_any_part_ends_the_whole_job_by_its_own_word(cluster, backend, unlike, tmp_path):
    handle = backend.submit(unlike())
    wait(lambda: backend.state(handle) == "running")
    cluster.set_node("n2", "down")
    assert end(backend, handle) == "preempted"
    cluster.set_node("n2", "resume")
    assert "a node of job j failed" in reasons(tmp_path)[-1]
    wait(lambda: num_live() == 0)


def test_a_job_of_unlike_nodes_that_is_cancelled_leaves_no_part(backend, unlike):
    handle = backend.submit(unlike())
    wait(lambda: backend.state(handle) == "running")
    backend.cancel(handle)
    assert num_live() == 0
    assert backend.state(handle) == "preempted"


def test_a_part_that_can_never_run_refuses_the_whole_job(backend, unlike, tmp_path):
    limited = (tmp_path / "machines.csv").read_text().replace("--partition=scavenge", "--partition=brief")
    (tmp_path / "machines.csv").write_text(limited)
    handle = backend.submit(replace(unlike(), timeout_s=3600))
    assert end(backend, handle) == "refused"
    assert num_live() == 0


def test_what_a_job_costs_is_its_time_at_the_price_of_the_file(backend, job, tmp_path):
    handle = backend.submit(job("sleep 2", strategy="spot"))
    assert end(backend, handle) == "succeeded"
    usd = backend.usd(tmp_path / "job")
    assert 2 * 0.36 / 3600 <= usd <= 8 * 0.36 / 3600
    assert backend.usd(tmp_path / "job") == usd  # it is over
    assert Path(backend.logs(handle)).name == "log.txt"


def test_a_job_of_no_open_night_is_ended_by_the_reaper(backend, job, tmp_path, monkeypatch):
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "home")], check=True)
    backend.submit(job())
    (one,) = backend.live()
    assert (one.job, one.night) == ("j", "2026-01-02")
    monkeypatch.setattr(reaper, "YOUNG", timedelta(0))
    reaper.reap(Home.here(), backend=backend)
    wait(lambda: num_live() == 0)


def test_a_job_that_is_asked_for_after_its_time_is_not_submitted(backend, job):
    late = replace(job(), until=datetime.now(UTC) - timedelta(hours=1))
    with pytest.raises(OutOfTime, match="training had to end at"):
        backend.submit(late)
    assert num_live() == 0


def test_whoever_submits_may_be_killed_at_any_moment(backend, job, tmp_path):
    """SIGKILL at three moments of a submission, then another submits: one job each time."""
    code = (
        "import sys, pickle; from pathlib import Path; from daybreak.extensions.slurm.slurm import Slurm;"
        f"backend = Slurm(machines={str(tmp_path / 'machines.csv')!r});"
        "print('ready', flush=True); sys.stdin.readline();"
        "backend.submit(pickle.loads(Path(sys.argv[1]).read_bytes()))"
    )
    for number in range(0, 10, 4):
        asked = job(name=f"j{number}")
        (tmp_path / "asked").write_bytes(pickle.dumps(asked))
        words = [sys.executable, "-c", code, str(tmp_path / "asked")]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            assert process.stdout
            assert process.stdin
            process.stdout.readline()
            process.stdin.write("\n")
            process.stdin.flush()
            time.sleep(0.012 * number)  # no condition: the moment is what is tried
            process.send_signal(signal.SIGKILL)
        handle = backend.submit(asked)
        assert backend.submit(asked) == handle
        backend.state(handle)
        named = [each for each in client.listed() if each.name.endswith(f"-j{number}")]
        assert sum(each.phase != "over" for each in named) == 1
        backend.cancel(handle)


def test_a_bag_goes_on_after_its_nodes_are_preempted_and_its_command_is_killed(cluster, tmp_path):
    """By the command: on spot nodes that are taken away while nobody looks, six of seven runs, each once."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "params.yaml").write_text(
        f"source: a:B\nworkload: a:B\nplan: {{machines: [node]}}\n"
        f'backend: {{use: "daybreak:Slurm", machines: {tmp_path / "machines.csv"}}}\n'
    )
    subprocess.run(["git", "init", "--quiet"], cwd=home, check=True)
    waits = f"[ {{seed}} = 0 ] || until [ -e {tmp_path}/gate ]; do sleep 0.1; done"
    script = f"sh -c '{waits}; echo {{seed}} $SLURM_JOB_PARTITION >> {{folder}}/result'"
    words = [sys.executable, "-m", "daybreak", "bag", script, "--json"]
    words += ["--runs", "7", "--needed", "6", "--machines", "2", "--name", "b"]
    folder = home / "var/bags/b"
    killed = subprocess.Popen(words, cwd=home)
    wait(lambda: (folder / "seeds/0").exists() and len(list(folder.glob("work/*"))) == 2)
    killed.kill()
    killed.wait()
    cluster.take_away()
    wait(lambda: not num_live())
    (tmp_path / "gate").touch()
    again = subprocess.run(words, cwd=home, capture_output=True, text=True, check=True)
    outcome = json.loads(again.stdout)["outcome"]
    assert outcome["num_done"] in (6, 7)  # two may end at once
    assert (outcome["num_preempted"], outcome["num_lost"]) == (2, 2)
    assert 0 < outcome["usd"] <= outcome["machine_s"] * 0.36 / 3600  # while they wait, machines cost nothing
    results = {int(path.parent.name): path.read_text() for path in folder.glob("seeds/*/result")}
    assert results == {seed: f"{seed} scavenge\n" for seed in results} and len(results) == outcome["num_done"]
    assert num_live() == 0


def test_nodes_meet_at_the_address_of_the_first(cluster):
    variables = {
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_NODEID": "1",
        "SLURM_JOB_ID": "40007",
    }
    second = place(variables)
    assert second
    assert (second.rank, second.num_nodes, second.host) == (1, 2, "127.0.0.1")
    assert second.master == f"127.0.0.1:{PORTS[40_007 % len(PORTS)]}"
    parts = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n2",
        "SLURM_JOB_ID_HET_GROUP_0": "40007",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n1",
        "SLURMD_NODENAME": "n1",
        "SLURM_JOB_ID": "40008",
    }
    assert place(parts) == second
    assert place({}) is None


@pytest.fixture
def elastic(cluster: Any, tmp_path: Path) -> Slurm:
    return Slurm(machines=str(tmp_path / "machines.csv"), min_machines=1)


def states(handle: str) -> set[str]:
    """The states of the tasks of an array."""
    id = handle.partition(" ")[0]
    words = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={id}", "--format=%T"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def test_a_job_with_fewer_nodes_is_ended_by_an_error_of_its_code_on_any_and_leaves_no_task(
    cluster, elastic, job, tmp_path
):
    urgent = cluster.occupy("n2")
    wait(lambda: any(each.phase == "runs" for each in client.listed(name="urgent")))
    handle = elastic.submit(job("exit 3", num_machines=2))
    assert end(elastic, handle) == "failed"
    assert "an error of its own code" in reasons(tmp_path)[-1]
    cluster.call("scancel", urgent)
    wait(lambda: num_live() == 0)


def test_a_job_with_fewer_nodes_that_is_cancelled_queues_no_lost_task_again(cluster, elastic, job):
    handle = elastic.submit(job(num_machines=2, strategy="spot"))
    wait(lambda: states(handle) == {"RUNNING"})
    urgent = cluster.occupy("n2")
    wait(lambda: "PREEMPTED" in states(handle))
    elastic.cancel(handle)
    wait(lambda: not {"RUNNING", "PENDING", "COMPLETING"} & states(handle))
    assert elastic.state(handle) == "preempted"
    cluster.call("scancel", urgent)


def test_a_job_with_fewer_nodes_waits_until_there_are_enough(cluster, tmp_path, job):
    elastic = Slurm(machines=str(tmp_path / "machines.csv"), min_machines=2)
    handle = elastic.submit(job(num_machines=3))
    wait(lambda: elastic.state(handle) == "running")  # of three there are two
    cluster.set_node("n2", "down")
    wait(lambda: elastic.state(handle) == "queued")
    cluster.set_node("n2", "resume")
    elastic.cancel(handle)
    wait(lambda: num_live() == 0)


def test_each_word_of_slurm_for_an_end_has_a_sentence():
    faults = Slurm(machines="machines.csv").faults
    rental = Rental(machine="node")
    texts = {word: fault_sentence(faults[cause], job="j", rental=rental) for word, cause in CAUSES.items()}
    assert len(set(texts.values())) == len(CAUSES)
    assert texts["BOOT_FAIL"] == "a node for job j did not boot; it goes on from its last checkpoint"
    assert "revoked" in texts["REVOKED"]


def test_nodes_are_machines_in_each_of_their_partitions_where_the_team_has_no_file(
    cluster, job, tmp_path, monkeypatch
):
    (tmp_path / "machines.csv").unlink()
    monkeypatch.chdir(tmp_path)
    with cluster.away(), pytest.raises(Unreachable, match=r"does not answer.*; its nodes are its machines"):
        Slurm().machines()
    wait(lambda: len(client.nodes()) == 6)  # each node in three partitions, once it answers the controller
    machines = {each.name: each for each in Slurm().machines()}
    assert set(machines) == {"scavenge-1cpu", "urgent-1cpu", "brief-1cpu"}
    urgent = machines["urgent-1cpu"]
    assert (urgent.device, urgent.vcpus, urgent.count, urgent.usd_per_hour) == ("cpu", 1, 2, 0.0)
    assert urgent.memory_bytes == pytest.approx(1000 * 2**20, abs=1e6)
    cluster.call("scontrol", "update", "NodeName=n1", "AvailableFeatures=daybreak/usd-per-hour=2.5,fast")
    wait(lambda: any("fast" in node.features for node in client.nodes()))
    assert {each.usd_per_hour for each in Slurm().machines()} == {2.5}  # the highest of its nodes
    handle = Slurm().submit(job("exit 0", machine="urgent-1cpu"))
    assert end(Slurm(), handle) == "succeeded"
    assert all(ok for _, ok, _ in Slurm().preflight(()))


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", ("", 0)),
        ("gpu:2", ("", 2)),
        ("gpu:a100:4(S:0-1),craynetwork:4", ("a100", 4)),
        ("shard:8,gpu:l4:1", ("l4", 1)),
        ("gpu:nvidia_h100:3,gpu:l4:1", ("nvidia_h100+l4", 4)),
    ],
)
def test_gpus_are_read_from_generic_resources(gres, gpus):
    assert client.gpus(gres) == gpus
