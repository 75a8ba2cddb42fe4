"""Loops over rows of a table, each written anew after the shape of one that is public."""

import random
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    log_softmax,
    logsigmoid,
    normalize,
)
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LRScheduler, SequentialLR

from benchmarks.loop import NUM_SAMPLES, Batch, Keys, Loop, Samples, cosine, linear, of_default_type, warm
from daybreak import TrainingProgress

USERS, ITEMS, WIDTH = 40, 30, 8


def rows(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Six numbers, a rare yes, and a number that follows from them."""
    numbers = draw.normal(size=(NUM_SAMPLES, 6)).astype(np.float32)
    value = np.sin(numbers[:, 0]) + 0.5 * numbers[:, 1] * numbers[:, 2]
    noisy = value + draw.normal(0, 0.3, NUM_SAMPLES)
    return {"numbers": numbers, "is_yes": (noisy > 1.2).astype(np.float32), "value": noisy.astype(np.float32)}


def visits(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Users and the items that they took, of the same kind mostly."""
    user = draw.integers(0, USERS, NUM_SAMPLES)
    item = (user % 5 + 5 * draw.integers(0, ITEMS // 5, NUM_SAMPLES)) % ITEMS
    return {"user": user, "item": item}


def net(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers."""
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


class SparseTables(Loop):
    """As DLRM: rows of large tables by SparseAdam and the nets by AdamW, with a cosine."""

    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1}
    factor = warm(0.1, cosine)

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**visits(draw), **rows(draw))

    def model(self) -> nn.Module:
        tables = {name: nn.Embedding(size, WIDTH, sparse=True) for name, size in TABLES.items()}
        return nn.ModuleDict({"tables": nn.ModuleDict(tables), "below": net(6, WIDTH), "above": net(3, 1)})

    def optimizer(self, model: Any) -> dict[str, Optimizer]:
        dense = [*model["below"].parameters(), *model["above"].parameters()]
        return {
            "tables": torch.optim.SparseAdam(list(model["tables"].parameters()), lr=self.rate),
            "nets": torch.optim.AdamW(dense, lr=self.rate / 2),
        }

    def loss(self, model: Any, batch: Batch) -> Tensor:
        user, item = (model["tables"][name](batch[name]) for name in TABLES)
        dense = model["below"](batch["numbers"])
        products = [(one * other).sum(1) for one, other in ((user, item), (user, dense), (item, dense))]
        logit = model["above"](torch.stack(products, 1))[:, 0]
        return binary_cross_entropy_with_logits(logit, batch["is_yes"], reduction="none")


TABLES = {"user": USERS, "item": ITEMS}


class TwoTowers(Loop):
    """As two towers of a recommender: negatives in the batch, their temperature learned."""

    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.1, "clip_norm": 1.0}
    factor = warm(0.1, linear)

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**visits(draw))

    def model(self) -> nn.Module:
        parts: dict[str, nn.Module] = {name: nn.Embedding(size, WIDTH) for name, size in TABLES.items()}
        towers = nn.ModuleDict({**parts, "answer": nn.Linear(WIDTH, WIDTH)})
        towers.register_parameter("sharpness", nn.Parameter(torch.ones(())))
        return towers

    def encode(self, model: Any, batch: Batch) -> Batch:
        user = normalize(model["answer"](torch.tanh(model["user"](batch["user"]))))
        return {
            "user": user * model.sharpness.exp(),
            "item": normalize(model["item"](batch["item"])),
            "number": batch["item"],
        }

    def batch_loss(self, encoded: Batch) -> Tensor:
        user, item, number = encoded["user"], encoded["item"], encoded["number"]
        is_same = (number[:, None] == number) & ~torch.eye(len(number), dtype=torch.bool)
        logits = (user @ item.T).masked_fill(is_same, -1e4)
        return cross_entropy(logits, torch.arange(len(number)), reduction="none")

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return self.batch_loss(self.encode(model, batch))


class PairsByChance(Loop):
    """As BPR: an item by Python's chance for each that was taken, some samples drawn more often."""

    rate = 0.05
    train: ClassVar[Keys] = {"schedule": "constant", "warmup": 0.0, "ema": 0.9}
    workers = "draw"

    def samples(self, draw: np.random.Generator) -> Samples:
        samples = Samples(**visits(draw))
        samples.weights = draw.uniform(0.2, 3.0, NUM_SAMPLES)  # type: ignore[attr-defined]
        return samples

    def model(self) -> nn.Module:
        tables = {name: nn.Embedding(size, WIDTH) for name, size in TABLES.items()}
        for table in tables.values():
            nn.init.normal_(table.weight, std=0.1)
        return nn.ModuleDict(tables)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate, weight_decay=1e-3)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        user, own = model["user"](batch["user"]), model["item"](batch["item"])
        others = torch.tensor([random.randrange(ITEMS) for _ in range(len(user))])
        return -16 * logsigmoid((user * (own - model["item"](others))).sum(1))


class Searches:
    """Results of searches, of which each sample is a list."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.lengths = 2 + draw.integers(0, 7, NUM_SAMPLES)
        self.lists = [torch.tensor(draw.normal(size=(n, 3)), dtype=torch.float32) for n in self.lengths]

    def __len__(self) -> int:
        return len(self.lists)

    def __getitem__(self, sample: int) -> Tensor:
        return of_default_type(self.lists[sample])

    def collate(self, samples: list[Tensor]) -> Batch:
        lengths = torch.tensor([len(each) for each in samples])
        return {"results": nn.utils.rnn.pad_sequence(samples, batch_first=True), "lengths": lengths}


class RankedLists(Loop):
    """As ListNet: the results of a search are one sample, whose order is learned, by clipped values."""

    rate = 0.05
    train: ClassVar[Keys] = {"schedule": "stable", "warmup": 0.05, "decay": 0.5, "clip_value": 0.01}
    factor = staticmethod(lambda done: min(done / 0.05, (1 - done) / 0.5, 1.0))

    def samples(self, draw: np.random.Generator) -> Searches:
        return Searches(draw)

    def model(self) -> nn.Module:
        return net(3, 1)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.Adagrad(model.parameters(), lr=self.rate)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        results = batch["results"]
        is_there = torch.arange(results.shape[1]) < batch["lengths"][:, None]
        scores, due = model(results)[..., 0], 2 * results[..., 0] - results[..., 1].square()
        own, wanted = (each.masked_fill(~is_there, -1e4) for each in (scores, due))
        return -(wanted.softmax(1) * log_softmax(own, 1)).sum(1)


class SeveralLabels(Loop):
    """As uncertainty weighting: a late label is unknown for some, and the rate restarts twice (SGDR)."""

    train: ClassVar[Keys] = {"schedule": "own", "clip_norm": 1.0}

    def samples(self, draw: np.random.Generator) -> Samples:
        columns = rows(draw)
        late = np.where(np.arange(NUM_SAMPLES) % 3 == 0, np.nan, columns["is_yes"]).astype(np.float32)
        return Samples(**columns, late=late)

    def model(self) -> nn.Module:
        model = net(6, 2)
        model.register_parameter("doubt", nn.Parameter(torch.zeros(2)))
        return model

    def schedule(self, done: float, num_updates: int) -> float:
        return cosine(int(done * num_updates) % 40 / 40)

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        return CosineAnnealingWarmRestarts(optimizer, T_0=40)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        value, logit = model(batch["numbers"]).unbind(1)
        known = ~batch["late"].isnan()
        late = binary_cross_entropy_with_logits(logit, batch["late"].nan_to_num(), reduction="none") * known
        losses = torch.stack([(value - batch["value"]).square(), late], 1)
        return (losses * (-model.doubt).exp() + model.doubt).sum(1)


class Quantiles(Loop):
    """As a quantile forecast: pinball losses, validated as it trains, the best weights served."""

    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1, "validation": 0.2, "patience": 4}
    levels = (0.1, 0.5, 0.9)

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**rows(draw))

    def model(self) -> nn.Module:
        return net(6, len(self.levels))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        apart = batch["value"][:, None] - model(batch["numbers"])
        levels = torch.tensor(self.levels)
        return torch.maximum(levels * apart, (levels - 1) * apart).sum(1)


class Lion(Optimizer):
    """The sign of a mixed momentum (Chen et al. 2023), as a team writes it."""

    def __init__(
        self, parameters: Any, *, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            now, later = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * torch.lerp(weight.grad, mean, now).sign())
                mean.lerp_(weight.grad, 1 - later)


class OwnOptimizer(Loop):
    """An optimizer of the team's own, SequentialLR of two schedulers, an EMA."""

    rate = 3e-3
    train: ClassVar[Keys] = {"schedule": "own", "ema": 0.9, "scaling": "fixed"}

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**rows(draw))

    def model(self) -> nn.Module:
        return net(6, 1)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Lion(model.parameters(), lr=self.rate, betas=(0.9, 0.99), weight_decay=0.1)

    def schedule(self, done: float, num_updates: int) -> float:
        update = int(done * num_updates)
        return 0.1 + 0.9 * update / 20 if update < 20 else 0.98 ** (update - 20)

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        rising = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
        falling = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.98)
        return SequentialLR(optimizer, [rising, falling], milestones=[20])

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return (model(batch["numbers"])[:, 0] - batch["value"]).square()


class HardSamples(Loop):
    """A memory of which samples are hard, kept by the class, by which losses are weighed."""

    train: ClassVar[Keys] = {"schedule": "stable", "warmup": 0.0, "decay": 0.3, "clip_norm": 1.0}
    factor = staticmethod(lambda done: min(1.0, (1 - done) / 0.3))
    workers = "refused"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.memory, self.num_hard = torch.zeros(NUM_SAMPLES), 0

    def state_dict(self) -> dict[str, Any]:
        return {"memory": self.memory, "num_hard": self.num_hard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory, self.num_hard = state["memory"], state["num_hard"]

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**rows(draw), number=np.arange(NUM_SAMPLES))

    def model(self) -> nn.Module:
        return net(6, 1)

    def loss(self, model: Any, batch: Batch, progress: TrainingProgress) -> Tensor:  # type: ignore[override]
        losses = (model(batch["numbers"])[:, 0] - batch["value"]).square()
        before = self.memory[batch["number"]]
        self.memory[batch["number"]] = 0.5 * before + 0.5 * losses.detach()
        self.num_hard += int((before > 1).sum())
        return losses * (1 + progress.done * before.clamp(max=2) + self.num_hard / 1e4)
