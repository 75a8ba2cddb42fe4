"""A Slurm cluster of two nodes on this machine: its own daemons, in a folder of the test."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.backends.rented import wait

NEEDED = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
MinJobAge={kept_s}
KillWait=5
MessageTimeout=2
SlurmdTimeout=300
SchedulerParameters=sched_min_interval=100000,bf_interval=1,batch_sched_delay=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 RealMemory=1000
PartitionName=scavenge Nodes=n1,n2 Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=n1,n2 PriorityTier=10 MaxTime=INFINITE State=UP
PartitionName=brief Nodes=n1,n2 PriorityTier=1 MaxTime=2 State=UP
"""


@dataclass
class Cluster:
    """The daemons, and where they are configured."""

    folder: Path

    def call(self, *words: str) -> str:
        """What a command of Slurm prints."""
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    def take_away(self) -> None:
        """Preempt whatever runs in `scavenge`, by a job that is more urgent and takes both nodes."""
        self.call(
            "sbatch", "--partition=urgent", "--nodes=2", "--time=1", "--wrap", "true", "--output=/dev/null"
        )

    def occupy(self, node: str) -> str:
        """Take a node for a more urgent job, from whatever runs there in `scavenge`; returns its id."""
        words = ["--partition=urgent", f"--nodelist={node}", "--job-name=urgent", "--output=/dev/null"]
        return self.call("sbatch", "--parsable", *words, "--wrap", "exec sleep 600")

    def hurry(self, task: str) -> None:
        """Have a task that was queued again begin without the two minutes that Slurm would wait."""
        if self.call("squeue", "--noheader", f"--jobs={task}", "--states=PENDING"):
            with suppress(subprocess.CalledProcessError):  # it may begin in between
                self.call("scontrol", "update", f"JobId={task}", "StartTime=now")

    def set_node(self, name: str, state: str) -> None:
        """Take a node down, drain it, or resume it."""
        self.call("scontrol", "update", f"NodeName={name}", f"State={state}", "Reason=test")

    def clear(self) -> None:
        """End all jobs, and wait until both nodes are idle."""
        self.call("scancel", "--me")
        wait(self.is_idle)

    def is_idle(self) -> bool:
        """Whether nothing runs on either node."""
        idle = self.call("sinfo", "--noheader", "--states=idle", "--partition=urgent", "--format=%D")
        return idle == "2" and not self.call("squeue", "--noheader")

    @contextmanager
    def away(self) -> Iterator[None]:
        """The controller answers nobody meanwhile."""
        pid = int((self.folder / "slurmctld.pid").read_text())
        os.kill(pid, signal.SIGTERM)
        wait(lambda: not Path(f"/proc/{pid}").exists())
        try:
            yield
        finally:
            self.start_controller()

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        subprocess.run(["slurmctld"], check=True, capture_output=True)
        wait(lambda: subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode == 0)


def missing() -> str:
    """What a cluster here would need and this machine has not; "" for nothing."""
    programs = [name for name in NEEDED if shutil.which(name) is None]
    if programs:
        return f"{', '.join(programs)} of Slurm are not installed (apt-get install slurm-wlm)"
    return "" if os.geteuid() == 0 else "the daemons of Slurm run as root"


@contextmanager
def cluster(folder: Path, *, kept_s: int = 300) -> Iterator[Cluster]:
    """A cluster whose nodes are idle; SLURM_CONF has to name its slurm.conf."""
    (folder / "state").mkdir(parents=True)
    text = CONF.format(
        host=socket.gethostname().partition(".")[0], folder=folder, ports=_free(3), kept_s=kept_s
    )
    (folder / "slurm.conf").write_text(text)
    made = Cluster(folder)
    try:
        made.start_controller()
        for node in ("n1", "n2"):
            subprocess.run(["slurmd", "-N", node], check=True, capture_output=True)
        wait(made.is_idle)
        yield made
    finally:
        subprocess.run(["scancel", "--me"], capture_output=True, check=False, timeout=30)
        for path in sorted(folder.glob("slurm*.pid"), reverse=True):
            _end(int(path.read_text()))


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)


def _free(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
