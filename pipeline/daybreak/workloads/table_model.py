"""A network for the rows of a table: a sensible default, not the last word."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from daybreak.contract.workload import State
from daybreak.workloads.columns import CATEGORIES, MISSING, NUMBERS, WORDS

Batch = dict[str, Tensor]


class TableModel(nn.Module):
    """Embeddings of categories and words and piecewise linear encodings of numbers, then an MLP.

    A number becomes how far it has come in each interval between two quantiles (Gorishniy, Rubachev & Babenko
    2022), which lets a small network follow steps as trees do. A text is the mean of the embeddings of its
    words. It takes the features of daybreak/workloads/columns.py, and returns `num_outputs` values a sample,
    shape [b, num_outputs].
    """

    edges: Tensor

    def __init__(
        self, state: State, *, num_outputs: int = 1, hidden: int = 256, dim: int = 16, dropout: float = 0.1
    ) -> None:
        super().__init__()
        edges = torch.from_numpy(np.asarray(state["edges"], dtype=np.float32))
        self.register_buffer("edges", edges, persistent=False)
        sizes = [len(state[name]) for name in sorted(state) if name.startswith("values_")]
        self.embeddings = nn.ModuleList(nn.Embedding(size + 1, dim) for size in sizes)
        sizes_of_texts = [len(state[name]) for name in sorted(state) if name.startswith("words_")]
        self.words = nn.ModuleList(nn.Embedding(size + 1, dim) for size in sizes_of_texts)
        for embedding in (*self.embeddings, *self.words):
            nn.init.normal_(embedding.weight, std=0.1)
        num_inputs = edges.shape[0] * edges.shape[1] + dim * (len(sizes) + len(sizes_of_texts))
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_outputs),
        )

    def forward(self, batch: Batch) -> Tensor:
        """Returns the outputs, float32 [b, num_outputs]."""
        numbers = batch[NUMBERS][:, :, None]
        low, high = self.edges[:, :-1], self.edges[:, 1:]
        wide = high > low  # quantiles that are equal leave an interval without width
        come = ((numbers - low) / torch.where(wide, high - low, 1)).clamp(0, 1) * wide
        missing = batch[MISSING]
        encoded = torch.cat([come * ~missing[:, :, None], missing[:, :, None].to(come.dtype)], dim=2)
        embedded: list[Any] = [
            embedding(batch[CATEGORIES][:, place]) for place, embedding in enumerate(self.embeddings)
        ]
        for place, embedding in enumerate(self.words):
            words = batch[WORDS][:, place].long()
            known = (words > 0)[:, :, None]
            embedded.append((embedding(words) * known).sum(1) / known.sum(1).clamp(min=1))
        out: Tensor = self.layers(torch.cat([encoded.flatten(1), *embedded], dim=1))
        return out
