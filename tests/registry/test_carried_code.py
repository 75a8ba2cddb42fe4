"""Workloads of versions, imported from the code that each carries."""

import json
import shutil
import sys
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
        import team.late
        from team.late import offset

        assert team.late.offset is offset
        return numbers.BASE + offset() + self.plus
"""


def version(folder: Path, *, base: int, use: str = "team.work:W") -> Path:
    """Files of a version whose workload answers `base` and a little more."""
    (folder / "code" / "team").mkdir(parents=True)
    (folder / "code" / "team" / "__init__.py").touch()
    (folder / "code" / "team" / "work.py").write_text(WORKLOAD)
    (folder / "code" / "team" / "numbers.py").write_text(f"BASE = {base}\n")
    (folder / "code" / "team" / "late.py").write_text(f"def offset():\n    return {base}\n")
    model = folder / "artifacts" / "model"
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps({"workload": use, "arguments": {"plus": 1}}))
    return folder


def answer(folder: Path) -> Any:
    return carried_code.workload_of(folder).answer()


def test_versions_of_one_package_live_side_by_side_also_after_their_folders_are_gone(tmp_path: Path) -> None:
    old = carried_code.workload_of(version(tmp_path / "old", base=10))
    new = carried_code.workload_of(version(tmp_path / "new", base=100))
    shutil.rmtree(tmp_path / "old")
    shutil.rmtree(tmp_path / "new")
    assert (new.answer(), old.answer()) == (201, 21)
    assert "team" not in sys.modules


def test_the_same_code_is_imported_once(tmp_path: Path) -> None:
    one = carried_code.workload_of(version(tmp_path / "one", base=7))
    two = carried_code.workload_of(version(tmp_path / "two", base=7))
    assert type(one) is type(two)


@pytest.mark.parametrize(
    "use", ["subprocess:Popen", "os:system", "team.other:W", "pipeline.contract.params:Plug"]
)
def test_a_workload_that_the_version_does_not_carry_is_not_resolved(tmp_path: Path, use: str) -> None:
    folder = version(tmp_path / use, base=1, use=use)
    with pytest.raises(ReleaseError, match=f"names the workload {use}, which is not in the code"):
        carried_code.workload_of(folder)
