"""A version that predicts raw rows, in a real registry, in a process that has nothing but its files."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract import records
from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Version
from daybreak.contract.sections import SmokeTestParams
from daybreak.evaluation.scores import read_scores, with_prefix
from daybreak.evaluation.smoke_test import smoke_test
from daybreak.registry import carried_code
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from tests.conftest import make_repository
from tests.extensions.router.conftest import live_in
from tests.extensions.router.homes import add_version
from tests.toy.nights import PARAMS
from tests.toy.stages import evaluate_night
from tests.workloads.payments import rows_of, trained

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

KINDS = ("Payments", "PastPayments")
ASKED = SmokeTestParams(max_p99_s=60, max_start_s=300)
ASK = """
import json, sys
import pandas as pd, mlflow.pyfunc
model = mlflow.pyfunc.load_model(sys.argv[1])
frame = pd.read_parquet(sys.argv[2])
given, example = model.predict(frame), model.predict(model.input_example)
print(json.dumps({
    "inputs": model.metadata.signature.inputs.to_dict(),
    "outputs": model.metadata.signature.outputs.to_dict(),
    "predictions": given.to_dict("records"), "num_examples": len(example),
}))
"""


@pytest.fixture(scope="module", params=KINDS)
def night(request: Any, tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Any:
    """The folder of a night whose version is registered, and its name."""
    home = make_repository(tmp_path_factory.mktemp("rows") / "home", store=empty_store)
    (home / "params.yaml").write_text(PARAMS)
    with pytest.MonkeyPatch.context() as patch:
        live_in(home, patch)
        add_version(home, 1, promoted=False, alter=trained(f"card_payments:{request.param}"))
        (folder,) = (home / "nights").iterdir()
        with contextlib.chdir(folder):
            evaluate_night()
            yield folder, request.param


def fetched(into: Path) -> Path:
    version = records.read(Version, records.RUN)
    with session(Home.here()):
        return carried_code.fetch(Home.here(), f"models:/{version.name}/{version.number}", version, into=into)


def test_any_client_sends_raw_rows_to_a_version(night: Any, tmp_path: Path) -> None:
    _, name = night
    version = fetched(tmp_path)
    past = sorted(path.parent.name for path in (version / "artifacts").glob("past/*/part.parquet"))
    # The night is of 11 January, held out are 8 and 9; the first of them looks back on three days.
    carried = [f"day=2025-01-{day:02}" for day in range(5, 12)] if name == "PastPayments" else []
    assert past == carried
    day = max(json.loads(Path("data/arrays/meta.json").read_text())["test_days"])
    rows = rows_of(date.fromisoformat(day))
    rows.drop(["is_fraud"]).to_pandas().to_parquet(tmp_path / "rows.parquet")
    asked = subprocess.run(
        [sys.executable, "-I", "-c", ASK, str(version), str(tmp_path / "rows.parquet")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    answer = json.loads(asked.stdout.splitlines()[-1])
    inputs = {one["name"]: (one["type"], one["required"]) for one in answer["inputs"]}
    assert inputs == {
        "ts": ("datetime", True),
        "account": ("string", True),
        "amount": ("double", True),
        "mcc": ("string", True),
        "country": ("string", False),
        "retries": ("any", False),
    }
    assert [one["name"] for one in answer["outputs"]] == ["prediction", "parts"]
    assert answer["num_examples"] == 5
    known = [value is not None for value in rows["is_fraud"].to_pylist()]
    expected = with_prefix(read_scores() or {}, "prediction")
    for name in ("prediction", "parts"):
        values = np.array([one[name] for one in answer["predictions"]])[known]
        np.testing.assert_allclose(values, expected[name][-len(values) :], rtol=0, atol=1e-6)


@pytest.mark.parametrize("night", ["PastPayments"], indirect=True)  # whose version carries the most
def test_a_version_is_tried_on_the_raw_rows_of_its_samples(night: Any) -> None:
    columns, version = read_scores() or {}, records.read(Version, records.RUN)
    predicted = with_prefix(columns, "prediction")
    checks = smoke_test(Home.here(), version, None, columns["challenger"], ASKED, predicted=predicted)
    assert [check.name for check in checks] == ["loads", "start", "schema", "parity", "latency", "memory"]
    assert [check for check in checks if not check.ok] == []
    wrong = {**predicted, "prediction": predicted["prediction"] + 1e-3}
    tried = smoke_test(Home.here(), version, None, columns["challenger"], ASKED, predicted=wrong)
    failed = [check for check in tried if not check.ok]
    assert [check.name for check in failed] == ["parity"]


@pytest.mark.parametrize("night", ["PastPayments"], indirect=True)
def test_past_that_is_changed_is_not_run(night: Any, tmp_path: Path) -> None:
    version, record = fetched(tmp_path), records.read(Version, records.RUN)
    part = next((version / "artifacts" / "past").glob("*/part.parquet"))
    shutil.rmtree(part.parent)
    with pytest.raises(ReleaseError, match="have digest"):
        carried_code.verify(
            version, model_digest=record.model_digest, files_digest=record.files_digest, uri="here"
        )
