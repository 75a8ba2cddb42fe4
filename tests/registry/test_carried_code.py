"""Workloads of versions, imported from the code that each carries."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.registry import carried_code, packaging
from daybreak.storage.source_code import listed

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

    def variants(self):
        return {"simpler model": W(plus=-self.plus)}
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


def version(folder: Path, *, base: int, use: str = "team.work:W", **arguments: str) -> Path:
    """Files of a version whose workload answers `base` and a little more."""
    package = team(folder / "code" / "team", base=base)
    carried_code.pack(files_in(package), folder / "code" / "code.zip")
    shutil.rmtree(package)
    model = folder / "artifacts" / "model"
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps({"workload": use, "arguments": {"plus": 1, **arguments}}))
    return folder


def files_in(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder.parent).as_posix(): path for path in listed(folder)}


def test_a_version_carries_what_git_does_not_ignore_of_the_package_links_and_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = team(tmp_path / "shop" / "team", base=1)
    for name in ("words.txt", "secret.env", "__pycache__/work.pyc", "build/big.bin"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text(name)
    (tmp_path / "shop" / ".gitignore").write_text("*.env\n")
    (package / ".gitignore").write_text("build/\n")
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tables.csv").write_text("a,b\n")
    (package / "shared").symlink_to(tmp_path / "shared")
    (package / "back").symlink_to(tmp_path / "shop")  # a link to a folder around it would never end
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "shop", check=True)
    subprocess.run(["git", "add", "team/work.py", "team/numbers.py"], cwd=tmp_path / "shop", check=True)
    monkeypatch.syspath_prepend(tmp_path / "shop")
    own = {name for name in carried_code.files_of("team.work:W") if not name.startswith("daybreak/")}
    assert own == {
        f"team/{name}"
        for name in (
            ".gitignore",
            "__init__.py",
            "late.py",
            "numbers.py",
            "plus.txt",
            "shared/tables.csv",
            "words.txt",
            "work.py",
        )
    }


def test_a_file_whose_name_is_not_utf_8_is_refused_in_a_sentence_unless_git_ignores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = team(tmp_path / "shop" / "team", base=1)
    monkeypatch.syspath_prepend(tmp_path / "shop")
    (package / os.fsdecode(b"gr\xf6\xdfe.csv")).write_text("a,b\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path / "shop", check=True)
    message = r"the name of the file b'team/gr\\xf6\\xdfe.csv' is not UTF-8, .*; rename it, or have git"
    with pytest.raises(ParamsError, match=message):
        carried_code.files_of("team.work:W")
    (package / ".gitignore").write_text("*.csv\n")
    assert "team/work.py" in carried_code.files_of("team.work:W")


def test_a_file_that_may_be_a_pickle_is_refused_before_a_night_and_not_after_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = team(tmp_path / "shop" / "team", base=1)
    (package / "risks.pkl").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path / "shop")
    with pytest.raises(ParamsError, match=r"team/risks\.pkl may be a pickle, .*; keep it as JSON, Parquet"):
        carried_code.files_of("team.work:W")


def test_a_package_that_is_installed_in_an_ignored_folder_is_carried_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = team(tmp_path / ".venv" / "team", base=1)
    (tmp_path / ".gitignore").write_text(".venv\n")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    monkeypatch.syspath_prepend(tmp_path / ".venv")
    carried = carried_code.files_of("team.work:W")
    assert {f"team/{path.name}" for path in package.iterdir()} <= set(carried)


def test_a_module_without_a_package_carries_what_it_imports_and_names_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lonely_model.py").write_text("import lonely_part\nimport json\nNAME = 'risk.json'\n")
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "risk.json").write_text("{}")
    (tmp_path / "tables" / "other.json").write_text("{}")
    (tmp_path / "lonely_part.py").write_text("")
    (tmp_path / "lonely_other.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [name for name in carried_code.files_of("lonely_model:M") if not name.startswith("daybreak/")]
    assert names == ["lonely_model.py", "lonely_part.py", "tables/risk.json"]


def test_a_version_needs_the_libraries_that_its_code_imports_by_versions_that_an_index_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = team(tmp_path / "team", base=1)
    (package / "late.py").write_text("def offset():\n    import sklearn.linear_model, missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    needed = packaging.requirements("team.work:W", of_rows=False)
    names = {line.partition("==")[0] for line in needed}
    assert names == {*packaging.REQUIRED, "scikit-learn", "skops"}  # by which estimators are loaded
    assert f"torch=={version_of('torch').partition('+')[0]}" in needed
    (sentence,) = packaging.unavailable("team.work:W")
    assert sentence.startswith("team/late.py imports missing, which no installed distribution provides")


def test_a_library_that_is_installed_from_a_folder_is_named_since_no_index_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = team(tmp_path / "code" / "team", base=1)
    (package / "late.py").write_text("import own_library\n")
    facts = tmp_path / "libraries" / "own_library-1.2+local.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own-library\nVersion: 1.2+local\n")
    (facts / "top_level.txt").write_text("own_library\n")
    (facts / "direct_url.json").write_text('{"url": "file:///src/own", "dir_info": {}}')
    for folder in (tmp_path / "code", tmp_path / "libraries"):
        monkeypatch.syspath_prepend(folder)
    assert "own-library==1.2" in packaging.requirements("team.work:W", of_rows=False)
    (sentence,) = packaging.unavailable("team.work:W")
    assert sentence.startswith("own-library is installed from file:///src/own, and a version asks for own-")


def answer(folder: Path) -> Any:
    return carried_code.workload_of(folder).answer()


def test_versions_of_one_package_live_side_by_side_also_after_their_folders_are_gone(tmp_path: Path) -> None:
    old = carried_code.workload_of(version(tmp_path / "old", base=10))
    new = carried_code.workload_of(version(tmp_path / "new", base=100))
    shutil.rmtree(tmp_path / "old")
    shutil.rmtree(tmp_path / "new")
    assert (new.answer(), old.answer()) == (201, 21)
    assert "team" not in sys.modules


def test_a_version_of_a_variant_is_that_variant(tmp_path: Path) -> None:
    folder = version(tmp_path / "variant", base=10, variant="simpler model")
    assert carried_code.workload_of(folder).plus == -1


def test_the_same_code_makes_the_same_archive_whenever_it_was_written(tmp_path: Path) -> None:
    for name, time in (("one", 10**9), ("two", 2 * 10**9)):
        package = team(tmp_path / name / "team", base=7)
        (package / "__pycache__").mkdir()
        (package / "__pycache__" / "work.cpython-311.pyc").write_text(name)
        lone = tmp_path / name / "lone.py"
        lone.write_text("A = 1\n")
        for path in package.iterdir():
            os.utime(path, (time, time))
        carried_code.pack({"lone.py": lone, **files_in(package)}, tmp_path / f"{name}.zip")
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
    "use", ["subprocess:Popen", "os:system", "team.other:W", "daybreak.contract.sections:Plug"]
)
def test_a_workload_that_the_version_does_not_carry_is_not_resolved(tmp_path: Path, use: str) -> None:
    folder = version(tmp_path / use, base=1, use=use)
    with pytest.raises(ReleaseError, match=f"names the workload {use}, which is not in the code"):
        carried_code.workload_of(folder)
