"""params.yaml, where it leaves sections out."""

from pathlib import Path

from pipeline.contract import params


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
