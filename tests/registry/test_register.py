"""Versions in a real MLflow are complete, and a kill makes no second version."""

import itertools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract import records
from daybreak.contract.record_parts import Slice
from daybreak.contract.record_types import Version
from daybreak.contract.sections import Params
from daybreak.evaluation.scores import read_scores
from daybreak.registry.packaging import slice_metrics
from daybreak.storage import mlflow_client
from daybreak.storage.home import Home
from tests.toy.nights import make_night
from tests.toy.stages import client, evaluate_night, judge_night, register_night, versions

ROOT = Path(__file__).parents[2]
# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]


def test_registering_again_after_a_kill_makes_no_second_version(home: Path) -> None:
    os.chdir(make_night(home, 0, weight=1.0))
    judge_night()
    assert register_night() == register_night() == records.read(Version, records.RUN)
    assert versions() == [1]
    assert len(client().search_runs([client().get_experiment_by_name("daybreak").experiment_id])) == 1


def installed(folder: Path) -> Path:
    """Returns a folder with the entry points of this package, as pip writes them where it is installed."""
    about = folder / "site" / "daybreak_entry_points-0.dist-info"
    about.mkdir(parents=True)
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        line
        for name, group in groups.items()
        for line in (f"[{name}]", *(f"{key} = {value}" for key, value in group.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: daybreak-entry-points\nVersion: 0\n")
    return about.parent


def test_a_version_holds_no_pickle_and_scores_in_a_clean_process_as_it_was_trained(
    home: Path, release: Any, tmp_path: Path
) -> None:
    release(0, 0.9)
    artifacts = home / "var" / "artifacts"
    names = [path.name for path in artifacts.rglob("*") if path.is_file()]
    assert "model.safetensors" in names
    assert "served.py" in names
    assert [name for name in names if name.endswith(".py")] == ["served.py"]
    assert names.count("code.zip") == 1
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".pt", ".pth", ".bin"))]
    code = (
        "import json, mlflow, pandas, sys; "
        "model = mlflow.pyfunc.load_model('models:/daybreak@champion'); "
        "scores = model.predict(pandas.DataFrame({'sample': range(50)}), params={'folder': sys.argv[1]}); "
        "print(json.dumps([float(score) for score in scores]))"
    )
    environment = os.environ | {"PYTHONPATH": str(installed(tmp_path))}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path("data/arrays").resolve())],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "MLFLOW_TRACKING_URI": mlflow_client.tracking_uri(Home.here())},
    )
    assert done.returncode == 0, done.stderr
    scores = read_scores()
    assert scores is not None
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), scores["challenger"][:50], atol=1e-6)


def test_the_registered_model_says_what_it_is(home: Path, release: Any) -> None:
    release(0, 1.0)
    assert "**daybreak** is trained anew each night" in client().get_registered_model("daybreak").description


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


WRITES = (
    "create_model_version",
    "create_registered_model",
    "create_run",
    "log_artifact",
    "log_artifacts",
    "log_batch",
    "log_text",
    "set_model_version_tag",
    "set_registered_model_alias",
    "set_tag",
    "set_terminated",
    "update_model_version",
)


def killed_at_each_write(stage: Callable[[], Any], check: Callable[[], None]) -> int:
    """Run the stage, killed after its 1st, 2nd, ... write to MLflow, again and again until it ends."""
    from mlflow import MlflowClient

    for reached in itertools.count(1):
        left = [reached]

        def counting(write: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def written(*args: Any, **named: Any) -> Any:
                done = write(*args, **named)
                left[0] -= 1
                if left[0] == 0:
                    raise Killed
                return done

            return written

        with pytest.MonkeyPatch.context() as patch:
            for name in WRITES:
                patch.setattr(MlflowClient, name, counting(getattr(MlflowClient, name)))
            try:
                stage()
            except Killed:
                check()
            else:
                return reached
    raise AssertionError


def test_register_killed_after_any_write_ends_with_one_version(home: Path, settings: Params) -> None:
    os.chdir(make_night(home, 0, weight=1.0))
    evaluate_night()
    assert killed_at_each_write(register_night, lambda: None) > 10
    assert versions() == [1]
    assert client().get_model_version("daybreak", "1").tags["status"] == "challenger"


def test_no_two_slices_have_one_metric_and_each_name_is_one_that_mlflow_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name

    names = ["hour < 6", "hour > 6", "url = /home/", "a//b", "..", "é" * 300, "é" * 299]
    metrics = slice_metrics([Slice(name=name, num_samples=1, score=at) for at, name in enumerate(names)])
    assert list(metrics.values()) == list(range(len(names)))
    for name in metrics:
        _validate_metric_name(name)
