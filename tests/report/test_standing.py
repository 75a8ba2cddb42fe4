from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from daybreak.contract.record_types import Evaluation
from daybreak.evaluation.scores import SCORES, read_scores
from daybreak.report.standing import best_baseline, standing, table
from tests.report.nights import lay, whole


def evaluation() -> Evaluation:
    made = whole().evaluation
    assert made is not None
    return made


def test_without_scores_there_are_means_but_no_intervals() -> None:
    now = standing(evaluation())
    assert now.overall is not None
    assert now.overall.challenger.value == evaluation().metrics["score"]
    assert now.overall.challenger.low is None
    assert [row.name for row in now.slices] == [part.name for part in evaluation().slices]


def test_an_interval_covers_the_mean_of_its_own_samples(tmp_path: Path) -> None:
    columns = read_scores(lay(whole(), tmp_path) / SCORES)
    assert columns is not None
    now = standing(evaluation(), columns)
    row = next(row for row in now.slices if row.name == "customer: known")
    mine = columns["challenger"][columns["slice/customer: known"]].astype(float)
    assert row.challenger.low is not None
    assert row.challenger.high is not None
    width = 1.96 * mine.std(ddof=1) / np.sqrt(mine.size)
    assert (row.challenger.high - row.challenger.low) / 2 == pytest.approx(width)


def test_differences_are_paired_so_their_interval_is_narrower(tmp_path: Path) -> None:
    columns = read_scores(lay(whole(), tmp_path) / SCORES)
    row = standing(evaluation(), columns).overall
    assert row is not None
    assert row.difference is not None
    assert row.difference.high is not None
    assert row.difference.low is not None
    assert row.challenger.high is not None
    assert row.challenger.low is not None
    assert row.difference.high - row.difference.low < 0.6 * (row.challenger.high - row.challenger.low)


def test_baselines_come_best_first() -> None:
    assert list(standing(evaluation()).baselines) == ["own_counts", "ease", "item_knn", "popularity"]
    assert best_baseline(evaluation()) == 0.3131
    assert best_baseline(None) is None


def test_metrics_stand_beside_the_champions() -> None:
    assert standing(evaluation()).metrics["recall@20"] == (0.3104, 0.3011)


def test_scores_that_are_not_finite_get_no_interval() -> None:
    columns = {"challenger": np.array([0.1, np.nan, 0.3], dtype=np.float32)}
    overall = standing(evaluation(), columns).overall
    assert overall is not None
    assert overall.challenger.low is None


def test_facts_are_no_metrics() -> None:
    with_facts = replace(
        evaluation(), metrics={"score": 0.3, "champion_has_seen": 1.0, "num_not_finite": 2.0}
    )
    now = standing(with_facts)
    assert now.champion_has_seen
    assert now.num_not_finite == 2
    assert not now.metrics


def test_a_table_has_all_samples_and_each_slice_with_empty_cells_where_nothing_is_known() -> None:
    first, second, *rest = evaluation().slices
    broken = replace(first, champion_score=None, score=float("nan"))
    made = table(standing(replace(evaluation(), slices=(broken, second, *rest))))
    rows = {row[0]: dict(zip(made["columns"], row, strict=True)) for row in made["data"]}
    assert list(rows) == ["All samples", *(part.name for part in evaluation().slices)]
    assert (rows[first.name]["challenger"], rows[first.name]["champion"]) == (None, None)
    assert rows[second.name]["num_samples"] == second.num_samples
    difference = second.score - (second.champion_score or 0.0)
    assert rows[second.name]["difference"] == pytest.approx(difference, rel=1e-5)
    assert rows[second.name]["difference"] == float(f"{difference:.6g}")  # a table shows all digits
    assert rows[second.name]["difference_low"] is None
