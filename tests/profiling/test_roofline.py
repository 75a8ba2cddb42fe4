"""Ceilings are measured, kept per machine, and measured anew where what is kept is torn or old."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from daybreak.contract import records
from daybreak.machines import this_machine
from daybreak.machines.this_machine import facts_digest, fingerprint
from daybreak.profiling import roofline
from daybreak.profiling.roofline import Ceilings, Gather, ceilings
from daybreak.storage.home import Home

ARRAYS = Path("data/arrays")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("PRODUCT_S", "COPY_S", "GATHER_S", "DISK_S"):
        monkeypatch.setattr(roofline, name, 0.01)
    monkeypatch.setattr(roofline, "CACHE_FACTOR", 0)
    monkeypatch.setitem(roofline.TABLE_BYTES, "cpu", 16 << 20)  # its rates are those of a cache
    return tmp_path


def kept() -> Path:
    return Path("var/machines") / f"{facts_digest(fingerprint())}.json"


@pytest.mark.slow
def test_ceilings_are_rates_of_a_real_machine():
    measured = ceilings(Home.here(), ARRAYS)
    assert measured.machine["num_cores"] >= 1
    assert measured.flops_per_s == measured.float32_flops_per_s or not measured.on_cpu
    for rate in (
        measured.flops_per_s,
        measured.copy_bytes_per_s,
        measured.cold_bytes_per_s,
        measured.warm_bytes_per_s,
    ):
        assert 1e6 < rate < 1e16
    assert [gather.row_bytes for gather in measured.gathers] == sorted(roofline.ROW_BYTES)


@pytest.mark.slow
def test_narrow_rows_are_gathered_at_a_lower_rate():
    """A row of 16 bytes wastes its cache line; another process may take the core of one measurement."""
    device = torch.device("cpu")
    narrow, wide = min(roofline.ROW_BYTES), max(roofline.ROW_BYTES)
    assert any(roofline._gather(device, narrow) < roofline._gather(device, wide) for _ in range(20))


@pytest.mark.slow
def test_nothing_is_left_on_the_disk_but_what_is_kept(home):
    ceilings(Home.here(), ARRAYS)
    assert {path.suffix for path in home.rglob("*") if path.is_file()} == {".json", ".lock"}


@pytest.mark.slow
def test_what_was_measured_is_kept_and_read_again():
    assert (
        ceilings(Home.here(), ARRAYS)
        == ceilings(Home.here(), ARRAYS)
        == records.loads(Ceilings, kept().read_text())
    )


@pytest.mark.slow
def test_a_torn_file_is_measured_anew():
    before = ceilings(Home.here(), ARRAYS)
    for text in ("", '{"machine": {', "[]", "\x00\xff"):
        kept().write_text(text)
        anew = ceilings(Home.here(), ARRAYS)
        assert anew.measured_at > before.measured_at, text
        assert records.loads(Ceilings, kept().read_text()) == anew
        before = anew


def test_tables_are_small_beside_what_a_limit_leaves(monkeypatch):
    monkeypatch.setattr(this_machine, "limit_bytes", lambda: 128 << 20)
    assert roofline._table_bytes(torch.device("cpu")) == 8 << 20
    monkeypatch.setattr(this_machine, "limit_bytes", lambda: 0)
    assert roofline._table_bytes(torch.device("cpu")) == roofline.GATHER_BYTES


@pytest.mark.slow
def test_what_is_old_is_measured_anew(monkeypatch):
    measure_with(0.0, monkeypatch)
    first = ceilings(Home.here(), ARRAYS)
    facts = json.loads(kept().read_text())
    old = datetime.now(UTC) - this_machine.KEPT
    kept().write_text(json.dumps(facts | {"measured_at": old.isoformat()}))
    assert ceilings(Home.here(), ARRAYS).measured_at > first.measured_at
    facts["measured_at"] = (old + timedelta(hours=1)).isoformat()
    kept().write_text(json.dumps(facts))
    assert ceilings(Home.here(), ARRAYS).measured_at < first.measured_at


def measure_with(share: float, patch: pytest.MonkeyPatch) -> None:
    """Have the next measurement say that other processes took that share of its time."""
    measure = roofline.measure

    def disturbed(folder: Path) -> Ceilings:
        return replace(measure(folder), contention=share)

    patch.setattr(roofline, "measure", disturbed)


def age(days: float) -> Ceilings:
    """Make the ceilings that are kept older, and return them."""
    facts = json.loads(kept().read_text())
    facts["measured_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    kept().write_text(json.dumps(facts))
    return records.loads(Ceilings, kept().read_text())


@pytest.mark.slow
def test_disturbed_ceilings_never_replace_undisturbed_ones(monkeypatch):
    measure_with(0.0, monkeypatch)
    ceilings(Home.here(), ARRAYS)
    quiet = age(100)
    measure_with(0.5, monkeypatch)
    assert ceilings(Home.here(), ARRAYS) == quiet == records.loads(Ceilings, kept().read_text())
    measure_with(0.0, monkeypatch)
    assert ceilings(Home.here(), ARRAYS).measured_at > quiet.measured_at


@pytest.mark.slow
def test_disturbed_ceilings_hold_until_the_next_night(monkeypatch):
    measure_with(0.5, monkeypatch)
    first = ceilings(Home.here(), ARRAYS)
    assert ceilings(Home.here(), ARRAYS) == first
    age(1)
    assert ceilings(Home.here(), ARRAYS).measured_at > first.measured_at


@pytest.mark.slow
def test_outside_of_a_home_it_is_measured_and_not_kept(home, monkeypatch):
    monkeypatch.delenv("DAYBREAK_HOME")
    monkeypatch.setenv("GIT_DIR", str(home / "nowhere"))
    assert ceilings(Home.here_or_none(), ARRAYS).copy_bytes_per_s > 0
    assert not (home / "var").exists()


def test_arrays_that_are_large_enough_are_what_is_read(monkeypatch):
    ARRAYS.mkdir(parents=True)
    np.save(ARRAYS / "x.npy", np.zeros(roofline.LEAST_BYTES, np.uint8))
    monkeypatch.setattr(roofline, "_scratch", None)  # would fail if it were called
    cold, warm = roofline._disk(ARRAYS)
    assert cold > 0
    assert warm > 0


def test_on_a_cpu_time_without_a_core_does_not_count():
    assert roofline._best_s(lambda: time.sleep(0.02), torch.device("cpu"), 0.0) < 0.01


def test_threads_are_as_before_also_where_a_measurement_fails():
    def fail_on_one_thread() -> None:
        if torch.get_num_threads() == 1:
            raise RuntimeError

    torch.set_num_threads(2)
    with pytest.raises(RuntimeError):
        roofline._best_s(fail_on_one_thread, torch.device("cpu"), 0.0)
    assert torch.get_num_threads() == 2


def test_gathers_of_other_widths_lie_between_the_measured():
    measured = Ceilings(
        machine={},
        measured_at=datetime.now(UTC),
        on_cpu=True,
        float32_flops_per_s=1,
        bfloat16_flops_per_s=2,
        copy_bytes_per_s=1,
        fresh_bytes_per_s=1,
        cold_bytes_per_s=1,
        warm_bytes_per_s=1,
        gathers=(Gather(row_bytes=64, bytes_per_s=1e9), Gather(row_bytes=256, bytes_per_s=4e9)),
        scatters=(),
    )
    assert measured.gather_bytes_per_s(64) == pytest.approx(1e9)
    assert measured.gather_bytes_per_s(128) == pytest.approx(2e9)
    assert measured.gather_bytes_per_s(4) == pytest.approx(1e9)
    assert measured.gather_bytes_per_s(4096) == pytest.approx(4e9)
    assert measured.flops_per_s == 1
