"""A run that was validated ends with a calibrated model, and its predictions are calibrated."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits

from daybreak.contract import records
from daybreak.contract.errors import ParamsError
from daybreak.contract.params import check
from daybreak.contract.table import Int, Label, Table, Time
from daybreak.contract.workload import CALIBRATION, make_model
from daybreak.training.calibrated import calibrated, try_calibrator
from daybreak.training.estimator_engine import EstimatorEngine
from daybreak.training.gradients import Signals
from daybreak.training.recipe import Validation
from daybreak.training.worker_keys import expect_calibrated
from daybreak.workloads.calibrators import IsotonicCalibration, TemperatureScaling
from daybreak.workloads.estimator_workload import EstimatorWorkload
from daybreak.workloads.metrics import LogLoss
from daybreak.workloads.served_rows import predictions
from tests.training.nights import ROOT
from tests.training.recipes import recipe

NUM, NUM_VALIDATED, TEMPERATURE = 4000, 3000, 2.5


class Late:
    """A model whose logits are too large, beside a prediction that is no chance."""

    calibrator = TemperatureScaling("risk")
    table = Table(time="time", columns={"time": Time(), "late": Int(min=0, max=1)}, label=Label("late"))

    def model(self, state: Any) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def dataset(self, folder: Path, split: str) -> Any:
        return Deliveries()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        logit = model(batch["logit"][:, None])[:, 0]
        return binary_cross_entropy_with_logits(logit, batch["late"].float(), reduction="none")

    def score(self, model: nn.Module, batch: Any) -> Tensor:
        return -self.loss(model, batch)

    def predict(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        logit = model(batch["logit"][:, None])[:, 0]
        return {"risk": logit.sigmoid(), "logit": logit}


class Told(Late):
    """Each of its losses needs the length of the run."""

    def know_run(self, *, num_updates: int, num_epochs: float) -> None:
        self.run = (num_updates, num_epochs)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        assert self.run == (10, 1.0)
        return super().loss(model, batch)


class Deliveries:
    """Deliveries that are late by their logit, and the first of them always."""

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        self.logit = torch.tensor(draw.normal(size=NUM), dtype=torch.float32)
        self.late = (torch.tensor(draw.random(NUM)) < self.logit.sigmoid()).long()
        self.late[: NUM - NUM_VALIDATED] = 1

    def __len__(self) -> int:
        return NUM

    def __getitems__(self, samples: Any) -> dict[str, Tensor]:
        return {name: values[torch.tensor(samples)] for name, values in vars(self).items()}


def fitted(workload: Any, *, num_validated: int = NUM_VALIDATED) -> dict[str, Tensor]:
    model = make_model(workload, {})
    weights = model.state_dict() | {"weight": torch.full((1, 1), TEMPERATURE)}
    return calibrated(weights, workload, Deliveries(), recipe(), num_validated=num_validated)


def test_predictions_are_calibrated_by_the_samples_that_were_validated():
    model = make_model(Late(), {})
    model.load_state_dict(fitted(Late()))
    assert float(model.get_buffer(CALIBRATION)) == pytest.approx(TEMPERATURE, rel=0.1)
    batch = Deliveries().__getitems__(range(NUM - NUM_VALIDATED, NUM))
    with torch.inference_mode():
        raw, shown = Late().predict(model, batch), predictions(Late(), model, batch, size=NUM_VALIDATED)
    assert torch.equal(shown["logit"], raw["logit"])
    before, after = (binary_cross_entropy(each["risk"], batch["late"].float()) for each in (raw, shown))
    assert after < before - 0.1


def test_a_run_that_was_not_validated_keeps_the_calibration_of_its_first_weights():
    assert float(fitted(Late(), num_validated=0)[CALIBRATION]) == 1


def test_a_calibration_shows_that_it_goes_on_and_halves_passes_that_do_not_fit():
    sizes: list[int] = []

    class Large(Late):
        def predict(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
            sizes.append(len(batch["logit"]))
            if sizes[-1] > 500:
                raise MemoryError
            return super().predict(model, batch)

    model, seen = make_model(Late(), {}), []
    weights = model.state_dict() | {"weight": torch.full((1, 1), TEMPERATURE)}
    made = calibrated(
        weights,
        Large(),
        Deliveries(),
        recipe(micro_batch_size=1000),
        num_validated=NUM_VALIDATED,
        alive=lambda: seen.append(len(sizes)),
    )
    torch.testing.assert_close(made[CALIBRATION], fitted(Late())[CALIBRATION])
    assert sizes == [1000] + 6 * [500]
    assert seen == list(range(7))


def test_what_a_calibrator_does_not_take_is_refused_by_the_first_batch():
    class Logits(Late):
        calibrator = TemperatureScaling("logit")

    batch, model = Deliveries().__getitems__(range(64)), nn.Linear(1, 1, bias=False)
    try_calibrator(Late(), model, batch)
    assert model.training
    with pytest.raises(ParamsError, match=r"logit goes from -.* and a calibrator is of chances"):
        try_calibrator(Logits(), model, batch)
    table = Table(time="time", columns={"time": Time()})
    with pytest.raises(ParamsError, match="Unlabelled has a calibrator, which is fitted by labels"):
        expect_calibrated(None, type("Unlabelled", (Late,), {"table": table})())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_job_knows_its_length_and_ends_with_a_calibrated_model_where_it_is_validated(tmp_path):
    made = recipe(
        arrays=str(tmp_path),
        workload="tests.training.test_calibrated:Told",
        num_samples=NUM - NUM_VALIDATED,
        batch_size=100,
        validation=Validation(num_samples=NUM_VALIDATED, num_scored=8, every=500),
    )
    (tmp_path / "job.json").write_text(records.dumps(made))
    command = [sys.executable, "-m", "daybreak.training.worker", str(tmp_path)]
    subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "pipeline"), str(ROOT)])},
        check=True,
        cwd=ROOT,
    )
    weights = load_file(tmp_path / "model/model.safetensors")
    again = calibrated(weights, Late(), Deliveries(), made, num_validated=NUM_VALIDATED)
    assert torch.equal(weights[CALIBRATION], again[CALIBRATION])
    assert float(weights[CALIBRATION]) != 1


@pytest.mark.slow
def test_trees_are_calibrated_too():
    class Trees(EstimatorWorkload):
        table, metrics, calibrator = Late.table, (LogLoss(),), IsotonicCalibration()

        def estimator(self, state: Any) -> Any:
            from lightgbm import LGBMClassifier

            return LGBMClassifier(learning_rate=0.5, min_child_samples=2, n_jobs=1, verbose=-1)

        def inputs(self, batch: Any) -> Any:
            return batch["logit"][:, None].numpy(), range(0)

    pytest.importorskip("lightgbm", reason="no trees here; pip install 'daybreak[estimators]'")
    workload, data = Trees(), Deliveries()
    engine = EstimatorEngine(workload, data, seed=0)  # type: ignore[arg-type]
    for _ in range(20):
        engine.step(np.arange(NUM - 1000, NUM), batch_size=1000, rate=0.0, signals=Signals())
    weights = calibrated(engine.weights(), workload, data, recipe(), num_validated=NUM_VALIDATED)
    model = make_model(workload, {})
    model.load_state_dict(weights)
    batch = data.__getitems__(range(NUM - NUM_VALIDATED, NUM - 1000))
    raw, shown = workload.predict(model, batch), predictions(workload, model, batch, size=2000)
    losses = [
        binary_cross_entropy(each["prediction"].float(), batch["late"].float()) for each in (raw, shown)
    ]
    assert losses[1] < losses[0]


def test_a_calibrator_without_samples_or_of_another_prediction_is_refused():
    class Other(Late):
        calibrator = TemperatureScaling("chance")

    with pytest.raises(ParamsError, match=r"is of 'chance', and Other\.predict returns risk, logit"):
        fitted(Other())
    plugs = {"source": "tests.fakes:TwoDays", "workload": "tests.fakes:LineWorkload"}
    params = check({**plugs, "backend": "daybreak:Local"})
    with pytest.raises(ParamsError, match=r"Late has a calibrator, .* train\.validation is 0; set that"):
        expect_calibrated(params.train, Late())
