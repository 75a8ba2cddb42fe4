"""Fit to serve, found out by a real process that loads real versions from a real registry."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract import params, records
from daybreak.contract.errors import JobError
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Champion, Evaluation, Night, Version
from daybreak.contract.sections import ReleaseParams, SmokeTestParams
from daybreak.contract.workload import ARRAYS
from daybreak.evaluation.scores import read_scores
from daybreak.evaluation.smoke_process import unhindered_s
from daybreak.evaluation.smoke_test import judged, smoke_test
from daybreak.gate import judge
from daybreak.registry import approval
from daybreak.registry.weights import MODEL
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.minimal_records import promotion
from tests.toy.nights import make_night
from tests.toy.own.toy import SLOW
from tests.toy.stages import judge_night

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

SLOW_S = 4.0
ASKED = SmokeTestParams(max_p99_s=60, max_start_s=300)
PROMOTED = promotion(champion=1, challenger=2)


@pytest.fixture
def slow_once(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], Path]]:
    """Makes the next process of a version wait for a file beside the arrays to go; it goes after seconds."""
    over, watches = threading.Event(), []

    def begin() -> Path:
        file, printed = (ARRAYS / "slow").resolve(), []

        def remove() -> None:
            while SLOW not in "".join(printed) and not over.wait(0.05):
                printed.extend(capfd.readouterr())
            over.wait(SLOW_S)
            file.unlink(missing_ok=True)

        file.touch()
        watches.append(threading.Thread(target=remove))
        watches[0].start()
        return file

    yield begin
    over.set()
    for watch in watches:
        watch.join()


def named(checks: tuple[Check, ...]) -> dict[str, Check]:
    return {check.name: check for check in checks}


SECRETS = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "CLOUD_BILLING_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
)
CANARY = "-".join(("canary", "4711", "token"))  # in no file: a version carries the code of its tests


def places_of(canary: str, home: Path) -> list[str]:
    """Files and git objects below a home that hold it."""
    places = [
        str(path) for path in home.rglob("*") if path.is_file() and canary.encode() in path.read_bytes()
    ]
    objects = ["git", "cat-file", "--batch-all-objects", "--batch"]
    if canary.encode() in subprocess.run(objects, cwd=home, capture_output=True, check=True).stdout:
        places.append("git")
    return places


@pytest.mark.slow
def test_a_version_is_tried_in_a_clean_process_and_no_secret_is_left_anywhere(
    home: Path, release: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: Any
) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, CANARY)
    release(0, 1.0)
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    os.chdir(make_night(home, 1, weight=1.0, champion=champion))
    assert judge_night().action == "promote"
    version = records.read(Version, records.RUN)
    settings = params.load(Path())
    asked = settings.model_copy(update={"smoke_test": ASKED})
    evaluation = records.read(Evaluation, records.RUN)
    verdict = judge.gate(
        records.read(Night, records.RUN),
        evaluation,
        version,
        records.find(Champion, records.RUN),
        asked,
        home=Home.here(),
    )
    assert verdict.action == "promote", verdict.reason
    assert [check.name for check in verdict.checks[-6:]] == [
        "start",
        "schema",
        "parity",
        "latency",
        "memory",
        "rollback",
    ]
    assert [check for check in verdict.checks if not check.ok] == []
    by_name = named(verdict.checks)
    assert by_name["schema"].text == "200 scores for 200 samples, 0 not finite"
    assert by_name["rollback"].text.startswith("version 1 loads in")
    assert MODEL.exists()
    assert places_of(CANARY, home) == []
    assert CANARY not in "".join(capfd.readouterr()) + caplog.text
    (home / "var" / "leak").write_text(CANARY)
    assert places_of(CANARY, home) == [str(home / "var" / "leak")]


def test_nothing_is_tried_where_nothing_is_asked_for() -> None:
    version = Version(name="m", number=1, night="n", data_digest="d", model_digest="d", run_id="r")
    assert smoke_test(Home.here(), version, None, np.ones(3), SmokeTestParams(samples=0)) == ()
    (check,) = smoke_test(Home.here(), version, None, None, ASKED)
    assert not check.ok


def test_a_store_that_does_not_answer_rejects_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    version = Version(name="m", number=1, night="n", data_digest="d", model_digest="d", run_id="r")
    with pytest.raises(JobError, match="is missing; bring it back from a backup"):
        smoke_test(Home.here(), version, None, np.ones(3), ASKED)


GOOD = {"start_cpu_s": 1.0, "scores": [0.5, 0.25], "p50_s": 0.01, "p99_s": 0.02, "memory_bytes": 10**8}


@pytest.mark.parametrize(
    ("changed", "limits", "failed"),
    [
        ({}, {}, []),
        ({"error": "it burns"}, {}, ["loads"]),
        ({"start_cpu_s": 3.0}, {"max_start_s": 2.0}, ["start"]),
        ({"scores": [0.5]}, {}, ["schema"]),
        ({"scores": [0.5, None]}, {}, ["schema"]),
        ({"scores": [0.5, 0.2501]}, {}, ["parity"]),
        ({"scores": [0.5, 0.25 + 6e-6]}, {}, []),
        ({"p99_s": 0.3}, {"max_p99_s": 0.2}, ["latency"]),
        ({}, {"max_memory_bytes": 10**7}, ["memory"]),
    ],
)
def test_what_is_not_fit_is_named(changed: Any, limits: Any, failed: list[str]) -> None:
    checks = judged(GOOD | changed, np.array([0.5, 0.25]), SmokeTestParams(**limits))
    assert [check.name for check in checks if not check.ok] == failed


def test_a_model_that_was_only_slow_here_may_be_approved_by_a_person() -> None:
    fine, slow = Check(name="parity", ok=True, text="0 apart"), Check(name="start", ok=False, text="200 s")
    verdict = judge.fit_to_serve(PROMOTED, (fine, slow))
    assert (verdict.action, verdict.inconclusive) == ("reject", True)
    until = datetime(2026, 1, 2, tzinfo=UTC)
    asked = approval.request_approval(verdict, ReleaseParams(approval="inconclusive"), until=until)
    assert asked.approve_until == until
    broken = Check(name="parity", ok=False, text="0.1 apart")
    verdict = judge.fit_to_serve(PROMOTED, (broken, slow))
    assert not verdict.inconclusive
    always = ReleaseParams(approval="always")
    assert approval.request_approval(verdict, always, until=until).approve_until is None


@pytest.mark.slow
def test_a_model_that_was_slow_once_is_tried_again(
    home: Path, release: Any, slow_once: Callable[[], Path]
) -> None:
    release(0, 1.0)
    version, scores = records.read(Version, records.RUN), np.asarray(read_scores()["challenger"])
    once = slow_once()
    asked = SmokeTestParams(max_p99_s=0.25, max_start_s=300)
    assert [check for check in smoke_test(Home.here(), version, None, scores, asked) if not check.ok] == []
    assert not once.exists()


@pytest.mark.slow
def test_a_version_that_prints_or_exits_early_is_judged_all_the_same(home: Path, release: Any) -> None:
    release(0, 1.0)
    version, scores = records.read(Version, records.RUN), np.asarray(read_scores()["challenger"])
    (ARRAYS / "prints").touch()
    assert [check for check in smoke_test(Home.here(), version, None, scores, ASKED) if not check.ok] == []
    (ARRAYS / "exits").touch()
    (check,) = smoke_test(Home.here(), version, None, scores, ASKED)
    assert (check.name, check.ok) == ("loads", False)
    assert f"/{version.number} does not load: SystemExit: 0" in check.text


@pytest.mark.slow
def test_a_start_is_judged_by_its_cpu_time_and_not_by_how_long_it_waited(
    home: Path, release: Any, slow_once: Callable[[], Path]
) -> None:
    release(0, 1.0)
    version, scores = records.read(Version, records.RUN), np.asarray(read_scores()["challenger"])
    slow_once()
    began = time.monotonic()
    (_, start, *_) = smoke_test(Home.here(), version, None, scores, ASKED)
    took_s = time.monotonic() - began
    assert start.name == "start"
    assert float(start.text.removeprefix("ready after ").split()[0]) < took_s - SLOW_S + 1


@pytest.mark.slow
def test_a_request_is_judged_without_the_time_in_which_others_had_the_cpu() -> None:
    """The request shares one core with three loops; its own sleep counts."""

    def burn() -> None:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(3)]
    try:
        began = time.monotonic()
        measured_s = unhindered_s(burn)
        took_s = time.monotonic() - began
    finally:
        os.sched_setaffinity(0, cores)
        for each in loops:
            each.kill()
            each.wait()
    assert 0.2 <= measured_s < 0.3 and took_s > 2 * measured_s
    assert unhindered_s(lambda: time.sleep(0.2)) >= 0.19


def test_a_promotion_of_an_unfit_model_becomes_a_rejection_that_says_both() -> None:
    fine, bad = Check(name="loads", ok=True, text="in 1 s"), Check(name="parity", ok=False, text="0.1 apart")
    assert judge.fit_to_serve(PROMOTED, (fine,)).action == "promote"
    verdict = judge.fit_to_serve(PROMOTED, (fine, bad))
    assert verdict.action == "reject"
    assert verdict.reason == "not fit to serve: parity: 0.1 apart; it would have been promoted: better"
    assert verdict.checks == (fine, bad)
    assert not verdict.inconclusive
