"""A home with a real ledger and nothing else, and releases that are ready to be made in it."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak.contract import records
from daybreak.contract.record_types import Batch, Night, Release, Verdict
from daybreak.rollout import night_events
from daybreak.rollout.saga import Move
from daybreak.storage import branch, checkout, ledger
from daybreak.storage.home import Home

FIRST = datetime(2025, 1, 10, tzinfo=UTC)


def make_home(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A git repository with one commit, the home of its nights and the current folder."""
    patch.setenv("DAYBREAK_HOME", str(folder))
    patch.chdir(folder)
    for who in ("AUTHOR", "COMMITTER"):
        patch.setenv(f"GIT_{who}_NAME", "A Test")
        patch.setenv(f"GIT_{who}_EMAIL", "test@example.org")
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message=Begin"]):
        subprocess.run(["git", *words], check=True)
    return folder


def release_of(number: int) -> Release:
    """Returns the release of version `number` in place of the version before, by the night of that number."""
    night = f"{FIRST + timedelta(days=number):%Y-%m-%d}"
    return Release(version=number, replaced=number - 1, night=night)


def promotion(number: int) -> Move:
    """The promotion of version `number` by its night, which follows the newest."""
    release, tip = release_of(number), branch.ledger_tip(Home.here())
    return Move(
        kind="promote", release=release, tip=tip, commit=lambda: close(number, after=tip, release=release)
    )


def close(
    number: int, *, after: str, release: Release | None = None, batch: bool = False, **of_night: Any
) -> str:
    """Commits night `number`, which follows that commit of the ledger, and returns its commit.

    With `batch` it has brought data in.
    """
    started = FIRST + timedelta(days=number)
    fields: dict[str, Any] = {
        "train_until": started + timedelta(hours=1),
        "decide_until": started + timedelta(hours=2),
        "started_at": started,
        "trigger": "schedule",
        **of_night,
    }
    night = Night(
        id=release_of(number).night,
        day=started.date(),
        budget_usd=3,
        code_commit=checkout.git("rev-parse", "HEAD"),
        previous=after,
        **fields,
    )
    records.write(night, records.RUN)
    if batch:
        came = Batch(day=night.day, num_rows=1, num_bytes=1, digest=f"day {number}", late_days=())
        records.write(came, records.RUN)
    Path("dvc.lock").write_text(f"data of night {number}\n")
    return ledger.commit_night(Home.here(), night, message=f"night {number}", release=release)


def rolling_back(*, to: int, data_of: int | None = None, after: str = "") -> Move:
    """The rollback from the newest version to another, with the data of its night or of another one's."""
    tip, entries = after or branch.newest_entry(Home.here()), ledger.history(Home.here())
    release = Release(version=to, replaced=entries[0].serving.version, night=release_of(to).night)
    tree_of = release_of(data_of or to).night
    target = next(entry.commit for entry in entries if entry.night.id == tree_of and not entry.rollback)
    verdict = Verdict(
        action="reject",
        champion=to,
        challenger=release.replaced,
        reason="rolled back",
    )
    event = night_events.rolled_back(release, by="ann", reason="worse", at=entries[0].night.started_at)
    return Move(
        kind="rollback",
        release=release,
        tip=tip,
        commit=lambda: ledger.commit_rollback(
            Home.here(), target, release, verdict, event, after=tip, message="back"
        ),
    )
