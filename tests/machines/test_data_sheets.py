"""A device is found in the catalog by the name of its driver, and counts by its own data sheet."""

import pytest

from daybreak.machines.data_sheets import fastest, on_sheet, sheet


@pytest.mark.parametrize(
    ("name", "tera_flops", "giga_bytes"),
    [
        ("Tesla T4", 65, 320),
        ("NVIDIA L4", 121, 300),
        ("NVIDIA A100-SXM4-40GB", 312, 1600),
        ("NVIDIA A100-SXM4-80GB", 312, 1900),
        ("NVIDIA H100 80GB HBM3", 989, 3350),
        ("NVIDIA H200", 989, 4800),
        ("NVIDIA B200", 2250, 8000),
        ("TPU v5litepod-8", 197, 819),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 468, 1597),
    ],
)
def test_a_device_counts_by_its_own_sheet_whatever_was_measured(name, tera_flops, giga_bytes):
    assert on_sheet(name, flops_per_s=1.0, bytes_per_s=2.0) == (tera_flops * 1e12, giga_bytes * 1e9)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA L40S",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA GH200 480GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "CPU",
        "",
    ],
)
def test_a_device_that_the_catalog_lacks_counts_by_what_was_measured(name):
    assert sheet(name) is None
    assert on_sheet(name, flops_per_s=0.89, bytes_per_s=0.9) == (1.0, 1.0)


def test_the_fastest_device_is_one_that_can_be_rented():
    assert fastest().device == "H200"  # B200 and TPU7x have no price
