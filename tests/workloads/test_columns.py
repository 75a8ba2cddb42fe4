"""Features by type: names of a team's columns and names of ours are never one."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta

import ibis
import numpy as np
import pyarrow as pa
import pytest
import torch

from daybreak.contract.errors import ParamsError
from daybreak.contract.table import Category, Float, Id, Int, Label, Table, Text, Time
from daybreak.contract.workload import GROUP, UNIT
from daybreak.data.features import past_of, samples_of
from daybreak.evaluation.scoring import declared
from daybreak.workloads import columns
from daybreak.workloads.columns import CATEGORIES, MISSING, NUMBERS, WORDS
from daybreak.workloads.estimator_workload import MOST_COUNTED, EstimatorWorkload
from daybreak.workloads.metrics import AUC, Metric
from daybreak.workloads.table_model import TableModel
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


def test_rows_of_one_value_are_a_group_and_a_row_without_one_is_alone() -> None:
    class Grouped(Tickets):
        group = "team"
        table = replace(Tickets.table, columns={**Tickets.table.columns, "team": Id(nullable=True)})

    rows = tickets(["open"] * 6)
    teams = pa.array(["a", "b", "a", None, None, "b"])
    rows = rows.set_column(1, "team", teams)
    made = samples_of(Grouped(), rows, Grouped().fit(ibis.memtable(rows)), past_of(Grouped(), DAY, []))
    groups = made[GROUP].tolist()
    assert groups[0] == groups[2] != groups[1] == groups[5]
    assert len(set(groups)) == 4
    next_day = past_of(Grouped(), DAY + timedelta(days=1), [])
    later = samples_of(Grouped(), rows, Grouped().fit(ibis.memtable(rows)), next_day)[GROUP].tolist()
    assert set(groups) & set(later) == {groups[0], groups[1]}
    wrong = type("Wrong", (Tickets,), {"group": "teem"})()
    with pytest.raises(
        ParamsError, match=r"the group of Wrong is 'teem', which is not among the columns .* a"
    ):
        samples_of(wrong, rows, wrong.fit(ibis.memtable(rows)), past_of(wrong, DAY, []))


@pytest.mark.parametrize("other", [["open", "closed"], lambda self: "open"])
def test_a_group_that_is_no_name_is_the_teams_own(other: object) -> None:
    workload = type("Own", (Tickets,), {"group": other})()
    rows = tickets(["open"] * 6)
    made = samples_of(workload, rows, workload.fit(ibis.memtable(rows)), past_of(workload, DAY, []))
    assert GROUP not in made


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


class OfCandidate(Metric):
    """Is called as the mean score of the candidate is."""

    name = "candidate_score"


@pytest.mark.parametrize(
    ("metrics", "clash"),
    [
        ((AUC(), AUC(prediction="other")), "'AUC', as another metric"),
        ((AUC(), Score()), "'score', as a figure"),
        ((AUC(), OfCandidate()), "'candidate_score', as a figure"),
    ],
)
def test_metrics_that_would_replace_each_other_are_refused(metrics: tuple[Metric, ...], clash: str) -> None:
    workload = type("Workload", (TableWorkload,), {"metrics": metrics})
    with pytest.raises(ParamsError, match=clash):
        declared(workload())


TEXTS = ["The  café is CLOSED, closed!", None, "closed", " ".join(["very"] * 99), "", "Ünsinn: closed? 42"]


class Tickets(TableWorkload):
    table = Table(
        time="at",
        columns={"at": Time(), "team": Category(), "said": Text(nullable=True), "late": Int(min=0, max=1)},
        label=Label("late"),
    )


def tickets(texts: Sequence[str | None]) -> pa.Table:
    num = len(texts)
    at = [datetime(2025, 3, 3)] * num
    return pa.table({"at": at, "team": ["a"] * num, "said": pa.array(texts, pa.string()), "late": [0] * num})


def test_a_text_is_the_places_of_its_words_among_those_that_are_used_often() -> None:
    workload = Tickets()
    said = ["Closed: café"] * 5 + ["the café, 42"] * 6 + ["Smith"] * 4 + ["Jones! " * 9]
    state = workload.fit(ibis.memtable(tickets(said)))
    # A name that few rows have is no word.
    assert state["words_said"].tolist() == ["café", "42", "the", "closed"]
    words = workload.features(tickets(TEXTS), state, past_of(workload, DAY, []))[WORDS]
    assert words.dtype == np.int16
    assert words.shape == (6, 1, columns.MOST_WORDS)
    assert [row[0, :6].tolist() for row in words] == [
        [3, 1, 0, 4, 4, 0],
        [0] * 6,
        [4, 0, 0, 0, 0, 0],
        [0] * 6,
        [0] * 6,
        [0, 4, 2, 0, 0, 0],
    ]


def test_models_of_a_table_see_words_in_any_order_and_nothing_of_unknown_ones() -> None:
    workload = Tickets()
    state = workload.fit(ibis.memtable(tickets(["one two three four five"] * 5)))
    rows = tickets(["one two", "two one", "two unknown one", "three", "unknown"])
    made = workload.features(rows, state, past_of(workload, DAY, []))
    batch = {name: torch.from_numpy(values) for name, values in made.items()}
    batch[NUMBERS] = torch.zeros_like(batch[NUMBERS])  # of which the length is one
    model = TableModel(state).eval()
    out = model(batch)[:, 0].tolist()
    assert out[0] == pytest.approx(out[1]) == pytest.approx(out[2])
    assert len({round(value, 6) for value in out}) == 3
    inputs, categorical = EstimatorWorkload().inputs(batch)
    texts = inputs[:, batch[NUMBERS].shape[1] : categorical.start]
    order = [list(state["words_said"]).index(name) for name in ("one", "two", "three")]
    assert texts.shape == (5, MOST_COUNTED)
    assert texts[:, order].tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert texts.sum() == 7


def test_a_word_that_few_units_use_is_not_kept() -> None:
    table = replace(Tickets.table, unit="team", columns={**Tickets.table.columns, "team": Id()})
    workload = type("Units", (TableWorkload,), {"table": table})()
    rows = tickets(["open", "open 5551234", "हिन्दी open"] * 5)
    units = pa.array([f"{n if n % 3 != 1 else 0}" for n in range(15)])  # one unit writes its number
    state = workload.fit(ibis.memtable(rows.set_column(1, "team", units)))
    assert state["words_said"].tolist() == ["open", "हिन्दी"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_number_that_is_not_finite_is_missing_and_moves_no_quantile(value: float) -> None:
    table = Table(
        time="at",
        columns={"at": Time(), "v": Float(size=2, off=("range",)), "y": Float()},
        label=Label("y"),
    )
    vectors = [[float(n), 2.0 * n] for n in range(50)] + [[1.0, value]]
    of_type = pa.array(vectors, pa.list_(pa.float64(), 2))
    rows = pa.table({"at": [datetime(2025, 3, 3)] * 51, "v": of_type, "y": [0.0] * 51})
    state = columns.fitted(ibis.memtable(rows), table)
    assert state["edges"][1].tolist() == pytest.approx(np.linspace(0, 98, columns.NUM_EDGES).tolist())
    made = columns.by_type(rows, state, table)
    assert made[MISSING][:, :2].sum() == made[MISSING][-1, 1] == 1
    batch = {name: torch.from_numpy(values) for name, values in made.items()}
    assert TableModel(state)(batch).isfinite().all()
