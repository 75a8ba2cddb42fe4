"""The band-limited convolution: its gradient and memory, and a model that trains and serves with it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from daybreak import hooks
from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.extensions.band_limits.band_limited import (
    BandLimitedConv1d,
    BandLimitedConv2d,
    ReLUOfBits,
    band_limit,
    convolve,
    limitable,
    rates_by_energy,
)
from daybreak.registry import lineage
from daybreak.registry.weights import load_model
from daybreak.training import checkpoint, tuning
from daybreak.training.engine import TorchEngine
from daybreak.training.gradients import Signals
from daybreak.training.trained_model import write_facts
from tests.training.recipes import recipe

LAYERS: list[tuple[type[nn.Module], tuple[int, ...], dict[str, Any]]] = [
    (nn.Conv2d, (7, 8), {"kernel_size": 3, "padding": 1}),
    (nn.Conv2d, (7, 6), {"kernel_size": 3, "stride": 2, "bias": False}),
    (
        nn.Conv2d,
        (6, 7),
        {"kernel_size": (3, 2), "padding": (2, 3), "stride": (2, 1), "dilation": (1, 2), "groups": 2},
    ),
    (nn.Conv2d, (6, 6), {"kernel_size": 4, "padding": "same", "padding_mode": "reflect"}),
    (nn.Conv1d, (17,), {"kernel_size": 5, "padding": 4, "stride": 3}),
]


def layer(kind: type[nn.Module], sizes: tuple[int, ...], options: dict[str, Any]) -> tuple[Any, Tensor]:
    torch.manual_seed(1)
    return kind(2, 4, **options).double(), torch.randn(2, 2, *sizes, dtype=torch.float64)


def gradients(made: nn.Module, signal: Tensor) -> tuple[Tensor, ...]:
    signal = signal.detach().requires_grad_()
    made.zero_grad()
    out = made(signal)
    (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).sin()).sum().backward()
    return (out.detach(), signal.grad, *(p.grad.clone() for p in made.parameters()))


@pytest.mark.parametrize(("kind", "sizes", "options"), LAYERS)
def test_at_rate_0_it_is_torchs_convolution(kind, sizes, options):
    made, signal = layer(kind, sizes, options)
    theirs = gradients(made, signal)
    ours = gradients(band_limit(made, 0.0), signal)
    assert type(made) in (BandLimitedConv1d, BandLimitedConv2d)
    for one, other in zip(ours, theirs, strict=True):
        assert float((one - other).abs().max()) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sizes", "options"), LAYERS)
@pytest.mark.parametrize("rate", [0.3, 0.8])
def test_gradients_equal_numerical_differentiation(kind, sizes, options, rate):
    made, signal = layer(kind, sizes, options)
    band_limit(made, rate)
    given = (signal[:1].requires_grad_(), *made.parameters())

    def run(signal: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip((name for name, _ in made.named_parameters()), weights, strict=True))
        return torch.func.functional_call(made, named, (signal,))

    assert torch.autograd.gradcheck(run, given, eps=1e-6, atol=1e-4, rtol=1e-4)


def test_samples_convolved_a_few_at_a_time_come_out_the_same(monkeypatch):
    made, signal = layer(*LAYERS[0])
    band_limit(made, 0.4)
    whole = gradients(made, signal)
    monkeypatch.setattr("daybreak.extensions.band_limits.band_limited.MOST_AT_ONCE", 1)
    for one, other in zip(gradients(made, signal), whole, strict=True):
        assert torch.allclose(one, other)


def test_high_frequencies_are_left_out_and_low_ones_stay():
    made = BandLimitedConv1d(1, 1, 1, bias=False, rate=0.5)  # of one tap, it only filters
    made.weight.data.fill_(1.0)
    place = torch.arange(30.0) * 2 * torch.pi / 30
    low, high = torch.cos(3 * place)[None, None], torch.cos(12 * place)[None, None]
    assert torch.allclose(made(low + high), low, atol=1e-5)


def test_half_the_spectrum_takes_less_memory_than_all_of_it_and_than_torch():
    def kept_bytes(rate: float | None) -> int:
        torch.manual_seed(1)
        layers = [part for _ in range(4) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
        model, kept = nn.Sequential(*layers), {}
        if rate is not None:
            band_limit(model, rate)

        def keep(tensor: Tensor) -> Tensor:
            if not isinstance(tensor, nn.Parameter):
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.randn(4, 8, 32, 32)).sum().backward()
        return sum(kept.values())

    half, whole, torchs = kept_bytes(0.5), kept_bytes(0.0), kept_bytes(None)
    assert half < 0.7 * whole
    assert half < 0.7 * torchs


def test_a_relu_of_bits_has_the_gradient_of_a_relu():
    torch.manual_seed(1)
    signal = torch.randn(3, 5, 7)
    for one, other in zip(gradients(ReLUOfBits(), signal), gradients(nn.ReLU(), signal), strict=True):
        assert torch.equal(one, other)


def test_a_limited_model_has_the_same_weights_and_lets_other_layers_be():
    class Own(nn.Conv2d):
        pass

    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), Own(2, 2, 3), nn.Conv2d(2, 2, 1), nn.Flatten())
    before = model.state_dict()
    assert band_limit(model, {"0": 0.25}) is model
    assert list(limitable(model)) == ["0"]
    assert model[0].rate == 0.25
    assert [type(part) for part in model] == [BandLimitedConv2d, ReLUOfBits, Own, nn.Conv2d, nn.Flatten]
    model.load_state_dict(before)


def test_smooth_signals_get_a_higher_rate_than_rough_ones():
    model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1))
    place = torch.arange(60.0) * 2 * torch.pi / 60
    smooth, rough = torch.sin(2 * place)[None, None], torch.randn(1, 1, 60, generator=torch.Generator())
    by_smooth = rates_by_energy(model, lambda: model(smooth))["0"]
    by_rough = rates_by_energy(model, lambda: model(rough))["0"]
    assert by_smooth > 0.6 > 0.4 > by_rough


def test_under_autocast_it_convolves_in_float32():
    made = BandLimitedConv2d(1, 1, 3, rate=0.0)
    signal = torch.randn(1, 1, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(signal).dtype == torch.float32
        assert made(signal.bfloat16()).dtype == torch.bfloat16


class Waves:
    """A workload of one convolution, on drawn signals."""

    def dataset(self, folder: Path, split: str) -> Tensor:
        return torch.randn(16, 1, 20, generator=torch.Generator().manual_seed(1))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv1d(1, 4, 5, padding=2), nn.ReLU(), nn.Conv1d(4, 1, 5, padding=2))

    def optimizer(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - batch).square().mean(dim=(1, 2))

    def score(self, model: nn.Module, batch: Tensor) -> Tensor:
        return -self.loss(model, batch)


def test_a_version_is_served_at_the_rate_that_it_was_trained_at(tmp_path):
    job = recipe(tuning=Tuning(band_rate=0.5))
    data = Waves().dataset(tmp_path, "train")
    engine = TorchEngine(Waves(), data, seed=1, micro_batch_size=8, tuning=job.tuning)
    engine.step(np.arange(8), batch_size=8, rate=0.1, signals=Signals())
    checkpoint.write_tensors(tmp_path / "model.safetensors", engine.weights())
    write_facts(tmp_path, job, seen=8)
    served = load_model(Waves(), tmp_path)
    assert [part.rate for part in served if isinstance(part, BandLimitedConv1d)] == [0.5, 0.5]
    assert torch.equal(served(data), engine.model.eval()(data))
    write_facts(tmp_path, recipe(), seen=8)
    assert not any(isinstance(part, BandLimitedConv1d) for part in load_model(Waves(), tmp_path))


def test_a_rate_is_part_of_a_recipe():
    def recipe_at(**train: float) -> str:
        use = "daybreak.examples.shop.regression:Regression"
        given = {"source": "a.b:C", "backend": "a.b:C", "workload": use, "train": train}
        loaded = params.check(given)
        return lineage.recipe(loaded.workload, loaded.train)

    assert recipe_at() == recipe_at(band_rate=0.0) != recipe_at(band_rate=0.5)
    assert recipe().identity != recipe(tuning=Tuning(band_rate=0.5)).identity


def test_a_rate_that_leaves_nothing_is_refused():
    with pytest.raises(ParamsError, match="leaves no spectrum; take one from 0 to below 1"):
        band_limit(nn.Sequential(nn.Conv1d(1, 1, 3)), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(400,), (64, 64)])
def test_precision_falls_smoothly_over_the_full_range_of_rates(sizes):
    """Of white signals, the hardest, the error has about the share of energy that is left out."""
    draw, num_dims = torch.Generator().manual_seed(1), len(sizes)
    signal = torch.randn(2, 3, *sizes, generator=draw).double().requires_grad_()
    weight = torch.randn(5, 3, *[5] * num_dims, generator=draw).double()
    plain = (functional.conv1d, functional.conv2d)[num_dims - 1]
    upstream = torch.randn(2, 5, *sizes, generator=draw).double()

    def values(rate: float | None) -> tuple[Tensor, Tensor]:
        same = (2,) * num_dims
        once = (1,) * num_dims
        made = (
            plain(signal, weight, padding=2)
            if rate is None
            else convolve(signal, weight, stride=once, padding=same, dilation=once, groups=1, rate=rate)
        )
        return made.detach(), torch.autograd.grad(made, signal, upstream)[0]

    rates, exact = torch.arange(0, 1, 0.02).double(), values(None)
    errors = torch.tensor(
        [
            [
                float((own - other).square().sum() / other.square().sum())
                for own, other in zip(values(float(rate)), exact, strict=True)
            ]
            for rate in rates
        ]
    )
    steps = errors.diff(dim=0)
    assert errors[0].max() < 1e-25
    assert steps.min() >= -1e-12
    assert steps.max() < 0.09  # two of 33 columns are one step of the rate
    assert (errors - rates[:, None]).abs().max() < 0.1


def test_a_model_that_leaves_out_frequencies_is_refused_without_this_extension(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    assert not tuning.limitable(nn.Conv1d(1, 1, 3))
    with pytest.raises(ParamsError, match="leaves out 50% of the spectrum, and no extension"):
        tuning.band_limit(nn.Conv1d(1, 1, 3), 0.5)
