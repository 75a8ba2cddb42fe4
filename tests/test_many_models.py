"""Two examples' nights side by side, and their users, behind one MLflow and router."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from daybreak.contract.record_types import Evaluation, Refit, Release, Verdict, Version
from tests.dags.servers import IDENTITY
from tests.extensions.router.running import until
from tests.test_own_data import ROOT, SMALL, of, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# Of each night, some more params; demand looks back on a week, and is trained on the held-out day at last.
PARAMS = {
    "demand": ["ingest.history_days=16", "gate.refit_epochs=1"],
    "language": ["ingest.history_days=6"],
}
SERVES = {"demand": 2, "language": 1}  # version 2 of demand is the refit


def environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("MLFLOW_TRACKING_URI", "DAYBREAK_HOME")
    }
    return kept | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def ask(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=300) as answer:
            text = answer.read().decode()
            return json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> dict[str, Path]:
    """Homes of two examples, made as their READMEs say; demand leads. Nights of one name have run at once."""
    root = tmp_path_factory.mktemp("fleet")
    for name in PARAMS:
        text = (ROOT / "pipeline/daybreak/examples" / name / "README.md").read_text()
        begin = re.findall(r"```sh\n(.*?)```", text, re.S)[0]
        begin = begin.replace("~/", f"{root}/").replace("git commit", f"git {shlex.join(IDENTITY)} commit")
        run(folder=ROOT, shell=begin)
    folders = {name: root / name for name in PARAMS}
    furnish(folders["demand"])
    shutil.copytree(folders["demand"] / "var/machines", folders["language"] / "var/machines")
    (folders["demand"] / "fleet.yaml").write_text("homes: [../language]\n")
    said = run("fleet", folder=folders["demand"])
    assert "Airflow retrain.language, router /models/language" in said
    nights = []
    for name, folder in folders.items():
        few = [*PARAMS[name], *SMALL, "train.epochs=1", "profile.steps=2", "smoke_test.samples=0"]
        words = ["night", "--night", "one", *(word for one in few for word in ("--set", one))]
        with (root / f"{name}.txt").open("w") as output:
            call = [sys.executable, "-m", "daybreak", *words]
            nights.append(subprocess.Popen(call, cwd=folder, env=environment(), stdout=output, stderr=output))
    for name, process in zip(folders, nights, strict=True):
        assert process.wait(600) == 0, (root / f"{name}.txt").read_text()[-4000:]
    return folders


def test_nights_of_one_name_run_at_once_and_each_is_in_its_own_ledger(homes: dict[str, Path]) -> None:
    for name, folder in homes.items():
        night = folder / "nights" / "one"
        assert of(night, Verdict).action == "promote", of(night, Verdict).reason
        assert (of(night, Version).name, of(night, Version).number) == (name, 1)
        assert of(night, Evaluation).judged[0].role == "success"
        newest = ["git", "log", "-1", "--format=%s", "refs/heads/nights"]
        assert ": promote: " in subprocess.check_output(newest, cwd=folder, text=True)
    assert not (homes["language"] / "var" / "mlflow.db").exists()
    shown = run("status", "--all", folder=homes["language"])
    assert [line for line in shown.splitlines() if line in PARAMS] == list(PARAMS)
    assert shown.count("promoted") == 2
    board = Path(run("report", "--all", folder=homes["demand"]).splitlines()[-1]).read_text()
    assert "2 models: " in board
    assert all(f'data-m="{name}"' in board for name in PARAMS)
    audited = run("audit", folder=homes["language"])
    assert "FAIL" not in audited


def test_the_version_that_was_trained_on_the_held_out_day_is_the_one_that_serves(
    homes: dict[str, Path],
) -> None:
    night = homes["demand"] / "nights" / "one"
    release, refit = of(night, Release), of(night, Refit)
    assert (release.version, refit.why_not) == (SERVES["demand"], "")
    kept = YAML(typ="safe").load((night / "dvc.lock").read_text())["stages"]["refit"]["outs"]
    assert {out["md5"] for out in kept if out["path"].endswith("model")} == {release.model_digest}


def test_one_router_answers_for_each_by_its_name(homes: dict[str, Path], tmp_path: Path) -> None:
    with (tmp_path / "router.txt").open("w") as output:
        call = [sys.executable, "-m", "daybreak", "serve", "--port", "0"]
        router = subprocess.Popen(call, cwd=homes["demand"], env=environment(), stdout=output, stderr=output)
    try:

        def address() -> Any:
            return re.search(r"answers on (http://\S+) \(POST", (tmp_path / "router.txt").read_text())

        until(address)
        url = address()[1]
        for place, version in ((url, SERVES["demand"]), (f"{url}/models/language", SERVES["language"])):
            until(lambda place=place: isinstance(ask(f"{place}/health"), dict))
            assert ask(f"{place}/health")["champion"] == version
        rows = [{"document": "d1", "text": "the cat sat", "time": "2026-01-01T10:00:00"}]
        assert ask(f"{url}/models/nobody/health") == 404
        assert ask(f"{url}/models/language/recommend", {"user": "u"}) == 404  # it predicts rows
        answer = ask(f"{url}/models/language/predict", {"rows": rows})
        assert answer["version"] == 1
        assert answer["predictions"][0]["log_loss"][1] == len(rows[0]["text"]) + 1
        metrics = ask(f"{url}/metrics")
        for name, version in SERVES.items():
            assert f'daybreak_champion{{model="{name}"}} {version}.0' in metrics
        assert metrics.count("# TYPE daybreak_champion gauge") == 1
    finally:
        router.terminate()
        assert router.wait(30) in (0, -15, 130, 143)
