"""Listings of Slurm, as squeue and sacct print them."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from daybreak.extensions.slurm import slurm_client as client

AT = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)  # 02:30 in Berlin, for the second time that night


def row(*cells: str) -> str:
    return client.SEPARATOR.join(cells)


@pytest.fixture
def printing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Has squeue and sacct print a text, and times as they do: in the zone of their environment."""

    def made(text: str) -> None:
        (tmp_path / "listing").write_text(text)
        for name in ("squeue", "sacct"):
            now = f"$(/bin/date -d @{AT.timestamp():.0f} +%FT%T)"
            script = f"#!/bin/sh\n/bin/sed s/AT/{now}/g {tmp_path}/listing\n"
            (tmp_path / name).write_text(script)
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("TZ", "Europe/Berlin")

    return made


def test_times_are_right_in_the_hour_of_autumn_that_comes_twice(printing):
    printing(row("7", "RUNNING", "j", "{}", "AT", "N/A", "N/A", "None") + "\n")
    (job,) = client.listed()
    assert (job.submitted_at, job.started_at) == (AT, None)
    accounted = client.accounted("7", name="j")
    assert accounted
    assert accounted.submitted_at == AT


@pytest.mark.parametrize("comment", ["two\nlines", "a\n\n\n", "\r\n", "\x85\u2028", "8\n9"])
def test_a_comment_of_a_job_of_others_may_break_its_line(printing, comment):
    theirs = row("6", "PENDING", "x", comment, "AT", "N/A", "N/A", "Priority")
    mine = row("7", "RUNNING", "j", "{}", "AT", "AT", "N/A", "")
    printing(f"{theirs}\n{mine}\n")
    assert [(job.id, job.name, job.reason) for job in client.listed()] == [
        ("6", "x", "Priority"),
        ("7", "j", ""),
    ]
