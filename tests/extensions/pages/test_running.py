"""The state of a running night, by the launcher and by the files of the stages."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.backends.submission_journal import Submission, SubmissionJournal
from daybreak.contract.errors import NotYet
from daybreak.contract.record_parts import Taken
from daybreak.contract.record_types import Plan, Verdict
from daybreak.extensions.pages import open_nights, running
from daybreak.extensions.pages.board import running_rows
from daybreak.extensions.pages.live import RunningPage, part
from daybreak.extensions.pages.running import NightFacts, RunningNight, line
from daybreak.jobs.submissions import JobAttempts
from daybreak.storage.home import Home
from tests.extensions.pages import training_night
from tests.fakes import ScriptedBackend
from tests.jobs.calls import NIGHT, call
from tests.report.nights import lay, only, whole
from tests.rollout.ledgers import make_home
from tests.training import nights


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a night whose job has sent heartbeats for 80 seconds."""
    with training_night.training(tmp_path) as job:
        for number in range(1, 21):
            training_night.beat(job, number)
        yield tmp_path


def state(folder: Path, *, at_s: float) -> RunningNight:
    return running.running(
        open_nights.facts_of(Home(folder), folder), now=NIGHT.started_at + timedelta(seconds=at_s)
    )


def test_a_page_foretells_what_the_launcher_says_at_the_same_moment(folder: Path) -> None:
    with pytest.raises(NotYet) as pending:
        call(ScriptedBackend("running"), plan=nights.plan(num_samples=training_night.SAMPLES), at_s=90)
    said = re.search(r"(\d+)% of .* ETA (\d+) s \((\d+) to (\d+)\), in time with (\d+)%", str(pending.value))
    assert said
    now = state(folder, at_s=90)
    assert now.share is not None and now.chance is not None
    assert now.trained_at and now.interval

    def left_s(moment: datetime) -> int:
        return round((moment - NIGHT.started_at).total_seconds() - 90)

    shown = [
        round(100 * now.share),
        left_s(now.trained_at),
        *map(left_s, now.interval),
        round(100 * now.chance),
    ]
    assert shown == [int(number) for number in said.groups()]


def test_a_training_night_shows_its_stage_its_loss_and_its_fallbacks(folder: Path) -> None:
    (submissions,) = folder.glob("data/work/jobs/*/submissions.json")
    fallback = Taken(time=NIGHT.started_at, name="next fallback", usd=0.5, reason="there are none")
    JobAttempts(submissions.parent).take(fallback)
    now = state(folder, at_s=90)
    assert (now.stage, now.text, now.device) == ("train", "runs on local", "CPU")
    assert [link.stage for link in now.chain if link.state == "done"][-1] == "plan"
    assert now.loss[0] == (40.0, 1.0)
    assert now.fallbacks == (fallback,)
    words = line(now)
    assert words.startswith("train: runs on local, 27%, trained by ")
    assert "next fallback" in words
    (row,) = running_rows([now])
    assert (row["stage"], row["fallbacks"], json.dumps(row)) == ("train", ["next fallback"], json.dumps(row))
    html = part([RunningPage(state=now)], at=NIGHT.started_at)
    assert '<li class="now">train</li>' in html
    assert "<path" in html
    assert "there are none" in html


def facts(tmp_path: Path, *names: str, **changed: object) -> NightFacts:
    entry = replace(only(whole(), *names), **changed)  # type: ignore[arg-type]
    return open_nights.facts_of(Home(tmp_path), lay(entry, tmp_path, scores=False))


def at(facts: NightFacts, **hours: float) -> datetime:
    return facts.view.entry.night.started_at + timedelta(**hours)


def test_the_stage_is_the_one_after_the_last_that_has_ended(tmp_path: Path) -> None:
    night = facts(tmp_path, "batch", "report")
    assert running.running(night, now=at(night, hours=1)).stage == "prepare"
    late = running.running(night, now=at(night, hours=25))
    assert (late.is_late, late.chance) == (True, None)


def test_a_night_whose_stage_failed_says_so_until_it_is_closed(tmp_path: Path) -> None:
    night = facts(tmp_path, "batch")
    errors = {"validate": "DataError: a column is\nmissing"}
    failed = replace(night, view=replace(night.view, errors=errors))
    now = running.running(failed, now=at(night, hours=1))
    assert (now.stage, now.text) == ("", "validate failed: DataError: a column is missing")


def test_a_night_that_waits_for_a_person_says_until_when_and_how_to_answer(tmp_path: Path) -> None:
    verdict = whole().verdict
    assert verdict
    asked: Verdict = replace(verdict, approve_until=whole().night.decide_until)
    night = facts(tmp_path, "batch", "version", verdict=asked)
    now = running.running(night, now=at(night, hours=1))
    assert line(now).startswith(
        "approve: waits for a person until 2011-11-10 03:00 UTC: daybreak approve --night 2011-11-08"
    )
    assert not now.shows_evidence  # the gate has yet to write the page


def test_before_training_the_chance_is_the_plans(tmp_path: Path) -> None:
    plan = whole().plan
    assert plan
    planned: Plan = replace(plan, forecast=replace(plan.forecast, chance=0.93))
    night = facts(tmp_path, "batch", plan=planned)
    assert running.running(night, now=at(night, hours=1)).chance == 0.93


def test_a_job_without_machines_says_what_its_place_waits_for(tmp_path: Path) -> None:
    with training_night.training(tmp_path) as job:
        (job / "submissions.json").unlink()
        for at_s in (10, 20):
            with pytest.raises(NotYet):
                plan = nights.plan(num_samples=training_night.SAMPLES)
                call(ScriptedBackend("queued"), plan=plan, at_s=at_s)
        asked = Submission(
            name="a", job="n", rental=plan.rental, asked_at="2011-11-09T00:00:00+00:00", handle="r"
        )
        SubmissionJournal(job).put(replace(asked, waits="Pending: insufficient unused quota"))
        assert state(tmp_path, at_s=30).text == (
            f"waits for {plan.rental} (Pending: insufficient unused quota)"
        )


def test_a_night_is_given_up_an_hour_after_its_deadline_without_a_word(tmp_path: Path) -> None:
    night = facts(tmp_path, "batch")
    until = night.view.entry.night.decide_until
    silent = replace(night, written_at=until)
    assert running.is_open(silent, now=until - timedelta(seconds=1))
    assert running.is_open(silent, now=until + timedelta(minutes=59))
    assert not running.is_open(silent, now=until + timedelta(minutes=61))


def test_status_shows_a_night_that_runs_also_before_any_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_home(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)
    with training_night.training(tmp_path / "nights" / NIGHT.id):
        assert cli.main(["status"]) == 0
        assert "under way, train: starts on local" in capsys.readouterr().out
        assert cli.main(["status", "--watch"]) == 0  # once, as there is no terminal
        assert "under way" in capsys.readouterr().out
        assert cli.main(["status", "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["nights"]
        assert (row["night"], row["outcome"], row["stage"]) == (NIGHT.id, "open", "train")
