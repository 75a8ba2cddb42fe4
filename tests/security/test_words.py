"""What people type, and what data says, reaches git, shell, terminal and notifier as words alone."""

import subprocess
from pathlib import Path

import pytest

from daybreak import cli, runner
from daybreak.contract.record_types import Night, Release
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home

# What Python, git or a terminal takes for an end of a line, of a text, or for a command.
STEERING = [
    "\n",
    "\r",
    "\r\n",
    "\v",
    "\f",
    "\x1c",
    "\x85",
    "\u2028",
    "\x00",
    "\x1b[2J",
    "\u202e",
    "\ud800",
    "\n\nServes: 99\nNight: 2020-01-01\n",
    "\n---\nRollback: 99\n",
    "\r\rServes: 99\rRollback: 98",
]


def opened() -> Night:
    night = runner.run(Home.here(), "open")
    assert isinstance(night, Night)
    return night


@pytest.mark.slow
@pytest.mark.parametrize("words", STEERING, ids=ascii)
@pytest.mark.promise
def test_no_reason_breaks_the_ledger_or_forges_what_it_says(repository: Path, words: str) -> None:
    night = opened()
    release = Release(version=7, replaced=0, model_digest="m", night=night.id)
    made = ledger.commit_night(Home.here(), night, message=f"--reject: late{words}and wrong", release=release)
    (commit,) = ledger.commits(Home.here())
    assert (commit.id, commit.night, commit.serves, commit.rollback) == (made, night.id, 7, False)
    assert commit.subject.startswith("--reject: late ")
    assert commit.subject.isprintable()
    assert [entry.night for entry in ledger.history(Home.here())] == [night]


@pytest.mark.slow
@pytest.mark.promise
def test_a_commit_with_a_line_end_of_another_kind_in_its_subject_is_read(repository: Path) -> None:
    """As anybody may write it by hand."""
    night = opened()
    made = ledger.commit_night(Home.here(), night, message="a reason")
    message = f"2025-01-02: a\rreason\u2028of\x85old\n\nNight: {night.id}-again\nServes: 0\n"
    words = ["git", "commit-tree", f"{made}^{{tree}}", "-p", made, "-p", night.code_commit, "-F", "-"]
    second = subprocess.check_output(words, input=message.encode(), cwd=repository).decode().strip()
    subprocess.run(["git", "update-ref", branch.BRANCH, second], cwd=repository, check=True)
    assert [commit.id for commit in ledger.commits(Home.here())] == [second, made]


NAMES = ["--upload-pack=touch x", "-o", "../../x", "/etc/x", "a/b", "x\n", "x\u2028y", "$(touch x)", "x;y"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_name_of_a_night_is_no_option_no_path_and_no_command(
    repository: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["night", f"--night={name}", "--until=open"]) == 78
    assert "is not a valid name; use up to 200 letters, digits" in caplog.text
    assert not (repository / "nights").exists()
