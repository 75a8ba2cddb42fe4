"""A workload that somebody broke: it trains on labels shuffled among the candidates of each sample."""

from pathlib import Path
from typing import Any

import torch

from daybreak.contract.workload import Split
from daybreak.examples.shop.candidate_items import CandidateDataset
from daybreak.examples.shop.recommender import Recommender


class ShuffledLabels:
    """A dataset whose `bought` is shuffled among the candidates of each sample, the same way each time."""

    def __init__(self, samples: CandidateDataset) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def __getitems__(self, indices: list[int]) -> dict[str, Any]:
        batch = self._samples.__getitems__(indices)
        bought = batch["bought"].clone()
        for row, index in enumerate(indices):
            there = batch["mask"][row].nonzero()[:, 0]
            order = torch.randperm(len(there), generator=torch.Generator().manual_seed(int(index)))
            bought[row, there] = bought[row, there[order]]
        return {**batch, "bought": bought}


class Mislabelled(Recommender):
    """The recommender, trained on shuffled labels and judged on true ones."""

    def dataset(self, folder: Path, split: Split) -> Any:
        """Samples of `split`; those to train on have shuffled labels."""
        samples = super().dataset(folder, split)
        return ShuffledLabels(samples) if split == "train" else samples
