"""Several optimizers, frozen weights and float16 are those of a plain loop in torch, after a stop, too."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from daybreak.contract.errors import NotFinite, ParamsError
from daybreak.contract.params import check
from daybreak.contract.record_parts import Tuning
from daybreak.contract.workload import TrainingProgress
from daybreak.training import sample_order
from daybreak.training.gradients import Signals
from daybreak.training.learning_rate import WARMUP
from daybreak.training.recipe import Averaging, Clipping
from daybreak.training.updater import Updater
from tests.fakes import LineWorkload, RootWorkload, write_curve
from tests.training.recipes import recipe
from tests.training.stoppable import StoppableRun

NUM_SAMPLES, SIZE, NUM_UPDATES, RATE = 64, 8, 24, 0.01
Weights = dict[str, Tensor]
Step = Callable[[Any, Any, int], object]  # of a model, with a batch, in an update of this number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_curve(tmp_path, num_samples=NUM_SAMPLES)
    return tmp_path


class Run(StoppableRun):
    """A run at a constant rate."""

    def __init__(self, folder: Path, workload: Any, **given: Any) -> None:
        made = recipe(
            num_samples=NUM_UPDATES * SIZE, batch_size=SIZE, peak=RATE, warmup=0.0, schedule="constant"
        )
        super().__init__(folder, workload, made, epoch_samples=NUM_SAMPLES, micro_batch_size=SIZE, **given)


def by_hand(folder: Path, workload: Any, make_step: Callable[[Any], Step]) -> Weights:
    """The weights after the same batches in a plain loop."""
    data = workload.dataset(folder, "train")
    torch.manual_seed(7)
    model = workload.model()
    step = make_step(model)
    for number in range(NUM_UPDATES):
        start = number * SIZE
        samples = sample_order.indices(seed=7, num_samples=NUM_SAMPLES, start=start, stop=start + SIZE)
        step(model, data.__getitems__(samples), number)
    return dict(model.state_dict())


def stopped(folder: Path, make: Callable[[], Run]) -> tuple[Weights, Run]:
    """The weights of a run that is stopped twice, and the run."""
    for update in (5, 14, math.inf):
        run = make()
        weights = run.until(update)
    return weights, run


def close(ours: Weights, theirs: Weights) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def same(ours: Weights, theirs: Weights) -> bool:
    return all(torch.equal(ours[name], weight) for name, weight in theirs.items())


class Adversaries(LineWorkload):
    """A generator makes points of a curve from noise, and a critic tells them from true ones."""

    turns: Callable[[int], set[str]] = staticmethod(lambda update: {"critic", "generator"})

    def model(self) -> Any:
        parts = {
            "generator": nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2)),
            "critic": nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)),
        }
        return nn.ModuleDict(parts)

    def optimizer(self, model: Any) -> Any:
        return {
            "critic": torch.optim.AdamW(model["critic"].parameters(), lr=RATE, weight_decay=0.1),
            "generator": torch.optim.SGD(model["generator"].parameters(), lr=RATE / 2, momentum=0.9),
        }

    def losses(self, model: Any, batch: Any) -> Weights:
        made = model["generator"](torch.randn(len(batch["x"]), 1))
        true = torch.stack([batch["x"], batch["y"]], 1)
        of_true, of_made = (model["critic"](each)[:, 0] for each in (true, made))
        return {"critic": softplus(-of_true) + softplus(of_made), "generator": softplus(-of_made)}

    def loss(self, model: Any, batch: Any, progress: TrainingProgress) -> Any:
        losses = self.losses(model, batch)
        return {name: losses[name] for name in self.turns(progress.update)}

    def step_by_hand(self, model: Any, *, clip: float = math.inf) -> Step:
        optimizers = self.optimizer(model)

        def step(model: Any, batch: Any, number: int) -> None:
            torch.default_generator.manual_seed(7 * 1_000_003 + number)
            losses = self.losses(model, batch)
            names = self.turns(number)
            gradients = {
                name: torch.autograd.grad(
                    losses[name].mean(), list(model[name].parameters()), retain_graph=True
                )
                for name in names
            }
            weights = [weight for name in names for weight in model[name].parameters()]
            for name in names:
                for weight, gradient in zip(model[name].parameters(), gradients[name], strict=True):
                    weight.grad = gradient
            torch.nn.utils.clip_grad_norm_(weights, clip)
            for name in names:
                optimizers[name].step()

        return step


class TakingTurns(Adversaries):
    """The critic takes two updates of three, and the generator the third."""

    turns = staticmethod(lambda update: {"generator"} if update % 3 == 2 else {"critic"})


@pytest.mark.parametrize("kind", [Adversaries, TakingTurns])
def test_optimizers_together_or_in_turns_are_those_of_a_plain_loop(folder, kind):
    plain = by_hand(folder, kind(), kind().step_by_hand)
    close(Run(folder, kind()).until(), plain)


@pytest.mark.parametrize("kind", [Adversaries, TakingTurns])
def test_a_gradient_is_clipped_over_the_weights_of_the_optimizers_that_step(folder, kind):
    plain = by_hand(folder, kind(), lambda model: kind().step_by_hand(model, clip=0.1))
    close(Run(folder, kind(), clipping=Clipping(norm=0.1)).until(), plain)


@pytest.mark.parametrize("averaging", [None, Averaging(ema=0.9)])
def test_optimizers_in_turns_are_the_same_after_a_kill(folder, averaging):
    alone = Run(folder, TakingTurns(), averaging=averaging).until()
    weights, _ = stopped(folder, lambda: Run(folder, TakingTurns(), averaging=averaging))
    assert same(weights, alone)


class TwoKinds(LineWorkload):
    """A table of sparse gradients has one optimizer and the net another, and one loss is for both."""

    def __init__(self) -> None:
        super().__init__(sparse=True, dropout=0.0)

    def optimizer(self, model: Any) -> Any:
        return {
            "table": torch.optim.SparseAdam(model["table"].parameters(), lr=RATE),
            "net": torch.optim.AdamW(model["net"].parameters(), lr=RATE / 10),
        }


def test_one_loss_is_for_all_optimizers_each_with_its_share_of_the_rate(folder):
    workload = TwoKinds()

    def make_step(model: Any) -> Step:
        optimizers = workload.optimizer(model).values()

        def step(model: Any, batch: Any, number: int) -> None:
            for each in optimizers:
                each.zero_grad()
            workload.loss(model, batch).mean().backward()
            for each in optimizers:
                each.step()

        return step

    close(Run(folder, TwoKinds()).until(), by_hand(folder, TwoKinds(), make_step))


class Layers(LineWorkload):
    """Its net learns at a tenth of the rate of its table, and no bias decays."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def optimizer(self, model: Any) -> Any:
        biases = [weight for name, weight in model.named_parameters() if name.endswith("bias")]
        kernels = [weight for name, weight in model["net"].named_parameters() if name.endswith("weight")]
        groups = [
            {"params": model["table"].parameters()},
            {"params": kernels, "lr": RATE / 10},
            {"params": biases, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=RATE, weight_decay=0.5)


def test_groups_by_the_names_of_parameters_keep_their_rates_and_decay_under_a_schedule(folder):
    workload = Layers()

    def make_step(model: Any) -> Step:
        optimizer = workload.optimizer(model)

        def step(model: Any, batch: Any, number: int) -> None:
            optimizer.zero_grad()
            workload.loss(model, batch).mean().backward()
            optimizer.step()

        return step

    run = Run(folder, Layers())
    close(run.until(), by_hand(folder, Layers(), make_step))
    run.engine.updater.set_rate(1.0)
    assert [group["lr"] for group in run.engine.updater.groups()] == pytest.approx([1.0, 0.1, 1.0])


class Thawing(LineWorkload):
    """Its table is frozen for the first third of the samples, though its weights would decay."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.5)

    def model(self) -> Any:
        model = super().model()
        model["table"].requires_grad_(False)
        return model

    def trainable(self, model: Any, progress: TrainingProgress) -> None:
        model["table"].requires_grad_(progress.done >= 1 / 3)


def test_weights_that_thaw_are_those_of_a_plain_loop_and_the_same_after_a_kill(folder):
    workload = Thawing()

    def make_step(model: Any) -> Step:
        optimizer = workload.optimizer(model.parameters())

        def step(model: Any, batch: Any, number: int) -> None:
            model["table"].requires_grad_(number >= NUM_UPDATES / 3)
            optimizer.zero_grad()
            workload.loss(model, batch).mean().backward()
            optimizer.step()

        return step

    alone = Run(folder, Thawing()).until()
    close(alone, by_hand(folder, Thawing(), make_step))
    weights, _ = stopped(folder, lambda: Run(folder, Thawing()))
    assert same(weights, alone)


class Steep(LineWorkload):
    """A loss so large that the first factors of float16 overflow."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def loss(self, model: Any, batch: Any) -> Tensor:
        return 1000 * super().loss(model, batch)


FLOAT16 = Tuning(precision="float16")


def test_float16_is_that_of_a_plain_loop_with_a_scaler_whose_skipped_updates_are_counted(folder, caplog):
    workload, scaler = Steep(), torch.amp.GradScaler("cpu")
    factors = []

    def make_step(model: Any) -> Step:
        optimizer = workload.optimizer(model.parameters())
        optimizer.param_groups[0]["lr"] = RATE

        def step(model: Any, batch: Any, number: int) -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                losses = workload.loss(model, batch).float()
            scaler.scale(losses.mean()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            scaler.step(optimizer)
            scaler.update()
            factors.append(scaler.get_scale())

        return step

    plain = by_hand(folder, Steep(), make_step)
    run = Run(folder, Steep(), tuning=FLOAT16, clipping=Clipping(norm=10.0))
    close(run.until(), plain)
    skipped = sum(after < before for before, after in zip([65536.0, *factors], factors, strict=False))
    assert skipped > 1
    assert run.engine.updater.num_skipped == skipped
    assert f"{skipped} so far" in caplog.text


class OneOverflows(LineWorkload):
    """Two nets with an optimizer each; the loss of one overflows in float16, that of the other does not."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def model(self) -> nn.Module:
        return nn.ModuleDict({"calm": nn.Linear(1, 1), "steep": nn.Linear(1, 1)})

    def optimizer(self, model: Any) -> Any:
        return {name: torch.optim.SGD(net.parameters()) for name, net in model.items()}

    def loss(self, model: Any, batch: Any) -> Any:
        x = batch["x"][:, None]
        return {name: model[name](x)[:, 0].float() * by for name, by in (("calm", 1e-3), ("steep", 1e36))}


def test_an_optimizer_that_overflows_leaves_the_clipped_gradients_of_the_others_alone(folder):
    moved = {}
    for clipping in (None, Clipping(norm=10.0)):
        run = Run(folder, OneOverflows(), tuning=FLOAT16, clipping=clipping)
        before = copy.deepcopy(run.engine.model.state_dict())
        share = torch.arange(SIZE).numpy()
        run.engine.step(share, batch_size=SIZE, rate=RATE, signals=Signals())
        moved[clipping] = {name: each - before[name] for name, each in run.engine.model.state_dict().items()}
        assert all(not each.any() for name, each in moved[clipping].items() if "steep" in name)
    free, clipped = moved.values()
    assert all(each.any() for name, each in free.items() if "calm" in name)
    assert all(torch.equal(free[name], clipped[name]) for name in free)


def test_float16_is_the_same_after_a_kill_with_its_factor_and_count(folder):
    alone = Run(folder, Steep(), tuning=FLOAT16)
    weights = alone.until()
    again, resumed = stopped(folder, lambda: Run(folder, Steep(), tuning=FLOAT16))
    assert same(again, weights)
    assert resumed.engine.updater.num_skipped == alone.engine.updater.num_skipped > 1
    scalers = [each.engine.updater.scaler for each in (alone, resumed)]
    assert len({scaler.get_scale() for scaler in scalers if scaler}) == 1


def test_the_noise_of_gradients_does_not_depend_on_the_factor_of_float16(folder, monkeypatch):
    monkeypatch.setattr("daybreak.training.accumulation.HALVE_EVERY", 1)
    noises = []
    for tuning in (Tuning(), FLOAT16):
        run = Run(folder, LineWorkload(dropout=0.0), tuning=tuning)
        if run.engine.updater.scaler:
            run.engine.updater.scaler.update(256.0)  # at the first one gradients overflow
        share = torch.arange(SIZE).numpy()
        step = run.engine.step(share, batch_size=SIZE, rate=RATE, signals=Signals())
        assert step.noise
        noises.append(step.noise)
    assert noises[1] == pytest.approx(noises[0], rel=0.01)


class HalfOwned(LineWorkload):
    """Its net alone has an optimizer, though the loss reaches its table, too."""

    def __init__(self) -> None:
        super().__init__(dropout=0.0)

    def optimizer(self, model: Any) -> Any:
        return torch.optim.AdamW(model["net"].parameters(), lr=RATE)


def test_a_gradient_is_clipped_over_the_weights_that_have_an_optimizer(folder):
    def make_step(model: Any) -> Step:
        optimizer = HalfOwned().optimizer(model)

        def step(model: Any, batch: Any, number: int) -> None:
            model.zero_grad()
            HalfOwned().loss(model, batch).mean().backward()
            torch.nn.utils.clip_grad_norm_(model["net"].parameters(), 0.1)
            optimizer.step()

        return step

    limits = Clipping(norm=0.1)
    plain = by_hand(folder, HalfOwned(), make_step)
    close(Run(folder, HalfOwned(), clipping=limits).until(), plain)
    half = Run(folder, HalfOwned(), clipping=limits, tuning=FLOAT16).until()
    torch.testing.assert_close(half, plain, rtol=0.05, atol=0.005)


def test_a_gradient_that_no_factor_of_float16_mends_is_named(folder):
    with pytest.raises(NotFinite, match=r"gradient of net\.0\.weight is not finite .* no factor of float16"):
        run = Run(folder, RootWorkload(), tuning=FLOAT16)
        assert run.engine.updater.scaler
        run.engine.updater.scaler.update(2.0**-10)  # after 26 updates
        run.until()


def test_optimizers_follow_a_larger_batch_each_by_its_own_rule(folder):
    updater = Run(folder, Adversaries()).engine.updater
    scaled = updater.rescale(batch_size=8 * SIZE, base_size=SIZE, rule="by_optimizer")
    assert (scaled.rate, scaled.warmup) == (8.0, WARMUP)
    assert scaled.most_times == pytest.approx(10)
    updater.set_rate(scaled.rate)
    critic, generator = updater.groups()
    assert critic["lr"] == pytest.approx(8**0.5)
    assert generator["lr"] == pytest.approx(8 / 2)


class Frozen(TwoKinds):
    """Its table is frozen, with an optimizer of its own, and each optimizer has a loss."""

    def trainable(self, model: Any, progress: TrainingProgress) -> None:
        model["table"].requires_grad_(False)

    def loss(self, model: Any, batch: Any) -> Any:
        losses = super().loss(model, batch)
        return {"net": losses, "table": losses}


@pytest.mark.parametrize("tuning", [Tuning(), FLOAT16])
def test_an_optimizer_whose_weights_are_all_frozen_leaves_them(folder, tuning):
    run = Run(folder, Frozen(), tuning=tuning)
    before = run.engine.weights()["table.weight"].clone()
    assert torch.equal(run.until()["table.weight"], before)


class Shares(Adversaries):
    """Gives a weight to both optimizers."""

    def optimizer(self, model: Any) -> Any:
        return {name: torch.optim.SGD(model.parameters()) for name in ("critic", "generator")}


class Misnames(Adversaries):
    """Its loss names an optimizer that it does not have."""

    def loss(self, model: Any, batch: Any) -> Any:
        return {"judge": self.losses(model, batch)["critic"]}


def test_a_weight_of_two_optimizers_and_a_name_of_none_are_refused(folder):
    with pytest.raises(ParamsError, match="optimizers critic and generator both have a weight of shape"):
        Run(folder, Shares())
    with pytest.raises(ParamsError, match="losses of judge, and optimizer has critic, generator;"):
        Run(folder, Misnames()).until()


def test_a_way_of_training_with_one_optimizer_refuses_several(folder):
    engine = Run(folder, Adversaries()).engine
    assert isinstance(engine.updater, Updater)
    with pytest.raises(ParamsError, match="optimizer returns critic, generator, and one is wanted here"):
        _ = engine.optimizer


@pytest.mark.parametrize("train", [{"sync": "every_h_updates"}, {"threads": "auto"}])
def test_float16_is_refused_where_workers_are_apart(train):
    plugs = {"source": "tests.fakes:TwoDays", "workload": "tests.fakes:LineWorkload"}
    with pytest.raises(ParamsError, match="precision"):
        check({**plugs, "backend": "daybreak:Local", "train": {**train, "precision": "float16"}})
