"""Runs a job on a team's Slurm cluster.

The folder of nights is on a file system that the nodes share, as is usual on a cluster, and the virtual
environment of this process is there, too. The labels of a job are its comment.

Why a job ended is Slurm's word for its state, then the exit status that its first node has written. The
controller forgets a job some minutes after its end; Slurm's accounts, where the cluster keeps any, then still
have that word. Unlike machines are a heterogeneous job, with a part for each kind; all parts begin together,
and the first of them runs the batch script. Where a job may go on with fewer machines it is an array, with a
task for each: tasks begin as nodes are free, and one that was lost is queued again.
"""

import json
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil
from pathlib import Path
from typing import Literal

from daybreak.backends.cluster import Cluster
from daybreak.backends.faults import CANCELLED, COMMON, GOES_ON, NEXT, Fault
from daybreak.backends.place import AT_ONCE, SLACK_S, JobRequest, Refused, Rented, Unreachable
from daybreak.backends.submission_journal import Submission
from daybreak.contract import clock
from daybreak.contract.backend import label
from daybreak.contract.errors import ParamsError
from daybreak.extensions.slurm import slurm_client as client
from daybreak.extensions.slurm.slurm_client import Listed, ListedNode
from daybreak.machines.nodes import PRICE, Node, usd_per_hour
from daybreak.storage.home import Home
from daybreak.training import gpus

log = logging.getLogger(__name__)

LOG, TASK_LOG = "log.txt", "log-%a.txt"  # the latter of each task of an array
LEAST = "least"  # fact of a job: with how many machines it goes on
ENTRYPOINT = "daybreak.extensions.slurm.slurm_node"
ON_EACH_NODE = ("--kill-on-bad-exit=1", "--ntasks-per-node=1")  # of srun
# What a state of Slurm that ended a job means. FAILED: by its exit status.
CAUSES = {
    "PREEMPTED": "preempted",
    "REVOKED": "revoked",
    "NODE_FAIL": "node failed",
    "BOOT_FAIL": "no boot",
    "CANCELLED": CANCELLED,
    "TIMEOUT": "overtime",
    "OUT_OF_MEMORY": "out of memory",
    "DEADLINE": "too late",
}


class Slurm(Cluster):
    """Batch jobs of Slurm."""

    place = "Slurm"
    joins = True

    def __init__(
        self,
        *,
        machines: str = "",
        options: Sequence[str] = (),
        min_machines: int = 0,
        home: Home | None = None,
    ) -> None:
        """Keeps the file of the team's machines, and options that each job has, such as an account.

        `min_machines` is with how many nodes a job of more begins, and goes on; 0: with all.
        """
        super().__init__(machines=machines, retry=replace(AT_ONCE, first_pause_s=0.8), home=home)
        self._options, self._min_machines = tuple(options), min_machines
        self.faults = {
            **COMMON,
            "not taken": Fault(
                state="refused",
                text=f"Slurm does not take job {{job}} on {{machine}}{{said}}; look at its options in "
                f"{self.file}; {NEXT}",
            ),
            "never": Fault(
                state="refused",
                patience_s=0.0,
                text=f"Slurm says that job {{job}} can never run on {{machine}}{{said}}; fix its options in "
                f"{self.file}; {NEXT}",
            ),
            "too late": Fault(
                state="refused", text=f"job {{job}} could not have ended in time on {{machine}}; {NEXT}"
            ),
            "node failed": Fault(state="preempted", text=f"a node of job {{job}} failed; {GOES_ON}"),
            "no boot": Fault(state="preempted", text=f"a node for job {{job}} did not boot; {GOES_ON}"),
            "revoked": Fault(
                state="preempted",
                text=f"job {{job}} was revoked by the cluster that it was sent from; {GOES_ON}",
            ),
            "out of memory": Fault(
                state="failed",
                final=True,
                text=f"job {{job}} ran out of the memory that Slurm gives it on {{machine}}; ask for more by "
                f"--mem in its options in {self.file}, or lower train.batch_size",
            ),
        }

    def nodes(self) -> Sequence[Node]:
        """Returns the nodes that take jobs, in each of their partitions; a job has them whole."""
        made = []
        for node in client.nodes():
            words = [f"--partition={node.partition}", "--exclusive", f"--mincpus={node.cpus}", "--mem=0"]
            if node.num_gpus:
                words.append(f"--gres=gpu:{node.gpu}:{node.num_gpus}".replace("::", ":"))
            made.append(
                Node(
                    kind=node.partition,
                    product=node.gpu,
                    num_devices=node.num_gpus,
                    vcpus=node.cpus,
                    memory_bytes=node.memory_bytes,
                    options=tuple(words),
                    usd_per_hour=_price(node),
                )
            )
        return made

    def make(self, request: JobRequest) -> Rented:
        """Submits the batch script."""
        environment = _environment(request)
        try:
            id = client.submit(self._options_of(request), self._script(request), environment=environment)
        except Refused:  # Slurm also reports a refusal for an accepted job whose reply was lost
            there = self.find((), job=request.job.name, attempt=request.attempt)
            alive = [job for job in there if job.is_alive]  # a refused job is listed too, as failed
            if not alive:
                raise
            return alive[0]
        return Rented(name=id, state="queued", created_at=request.now, attempt=request.attempt)

    def find(self, regions: Iterable[str], **labels: str) -> list[Rented]:
        """Returns the jobs of this home with these labels."""
        name = _name(self.home_token, labels["job"]) if "job" in labels else ""
        wanted = {"daybreak": self.home_token, **labels}
        return [_rented(job) for job in client.listed(name=name) if wanted.items() <= _facts(job).items()]

    def get(self, name: str) -> Rented | None:
        """Returns the job of that id, None where Slurm forgot it; queues lost tasks of an array again."""
        job = next((job for job in client.listed() if job.id == name), None)
        for task in job.lost if job and not _is_ended(job) else ():
            try:
                client.requeue(task)
            except Refused as refused:  # as while its node still cleans up: the next look asks again
                log.info("task %s is not queued again yet: %s", task, refused)
        return _rented(job) if job else None

    def end(self, name: str) -> None:
        """Asks Slurm to end the job."""
        client.cancel(name)

    def explained(self, rented: Rented | None, submission: Submission, folder: Path) -> Rented:
        """Returns an ended job with the cause, from Slurm or the exit status that the first node wrote."""
        rented = rented or self._accounted(submission)
        path = _ended(folder, submission.token)
        status = int(path.read_text()) if path.exists() else None
        ended = super().explained(rented, submission, folder)
        if status is not None and rented is None:
            ended = replace(ended, ended_at=datetime.fromtimestamp(path.stat().st_mtime, UTC))
        if status == 0:
            return replace(ended, state="succeeded")
        by_status = "killed" if status is None or status > 128 else "error"
        known = ended.cause if rented and ended.cause in self.faults else by_status
        return replace(ended, status=status, cause=known)

    def _accounted(self, submission: Submission) -> Rented | None:
        """Returns a job that the controller has forgotten, from Slurm's accounting; None if unknown there."""
        job = client.accounted(submission.handle, name=_name(self.home_token, submission.job))
        return _rented(job) if job and job.phase == "over" else None

    @property
    def shares_disk(self) -> bool:
        """Returns True: the nodes share the file system of the nights."""
        return True

    def log_of(self, name: str, folder: Path) -> str:
        """Returns the file that all attempts write to; of an array, the pattern of its tasks' files."""
        return str(folder / ("log*.txt" if self._min_machines else LOG))

    def preflight(self, regions: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """Yields whether Slurm answers, and whether it would take a job on each machine."""
        try:
            for each in self.own():
                ways = {each.machine.name: each.options}
                if each.machine.spot:
                    ways[f"{each.machine.name} as spot"] = each.spot_options
                for name, words in ways.items():
                    why = client.would_take([*self._options, *words, "--nodes=1"])
                    text = f"{name}: {why or 'Slurm would take a job'}"
                    if why:
                        text += f"; fix its options in {self.file}"
                    yield "Slurm", not why, text
        except Unreachable as error:
            yield "Slurm", False, f"{error}; run this where sbatch works"
        except ParamsError as error:
            yield "Slurm", False, str(error)

    def owns(self, name: str) -> bool:
        """Returns whether it is a number, as ids of Slurm are."""
        return name.isdigit()

    def _options_of(self, request: JobRequest) -> list[str]:
        """Returns the options of all parts of the job, with a colon between two."""
        job, folder = request.job, request.folder
        facts = {**request.labels, "night": label(job.night), "folder": str(folder)}
        is_array = self._is_array(request)
        if is_array:
            facts[LEAST] = str(self._min_machines)
        minutes = max(1, ceil((request.run_s + SLACK_S) / 60))
        of_each = [
            f"--job-name={_name(self.home_token, job.name)}",
            "--requeue" if is_array else "--no-requeue",
            f"--time={minutes}",
            "--open-mode=append",
            f"--output={folder / (TASK_LOG if is_array else LOG)}",
            f"--chdir={Path.cwd()}",
            "--export=ALL",
            f"--comment={json.dumps(facts)}",
        ]
        words: list[str] = []
        for pool in job.rental.pools:
            words += [":"] if words else []
            words += [*self._options, *self.options(pool.machine, job.rental.strategy)]
            words += ["--nodes=1", f"--array=0-{pool.num_machines - 1}"] if is_array else []
            words += [*([] if is_array else [f"--nodes={pool.num_machines}"]), *of_each]
        return words

    def _is_array(self, request: JobRequest) -> bool:
        """Returns whether the job may go on with fewer machines."""
        rental = request.job.rental
        return 0 < self._min_machines < rental.num_machines and not rental.others

    def _script(self, request: JobRequest) -> str:
        """Returns the batch script: the entry point on the first node, or by srun on each."""
        if len(request.machines) == 1:
            least = self._min_machines if self._is_array(request) else 0
            words = _words(request, num_workers=request.job.num_workers, least=least)
            if request.job.rental.num_machines > 1 and not least:
                words = ["srun", *ON_EACH_NODE, *words]
            return f"#!/bin/sh\nexec {shlex.join(words)}\n"
        words = ["srun"]
        for number, machine in enumerate(request.machines):
            given = {gpus.MACHINE: machine.name, gpus.GPUS: machine.gpus}  # of this part, none where it is ""
            num_workers = machine.num_processes if request.job.num_workers else 0
            words += [":"] if number else []
            words += [f"--het-group={number}", *ON_EACH_NODE, "env"]
            words += [f"{name}={value}" for name, value in given.items()]
            words += _words(request, num_workers=num_workers)
        return f"#!/bin/sh\nexec {shlex.join(words)}\n"


def _price(node: ListedNode) -> float:
    """Returns the price of a node by the hour, from the node's feature; 0 without that feature."""
    said = (word.partition("=") for word in node.features)
    text = next((price for name, _, price in said if name == PRICE), "0")
    return usd_per_hour(text, where=f"feature {PRICE} of node {node.name}")


def _rented(job: Listed) -> Rented:
    """Returns a job as Slurm lists it."""
    facts, over = _facts(job), job.phase == "over"
    waits = job.phase == "waits" or (not over and job.num_running < int(facts.get(LEAST, 0)))
    started_at = None if waits else job.started_at
    cause = CAUSES.get(job.state, "") if over else "never" if waits and job.reason in client.NEVER else ""
    alive: Literal["queued", "running"] = "queued" if waits else "running"
    created_at = job.submitted_at or clock.utc()
    return Rented(
        name=job.id,
        created_at=created_at,
        attempt=facts.get("attempt", ""),
        job=facts.get("job", ""),
        state="succeeded" if job.state == "COMPLETED" else "ended" if over else alive,
        night=facts.get("night", ""),
        folder=facts.get("folder", ""),
        cause=cause,
        since=created_at,
        said=job.reason if waits and job.reason != "None" else "",
        there_at=started_at,
        started_at=started_at,
        ended_at=job.ended_at if over else None,
    )


def _name(home: str, job: str) -> str:
    return f"daybreak-{home}-{job}"


def _words(request: JobRequest, *, num_workers: int, least: int = 0) -> list[str]:
    """Returns the command of one node; `least`: with how many the job goes on."""
    job, ended = request.job, _ended(request.folder, request.attempt)
    return [
        sys.executable,
        "-m",
        ENTRYPOINT,
        "--until",
        str(request.until),
        "--workers",
        str(num_workers),
        "--ended",
        str(ended),
        *(["--least", str(least)] if least else []),
        "--",
        job.module,
        *job.arguments,
    ]


def _environment(request: JobRequest) -> dict[str, str]:
    """Returns the environment for sbatch, which the job inherits; the job's own variables win."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_JOB")}
    return {**own, **request.job.environment, "DAYBREAK_ATTEMPT": request.attempt}


def _facts(job: Listed) -> dict[str, str]:
    """Returns the facts in the job's comment; nothing for a job that no home of nights submitted."""
    try:
        facts = json.loads(job.comment)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def _ended(folder: Path, attempt: str) -> Path:
    return folder / "ended" / attempt


def _is_ended(job: Listed) -> bool:
    """Returns whether a node has written that the whole job has ended, though others still run."""
    facts = _facts(job)
    return _ended(Path(facts["folder"]), facts["attempt"]).exists()
