"""Counts submissions that end in two jobs, a job left or a wrong state, on a real Slurm of two nodes.

What is done to jobs is in benchmarks/disturbed.py, the cluster is tests/backends/real_slurm.py. Between
the backend and Slurm's commands stand programs of the same names that refuse, lose an answer, hang, act late,
or say another word for a state than Slurm does where this machine cannot bring that state about (such as
OUT_OF_MEMORY, which needs cgroups). A controller that is away for 90 s is one that misses 90 looks.

QUICK=1: each eighth line, a tenth of the trials, each fault once.
"""

import os
import shutil
import socketserver
import threading
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
from daybreak.extensions.slurm import slurm_client
from daybreak.extensions.slurm.slurm import Slurm
from tests.backends import real_slurm, rented
from tests.backends.conftest import MACHINES
from tests.backends.rented import wait
from tests.backends.together import TrainingNight
from tests.training.nights import ROOT

PARTS = 2  # clusters
LATE_S = 0.5  # until a request that is late acts
COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")
# What stands before each of Slurm's commands. "word A B": Slurm says A, and the answer says B.
PROGRAM = """#!/bin/bash
exec 3<>/dev/tcp/127.0.0.1/{port}
echo "{name} $*" >&3
read -r how first second <&3
exec 3>&-
case "$how" in
  refuse) echo "{name}: error: Unable to contact slurm controller (connect failure)" >&2; exit 1;;
  hang) sleep 3; exit 1;;
  "hang after") {real} "$@"; sleep 3;;
  lost) {real} "$@" > /dev/null; echo "{name}: error: Socket timed out on send/recv operation" >&2; exit 1;;
  late)
    (sleep {late}; {real} "$@" > /dev/null 2>&1; exec 3<>/dev/tcp/127.0.0.1/{port}; echo acted >&3) <&0 &
    sleep 3; exit 1;;
  nothing) exit 0;;
  word) {real} "$@" | sed "s/$first/$second/";;
  *) exec {real} "$@";;
esac
"""


class Slurms(Place):
    """The cluster, the programs before its commands, and a folder for the file of its machines."""

    hows = ("refuse", "hang", "hang after", "lost", "late")

    def __init__(self, cluster: real_slurm.Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.how: Callable[[str], str] = lambda command: ""
        self.calls: list[str] = []
        self.num_late = 0  # requests that are on their way

    # What the programs ask

    def answer(self, command: str) -> str:
        """How that command goes; a request that was late says when it has acted."""
        if command.strip() == "acted":
            self.num_late -= 1
            return ""
        self.calls.append(command)
        how = self.how(command)
        self.num_late += how == "late"
        return how

    # What the measures ask

    def backend(self) -> Backend:
        return Slurm(machines=str(self.folder / "machines.csv"))

    def impatient(self) -> Backend:
        slurm_client.CALL_S = 0.3  # in a process that ends soon
        return self.backend()

    def job(self, folder: Path, *, name: str, script: str = "exec sleep 60", **given: Any) -> Job:
        return rented.job(folder, script, name=name, **{"machine": "node", "strategy": "spot", **given})

    def alone(self, name: str, handle: str) -> bool:
        jobs = slurm_client.listed()
        live = [job.id for job in jobs if job.phase != "over" and job.name.endswith(f"-{name}")]
        return live == [handle.partition(" ")[0]]

    def let_late_ones_act(self) -> None:
        wait(lambda: not self.num_late)

    def num_live(self) -> int:
        return sum(job.phase != "over" for job in slurm_client.listed() if job.name.startswith("daybreak"))

    @contextmanager
    def troubled(self, how: How, *, command: str = "") -> Iterator[None]:
        self.how = lambda called: how() if called.startswith(command) else ""
        try:
            yield
        finally:
            self.how = lambda called: ""

    def num_calls(self) -> int:
        return len(self.calls)

    @contextmanager
    def wait_in_queue(self) -> Iterator[None]:
        held = MACHINES.replace("--partition=scavenge", "--partition=scavenge --hold")
        (self.folder / "machines.csv").write_text(held)
        try:
            yield
        finally:
            self.cluster.clear()
            (self.folder / "machines.csv").write_text(MACHINES)

    def rental(self, num_machines: int) -> Rental:
        return Rental(machine="node", num_machines=num_machines, strategy="spot")

    def ends(self) -> Sequence[End]:
        def said(word: str) -> Callable[[str], None]:
            return partial(self._cancel, word=word)

        def asked(options: str) -> Callable[[], Any]:
            return partial(self._options, options)

        return (
            End("done", "succeeded", script="exit 0", waits=True),
            End("an exit status of its own", "failed", words="status 3", script="exit 3", waits=True),
            End("SIGKILL", "preempted", words="killed", script="kill -9 $$", waits=True),
            End("SIGSEGV", "preempted", words="killed", script="kill -11 $$", waits=True),
            End("preempted", "preempted", words="preempted", act=lambda job: self.cluster.take_away()),
            End("its node failed", "preempted", words="node of job", act=self._lose_node),
            End("cancelled by a person", "preempted", words="cancelled", act=self._cancel),
            End("killed by Slurm's own signal", "preempted", words="cancelled", act=self._kill),
            End("over its time", "preempted", words="after its time", act=said("TIMEOUT")),
            End("out of memory", "failed", words="ran out of the memory", act=said("OUT_OF_MEMORY")),
            End("its node did not boot", "preempted", words="did not boot", act=said("BOOT_FAIL")),
            End("revoked by another cluster", "preempted", words="revoked", act=said("REVOKED")),
            End("not in time", "refused", words="in time", act=said("DEADLINE")),
            End(
                "beyond the limit of its partition",
                "refused",
                words="PartitionTimeLimit",
                waits=True,
                timeout_s=3600,
                around=asked("--partition=brief"),
            ),
            End(
                "no such partition",
                "refused",
                words="partition",
                waits=True,
                around=asked("--partition=none"),
            ),
            End("no such node", "refused", words="node", waits=True, around=asked("--nodelist=n9")),
            End(
                "too much memory", "refused", waits=True, around=asked("--partition=scavenge --mem=999999999")
            ),
            End("suspended, then resumed", "succeeded", script="sleep 2", act=self._suspend),
            End("its node drained", "succeeded", script="sleep 3", act=partial(self._lose_node, to="drain")),
            End("forgotten, done", "succeeded", script="exit 0", waits=True, around=self._forgetful),
            End(
                "forgotten, failed",
                "failed",
                words="status 3",
                script="exit 3",
                waits=True,
                around=self._forgetful,
            ),
            End(
                "the second of two nodes fails",
                "failed",
                words="status 3",
                waits=True,
                rental={"num_machines": 2},
                script='test "$SLURM_NODEID" = 1 && exit 3; exec sleep 60',
            ),
        )

    def _cancel(self, job: str, *, word: str = "") -> None:
        if word:
            self.how = lambda command: f"word CANCELLED {word}" if command.startswith("squeue") else ""
        self.cluster.call("scancel", job)

    def _kill(self, job: str) -> None:
        self.cluster.call("scancel", "--signal=KILL", "--full", job)

    def _lose_node(self, job: str, *, to: str = "down") -> None:
        node = self.cluster.call("squeue", "--noheader", f"--jobs={job}", "--format=%N")
        self.cluster.set_node(node, to)
        wait(lambda: not self._runs(job), timeout_s=60)
        self.cluster.set_node(node, "resume")

    def _suspend(self, job: str) -> None:
        self.cluster.call("scontrol", "suspend", job)
        (handle,) = [each.handle for each in self.backend().live() if each.handle.startswith(f"{job} ")]
        assert self.backend().state(handle) == "queued"
        self.cluster.call("scontrol", "resume", job)

    def _runs(self, job: str) -> bool:
        return any(each.id == job and each.phase != "over" for each in slurm_client.listed())

    @contextmanager
    def _options(self, options: str) -> Iterator[None]:
        path = self.folder / "machines.csv"
        path.write_text(MACHINES.replace("--partition=scavenge", options))
        yield
        path.write_text(MACHINES)

    @contextmanager
    def _forgetful(self) -> Iterator[None]:
        """Slurm forgets the job as soon as it has ended."""
        before = {path for path in self.folder.glob("end*/job/ended/[!.]*")}
        yield
        wait(lambda: {path for path in self.folder.glob("end*/job/ended/[!.]*")} - before)
        self.how = lambda command: "nothing" if command.startswith("squeue") else ""

    def faults(self) -> Sequence[Fault]:
        return (
            Fault("preempted", act=lambda night: self.cluster.take_away()),
            Fault("its node failed", act=lambda night: self._lose_node(self.id_of(night))),
            Fault("its node drained", act=self._drain_meanwhile, restarts=False),
            Fault("controller away for 90 s", act=looks_amid(self.cluster.away, AWAY_S), restarts=False),
            Fault("answers lost", act=looks_amid(lambda: self.troubled(lambda: "lost")), restarts=False),
            Fault(
                "commands refused", act=looks_amid(lambda: self.troubled(lambda: "refuse")), restarts=False
            ),
            Fault("answer to the next submission lost", act=self._lost_answer),
            Fault("queue full", act=self._full),
            Fault("cancelled by a person", act=lambda night: self._cancel(self.id_of(night))),
            Fault("one of two nodes failed", num_machines=2, act=self._fail_one_of_two),
        )

    def id_of(self, night: TrainingNight) -> str:
        """The job that lives."""
        (job,) = [each for each in slurm_client.listed() if each.phase != "over"]
        return job.id

    def _drain_meanwhile(self, night: TrainingNight) -> None:
        node = self.cluster.call("squeue", "--noheader", f"--jobs={self.id_of(night)}", "--format=%N")
        self.cluster.set_node(node, "drain")
        night.be_quick()
        night.finish()
        self.cluster.set_node(node, "resume")

    def _fail_one_of_two(self, night: TrainingNight) -> None:
        job = self.id_of(night)
        self.cluster.set_node("n2", "down")
        wait(lambda: not self._runs(job), timeout_s=60)
        self.cluster.set_node("n2", "resume")

    def _lost_answer(self, night: TrainingNight) -> None:
        first = self.id_of(night)
        with self.troubled(lambda: "lost", command="sbatch"):
            self._cancel(first)
            night.until(
                lambda: sum(each.phase != "over" for each in slurm_client.listed()) and not self._runs(first)
            )

    def _full(self, night: TrainingNight) -> None:
        words = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--time=1", "--wrap", "sleep 30"]
        other = self.cluster.call(*words, "--output=/dev/null")
        wait(
            lambda: self.cluster.call("squeue", "--noheader", f"--jobs={other}", "--format=%T") == "RUNNING",
            timeout_s=60,
        )
        for _ in range(10):
            night.looks()
        self.cluster.call("scancel", other)


@contextmanager
def place(folder: Path, _: int) -> Iterator[Place]:
    """A cluster of two nodes, with programs of ours before Slurm's."""
    (folder / "machines.csv").write_text(MACHINES)
    given = {"SLURM_CONF": str(folder / "slurm" / "slurm.conf"), "PYTHONPATH": str(ROOT)}
    with patch.dict(os.environ, given), real_slurm.cluster(folder / "slurm") as cluster:
        made = Slurms(cluster, folder)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.wfile.write((made.answer(self.rfile.readline().decode()) + "\n").encode())

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            _write_programs(folder / "bin", port=server.server_address[1])
            path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
            with patch.dict(os.environ, PATH=path):
                yield made
            server.shutdown()


def _write_programs(folder: Path, *, port: int) -> None:
    folder.mkdir()
    for name in COMMANDS:
        text = PROGRAM.format(port=port, name=name, real=shutil.which(name), late=LATE_S)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


if __name__ == "__main__":
    if why := real_slurm.missing():
        raise SystemExit(why)
    disturbed.run(
        "slurm_faults",
        place,
        measures=disturbed.ALL,
        parts=PARTS,
        all_targets=disturbed.targets(lines=60, calls=20),
    )
