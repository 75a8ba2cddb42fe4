"""The memory that a process may still take is the least that its cgroups and the machine leave."""

import pytest

from daybreak.extensions.memory_limits import free_memory
from daybreak.extensions.memory_limits.free_memory import FreeMemory, Left
from daybreak.machines import this_machine

STAT = "anon 5\ninactive_file {0}\nactive_file {1}\ntotal_inactive_file {0}\ntotal_active_file {1}\n"


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_group_decides_and_its_limit_may_move(version, monkeypatch, tmp_path):
    own, root = tmp_path / "own", tmp_path / "memory" if version == 1 else tmp_path
    own.write_text("4:memory:/night/job\n" if version == 1 else "0::/night/job\n")
    limit, usage = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    files = {
        f"night/job/{limit}": str((1 << 63) - 4096) if version == 1 else "max",
        f"night/job/{usage}": "300",
        "night/job/memory.stat": STAT.format(20, 30),
        f"night/{limit}": "1000",
        f"night/{usage}": "700",
        "night/memory.stat": STAT.format(40, 60),
        "meminfo": "MemAvailable: 9 kB\n",
    }
    if version == 2:
        files |= {"night/job/memory.high": "max", "night/memory.high": "900"}
    for name, text in files.items():
        path = tmp_path / name if name == "meminfo" else root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(this_machine, "OWN_CGROUPS", own)
    monkeypatch.setattr(this_machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    memory = FreeMemory()
    most = 1000 if version == 1 else 900
    assert memory.read() == Left(free_bytes=most - 700 + 100, limited=True)
    (root / "night" / limit).write_text("600")
    assert memory.read() == Left(free_bytes=0, limited=True)
    (root / "night" / limit).write_text("99999" if version == 1 else "max")
    if version == 2:
        (root / "night/memory.high").write_text("max")
    assert memory.read() == Left(free_bytes=9 * 1024, limited=version == 1)
