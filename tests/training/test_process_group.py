"""Workers on unlike devices form one group over the backend that all devices share."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from daybreak.training import process_group
from daybreak.training.process_group import exchanged


def test_each_worker_learns_the_devices_of_all():
    devices = ["NVIDIA A100", "CPU", "NVIDIA L4"]
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        heard = pool.map(
            lambda rank: exchanged(devices[rank], store=store, rank=rank, world_size=3), (2, 1, 0)
        )
        assert set(heard) == {tuple(devices)}


@pytest.mark.parametrize(
    ("own", "num_here", "other", "transport"),
    [
        ("cuda", 1, "nccl NVIDIA A100", "nccl"),
        ("cuda", 1, "gloo CPU", "gloo"),
        ("cpu", 1, "nccl NVIDIA A100", "gloo"),
        ("cuda", 2, "nccl NVIDIA A100", "gloo"),  # two workers share a GPU
        ("cpu", 2, "gloo CPU", "gloo"),
    ],
)
def test_a_group_is_over_nccl_where_each_worker_has_a_gpu_of_its_own(
    monkeypatch, own, num_here, other, transport
):
    formed = []
    store = dist.HashStore()
    store.set(f"{process_group.KEY}/1", other)
    monkeypatch.setattr(process_group, "rendezvous", lambda *_, **__: iter([(store, 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda over, **_: formed.append(over))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(num_here))
    names = process_group.form(torch.device(own), rank=0, world_size=2, timeout=timedelta(seconds=1))
    assert (formed, names) == ([transport], ("NVIDIA L4" if own == "cuda" else "CPU", other.split(" ", 1)[1]))
