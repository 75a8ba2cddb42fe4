"""Fifteen pipelines as teams have them: how samples are prepared, and a model for each.

Files are written once, fewer than a real set has; a data set goes through them again and again up to its
length. An update of most takes less than a tenth of a second.
"""

import gzip
import io
import random
import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

LATENCY_S = 2e-3  # of a file of an object store
Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Pipeline:
    """How the files of a pipeline are written, and what is trained on them."""

    write: Callable[[Path], None]
    data: Callable[[Path], Any]
    model: Callable[[], nn.Module]
    loss: Loss
    batch_size: int
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = field(
        default=partial(torch.optim.Adam, lr=1e-3)
    )


class Piped:
    """Workload: the pipeline of that name."""

    def __init__(self, name: str) -> None:
        self.name, self.pipeline = name, PIPELINES[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return Piped, (self.name,)

    def dataset(self, folder: Path, split: str) -> Any:
        return self.pipeline.data(folder)

    def model(self) -> nn.Module:
        return self.pipeline.model()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.pipeline.optimizer(parameters)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.pipeline.loss(model, batch)

    def score(self, model: nn.Module, batch: Any) -> Tensor:
        return -self.loss(model, batch)


class Samples:
    """Samples made one by one."""

    def __init__(self, length: int, get: Callable[[int], Any]) -> None:
        self.length, self.get = length, get

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, sample: int) -> Any:
        return self.get(int(sample))


class Batches:
    """Samples gathered from arrays by the batch."""

    def __init__(self, *columns: np.ndarray) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitems__(self, samples: Sequence[int]) -> tuple[Tensor, ...]:
        rows = np.asarray(samples, dtype=np.int64)
        return tuple(torch.from_numpy(column[rows]) for column in self.columns)


def generator() -> np.random.Generator:
    return np.random.default_rng(0)


def classified(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of a batch of inputs and classes."""
    inputs, classes = batch
    return functional.cross_entropy(model(inputs), classes, reduction="none")


def regressed(model: nn.Module, batch: Any) -> Tensor:
    """Squared error of a batch of inputs and values."""
    inputs, values = batch
    return (model(inputs)[:, 0] - values).square()


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convolutions(channels: int, width: int, classes: int) -> nn.Sequential:
    """Four convolutions of stride 2 and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((channels, width), (width, 2 * width), (2 * width, 4 * width), (4 * width,) * 2):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def photos(number: int, side: int) -> np.ndarray:
    """Smooth noise as images, [number, side, side, 3] in bytes, which compress about as photos do."""
    coarse = generator().integers(0, 256, size=(number, side // 8, side // 8, 3), dtype=np.uint8)
    return np.stack([np.asarray(Image.fromarray(each).resize((side, side))) for each in coarse])


# 1 JPEG with random crops

JPEG_FILES, CROP = 256, 96


def write_jpeg(folder: Path) -> None:
    for number, pixels in enumerate(photos(JPEG_FILES, 320)):
        Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=90)


def jpeg_crops(folder: Path) -> Samples:
    def get(sample: int) -> tuple[Tensor, int]:
        image = Image.open(io.BytesIO((folder / f"{sample % JPEG_FILES}.jpg").read_bytes())).convert("RGB")
        side = random.uniform(0.4, 1.0) * image.width
        left, top = random.uniform(0, image.width - side), random.uniform(0, image.height - side)
        image = image.resize(
            (CROP, CROP), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
        )
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        return pixels.float().div_(127.5).sub_(1), sample % 10

    return Samples(50_000, get)


# 2 Spectrograms with jitter

WAVES, RATE, BANDS = 256, 16_000, 64


def write_waves(folder: Path) -> None:
    np.save(folder / "waves.npy", generator().normal(size=(WAVES, RATE)).astype(np.float32))


def spectrograms(folder: Path) -> Samples:
    waves = np.load(folder / "waves.npy", mmap_mode="r")
    window = torch.hann_window(512)
    bands = torch.from_numpy(generator().random((BANDS, 257), dtype=np.float32) / 257)

    def get(sample: int) -> tuple[Tensor, int]:
        wave = torch.from_numpy(waves[sample % WAVES].copy())
        gain, shift = torch.rand(2).tolist()
        wave = wave.roll(int(shift * 1600)).mul_(0.5 + gain)
        power = torch.stft(wave, 512, 160, window=window, return_complex=True).abs().square()
        return (bands @ power).add(1e-6).log()[None], sample % 10

    return Samples(50_000, get)


# 3 Group-by with pandas

CUSTOMERS, CATEGORIES = 2_000, 12


def write_orders(folder: Path) -> None:
    rows, rng = CUSTOMERS * 40, generator()
    orders = {
        "customer": np.sort(rng.integers(0, CUSTOMERS, rows)),
        "category": rng.integers(0, CATEGORIES, rows),
        "amount": rng.exponential(20.0, rows),
    }
    pd.DataFrame(orders).to_parquet(folder / "orders.parquet")


def grouped_orders(folder: Path) -> Samples:
    orders = pd.read_parquet(folder / "orders.parquet")
    ends = np.searchsorted(orders["customer"].to_numpy(), np.arange(CUSTOMERS + 1))

    def get(sample: int) -> tuple[Tensor, np.float32]:
        own = orders.iloc[ends[sample % CUSTOMERS] : ends[sample % CUSTOMERS + 1]]
        amounts = own.groupby("category")["amount"].agg(["sum", "mean", "count"])
        features = amounts.reindex(range(CATEGORIES), fill_value=0.0).to_numpy(np.float32)
        return torch.from_numpy(features.ravel().copy()), np.float32(own["amount"].sum() / 1000)

    return Samples(20_000, get)


# 4 A tokenizer in pure Python

TEXTS, PIECES, TOKENS = 2_000, 8_000, 96
WORD = re.compile(r"[a-z]+|[^a-z\s]")


def write_texts(folder: Path) -> None:
    rng = generator()
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    words = ["".join(letters[(rng.beta(1, 3, n) * 26).astype(int)]) for n in rng.integers(2, 12, 5_000)]
    pieces = list("abcdefghijklmnopqrstuvwxyz") + [word[:n] for word in words for n in (2, 3, 4, 6)]
    (folder / "pieces.txt").write_text("\n".join(dict.fromkeys(pieces)))
    texts = [" ".join(words[n] for n in rng.integers(0, len(words), 60)) for _ in range(TEXTS)]
    (folder / "texts.txt").write_text("\n".join(texts))


def tokenized(folder: Path) -> Samples:
    texts = (folder / "texts.txt").read_text().split("\n")
    number_of = {piece: n + 1 for n, piece in enumerate((folder / "pieces.txt").read_text().split()[:PIECES])}

    def get(sample: int) -> tuple[Tensor, int]:
        numbers: list[int] = []
        for word in WORD.findall(texts[sample % TEXTS].lower()):
            start = 0
            while start < len(word):  # the longest piece first, as WordPiece does
                end = next(
                    e for e in range(len(word), start, -1) if word[start:e] in number_of or e - start == 1
                )
                numbers.append(number_of.get(word[start:end], 0))
                start = end
        numbers = numbers[:TOKENS]
        return torch.tensor(numbers + [0] * (TOKENS - len(numbers))), sample % 4

    return Samples(100_000, get)


# 5 Many small files, each a request to an object store

SMALL_FILES = 1_000


def write_small(folder: Path) -> None:
    for number, row in enumerate(generator().normal(size=(SMALL_FILES, 256)).astype(np.float32)):
        np.save(folder / f"{number}.npy", row)


def small_files(folder: Path) -> Samples:
    def get(sample: int) -> tuple[Tensor, np.float32]:
        time.sleep(LATENCY_S)
        row = np.load(folder / f"{sample % SMALL_FILES}.npy")
        return torch.from_numpy(row), row[0]

    return Samples(20_000, get)


# 6 Compressed blocks, far more than memory holds once they are decoded

BLOCKS, BLOCK = 128, (3, 256, 256)


def write_blocks(folder: Path) -> None:
    for number, pixels in enumerate(photos(BLOCKS, BLOCK[1])):
        (folder / f"{number}.gz").write_bytes(gzip.compress(pixels.tobytes(), compresslevel=6))


def compressed(folder: Path) -> Samples:
    def get(sample: int) -> tuple[Tensor, int]:
        raw = zlib.decompress((folder / f"{sample % BLOCKS}.gz").read_bytes(), wbits=31)
        pixels = torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).view(BLOCK[1], BLOCK[2], 3)
        return pixels, sample % 10

    return Samples(200_000, get)


def classified_pixels(model: nn.Module, batch: Any) -> Tensor:
    pixels, classes = batch
    return classified(model, (pixels[:, ::4, ::4].permute(0, 3, 1, 2).float().div(255), classes))


# 7 A table of 10^6 rows under dense Adam

TABLE_ROWS = 1_000_000


def write_events(folder: Path) -> None:
    rng = generator()
    np.save(folder / "ids.npy", rng.integers(0, TABLE_ROWS, size=(200_000, 20)))
    np.save(folder / "labels.npy", rng.random(200_000, dtype=np.float32))


def events(folder: Path) -> Batches:
    return Batches(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ids", "labels")))


def table() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(TABLE_ROWS, 8, mode="mean"), *perceptron(8, 64, 1))


# 8 word2vec

VOCABULARY, NEGATIVES = 30_000, 5


def write_pairs(folder: Path) -> None:
    np.save(folder / "pairs.npy", generator().zipf(1.3, size=(500_000, 2)) % VOCABULARY)


def skip_grams(folder: Path) -> Samples:
    pairs = np.load(folder / "pairs.npy", mmap_mode="r")

    def get(sample: int) -> dict[str, Any]:
        centre, context = pairs[sample]
        return {
            "centre": centre,
            "context": context,
            "negatives": torch.randint(VOCABULARY, (NEGATIVES,)),
        }

    return Samples(len(pairs), get)


class Word2Vec(nn.Module):
    """Vectors of words and vectors of contexts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.contexts = nn.Embedding(VOCABULARY, 100), nn.Embedding(VOCABULARY, 100)

    def forward(self, centre: Tensor, others: Tensor) -> Tensor:
        return (self.contexts(others) @ self.words(centre)[:, :, None])[:, :, 0]


def skip_gram_loss(model: nn.Module, batch: Any) -> Tensor:
    others = torch.cat([batch["context"][:, None], batch["negatives"]], 1)
    scores = model(batch["centre"], others)
    return -functional.logsigmoid(scores[:, 0]) - functional.logsigmoid(-scores[:, 1:]).sum(1)


# 9 A graph

NODES, EDGES = 10_000, 100_000


def write_graph(folder: Path) -> None:
    rng = generator()
    np.save(folder / "nodes.npy", rng.permutation(NODES))
    np.save(folder / "classes.npy", rng.integers(0, 10, NODES))


def graph_nodes(folder: Path) -> Batches:
    return Batches(np.load(folder / "nodes.npy"), np.load(folder / "classes.npy"))


class GraphNet(nn.Module):
    """Two layers that add up the neighbours of each node of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        edges = torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(0))
        self.register_buffer("edges", edges)
        self.nodes = nn.Parameter(torch.randn(NODES, 32))
        self.layers = nn.ModuleList([nn.Linear(64, 32), nn.Linear(64, 32)])
        self.last = nn.Linear(32, 10)

    def forward(self, chosen: Tensor) -> Tensor:
        edges: Any = self.edges
        h: Tensor = self.nodes
        for layer in self.layers:
            gathered = h.index_select(0, edges[0])
            around = torch.zeros_like(h).scatter_add(0, edges[1][:, None].expand_as(gathered), gathered)
            h = layer(torch.cat([h, around / (EDGES / NODES)], 1)).relu()
        return self.last(h.index_select(0, chosen))


# 10 Two towers

USERS, ITEMS = 50_000, 20_000


def write_purchases(folder: Path) -> None:
    rng = generator()
    purchases = {
        "user": rng.integers(0, USERS, 300_000),
        "item": rng.integers(0, ITEMS, 300_000),
        "past": rng.integers(0, ITEMS, (300_000, 20)),
        "price": rng.random((300_000, 4), dtype=np.float32),
    }
    for name, values in purchases.items():
        np.save(folder / f"{name}.npy", values)


def purchases(folder: Path) -> Samples:
    columns = {name: np.load(folder / f"{name}.npy") for name in ("user", "item", "past", "price")}
    return Samples(len(columns["user"]), lambda n: {name: column[n] for name, column in columns.items()})


class TwoTowers(nn.Module):
    """Vectors of users from what they bought, and of items."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 16), nn.Embedding(ITEMS, 32)
        self.of_user, self.of_item = perceptron(48, 128, 64), perceptron(36, 128, 64)

    def forward(self, batch: Any) -> Tensor:
        users = self.of_user(torch.cat([self.user(batch["user"]), self.item(batch["past"]).mean(1)], 1))
        items = self.of_item(torch.cat([self.item(batch["item"]), batch["price"]], 1))
        return users @ items.T


def in_batch_loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of each user's item against the other items of the batch."""
    scores = model(batch)
    return functional.cross_entropy(scores, torch.arange(len(scores)), reduction="none")


# 11 LSTM

STEPS = 48


def write_series(folder: Path) -> None:
    np.save(folder / "series.npy", generator().normal(size=(60_000, 16)).astype(np.float32))


def windows(folder: Path) -> Samples:
    series = torch.from_numpy(np.load(folder / "series.npy"))
    return Samples(len(series) - STEPS, lambda n: (series[n : n + STEPS], series[n + STEPS, 0]))


class Recurrent(nn.Module):
    """A forecast of the next value from the state after the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(16, 96, batch_first=True), nn.Linear(96, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0][:, -1])


# 12 A small GPT

CONTEXT, CHARACTERS, WIDTH = 64, 256, 128


def write_characters(folder: Path) -> None:
    np.save(folder / "text.npy", (generator().zipf(1.4, 500_000) % CHARACTERS).astype(np.uint8))


def characters(folder: Path) -> Samples:
    text = np.load(folder / "text.npy", mmap_mode="r")

    def get(sample: int) -> tuple[Tensor, Tensor]:
        window = torch.from_numpy(text[sample : sample + CONTEXT + 1].astype(np.int64))
        return window[:-1], window[1:]

    return Samples(len(text) - CONTEXT - 1, get)


class Gpt(nn.Module):
    """Two layers of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = partial(
            nn.TransformerEncoderLayer,
            WIDTH,
            4,
            4 * WIDTH,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.ModuleList([layer() for _ in range(2)])
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.place(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return self.last(self.norm(h))


def next_character_loss(model: nn.Module, batch: Any) -> Tensor:
    x, following = batch
    return functional.cross_entropy(model(x).transpose(1, 2), following, reduction="none").mean(1)


# 13 VAE


def write_digits(folder: Path) -> None:
    np.save(folder / "digits.npy", generator().integers(0, 256, size=(20_000, 784), dtype=np.uint8))


def digits(folder: Path) -> Samples:
    pixels = np.load(folder / "digits.npy", mmap_mode="r")
    return Samples(len(pixels), lambda n: torch.from_numpy(pixels[n].astype(np.float32) / 255))


class Vae(nn.Module):
    """An encoder to mean and logarithm of the variance, and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = perceptron(784, 400, 40), perceptron(20, 400, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        drawn = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(drawn), mean, log_variance


def evidence_loss(model: nn.Module, batch: Any) -> Tensor:
    made, mean, log_variance = model(batch)
    apart = functional.binary_cross_entropy_with_logits(made, batch, reduction="none").sum(1)
    return apart + (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2


# 14 Forty tiny layers


def write_rows(folder: Path) -> None:
    np.save(folder / "x.npy", generator().normal(size=(50_000, 32)).astype(np.float32))
    np.save(folder / "y.npy", generator().random(50_000, dtype=np.float32))


def rows(folder: Path) -> Batches:
    return Batches(np.load(folder / "x.npy"), np.load(folder / "y.npy"))


def tiny_layers() -> nn.Module:
    layers = [part for _ in range(40) for part in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(32, 1))


# 15 ResNet

PHOTOS = 256


def write_photos(folder: Path) -> None:
    np.save(folder / "photos.npy", photos(PHOTOS, 224))


def normalised_photos(folder: Path) -> Samples:
    pixels = np.load(folder / "photos.npy", mmap_mode="r")

    def get(sample: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(pixels[sample % PHOTOS].copy()).permute(2, 0, 1)
        return image.float().div_(127.5).sub_(1), sample % 10

    return Samples(50_000, get)


class Residual(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.around = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.around(x)).relu()


def resnet() -> nn.Module:
    """ResNet-18 of a quarter of its width."""
    blocks = [
        Residual(16 * max(1, stage // 2 if first else stage), 16 * stage, 2 if first and stage > 1 else 1)
        for stage in (1, 2, 4, 8)
        for first in (True, False)
    ]
    first = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def tokens_model() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(PIECES + 1, 64), *perceptron(64, 128, 4))


# How the files are written, the data, the model, the loss, the size of a batch, and another optimizer.
PIPELINES = {
    "JPEG, random crops": Pipeline(write_jpeg, jpeg_crops, partial(convolutions, 3, 8, 10), classified, 32),
    "spectrograms, jitter": Pipeline(
        write_waves, spectrograms, partial(convolutions, 1, 16, 10), classified, 32
    ),
    "pandas group-by": Pipeline(
        write_orders, grouped_orders, partial(perceptron, 3 * CATEGORIES, 128, 1), regressed, 32
    ),
    "tokenizer in Python": Pipeline(write_texts, tokenized, tokens_model, classified, 64),
    "small files, 2 ms each": Pipeline(
        write_small, small_files, partial(perceptron, 256, 256, 1), regressed, 32
    ),
    "compressed blocks": Pipeline(
        write_blocks, compressed, partial(convolutions, 3, 8, 10), classified_pixels, 16
    ),
    "10^6 rows, dense Adam": Pipeline(write_events, events, table, regressed, 256),
    "word2vec": Pipeline(
        write_pairs, skip_grams, Word2Vec, skip_gram_loss, 512, optimizer=partial(torch.optim.SGD, lr=1e-2)
    ),
    "graph": Pipeline(write_graph, graph_nodes, GraphNet, classified, 256),
    "two towers": Pipeline(write_purchases, purchases, TwoTowers, in_batch_loss, 256),
    "LSTM": Pipeline(write_series, windows, Recurrent, regressed, 64),
    "small GPT": Pipeline(
        write_characters,
        characters,
        Gpt,
        next_character_loss,
        8,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
    ),
    "VAE": Pipeline(write_digits, digits, Vae, evidence_loss, 128),
    "forty tiny layers": Pipeline(write_rows, rows, tiny_layers, regressed, 32),
    "ResNet": Pipeline(
        write_photos,
        normalised_photos,
        resnet,
        classified,
        4,
        optimizer=partial(torch.optim.SGD, lr=1e-2, momentum=0.9),
    ),
}
