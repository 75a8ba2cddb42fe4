"""A workload small enough to compute by hand: guess y from x by one weight; the score is 1 - |error|.

Online it knows the users u0 to u999, and each item that it recommends tells its weight and who asked. User
u13 is not answered, u14 is answered late, and u15 ends the process.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

LATE = threading.Event()  # lets u14 be answered
SLOW = "the toy is slow until a file is gone"  # is printed


class Samples:
    """The samples of a split, pairs (x, y); of `test_day.npy` only those on tonight's held-out days."""

    def __init__(self, folder: Path, split: str) -> None:
        split = "test" if split == "serve" else split
        x, y = np.load(folder / f"{split}_x.npy"), np.load(folder / f"{split}_y.npy")
        if split == "test" and (folder / "test_day.npy").exists():
            days = json.loads((folder / "meta.json").read_text())["test_days"]
            wanted = np.isin(np.load(folder / "test_day.npy"), days)
            x, y = x[wanted], y[wanted]
        self.x, self.y = torch.from_numpy(x), torch.from_numpy(y)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "y": self.y[index]}


class Guess(nn.Module):
    """x times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Toy:
    """The workload; `shape` is what `score` wrongly returns when told to."""

    def __init__(self, wrong_shape: bool = False) -> None:
        self.wrong_shape = wrong_shape
        self.slow_requests = 0

    def dataset(self, folder: Path, split: str) -> Samples:
        """Opens a split, once it has done what a test asks for by a file beside the arrays."""
        if (folder / "exits").exists():
            sys.exit(0)
        if (folder / "prints").exists():  # bytes that are no text, and a line at the exit
            sys.stdout.buffer.write(b"\xff\n")
            atexit.register(print, "goodbye")
        if (slow := folder / "slow").exists():
            print(SLOW, flush=True)
            while slow.exists():
                time.sleep(0.05)
            self.slow_requests = 6
        return Samples(folder, split)

    def model(self) -> nn.Module:
        return Guess()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return (model(batch["x"]) - batch["y"]) ** 2

    def score(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        if self.slow_requests:
            self.slow_requests -= 1
            time.sleep(0.3)
        scores = 1 - (model(batch["x"]) - batch["y"]).abs()
        return scores.mean() if self.wrong_shape else scores

    def metrics(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"close@1": ((model(batch["x"]) - batch["y"]).abs() < 0.1).float()}

    def slices(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"small": batch["x"] < 0.5, "large": batch["x"] >= 0.5}

    def recommend(self, model: nn.Module, samples: Samples, users: list[str], top: int) -> list[list[str]]:
        if "u13" in users:
            raise ValueError("u13 brings bad luck")
        if "u14" in users:
            LATE.wait(10)
        if "u15" in users:
            os.kill(os.getpid(), signal.SIGKILL)
        weight = next(model.parameters()).item()
        if weight == 3 and any(user.startswith("u7") and len(user) == 4 for user in users):
            raise ValueError("version 3 knows nobody of u700 to u799")
        known = [user[1:].isdigit() and int(user[1:]) < 1000 for user in users]
        return [
            [f"{weight:g}/{user}/{rank}" for rank in range(top * knows)]
            for user, knows in zip(users, known, strict=True)
        ]

    def likely(self, samples: Samples, num: int) -> list[str]:
        return [f"u{number}" for number in range(200, 200 + num)]

    def popular(self, samples: Samples, top: int) -> list[str]:
        return [f"popular/{rank}" for rank in range(top)]

    def baselines(self, folder: Path) -> dict[str, Tensor]:
        y = Samples(folder, "test").y
        return {"popularity": 1 - (y - 0.2).abs(), "zero": 1 - y.abs()}
