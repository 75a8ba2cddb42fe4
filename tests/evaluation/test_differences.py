"""Columns that a model rests on, and samples on which two models differ."""

from collections.abc import Iterator
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from daybreak.contract.record_parts import Differences
from daybreak.contract.workload import ARRAYS, UNIT, read_state, write_state
from daybreak.data.features import read_clean
from daybreak.data.partitions import held_out_days
from daybreak.evaluation import differences
from daybreak.evaluation.scoring import ScoredModel
from daybreak.registry.weights import MODEL
from daybreak.statistics.slice_search import differing
from tests.workloads.payments import Payments, prepared

DAY = date(2025, 1, 10)


class ByAmount(nn.Module):
    """A model that knows frauds by their amount alone."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.log1p(batch["numbers"][:, :1].clamp(min=0)) - 3.5


class Blind(nn.Module):
    """A model that knows nothing."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return batch["numbers"][:, :1] * 0 - 1


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Columns of the held-out rows of payments whose label is known."""
    monkeypatch.chdir(tmp_path)
    prepared(DAY, 8, "tests.workloads.payments:Payments")
    MODEL.mkdir(parents=True)
    write_state(MODEL, read_state(ARRAYS))
    held_out = [row for day in held_out_days() for row in read_clean(day).to_pylist()]
    known = [row for row in held_out if row["is_fraud"] is not None]
    yield {name: [row[name] for row in known] for name in known[0]}


def found(scores: dict[str, Any], *, limit_s: float = inf, champion: nn.Module | None = None) -> Differences:
    workload = Payments()
    samples = workload.dataset(ARRAYS, "test")
    named = {"challenger": ByAmount(), "champion": champion, "anchor": Blind()}
    models = [
        ScoredModel(name=name, workload=workload, model=model, samples=samples)
        for name, model in named.items()
        if model
    ]
    with torch.inference_mode():
        return differences.find(models, scores, held_out_days(), limit_s=limit_s, batch_size=16)


@pytest.mark.slow
def test_a_model_rests_on_the_columns_without_which_it_does_worse(rows: dict[str, Any]) -> None:
    one = found({}, champion=Blind())
    assert one.num_shuffled == len(rows["is_fraud"])
    assert one.columns[0].column == "amount"
    assert one.columns[0].challenger > 0.02
    assert {use.challenger for use in one.columns[1:]} == {0.0}
    assert {use.champion for use in one.columns} == {0.0}
    assert {use.column for use in one.columns} == set(Payments.table.features)
    assert one.left_out == ()


@pytest.mark.slow
def test_a_column_is_left_out_and_named_where_time_is_over(rows: dict[str, Any]) -> None:
    one = found({}, limit_s=-1)
    assert one.columns == ()
    assert one.left_out == tuple(Payments.table.features)


@pytest.mark.slow
def test_samples_on_which_models_differ_are_named_with_what_they_have_in_common(rows: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    grocers = np.array(rows["mcc"]) == "5411"
    champion = rng.normal(size=len(grocers)).astype(np.float32)
    scores = {"champion": champion, "challenger": champion - 2 * grocers + rng.normal(0, 0.1, len(grocers))}
    one = found(scores | {UNIT: np.arange(len(grocers))}, limit_s=-1)
    assert one.samples[0].name == "mcc is 5411"
    assert one.samples[0].num_samples == grocers.sum()
    assert one.samples[0].difference == pytest.approx(-2, abs=0.1)
    assert one.samples[0].elsewhere == pytest.approx(0, abs=0.1)
    assert one.num_groups > 3


def test_no_group_is_named_where_models_differ_by_chance() -> None:
    rng = np.random.default_rng(1)
    groups = {f"group {number}": rng.random(500) < 0.3 for number in range(20)}
    named = [len(differing(rng.normal(size=500), groups)) for _ in range(100)]
    assert sum(one > 0 for one in named) <= 11  # 5 % are expected; more than 11 has a chance of 0.4 %


def test_samples_of_a_unit_count_as_one() -> None:
    rng = np.random.default_rng(2)
    units = np.repeat(np.arange(20), 50)
    mask = units < 6
    false = [
        bool(differing(rng.normal(size=20)[units] + rng.normal(0, 0.1, 1000), {"six": mask}, units=units))
        for _ in range(200)
    ]
    apart = [bool(differing(rng.normal(size=20)[units], {"six": mask})) for _ in range(200)]
    assert sum(false) < 30  # 5 % are stated; twenty units are few
    assert sum(apart) > 100  # as samples that are each their own, which they are not
