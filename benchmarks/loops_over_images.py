"""Loops over small images and points, each written anew after the shape of one that is public."""

import copy
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    kl_div,
    log_softmax,
    mse_loss,
    normalize,
)
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, PolynomialLR

from benchmarks.loop import NUM_SAMPLES, Batch, Keys, Loop, Samples, cosine, linear, warm
from daybreak import TrainingProgress
from daybreak.contract.record_parts import Tuning

SIDE, CLASSES = 8, 4


def pictures(draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Noise with a bright spot, whose quarter of the picture is the class."""
    label = draw.integers(0, CLASSES, NUM_SAMPLES)
    image = draw.normal(0, 0.3, (NUM_SAMPLES, 1, SIDE, SIDE))
    row, column = (label // 2 * 4 + 1, label % 2 * 4 + 1)
    for y in range(2):
        for x in range(2):
            image[np.arange(NUM_SAMPLES), 0, row + y, column + x] += 1.5
    return {"image": image.astype(np.float32), "label": label}


def convolutions(norm: type[nn.Module] | None = None) -> nn.Sequential:
    """Two layers, with a norm of the channels behind each if asked."""
    norms = [norm(width) if norm else nn.Identity() for width in (4, 8)]
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        norms[0],
        nn.ReLU(),
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        norms[1],
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )


class Pictures(Loop):
    """A small network learns the class."""

    def samples(self, draw: np.random.Generator) -> Samples:
        return Samples(**pictures(draw))

    def model(self) -> nn.Module:
        return nn.Sequential(convolutions(), nn.Linear(32, CLASSES))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model(batch["image"]), batch["label"], reduction="none")


class Residual(nn.Module):
    """A block with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
        )

    def forward(self, image: Tensor) -> Tensor:
        return torch.relu(image + self.path(image))


class ResidualNet(Pictures):
    """As torchvision's references: SGD with momentum, a rate that falls in steps, label smoothing, an EMA."""

    rate = 0.05
    train: ClassVar[Keys] = {"schedule": "own", "ema": 0.9}
    workers = "draw"

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            Residual(),
            Residual(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(
            model.parameters(), lr=self.rate, momentum=0.9, nesterov=True, weight_decay=1e-4
        )

    def schedule(self, done: float, num_updates: int) -> float:
        return 0.1 ** sum(int(done * num_updates) >= step for step in (50, 80))

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        return MultiStepLR(optimizer, [50, 80], gamma=0.1)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return cross_entropy(model(batch["image"]), batch["label"], reduction="none", label_smoothing=0.1)


class MixedPictures(Pictures):
    """As mixup: each picture with another of its batch, whose statistics are of the whole batch."""

    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.05}
    factor = warm(0.05, linear)
    whole_batch = True
    workers = "refused"
    pass_size = 4

    def model(self) -> nn.Module:
        return nn.Sequential(convolutions(nn.BatchNorm2d), nn.Linear(32, CLASSES))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        image, label = batch["image"], batch["label"]
        share, order = np.random.beta(0.4, 0.4), list(range(len(image)))
        random.shuffle(order)
        logits = model(share * image + (1 - share) * image[order])
        own, other = (cross_entropy(logits, each, reduction="none") for each in (label, label[order]))
        return share * own + (1 - share) * other


def points(draw: np.random.Generator) -> Samples:
    """Points of a ring."""
    angle = draw.uniform(0, 2 * np.pi, NUM_SAMPLES)
    ring = np.stack([np.cos(angle), np.sin(angle)], 1) + draw.normal(0, 0.05, (NUM_SAMPLES, 2))
    return Samples(point=ring.astype(np.float32))


class Adversaries(Loop):
    """As WGAN-GP: the critic steps four times of five, with a penalty on its gradient, and then both."""

    rate = 5e-3
    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.0, "clip_norm": 0.5}
    factor = staticmethod(cosine)
    workers = "draw"

    def samples(self, draw: np.random.Generator) -> Samples:
        return points(draw)

    def model(self) -> nn.Module:
        def net(inputs: int, outputs: int) -> nn.Module:
            return nn.Sequential(nn.Linear(inputs, 16), nn.LeakyReLU(0.2), nn.Linear(16, outputs))

        return nn.ModuleDict({"generator": net(4, 2), "critic": net(2, 1)})

    def optimizer(self, model: Any) -> dict[str, Optimizer]:
        return {
            "generator": torch.optim.Adam(
                model["generator"].parameters(), lr=self.rate / 2, betas=(0.5, 0.9)
            ),
            "critic": torch.optim.Adam(model["critic"].parameters(), lr=self.rate, betas=(0.5, 0.9)),
        }

    def loss(self, model: Any, batch: Batch, progress: TrainingProgress) -> Any:  # type: ignore[override]
        true = batch["point"]
        made = model["generator"](torch.randn(len(true), 4))
        share = torch.rand(len(true), 1)
        between = (share * true + (1 - share) * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(model["critic"](between).sum(), between, create_graph=True)
        penalty = 10 * (slope.norm(dim=1) - 1).square()
        of_made, of_true = (model["critic"](each)[:, 0] for each in (made, true))
        losses = {"critic": of_made - of_true + penalty, "generator": -of_made}
        return losses if progress.update % 5 == 4 else {"critic": losses["critic"]}


class Diffusion(Loop):
    """As DDPM: noise of a random strength is to be found, clipped, served by an EMA."""

    train: ClassVar[Keys] = {"schedule": "constant", "warmup": 0.2, "clip_norm": 1.0, "ema": 0.97}
    factor = warm(0.2)
    workers = "draw"

    def samples(self, draw: np.random.Generator) -> Samples:
        return points(draw)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 2))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        point = batch["point"]
        time, noise = torch.rand(len(point), 1), torch.randn(point.shape)
        noisy = torch.cos(time) * point + torch.sin(time) * noise
        return (model(torch.cat([noisy, time], 1)) - noise).square().sum(1)


class Contrasts(Pictures):
    """As SimCLR: two views of each picture are alike among those of the whole batch, in passes.

    It is of double precision, as passes add up in another order than a plain loop.
    """

    rate = 0.05
    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1}
    factor = warm(0.1, cosine)
    pass_size = 4

    def __init__(self, **options: Any) -> None:
        super().__init__(is_double=True)

    def model(self) -> nn.Module:
        return nn.Sequential(convolutions(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8))

    def optimizer(self, model: nn.Module) -> Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9, weight_decay=1e-4)

    def encode(self, model: Any, batch: Batch) -> Batch:
        image = batch["image"]
        views = image.flip(3) * 0.8, image.roll(1, 2) + 0.1
        return {name: normalize(model(view)) for name, view in zip("ab", views, strict=True)}

    def batch_loss(self, encoded: Batch) -> Tensor:
        alike, each = encoded["a"] @ encoded["b"].T / 0.5, torch.arange(len(encoded["a"]))
        return cross_entropy(alike, each, reduction="none") + cross_entropy(alike.T, each, reduction="none")

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return self.batch_loss(self.encode(model, batch))


class QueueOfKeys(Pictures):
    """As MoCo: contrasts with a queue of earlier codes, by an encoder that follows the other one slowly."""

    rate = 0.05
    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.0}
    factor = staticmethod(cosine)
    workers = "refused"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.queue = normalize(torch.randn(64, 8, generator=torch.Generator().manual_seed(1)))

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self.queue}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.queue = state["queue"]

    def model(self) -> nn.Module:
        encoder = nn.Sequential(convolutions(), nn.Linear(32, 8))
        return nn.ModuleDict({"encoder": encoder, "slow": copy.deepcopy(encoder).requires_grad_(False)})

    def optimizer(self, model: Any) -> Optimizer:
        return torch.optim.SGD(model["encoder"].parameters(), lr=self.rate, momentum=0.9)

    def trainable(self, model: Any, progress: TrainingProgress) -> None:
        with torch.no_grad():
            for slow, own in zip(model["slow"].parameters(), model["encoder"].parameters(), strict=True):
                slow.lerp_(own, 0.1)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        image = batch["image"]
        code = normalize(model["encoder"](image.flip(3)))
        with torch.no_grad():
            key = normalize(model["slow"](image.roll(1, 2)))
        logits = torch.cat([(code * key).sum(1, keepdim=True), code @ self.queue.T], 1) / 0.2
        self.queue = torch.cat([key, self.queue])[: len(self.queue)]
        return cross_entropy(logits, torch.zeros(len(image), dtype=torch.int64), reduction="none")


class Halves(Pictures):
    """As apex and torch.amp: products in float16, a scaled loss, a clipped gradient."""

    rate = 5e-3
    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.1, "clip_norm": 1.0, "precision": "float16"}
    factor = warm(0.1, linear)


class CompiledNet(Pictures):
    """A compiled network, with a cosine."""

    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1}
    factor = warm(0.1, cosine)
    tuning = Tuning(num_loaders=1, compiled=True)

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE**2, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, CLASSES)
        )


class Segmentation(Pictures):
    """As U-Net: a class for each place, Dice beside the entropy, a polynomial rate, small passes."""

    train: ClassVar[Keys] = {"schedule": "own", "clip_norm": 1.0}
    pass_size = 4

    def model(self) -> nn.Module:
        down = nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        up = nn.Sequential(nn.ConvTranspose2d(8, 4, 2, stride=2), nn.ReLU())
        return nn.ModuleDict({"down": down, "up": up, "answer": nn.Conv2d(5, 1, 1)})

    def schedule(self, done: float, num_updates: int) -> float:
        return (1 - int(done * num_updates) / num_updates) ** 0.9

    def scheduler(self, optimizer: Optimizer, *, done: Sequence[float]) -> LRScheduler:
        return PolynomialLR(optimizer, total_iters=len(done), power=0.9)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        image = batch["image"]
        logits = model["answer"](torch.cat([image, model["up"](model["down"](image))], 1))
        is_bright = (image > 0.8).float()
        entropy = binary_cross_entropy_with_logits(logits, is_bright, reduction="none").mean((1, 2, 3))
        chance = logits.sigmoid()
        both = (chance * is_bright).sum((1, 2, 3))
        return entropy + 1 - (2 * both + 1) / (chance.sum((1, 2, 3)) + is_bright.sum((1, 2, 3)) + 1)


class ThawedLayers(Pictures):
    """As ULMFiT: weights of a file, layers that thaw one by one, lower rates below."""

    train: ClassVar[Keys] = {"schedule": "linear", "warmup": 0.2}
    factor = warm(0.2, linear)

    def optimizer(self, model: Any) -> Optimizer:
        groups = [
            {"params": model[0][0].parameters(), "lr": self.rate / 9},
            {"params": model[0][3].parameters(), "lr": self.rate / 3},
            {"params": model[1].parameters(), "lr": self.rate},
        ]
        return torch.optim.AdamW(groups, weight_decay=0.05)

    def first_weights(self, model: Any) -> None:
        other = convolutions()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.safetensors"
            save_file({name: each.detach().clone() for name, each in other.state_dict().items()}, path)
            model[0].load_state_dict(load_file(path))

    def trainable(self, model: Any, progress: TrainingProgress) -> None:
        model[0][3].requires_grad_(progress.done >= 0.3)
        model[0][0].requires_grad_(progress.done >= 0.6)


class Distillation(Pictures):
    """As Hinton's: soft answers of a larger network that stays as it is, the last weights averaged (SWA)."""

    train: ClassVar[Keys] = {"schedule": "constant", "warmup": 0.05, "average_last": 0.25}
    factor = warm(0.05)

    def model(self) -> nn.Module:
        large = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 64), nn.Tanh(), nn.Linear(64, CLASSES))
        small = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 4), nn.Tanh(), nn.Linear(4, CLASSES))
        return nn.ModuleDict({"teacher": large.requires_grad_(False), "pupil": small})

    def optimizer(self, model: Any) -> Optimizer:
        return torch.optim.NAdam(model["pupil"].parameters(), lr=self.rate)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        image, warmth = batch["image"], 3.0
        with torch.no_grad():
            soft = (model["teacher"](image) / warmth).softmax(1)
        logits = model["pupil"](image)
        divergence = kl_div(log_softmax(logits / warmth, 1), soft, reduction="none").sum(1)
        return cross_entropy(logits, batch["label"], reduction="none") + warmth**2 * divergence


class FollowedTarget(Pictures):
    """As BYOL: a target network follows the one that learns, and nothing is contrasted."""

    train: ClassVar[Keys] = {"schedule": "cosine", "warmup": 0.1, "clip_norm": 1.0}
    factor = warm(0.1, cosine)

    def model(self) -> nn.Module:
        online = nn.Sequential(convolutions(), nn.Linear(32, 8))
        target = copy.deepcopy(online).requires_grad_(False)
        return nn.ModuleDict({"online": online, "target": target, "guess": nn.Linear(8, 8)})

    def optimizer(self, model: Any) -> Optimizer:
        learned = [*model["online"].parameters(), *model["guess"].parameters()]
        return torch.optim.AdamW(learned, lr=self.rate)

    def trainable(self, model: Any, progress: TrainingProgress) -> None:
        with torch.no_grad():
            for slow, own in zip(model["target"].parameters(), model["online"].parameters(), strict=True):
                slow.lerp_(own, 0.05)

    def loss(self, model: Any, batch: Batch) -> Tensor:
        image = batch["image"]
        guess = normalize(model["guess"](model["online"](image.flip(3))))
        with torch.no_grad():
            target = normalize(model["target"](image.roll(1, 2)))
        return mse_loss(guess, target, reduction="none").sum(1)
