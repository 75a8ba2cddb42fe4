"""Commits of the ledger that let another version serve, by subject or by record."""

import os
import shutil
import subprocess
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from daybreak.contract import clock, records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Batch, Night, Verdict
from daybreak.contract.units import HOUR_S
from daybreak.extensions.care import audit
from daybreak.storage import branch, checkout, ledger, ledger_notes, night_folders
from daybreak.storage.home import Home
from tests.rollout.ledgers import FIRST, close, make_home, release_of, rolling_back


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_home(tmp_path, monkeypatch)


def test_promotions_and_rollbacks_are_releases_and_other_nights_are_none() -> None:
    first = close(1, after="", release=release_of(1))
    third = close(3, after=close(2, after=first), release=release_of(3))
    back = rolling_back(to=1).commit()
    releases = [(commit.id, commit.serves, commit.rollback) for commit in ledger.releases(Home.here())]
    assert releases == [(back, 1, True), (third, 3, False), (first, 1, False)]


def test_a_commit_that_does_not_say_is_known_by_its_record() -> None:
    """As those of earlier releases are."""
    close(1, after="", release=release_of(1))
    commit = forget(branch.ledger_tip(Home.here()))
    assert [one.serves for one in ledger.commits(Home.here())] == [None]
    assert [(one.id, one.serves) for one in ledger.releases(Home.here())] == [(commit, 1)]


def test_no_hook_of_the_user_runs_where_the_ledger_moves(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    for name in ("reference-transaction", "post-checkout", "post-index-change"):
        hook = Path(".git/hooks") / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        hook.chmod(0o755)
    close(1, after="", release=release_of(1))
    checkout.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "night"), folder=Path())
    assert not ran.exists()
    subprocess.run(["git", "branch", "of-the-user"], check=True)
    assert "reference-transaction" in ran.read_text()  # it runs for the user


@pytest.mark.slow
@pytest.mark.parametrize("words", [("gc", "--quiet", "--prune=now"), ("prune", "--expire=now")])
def test_nothing_of_the_ledger_is_lost_while_git_removes_what_no_branch_has(
    home: Path, words: tuple[str, ...]
) -> None:
    first = close(1, after="", release=release_of(1))
    ended, collected = threading.Event(), list[int]()

    def collect() -> None:
        while not ended.is_set():
            collected.append(subprocess.run(["git", *words], cwd=home, check=False).returncode)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        made = [first, close(2, after=first, release=release_of(2)), rolling_back(to=1).commit()]
        made += [ledger_notes.add(Home.here(), f"note {number}", versions=[1]) for number in range(8)]
    finally:
        ended.set()
        thread.join()
    assert len(collected) > 3 and not any(collected)
    assert [one.id for one in branch.all_commits(Home.here(), branch.ledger_tip(Home.here()))] == made[::-1]
    assert subprocess.run(["git", "fsck", "--full"], check=False).returncode == 0
    assert not list(home.glob(".git/objects/pack/*.keep"))


def test_a_damaged_file_of_old_code_stops_no_rollback(home: Path) -> None:
    git = checkout.git
    (code := home / "code.py").write_text("old = True\n")
    git("add", "code.py")
    git("commit", "--quiet", "-m", "old code")
    first, old = close(1, after="", release=release_of(1)), git("rev-parse", "HEAD:code.py")
    code.write_text("old = False\n")
    git("commit", "--quiet", "-am", "new code")
    close(2, after=first, release=release_of(2))
    damaged = home / ".git/objects" / old[:2] / old[2:]
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    back = rolling_back(to=1).commit()
    assert branch.newest_entry(Home.here()) == back
    assert git("rev-parse", f"{back}:code.py") == old


def test_what_a_killed_process_had_git_keep_is_collected_later(home: Path) -> None:
    close(1, after="", release=release_of(1))
    ours, others = (home / ".git/objects/pack" / f"pack-{name}.keep" for name in ("ours", "others"))
    ours.write_text(branch.KEPT)
    others.write_text("by a person\n")
    for path in (ours, others):
        os.utime(path, (time.time() - 2 * HOUR_S,) * 2)
    ledger_notes.add(Home.here(), "a note", versions=[1])
    assert not ours.exists()
    assert others.exists()


def test_a_pack_that_someone_else_keeps_ends_no_write_of_the_ledger(home: Path) -> None:
    close(1, after="", release=release_of(1))
    binary, gone = (home / ".git/objects/pack" / f"pack-{name}.keep" for name in ("binary", "gone"))
    binary.write_bytes(b"\xff\xfe")
    os.utime(binary, (time.time() - 2 * HOUR_S,) * 2)
    gone.symlink_to("what was there")  # listed, and not found, as a file that goes meanwhile
    ledger_notes.add(Home.here(), "a note", versions=[1])
    assert binary.exists()


def test_a_code_commit_that_says_it_is_a_night_is_none_of_the_ledger() -> None:
    words = ["commit", "--quiet", "--allow-empty", "--message=Forged\n\nNight: 2025-01-01\nServes: 7"]
    checkout.git(*words, folder=Path())
    first = close(1, after="", release=release_of(1))
    assert [(commit.id, commit.serves) for commit in ledger.commits(Home.here())] == [(first, 1)]


def test_a_night_of_code_that_is_the_newest_commit_of_the_ledger_follows_it() -> None:
    first = close(1, after="", release=release_of(1))
    checkout.git("checkout", "--quiet", "--force", "nights", folder=Path())
    second = close(2, after=first)
    assert len(ledger.commits(Home.here())[0].parents) == 1  # git leaves out the second, which is the same
    assert [commit.id for commit in ledger.commits(Home.here())] == [second, first]


def test_a_night_that_was_closed_as_failed_and_promotes_after_all_is_one_entry() -> None:
    first = close(1, after="", release=release_of(1))
    failed = closed_as_failed(2, after=first)
    assert close(2, after=first) == failed
    assert not ledger.is_over(Home.here(), records.read(Night, records.RUN))
    ledger_notes.add(Home.here(), "a note in between", versions=[1])
    promoted = close(2, after=first, release=release_of(2))
    assert close(2, after=first, release=release_of(2)) == close(2, after=first) == promoted
    assert ledger.is_over(Home.here(), records.read(Night, records.RUN))
    assert [commit.id for commit in ledger.commits(Home.here())] == [promoted, first]
    assert [commit.id for commit in ledger.commits(Home.here(), limit=2)] == [promoted, first]
    assert [commit.serves for commit in ledger.releases(Home.here())] == [2, 1]
    third = close(3, after=promoted)
    assert [commit.id for commit in ledger.commits(Home.here())] == [third, promoted, first]
    texts = branch.texts_at(Home.here(), [third, promoted, first], [*audit.PATHS.values()])
    assert not list(
        audit.chain_faults(ledger.commits(Home.here()), [audit.decoded(files) for files in texts])
    )


def test_a_closed_night_promotes_nothing_where_it_had_not_failed_or_another_was_closed_since() -> None:
    first = close(1, after="", release=release_of(1))
    records.write(Verdict(action="reject", champion=1, challenger=2, reason="worse"), records.RUN)
    second = close(2, after=first)
    with pytest.raises(ReleaseError, match=r"is closed, and its champion stays; nothing is changed"):
        close(2, after=first, release=release_of(2))
    failed = closed_as_failed(3, after=second)
    promoted = close(4, after=failed, release=release_of(4))
    with pytest.raises(ReleaseError, match=r"was overtaken by night .*-14, .* nothing is changed"):
        close(3, after=second, release=release_of(3))
    assert branch.newest_entry(Home.here()) == promoted


def test_a_night_that_was_overtaken_passes_on_the_champion_and_the_data_of_the_newest() -> None:
    first = close(1, after="", release=release_of(1))
    second = close(2, after=first, release=release_of(2))
    late = close(3, after=first)
    assert [commit.id for commit in ledger.commits(Home.here())] == [late, second, first]
    champion = ledger.champion_at(Home.here(), late)
    assert champion and champion.version == 2
    assert branch.text_at(Home.here(), late, "dvc.lock") == "data of night 2\n"
    assert close(3, after=first) == late


@pytest.mark.parametrize("version", [None, 2])
def test_the_data_of_the_newest_day_is_gone_on_from_whichever_night_closes_last(version: int | None) -> None:
    first = close(1, after="", release=release_of(1))
    third = close(3, after=first, batch=True)  # opened while night 2 was with users, and refused at once
    second = close(2, after=first, batch=True, release=release_of(version) if version else None)
    assert branch.text_at(Home.here(), second, "dvc.lock") == "data of night 2\n"
    assert ledger.with_newest_data(Home.here(), second) == third
    records.replace_text(records.RUN / ledger.FAILED_TO_OPEN, "no room\n")
    unopened = close(4, after=second)
    assert branch.text_at(Home.here(), unopened, "dvc.lock") == "data of night 3\n"
    assert ledger.with_newest_data(Home.here(), "") == ""


def test_a_night_goes_on_from_the_data_of_an_open_one_that_waits_for_users(home: Path) -> None:
    here, first = Home(home), close(1, after="", release=release_of(1), batch=True)
    assert night_folders.lock_to_go_on_from(here, first) == "data of night 1\n"
    until, day = datetime.now(UTC) + timedelta(hours=1), FIRST.date() + timedelta(days=2)
    closed, folder = records.read(Night, records.RUN), here.nights / "open"
    opened = replace(closed, id="open", day=day, previous=first, decide_until=until)
    records.write(opened, folder / records.RUN)
    shutil.copy(records.path_of(Batch, records.RUN), folder / records.RUN)
    (folder / "dvc.lock").write_text("data of the open night\n")
    assert night_folders.lock_to_go_on_from(here, first) == "data of the open night\n"
    second = close(2, after=first, batch=True)  # of the same day
    assert night_folders.lock_to_go_on_from(here, second) == "data of night 2\n"
    assert night_folders.lock_to_go_on_from(here, "") == "data of the open night\n"


def test_a_night_of_an_earlier_day_that_opened_later_has_the_newest_data() -> None:
    third = close(3, after="", batch=True)
    again = close(2, after=third, batch=True, started_at=datetime.now(UTC) + timedelta(minutes=1))
    assert ledger.with_newest_data(Home.here(), again) == again
    close(4, after=again, batch=True, release=release_of(4))
    close(5, after=branch.ledger_tip(Home.here()), batch=True, release=release_of(5))
    back = rolling_back(to=4).commit()
    assert ledger.with_newest_data(Home.here(), back) == back


def closed_as_failed(number: int, *, after: str) -> str:
    error = records.RUN / "train.error"
    records.replace_text(error, "no room\n")
    commit = close(number, after=after)
    error.unlink()
    return commit


@pytest.mark.parametrize(("version", "kept"), [(1, "close train"), (None, "promote train")])
def test_the_stage_that_commits_a_night_is_not_kept_as_failed(version: int | None, kept: str) -> None:
    for stage in ("train", "promote", "close"):
        records.replace_text(records.RUN / f"{stage}.error", "failed before\n")
    close(1, after="", release=release_of(version) if version else None)
    names = checkout.git("ls-tree", "-r", "--name-only", "nights").split()
    assert " ".join(Path(name).stem for name in names if name.endswith(".error")) == kept


@pytest.mark.parametrize("hours", [-6, 6])
def test_a_night_is_closed_at_its_own_time_whoever_set_the_clock_since(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    if not clock.boot():
        pytest.skip("no name of a boot here")
    booted_at = time.time() - clock.since_boot() + hours * HOUR_S
    monkeypatch.setattr(clock, "_CLOCK", clock.Clock(_booted_at=booted_at))  # as the runner has followed it
    Path("night").mkdir()
    os.chdir("night")
    close(1, after="", boot=clock.boot(), booted_at=booted_at)
    assert 0 <= time.time() + hours * HOUR_S - ledger.commits(Home.here())[0].time < HOUR_S


def forget(commit: str) -> str:
    """Make the newest commit of the ledger again, without the version in its message."""
    message = checkout.git("log", "-1", "--format=%B", commit)
    lines = [line for line in message.splitlines() if not line.startswith("Serves")]
    parents = checkout.git("log", "-1", "--format=%P", commit).split()
    flags = [word for parent in parents for word in ("-p", parent)]
    made = checkout.git("commit-tree", f"{commit}^{{tree}}", *flags, "-F", "-", text="\n".join(lines) + "\n")
    checkout.git("update-ref", branch.BRANCH, made, commit)
    return made


def test_a_note_is_no_night_and_a_night_that_was_open_meanwhile_follows_it() -> None:
    first = close(1, after="", release=release_of(1))
    for text in ("one", "two"):
        ledger_notes.add(Home.here(), text, versions=(1,))
    assert ledger.champion_at(Home.here(), branch.ledger_tip(Home.here())) == ledger.champion_at(
        Home.here(), first
    )
    assert (branch.newest_entry(Home.here()), [one.id for one in ledger.commits(Home.here(), 1)]) == (
        first,
        [first],
    )
    second = close(2, after=first, release=release_of(2))
    ledger_notes.add(Home.here(), "three", versions=(2,))
    back = rolling_back(to=1).commit()
    assert [one.id for one in ledger.commits(Home.here())] == [back, second, first]
    assert [one.id for one in ledger.commits(Home.here(), 2)] == [back, second]
    assert [(one.text, one.versions) for one in ledger_notes.read(Home.here())] == [
        ("one", (1,)),
        ("two", (1,)),
        ("three", (2,)),
    ]
    with pytest.raises(ReleaseError, match=f"moved the ledger from {second[:9]} first"):
        rolling_back(to=1, after=second).commit()


def test_a_note_that_is_newest_is_what_a_lost_ledger_is_brought_back_from() -> None:
    close(1, after="", release=release_of(1))
    ledger_notes.add(Home.here(), "seen", versions=(1,))
    tip = branch.ledger_tip(Home.here())
    checkout.git("update-ref", "-d", branch.BRANCH)
    assert branch.lost(Home.here())[0] == tip


def test_a_note_that_says_who_serves_is_a_fault() -> None:
    close(1, after="", release=release_of(1))
    ledger_notes.add(Home.here(), "seen", versions=(1,))
    assert list(ledger_notes.faults(Home.here(), branch.ledger_tip(Home.here()))) == []
    second = close(2, after=branch.newest_entry(Home.here()), release=release_of(2))
    words = ("commit-tree", f"{second}^{{tree}}", "-p", f"{second}^1", "-m", "seen\n\nNote: edit")
    forged = checkout.git(*words)
    (fault,) = ledger_notes.faults(Home.here(), forged)
    assert fault.startswith(f"note {forged[:9]} changes ") and "release.json" in fault


def test_a_lock_of_the_branch_that_an_interrupted_git_left_is_removed_and_one_that_is_held_is_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(branch, "GIT_LOCK_S", 1)
    first = close(1, after="", release=release_of(1))
    lock = home / ".git" / "refs" / "heads" / "nights.lock"
    lock.touch()
    os.utime(lock, (time.time() + HOUR_S,) * 2)  # as if somebody took it again and again
    with pytest.raises(ReleaseError, match=r"nights.lock': File exists.*nothing is changed"):
        close(2, after=first)
    assert (branch.ledger_tip(Home.here()), lock.exists()) == (first, True)
    os.utime(lock, (1, 1))
    second = close(2, after=first)
    assert (branch.ledger_tip(Home.here()), lock.exists()) == (second, False)
