"""The home of a process is the main checkout of the repository that it is in, wherever git keeps that."""

import subprocess
from pathlib import Path

import pytest

from daybreak.contract.errors import ParamsError
from daybreak.storage.home import Home


def git(*words: str, folder: Path) -> None:
    subprocess.run(["git", "-c", "protocol.file.allow=always", *words], cwd=folder, check=True)


@pytest.fixture
def checkout(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DAYBREAK_HOME")
    return repository


def test_a_submodule_is_a_home_and_so_it_is_for_its_nights(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = tmp_path / "team"
    git("init", "--quiet", str(team), folder=tmp_path)
    git("submodule", "--quiet", "add", str(checkout), "payments", folder=team)
    git("worktree", "add", "--quiet", "--detach", "nights/one", folder=team / "payments")
    for folder in (team / "payments", team / "payments" / ".dvc", team / "payments" / "nights" / "one"):
        monkeypatch.chdir(folder)
        assert Home.here().folder == team / "payments"


def test_a_repository_that_lies_elsewhere_has_its_home_in_the_checkout(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = tmp_path / "apart"
    git(
        "clone",
        "--quiet",
        f"--separate-git-dir={tmp_path / 'kept'}",
        str(checkout),
        str(apart),
        folder=tmp_path,
    )
    monkeypatch.chdir(apart)
    assert Home.here().folder == apart
    git("worktree", "add", "--quiet", "--detach", "nights/one", folder=apart)
    monkeypatch.chdir(apart / "nights" / "one")
    with pytest.raises(ParamsError, match="does not say which checkout is the home; name it by --home"):
        Home.here()
