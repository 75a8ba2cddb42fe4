"""Plans use the machines that a backend lists, whoever wrote the backend and whatever the name."""

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from daybreak import runner
from daybreak.backends.local import Local
from daybreak.contract import records
from daybreak.contract.backend import Backend, Job, JobState
from daybreak.contract.errors import ParamsError, PlanError
from daybreak.contract.machine import Machine
from daybreak.contract.record_parts import Rental
from daybreak.contract.record_types import Plan
from daybreak.extensions.slurm.slurm import Slurm
from daybreak.extensions.vertex.vertex import Vertex
from daybreak.machines.catalog import rented
from daybreak.storage.home import Home
from tests.planning.jobs import DATASET, night, profile

PARAMS = """\
source: some.module:Class
workload: some.module:Class
backend: {backend}
plan: {{machines: [{machines}], spot: false}}
train: {{epochs: 1, batch_size: 256}}
"""
G2 = next(each for each in rented() if each.name == "g2-standard-8")
RACK = replace(G2, name="rack-9", region="", usd_per_hour=0.25, spot=False, flex=False, prices=())


class Cellar(Backend):
    """A team's own backend: it rents one machine that no catalog knows."""

    def submit(self, job: Job) -> str:
        return job.folder

    def state(self, handle: str) -> JobState:
        return "running"

    def cancel(self, handle: str) -> None:
        pass

    def machines(self) -> Sequence[Machine]:
        return (RACK,)

    def logs(self, handle: str) -> str:
        return f"ssh rack-9 less {handle}/log.txt"


class Ours(Vertex):
    """Vertex AI with a discount, for one machine only."""

    def machines(self) -> Sequence[Machine]:
        named = (each for each in super().machines() if each.name == "g2-standard-8")
        return tuple(replace(each, usd_per_hour=0.1) for each in named)


@pytest.fixture(autouse=True)
def _in_a_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)  # the home of a ledger
    monkeypatch.chdir(tmp_path)
    for record in (night(hours=2), DATASET, profile(step_s=1e-2)):
        records.write(record, records.RUN)


def planned(backend: str, machines: str) -> Plan:
    Path("params.yaml").write_text(PARAMS.format(backend=backend, machines=machines))
    plan = runner.run(Home.here(), "plan")
    assert isinstance(plan, Plan)
    return plan


def test_a_teams_own_machine_is_planned_and_those_of_others_are_only_told_of() -> None:
    plan = planned(f"{__name__}:Cellar", "local, rack-9, g2-standard-4")
    assert plan.rental == Rental(machine="rack-9", num_machines=plan.rental.num_machines)
    assert plan.usd_per_hour == 0.25
    others = {o.rental.machine: o.why_not for o in plan.reasons.options if o.rental.machine != "rack-9"}
    assert others == dict.fromkeys(("local", "g2-standard-4"), "the backend does not have it")
    assert all(placement.rental.machine == "rack-9" for placement in plan.fallbacks)


def test_a_subclass_of_vertex_is_planned_for_by_what_it_has() -> None:
    use = f'{{use: "{__name__}:Ours", project: p, image: i}}'
    plan = planned(use, "local, g2-standard-4, g2-standard-8")
    assert plan.rental.machine == "g2-standard-8"
    assert plan.usd_per_hour == pytest.approx(0.1 + 200 * 0.1955 / 730)  # and its boot disk


def test_where_the_backend_has_none_of_the_machines_it_is_said_what_it_has() -> None:
    with pytest.raises(PlanError, match=r"none of them; add one that it has \(rack-9\) to plan.machines"):
        planned(f"{__name__}:Cellar", "g2-standard-4")


SERVER = "name,device,num_devices,vcpus,memory_gb,usd_per_hour,spot_options\nlocal,{},64,{},--x\n"
LOCAL = "{use: 'daybreak:Local', machines: machines.csv}"


def test_a_server_of_one_s_own_is_a_line_of_the_file_which_other_backends_leave_out(tmp_path):
    records.write(profile(step_s=1e-4), Path("data/run"))
    Path("machines.csv").write_text(SERVER.format("cpu,0", "4,0.5") + "rack,L4,1,8,64,0.1,\n")
    plan = planned(LOCAL, "local")
    assert (plan.rental, plan.usd_per_hour, plan.reasons.price.source) == (
        Rental(machine="local"),
        0.5,
        "machines.csv",
    )
    assert plan.forecast.expected_usd == pytest.approx(0.5 * plan.forecast.expected_s / 3600, rel=0.01)
    assert [each.name for each in Slurm(machines="machines.csv").machines()] == ["rack"]
    (here,) = Local(machines="machines.csv").machines()
    assert (here.memory_bytes, here.spot) == (4e9, False)
    Path("machines.csv").write_text("name,device,num_devices,vcpus,memory_gb\nrack,L4,1,8,64\n")
    with pytest.raises(
        ParamsError, match=r"machines\.csv has no machine local, which this machine is called"
    ):
        Local(machines="machines.csv").machines()


def test_a_server_whose_gpus_the_profile_did_not_see_is_not_planned_as_a_cpu(tmp_path):
    Path("machines.csv").write_text(SERVER.format("RTX 4090,2", "128,0.5"))
    with pytest.raises(
        ParamsError, match=r"has 2 x RTX 4090 for this machine, and the profile saw 0 x cpu; "
    ):
        planned(LOCAL, "local")
    seen = profile()
    facts = {**seen.evidence["machine"], "num_devices": 2, "device_memory_bytes": 24e9}
    records.write(replace(seen, device="cuda", evidence={"machine": facts}), Path("data/run"))
    assert planned(LOCAL, "local").gpus == "2 x RTX 4090"  # which each worker looks for


def test_a_file_of_own_machines_is_planned_for_by_its_prices_and_never_beyond_its_count(tmp_path):
    Path("machines.csv").write_text(
        "name,device,num_devices,vcpus,memory_gb,count,usd_per_hour\n"
        "rack,L4,1,8,64,2,0.5\nshelf,T4,1,8,64,4,0.1\n"
    )
    backend = "{use: 'daybreak:Slurm', machines: machines.csv}"
    Path("params.yaml").write_text(
        PARAMS.format(backend=backend, machines="rack, shelf").replace(
            "spot: false", "spot: false, max_machines: 8"
        )
    )
    plan = runner.run(Home.here(), "plan")
    assert isinstance(plan, Plan)
    counts = {}
    for option in plan.reasons.options:
        most = max(counts.get(option.rental.machine, 0), option.rental.num_machines)
        counts[option.rental.machine] = most
    assert plan.rental.machine in ("rack", "shelf")
    assert (plan.rental.region, plan.reasons.price.source) == ("", "machines.csv")
    assert counts["rack"] <= 2
    assert counts["shelf"] <= 4
