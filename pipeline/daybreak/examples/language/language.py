"""How do people write? A small transformer that guesses each byte of a line from those before it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from daybreak import Batch, Id, Past, Perplexity, State, Table, TableWorkload, Text, Time

if TYPE_CHECKING:
    import ibis.expr.types as ir

LENGTH = 96  # bytes of a line; the rest is cut off
START = END = 0  # a byte that no text has


class Language(TableWorkload):
    """A language model of bytes; there is no label, since the next byte is one."""

    table = Table(time="time", unit="document", columns={"document": Id(), "text": Text(), "time": Time()})
    metrics = (Perplexity(prediction="log_loss"),)

    def fit(self, rows: "ir.Table") -> State:
        """Returns nothing: bytes need no vocabulary."""
        return {}

    def features(self, rows: pa.Table, state: State, past: Past) -> Mapping[str, NDArray[Any]]:
        """Returns `tokens`, uint8 [b, LENGTH], zeros behind the end."""
        tokens = np.zeros((len(rows), LENGTH), dtype=np.uint8)
        for line, text in zip(tokens, rows["text"].to_pylist(), strict=True):
            read = np.frombuffer(text.encode()[:LENGTH], dtype=np.uint8)
            line[: len(read)] = read
        return {"tokens": tokens}

    def model(self, state: State) -> nn.Module:
        """Returns the network."""
        return Network()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Returns the mean log loss of each line's bytes."""
        losses, is_text = log_losses(model, batch["tokens"])
        return losses.sum(dim=1) / is_text.sum(dim=1)

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Returns the sum of log losses and the number of bytes of each line, shape [b, 2]."""
        losses, is_text = log_losses(model, batch["tokens"])
        return {"log_loss": torch.stack([losses.sum(dim=1), is_text.sum(dim=1)], dim=1)}


def log_losses(model: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Returns minus the log of the chance of each byte, 0 behind the end, and where a line is; [b, LENGTH].

    The first END counts as a byte of the line.
    """
    losses = cross_entropy(model(tokens).transpose(1, 2), tokens.long(), reduction="none")
    is_text = (tokens != END).float()
    is_text = torch.cat([torch.ones_like(is_text[:, :1]), is_text[:, :-1]], dim=1)
    return losses * is_text, is_text


class Network(nn.Module):
    """A transformer that sees only bytes to the left."""

    def __init__(self, dim: int = 64, num_layers: int = 2) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, dim), nn.Embedding(LENGTH, dim)
        layer = nn.TransformerEncoderLayer(
            dim, nhead=4, dim_feedforward=4 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 256))
        mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the logits of each next byte, shape [b, LENGTH, 256]."""
        seen = torch.cat([torch.full_like(tokens[:, :1], START), tokens[:, :-1]], dim=1).long()
        states = self.byte(seen) + self.place.weight
        out: Tensor = self.head(self.layers(states, mask=self.mask, is_causal=True))
        return out
