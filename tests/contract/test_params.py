"""params.yaml: what it may leave out, and what it may not hold."""

from datetime import date
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from daybreak.contract import params
from daybreak.contract.errors import ParamsError

PLUGS = "source: a.b:C\nworkload: a.b:C\nbackend: a.b:C\n"


def test_sections_that_are_left_out_are_added_for_dvc(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("source: a.b:C\nworkload: a.b:C\nbackend: a.b:C\ngate: {alpha: 0.1}  # why\nplan:\n")
    before = params.check(
        {"source": "a.b:C", "workload": "a.b:C", "backend": "a.b:C", "gate": {"alpha": 0.1}}
    )
    params.complete(tmp_path)
    assert params.load(tmp_path) == before
    text = path.read_text()
    assert "gate: {alpha: 0.1}  # why" in text
    assert "plan: {}" in text
    params.complete(tmp_path)
    assert path.read_text() == text


def test_a_list_of_dates_is_kept_as_text_which_dvc_can_read(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("source: a.b:C\nworkload: a.b:C\nbackend: a.b:C\n")
    params.override(tmp_path, ["validate.accepted_days=[2025-03-14]"], into=tmp_path)
    assert params.load(tmp_path).validate_.accepted_days == (date(2025, 3, 14),)
    written = YAML(typ="safe").load((tmp_path / "params.yaml").read_text())
    assert written["validate"] == {"accepted_days": ["2025-03-14"]}


def test_a_date_without_quotes_in_a_list_is_refused_before_dvc_fails_on_it() -> None:
    with pytest.raises(ParamsError, match=r'validate.accepted_days\[1\] is a date .*; write "2025-03-15"'):
        params.loads(f'{PLUGS}validate: {{accepted_days: ["2025-03-14", 2025-03-15]}}', source="params.yaml")


@pytest.mark.parametrize(
    "assignment",
    ["night.budget_usd=.inf", "night.budget_usd=.nan", "plan.explore_usd=.inf", "ingest.wait_hours=.inf"],
)
def test_a_number_without_end_is_refused_as_no_record_could_hold_it(tmp_path: Path, assignment: str) -> None:
    (tmp_path / "params.yaml").write_text(PLUGS)
    with pytest.raises(ParamsError, match=r"finite number|greater than or equal to 0"):
        params.override(tmp_path, [assignment])


@pytest.mark.parametrize(
    "key",
    [
        "night.train_hours",
        "night.keep_days",
        "ingest.wait_hours",
        "ingest.settle_minutes",
        "plan.flex_wait_hours",
        "predict.by_hours",
        "profile.reuse_days",
    ],
)
def test_no_time_reaches_beyond_the_calendar(tmp_path: Path, key: str) -> None:
    (tmp_path / "params.yaml").write_text(PLUGS)
    with pytest.raises(ParamsError, match=f"{key} is .*, but input should be less than or equal to"):
        params.override(tmp_path, [f"{key}=1000000000000"])


@pytest.mark.parametrize("key", ["night.budget_usd.most", "night.usd_per_month.most", "plan.machines.first"])
def test_a_value_has_no_keys_of_its_own(tmp_path: Path, key: str) -> None:
    (tmp_path / "params.yaml").write_text(
        f"{PLUGS}night: {{budget_usd: 40, usd_per_month: }}\nplan: {{machines: [local]}}\n"
    )
    with pytest.raises(ParamsError, match=r"is not a section with keys; edit params\.yaml instead"):
        params.override(tmp_path, [f"{key}=3"])


@pytest.mark.parametrize("uri", ["", "  ", "airflow://lake", "Airflow:x", "s3://" + "x" * 1500])
def test_an_asset_that_airflow_refuses_is_refused_here(uri: str) -> None:
    given = {"source": "a.b:C", "workload": "a.b:C", "backend": "a.b:C", "night": {"assets": [uri]}}
    with pytest.raises(ParamsError, match="is not the URI of an asset"):
        params.check(given)
    assert params.check(given | {"night": {"assets": ["s3://shop/sales"]}}).night.assets
