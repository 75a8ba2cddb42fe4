"""Convolves in the lower part of the spectrum, so that less has to be kept for the backward pass.

The band-limited convolution (Dziedzic, Paparrizos, Krishnan, Elmore & Franklin, ICML 2019): signal and filter
are multiplied as spectra, of which a share `rate` of the highest frequencies is left out, forward and
backward alike:

    y = F^-1(M X conj(V)),    dx = F^-1(M G V),    dw = F^-1(M conj(G) X)

X, V and G are the spectra of signal, filter and gradient, M is 1 on the kept frequencies. Only half of a
real signal's spectrum is held, and of that, in two dimensions, two corners: n = int(half * sqrt(1 - rate))
columns and 2 n - 1 rows. What is kept for the backward pass is M X. As spectra of a batch would take several
times its memory while they are computed, a few samples are convolved at a time.

A ReLU keeps its output, which is the signal of the next convolution; `band_limit` has it keep a bit a number.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.fft import next_fast_len
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from daybreak.contract.errors import ParamsError

MOST_AT_ONCE = 1 << 21  # numbers of a signal whose spectrum is computed at a time
BITS = 8


@dataclass(frozen=True, kw_only=True)
class Band:
    """The transform of one dimension, and the frequencies of it that are kept."""

    length: int  # of the circular convolution, long enough for nothing to come round
    num: int  # kept frequencies from 0 on
    half: bool  # the last dimension, of which only frequencies from 0 on are held
    size: int  # of the signal
    out: int  # of the result at a stride of 1
    positions: tuple[int, ...]  # of the taps of the filter

    @property
    def num_held(self) -> int:
        """Number of frequencies that are held."""
        return self.num if self.half else min(2 * self.num - 1, self.length)

    def frequencies(self, device: torch.device) -> Tensor:
        """Returns the held frequencies, negative ones last."""
        every = torch.arange(self.length, device=device)
        if self.half or self.num_held == self.length:
            return every[: self.num_held]
        return torch.cat([every[: self.num], every[-(self.num - 1) :]]) if self.num > 1 else every[:1]

    def taps(self, like: Tensor) -> Tensor:
        """Returns what each tap of a filter adds to each held frequency, complex [taps, held]."""
        places = torch.tensor(self.positions, device=like.device)
        turns = torch.outer(places, self.frequencies(like.device)) % self.length
        angle = turns.to(torch.float64) * (-2 * math.pi / self.length)
        return torch.polar(torch.ones_like(angle), angle).to(_complex(like))


def bands(
    sizes: tuple[int, ...],
    *,
    kernel: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    rate: float,
) -> tuple[Band, ...]:
    """Returns the transform of each dimension of a signal of `sizes`, of which `rate` is left out."""
    kept = (1 - rate) ** (1 / len(sizes))
    made = []
    for place, size in enumerate(sizes):
        span, pad = dilation[place] * (kernel[place] - 1) + 1, padding[place]
        out = size + 2 * pad - span + 1
        # One run of zeros pads both ends, as it comes round; a prime length would take five times as long.
        length = next_fast_len(max(size + pad, out))
        made.append(
            Band(
                length=length,
                num=max(1, int((length // 2 + 1) * kept)),
                half=place == len(sizes) - 1,
                size=size,
                out=out,
                positions=tuple(dilation[place] * tap - pad for tap in range(kernel[place])),
            )
        )
    return tuple(made)


def _complex(like: Tensor) -> torch.dtype:
    return torch.complex128 if like.dtype == torch.float64 else torch.complex64


def _split(values: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """Returns the values with dimension `dim` split into `sizes`; -1 stands for the remaining size."""
    return values.reshape(*values.shape[:dim], *sizes, *values.shape[dim + 1 :])


def _spectrum(signal: Tensor, of: tuple[Band, ...]) -> Tensor:
    """Returns the held frequencies of signals [b, c, ...], as complex [held, b, c]."""
    held: Tensor = torch.fft.rfft(signal, n=of[-1].length)[..., : of[-1].num_held]
    for place, band in enumerate(of[:-1]):
        dim = 2 + place
        whole = torch.fft.fft(held, n=band.length, dim=dim)
        held = whole.index_select(dim, band.frequencies(signal.device))
    return held.flatten(2).permute(2, 0, 1).contiguous()


def _signal(spectrum: Tensor, of: tuple[Band, ...], sizes: tuple[int, ...], steps: tuple[int, ...]) -> Tensor:
    """Returns the first `sizes` places of the signals of a spectrum, each `steps`-th of them."""
    num_samples, num_channels = spectrum.shape[1:]
    held = _split(spectrum.permute(1, 2, 0), 2, [band.num_held for band in of])
    for place, band in enumerate(of[:-1]):
        dim = 2 + place
        shape = [*held.shape]
        shape[dim] = band.length
        whole = held.new_zeros(shape).index_copy_(dim, band.frequencies(held.device), held)
        held = torch.fft.ifft(whole, dim=dim).narrow(dim, 0, sizes[place])
        held = held[(slice(None),) * dim + (slice(None, None, steps[place]),)]
    signal: Tensor = torch.fft.irfft(held, n=of[-1].length)[..., : sizes[-1] : steps[-1]]
    return signal.reshape(num_samples, num_channels, *signal.shape[2:])


def _filter(weight: Tensor, of: tuple[Band, ...], groups: int) -> Tensor:
    """Returns the held frequencies of filters [o, c, ...], complex [held, groups, c, o / groups]."""
    spectra: Tensor = weight.to(_complex(weight))
    for band in of:  # the first dimension of the filter becomes the last, as frequencies
        spectra = torch.tensordot(spectra, band.taps(weight), dims=([2], [0]))
    spectra = _split(spectra.flatten(2), 0, (groups, -1))  # [groups, o / groups, c, held]
    return spectra.permute(3, 0, 2, 1)


def _filter_gradient(spectrum: Tensor, of: tuple[Band, ...], weight: Tensor) -> Tensor:
    """Returns the gradient of the filters from its held frequencies [held, groups, c, o / groups]."""
    last, spectra = of[-1], spectrum.permute(1, 3, 2, 0).flatten(0, 1)
    spectra = _split(spectra, 2, [band.num_held for band in of])
    twice = torch.full((last.num_held,), 2.0, device=weight.device, dtype=weight.dtype)  # negative ones too
    twice[0] = 1
    if last.length % 2 == 0 and last.num_held == last.length // 2 + 1:
        twice[-1] = 1
    spectra = spectra * twice
    for band in of:
        spectra = torch.tensordot(spectra, band.taps(weight).conj(), dims=([2], [1]))
    return spectra.real / math.prod(band.length for band in of)


def _products(signals: Tensor, filters: Tensor) -> Tensor:
    """Returns the products at each frequency, [f, b, c] by [f, groups, c / groups, o / groups]: [f, b, o]."""
    groups = filters.shape[1]
    split = _split(signals, 2, (groups, -1)).transpose(1, 2)  # [f, groups, b, c / groups]
    return (split @ filters).transpose(1, 2).flatten(2)


class _Convolve(torch.autograd.Function):
    """The convolution, with its backward pass on the same kept frequencies."""

    @staticmethod
    def forward(  # noqa: PLR0917 - as torch calls it
        ctx: Any,
        signal: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of: tuple[Band, ...],
        stride: tuple[int, ...],
        groups: int,
    ) -> Tensor:
        """Returns the result [b, o, ...]."""
        filters = _filter(weight, of, groups).conj()
        outs = tuple(band.out for band in of)
        shape = [len(signal), len(weight), *(-(-out // step) for out, step in zip(outs, stride, strict=True))]
        result, kept = signal.new_empty(shape), []
        for part in _parts(signal, weight):
            spectrum = _spectrum(signal[part], of)
            kept.append(spectrum)
            result[part] = _signal(_products(spectrum, filters), of, outs, stride)
        if bias is not None:
            result += bias.reshape(-1, *[1] * len(of))
        ctx.save_for_backward(weight, *kept)
        ctx.of, ctx.stride, ctx.groups, ctx.shape = of, stride, groups, signal.shape
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradients of signal, weight and bias."""
        weight, *kept = ctx.saved_tensors
        of, groups = ctx.of, ctx.groups
        of_signal, of_weight, of_bias = ctx.needs_input_grad[:3]
        filters = _filter(weight, of, groups).transpose(2, 3) if of_signal else None
        into = gradient.new_empty(ctx.shape) if of_signal else None
        summed: Tensor | None = None
        sizes, once = tuple(band.size for band in of), (1,) * len(of)
        for part, spectrum in zip(_parts(gradient, weight, shape=ctx.shape), kept, strict=True):
            whole = _unstrided(gradient[part], of, ctx.stride)
            of_gradient = _spectrum(whole, of)
            if into is not None and filters is not None:
                into[part] = _signal(_products(of_gradient, filters), of, sizes, once)
            if of_weight:
                ours = _split(spectrum, 2, (groups, -1)).permute(0, 2, 3, 1)  # [f, groups, c, b]
                theirs = _split(of_gradient, 2, (groups, -1)).transpose(1, 2).conj()  # [f, groups, b, o]
                product = ours @ theirs
                summed = product if summed is None else summed.add_(product)
        of_filters = None if summed is None else _filter_gradient(summed, of, weight)
        sums = gradient.sum([0, *range(2, gradient.dim())]) if of_bias else None
        return into, of_filters, sums, None, None, None


def _parts(signal: Tensor, weight: Tensor, *, shape: torch.Size | None = None) -> Iterator[slice]:
    """Yields the samples that are convolved at a time."""
    shape = signal.shape if shape is None else shape
    channels = max(shape[1], len(weight))
    size = max(1, MOST_AT_ONCE // (channels * math.prod(shape[2:])))
    for start in range(0, len(signal), size):
        yield slice(start, start + size)


def _unstrided(gradient: Tensor, of: tuple[Band, ...], stride: tuple[int, ...]) -> Tensor:
    """Returns the gradient of the result at a stride of 1: zeros where a larger one has left places out."""
    if all(step == 1 for step in stride):
        return gradient
    whole = gradient.new_zeros([*gradient.shape[:2], *(band.out for band in of)])
    places: Any = (..., *(slice(None, None, step) for step in stride))
    whole[places] = gradient
    return whole


def convolve(
    signal: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    rate: float,
) -> Tensor:
    """Returns signals [b, c, ...] convolved with filters [o, c / groups, ...], without high frequencies.

    `rate` is the share of the spectrum that is left out; at 0 it is torch's own convolution, up to rounding.
    """
    of = bands(
        tuple(signal.shape[2:]), kernel=tuple(weight.shape[2:]), padding=padding, dilation=dilation, rate=rate
    )
    if any(band.out < 1 for band in of):
        raise RuntimeError(f"a filter of {list(weight.shape[2:])} is wider than {list(signal.shape[2:])}")
    with torch.autocast(signal.device.type, enabled=False):  # there are no spectra in bfloat16
        exact = signal if signal.dtype == torch.float64 else signal.float()
        result: Tensor = _Convolve.apply(exact, weight, bias, of, stride, groups)  # type: ignore[no-untyped-call]
        return result.to(signal.dtype)


class _BandLimited(nn.modules.conv._ConvNd):
    """A convolution without a share `rate` of the highest frequencies; its weights have the same names."""

    def __init__(self, *args: Any, rate: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rate = checked(rate)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the convolution of signals [b, c, n] or images [b, c, h, w], or of one of them."""
        padding = self.padding
        whole = input if input.dim() == len(self.kernel_size) + 2 else input[None]
        if self.padding_mode != "zeros" or isinstance(padding, str):
            mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
            whole = functional.pad(whole, self._reversed_padding_repeated_twice, mode=mode)
            padding = (0,) * len(self.kernel_size)
        made = convolve(
            whole,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
            rate=self.rate,
        )
        return made if whole.dim() == input.dim() else made[0]


class BandLimitedConv1d(_BandLimited, nn.Conv1d):
    """`nn.Conv1d` without a share `rate` of the highest frequencies."""


class BandLimitedConv2d(_BandLimited, nn.Conv2d):
    """`nn.Conv2d` without a share `rate` of the highest frequencies."""


class _KeepSigns(torch.autograd.Function):
    """ReLU that keeps one bit a number for the backward pass."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor) -> Tensor:
        """Returns the positive part."""
        positive = functional.pad((signal > 0).flatten(), (0, -signal.numel() % BITS)).view(BITS, -1)
        bits = torch.zeros_like(positive[0], dtype=torch.uint8)
        for place in range(BITS):
            bits |= positive[place].to(torch.uint8) << place
        ctx.save_for_backward(bits)
        return signal.clamp(min=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Returns the gradient where the signal was positive."""
        (bits,) = ctx.saved_tensors
        positive = torch.empty((BITS, len(bits)), dtype=torch.bool, device=bits.device)
        for place in range(BITS):
            positive[place] = (bits >> place) & 1 != 0
        return gradient * positive.flatten()[: gradient.numel()].view(gradient.shape)


class ReLUOfBits(nn.ReLU):
    """`nn.ReLU` that keeps one bit a number for the backward pass; it never works in place."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns the positive part."""
        return _KeepSigns.apply(input)  # type: ignore[no-any-return, no-untyped-call]


LIMITED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: BandLimitedConv1d,
    nn.Conv2d: BandLimitedConv2d,
}


def checked(rate: float) -> float:
    """Returns the rate; ParamsError where it is not a share below 1."""
    if not 0 <= rate < 1:
        raise ParamsError(f"a band rate of {rate:g} leaves no spectrum; take one from 0 to below 1")
    return float(rate)


def limitable(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the convolutions that can be band-limited, by name: those of more than one tap."""
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) in (*LIMITED, *LIMITED.values())
        and math.prod(getattr(module, "kernel_size", (1,))) > 1
    }


def band_limit(model: nn.Module, rate: float | Mapping[str, float]) -> nn.Module:
    """Returns the model with its convolutions band-limited in place, and ReLUs that keep bits.

    Weights keep their names and shapes, so that model and band-limited model load each other's weights.
    A model is trained and served at the same rate.

    Args:
        model: whose layers of the types `nn.Conv1d` and `nn.Conv2d` are changed; functions that it calls,
            such as `torch.relu`, stay.
        rate: of all layers, or by the name of the layer; layers that are not named stay as they are.
    """
    for name, module in limitable(model).items():
        own = rate.get(name) if isinstance(rate, Mapping) else rate
        if own is not None:
            module.__class__ = LIMITED.get(type(module), type(module))
            module.rate = checked(own)  # type: ignore[assignment]
    for module in model.modules():
        if type(module) is nn.ReLU:
            module.__class__ = ReLUOfBits
    return model


def unlimit(model: nn.Module) -> nn.Module:
    """Returns the model with torch's own convolutions and ReLUs again, after `band_limit`."""
    own = {limited: plain for plain, limited in LIMITED.items()} | {ReLUOfBits: nn.ReLU}
    for module in model.modules():
        if type(module) in own:
            module.__class__ = own[type(module)]
            vars(module).pop("rate", None)
    return model


def limit(model: nn.Module, rate: float) -> nn.Module:
    """Returns the model, band-limited in place; at a rate of 0 with torch's own convolutions again."""
    return band_limit(model, rate) if rate else unlimit(model)


def rates_by_energy(model: nn.Module, run: Callable[[], object], *, kept: float = 0.9) -> dict[str, float]:
    """Returns for each convolution the largest rate that keeps a share of the energy of its signals.

    Args:
        model: as it is before it is limited.
        run: calls the model on a batch; the signals of the last call of a layer count.
        kept: share of the energy, the sum of the squares of the spectrum.
    """
    signals: dict[str, Tensor] = {}
    layers = limitable(model)

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            signals[name] = given[0].detach()

        return hook

    hooks = [module.register_forward_pre_hook(keep(name)) for name, module in layers.items()]
    try:
        with torch.no_grad():
            run()
    finally:
        for each in hooks:
            each.remove()
    return {name: _rate_of(signals[name], layers[name], kept) for name in layers if name in signals}


def _rate_of(signal: Tensor, layer: Any, kept: float) -> float:
    """Returns the largest of the rates 0, 0.05, ... 0.95 that keeps the share of the energy of a signal."""
    padding = layer.padding if not isinstance(layer.padding, str) else (0,) * len(layer.kernel_size)

    def energy(rate: float) -> float:
        of = bands(
            tuple(signal.shape[2:]),
            kernel=layer.kernel_size,
            padding=padding,
            dilation=layer.dilation,
            rate=rate,
        )
        held = _spectrum(signal.float(), of).abs().square().sum(dim=(1, 2))
        return float(
            _split(held, 0, [band.num_held for band in of])[..., 1:].sum() * 2
            + _split(held, 0, [band.num_held for band in of])[..., 0].sum()
        )

    rates = [number / 20 for number in range(20)]
    whole = energy(0.0)
    return max((rate for rate in rates if energy(rate) >= kept * whole), default=0.0)
