"""Commands of the command line that are neither stages nor nights."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from itertools import count
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.errors import NothingToDo
from daybreak.contract.formats import short_id
from daybreak.contract.record_types import Version
from daybreak.storage import checkout
from daybreak.storage.home import Home
from tests.extensions.pages import fleet as fleets
from tests.training import nights as training_nights

VERSION = Version(name="m", number=3, night="n1", data_digest="d", model_digest="e", run_id="r")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(line: str) -> list[str]:
    """How a shell with argcomplete would go on with a line that begins with `daybreak`."""
    file = Path("completions")
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(file),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    given = {**os.environ, **asked, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    subprocess.run([sys.executable, "-m", "daybreak"], env=given, check=True, capture_output=True)
    return [word.strip() for word in file.read_text().split("\n")]


@pytest.mark.slow
def test_a_shell_completes_commands_their_options_and_nights(home: Path) -> None:
    (home / "nights" / "2025-01-10").mkdir(parents=True)
    assert completed("daybreak roll") == ["rollback"]
    assert {"--steps", "--reason", "--by"} <= set(completed("daybreak rollback --"))
    assert completed("daybreak plan --night 2025") == ["2025-01-10"]
    assert completed("daybreak report --night ") == ["2025-01-10"]


def test_a_record_is_shown_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.write(VERSION, home / "nights/n1" / records.RUN)
    assert cli.main(["show", "version", "--night", "n1"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 3


@pytest.mark.slow
def test_a_night_with_a_long_id_is_known_by_its_short_form_unless_that_means_two(
    repository: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    runs = [f"manual__2026-11-{day}T20-26-01.192720-00-00" for day in ("04", "21")]
    for run in runs:
        records.write(replace(VERSION, night=run), repository / "nights" / run / records.RUN)
    assert cli.main(["show", "version", "--night", short_id(runs[1])]) == 0
    assert json.loads(capsys.readouterr().out)["night"] == runs[1]
    twin = next(run for n in count() if short_id(run := f"manual__{n:020}") == short_id(runs[0]))
    (repository / "nights" / twin).mkdir()
    assert cli.main(["show", "version", "--night", short_id(runs[0])]) == 78
    assert "write it whole" in caplog.text


@pytest.mark.slow
def test_a_night_is_known_by_its_day_but_a_new_one_has_the_name_that_is_given(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = "manual__2026-11-25T20-26-01.192720-00-00"
    night = training_nights.night(name=run, day=date(2026, 11, 25))
    records.write(night, repository / "nights" / run / records.RUN)
    assert cli.main(["show", "night", "--night", "2026-11-25"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == run
    assert cli._night_of(Home.here(), "2026-11-25", may_be_new=True) == "2026-11-25"
    assert cli._night_of(Home.here(), "2026-11-26") == "2026-11-26"


def test_the_help_of_an_option_is_its_whole_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["open", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "its day is the newest over then, and its deadline counts from then." in shown


@pytest.mark.parametrize(
    ("word", "hint"), [("statsu", "did you mean status?"), ("xyzzy", "see daybreak --help")]
)
def test_a_command_that_does_not_exist_is_answered_with_the_one_that_was_meant(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([word, "--last", "3"])
    said = capsys.readouterr().err
    assert f"{word} is not a command; {hint}" in said
    assert len(said.splitlines()) <= 2


def test_a_word_that_is_not_utf_8_is_refused_before_a_record_has_to_keep_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["rollback", "--reason", os.fsdecode(b"caf\xe9")])
    said = capsys.readouterr().err
    assert r"'caf\udce9' is not UTF-8, so no record could keep it; write it in UTF-8" in said


def test_a_record_that_is_not_there_yet_is_nothing_to_show(home: Path) -> None:
    assert cli.main(["show", "verdict", "--night", "n1"]) == 99


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models with three nights each."""
    return fleets.make(tmp_path_factory.mktemp("fleet"), num=3, last=date(2026, 11, 24), shop=1, fraud=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "status",
        "status --all",
        "events",
        "rows",
        "verdict --night 2026-11-24",
        "who-used 2026-11-23",
        "fleet",
        "prices --machine g2-*",
        "restore",
    ],
)
def test_what_commands_show_is_json_where_asked_and_has_no_colours_outside_of_a_terminal(
    words: str, fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(fleet))
    monkeypatch.chdir(fleet)
    asked = words.split()
    assert cli.main(asked) in (0, NothingToDo.exit_status)
    text = capsys.readouterr().out
    assert text.strip()
    assert "\x1b" not in text
    assert cli.main([*asked, "--json"]) in (0, NothingToDo.exit_status)
    assert json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_an_erasure_is_json_where_asked_also_where_it_ends_with_an_error(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(fleet))
    monkeypatch.chdir(fleet)
    assert cli.main(["erase", "--unit", "ann", "--json"]) != 0
    assert json.loads(capsys.readouterr().out) == []


# Commands that change or write something, serve, or print what another program takes as it is.
NOT_READING = [
    "champion",
    "dags",
    "init",
    "lift",
    "migrate",
    "notify",
    "pages",
    "predict-ahead",
    "repair",
    "same-recipe",
    "search",
    "serve",
    "show",
    "try",
]


def test_each_command_that_reads_has_json() -> None:
    commands = Path(__file__).parents[1].joinpath("docs/cli.md").read_text().partition("## Commands")[2]
    about = {block.split()[0]: block for block in commands.split("### ")[1:]}
    assert {name for name, block in about.items() if "`--json`" not in block} == set(NOT_READING)


def test_a_command_of_a_hook_works_on_the_repository_of_its_home(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))  # as git sets it for its hooks
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    assert cli.main(["show", "weather"]) == 78
    assert Path(checkout.git("rev-parse", "--show-toplevel")) == repository.resolve()


def test_a_record_of_another_name_is_refused(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cli.main(["show", "weather"]) == 78
    assert "weather is not a record of a night; name one of night, champion, batch" in caplog.text


def test_whoever_is_told_of_a_failed_stage_reads_its_sentence(home: Path) -> None:
    (home / "params.yaml").write_text(
        "source: a:B\nworkload: a:B\nbackend: a:B\nnotify: {command: 'cat > heard.txt'}\n"
    )
    left = home / "nights/n1" / records.RUN / "train.error"
    left.parent.mkdir(parents=True)
    left.write_text("the job failed: no room; free some\n")
    assert cli.main(["notify", "--text", "retrain.train failed", "--night", "n1", "--stage", "train"]) == 0
    assert (home / "heard.txt").read_text() == "retrain.train failed: the job failed: no room; free some"
