"""The files of a workload are found by imports, and no file is run."""

import subprocess
import sys
from pathlib import Path

import pytest

from daybreak.contract.errors import ParamsError
from daybreak.storage.source_code import running_digest, source_digest, source_files


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A team's package, whose modules must not be run, and a module beside it."""
    folder = tmp_path / "seen_team"
    (folder / "nets").mkdir(parents=True)
    texts = {
        "__init__.py": "",
        "work.py": "from .layers import Layer\nimport seen_team.nets.deep\nimport torch\n",
        "layers.py": "from . import sizes\n",
        "sizes.py": "raise AssertionError('it was run')\n",
        "other.py": "",
        "nets/__init__.py": "",
        "nets/deep.py": "from ..sizes import WIDTH\nfrom .late import late\n",
        "nets/late.py": "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (tmp_path / "seen_alone.py").write_text("import seen_beside\nimport json\n")
    (tmp_path / "seen_beside.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def names(module: str, root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in source_files(module)}


def test_a_workload_is_its_module_and_what_that_imports_of_its_own_package(team: Path) -> None:
    own = {"work.py", "layers.py", "sizes.py", "nets/deep.py", "nets/late.py", "nets/__init__.py"}
    assert names("seen_team.work", team) >= own
    assert "other.py" not in names("seen_team.work", team)
    assert "seen_team.work" not in sys.modules


def test_of_a_module_without_a_package_what_lies_beside_it_counts(team: Path) -> None:
    assert names("seen_alone", team.parent) == {"seen_alone.py", "seen_beside.py"}


def test_a_workload_of_daybreak_is_its_own_folder_and_not_the_frame() -> None:
    files = source_files("daybreak.examples.shop.regression")
    assert {path.parent.name for path in files} == {"shop"}


@pytest.mark.parametrize("edited", ["work.py", "sizes.py", "nets/late.py", "other.py"])
def test_an_edit_of_any_of_its_files_is_another_workload(team: Path, edited: str) -> None:
    before = source_digest("seen_team.work:W")
    assert source_digest("seen_team.work:W") == before
    (team / edited).write_text((team / edited).read_text() + "\nANOTHER = 1\n")
    assert source_digest("seen_team.work:W") != before


def test_comments_docstrings_and_formatting_are_not_another_workload(team: Path) -> None:
    (team / "layers.py").write_text("from . import sizes\ndef f(a, b):\n    return [a, b]\n")
    before = source_digest("seen_team.work:W")
    (team / "layers.py").write_text(
        '"""Layers."""\n\nfrom . import sizes  # of them\n\n\n'
        "def f(a, b):\n    'Returns both.'\n    return [\n        a,\n        b,\n    ]\n"
    )
    assert source_digest("seen_team.work:W") == before


def test_another_name_that_is_imported_from_a_module_beside_is_another_workload(team: Path) -> None:
    before = source_digest("seen_team.work:W")
    (team / "layers.py").write_text("from . import others as sizes\n")
    (team / "others.py").write_text((team / "sizes.py").read_text())
    assert source_digest("seen_team.work:W") != before


@pytest.mark.parametrize("name", ["risk.json", "tables/risk.csv", "nets/vocabulary", "by_name.py"])
def test_a_file_of_the_package_that_git_tracks_counts_by_its_bytes(team: Path, name: str) -> None:
    (team / name).parent.mkdir(exist_ok=True)
    (team / name).write_text("1")
    subprocess.run(["git", "init", "--quiet"], cwd=team.parent, check=True)
    subprocess.run(["git", "add", "."], cwd=team.parent, check=True)
    before, running = source_digest("seen_team.work:W"), running_digest("seen_team.work:W")
    (team / "scratch.json").write_text("what a run left there")
    (team / "scratch.py").write_text("A = 1\n")
    assert source_digest("seen_team.work:W") == before
    (team / name).write_text("2")
    assert source_digest("seen_team.work:W") != before
    assert running_digest("seen_team.work:W") != running  # by which partitions are made


def test_a_data_file_beside_a_module_without_a_package_counts_where_the_module_names_it(team: Path) -> None:
    alone = team.parent / "seen_alone.py"
    alone.write_text(alone.read_text() + "from pathlib import Path\nPath(__file__).with_name('risk.json')\n")
    for name in ("risk.json", "other.json"):
        (team.parent / name).write_text("1")
    before = source_digest("seen_alone:W")
    (team.parent / "other.json").write_text("2")
    assert source_digest("seen_alone:W") == before
    (team.parent / "risk.json").write_text("2")
    assert source_digest("seen_alone:W") != before


def test_code_beside_the_package_that_it_imports_counts_too(team: Path) -> None:
    (team / "sizes.py").write_text("import seen_alone\n")
    before = source_digest("seen_team.work:W")
    (team.parent / "seen_beside.py").write_text("A = 1\n")
    assert source_digest("seen_team.work:W") != before


def test_what_a_module_imports_that_nothing_imports_counts_too(team: Path) -> None:
    (team / "other.py").write_text("import seen_alone\n")
    before = source_digest("seen_team.work:W")
    (team.parent / "seen_beside.py").write_text("A = 1\n")
    assert source_digest("seen_team.work:W") != before


@pytest.mark.parametrize("name", ["seen_plugin", "seen_plugin.py"])
def test_a_module_that_is_loaded_by_its_name_beside_a_module_without_a_package_counts(
    team: Path, name: str
) -> None:
    (team.parent / "seen_plugin.py").write_text("")
    (team.parent / "seen_alone.py").write_text(f"import importlib\nimportlib.import_module({name!r})\n")
    before = source_digest("seen_alone:W")
    (team.parent / "seen_plugin.py").write_text("A = 1\n")
    assert source_digest("seen_alone:W") != before


def test_a_file_that_cannot_be_parsed_counts_by_its_bytes(team: Path) -> None:
    (team / "sizes.py").write_text("def :\n")
    before = source_digest("seen_team.work:W")
    (team / "sizes.py").write_text("def :  # not yet\n")
    assert source_digest("seen_team.work:W") != before


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ParamsError, match=r"module seen_nowhere\.at_all is not found"):
        source_files("seen_nowhere.at_all")


def test_another_lock_file_is_other_code_but_the_same_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    use = "daybreak.examples.fraud.fraud:Fraud"
    workload, before = source_digest(use), running_digest(use)
    Path("uv.lock").write_text("numpy 2\n")
    assert running_digest(use) != before
    assert source_digest(use) == workload
