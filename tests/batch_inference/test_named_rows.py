"""Rows that a workload names, rows of a source, and lists of all users: what is predicted of other rows."""

import json
import shutil
import subprocess
from contextlib import chdir, closing
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from daybreak import runner
from daybreak.contract import records
from daybreak.contract.record_types import Predictions
from daybreak.contract.workload import ARRAYS
from daybreak.examples.shop.recommender import Recommender
from daybreak.extensions.router.loading import VersionLoader
from daybreak.registry.weights import MODEL, load_model
from daybreak.serving.recorded import arrays_of
from daybreak.storage import erasures
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from tests.conftest import make_repository
from tests.extensions.erasure import homes
from tests.extensions.router.conftest import live_in
from tests.extensions.router.homes import add_version
from tests.extensions.router.test_answers import expected
from tests.toy.nights import PARAMS
from tests.workloads.payments import rows_of, trained

OURS = "daybreak.examples.shop.recommender:Recommender"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of the libraries of whole stages


def note_erased(unit: str) -> None:
    """Note that a unit was erased; its rows stay here, as those of a source do."""
    home = Home.here()
    key = erasures.make_key(home)
    erasures.note(home, erasures.by(unit, key, num_rows=1, days=(), digests={}, versions=()))


def test_rows_that_the_workload_names_are_predicted_by_all_that_is_known_tonight(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_repository(tmp_path / "home", store=empty_store)
    (home / "params.yaml").write_text(PARAMS)
    live_in(home, monkeypatch)
    add_version(home, 1, alter=trained("card_payments:NextPayments"))
    with chdir(home / "nights/2025-01-11"):
        assert runner.run(Home.here(), "predict", to="out/all.parquet") is None
    predicted = pq.read_table(home / "out/all.parquet")
    accounts = sorted(set(rows_of(date(2025, 1, 11))["account"].to_pylist()))
    assert predicted["account"].to_pylist() == accounts
    noon = datetime(2025, 1, 12, 12)
    assert set(predicted["ts"].to_pylist()) == {noon}
    rows = [{"ts": noon, "account": one, "amount": 10.0, "mcc": "5411"} for one in accounts]
    values = expected(home, rows)["prediction"]
    np.testing.assert_allclose(predicted["prediction"].to_numpy(), values, rtol=0, atol=1e-6)
    with chdir(home / "nights/2025-01-11"):
        note_erased(accounts[0])
        runner.run(Home.here(), "predict", to="out/named.parquet")
        pq.write_table(rows_of(date(2025, 1, 11)).drop(["is_fraud"]), home / "2025-01-11.parquet")
        source = {"use": "daybreak:Files", "url": str(home / "{day}.parquet")}
        with Path("params.yaml").open("a") as file:
            file.write(f"predict: {json.dumps({'source': source})}\n")
        runner.run(Home.here(), "predict", to="out/source.parquet")
    assert pq.read_table(home / "out/named.parquet")["account"].to_pylist() == accounts[1:]
    assert set(pq.read_table(home / "out/source.parquet")["account"].to_pylist()) == {*accounts[1:]}


def test_the_shop_writes_the_lists_that_its_version_would_answer_each_customer_with(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, day = make_repository(tmp_path / "home", store=empty_store), date(2026, 3, 3)
    monkeypatch.chdir(home)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    homes.begin(home, homes.SHOP + "predict: {to: 'out/{day}', top: 5, rows_per_file: 100}\n")
    homes.run_night(home, day, with_version=True)
    with chdir(home / "nights" / str(day)):
        made = runner.run(Home.here(), "predict")
        workload = Recommender()
        samples = workload.dataset(ARRAYS, "serve")
        users = workload.users(samples)
        lists = workload.recommend(load_model(workload, MODEL), samples, users, 5)
    assert made == records.read(type(made), home / "nights" / str(day) / records.RUN)  # type: ignore[arg-type]
    rows = pq.read_table(home / "out" / str(day), partitioning=None).to_pylist()
    wanted = [
        (user, rank, item)
        for user, items in zip(users, lists, strict=True)
        for rank, item in enumerate(items, 1)
    ]
    assert [(row["customer"], row["rank"], row["item"]) for row in rows] == wanted
    assert len({row["customer"] for row in rows}) > 10 and len(list((home / "out").rglob("*.parquet"))) > 1
    assert {row["daybreak_version"] for row in rows} == {1}
    assert pc.max(pq.read_table(home / "out" / str(day), partitioning=None)["rank"]).as_py() == 5  # type: ignore[attr-defined]
    with chdir(home / "nights" / str(day)):
        note_erased(users[0])
        runner.run(Home.here(), "predict", to="left.parquet")
    left = pq.read_table(home / "left.parquet")["customer"].to_pylist()
    assert left == [row["customer"] for row in rows if row["customer"] != users[0]]


def test_while_another_class_is_tried_the_champion_makes_its_lists_by_its_own_code(
    tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "daybreak")
    home, day = make_repository(tmp_path / "home", store=empty_store), date(2026, 3, 3)
    monkeypatch.chdir(home)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    settings = homes.SHOP + "predict: {to: 'out/{day}', top: 5}\n"
    homes.begin(home, settings)
    homes.run_night(home, day, with_version=True)
    model = home / "nights" / str(day) / MODEL
    (home / "params.yaml").write_text(settings.replace(OURS, "renumbered:Renumbered"))
    subprocess.run(["git", "commit", "--quiet", "--all", "--message=Another class"], check=True)
    tomorrow = day + timedelta(days=1)
    homes.run_night(home, tomorrow)
    workload = Recommender()

    def lists() -> tuple[list[str], list[list[str]]]:
        samples = workload.dataset(ARRAYS, "serve")
        users = list(workload.users(samples))
        return users, workload.recommend(load_model(workload, model), samples, users, 5)

    with chdir(home / "nights" / str(tomorrow)):
        made = runner.run(Home.here(), "predict")
        users, others = lists()
        loader = VersionLoader("daybreak", home=Home.here(), top=5, keep=1, answer_s=60)
        with session(Home.here()) as client:
            router = loader.load(client, 1, arrays=arrays_of(Home.here(), str(tomorrow)))
        with closing(router.process):
            answered = router.process.ask("recommend", users=users, top=5)["items"]
        Path("params.yaml").write_text(settings)
        shutil.copytree(ARRAYS, tmp_path / "theirs")
        runner.run(Home.here(), "prepare")  # by the champion's class
        users, own = lists()
        shutil.rmtree(ARRAYS)
        shutil.copytree(tmp_path / "theirs", ARRAYS)
    assert isinstance(made, Predictions) and made.version == 1
    assert others != own  # which the test is about
    assert answered == own
    rows = pq.read_table(home / "out" / str(tomorrow), partitioning=None).to_pylist()
    assert [(row["customer"], row["item"]) for row in rows] == [
        (user, item) for user, items in zip(users, own, strict=True) for item in items
    ]
    assert "version 1 is of another class than tonight's, and makes lists by its own code" in caplog.text
