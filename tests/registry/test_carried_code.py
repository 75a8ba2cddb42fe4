"""Workloads of versions, imported from the code that each carries."""

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract.errors import ReleaseError
from pipeline.registry import carried_code

WORKLOAD = """\
from team import numbers


class W:
    def __init__(self, plus: int) -> None:
        self.plus = plus

    def answer(self) -> int:
        from pathlib import Path

        import team.late
        from team.late import offset

        assert team.late.offset is offset
        read = int(Path(__file__).with_name("plus.txt").read_text())
        return numbers.BASE + offset() + self.plus + read
"""


def team(folder: Path, *, base: int) -> Path:
    """A team's package."""
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "work.py").write_text(WORKLOAD)
    (folder / "numbers.py").write_text(f"BASE = {base}\n")
    (folder / "late.py").write_text(f"def offset():\n    return {base}\n")
    (folder / "plus.txt").write_text("0")
    return folder


def version(folder: Path, *, base: int, use: str = "team.work:W", packed: bool = True) -> Path:
    """Files of a version whose workload answers `base` and a little more."""
    package = team(folder / "code" / "team", base=base)
    if packed:
        carried_code.pack([package], folder / "code" / "code.zip")
        shutil.rmtree(package)
    model = folder / "artifacts" / "model"
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps({"workload": use, "arguments": {"plus": 1}}))
    return folder


def answer(folder: Path) -> Any:
    return carried_code.workload_of(folder).answer()


def test_versions_of_one_package_live_side_by_side_also_after_their_folders_are_gone(tmp_path: Path) -> None:
    old = carried_code.workload_of(version(tmp_path / "old", base=10, packed=False))
    new = carried_code.workload_of(version(tmp_path / "new", base=100))
    shutil.rmtree(tmp_path / "old")
    shutil.rmtree(tmp_path / "new")
    assert (new.answer(), old.answer()) == (201, 21)
    assert "team" not in sys.modules


def test_the_same_code_makes_the_same_archive_whenever_it_was_written(tmp_path: Path) -> None:
    for name, time in (("one", 10**9), ("two", 2 * 10**9)):
        package = team(tmp_path / name / "team", base=7)
        (package / "__pycache__").mkdir()
        (package / "__pycache__" / "work.cpython-311.pyc").write_text(name)
        (tmp_path / name / "lone.py").write_text("A = 1\n")
        for path in package.iterdir():
            os.utime(path, (time, time))
        carried_code.pack([package, tmp_path / name / "lone.py"], tmp_path / f"{name}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as packed:
        names = packed.namelist()
    files = ("__init__.py", "late.py", "numbers.py", "plus.txt", "work.py")
    assert names == ["lone.py", *(f"team/{name}" for name in files)]


def test_an_archive_writes_nothing_outside_of_the_folder(tmp_path: Path) -> None:
    folder = version(tmp_path / "v", base=1)
    with zipfile.ZipFile(folder / "code" / "code.zip", "a") as packed:
        packed.writestr("../../out.py", "")
        packed.writestr(str(tmp_path / "absolute.py"), "")
    before = sorted(tmp_path.rglob("*"))
    carried_code.unpack(folder, tmp_path / "to")
    assert [path for path in sorted(tmp_path.rglob("*")) if tmp_path / "to" not in path.parents] == sorted(
        [*before, tmp_path / "to"]
    )


def test_the_same_code_is_imported_once(tmp_path: Path) -> None:
    one = carried_code.workload_of(version(tmp_path / "one", base=7))
    two = carried_code.workload_of(version(tmp_path / "two", base=7))
    assert type(one) is type(two)


@pytest.mark.parametrize(
    "use", ["subprocess:Popen", "os:system", "team.other:W", "pipeline.contract.params:Plug"]
)
@pytest.mark.parametrize("packed", [True, False])
def test_a_workload_that_the_version_does_not_carry_is_not_resolved(
    tmp_path: Path, use: str, packed: bool
) -> None:
    folder = version(tmp_path / use, base=1, use=use, packed=packed)
    with pytest.raises(ReleaseError, match=f"names the workload {use}, which is not in the code"):
        carried_code.workload_of(folder)
