"""Runs one training process on this machine's device in parts, so that each part can be timed.

The measurements are of the job itself: the user's data set, model, optimizer and loss, on real samples in the
order of training. The trained weights are discarded.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from daybreak import hooks
from daybreak.contract.errors import DataError, ParamsError, PipelineError, is_out_of_memory
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import (
    Batch,
    TrainingProgress,
    Workload,
    asks_progress,
    is_over_batch,
    thaws,
)
from daybreak.profiling.bounds import Operator
from daybreak.profiling.operators import OperatorLog, OtherStep, own
from daybreak.training import noise
from daybreak.training.sample_order import Indices
from daybreak.training.sampling import SampleOrder, Sampling, expect_by_number
from daybreak.training.tuning import (
    ShardedOptimizer,
    Tuner,
    give_shapes,
    new_model,
    new_optimizers,
    read,
    tensors,
)
from daybreak.training.turns import Losses, Turns, by_sample

NOISE_BATCHES = 8
NUM_SIZED = 256  # samples among which the largest is sought
SHARES_DONE = (0.0, 0.25, 0.5, 0.75, 1.0)  # of a run, at which a class is asked what it trains
MANY_EPOCHS = 1000  # of that run, so that what thaws after some epochs has thawed


def device_here() -> torch.device:
    """Returns the device that a training process on this machine uses."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Harness:
    """The job's data set, model and optimizer on a device."""

    def __init__(self, workload: Workload, folder: Path, *, seed: int) -> None:
        self.workload = workload
        self.name = f"{type(workload).__module__}:{type(workload).__name__}"
        self.device = device_here()
        self.tuning = Tuning()
        self._tuner = Tuner(self.tuning, self.device)
        self._loss: Callable[[Batch], Losses]
        with self._blame_user_code("dataset"):
            data: Any = workload.dataset(folder, "train")
            expect_by_number(data, of=self.name)
            self.data = data
            self.num_samples = len(data)
        if self.num_samples == 0:
            raise DataError(
                f"{self.name} has 0 samples in its training split; look at the rows in data/run/report.json "
                f"and at prepare.window_days"
            )
        self._seed, self._position, self._sampling = seed, 0, Sampling.of(self.data)
        self._orders: dict[int, SampleOrder] = {}  # by the size of a batch
        torch.manual_seed(seed)

    def build(self, tuning: Tuning | None = None, *, num_workers: int = 1) -> None:
        """Makes the model and the optimizer; a sharded optimizer keeps one worker's share of the state."""
        self.tuning = tuning or Tuning()
        self._tuner = Tuner(self.tuning, self.device)
        with self._blame_user_code("model"):
            state = getattr(self.data, "state", {})
            model = new_model(self.workload, state, rate=self.tuning.band_rate)
            give_shapes(model, self.workload, lambda: read(self.data, [0]))
            progress = TrainingProgress() if asks_progress(self.workload) else None
            self._loss = partial(self._tuner.loss, self.workload, model, progress=progress)
            if thaws(self.workload):
                self._thaw(model)
            if self.tuning.sharded_weights:
                model = self._shard(model, num_workers)
            self.model = self._tuner.model(model)
            self.model.train()
        with self._blame_user_code("optimizer"):
            made = new_optimizers(self.workload, self.model)
            self.optimizers = {name: self._tuner.optimizer(each) for name, each in made.items()}
            self._turns, self._stepping = Turns(made), frozenset(made)
        if self.tuning.sharded and not self.tuning.sharded_weights:
            for each in self.optimizers.values():
                ShardedOptimizer(each, rank=0, world_size=num_workers)  # which drops others' gradients

    def _thaw(self, model: nn.Module) -> None:
        """Thaws what the class trains where it trains most, so that no update takes more time or memory."""
        workload: Any = self.workload

        def num_trained(done: float) -> int:
            epoch = round(done * MANY_EPOCHS)
            progress = TrainingProgress(done=done, epoch=epoch, seen=epoch * self.num_samples)
            workload.trainable(model, progress)
            return sum(each.numel() for each in model.parameters() if each.requires_grad)

        num_trained(max(SHARES_DONE, key=num_trained))

    def _shard(self, model: nn.Module, num_workers: int) -> nn.Module:
        """Returns the model with worker 0's share of its weights, among workers that are simulated.

        A gathered weight is that share repeated: time and memory are realistic, except that the network is
        not used; the noise of gradients is that of such a model.
        """
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if dist.is_initialized():  # of an earlier model, perhaps among another number of workers
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=num_workers, store=FakeStore())
        for shard in hooks.functions("shard"):
            self._loss = shard(model, self._loss, device=self.device)
            return model
        raise ParamsError("no extension here divides weights; restore pipeline/daybreak/extensions/fsdp")

    def sizes(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Returns the batch sizes that the data set can fill, ascending; at least two if possible."""
        sizes = {size for size in wanted if 0 < size <= self.num_samples} or {self.num_samples}
        if len(sizes) == 1:  # a line needs two; half the size, as a larger one might not fit the memory
            (size,) = sizes
            sizes.add(size // 2 or min(2, self.num_samples))
        return tuple(sorted(sizes))

    def load(self, size: int) -> Batch:
        """Returns a batch of the next `size` samples in the order of training, on the device."""
        with self._blame_user_code("dataset"):
            return self._tuner.batch(read(self.data, self._next(size)))

    def reload(self, size: int) -> Batch:
        """Returns the batch of the last `size` samples again."""
        self._position -= size
        return self.load(size)

    def load_largest(self, size: int) -> Batch:
        """Returns a batch of `size` times the largest sample, or a normal one if all are of one size."""
        with self._blame_user_code("dataset"):
            largest = self._largest
            return (
                self.load(size) if largest is None else self._tuner.batch(read(self.data, [largest] * size))
            )

    @cached_property
    def _largest(self) -> int | None:
        """The longest sample, or by bytes the largest of `NUM_SIZED`; None where all are of one size."""
        if self._sampling.lengths is not None:
            return int(self._sampling.lengths.argmax())
        first_of_size: dict[int, int] = {}  # the first sample with so many bytes
        for sample in range(0, self.num_samples, max(1, self.num_samples // NUM_SIZED)):
            num_bytes = sum(t.numel() * t.element_size() for t in tensors(read(self.data, [sample])))
            first_of_size.setdefault(num_bytes, sample)
        return first_of_size[max(first_of_size)] if len(first_of_size) > 1 else None

    def update_s(self, size: int, rounds: int, *, num_loaders: int | None = None) -> list[float]:
        """Returns the seconds of each of `rounds` whole updates, load and step, after a warm-up.

        `num_loaders` threads load ahead as those of the trainer do; by default as many as the tuning says.
        """
        seconds = []
        num_loaders = self.tuning.num_loaders if num_loaders is None else num_loaders
        with ThreadPoolExecutor(max(1, num_loaders)) as pool:
            ahead = deque(pool.submit(read, self.data, self._next(size)) for _ in range(num_loaders))
            for _ in range(rounds + 1):
                start = self.now()
                if ahead:
                    batch = self._tuner.batch(ahead.popleft().result())
                    ahead.append(pool.submit(read, self.data, self._next(size)))
                else:
                    batch = self.load(size)
                self.step(batch, size)
                seconds.append(self.now() - start)
        return seconds[1:]

    @contextmanager
    def _blame_user_code(self, method: str) -> Iterator[None]:
        """Turns errors of the user's code into a ParamsError with their place; a lack of memory passes."""
        try:
            yield
        except (PipelineError, OtherStep):
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            reason = (str(error).splitlines() or [""])[0]
            raise ParamsError(
                f"{self.name} fails in {method} with {type(error).__name__}: {reason} "
                f"({Path(place.filename).name}, line {place.lineno}); fix its code (key workload)"
            ) from error

    def _next(self, size: int) -> Indices:
        """Returns the next samples in the order of training, which affects how fast they load."""
        start = self._position
        self._position += size
        if size not in self._orders:  # one order per size, as making it may take as long as the job's loading
            self._orders[size] = SampleOrder(
                seed=self._seed, num_samples=self.num_samples, sampling=self._sampling, batch_size=size
            )
        return self._orders[size].samples(start, start + size)

    def loss(self, batch: Batch, size: int) -> Losses:
        """Returns the loss of each sample, shape [size], or of each that steps by the names of optimizers.

        Raises ParamsError for another shape, DataError for values that are not finite.
        """
        with self._blame_user_code("loss"):
            losses = self._loss(batch)
        for each in [losses] if isinstance(losses, Tensor) else losses.values():
            if tuple(each.shape) != (size,):
                raise ParamsError(
                    f"{self.name} returns a loss of shape {list(each.shape)} for {size} samples; "
                    f"return one value per sample, shape [{size}], not reduced (key workload)"
                )
        loss = by_sample(losses)
        if not bool(torch.isfinite(loss).all()):
            number = int((~torch.isfinite(loss)).sum())
            raise DataError(
                f"{self.name} returns a loss that is not finite for {number} of {size} samples; "
                f"look for NaN in its features and in its loss"
            )
        return losses

    def backward(self, batch: Batch, size: int) -> None:
        """Computes the gradients of the mean loss, replacing the ones before."""
        for each in self.optimizers.values():
            each.zero_grad(set_to_none=True)
        losses = self.loss(batch, size)
        with self._blame_user_code("loss"):
            _, self._stepping = self._turns.backward(losses, lambda loss: loss / size)

    def step(self, batch: Batch, size: int) -> None:
        """Runs forward, backward and update."""
        self.backward(batch, size)
        self.update()

    def update(self) -> None:
        """Updates the weights by their gradients."""
        with self._blame_user_code("optimizer"):
            for name, each in self.optimizers.items():
                if name in self._stepping:
                    each.step()

    def now(self) -> float:
        """Returns the clock in seconds, once the device has finished its queue."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def num_sync_bytes(self) -> int:
        """Returns the bytes of gradient that workers exchange per update."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        return sum(p.numel() * 4 for p in parameters)

    def num_held_bytes(self) -> int:
        """Returns the bytes of weights and dense gradients, which no backward pass does without.

        0 where weights are divided among workers, and whole only while they are used.
        """
        if self.tuning.sharded_weights:
            return 0
        parameters = list(self.model.parameters())
        sparse = {id(m.weight) for m in self.model.modules() if getattr(m, "sparse", False)}
        return sum(
            p.numel() * p.element_size() * (2 if p.requires_grad and id(p) not in sparse else 1)
            for p in parameters
        )

    def operators(self, batches: Sequence[Batch], size: int) -> list[Operator]:
        """Returns the operators of a step, each with its least time over the batches.

        Where batches of different shapes use different operators, it returns those of the fastest step.
        """
        logs: list[list[Operator]] = []
        log = OperatorLog(self.now)
        for batch in batches:
            log.operators = []  # the cache keeps its state from the step before
            with log:
                self.step(batch, size)
            logs.append(log.operators)
        logs = logs[1:] or logs
        if len({tuple(operator.name for operator in each) for each in logs}) > 1:
            return min(logs, key=lambda each: sum(operator.seconds for operator in each))
        return [min(same, key=lambda operator: operator.seconds) for same in zip(*logs, strict=True)]

    def noise(self, size: int) -> tuple[float, float]:
        """Returns |g|^2 and tr(Sigma) from small batches of `size` and their mean (noise.py).

        Where the loss is over a batch, the mean is no gradient of a larger one: they are from batches of
        `size` and of half of it (McCandlish 2018, appendix A.1).
        """
        if is_over_batch(self.workload):
            return self._noise_of_two(size)
        n, local = NOISE_BATCHES, 0.0
        mean: list[Tensor | None] = [None for _ in self.model.parameters()]
        for _ in range(n):
            self.backward(self.load(size), size)
            for place, parameter in enumerate(self.model.parameters()):
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad
                local += _square(gradient) / n
                before = mean[place]
                mean[place] = gradient / n if before is None else before + gradient / n
        total = sum(_square(g.coalesce() if g.is_sparse else g) for g in mean if g is not None)
        return noise.parts(local=local, total=total, num_parts=n, batch_size=n * size)

    def _noise_of_two(self, size: int) -> tuple[float, float]:
        """Returns |g|^2 and tr(Sigma) from batches of two sizes; zeros where a batch has no half."""
        if size < 2:
            return 0.0, 0.0
        squares = dict.fromkeys((size // 2, size), 0.0)
        for _, num in product(range(NOISE_BATCHES), squares):
            self.backward(self.load(num), num)
            gradients = (each.grad for each in self.model.parameters() if each.grad is not None)
            squares[num] += sum(_square(g.coalesce() if g.is_sparse else g) for g in gradients)
        small, big = (total / NOISE_BATCHES for total in squares.values())
        return noise.two_batches(small_square=small, small_size=size // 2, big_square=big, big_size=size)


def _square(gradient: Tensor) -> float:
    values = gradient.values() if gradient.is_sparse else own(gradient)
    return float((values.double() ** 2).sum())
