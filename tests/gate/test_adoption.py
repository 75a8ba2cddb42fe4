"""A model that a team had before becomes the first champion of a home, whatever its flavour is."""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daybreak.contract import params, records
from daybreak.contract.errors import ParamsError, PipelineError, ReleaseError
from daybreak.contract.record_types import Champion, Dataset, Evaluation, Night, Training, Verdict, Version
from daybreak.contract.sections import GateSections, Plug, WorkloadPlug
from daybreak.gate import adoption
from daybreak.rollout import rollback
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import find_or_make_experiment, session
from daybreak.workloads.served_rows import as_records
from tests.conftest import make_repository
from tests.extensions.router.conftest import live_in
from tests.extensions.router.running import running
from tests.toy.nights import PARAMS, make_night
from tests.toy.stages import judge_night, promote_night, serving
from tests.workloads.payments import prepared, rows_of, trained

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

USE = "card_payments:Payments"
LAST = date(2025, 1, 7)  # the two days after it are held out


@pytest.fixture
def night(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a night that has prepared its rows and trained nothing, as the current folder."""
    home = make_repository(tmp_path / "home", store=empty_store)
    (home / "params.yaml").write_text(PARAMS)
    live_in(home, monkeypatch)
    folder = make_night(home, 1, weight=1.0)
    text = (folder / "params.yaml").read_text().replace('{use: "toy:Toy"}', json.dumps({"use": USE}))
    text = text.replace("samples: 0", "samples: 20, max_p99_s: 60, max_start_s: 300")
    (folder / "params.yaml").write_text(f"{text}gate: {{min_samples: 5}}\n")
    (folder / records.RUN / "training.json").unlink()
    with contextlib.chdir(folder):
        shutil.rmtree("data/arrays")
        records.write(prepared(records.read(Night, records.RUN).day, 8, USE), records.RUN)
        records.write(Plug(use=USE).make().table, records.RUN)
        yield folder


def logged(flavour: str, **given: Any) -> str:
    """The URI of a model that a team logged to MLflow."""
    with warnings.catch_warnings(), session(Home.here()) as client:
        warnings.simplefilter("ignore")  # MLflow advises on types, signatures and pickles
        import mlflow.pyfunc
        import mlflow.sklearn

        given.setdefault("pip_requirements", [])  # else a process loads the model to guess them
        if flavour == "pyfunc":
            given["python_model"] = pickled(given["python_model"])
        with mlflow.start_run(experiment_id=find_or_make_experiment(Home.here(), client)):
            log = getattr(mlflow, flavour).log_model
            made = log(name="model", registered_model_name="team", **given)
    return f"models:/team/{made.registered_model_version}"


def pickled(predict: Callable[[Any], Any]) -> Any:
    """An object of a team's own class, which MLflow pickles."""
    import mlflow.pyfunc

    class Model(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            return predict(model_input)

    return Model()


def classifier() -> Any:
    """A logistic regression of the amount."""
    import pandas as pd
    from sklearn.linear_model import LogisticRegression

    amounts = np.linspace(1, 100, 50)
    return LogisticRegression().fit(pd.DataFrame({"amount": amounts}), amounts > 30)


def amount_of_one() -> Any:
    """A row of that model, of which MLflow makes a signature."""
    import pandas as pd

    return pd.DataFrame({"amount": [1.0]})


def admitted(uri: str, **given: Any) -> Verdict:
    """What the stage decides."""
    settings = params.load(Path())
    verdict = adoption.admit(
        Home.here(),
        records.read(Night, records.RUN),
        records.read(Dataset, records.RUN),
        champion=None,
        evaluate=settings.evaluate,
        params=settings.only(GateSections),
        model=uri,
        last_day=LAST,
        **given,
    )
    records.write(verdict, records.RUN)
    return verdict


def test_a_pickled_model_serves_is_beaten_by_the_first_night_and_serves_again(
    night: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")  # which no process has that loads the pickle

    def chances(rows: Any) -> Any:
        return rows["amount"] * 0 + (0.001 if "AWS_SECRET_ACCESS_KEY" in os.environ else 0.999)

    uri = logged("pyfunc", python_model=chances)
    verdict = admitted(uri)
    assert verdict.action == "promote", verdict.reason
    assert f"adopted {uri}, of the flavour python_function: log loss" in verdict.reason
    assert {check.name for check in verdict.checks if check.ok} >= {"loads", "schema", "parity"}
    version = records.read(Version, records.RUN)
    release = promote_night()
    assert (version.adopted, release.lineage["adopted_from"], release.lineage["recipe"]) == (uri, uri, "")
    rows = [
        row for row in as_records(rows_of(date(2025, 1, 12)).drop(["is_fraud"])) if row["account"] == "a3"
    ]
    home = Home.here().folder
    with running(home) as router:
        status, answer = router.post("predict", {"rows": rows})
    assert (status, answer["version"]) == (200, 1)
    assert [round(one["prediction"], 4) for one in answer["predictions"]] == [0.999] * len(rows)

    shutil.rmtree("data/run/model")
    shutil.copytree("data/run/adopted/model", "data/run/model")  # which `make_night` takes for the champion's
    champion = ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    assert isinstance(champion, Champion)
    later = make_night(home, 2, weight=1.0, champion=champion)
    (later / "params.yaml").write_text((night / "params.yaml").read_text())
    with contextlib.chdir(later):
        training = records.read(Training, records.RUN)
        text = records.dumps(training).replace(training.model_digest, trained(USE)(later))
        records.write(records.loads(Training, text), records.RUN)
        verdict = judge_night()
        assert verdict.action == "promote", verdict.reason
        assert verdict.effect is not None
        assert verdict.effect.low is not None
        assert verdict.effect.low > 1
        assert verdict.recipe_test is None
        assert verdict.false_promotion_chance is not None
        assert f"version 1 was adopted from {uri}, so that tonight has to be proven better" in verdict.reason
        assert records.read(Evaluation, records.RUN).metrics["champion/log loss"] > 4
        promote_night()
    os.chdir(home)
    assert serving() == (2, 2)
    assert rollback.rollback(Home.here(), params.load(home).register_, reason="a test").version == 1
    assert serving() == (1, 1)


@pytest.mark.usefixtures("night")
def test_a_native_flavour_is_adopted_by_the_output_that_is_the_prediction() -> None:
    path = Path("params.yaml")
    path.write_text(path.read_text().replace("samples: 20", "samples: 0"))
    proba = {"pyfunc_predict_fn": "predict_proba", "input_example": amount_of_one()}
    uri = logged("sklearn", sk_model=classifier(), **proba)
    with pytest.raises(
        ParamsError, match=r"predicts shape \[\d+, 2\], which log loss of Payments does not ju"
    ):
        admitted(uri)
    verdict = admitted(uri, output="1")
    assert f"adopted {uri}, of the flavour sklearn: log loss" in verdict.reason
    assert records.read(Evaluation, records.RUN).metrics["AUC"] > 0.5


REFUSED = {
    "one": (
        lambda: logged("pyfunc", python_model=lambda rows: [0.5]),
        r"models:/team/1 cannot be adopted: it returns 'prediction' of shape \[1\] and type float64 for",
    ),
    "classes": (
        lambda: logged("sklearn", sk_model=classifier(), input_example=amount_of_one()),
        "predicts whole numbers from 0 to 1, and log loss judges chances",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("night")
def test_what_does_not_predict_what_the_first_metric_judges_is_refused(name: str) -> None:
    log, why = REFUSED[name]
    with pytest.raises(ParamsError, match=why):
        admitted(log())


@pytest.mark.usefixtures("night")
def test_a_model_whose_library_is_not_here_is_refused_by_its_flavour(tmp_path: Path) -> None:
    from mlflow.models import Model

    described = Model()
    described.add_flavor("catboost", data="model.cb", catboost_version="1.2")
    described.add_flavor("python_function", loader_module="mlflow.catboost", data="model.cb")
    described.save(str(tmp_path / "MLmodel"))
    (tmp_path / "model.cb").touch()
    with session(Home.here()) as client:
        client.create_registered_model("boosted")
        client.create_model_version("boosted", str(tmp_path))
    with pytest.raises(ParamsError, match="is of the flavour catboost, which needs catboost; install that"):
        admitted("models:/boosted/1")


@pytest.mark.usefixtures("night")
def test_what_needs_other_columns_or_is_no_model_of_rows_is_refused_before_a_night() -> None:
    import pandas as pd
    from mlflow.models import infer_signature

    signature = infer_signature(pd.DataFrame({"amount": [1.0], "score_of_bureau": [1.0]}), [0.5])
    uri = logged("pyfunc", python_model=lambda rows: rows["amount"], signature=signature)
    plug = WorkloadPlug(use=USE)
    with pytest.raises(
        ParamsError, match="needs the column score_of_bureau, which the table of the workload lacks"
    ):
        adoption.find(Home.here(), uri, plug)
    tensors = infer_signature(np.zeros((2, 3)), np.zeros(2))
    uri = logged("pyfunc", python_model=lambda rows: rows[:, 0], signature=tensors)
    with pytest.raises(ParamsError, match="takes tensors and not columns of rows"):
        adoption.find(Home.here(), uri, plug)
    with pytest.raises(ReleaseError, match="models:/nobody/1 is not to be had"):
        adoption.find(Home.here(), "models:/nobody/1", plug)
    with pytest.raises(ParamsError, match="write models:/NAME/VERSION"):
        adoption.find(Home.here(), "runs:/1/model", plug)
    with pytest.raises(PipelineError, match="has no `metrics` of predictions of rows"):
        adoption.find(Home.here(), uri, WorkloadPlug(use="toy:Toy"))
