"""What a run is validated by is what decides at the gate."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Int, Label, Table, Time
from daybreak.training.validation_score import validation_score
from daybreak.workloads.metrics import AUC, LogLoss, Metric
from daybreak.workloads.table_workload import TableWorkload

BATCH = {"chance": torch.tensor([0.25, 0.5]), "late": torch.tensor([1, 0])}


class Hits(Metric):
    """Whether a sample is on the right side of a half; the higher the better."""

    higher_is_better = True

    def values(self, prediction: Any, label: Any) -> Any:
        return (prediction > 0.5) == (label > 0.5)


class Late(TableWorkload):
    """Trains by a loss that is not what decides."""

    table = Table(time="time", columns={"time": Time(), "late": Int(min=0, max=1)}, label=Label("late"))

    def predict(self, model: Any, batch: Any) -> dict[str, Tensor]:
        return {"prediction": batch["chance"]}

    def loss(self, model: Any, batch: Any) -> Tensor:
        return torch.tensor([3.0, 4.0])


def scored(*metrics: Metric) -> list[float]:
    workload = type("Named", (Late,), {"metrics": metrics})()
    return validation_score(workload, torch.nn.Identity(), BATCH).tolist()


def test_the_first_metric_scores_if_it_has_values_of_single_samples():
    losses = [-torch.tensor(0.25).log(), -torch.tensor(0.5).log()]
    assert scored(LogLoss(), Hits()) == pytest.approx([-float(each) for each in losses])
    assert scored(Hits(), LogLoss()) == [0.0, 1.0]


def test_a_metric_of_a_set_and_a_class_without_metrics_leave_it_to_the_score():
    assert scored(AUC(), LogLoss()) == scored() == [-3.0, -4.0]


def test_a_loss_over_a_batch_needs_no_score_where_a_metric_decides():
    whole = type("Whole", (Late,), {"whole_batch": True, "metrics": (Hits(),)})()
    assert validation_score(whole, torch.nn.Identity(), BATCH).tolist() == [0.0, 1.0]
    whole.metrics = (AUC(),)
    with pytest.raises(
        ParamsError, match=r"the loss of Whole is over a batch, .* such as LogLoss\(\), or write"
    ):
        validation_score(whole, torch.nn.Identity(), BATCH)


def test_a_metric_of_another_prediction_is_named():
    with pytest.raises(ParamsError, match="the metric log loss is of 'risk', but `predict` of Named returns"):
        scored(LogLoss(prediction="risk"))


class Wrong(Metric):
    """Whether a sample is on the wrong side of a half, as a whole number of 8 bits; the lower the better."""

    def values(self, prediction: Any, label: Any) -> Any:
        return ((prediction > 0.5) != (label > 0.5)).astype(np.uint8)


class Turned(Hits):
    """The hits from the last one to the first, as a view."""

    def values(self, prediction: Any, label: Any) -> Any:
        return super().values(prediction, label)[::-1]


class Missed(Wrong):
    """The same as bools."""

    def values(self, prediction: Any, label: Any) -> Any:
        return super().values(prediction, label) == 1


def test_values_of_any_numbers_are_turned_round_where_lower_is_better():
    assert scored(Wrong()) == scored(Missed()) == [-1.0, 0.0]
    assert scored(Turned()) == [1.0, 0.0]


def test_a_prediction_alone_and_a_table_without_a_label_are_read_as_the_gate_does():
    class Alone(Late):
        def predict(self, model: Any, batch: Any) -> Any:
            return batch["chance"]

    class Unlabelled(Alone):
        table = Table(time="time", columns={"time": Time(), "late": Int(min=0, max=1)})
        whole_batch = True  # so that no score is left to fall back on

    for kind, hits in ((Alone, [0.0, 1.0]), (Unlabelled, [1.0, 1.0])):
        kind.metrics = (Hits(),)
        assert validation_score(kind(), torch.nn.Identity(), BATCH).tolist() == hits
