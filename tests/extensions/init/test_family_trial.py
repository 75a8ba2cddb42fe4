"""The trial of models on the newest days before those held out, and what `init` writes by it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from daybreak import cli
from daybreak.contract import params
from daybreak.extensions.init import family_trial, survey
from daybreak.extensions.init.module_text import NETWORK, Choice, module_text
from daybreak.extensions.init.params_text import batch_size_of
from daybreak.workloads.metrics import Floats

pytestmark = pytest.mark.slow
DAYS, ROWS = 15, 120


def written(label: Callable[[Floats], Floats], path: Path) -> Path:
    """Writes rows with six numbers, and a label that is a function of these and of a draw beside them."""
    inputs = np.random.default_rng(0).normal(size=(DAYS * ROWS, 7))
    times = np.datetime64("2025-03-01", "us") + np.repeat(np.arange(DAYS), ROWS) * np.timedelta64(1, "D")
    columns = {f"x{number}": inputs[:, number] for number in range(6)}
    pq.write_table(pa.table({"time": times, **columns, "label": label(inputs)}), path)
    return path


def chosen(found: survey.Survey, *models: str) -> Choice:
    texts = {model: module_text(found, "rows", model=model) for model in models}
    return family_trial.choose(found, texts, "Rows", batch_size=batch_size_of(found))


def of_chance(inputs: Floats) -> Floats:
    return (inputs[:, 6] > 0).astype(float)


def of_waves(inputs: Floats) -> Floats:
    return np.sin(3 * inputs[:, 0]) + inputs[:, 1]


def test_a_label_of_pure_chance_is_learned_for_few_epochs(tmp_path: Path) -> None:
    """Longer runs learn the rows by heart, and predict other days worse."""
    found = survey.survey(str(written(of_chance, tmp_path / "rows.parquet")))
    assert (chosen(found, NETWORK).epochs or 99) <= 2


def test_a_label_of_few_rows_that_has_a_reason_is_learned_for_many_epochs(tmp_path: Path) -> None:
    found = survey.survey(str(written(of_waves, tmp_path / "rows.parquet")))
    assert (chosen(found, NETWORK).epochs or 0) >= 8


def test_the_days_that_the_first_night_is_judged_by_change_no_choice(tmp_path: Path) -> None:
    found = survey.survey(str(written(of_waves, tmp_path / "rows.parquet")))
    held_out = sorted(found.rows)[-found.test_days :]
    spoiled = {
        day: rows.set_column(rows.column_names.index("label"), "label", pa.array(np.zeros(len(rows))))
        if day in held_out
        else rows
        for day, rows in found.rows.items()
    }
    assert chosen(replace(found, rows=spoiled), "lightgbm") == chosen(found, "lightgbm")


def test_init_writes_the_better_model_and_says_by_how_much(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, home = written(of_waves, tmp_path / "rows.parquet"), tmp_path / "rows"
    assert cli.main(["init", str(home), "--from", str(path)]) == 0
    said = re.search(
        r"Squared error on 2 days before the 3 days held out: network (\S+) \(\d+ epochs\), lightgbm (\S+), "
        r"constant (\S+); chose lightgbm\.",
        capfd.readouterr().out,
    )
    assert said and float(said[2]) < float(said[1]) < float(said[3])
    assert "LGBMRegressor(" in (home / "rows.py").read_text()
    assert params.load(home).train.epochs == 100


def test_too_few_rows_for_a_trial_are_said(tmp_path: Path) -> None:
    found = survey.survey(str(written(of_waves, tmp_path / "rows.parquet")))
    few = replace(found, rows={day: rows.slice(0, 10) for day, rows in found.rows.items()})
    assert chosen(few, NETWORK, "lightgbm") == Choice(
        model=NETWORK,
        reason=f"no model was tried, as 20 rows of 2 days before the {found.test_days} days held out are too "
        f"few; chose network",
    )


def test_a_model_that_fails_leaves_the_others_to_be_tried(tmp_path: Path) -> None:
    found = survey.survey(str(written(of_waves, tmp_path / "rows.parquet")))
    good = module_text(found, "rows", model="lightgbm")
    texts = {NETWORK: "raise ValueError('no such layer')", "lightgbm": good}
    choice = family_trial.choose(found, texts, "Rows", batch_size=batch_size_of(found))
    assert choice.model == "lightgbm"
    assert "network failed (ValueError: no such layer), lightgbm" in choice.reason


def test_days_to_train_on_without_labels_are_said_rather_than_tried(tmp_path: Path) -> None:
    found = survey.survey(str(written(of_waves, tmp_path / "rows.parquet")))
    labelled = sorted(found.rows)[-found.test_days - 2 :]
    unlabelled = {
        day: rows
        if day in labelled
        else rows.set_column(rows.column_names.index("label"), "label", pa.nulls(len(rows), pa.float64()))
        for day, rows in found.rows.items()
    }
    assert "as 0 rows of 10 days before" in chosen(replace(found, rows=unlabelled), NETWORK).reason
