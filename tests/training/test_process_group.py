"""Workers on unlike devices form one group over what joins all of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from pipeline.training.process_group import exchanged, transport

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def test_each_worker_learns_the_devices_of_all():
    devices = ["NVIDIA A100", "CPU", "NVIDIA L4"]
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        heard = pool.map(
            lambda rank: exchanged(devices[rank], store=store, rank=rank, world_size=3), (2, 1, 0)
        )
        assert set(heard) == {tuple(devices)}


@pytest.mark.parametrize(
    ("names", "by_gpu", "by_cpu"),
    [
        (("NVIDIA A100", "NVIDIA L4"), "nccl", None),
        (("NVIDIA L4", "CPU"), "gloo", "gloo"),
        (("CPU", "CPU"), None, "gloo"),
    ],
)
def test_a_group_with_a_cpu_in_it_is_over_gloo_for_all(names, by_gpu, by_cpu):
    assert by_gpu in (None, transport(GPU, names))
    assert by_cpu in (None, transport(CPU, names))
