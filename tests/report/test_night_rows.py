"""Rows of nights: the same from the file as from the records, and of the ledger's commits alone."""

import json
import os
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from daybreak.contract.record_parts import JobSpan
from daybreak.report import night_rows
from daybreak.report.night_rows import NightRow, NightRows, row_of
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.report.histories import nights, write_ledger
from tests.report.nights import whole
from tests.rollout.ledgers import make_home

LAST = date(2026, 11, 24)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_home(tmp_path, monkeypatch)
    (tmp_path / "var").mkdir()
    write_ledger(tmp_path, list(nights(12, last=LAST)))
    return tmp_path


def lines(home: Path) -> list[str]:
    return (home / night_rows.FILE).read_text().splitlines()


def test_rows_of_the_file_are_those_of_the_records_newest_first(home: Path) -> None:
    made = NightRows(Home(home)).newest()
    assert made == [row_of(entry) for entry in ledger.history(Home.here())]
    assert [row.day for row in made][:2] == ["2026-11-24", "2026-11-23"]
    assert len(lines(home)) == 12
    read = NightRows(Home(home)).newest()
    assert read == made
    assert [row.spot_hours for row in read] == [row.spot_hours for row in made]
    assert read[0].spot_hours > 0
    assert sum(map(len, lines(home))) < 0.9 * sum(len(json.dumps(vars(row))) for row in made)


def test_a_kept_row_is_not_made_of_its_records_again_and_a_missing_or_torn_one_is(home: Path) -> None:
    made = NightRows(Home(home)).newest()
    kept = [json.loads(line) | {"reason": "as it was kept"} for line in lines(home)[:9]]
    text = "".join(json.dumps(line) + "\n" for line in kept) + '{"torn'
    (home / night_rows.FILE).write_text(text)
    read = NightRows(Home(home)).newest()
    assert read[:3] == made[:3]
    assert {row.reason for row in read[3:]} == {"as it was kept"}
    assert NightRows(Home(home)).newest() == read
    assert [row for row in read if row.reason != "as it was kept"] == made[:3]


def test_a_look_does_not_ask_git_for_each_night(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, git, folder = NightRows(Home(home)), shutil.which("git"), tmp_path_factory.mktemp("bin")
    rows.newest()
    (folder / "git").write_text(f'#!/bin/sh\necho "$1" >> {folder}/asked\nexec {git} "$@"\n')
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    assert len(rows.newest()) == 12
    assert 0 < len((folder / "asked").read_text().splitlines()) < 12


def test_rows_that_other_code_made_are_made_anew_and_the_file_does_not_grow(home: Path) -> None:
    made = NightRows(Home(home)).newest()
    old = [json.loads(line) | {"made_by": "older", "verdict": "?"} for line in lines(home)]
    (home / night_rows.FILE).write_text("".join(json.dumps(line) + "\n" for line in old))
    assert NightRows(Home(home)).newest() == made
    assert len(lines(home)) == 12


def test_rows_of_commits_that_the_ledger_lost_are_not_shown(home: Path) -> None:
    made = NightRows(Home(home)).newest()
    branch.move_to(Home.here(), made[2].commit, expected=made[0].commit, message="a lost ledger")
    assert NightRows(Home(home)).newest() == made[2:]


def test_a_home_that_nothing_can_be_written_to_has_its_rows_all_the_same(home: Path) -> None:
    (home / night_rows.FILE).mkdir()  # stands for any error of the disk
    rows = NightRows(Home(home))
    assert len(rows.newest()) == len(rows.newest()) == 12


def test_the_anchor_is_scored_by_itself_and_a_champion_that_is_its_own_anchor_as_the_champion(
    home: Path,
) -> None:
    entry = next(e for e in ledger.history(Home.here()) if e.evaluation and e.verdict and e.verdict.chain)
    assert entry.evaluation
    assert entry.verdict
    assert entry.verdict.chain
    assert entry.champion
    row = row_of(entry)
    assert row.anchor_score == entry.evaluation.metrics["anchor_score"]
    assert row.anchor_floor == pytest.approx(row.anchor_score - 0.012)
    chain = replace(entry.verdict.chain, anchor=entry.champion.version, offset=-0.004)
    own = row_of(replace(entry, verdict=replace(entry.verdict, chain=chain)))
    assert own.anchor_score == row.champion_score
    assert own.anchor_score
    assert own.anchor_floor == pytest.approx(own.anchor_score - 0.008)


def test_a_rollback_has_a_row_without_a_figure_of_the_night_it_goes_back_to() -> None:
    row = row_of(replace(whole(), rollback=True))
    assert (row.outcome, row.serves, row.usd, row.score, row.num_rows) == ("rollback", 12, None, None, None)


def test_a_night_that_moved_to_other_machines_is_no_forecast_that_failed() -> None:
    entry = whole()
    assert entry.plan and entry.training
    outside = replace(entry.training, elapsed_s=9 * entry.plan.forecast.interval[1])
    assert row_of(replace(entry, training=outside)).held is False
    span = JobSpan(
        rental=replace(entry.plan.rental, machine="another"),
        asked_at=entry.night.started_at,
        ran_at=entry.night.started_at,
        ended_at=entry.night.train_until,
        end="finished",
    )
    row = row_of(replace(entry, training=replace(outside, attempts=(span,))))
    assert (row.held, row.compared_s, row.moved) == (None, None, True)


def test_a_late_decision_is_told_from_one_in_time() -> None:
    row: NightRow = row_of(whole())
    assert not row.is_late
    assert not replace(row, decided_s=row.decide_within_s).is_late
    assert replace(row, decided_s=row.decide_within_s + 1).is_late
