"""params.yaml, where it leaves sections out."""

from datetime import date
from pathlib import Path

from ruamel.yaml import YAML

from daybreak.contract import params


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
