"""Schedules, clipping and averages of weights are those of a plain loop in torch, after a stop, too."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from daybreak.contract.errors import ParamsError
from daybreak.contract.params import check
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import own_schedule
from daybreak.jobs import collector
from daybreak.training import checkpoint, sample_order
from daybreak.training.engine import TorchEngine
from daybreak.training.learning_rate import rate_at
from daybreak.training.recipe import Averaging, Clipping, Recipe
from daybreak.training.trainer import RunOutcome, Trainer
from daybreak.training.weight_average import WeightAverage
from daybreak.training.worker_keys import clipping_of
from tests.fakes import AtOnce, LineWorkload, write_curve
from tests.training.recipes import recipe

NUM_SAMPLES, SIZE, RATE, WARMUP = 96, 8, 0.1, 0.1
NUM_UPDATES = 3 * NUM_SAMPLES // SIZE
SHORT = 0.3  # than most gradients


class Sgd(LineWorkload):
    """A curve with plain SGD, which takes sparse and dense gradients alike, and a schedule of its own."""

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=RATE)

    def schedule(self, done: float) -> float:
        return 2.0 * 0.1**done


def job(**changed: Any) -> Recipe:
    return recipe(
        num_samples=3 * NUM_SAMPLES, batch_size=SIZE, peak=RATE, **{"warmup": WARMUP, "decay": 0.3} | changed
    )


class Run:
    """A run of a recipe, as a worker makes it, in passes of three samples."""

    def __init__(self, folder: Path, made: Recipe, *, sparse: bool = False) -> None:
        workload = Sgd(dropout=0.0, sparse=sparse)
        self.engine = TorchEngine(
            workload,
            workload.dataset(folder, "train"),
            seed=made.seed,
            micro_batch_size=3,
            tuning=Tuning(),
            clipping=made.clipping if made.clipping != Clipping() else None,
        )
        self.average = WeightAverage(self.engine, made.averaging, base_size=SIZE)
        self.stop_after = math.inf
        self.trainer = Trainer(
            self.engine,
            made,
            folder=folder / "checkpoints",
            epoch_samples=NUM_SAMPLES,
            told_to_stop=lambda: self.trainer.num_updates + 1 >= self.stop_after,
            report=lambda progress: None,
            executor=AtOnce(),
            schedule=own_schedule(workload) if made.rate.schedule == "own" else None,
            average=self.average if made.averaging != Averaging() else None,
        )
        if path := checkpoint.newest(folder / "checkpoints", identity=made.identity):
            self.trainer.resume(path)

    def to_end(self) -> dict[str, torch.Tensor]:
        assert self.trainer.run().stopped_by == "finished"
        return self.average.weights()

    def until(self, update: int) -> RunOutcome:
        self.stop_after = update
        return self.trainer.run()


def by_hand(
    folder: Path,
    *,
    rate: Callable[[int], float],
    clip: Callable[[list[torch.nn.Parameter]], object] = lambda parameters: None,
    average: Callable[[int], Callable[..., torch.Tensor]] | None = None,
    first_averaged: int = 0,
) -> dict[str, torch.Tensor]:
    """The weights after the same batches in a plain loop, with the modules that torch has for it.

    `rate` is the factor of the rate by the number of the update, `average` how an average takes in the
    weights after it.
    """
    workload = Sgd(dropout=0.0)
    data = workload.dataset(folder, "train")
    torch.manual_seed(7)
    model = workload.model()
    optimizer = workload.optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    averaged = AveragedModel(model, use_buffers=True) if average else None
    for number in range(NUM_UPDATES):
        start = number * SIZE
        samples = sample_order.indices(seed=7, num_samples=NUM_SAMPLES, start=start, stop=start + SIZE)
        optimizer.zero_grad()
        workload.loss(model, data.__getitems__(samples)).mean().backward()
        clip(list(model.parameters()))
        optimizer.step()
        scheduler.step()
        if averaged and average and number >= first_averaged:
            averaged.avg_fn = average(number - first_averaged)
            averaged.update_parameters(model)
    return dict((averaged.module if averaged else model).state_dict())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    return tmp_path


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def done(number: int) -> float:
    return (number + 0.5) / NUM_UPDATES


def rising(number: int) -> float:
    return min(1.0, done(number) / WARMUP)


def after(number: int) -> float:
    return max(0.0, (done(number) - WARMUP) / (1 - WARMUP))


SCHEDULES = {
    "stable": lambda number: min(rising(number), (1 - done(number)) / 0.3),
    "linear": lambda number: min(rising(number), 1 - after(number)),
    "cosine": lambda number: min(rising(number), (1 + math.cos(math.pi * after(number))) / 2),
    "constant": rising,
    "own": lambda number: 2.0 * 0.1 ** done(number),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_that_of_a_plain_loop(folder, schedule):
    close(Run(folder, job(schedule=schedule)).to_end(), by_hand(folder, rate=SCHEDULES[schedule]))


CLIPS = {
    "norm": (Clipping(norm=SHORT), lambda weights: torch.nn.utils.clip_grad_norm_(weights, SHORT)),
    "value": (Clipping(value=0.02), lambda weights: torch.nn.utils.clip_grad_value_(weights, 0.02)),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", CLIPS)
def test_gradients_are_clipped_as_in_a_plain_loop_sparse_ones_too(folder, kind, sparse):
    clipping, clip = CLIPS[kind]
    ours = Run(folder, job(clipping=clipping), sparse=sparse).to_end()
    close(ours, by_hand(folder, rate=SCHEDULES["stable"], clip=clip))
    free = by_hand(folder, rate=SCHEDULES["stable"])
    assert any((ours[name] - weight).abs().max() > 1e-3 for name, weight in free.items())  # it did limit


def test_an_exponential_average_is_torchs_once_it_remembers_enough(folder):
    def average(count: int) -> Callable[..., torch.Tensor]:
        return get_ema_avg_fn(min(0.9, 1 - 1 / (count + 1)))

    ours = Run(folder, job(averaging=Averaging(ema=0.9))).to_end()
    close(ours, by_hand(folder, rate=SCHEDULES["stable"], average=average))


def test_the_last_weights_are_averaged_as_torch_does(folder):
    def average(count: int) -> Callable[..., torch.Tensor]:
        return lambda averaged, weight, _: averaged + (weight - averaged) / (count + 1)

    ours = Run(folder, job(averaging=Averaging(last=0.25))).to_end()
    first = NUM_UPDATES - NUM_UPDATES // 4
    close(ours, by_hand(folder, rate=SCHEDULES["stable"], average=average, first_averaged=first))


@pytest.mark.parametrize("averaging", [Averaging(ema=0.9), Averaging(last=0.9)])
def test_a_run_that_is_stopped_twice_ends_bit_equal_with_its_average(folder, averaging):
    made = job(schedule="cosine", clipping=Clipping(norm=SHORT, value=0.2), averaging=averaging)
    left_alone = Run(folder, made).to_end()
    for update in (5, 20):
        assert Run(folder, made).until(update).stopped_by == "terminated"
    resumed = Run(folder, made)
    assert resumed.trainer.num_updates == 20
    ours = resumed.to_end()
    assert all(torch.equal(ours[name], weight) for name, weight in left_alone.items())
    newest = resumed.engine.weights()
    assert not all(torch.equal(ours[name], weight) for name, weight in newest.items())


def test_a_job_whose_time_is_over_is_judged_by_the_average_of_its_checkpoint(folder):
    made = job(averaging=Averaging(ema=0.9), arrays=str(folder), workload="tests.fakes:LineWorkload")
    run = Run(folder, made)
    run.until(20)
    averaged = run.average.weights()
    result = collector.from_checkpoint(folder, made, now=0.0)
    assert (result.num_updates, result.stopped_by) == (20, "deadline")
    left = load_file(folder / "model" / "model.safetensors")
    assert all(torch.equal(left[name], weight) for name, weight in averaged.items())
    assert not torch.equal(left["table.weight"], run.engine.weights()["table.weight"])


def test_an_average_follows_larger_batches_as_many_smaller_ones(folder):
    """The decay of four batches is that of one that is four times as large."""
    run = Run(folder, job(averaging=Averaging(ema=0.9)))
    for name, weight in run.engine.model.state_dict().items():
        run.average._tensors[name] = torch.zeros_like(weight)
    run.average._num_updates = 1000
    run.average.add(seen=SIZE, end=NUM_SAMPLES, batch_size=4 * SIZE)
    averaged, own = run.average.weights(), run.engine.weights()
    close(averaged, {name: weight * (1 - 0.9**4) for name, weight in own.items()})


def test_a_cosine_whose_run_is_late_falls_to_nothing_where_it_ends():
    def rate(seen: float, end: float) -> float:
        return rate_at(seen, num_samples=100, end=end, warmup=0.1, decay=0.5, peak=1.0, schedule="cosine")

    assert rate(20, 40) == rate(20, 100)  # decided as late as the decay allows, without a leap
    assert rate(30, 40) == pytest.approx(0.5)
    assert rate(40, 40) == 0


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ({"sync": "every_h_updates", "ema": 0.99}, "sync: every_h_updates leaves workers apart, and ema"),
        ({"threads": "auto", "clip_norm": 1.0}, "threads: auto divides batches itself; leave clip_norm"),
        ({"patience": 3}, "patience: 3 counts validations; set validation: 0.1"),
        (
            {"average_last": 0.1, "validation": 0.1, "patience": 3},
            "average_last is of a run's end, and patience may end it before; take ema",
        ),
        ({"ema": 0.99, "average_last": 0.1}, "ema and average_last each say which weights are averaged"),
    ],
)
def test_what_does_not_go_together_is_refused(train, said):
    plugs = {"source": "tests.fakes:TwoDays", "workload": "tests.fakes:LineWorkload"}
    with pytest.raises(ParamsError, match=said):
        check({**plugs, "backend": "daybreak:Local", "train": train})


class Odd(Sgd):
    """A schedule that leaves the numbers from 0 on."""

    def schedule(self, done: float) -> float:
        return 0.5 - done


def test_a_schedule_is_asked_up_to_its_end_and_refused_where_it_is_no_factor():
    assert own_schedule(Sgd())(1.1) == own_schedule(Sgd())(1.0)
    assert own_schedule(Odd())(0.25) == 0.25
    with pytest.raises(ParamsError, match=r"Odd\.schedule\(1\) is -0\.5; return a number from 0 on"):
        own_schedule(Odd())(1.0)


class OfTheRun(Sgd):
    """A schedule that asks how long the run is."""

    def schedule(self, done: float, num_updates: int, num_epochs: float) -> float:
        return num_updates / num_epochs


def test_a_schedule_may_ask_how_long_the_run_is():
    assert own_schedule(OfTheRun(), num_updates=30, num_epochs=3)(0.5) == 10


def test_a_class_clips_gradients_where_params_do_not_and_not_on_free_cores():
    workload = Sgd()
    workload.clip_norm = 2.0
    assert clipping_of(workload, Clipping(), threads="fixed") == Clipping(norm=2.0)
    assert clipping_of(workload, Clipping(value=0.1), threads="fixed") == Clipping(value=0.1)
    with pytest.raises(ParamsError, match=r"Sgd clips gradients, and train\.threads: auto divides batches"):
        clipping_of(workload, Clipping(), threads="auto")


def test_weights_of_16_bits_are_averaged_in_32(folder):
    run = Run(folder, job(averaging=Averaging(ema=0.999)))
    run.engine.model.to(torch.bfloat16)
    for weight in run.engine.model.parameters():
        torch.nn.init.ones_(weight)
    run.average.add(seen=SIZE, end=NUM_SAMPLES, batch_size=SIZE)
    run.average._num_updates = 10**6
    for weight in run.engine.model.parameters():
        torch.nn.init.constant_(weight, 1.5)
    for _ in range(1000):
        run.average.add(seen=SIZE, end=NUM_SAMPLES, batch_size=SIZE)
    (mean,) = {float(weight.mean()) for name, weight in run.average.weights().items() if "net.0.bias" in name}
    assert mean == pytest.approx(1.5 - 0.5 * 0.999**1000, abs=0.01)


def test_a_class_without_the_schedule_that_params_ask_for_is_named():
    with pytest.raises(ParamsError, match=r"LineWorkload has no method schedule\(done\)"):
        own_schedule(LineWorkload())
