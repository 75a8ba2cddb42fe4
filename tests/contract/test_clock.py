"""The clock of a night: sets of the machine's clock, sleep, other processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from daybreak.contract import clock, records
from daybreak.contract.clock import Clock

HOUR_S = 3600.0


class Machine:
    """A machine whose clock is set by somebody, and which is awake or asleep."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1_700_000_000.0, 5000.0

    def clock(self) -> Clock:
        """Returns the clock of a process that starts now."""
        return Clock(wall=lambda: self.wall_s, passed=lambda: self.passed_s)

    def passes(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds


def night(folder: Path, *, booted_at: float, boot: str) -> None:
    (folder / records.RUN).mkdir(parents=True, exist_ok=True)
    (folder / records.RUN / "night.json").write_text(json.dumps({"booted_at": booted_at, "boot": boot}))


@pytest.mark.parametrize("set_by_s", [-6 * HOUR_S, 6 * HOUR_S])
def test_a_clock_that_is_set_in_a_night_moves_the_time_of_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by_s: float
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Machine()
    opener = machine.clock()
    night(tmp_path, booted_at=opener.read_anew(), boot=clock.boot() or pytest.skip("no name of a boot here"))
    opened_at = opener.now()
    machine.passes(60)
    machine.wall_s += set_by_s
    machine.passes(60)
    later = machine.clock()
    later.follow(tmp_path)
    assert later.now() - opened_at == opener.now() - opened_at == 120


@pytest.mark.parametrize("boot", ["", "another"])
def test_after_a_reboot_or_on_another_machine_a_process_goes_on_from_the_clock_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str
) -> None:
    monkeypatch.chdir(tmp_path)
    night(tmp_path, booted_at=1.0, boot=boot)
    machine = Machine()
    process = machine.clock()
    process.follow(tmp_path)
    assert process.now() == machine.wall_s
    machine.wall_s -= HOUR_S
    machine.passes(5)
    assert process.now() - machine.wall_s == HOUR_S


def test_the_next_night_in_a_folder_reads_the_clock_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = Machine()
    process = machine.clock()
    process.now()
    machine.wall_s += HOUR_S
    process.read_anew()
    assert process.now() == machine.wall_s


NOW = (
    "import time; from pathlib import Path; from daybreak.contract import clock; clock.follow(Path()); "
    "print(clock.now(), time.time(), clock.awake())"
)


def read_by(*command: str) -> list[float]:
    """Returns the time of the night, the wall clock and the time awake, in a process started by a command."""
    words = [*command, sys.executable, "-c", NOW]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(records.__file__).parents[2]),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    text = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in text.split()]


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("faketime") is None, reason="no faketime here; install Debian's package faketime"
)
@pytest.mark.parametrize("set_by", ["-6h", "+6h"])
def test_a_process_that_starts_after_the_clock_was_set_has_the_time_of_the_night(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by: str
) -> None:
    monkeypatch.chdir(tmp_path)
    night(tmp_path, booted_at=clock.read_anew(), boot=clock.boot())
    now, wall, _ = read_by("faketime", "-f", set_by)
    assert abs(wall - clock.now()) > 5 * HOUR_S
    assert 0 <= clock.now() - now < 60


def may_shift_boot() -> bool:
    words = ["unshare", "--time", "--boottime", "60", "true"]
    return shutil.which("unshare") is not None and not subprocess.run(words, check=False).returncode


@pytest.mark.slow
def test_hours_that_a_laptop_slept_count_for_deadlines_and_not_for_silences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_shift_boot():
        pytest.skip("only root may start a process on a machine that slept (unshare --time)")
    monkeypatch.chdir(tmp_path)
    night(tmp_path, booted_at=clock.read_anew(), boot=clock.boot())
    before, awake_s = clock.now(), clock.awake()
    now, _, awake_after_s = read_by("unshare", "--time", "--boottime", "28800")
    assert 8 * HOUR_S <= now - before < 8 * HOUR_S + 60
    assert awake_after_s - awake_s < 60
