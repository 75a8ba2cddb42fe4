"""Loops over sequences, each written anew after the shape of one that is public."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, LRScheduler

from benchmarks.loop import NUM_SAMPLES, Batch, Keys, Loop, Samples, cosine, decayed, linear, warm
from daybreak import TrainingProgress

WORDS, LENGTH, WIDTH = 23, 12, 16
MASK = WORDS  # a word of its own


def sentences(draw: np.random.Generator) -> np.ndarray:
    """Words that follow each other by a rule, with mistakes."""
    words = draw.integers(0, WORDS, (NUM_SAMPLES, LENGTH))
    for place in range(1, LENGTH):
        follows = draw.random(NUM_SAMPLES) < 0.8
        words[follows, place] = (3 * words[follows, place - 1] + 1) % WORDS
    return words


class Block(nn.Module):
    """Attention and a net of two layers, each behind its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor, is_causal: bool) -> Tensor:
        shape = (*hidden.shape[:2], 2, WIDTH // 2)
        parts = [each.view(shape).transpose(1, 2) for each in self.mixed(self.norms[0](hidden)).chunk(3, -1)]
        read = nn.functional.scaled_dot_product_attention(*parts, is_causal=is_causal)
        hidden = hidden + self.out(read.transpose(1, 2).flatten(2))
        return hidden + self.net(self.norms[1](hidden))


class Transformer(nn.Module):
    """Two blocks, whose answer is by the same table that words are looked up in."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.words, self.places = nn.Embedding(WORDS + 1, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.answer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS + 1, bias=False)
        nn.init.normal_(self.words.weight, std=0.05)
        self.answer.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.words(words) + self.places.weight[: words.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, self.is_causal)
        logits: Tensor = self.answer(self.norm(hidden))
        return logits


class LanguageModel(Loop):
    """As nanoGPT: tied embeddings, a cosine after a warm-up, clipped, no decay of norms, an EMA."""

    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1, "clip_norm": 1.0, "ema": 0.95}
    factor = warm(0.1, cosine)

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(words=sentences(draw))

    def model(self) -> nn.Module:
        return Transformer(is_causal=True)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.AdamW(decayed(model, rate=self.rate, decay=0.1), betas=(0.9, 0.95))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        words = batch["words"]
        logits = model(words[:, :-1]).transpose(1, 2)
        return cross_entropy(logits, words[:, 1:], reduction="none").mean(1)


class MatricesByMuon(LanguageModel):
    """As nanochat: Muon for the matrices of blocks, AdamW for the rest, a stable rate, then falling."""

    train: ClassVar[Keys] = {"schedule": "stable", "warmup": 0.1, "decay": 0.4, "average_last": 0.2}
    factor = staticmethod(lambda done: min(done / 0.1, (1 - done) / 0.4, 1.0))

    def optimizer(self, model: Any) -> dict[str, Optimizer]:
        matrices = [each for each in model.blocks.parameters() if each.ndim == 2]
        others = [each for each in model.parameters() if all(each is not matrix for matrix in matrices)]
        return {
            "matrices": torch.optim.Muon(matrices, lr=self.rate),
            "others": torch.optim.AdamW(others, lr=self.rate / 2),
        }


class MaskedWords(LanguageModel):
    """As BERT: words are masked by chance, and the rate falls along a line."""

    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.1, "clip_norm": 1.0}
    factor = warm(0.1, linear)
    workers = "draw"

    def model(self) -> nn.Module:
        return Transformer(is_causal=False)

    def loss(self, model: Any, batch: Batch, progress: TrainingProgress) -> Tensor:  # type: ignore[override]
        words = batch["words"]
        is_masked = torch.rand(words.shape, generator=progress.generator) < 0.3
        logits = model(words.masked_fill(is_masked, MASK)).transpose(1, 2)
        losses = cross_entropy(logits, words, reduction="none") * is_masked
        return losses.sum(1) / is_masked.sum(1).clamp(min=1)


class Translation(Loop):
    """As "Attention is all you need": encoder, decoder, dropout, soft labels, 1 / sqrt after a warm-up."""

    rate = 3e-3
    train: ClassVar[Keys] = {"schedule": "own"}
    workers = "draw"

    def samples(self, draw: np.random.Generator) -> Samples:
        words = sentences(draw)
        return Samples(words=words, translated=(words[:, ::-1] + 5) % WORDS)

    def model(self) -> nn.Module:
        both = nn.Transformer(WIDTH, 2, 1, 1, 2 * WIDTH, dropout=0.1, batch_first=True)
        return nn.ModuleDict({"words": nn.Embedding(WORDS, WIDTH), "both": both})

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.rate, betas=(0.9, 0.98), eps=1e-9)

    def schedule(self, done: float, num_updates: int) -> float:
        update = 1 + int(done * num_updates)
        return min(update / 20, math.sqrt(20 / update))

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        return LambdaLR(optimizer, lambda n: 20**0.5 * min((n + 1) ** -0.5, (n + 1) * 20**-1.5))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        words, translated = batch["words"], batch["translated"]
        ahead = nn.Transformer.generate_square_subsequent_mask(LENGTH - 1)
        table = model["words"]
        hidden = model["both"](table(words), table(translated[:, :-1]), tgt_mask=ahead, tgt_is_causal=True)
        logits = (hidden @ table.weight.T).transpose(1, 2)
        return cross_entropy(logits, translated[:, 1:], reduction="none", label_smoothing=0.1).mean(1)


class Texts:
    """Sentences of unequal length."""

    def __init__(self, words: np.ndarray, lengths: np.ndarray) -> None:
        self.words, self.lengths = torch.as_tensor(words), lengths

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, sample: int) -> Tensor:
        return self.words[sample, : int(self.lengths[sample])]

    def collate(self, samples: list[Tensor]) -> Batch:
        lengths = torch.tensor([len(each) for each in samples])
        return {"words": pad_sequence(samples, batch_first=True), "lengths": lengths}


class RaggedLists(Loop):
    """As AWD-LSTM and its like: an LSTM over lists of unequal length, batches by tokens, clipped values."""

    train: ClassVar[Keys] = {"schedule": "constant", "warmup": 0.1, "clip_value": 0.01, "batch_by": "tokens"}
    factor = warm(0.1)

    def samples(self, draw: np.random.Generator) -> Texts:
        return Texts(sentences(draw), 3 + draw.integers(0, LENGTH - 2, NUM_SAMPLES))

    def model(self) -> nn.Module:
        parts = {
            "words": nn.Embedding(WORDS, WIDTH),
            "lstm": nn.LSTM(WIDTH, WIDTH, batch_first=True),
            "answer": nn.Linear(WIDTH, WORDS),
        }
        return nn.ModuleDict(parts)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        words, lengths = batch["words"], batch["lengths"]
        packed = pack_padded_sequence(
            model["words"](words[:, :-1]), lengths - 1, batch_first=True, enforce_sorted=False
        )
        read, _ = nn.utils.rnn.pad_packed_sequence(model["lstm"](packed)[0], batch_first=True)
        losses = cross_entropy(model["answer"](read).transpose(1, 2), words[:, 1:], reduction="none")
        is_there = torch.arange(1, words.shape[1]) < lengths[:, None]
        return (losses * is_there).sum(1) / (lengths - 1)


class Waves(Loop):
    """As WaveNet: dilated convolutions with norms of weights, and a rate that falls each epoch."""

    train: ClassVar[Keys] = {"schedule": "own", "clip_norm": 0.5}

    def samples(self, draw: np.random.Generator) -> Samples:
        places, phases = np.arange(33), draw.uniform(0, 6, (NUM_SAMPLES, 2))
        values = np.sin(0.3 * places + phases[:, :1]) + 0.5 * np.sin(0.9 * places + phases[:, 1:])
        return Samples(values=values.astype(np.float32))

    def model(self) -> nn.Module:
        layers: list[nn.Module] = []
        for number, dilation in enumerate((1, 2, 4)):
            convolution = nn.Conv1d(8 if number else 1, 8, 2, dilation=dilation)
            layers += [
                nn.ConstantPad1d((dilation, 0), 0.0),
                nn.utils.parametrizations.weight_norm(convolution),
                nn.Tanh(),
            ]
        return nn.Sequential(*layers, nn.Conv1d(8, 1, 1))

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=self.rate, momentum=0.5)

    def schedule(self, done: float, num_updates: int, num_epochs: float) -> float:
        return 0.9 ** int(int(done * num_updates) / (num_updates / num_epochs))

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        scheduler = ExponentialLR(optimizer, gamma=0.9)
        return EachEpoch(scheduler, every=NUM_SAMPLES // 16)  # type: ignore[return-value]

    def loss(self, model: Any, batch: Batch) -> Tensor:
        values = batch["values"]
        return (model(values[:, None, :-1])[:, 0] - values[:, 1:]).square().mean(1)


class EachEpoch:
    """A scheduler that a plain loop steps after each epoch."""

    def __init__(self, scheduler: LRScheduler, *, every: int) -> None:
        self.scheduler, self.every, self.num_updates = scheduler, every, 0

    def step(self) -> None:
        self.num_updates += 1
        if self.num_updates % self.every == 0:
            self.scheduler.step()


class NearWords(Loop):
    """As word2vec: pairs of near words against others by NumPy's chance, Adagrad on rows of two tables."""

    rate = 0.1
    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.0}
    factor = staticmethod(linear)
    workers = "draw"

    def samples(self, draw: np.random.Generator) -> Samples:
        words = sentences(draw)
        return Samples(word=words[:, 4], near=words[:, 5])

    def model(self) -> nn.Module:
        tables = {name: nn.Embedding(WORDS, WIDTH, sparse=True) for name in ("words", "contexts")}
        for table in tables.values():
            nn.init.normal_(table.weight, std=0.1)
        return nn.ModuleDict(tables)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=self.rate)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        word = model["words"](batch["word"])
        others = torch.as_tensor(np.random.randint(0, WORDS, (len(word), 5)))
        near = (word * model["contexts"](batch["near"])).sum(1)
        far = (word[:, None] * model["contexts"](others)).sum(2)
        return -logsigmoid(near) - logsigmoid(-far).sum(1)
