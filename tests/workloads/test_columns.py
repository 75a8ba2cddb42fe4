"""Features by type: names of a team's columns and names of ours are never one."""

from datetime import date, datetime, timedelta

import ibis
import numpy as np
import pyarrow as pa
import pytest

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Category, Float, Id, Int, Label, Table, Time
from daybreak.contract.workload import UNIT
from daybreak.data.features import past_of, samples_of
from daybreak.evaluation.scoring import declared
from daybreak.workloads.columns import CATEGORIES, MISSING, NUMBERS
from daybreak.workloads.metrics import AUC, Metric
from daybreak.workloads.table_workload import TableWorkload

DAY = date(2025, 3, 3)


@pytest.mark.parametrize("label", ["unit", "edges", "state", "num_samples"])
def test_a_label_of_any_name_is_what_is_trained_on(label: str) -> None:
    class Workload(TableWorkload):
        table = Table(
            time="n0",
            unit="part",
            label=Label(label),
            columns={
                "n0": Time(),
                "part": Id(),
                "num": Category(),
                "count": Category(),
                "n1": Float(),
                label: Int(min=0, max=1),
            },
        )

    n = range(40)
    rows = pa.table(
        {
            "n0": [datetime(2025, 3, 3) + timedelta(minutes=i) for i in n],
            "part": [f"a{i % 7}" for i in n],
            "num": ["ab"[i % 2] for i in n],
            "count": ["xyz"[i % 3] for i in n],
            "n1": [float(i) for i in n],
            label: [i % 2 for i in n],
        }
    )
    workload = Workload()
    state = workload.fit(ibis.memtable(rows))
    assert (list(state["values_num"]), list(state["values_count"])) == (["a", "b"], ["x", "y", "z"])
    made = samples_of(workload, rows, state, past_of(workload, DAY, []))
    assert set(made) == {NUMBERS, MISSING, CATEGORIES, UNIT, label}
    assert made[label].tolist() == rows[label].to_pylist()
    assert made[NUMBERS][:, 0].tolist() == rows["n1"].to_pylist()
    assert len(np.unique(made[UNIT])) == 7


@pytest.mark.parametrize("label", [NUMBERS, MISSING, CATEGORIES])
def test_a_label_named_as_an_array_of_features_is_refused(label: str) -> None:
    class Workload(TableWorkload):
        table = Table(time="at", columns={"at": Time(), label: Int(min=0, max=1)}, label=Label(label))

    rows = pa.table({"at": [datetime(2025, 3, 3)] * 2, label: [0, 1]})
    workload = Workload()
    state = workload.fit(ibis.memtable(rows))
    with pytest.raises(ParamsError, match=f"an array named '{label}', as the label is; give one of them"):
        samples_of(workload, rows, state, past_of(workload, DAY, []))


@pytest.mark.parametrize("name", ["(unit)", "(rule)", "(hours)"])
def test_a_column_named_as_only_ours_are_is_refused(name: str) -> None:
    with pytest.raises(
        ParamsError, match=r"names in parentheses are Daybreak's own; rename it at the source"
    ):
        Table(time="at", columns={"at": Time(), name: Float()})


class Score(Metric):
    """Is called `score`, as what decides is."""


@pytest.mark.parametrize(
    ("metrics", "clash"),
    [
        ((AUC(), AUC(prediction="other")), "'AUC', as another metric"),
        ((AUC(), Score()), "'score', as a figure"),
    ],
)
def test_metrics_that_would_replace_each_other_are_refused(metrics: tuple[Metric, ...], clash: str) -> None:
    workload = type("Workload", (TableWorkload,), {"metrics": metrics})
    with pytest.raises(ParamsError, match=clash):
        declared(workload())
