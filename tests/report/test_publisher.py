"""A decision is shown after it was made; showing may fail alone, and is tried again."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from daybreak import runner
from daybreak.contract import records
from daybreak.contract.record_types import Night, Release, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.extensions.downstream.teller import TOLD
from daybreak.extensions.lineage import open_lineage
from daybreak.report import links, notifier, page, publisher, version_page
from daybreak.rollout import ledger_copy, rollback
from daybreak.storage import branch, snapshots
from daybreak.storage.home import Home
from tests.toy.nights import PARAMS, files_of_version, make_night
from tests.toy.stages import Released, client, judge_night, serving

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


@pytest.fixture
def all_away() -> Iterator[Callable[[], None]]:
    """Whatever shows something raises, until this is called."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("the server is away")

    patch = pytest.MonkeyPatch()  # of its own: others, as of the folder, stay
    ways = ((version_page, "show_verdict"), (page, "write_with_copy"), (page, "renew"), (notifier, "tell"))
    rest = ((publisher, "_show_release"), (open_lineage, "send"), (ledger_copy, "push"))
    for module, name in (*ways, *rest):
        patch.setattr(module, name, fail)
    yield patch.undo
    patch.undo()


def described(number: int) -> str:
    return client().get_model_version("daybreak", str(number)).description


def kept(number: int) -> set[str]:
    """The records that the run of a version has in MLflow."""
    run_id = client().get_model_version("daybreak", str(number)).run_id
    return {file.path for file in client().list_artifacts(run_id, "records")}


def times_said(what: str, log: pytest.LogCaptureFixture) -> int:
    return log.text.count(
        f"what was decided stands, but failed to {what}: RuntimeError: the server is away; "
    )


def test_a_verdict_that_cannot_be_shown_stands_is_said_once_and_is_shown_by_the_next_stage(
    home: Path, all_away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    os.chdir(make_night(home, 0, weight=1.0, champion=None))
    Path("params.yaml").write_text(PARAMS)
    verdict = judge_night()
    assert (verdict.action, records.read(Verdict, records.RUN)) == ("promote", verdict)
    assert [times_said(what, caplog) for what in ("tell people", "show the verdict in MLflow")] == [1, 1]
    made = runner.run(Home.here(), "promote")
    assert isinstance(made, Release)
    assert serving() == (made.version, made.version) == (1, 1)
    assert "**Verdict: promote.**" not in described(1)
    assert "records/release.json" not in kept(1)  # which shows, and decides nothing
    own = {"path": "rows.json", "type": "table"}  # of a team's workload
    run_id = client().get_model_version("daybreak", "1").run_id
    client().set_tag(run_id, "mlflow.loggedArtifacts", json.dumps([own]))
    all_away()
    runner.run(Home.here(), "close")
    assert "**Verdict: promote.**" in described(1)
    assert "records/release.json" in kept(1)
    assert (records.RUN / "report.html").exists()
    run = client().get_run(run_id)
    tables = [own, {"path": "slices.json", "type": "table"}]
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == tables
    assert "slices.json" in {file.path for file in client().list_artifacts(run.info.run_id)}


def test_a_night_is_shown_before_its_data_are_sent_away_which_may_take_long_or_fail(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chdir(make_night(home, 0, weight=1.0, champion=None))
    Path("params.yaml").write_text(PARAMS)
    judge_night()

    def killed(_: Home) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "push", killed)
        with pytest.raises(KeyboardInterrupt):
            runner.run(Home.here(), "close")
    assert (records.RUN / "report.html").exists()
    assert client().get_model_version("daybreak", "1").tags["ledger"] == branch.ledger_tip(Home.here())
    runner.run(Home.here(), "close")  # again, as Airflow does


def test_a_rollback_that_cannot_be_shown_stands_and_is_shown_by_the_next_watch(
    home: Path, released: Released, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    released(0.6, 1.0)
    publisher.publish_closed(Home.here())
    shown = records.RUN.absolute() / "report.html"
    os.chdir(home)
    come_back = request.getfixturevalue("all_away")
    runner.run(Home.here(), "rollback", reason="complaints", yes=True)
    assert serving() == (1, 1)
    assert times_said("show on all pages what serves now", caplog) == 1
    assert "complaints" not in shown.read_text()
    come_back()
    runner.run(Home.here(), "watch")
    assert "complaints" in shown.read_text()
    renewed = shown.stat().st_mtime_ns
    runner.run(Home.here(), "watch")
    assert shown.stat().st_mtime_ns == renewed


def test_a_rollback_that_a_target_does_not_follow_yet_is_told_and_no_asset_is_said_to_be_updated(
    home: Path, released: Released, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> NoReturn:
        raise MlflowException("the disk of the server is full")

    released(1.0, 1.0)
    publisher.publish_closed(Home.here())
    shown = records.RUN.absolute() / "report.html"
    os.chdir(home)
    monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", "rollback")  # of which the asset of the champion is an outlet
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_registered_model_alias", refuse)
        with pytest.raises(MlflowException, match="the disk of the server is full"):
            runner.run(Home.here(), "rollback", reason="complaints", yes=True)
    assert serving() == (1, 2)
    assert "complaints" in shown.read_text()
    assert not (home / TOLD).exists()
    runner.run(Home.here(), "rollback", reason="complaints", yes=True)  # again, as Airflow does
    assert serving() == (1, 1)
    assert json.loads((home / TOLD).read_text())["champion airflow"] == branch.ledger_tip(Home.here())


def test_after_a_rollback_the_pages_say_what_serves_now_here_and_in_mlflow(
    home: Path, released: Released, settings: Params
) -> None:
    released(1.0, 1.0)
    night, version = records.read(Night, records.RUN), records.read(Version, records.RUN)
    publisher.publish_closed(Home.here())
    page = home / "nights" / night.id / links.PAGE
    assert ">Roll back<" in page.read_text()
    os.chdir(home)
    rollback.rollback(Home.here(), settings.register_, reason="customers complain")
    publisher.publish_home(Home.here())
    kept = (files_of_version(home, version.number).parent / links.PAGE.name).read_text()
    for text in (page.read_text(), kept):
        assert "rolled back" in text and "customers complain" in text
        assert ">Roll back<" not in text


def test_the_page_of_a_replaced_version_offers_no_rollback_once_the_night_is_over(
    home: Path, release: Any
) -> None:
    for number, weight in enumerate((1.0, 1.0, 0.2, 1.0)):  # a night between them promotes nothing
        release(number, weight)
        publisher.publish_closed(Home.here())
        if number == 1:
            page = Path(links.PAGE).absolute()
            assert ">Roll back<" in page.read_text()
    assert ">Roll back<" not in page.read_text()
