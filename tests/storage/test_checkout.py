"""What git says, in words of ours, and whatever its user has set."""

from pathlib import Path

import pytest

from daybreak.night import opening
from daybreak.storage import branch, checkout, ledger_notes
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home, release_of

OF_A_USER = {
    "color.diff": "always",
    "color.status": "always",
    "color.ui": "always",
    "column.ui": "always",
    "core.commentChar": "N",
    "core.quotePath": "true",
    "diff.noprefix": "true",
    "diff.relative": "true",
    "i18n.commitEncoding": "latin1",
    "i18n.logOutputEncoding": "latin1",
    "log.decorate": "full",
    "log.showSignature": "true",
    "status.branch": "true",
    "status.short": "true",
    "status.showUntrackedFiles": "no",
    "trailer.separators": "=",
}


def test_a_ledger_is_written_and_read_alike_whatever_a_user_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    (home / "notes of \u00e4.txt").write_text("new")

    def seen() -> object:
        branch.all_commits.cache_clear()
        tip = branch.ledger_tip(Home.here())
        faults = list(ledger_notes.faults(Home.here(), tip))
        return branch.all_commits(Home.here(), tip), faults, opening.uncommitted(home)

    first = close(1, after="", release=release_of(1))
    ledger_notes.add(Home.here(), "caf\u00e9 \u4e2d", versions=(1,))
    before = seen()
    for name, value in OF_A_USER.items():
        checkout.git("config", name, value)
    assert seen() == before
    assert "notes of \u00e4.txt" in str(before)
    close(2, after=first, release=release_of(2))
    ledger_notes.add(Home.here(), "caf\u00e9 \u4e2d", versions=(1,))
    branch.all_commits.cache_clear()
    listed = branch.all_commits(Home.here(), branch.ledger_tip(Home.here()))
    assert [(one.night, one.serves) for one in listed if not one.is_note] == [
        ("2025-01-12", 2),
        ("2025-01-11", 1),
    ]
    assert listed[0].subject == listed[2].subject != ""


def test_a_repository_of_another_user_is_told_of_also_where_its_owner_cannot_be_seen() -> None:
    said = checkout._of_another_user("fatal: detected dubious ownership in repository at '/no such/home'")
    assert said.startswith("/no such/home is another user's, and git reads it for no other")
    assert said.endswith("--add safe.directory '/no such/home'")
