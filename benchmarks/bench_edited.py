"""Edits of a team's model, one a night: each ends in a verdict on the edited model and the one that serves.

A home as `init` writes it, over simulated card payments. After its first night the loss is changed, the
network is made wider in place, a feature is added, and a column is added to the data and to the table. Nobody
does anything else. What serves is scored on the same clean rows, by its own code, features and state.
"""

import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from benchmarks import frame
from daybreak.contract import records
from daybreak.contract.record_types import Champion, Evaluation, Training, Verdict
from tests.test_own_data import NEWEST, deliver, edit, night, run

FEATURE = """\
    def fit(self, rows: ir.Table) -> State:
        state = dict(super().fit(rows))
        edges = state["edges"]
        return state | {"edges": np.concatenate([edges, np.linspace([0], [1], edges.shape[1], axis=1)])}

    def features(self, rows: pa.Table, state: State, past: Past) -> Mapping[str, NDArray[Any]]:
        made = dict(super().features(rows, state, past))
        whole = np.asarray(rows["amount"]) % 1 == 0
        made["numbers"] = np.column_stack([made["numbers"], whole.astype(np.float32)])
        made["missing"] = np.column_stack([made["missing"], np.zeros(len(rows), dtype=bool)])
        return made

    def model(self"""
IMPORTS = """\
from collections.abc import Mapping
from typing import Any

import ibis.expr.types as ir
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from daybreak.data.features import Past
from torch import Tensor, nn"""
EDITS = {
    "another loss": [("logit, label, reduction", "logit, 0.98 * label + 0.01, reduction")],
    "wider in place": [("return TableModel(state)", "return TableModel(state, hidden=384)")],
    "a feature more": [("    def model(self", FEATURE), ("from torch import Tensor, nn", IMPORTS)],
    "a column more": [
        ('"online": Bool(),', '"online": Bool(),\n            "store": Category(nullable=True),')
    ],
}


def main() -> None:
    """Run a night for each edit, and hold the number of verdicts against the number of edits."""
    edits = dict(list(EDITS.items())[:1]) if frame.QUICK else EDITS
    os.environ["PYTHONPATH"] = str(frame.ROOT)  # a home of its own does not hold the package
    rows, verdicts = [], 0
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        cards, home = Path(folder) / "cards", Path(folder) / "payments"
        deliver(cards, today=NEWEST + timedelta(days=1))
        words = ["--from", f"{cards}/*.parquet", "--time", "time", "--label", "is_fraud", "--unit", "account"]
        run("init", "payments", *words, folder=Path(folder))
        night(home, NEWEST)
        for number, (name, pairs) in enumerate(edits.items(), 1):
            deliver(cards, today=NEWEST + timedelta(days=1 + number), store="column" in name)
            edit(home, *pairs)
            began = time.monotonic()
            run_folder = night(home, NEWEST + timedelta(days=number)) / records.RUN
            kinds = (Verdict, Evaluation, Training, Champion)
            verdict, evaluation, training, champion = (records.read(kind, run_folder) for kind in kinds)
            scores = [evaluation.metrics[key] for key in ("score", "champion_score")]
            judged = verdict.effect is not None and verdict.champion == champion.version
            verdicts += judged and scores[0] != scores[1]
            start = f"version {champion.version}" if training.warm else "new weights"
            rows.append(
                {
                    "edit": name,
                    "trained from": start,
                    "score": scores[0],
                    "champion's": scores[1],
                    "verdict": verdict.action,
                    "seconds": time.monotonic() - began,
                }
            )
    frame.table(rows)
    figures = {"edits": float(len(edits)), "verdicts on both models": float(verdicts)}
    frame.finish("edited", figures, {"verdicts on both models": ("==", len(edits))})


if __name__ == "__main__":
    main()
