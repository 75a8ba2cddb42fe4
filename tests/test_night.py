"""A night's deadline and folder, and its place in the ledger, in a real git repository."""

import json
import multiprocessing
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak import cli, dvc_file, hooks, runner, warm_parent
from daybreak.contract import params, records
from daybreak.contract.errors import FINAL, DataError, NothingToDo, NotYet, ParamsError, ReleaseError
from daybreak.contract.record_parts import Live, MeasuredEffect
from daybreak.contract.record_types import Batch, Events, Night, Release, Spans, Verdict
from daybreak.contract.table import Table, Time
from daybreak.extensions.care import audit
from daybreak.extensions.live_test.live_test import DECIDED, FOLDER
from daybreak.extensions.live_test.slots import joined
from daybreak.extensions.pages import open_nights
from daybreak.jobs.cost_tracker import JOBS
from daybreak.night import opening
from daybreak.report import links
from daybreak.rollout import night_events
from daybreak.storage import branch, checkout, dvc_cache, ledger, snapshots
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import open_log
from tests.fakes import ScriptedBackend, TwoDays
from tests.minimal_records import promotion


def opened(home: Path, **options: object) -> Night:
    os.chdir(home)
    night = runner.run(Home.here(), "open", **options)
    assert isinstance(night, Night)
    return night


def promoted(version: int, night: Night) -> None:
    records.write(decided(version, night), records.RUN)


def decided(version: int, night: Night) -> Release:
    """Writes the verdict that promotes a version, and returns the release that `promote` would write."""
    records.write(
        promotion(champion=version - 1, challenger=version),
        records.RUN,
    )
    return Release(version=version, replaced=version - 1, model_digest="", night=night.id)


def test_open_fixes_the_deadline_once(repository: Path) -> None:
    first = opened(repository, day=date(2025, 1, 2), trigger="manual: why not")
    assert first.train_until - first.started_at == timedelta(hours=1)
    assert first.decide_until - first.started_at == timedelta(hours=2)
    assert (first.budget_usd, first.previous, first.trigger) == (3, "", "manual: why not")
    assert opened(repository, day=date(2025, 1, 2), trigger="clear") == first


def test_what_a_stage_waits_for_is_shown_until_it_is_done(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = opened(repository, day=date(2025, 1, 3), set=["ingest.wait_hours=0.5"])
    records.write(Table(time="at", columns={"at": Time()}), records.RUN)

    def shown() -> list[str]:
        states = open_nights.states(Home(repository), now=datetime.now(UTC))
        return [state.text for state in states if state.night == night]

    with pytest.raises(NotYet):
        runner.run(Home.here(), "ingest")
    (text,) = shown()
    assert text.startswith(
        "the source has no data for 2025-01-03, its newest before that is 2025-01-02; the "
    )
    params.override(Path(), ["ingest.wait_hours=0"], into=Path())
    with pytest.raises(NothingToDo, match=r"the night waited .* for it, and the next one takes it if"):
        runner.run(Home.here(), "ingest")
    assert not list(Path().glob("data/run/*.waits"))
    assert shown() == ["is under way"]


LOCKED = """\
stages:
  open:
    frozen: true
    cmd: daybreak open
    outs: [data/champion, {data/run/night.json: {cache: false}}]
  ingest:
    frozen: true
    cmd: daybreak ingest
    deps: [data/run/night.json]
    outs: [data/raw, {data/run/batch.json: {cache: false}}]
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:_NoneStep.value:DeprecationWarning")  # dvc 3.67 on pygtrie 2.5
def test_dvc_knows_the_record_of_a_night_that_is_of_another_day_as_it_waited_in_vain(
    repository: Path, commit: Callable[[str], str], tmp_path: Path
) -> None:
    for day in (date(2025, 1, 1), date(2025, 1, 2)):
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(pa.table({"at": [datetime(2025, 1, day.day, 12)]}), tmp_path / "in" / f"{day}.parquet")
    (repository / "dvc.yaml").write_text(LOCKED)
    commit("Let DVC keep the data")
    source = f"source={{use: 'daybreak:Files', url: '{tmp_path}/in/{{day}}.parquet'}}"
    asked = [source, HERE[1], "ingest.wait_hours=1e-6"]  # over at once
    night = opened(repository, day=date(2025, 1, 3), trigger="schedule", set=asked)
    snapshots.record(Home.here(), "open")
    assert runner.stage(Home.here(), name="ingest") == 0
    assert (night.day, records.read(Night, records.RUN).day) == (date(2025, 1, 3), date(2025, 1, 2))
    assert snapshots.is_recorded(records.path_of(Night, records.RUN))
    status = subprocess.check_output(["dvc", "status", "open", "ingest"], text=True)
    assert "up to date" in status, status


def test_a_night_without_predictions_has_no_verdict_by_them(repository: Path) -> None:
    opened(repository, day=date(2025, 1, 1))
    records.replace_text(records.RUN / "predict.skipped", "predict.to is empty\n")
    records.replace_text(records.RUN / "train.skipped", "night 1 was overtaken\n")
    runner.run(Home.here(), "close")
    (entry,) = ledger.history(Home.here())
    assert entry.verdict and entry.verdict.reason == "night 1 was overtaken"


def test_a_night_without_its_day_says_so_though_nothing_could_be_predicted_either(repository: Path) -> None:
    opened(repository, day=date(2025, 1, 1))
    records.replace_text(records.RUN / "predict.error", "there are no rows to predict\n")
    records.replace_text(records.RUN / "ingest.skipped", "the source has no data for 2025-01-01\n")
    runner.run(Home.here(), "close")
    (entry,) = ledger.history(Home.here())
    assert entry.verdict and not entry.verdict.failed
    assert entry.verdict.reason == "the source has no data for 2025-01-01"


def test_what_failed_is_the_reason_of_a_night_that_predicted_in_vain_while_it_waited(
    repository: Path,
) -> None:
    opened(repository, day=date(2025, 1, 1))
    records.replace_text(records.RUN / "predict.error", "there are no rows to predict\n")
    os.utime(records.RUN / "predict.error", (1, 1))
    records.replace_text(records.RUN / "train.error", "there were no machines\n")
    runner.run(Home.here(), "close")
    (entry,) = ledger.history(Home.here())
    assert entry.verdict and entry.verdict.reason == "train failed: there were no machines"


def test_what_a_failed_training_cost_is_in_the_ledger(repository: Path) -> None:
    night = opened(repository, day=date(2025, 1, 1))
    for name, of in (("one", night.id), ("two", night.id), ("other", "another night")):
        records.replace_text(JOBS / name / "meter.json", json.dumps({"usd": 1.25, "night": of}))
    records.replace_text(records.RUN / "train.error", "there were no machines\n")
    runner.run(Home.here(), "close")
    (entry,) = ledger.history(Home.here())
    assert (entry.training, entry.usd) == (None, 2.5)


def test_days_are_missing_that_no_night_brought_in_since_the_first(repository: Path) -> None:
    days = [date(2025, 1, number) for number in (1, 2, 3, 4)]
    with pytest.raises(NothingToDo, match="no night has brought in a day yet"):
        runner.missing_days(Home(repository), days, newest=days[-1])
    for number, late in ((1, ()), (3, (days[2],))):
        opened(repository, day=days[number])
        batch = Batch(day=days[number], num_rows=1, num_bytes=1, digest="", late_days=late)
        records.write(batch, records.RUN)
        runner.run(Home.here(), "close")
        left = runner.missing_days(Home(repository), [*days, date(2025, 1, 5)], newest=days[-1])
        assert left == (days[2:] if number == 1 else [])  # one that came late was brought in by the next
    with pytest.raises(NothingToDo, match="the source has no missing day"):
        runner.nights(Home(repository), missing=True, last=days[1])
    with pytest.raises(ParamsError, match="name the days by --first and --last, or --missing"):
        runner.nights(Home(repository), first=days[0])


def test_a_night_of_airflow_knows_its_run_which_its_name_does_not_tell(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "retrain")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "manual__2025-01-02T20:26:01+00:00")
    night = opened(repository, day=date(2025, 1, 2), night="manual__2025-01-02T20-26-01-00-00")
    assert night.airflow_run == "retrain/manual__2025-01-02T20:26:01+00:00"


def test_a_night_runs_in_a_worktree_with_its_overrides_written_in(repository: Path) -> None:
    before = (repository / "params.yaml").read_text()
    night = opened(repository, night="a.b-c", set=["night.train_hours=0.5", "source.first=3"])
    assert Path.cwd() == repository / "nights" / "a.b-c"
    tonight = params.load(Path())
    assert tonight.night.train_hours == 0.5
    assert tonight.source.model_extra == {"first": 3}
    assert night.train_until - night.started_at == timedelta(minutes=30)
    assert (repository / "params.yaml").read_text() == before
    assert checkout.git("rev-parse", "HEAD") == night.code_commit


def test_a_key_that_needs_an_absent_extension_is_refused_when_a_night_opens(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    with pytest.raises(ParamsError, match=r"watch\.holdback needs the extension live_test"):
        opened(repository, day=date(2025, 1, 2), set=["watch.holdback=0.1"])


def test_more_code_than_may_travel_is_refused_when_a_night_opens_not_after_hours_of_training(
    repository: Path,
) -> None:
    (repository / "big.bin").write_bytes(b"x" * 2_500_000)
    checkout.git("add", "big.bin", folder=repository)
    checkout.git("commit", "-m", "Add a file that is no code", folder=repository)
    backend = '{"use": "daybreak:Vertex", "project": "p", "image": "i", '
    with pytest.raises(ParamsError) as refused:
        opened(
            repository,
            day=date(2025, 1, 2),
            set=[f'backend=[{backend}"bucket": "gs://b"}}]', "night.max_code_mb=2"],
        )
    message = str(refused.value)
    assert (
        "would travel to each job, more than night.max_code_mb: 2 allows; the largest: "
        f"{repository}/nights/2025-01-02/big.bin (2.5 MB), " in message
    )
    assert message.endswith(
        "have git ignore what is not code, keep it in a bucket, or raise night.max_code_mb"
    )
    assert opened(repository, day=date(2025, 1, 2)).day == date(2025, 1, 2)


def test_without_a_day_the_newest_of_the_source_is_taken(repository: Path) -> None:
    assert opened(repository).day == date(2025, 1, 2)


class Eternal:
    """Source of every day from 2025 on, tomorrow included."""

    def days(self) -> list[date]:
        tomorrow = datetime.now(UTC).date() + timedelta(days=1)
        return [date(2025, 1, 1) + timedelta(days=n) for n in range((tomorrow - date(2025, 1, 1)).days + 1)]


class OnTheDateLine:
    """Workload whose days end 12 hours after those of UTC."""

    table = Table(time="at", columns={"at": Time()}, zone="Etc/GMT+12")


HERE = ["source=tests.test_night:Eternal", "workload=tests.test_night:OnTheDateLine"]


@pytest.mark.parametrize(
    ("due", "day"),
    [
        ("2025-03-01T11:59:00+00:00", date(2025, 2, 27)),
        ("2025-03-01T12:00:00+00:00", date(2025, 2, 28)),
        ("2024-12-31T23:00:00-08:00", date(2024, 12, 30)),
    ],
)
def test_a_night_that_is_due_has_the_newest_day_that_was_over_where_the_data_comes_from(
    repository: Path, due: str, day: date
) -> None:
    assert opened(repository, night="due", due=due, set=HERE).day == day


def test_a_night_of_a_schedule_that_may_wait_takes_the_day_that_is_over_though_the_source_has_it_not(
    repository: Path,
) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    waits = opened(repository, trigger="schedule", set=["ingest.wait_hours=1"])
    assert waits.day in (yesterday, yesterday + timedelta(days=1))  # midnight may pass meanwhile


def test_a_night_of_a_schedule_that_does_not_wait_takes_the_newest_day_of_the_source(
    repository: Path,
) -> None:
    assert opened(repository, trigger="schedule").day == date(2025, 1, 2)


@pytest.mark.parametrize(
    ("late_minutes", "left_minutes", "told"),
    [
        (20, 40, "then"),
        (40, 40, r"[-\d]+ [:\d]+ UTC, as it opens after half of night.train_hours"),
        (90, 60, r"[-\d]+ [:\d]+ UTC, as it opens after half of night.train_hours"),  # as of a backfill
    ],
    ids=["20", "40", "90"],
)
def test_the_deadline_counts_from_when_the_night_was_due_and_leaves_half_of_the_time_to_train(
    repository: Path, late_minutes: int, left_minutes: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "daybreak")
    due = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=late_minutes)
    asked = ["predict.to=predictions", "predict.by_hours=1.5"]
    night = opened(repository, due=due.isoformat(), day=date(2025, 1, 2), set=asked)
    left = night.train_until - night.started_at
    opened_s = (night.started_at - due).total_seconds() - 60 * late_minutes  # a second or two of the test
    assert abs(left.total_seconds() - 60 * left_minutes) <= opened_s
    since = night.train_until - timedelta(hours=1)
    assert night.decide_until == since + timedelta(hours=2)
    assert night.predict_until == since + timedelta(hours=1.5)
    assert re.search(f"its deadlines count from {told}", caplog.text)


@given(hours=st.floats(0.1, 100), late=st.lists(st.floats(-1, 400), min_size=2, max_size=2))
def test_a_night_that_opens_later_has_no_earlier_deadline_and_none_that_leaps(
    hours: float, late: list[float]
) -> None:
    due, to_train = datetime(2025, 1, 31, 3), timedelta(hours=hours)
    first, second = (due + timedelta(hours=one) for one in sorted(late))
    ends = [opening._since(due, now, to_train=to_train) + to_train for now in (first, second)]
    microsecond = timedelta(microseconds=2)
    assert -microsecond <= ends[1] - ends[0] <= 2 * (second - first) + microsecond
    for now, end in zip((first, second), ends, strict=True):
        assert to_train / 2 - microsecond <= end - now <= to_train


def test_a_day_that_is_not_over_is_neither_taken_nor_opened(repository: Path) -> None:
    newest = (datetime.now(UTC) - timedelta(hours=12)).date() - timedelta(days=1)
    with pytest.raises(ParamsError, match=r"is not over in Etc/GMT\+12 until .* UTC; ask for"):
        opened(repository, day=newest + timedelta(days=1), set=HERE)
    assert opened(repository, set=HERE).day == newest


def test_a_moment_without_an_offset_is_no_time_for_a_night(repository: Path) -> None:
    with pytest.raises(ParamsError, match="is not a moment; write"):
        opened(repository, due="2025-01-31T03:00:00", set=HERE)


def test_an_open_that_was_killed_while_git_made_the_worktree_is_laid_anew(repository: Path) -> None:
    """Git has locked the worktree by then, and neither forgets it nor adds it again."""
    folder = repository / "nights" / "2026-03-05"
    words = ["worktree", "add", "--quiet", "--detach", "--lock", "--reason", "initializing", str(folder)]
    checkout.git(*words, folder=repository)
    shutil.rmtree(folder)
    opening._worktree(repository, folder, "HEAD")
    assert (folder / "params.yaml").exists()
    shutil.rmtree(folder)
    checkout.git(*words, "--force", folder=repository)
    checkout.remove_worktrees(repository, [folder])
    assert "2026-03-05" not in checkout.git("worktree", "list", folder=repository)


def test_what_an_open_that_was_killed_left_is_laid_anew(repository: Path) -> None:
    folder = repository / "nights" / "2025-01-02"
    folder.mkdir(parents=True)
    (folder / "half").write_text("of something")
    assert opened(repository).day == date(2025, 1, 2)
    assert not (folder / "half").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"day": date(2999, 1, 1)}, "is in the future"),
        ({"night": "../x"}, "is not a valid name"),
        ({"set": ["night.train_hours=soon"]}, "night.train_hours is 'soon'"),
        ({"set": ["nihgt.train_hours=1"]}, "nihgt is not a key"),
        ({"set": ["night.train_hours"]}, "is not an assignment"),
        ({"set": ["night.train_hours=30"]}, "decide_hours 2 is before train_hours 30"),
        (
            {"set": ["source={use: 'tests.fakes:TwoDays', first: 2026-01-01}"]},
            "source.first is a date without",
        ),
        ({"set": ["source=no.such.module:S"]}, "there is no module no.such.module"),
        ({"set": ["workload=tests.nothing:W"]}, "there is no module tests.nothing"),
        ({"set": ["source=tests.fakes:Missing"]}, "tests.fakes:Missing does not import"),
    ],
)
def test_a_wrong_wish_is_refused_in_one_sentence(
    repository: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ParamsError, match=reason) as error:
        opened(repository, **options)
    assert "; " in str(error.value)
    assert not (repository.parent / "x").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["plan", "--explain"], "--night"),
        (["train"], "daybreak open"),
        (["nights", "--first", "2026-03-05", "--last", "2026-03-01"], "--first 2026-03-05"),
    ],
)
def test_a_command_in_a_place_where_it_cannot_work_is_told_in_one_sentence(
    repository: Path, words: list[str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(words) == FINAL
    (line,) = caplog.messages
    assert named in line


def test_an_option_that_is_mistyped_at_a_terminal_makes_no_night(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    person, here = pty.openpty()
    with os.fdopen(person, "w"), os.fdopen(here) as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", terminal)
        assert cli.main(["night", "--day", "2999-01-01"]) == FINAL
    assert "day 2999-01-01 is in the future" in caplog.text
    assert not list((repository / "nights").glob("*"))
    assert not list(ledger.commits(Home.here()))


UNREACHABLE = 'source={use: "daybreak:Files", url: "http://127.0.0.1:9/{day}.csv"}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "words", "status", "cause"),
    [
        ("night: {", [], 78, "params.yaml is not YAML"),
        ("nihgt: {}", [], 78, "nihgt is not a key"),
        ("", ["--day", "2999-01-01"], 78, "day 2999-01-01 is in the future"),
        ("", ["--set", "source=tests.fakes:Missing"], 78, "tests.fakes:Missing does not import"),
        ("", ["--set", UNREACHABLE], 1, "http://127.0.0.1:9/{day}.csv cannot be listed"),
    ],
)
def test_a_night_that_cannot_be_opened_is_one_of_the_ledger_with_its_cause(
    repository: Path, commit: Callable[[str], str], broken: str, words: list[str], status: int, cause: str
) -> None:
    messages = repository / "messages"
    written = f"{(repository / 'params.yaml').read_text()}notify: {{command: 'cat >> {messages}'}}\n"
    (repository / "params.yaml").write_text(written)
    commit("Tell people")
    first = opened(repository, day=date(2025, 1, 1))
    promoted(1, first)
    runner.run(Home.here(), "close")
    os.chdir(repository)
    (repository / "params.yaml").write_text(f"{written}{broken}\n")
    commit("Break it")
    assert cli.main(["night", "--night", "two", *words]) == status
    newest, before = ledger.history(Home.here())
    assert newest.verdict and (newest.night.id, newest.verdict.failed) == ("two", "open")
    assert cause in newest.verdict.reason
    assert newest.champion and newest.champion.version == 1
    assert [(e.kind, e.subject) for e in night_events.of_night(Home.here(), "two")] == [("failed", "open")]
    assert cause in (repository / "nights" / "two" / links.PAGE).read_text().replace("&#34;", '"')
    assert messages.read_text().count(cause) == 1

    (repository / "params.yaml").write_text(written)
    commit("Repair it")
    os.chdir(repository)
    again = opened(repository, night="two", day=date(2025, 1, 2))
    assert [state.night.id for state in open_nights.states(Home(repository), now=datetime.now(UTC))] == [
        "two"
    ]
    promoted(2, again)
    runner.run(Home.here(), "close")
    assert [(e.night.id, e.promoted) for e in ledger.history(Home.here())] == [
        ("two", True),
        (before.night.id, True),
    ]
    texts = branch.texts_at(Home.here(), [c.id for c in ledger.commits(Home.here())], [*audit.PATHS.values()])
    assert not list(
        audit.chain_faults(ledger.commits(Home.here()), [audit.decoded(files) for files in texts])
    )


@pytest.mark.slow
def test_a_night_that_could_not_be_opened_and_is_not_closed_holds_up_no_other(repository: Path) -> None:
    with pytest.raises(ParamsError):
        opened(repository, night="one", day=date(2999, 1, 1))
    assert opened(repository, night="two", day=date(2025, 1, 2)).id == "two"
    states = {one.night.id: one.text for one in open_nights.states(Home(repository), now=datetime.now(UTC))}
    assert states["one"].startswith("open failed: day 2999-01-01 is in the future")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["stop", "close"])
def test_a_night_whose_params_cannot_be_read_can_be_ended(
    repository: Path, ending: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened(repository, night="one")
    with Path("params.yaml").open("a") as file:
        file.write("night: {\n")
    runner.run(Home.here(), ending)
    assert f"until then, that of {repository} is read where a night ends" in caplog.text
    runner.run(Home.here(), "close")
    assert [entry.night.id for entry in ledger.history(Home.here())] == ["one"]


@pytest.mark.slow
def test_close_chains_nights_with_the_code_commit_as_second_parent(
    repository: Path, commit: Callable[[str], str]
) -> None:
    one = opened(repository, day=date(2025, 1, 1))
    runner.run(Home.here(), "close")
    os.chdir(repository)
    code = commit("Change nothing") if (repository / "new").write_text("x") else ""
    two = opened(repository, day=date(2025, 1, 2))
    runner.run(Home.here(), "close")
    entries = ledger.history(Home.here())
    assert [entry.night for entry in entries] == [two, one]
    assert two.previous == entries[1].commit
    parents = checkout.git("show", "-s", "--format=%P", entries[0].commit).split()
    assert parents == [entries[1].commit, code]
    assert entries[0].verdict and entries[0].verdict.action == "no data"
    assert entries[0].verdict.failed == ""


@pytest.mark.slow
def test_closing_twice_makes_one_commit(repository: Path) -> None:
    opened(repository)
    runner.run(Home.here(), "close")
    tip = branch.ledger_tip(Home.here())
    runner.run(Home.here(), "close")
    assert branch.ledger_tip(Home.here()) == tip


@pytest.fixture
def fakes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets commands that run in the folder of a night import `tests.fakes`."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))


def advised(message: str) -> list[str]:
    """The words after `daybreak` of the command that a message ends with."""
    return shlex.split(message.rpartition("daybreak ")[2])


@pytest.mark.slow
@pytest.mark.usefixtures("fakes_elsewhere")
def test_a_night_opens_once_no_other_night_of_the_home_may_be_decided(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    one = opened(repository, night="one", day=date(2025, 1, 1))
    os.chdir(repository)
    assert cli.main(["open", "--night", "two"]) == NotYet.exit_status
    assert "night one is open" in caplog.messages[-1]
    assert not (repository / "nights" / "two").exists()
    assert opened(repository, night="one") == one  # goes on
    os.chdir(repository)
    assert cli.main(["open", "--night", "two"]) == NotYet.exit_status
    assert cli.main(advised(caplog.messages[-1])) == 0
    assert opened(repository, night="two").id == "two"


@pytest.mark.slow
@pytest.mark.usefixtures("fakes_elsewhere")
def test_a_night_opens_beside_those_that_only_wait_for_users_up_to_the_number_of_challengers(
    repository: Path, caplog: pytest.LogCaptureFixture, commit: Callable[[str], str]
) -> None:
    caplog.set_level("INFO")
    live = "gate: {scores: live}\nlive_test: {challengers: 2}\n"
    (repository / "params.yaml").write_text(f"{(repository / 'params.yaml').read_text()}{live}")
    commit("let users judge two challengers at once")
    log = open_log(f"sqlite:///{repository / 'var' / 'serving.db'}")
    for number, name in enumerate(("one", "two"), start=2):
        night = opened(repository, night=name, day=date(2025, 1, 1))
        os.chdir(repository)
        assert cli.main(["open", "--night", "next"]) == NotYet.exit_status  # it trains
        now = datetime.now(UTC)
        on = Live(experiment=name, began_at=now, ends_at=night.decide_until, foretold="")
        records.write(on, repository / "nights" / name / FOLDER)
        assert cli.main(["open", "--night", "next"]) == NotYet.exit_status  # it waits for a part of the users
        begun = partial(joined, challenger=number, experiment=name, num_slots=2)
        log.traffic.set(begun(replace(log.traffic.read(), champion=1)))
    assert cli.main(["open", "--night", "next"]) == NotYet.exit_status
    assert "night one is open" in caplog.messages[-1]
    decided = repository / "nights" / "one" / DECIDED
    decided.write_text("{}")  # and about to serve
    assert cli.main(["stop", "--night", "two", "--reason", "a test"]) == 0
    assert cli.main(["open", "--night", "next"]) == NotYet.exit_status
    decided.unlink()
    assert cli.main(["open", "--night", "next"]) == 0


def overtaken_night(home: Path) -> Night:
    """Returns night `one`, which missed the deadline; night `two` was opened later, and promoted."""
    one = opened(home, night="one", day=date(2025, 1, 1))
    records.write(replace(one, decide_until=one.started_at), records.RUN)
    two = opened(home, night="two", day=date(2025, 1, 2))
    promoted(1, two)
    runner.run(Home.here(), "close")
    os.chdir(home / "nights" / "one")
    return one


@pytest.mark.slow
def test_a_night_that_was_overtaken_closes_and_leaves_the_champion_as_it_is(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = overtaken_night(repository)
    release = decided(1, one)
    with pytest.raises(ReleaseError, match="night one was overtaken by night two, by which version 1"):
        ledger.commit_night(Home.here(), one, message="late", release=release)
    with pytest.raises(NothingToDo, match="was overtaken by night two"):
        runner.run(Home.here(), "promote")
    for _ in range(2):
        runner.run(Home.here(), "close")
    newest, before = ledger.history(Home.here())
    assert (newest.night.id, newest.release, newest.night.previous) == ("one", None, before.commit)
    assert newest.verdict and newest.verdict.action == "reject"
    assert newest.verdict.reason.startswith("night one was overtaken by night two, by which version 1")
    assert ledger.champion_at(Home.here(), newest.commit) == ledger.champion_at(Home.here(), before.commit)
    texts = branch.texts_at(Home.here(), [newest.commit, before.commit], [*audit.PATHS.values()])
    assert not list(
        audit.chain_faults(ledger.commits(Home.here()), [audit.decoded(files) for files in texts])
    )

    words = advised(caplog.messages[-1])
    assert words == ["night", "--day", "2025-01-01", "--night", "2025-01-01-2"]
    os.chdir(repository)
    assert cli.main(["open", *words[1:]]) == 0
    assert records.read(Night, repository / "nights" / words[-1] / records.RUN).previous == newest.commit


@pytest.mark.slow
@pytest.mark.usefixtures("fakes_elsewhere")
def test_a_night_that_was_overtaken_is_ended_by_stop_and_holds_up_no_prune(
    repository: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    one = overtaken_night(repository)
    records.write(replace(one, decide_until=one.started_at + timedelta(days=1)), records.RUN)
    os.chdir(repository)
    caplog.clear()
    assert cli.main(["prune"]) == 0
    assert "is open" not in caplog.text
    assert cli.main(["stop", "--night", "one", "--reason", "the other is newer"]) == 0
    assert cli.main(advised(capfd.readouterr().err.strip())) == 0
    newest = ledger.history(Home.here())[0]
    assert (newest.night.id, newest.stopped and newest.stopped.reason) == ("one", "the other is newer")
    assert newest.serving and newest.serving.version == 1


@pytest.mark.slow
def test_an_error_that_asks_for_an_edit_names_the_command_that_opens_a_night_with_it(
    repository: Path, commit: Callable[[str], str]
) -> None:
    opened(repository, day=date(2025, 1, 2))
    written = Path("params.yaml").read_text()
    Path("params.yaml").write_text(f"{written}\nwatch: {{after: 0}}\n")
    with pytest.raises(ParamsError, match="watch") as refused:
        runner.run(Home.here(), "plan")
    words = advised(str(refused.value))
    assert words == ["night", "--day", "2025-01-02", "--night", "2025-01-02-2"]
    assert (records.RUN / "plan.error").read_text().strip() == str(refused.value)
    Path("params.yaml").write_text(written)
    runner.run(Home.here(), "close")
    os.chdir(repository)
    (repository / "edited").touch()
    code = commit("Edit what the message asks for")
    assert cli.main(["open", *words[1:]]) == 0
    assert records.read(Night, repository / "nights" / words[-1] / records.RUN).code_commit == code


@pytest.mark.slow
def test_a_night_that_decided_nothing_overtakes_nobody(repository: Path) -> None:
    one = opened(repository, night="one", day=date(2025, 1, 1))
    records.write(replace(one, decide_until=one.started_at), records.RUN)
    opened(repository, night="two", day=date(2025, 1, 2))
    runner.run(Home.here(), "close")
    os.chdir(repository / "nights" / "one")
    promoted(1, one)
    runner.run(Home.here(), "close")
    assert [(each.night.id, each.release is not None) for each in ledger.history(Home.here())] == [
        ("one", True),
        ("two", False),
    ]


@pytest.mark.slow
@pytest.mark.promise
def test_of_many_nights_that_promote_at_the_same_instant_exactly_one_does(repository: Path) -> None:
    names = [f"n{i}" for i in range(4)]
    for number, name in enumerate(names, 1):
        night = opened(repository, night=name)
        promoted(number, night)
        records.write(replace(records.read(Release, records.RUN), replaced=0), records.RUN)
        records.write(replace(night, decide_until=night.started_at), records.RUN)  # so that the next may open
    code = (
        "from daybreak.contract import record_types as t, records; from daybreak.storage import home, ledger;"
        "night, release = [records.read(k, records.RUN) for k in (t.Night, t.Release)];"
        "ledger.commit_night(home.Home.here(), night, message='m', release=release)"
    )
    closing = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=repository / "nights" / name,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    outputs = [process.communicate()[1].decode() for process in closing]
    assert sorted(process.returncode for process in closing) == [0, 1, 1, 1], outputs
    assert len(ledger.history(Home.here())) == 1


@pytest.mark.slow
def test_of_nights_that_are_opened_at_the_same_instant_one_has_its_turn_beside_a_prune(
    repository: Path,
) -> None:
    """Two openers of one night see one record; bench_openers races more, and kills some."""
    os.chdir(repository)
    names = ("n1", "n1", "n2")
    fork = multiprocessing.get_context("fork")
    commands = [["open", "--night", name, "--day", "2025-01-02"] for name in names]
    calls = [fork.Process(target=ends_well, args=(words,)) for words in (*commands, ["prune"])]
    for call in calls:
        call.start()
    for call in calls:
        call.join(500)
    codes = [call.exitcode for call in calls]
    won = "n2" if codes[2] == 0 else "n1"
    assert codes == [0 if name == won else NotYet.exit_status for name in names] + [0]
    (folder,) = (repository / "nights").glob("n*")
    night = records.read(Night, folder / records.RUN)
    assert (night.id, night.code_commit) == (won, checkout.git("rev-parse", "HEAD", folder=folder))
    assert params.load(folder) == params.load(repository)


def ends_well(words: list[str]) -> None:
    status = cli.main(words)
    sys.exit(0 if status == NothingToDo.exit_status else status)


@pytest.mark.slow
def test_a_failed_night_closes_as_failed_and_keeps_the_champion(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    night = opened(repository, day=date(2025, 1, 1))
    promoted(1, night)
    runner.run(Home.here(), "close")
    opened(repository, day=date(2025, 1, 2))
    (records.RUN / "ingest.error").write_text("the source is gone; bring it back\n")
    runner.run(Home.here(), "close")
    assert "ingest failed: the source is gone" in caplog.text
    newest = ledger.history(Home.here())[0]
    assert newest.verdict and "ingest failed" in newest.verdict.reason
    assert newest.verdict.failed == "ingest"
    assert newest.serving and newest.serving.version == 1


def test_the_ledger_keeps_when_the_stages_of_a_night_were_called_those_that_wait_as_one_span(
    repository: Path,
) -> None:
    night = opened(repository, day=date(2025, 1, 3), set=["ingest.wait_hours=0.5"])
    records.write(Table(time="at", columns={"at": Time()}), records.RUN)
    for _ in range(2):
        with pytest.raises(NotYet):
            runner.run(Home.here(), "ingest")
    params.override(Path(), ["ingest.wait_hours=0"], into=Path())
    with pytest.raises(NothingToDo):
        runner.run(Home.here(), "ingest")
    runner.run(Home.here(), "close")
    (entry,) = ledger.history(Home.here(), limit=1)
    assert entry.spans
    first, ingest = entry.spans.stages
    assert (first.stage, first.end, first.began_at) == ("open", "done", night.started_at)
    assert (ingest.num_calls, ingest.end) == (3, "nothing to do")
    assert ingest.began_at < ingest.last_call_at <= ingest.ended_at
    assert "; the night waited " in ingest.why
    in_folder = records.read(Spans, records.RUN)
    assert [one.stage for one in in_folder.stages] == ["open", "ingest", "close"]


@pytest.mark.slow
def test_a_failed_night_that_goes_on_and_is_rejected_is_one_entry_with_its_verdict(repository: Path) -> None:
    opened(repository)
    failure = records.RUN / "train.error"
    failure.write_text("no room\n")
    for _ in range(2):
        runner.run(Home.here(), "close")
        (entry,) = ledger.history(Home.here())
        assert entry.verdict and (entry.verdict.action, entry.verdict.failed) == ("no data", "train")
    failure.unlink()
    records.write(
        Verdict(
            action="reject",
            champion=0,
            challenger=1,
            effect=MeasuredEffect(mean=-0.1, low=-0.2, high=0.0),
            num_samples=10,
            reason="worse",
        ),
        records.RUN,
    )
    for _ in range(2):
        runner.run(Home.here(), "close")
        (entry,) = ledger.history(Home.here())
        assert entry.verdict and (entry.verdict.action, entry.verdict.failed) == ("reject", "")
    assert len(checkout.git("log", "--first-parent", "--format=%H", "nights", "^main").split()) == 2


@pytest.mark.slow
def test_a_night_whose_promotion_failed_without_a_word_is_closed_as_failed_and_may_promote_after_all(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stage cannot mark its failure where the disk takes no file any more."""
    night = opened(repository)
    release = decided(1, night)
    runner.run(Home.here(), "close")
    assert "promote failed: it was ended before version 1 served" in caplog.text
    assert ledger.history(Home.here())[0].serving is None
    ledger.commit_night(Home.here(), night, message="it fits now", release=release)
    assert [entry.serving and entry.serving.version for entry in ledger.history(Home.here())] == [1]


@pytest.mark.slow
def test_a_rollback_has_the_tree_of_the_night_it_goes_back_to(repository: Path) -> None:
    one = opened(repository, day=date(2025, 1, 1))
    promoted(1, one)
    runner.run(Home.here(), "close")
    first = branch.ledger_tip(Home.here())
    two = opened(repository, day=date(2025, 1, 2))
    promoted(2, two)
    runner.run(Home.here(), "close")
    tip = branch.ledger_tip(Home.here())
    back = Release(version=1, replaced=2, model_digest="", night=one.id)
    verdict = records.read(Verdict, records.RUN)
    event = night_events.rolled_back(back, by="ann", reason="worse", at=two.started_at)
    ledger.commit_rollback(
        Home.here(), first, back, verdict, event, after=tip, message="rollback to 1: worse"
    )
    newest = ledger.history(Home.here())[0]
    assert newest.rollback and newest.serving and newest.serving.version == 1
    changed = checkout.git("diff", "--name-only", first, newest.commit, folder=repository)
    own = {"data/run/release.json", "data/run/verdict.json", "data/run/events.json"}
    assert set(changed.split()) <= own
    assert newest.events == Events(events=(event,))
    with pytest.raises(ReleaseError, match="moved the ledger"):
        ledger.commit_rollback(Home.here(), first, back, verdict, event, after=tip, message="again")


def test_records_are_read_as_they_were_written_and_nothing_else(tmp_path: Path) -> None:
    release = Release(version=3, replaced=2, model_digest="ab.dir", night="n", lineage={"code": "c"})
    path = records.write(release, tmp_path)
    assert records.read(Release, tmp_path) == release
    path.write_text(path.read_text().replace('"replaced"', '"repalced"'))
    with pytest.raises(DataError, match="replaced"):
        records.read(Release, tmp_path)


def test_a_torn_index_of_the_checkout_does_not_keep_a_night_from_opening(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (repository / ".git" / "index").write_bytes(b"torn")
    assert opening.open(Home.here(), day=date(2026, 3, 4)).day == date(2026, 3, 4)
    assert "whether there are files that are not part of a night is unknown" in caplog.text


@pytest.mark.slow
def test_a_night_whose_cache_cannot_be_read_again_is_closed_and_ends_its_parent(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened(repository)
    (dvc_cache.path_of(Home.here(), "zz" + "not-hexadecimal-of-30-letters.") / "of-a-person").mkdir(
        parents=True
    )
    warm_parent.NOTE.write_text("no socket")
    runner.run(Home.here(), "close")
    assert "DVC's cache could not be read again" in caplog.text
    assert len(ledger.history(Home.here())) == 1
    assert not warm_parent.NOTE.exists()


class Endless(TwoDays):
    """Source that is fetching until Ctrl-C."""

    def fetch(self, day: date, folder: Path) -> None:
        Path(os.environ["DAYBREAK_HOME"], "var", "fetching").touch()
        time.sleep(600)


class Cloud(ScriptedBackend):
    """Backend that is made in a second, as the client of a cloud is."""

    def __init__(self) -> None:
        time.sleep(1)
        super().__init__()


@pytest.mark.slow
def test_ctrl_c_on_nights_waits_until_the_night_has_ended_its_jobs(
    repository: Path, commit: Callable[[str], str]
) -> None:
    (repository / "dvc.yaml").write_text(dvc_file.text(repository))
    commit("Write the stages")
    words = ["nights", "--first", "2025-01-01", "--last", "2025-01-02"]
    for plug in ("source=Endless", "workload=OnTheDateLine", "backend=Cloud"):
        words += ["--set", plug.replace("=", "=tests.test_night:")]
    # A shell's background job, which may have started this test, ignores Ctrl-C.
    heeds_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    nights = subprocess.Popen(
        [sys.executable, "-m", "daybreak", *words],
        cwd=repository,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
        preexec_fn=heeds_ctrl_c,  # noqa: PLW1509
    )
    while not (repository / "var" / "fetching").exists():
        assert nights.poll() is None, nights.communicate()
        time.sleep(0.05)
    os.killpg(nights.pid, signal.SIGINT)  # as a terminal does
    assert "night 2025-01-01 is stopped; go on with" in nights.communicate(timeout=600)[1]
    assert nights.returncode == 130
