"""Before a night runs, the machines that params.yaml names are looked up."""

import pytest

from pipeline.check import Finding, findings

PARAMS = """\
source: tests.fakes:TwoDays
workload: tests.fakes:Nothing
backend: tests.fakes:Nothing
plan: {{machines: [{machines}], regions: [us-central1]}}
"""


def machines(home, monkeypatch, named: str) -> Finding:
    monkeypatch.setenv("PIPELINE_HOME", str(home))
    (home / "params.yaml").write_text(PARAMS.format(machines=named))
    return next(finding for finding in findings() if finding.what == "machines")


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("local", "local"),
        ("local, g2-standard-4", "local, g2-standard-4; prices of 2026-07-30 to 2026-07-30, "),
        ("a2-highgpu-1g", "a2-highgpu-1g; prices of 2026-07-30 to 2026-08-02, python -m pipeline"),
        ("n2-*", "n2-standard-4, n2-standard-8, n2-standard-16, n2-standard-32, n2-standard-48 and 4 more; "),
    ],
)  # fmt: skip
def test_machines_are_told_with_the_days_of_their_prices(tmp_path, monkeypatch, named, text):
    found = machines(tmp_path, monkeypatch, named)
    assert found.ok
    assert found.text.startswith(text)


def test_a_machine_that_nobody_knows_is_found_before_the_night(tmp_path, monkeypatch):
    found = machines(tmp_path, monkeypatch, "g2-standrd-4")
    assert not found.ok
    assert "plan.machines names g2-standrd-4, which the catalog does not have; nearest are" in found.text


def test_machines_that_cannot_be_rented_here_are_found_before_the_night(tmp_path, monkeypatch):
    found = machines(tmp_path, monkeypatch, "a4-highgpu-8g")
    assert not found.ok
    assert "plan.machines names a4-highgpu-8g, for which there is no price in us-central1" in found.text
    found = machines(tmp_path, monkeypatch, "ct5lp-hightpu-1t")
    assert not found.ok
    assert "ct5lp-hightpu-1t, and the trainer has no engine for TPUs; name a machine with GPUs" in found.text
    local = PARAMS.replace("backend: tests.fakes:Nothing", "backend: pipeline.backends.local:Local")
    monkeypatch.setattr("tests.test_check.PARAMS", local)
    found = machines(tmp_path, monkeypatch, "g2-standard-4")
    assert not found.ok
    assert "has only the machine at hand; add local to plan.machines" in found.text
