"""Whether retraining every night pays on a real shop, and what the gate takes from it or adds.

Online Retail, from the first trading day of 2011 on, with the month before it as the history of the first
night. What serves after a night answers the customers of the next trading day: its NDCG@20 on their baskets
is what each policy (policies.py) is measured by, on the same customers. All see the same fresh features: what
differs is when the weights were trained.

Nightly policies train warm or cold as nights decide, by `params.yaml` as it is: cold on Sundays, and where
the gate asks for it. The others train cold each time, since `train.cold_every` is a week. Left out is what
needs no decision here: the smoke test, and days that `validate` would hold.

Each day's samples are made once, from nothing later (shop_nights.py). Intervals are of resampled weeks, as
days of a week are alike. Nothing was chosen after a result was seen. QUICK=1: a tenth of the nights.
"""

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import torch

from benchmarks import frame, policies
from benchmarks.policies import Gated, Scores, Trained
from benchmarks.shop_nights import Shop
from daybreak.contract import params
from daybreak.contract.record_types import Champion, Night
from daybreak.evaluation.scores import Columns
from daybreak.evaluation.scoring import ScoredModel, score
from daybreak.registry.weights import load_model

FIRST = 20  # trading days before that of the first night, 2011-01-04
NUM_NIGHTS = 24 if frame.QUICK else 250
RULES = {"counts": "own counts", "counts_popularity": "own counts, tied", "popularity": "popularity"}


def main() -> None:
    """Run all nights, and print what served under each policy."""
    torch.set_num_threads(1)
    shop = ShopDays()
    gated = Gated(shop)
    days, served, others = policies.run(gated, shop, first=FIRST, num_nights=NUM_NIGHTS)
    frame.finish("pays", policies.figures_of(days, served, gated, others, metric="NDCG@20"), {})


class ShopDays:
    """The trading days of the shop, whose data no night holds."""

    def __init__(self) -> None:
        self._shop = Shop(params.load(frame.ROOT), first=FIRST, num_days=FIRST + NUM_NIGHTS + 1)
        self.days: tuple[date, ...] = self._shop.days
        self.gate = self._shop.params.gate

    def holds(self, place: int) -> bool:
        """Returns False: what `validate` would hold is left out."""
        return False

    def trained(self, night: Night, champion: Champion | None, model: Path | None) -> Trained:
        """Returns the model of a night: from the champion's in `model`, or cold, as nights decide."""
        return self._shop.trained(night, champion, model)

    def judged(self, place: int, models: Mapping[str, Trained]) -> Columns:
        """Returns what each model and each baseline scores on a day, with metrics, slices and units."""
        baselines = {f"baseline/{name}": values for name, values in self._shop.baselines[place].items()}
        return self._columns(place, models) | baselines

    def served(self, place: int, serving: Mapping[str, Trained]) -> Mapping[str, Scores]:
        """Returns the NDCG of each policy and each rule, [n] each; a model of several is scored once."""
        folders = {one.folder: one for one in serving.values()}
        columns = self._columns(place, {one.folder.name: one for one in folders.values()})
        rules = {name: self._shop.baselines[place][key] for key, name in RULES.items()}
        return {name: columns[one.folder.name] for name, one in serving.items()} | rules

    def _columns(self, place: int, models: Mapping[str, Trained]) -> Columns:
        workload, samples = self._shop.workload, self._shop.held_out(place)
        arms = [
            ScoredModel(name=name, workload=workload, model=load_model(workload, one.folder), samples=samples)
            for name, one in models.items()
        ]
        with torch.inference_mode():
            return score(arms, len(samples), batch_size=self._shop.params.evaluate.batch_size)


if __name__ == "__main__":
    main()
