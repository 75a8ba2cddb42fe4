"""Nights of the two classes of docs/models-you-have.md, word for word, in one home."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from daybreak.contract.record_types import Evaluation, Version
from tests.dags.servers import IDENTITY
from tests.test_own_data import ROOT, SMALL, of, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NUM_DAYS, ROWS_A_DAY = 14, 120
NOTES = ("ring twice", "fragile", "leave it at the door", "third floor", "no lift", "mind the dog")


def deliver(folder: Path) -> None:
    """A file a day; a delivery is late by its way, its stops, and where there is no lift."""
    draw = np.random.default_rng(0)
    folder.mkdir()
    for day in pd.date_range("2026-01-01", periods=NUM_DAYS):
        km, stops = draw.gamma(2, 4, ROWS_A_DAY).round(1), draw.integers(1, 9, ROWS_A_DAY)
        notes = draw.choice(NOTES, (ROWS_A_DAY, 2))
        slow = km / 10 + stops / 8 + 2 * (notes == "no lift").any(1) - 2.5
        rows = {
            "time": day + pd.to_timedelta(np.sort(draw.integers(6, 20, ROWS_A_DAY)), "h"),
            "km": km,
            "stops": stops,
            "note": [f"{one}, {other}, bell {draw.integers(10_000)}" for one, other in notes],
            "late": (slow + draw.logistic(size=ROWS_A_DAY) / 4 > 0).astype(int),
        }
        pd.DataFrame(rows).to_parquet(folder / f"{day.date()}.parquet", index=False)


def test_both_classes_of_the_page_have_nights(tmp_path: Path, furnish) -> None:
    pytest.importorskip("lightning", reason="no Lightning here; pip install 'daybreak[lightning]'")
    pytest.importorskip("transformers", reason="no transformers; pip install 'daybreak[transformers]'")
    page = (ROOT / "docs/models-you-have.md").read_text()
    modules = re.findall(r'```python\n(""".*?)```', page, re.S)
    classes = [re.search(r"class Late\(.*", module, re.S) for module in modules]
    assert all(0 < len([line for line in each[0].splitlines() if line]) <= 30 for each in classes if each)
    assert all(classes)
    deliver(tmp_path / "deliveries")
    (command,) = re.findall(r"daybreak (init .*)", page)
    work = tmp_path / "work"
    work.mkdir()
    run(*command.replace("'", "").split(), folder=work)
    home = furnish(work / "late")
    few = [*SMALL, "train.epochs=4", "profile.steps=2", "smoke_test.samples=0", "evaluate.explain=false"]
    nights = {"lightning": [*few, "train.schedule=own"], "transformers": few}
    for number, (name, keys) in enumerate(nights.items(), 1):
        (home / "late.py").write_text(modules[number - 1])
        subprocess.run(["git", *IDENTITY, "commit", "-qam", name], cwd=home, check=True)
        run("night", "--night", name, *(word for key in keys for word in ("--set", key)), folder=home)
        night = home / "nights" / name
        assert of(night, Version).number == number
        loss = of(night, Evaluation).metrics["log loss"]
        assert loss < 0.62, (name, loss)  # of a constant: 0.63
