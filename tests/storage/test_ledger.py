"""Which commits of the ledger let another version serve, by what they say or by the record in them."""

import os
import time
from pathlib import Path

import pytest

from pipeline.contract import clock, records
from pipeline.contract.units import HOUR_S
from pipeline.storage import checkout, ledger
from tests.rollout.ledgers import close, make_home, release_of, rolling_back


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def test_promotions_and_rollbacks_are_releases_and_other_nights_are_none() -> None:
    first = close(1, after="", release=release_of(1))
    third = close(3, after=close(2, after=first), release=release_of(3))
    back = rolling_back(to=1).commit()
    releases = [(commit.id, commit.serves, commit.rollback) for commit in ledger.releases()]
    assert releases == [(back, 1, True), (third, 3, False), (first, 1, False)]


def test_a_commit_that_does_not_say_is_known_by_its_record() -> None:
    """As those of earlier releases are."""
    close(1, after="", release=release_of(1))
    commit = forget(ledger.ledger_tip())
    assert [one.serves for one in ledger.commits()] == [None]
    assert [(one.id, one.serves) for one in ledger.releases()] == [(commit, 1)]


def test_a_code_commit_that_says_it_is_a_night_is_none_of_the_ledger() -> None:
    words = ["commit", "--quiet", "--allow-empty", "--message=Forged\n\nNight: 2025-01-01\nServes: 7"]
    checkout.git(*words, folder=Path())
    first = close(1, after="", release=release_of(1))
    assert [(commit.id, commit.serves) for commit in ledger.commits()] == [(first, 1)]


def test_a_night_of_code_that_is_the_newest_commit_of_the_ledger_follows_it() -> None:
    first = close(1, after="", release=release_of(1))
    checkout.git("checkout", "--quiet", "--force", "nights", folder=Path())
    second = close(2, after=first)
    assert len(ledger.commits()[0].parents) == 1  # git leaves out the second, which is the same
    assert [commit.id for commit in ledger.commits()] == [second, first]


@pytest.mark.parametrize(("version", "kept"), [(1, "close train"), (None, "promote train")])
def test_the_stage_that_commits_a_night_is_not_kept_as_failed(version: int | None, kept: str) -> None:
    for stage in ("train", "promote", "close"):
        records.replace_text(records.RUN / f"{stage}.error", "failed before\n")
    close(1, after="", release=release_of(version) if version else None)
    names = checkout.git("ls-tree", "-r", "--name-only", "nights").split()
    assert " ".join(Path(name).stem for name in names if name.endswith(".error")) == kept


@pytest.mark.parametrize("hours", [-6, 6])
def test_a_night_is_closed_at_its_own_time_whoever_set_the_clock_since(hours: int) -> None:
    if not clock.boot():
        pytest.skip("no name of a boot here")
    booted_at = time.time() - clock.since_boot() + hours * HOUR_S
    Path("night").mkdir()
    os.chdir("night")
    close(1, after="", boot=clock.boot(), booted_at=booted_at)
    assert 0 <= time.time() + hours * HOUR_S - ledger.commits()[0].time < 60


def forget(commit: str) -> str:
    """Make the newest commit of the ledger again, without the version in its message."""
    message = checkout.git("log", "-1", "--format=%B", commit)
    lines = [line for line in message.splitlines() if not line.startswith("Serves")]
    parents = checkout.git("log", "-1", "--format=%P", commit).split()
    flags = [word for parent in parents for word in ("-p", parent)]
    made = checkout.git("commit-tree", f"{commit}^{{tree}}", *flags, "-F", "-", text="\n".join(lines) + "\n")
    checkout.git("update-ref", ledger.BRANCH, made, commit)
    return made
