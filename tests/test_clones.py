"""A clone for a test or a benchmark opens nights, also of a checkout that has some."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from daybreak.contract import params
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.storage.home import Home
from tests.clones import clone


def test_a_clone_of_a_checkout_with_nights_has_none_and_misses_none(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "branch", "nights"], cwd=repository, check=True)
    made = clone(repository, tmp_path / "clone")
    monkeypatch.setenv("DAYBREAK_HOME", str(made))
    monkeypatch.chdir(made)
    expect_ledger(Home.here(), params.load(made).register_, opens=True)
    branches = subprocess.check_output(["git", "branch", "--all", "--format=%(refname)"], text=True)
    assert branches.split() == ["refs/heads/main"]


def test_tests_commit_whatever_the_settings_of_a_users_git(
    repository: Path, commit: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / ".gitconfig").write_text("[commit]\n gpgsign = true\n[gpg]\n program = false\n")
    monkeypatch.setenv("HOME", str(repository))
    assert commit("With settings")


def test_a_clone_of_a_shallow_checkout_is_at_its_commit(
    repository: Path, commit: Callable[[str], str], tmp_path: Path
) -> None:
    (repository / "more").touch()
    newest = commit("More")
    words = ["git", "clone", "--quiet", "--depth=1", repository.as_uri(), str(tmp_path / "shallow")]
    subprocess.run(words, check=True)
    made = clone(tmp_path / "shallow", tmp_path / "clone")
    assert subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=made, text=True).strip() == newest
