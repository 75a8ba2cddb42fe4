"""Commands of the command line that are neither stages nor nights."""

import json
from pathlib import Path

import pytest

from pipeline import cli
from pipeline.contract import records
from pipeline.contract.records import Version

VERSION = Version(name="m", number=3, night="n1", data_digest="d", model_digest="e", run_id="r")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_record_is_shown_as_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records.write(VERSION, home / "nights/n1" / records.RUN)
    assert cli.main(["show", "version", "--night", "n1"]) == 0
    assert json.loads(capsys.readouterr().out)["number"] == 3


def test_a_record_that_is_not_there_yet_is_nothing_to_show(home: Path) -> None:
    assert cli.main(["show", "verdict", "--night", "n1"]) == 99


def test_a_record_of_another_name_is_refused(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert cli.main(["show", "weather"]) == 1
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
