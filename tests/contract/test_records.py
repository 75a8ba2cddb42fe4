"""What is written of a record can be read."""

from datetime import UTC, datetime
from math import inf, nan
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError
from daybreak.contract.record_types import Evaluation, Night
from tests.minimal_records import minimal_night, minimal_training

AT = datetime(2025, 1, 10, tzinfo=UTC)


def test_a_number_that_json_has_not_is_refused_by_the_stage_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"night\.json is not written, as its budget_usd is not a finite"):
        records.write(minimal_night(AT, budget_usd=inf), tmp_path)
    scored = Evaluation(model_digest="", data_digest="", num_samples=1, metrics={"auc": nan}, slices=())
    with pytest.raises(DataError, match=r"its metrics\.auc is not a finite number; look at what the stage"):
        records.write(scored, tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_what_may_be_unknown_stays_unknown(tmp_path: Path) -> None:
    records.write(minimal_night(AT, predict_until=None), tmp_path)
    assert records.read(Night, tmp_path) == minimal_night(AT)
    written = records.write(minimal_training(noise_scale=inf), tmp_path)
    assert '"noise_scale": null' in written.read_text()
