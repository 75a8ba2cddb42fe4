"""A home for what brings in rows, as erasures are looked up there; copies of nights that tests share."""

import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without nights, which `tmp_path` is."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))


@pytest.fixture
def enter_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """Makes a copy of a folder the current folder, and returns the copy."""

    def enter(folder: Path) -> Path:
        copy = shutil.copytree(folder, tmp_path / "night")
        monkeypatch.chdir(copy)
        return copy

    return enter


@pytest.fixture(scope="session")
def shop_weeks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five weeks of the shop before `TONIGHT`, validated, and tonight's raw rows."""
    from daybreak.data.partitions import part_of
    from daybreak.examples.shop.simulated_shop import Shop
    from tests.data.shop_weeks import TONIGHT, judge

    folder = tmp_path_factory.mktemp("nights")
    shop = Shop(seed=1, start=TONIGHT - timedelta(days=34), today=TONIGHT + timedelta(days=1), late_days={})
    days = shop.days()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for day in days:
            shop.fetch(day, part_of(day).parent)
        hidden = part_of(TONIGHT).rename(folder / "tonight.parquet")
        part_of(TONIGHT).parent.rmdir()
        judge(days[-2], *days[:-2])
        part_of(TONIGHT).parent.mkdir()
        hidden.rename(part_of(TONIGHT))
    return folder


@pytest.fixture
def in_shop_weeks(shop_weeks: Path, enter_copy: Callable[[Path], Path]) -> Path:
    """A copy of the validated weeks of the shop, as the current folder."""
    return enter_copy(shop_weeks)
