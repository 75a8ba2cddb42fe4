"""`daybreak.open`: the nights of a home as data frames, and its versions, from any folder."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import daybreak
from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Slice
from daybreak.contract.record_types import Evaluation
from daybreak.extensions.notebooks import opened, versions
from tests.architecture import ROOT
from tests.conftest import make_repository
from tests.extensions.router.test_answers import TODAY, USE, expected, home_of_rows  # noqa: F401  the fixture
from tests.storage.ledgers import import_nights
from tests.toy.own.card_payments import PastPayments
from tests.workloads.payments import rows_of

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another current folder, and an environment that names no home."""
    for name in ("DAYBREAK_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def payments(home_of_rows: Path, elsewhere: None) -> Any:  # noqa: F811
    return daybreak.open(home_of_rows)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """A home of six nights, every second of which promoted its version."""
    home = make_repository(tmp_path_factory.mktemp("many") / "home", store=empty_store)
    import_nights(home, 6)
    return home


@pytest.mark.usefixtures("elsewhere")
def test_a_home_is_opened_though_the_environment_leads_git_and_a_proxy_elsewhere(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"GIT_DIR": str(tmp_path), "HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NO_PROXY", "")
    assert len(daybreak.open(many).nights()) == 6
    assert os.environ["no_proxy"] == "localhost,127.0.0.1,::1"


@pytest.mark.usefixtures("elsewhere")
def test_nights_are_a_row_each_in_order_and_nothing_is_written(many: Path) -> None:
    before = sorted(path for path in many.rglob("*") if ".git" not in path.parts)
    nights = daybreak.open(many).nights()
    assert tuple(nights.columns) == opened.NIGHTS
    assert nights.outcome.tolist() == ["promoted", "kept"] * 3
    assert (
        nights.day.is_monotonic_increasing and str(nights.day.dt.date[0]) == nights.night[0] == "2022-01-01"
    )
    assert nights.serves.tolist() == [1, 1, 3, 3, 5, 5]
    assert str(nights.started_at.dtype.tz) == str(nights.closed_at.dtype.tz) == "UTC"
    assert sorted(path for path in many.rglob("*") if ".git" not in path.parts) == before


@pytest.mark.usefixtures("elsewhere")
def test_verdicts_costs_and_forecasts_have_the_figures_of_the_records(many: Path) -> None:
    home = daybreak.open(str(many))
    verdict, cost, forecast = (frame.iloc[-1] for frame in (home.verdicts(), home.costs(), home.forecasts()))
    assert (verdict.action, verdict.champion, verdict.challenger) == ("reject", 5, 6)
    assert (verdict.low, verdict.effect, verdict.high, verdict.num_samples) == (0.0, 0.1, 0.2, 500)
    assert (cost.usd, cost.predicted_usd, cost.budget_usd, cost.trained_s) == (0.9, 1, 3, 101)
    assert (forecast.low_s, forecast.predicted_s, forecast.high_s, forecast.actual_s) == (90, 100, 120, 101)
    assert bool(forecast.held) and len(home.metrics()) == 0


@pytest.mark.usefixtures("elsewhere")
def test_before_the_first_night_the_frames_have_their_columns_and_no_version_serves(
    tmp_path: Path, empty_store: Path
) -> None:
    home = daybreak.open(make_repository(tmp_path / "new", store=empty_store))
    assert tuple(home.costs().columns) == opened.COSTS and len(home.costs()) == len(home.nights()) == 0
    with pytest.raises(daybreak.NothingToDo, match=r"no version of .*new serves yet; run a night"):
        home.version()


def test_a_folder_that_is_not_a_home_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(
        daybreak.ParamsError, match=r"is not a home: it has no params.yaml and no \.git; name"
    ):
        daybreak.open(tmp_path)


def test_metrics_are_of_each_slice_with_the_champion_s_value_beside_them() -> None:
    evaluation = Evaluation(
        model_digest="m",
        data_digest="d",
        num_samples=100,
        metrics={"score": 0.5, "champion_score": 0.4, "auc": 0.8, "champion/auc": 0.7, "baseline/mean": 0.1},
        slices=(Slice(name="new", num_samples=20, score=0.3, champion_score=0.2),),
    )
    found = {
        (row["slice"], row["metric"]): (row["value"], row.get("champion"), row["num_samples"])
        for row in opened.metrics_of(evaluation)
    }
    assert found == {
        ("", "score"): (0.5, 0.4, 100),
        ("new", "score"): (0.3, 0.2, 20),
        ("", "auc"): (0.8, 0.7, 100),
        ("", "baseline/mean"): (0.1, None, 100),
    }


def test_the_example_of_the_page_runs_and_predicts_as_the_model_does(
    payments: Any,
    home_of_rows: Path,  # noqa: F811
) -> None:
    rows = rows_of(TODAY).drop(["is_fraud"])
    block = re.findall(r"```python\n(.*?)```", (ROOT / "docs/notebooks.md").read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {"rows": rows.to_pandas().set_index("account", drop=False)}
    exec(block.replace("~/work/payments", str(home_of_rows)), names)
    assert names["nights"].night.tolist() == ["2025-01-11"]
    assert names["version"] == payments.version(1) == payments.version()
    predicted = names["predicted"]
    assert predicted.index.tolist() == rows["account"].to_pylist()
    for name, values in expected(home_of_rows, rows).items():
        np.testing.assert_allclose(np.array(predicted[name].tolist()), values, rtol=0, atol=1e-6)


def test_rows_that_are_not_of_the_table_are_named(payments: Any) -> None:
    with pytest.raises(daybreak.DataError, match="not rows of the table: ts is missing"):
        payments.version(1).predict(rows_of(TODAY).drop(["ts", "is_fraud"]).to_pandas())


def test_the_weights_of_a_version_load_into_a_model_of_one_s_own(payments: Any) -> None:
    assert not payments.version(1).load(PastPayments()).training
    with pytest.raises(daybreak.ReleaseError, match="2020-01-01 is not a version"):
        payments.version("2020-01-01")


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame({"d": ["a", 1]}),
        pd.DataFrame([[1, 2]], columns=["a", "a"]),
        pd.DataFrame({"d": [object()]}),
        pd.DataFrame({"d": [pd.Timedelta("1h")]}),
    ],
)
def test_a_frame_that_no_client_could_send_is_refused_in_a_sentence(rows: pd.DataFrame) -> None:
    with pytest.raises(DataError):
        versions._records(rows)
