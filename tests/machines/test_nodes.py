"""Machines of a cluster's nodes: which of the catalog's devices their GPUs are."""

import pytest

from daybreak.machines.nodes import device


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("Tesla-T4", "T4"),
        ("nvidia-l4", "L4"),
        ("NVIDIA-A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA-A100-PCIE-40GB", "A100 40GB"),
        ("nvidia-tesla-a100", "A100 40GB"),
        ("nvidia-h100-mega-80gb", "H100"),
        ("nvidia-h200-141gb", "H200"),
        ("nvidia_b200", "B200"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX PRO 6000"),
        ("NVIDIA-H100-PCIe", ""),  # slower than the catalog's
        ("NVIDIA-L40S", ""),
        ("NVIDIA-GB200", ""),
        ("a100", ""),  # of which size
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", ""),
        ("NVIDIA-L4-SHARED", ""),
        ("", ""),
    ],
)
def test_a_gpu_is_that_of_the_catalog_or_none_of_it(product, name):
    assert device(product) == name
