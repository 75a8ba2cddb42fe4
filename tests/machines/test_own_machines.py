"""A team's own machines: the meaning of a line of the file, and the faults of a line."""

import pytest

from daybreak.contract.errors import ParamsError
from daybreak.machines import catalog
from daybreak.machines.own_machines import read
from daybreak.prediction.update_time import LATENCY_S, _sync_s
from tests.planning.jobs import profile

HEAD = "name,device,num_devices,vcpus,memory_gb,count,options,usd_per_hour,spot_options,spot_usd_per_hour\n"
UNKNOWN = (
    "name,device,num_devices,vcpus,memory_gb,device_memory_gb,flops_per_s,bandwidth_gb_per_s,link_gb_per_s\n"
)


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        path = tmp_path / "machines.csv"
        path.write_text(text)
        return path

    return write


def test_a_device_of_the_catalog_brings_its_speed_and_cpus_are_as_fast_as_they_have_cores(written):
    a100, cpu = read(
        written(
            HEAD + "a100,A100 80GB,4,64,512,8,--partition=gpu --gres=gpu:4,6.00,--partition=spare,1.50\n"
            "cpu,cpu,0,32,128,40,,,,\n"
        )
    )
    known = next(machine for machine in catalog.rented() if machine.device == "A100 80GB")
    assert a100.machine.speeds.flops_per_s == known.speeds.flops_per_s
    assert a100.machine.device_memory_bytes == known.device_memory_bytes
    assert (a100.machine.num_workers, a100.machine.gpus, a100.machine.count) == (4, "4 x A100 80GB", 8)
    assert a100.words("on-demand") == ("--partition=gpu", "--gres=gpu:4")
    assert a100.words("spot") == ("--partition=spare",)
    assert [a100.machine.price(each) for each in ("on-demand", "spot", "flex-start")] == [6.0, 1.5, None]
    small = next(machine for machine in catalog.rented() if machine.device == "cpu")
    assert cpu.machine.speeds.flops_per_s == pytest.approx(32 / small.vcpus * small.speeds.flops_per_s)
    assert cpu.machine.device_memory_bytes == cpu.machine.memory_bytes == 128_000_000_000
    assert (cpu.machine.usd_per_hour, cpu.machine.spot) == (0.0, False)


def test_a_device_that_the_catalog_does_not_know_says_its_speed_itself(written):
    (own,) = read(written(UNKNOWN + "gaudi,Gaudi 3,8,96,1000,128,1.8e15,3700,75\n"))
    assert own.machine.speeds.flops_per_s == 1.8e15
    assert own.machine.speeds.bandwidth_bytes_per_s == 3.7e12
    with pytest.raises(
        ParamsError, match=r"line 2: the catalog does not know Gaudi 3; add the column flops_"
    ):
        read(written(UNKNOWN + "gaudi,Gaudi 3,8,96,1000,128,,3700,75\n"))


@pytest.mark.parametrize(
    ("num_devices", "link", "across", "rate"),
    [(2, "12", 1, 12e9), (1, "", 2, 1.25e9), (2, "12", 2, 1.25e9)],
)
def test_workers_on_a_device_that_the_catalog_does_not_know_sum_gradients_by_its_link_or_ethernet(
    written, num_devices, link, across, rate
):
    line = f"rig,RTX 3090,{num_devices},32,128,24,3.5e13,936"
    (own,) = read(written(f"{UNKNOWN}{line},{link}\n"))
    job = profile()
    latency_s = LATENCY_S if across > 1 else LATENCY_S / 5
    took_s = _sync_s(job, own.machine, num_machines=across)
    assert took_s == pytest.approx(job.sync_bytes.fixed / rate + 2 * latency_s)
    if num_devices > 1:
        with pytest.raises(
            ParamsError, match=r"line 2: .* how fast 2 x RTX 3090 reach each other; add the col"
        ):
            read(written(f"{UNKNOWN}{line},\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,device\n", "lacks memory_gb and lacks num_devices and lacks vcpus; its columns are name, "),
        (HEAD.replace("options,", "optoins,", 1), "has optoins; its columns are"),
        (HEAD, "names no machine; write a line"),
        (HEAD + "a,cpu,0,4,16,two,,,,\n", r"line 2: count is 'two'; write a number that is not negative"),
        (HEAD + "a,cpu,0,4,16,1.5,,,,\n", r"line 2: count is 1\.5; write a whole number"),
        (HEAD + "a,cpu,0,4,16,1,,-1,,\n", r"line 2: usd_per_hour is '-1'; write a number that is not neg"),
        (HEAD + "a,cpu,0,,16,1,,,,\n", "line 2: vcpus is empty; fill it in"),
        (HEAD + "a,L4,0,4,16,1,,,,\n", "line 2: 0 devices L4; a machine without GPUs has 0 devices cpu"),
        (HEAD + 2 * "a,cpu,0,4,16,1,,,,\n", "line 3: the name a is taken"),
        (HEAD + "a,cpu,0,4,16,1,,,--comment='x,\n", "line 2: spot_options is .* check its quotes"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_with_its_line(written, text, message):
    with pytest.raises(ParamsError, match=message):
        read(written(text))


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(ParamsError, match=r"machines\.csv, the file of your machines, is missing; write it"):
        read(tmp_path / "machines.csv")


def test_a_file_of_a_spreadsheet_may_begin_with_a_byte_order_mark(written):
    (own,) = read(written("\ufeffname,device,num_devices,vcpus,memory_gb\nrack,cpu,0,4,16\n"))
    assert own.machine.name == "rack"
