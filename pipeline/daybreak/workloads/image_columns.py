"""Reads image columns: checks that images decode, returns pixels, and has a network for them.

Images are bytes as a camera or a phone writes them (JPEG, PNG and what else Pillow reads). `prepare` decodes
those of a partition once; training then reads pixels.
"""

import contextlib
import io
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from daybreak.contract.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

GREY = ("1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L")  # modes of Pillow
AS_INTEGERS = ("PNG", "PPM")  # formats whose 16 bits a sample Pillow may read as mode I
MOST_SIZE = 64  # pixels of a side that `init` proposes
MOST_PIXELS = 1 << 26  # of an image: a small file may claim more than memory holds


def decodes(rows: "pa.Table") -> NDArray[np.bool_]:
    """Returns for each row whether the images in its columns of bytes decode, shape [rows]; null ones do.

    A rule of the suite: `{name: the image decodes, python: "daybreak:decodes"}`.
    """
    import pyarrow as pa

    passes = np.ones(len(rows), dtype=np.bool_)
    for field in rows.schema:
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            passes &= [value is None or _decoded(value) is not None for value in rows[field.name].to_pylist()]
    return passes


def sizes(images: "pa.ChunkedArray") -> list[tuple[int, int, bool]]:
    """Returns width, height and whether there is color of each of the images that decode."""
    decoded = [image for value in images.to_pylist() if value is not None and (image := _decoded(value))]
    return [(image.width, image.height, image.mode not in GREY) for image in decoded]


def pixels(images: "pa.ChunkedArray", *, size: int, color: bool = True) -> NDArray[np.uint8]:
    """Returns the pixels of images, uint8 [b, channels, size, size]: three channels, or one without color.

    Images of another size are scaled, upright as their EXIF orientation says; null ones are black. Of 16 bits
    the higher 8 are kept. Raises DataError for one that does not decode.
    """
    out = np.zeros((len(images), 3 if color else 1, size, size), dtype=np.uint8)
    for place, value in enumerate(images.to_pylist()):
        if value is None:
            continue
        image = _decoded(value)
        if image is None:
            raise DataError(
                f"image {place} of {len(images):,} does not decode; add the rule "
                f"`python: daybreak:decodes` to the suite, which sends its row to "
                f"quarantine"
            )
        image = _of_8_bits(image).convert("RGB" if color else "L")
        image = image if image.size == (size, size) else image.resize((size, size))
        out[place] = np.asarray(image, dtype=np.uint8).reshape(size, size, -1).transpose(2, 0, 1)
    return out


def _decoded(value: bytes) -> Any:
    """Returns the image in some bytes, read to its end; None where they are none."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(value))
        if image.width * image.height > MOST_PIXELS:
            return None
        image.load()
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None  # Pillow has these for files that are cut off or made up
    with contextlib.suppress(OSError, ValueError, SyntaxError, TypeError, KeyError, struct.error):
        ImageOps.exif_transpose(image, in_place=True)  # broken EXIF leaves the image as it is
    return image


def _of_8_bits(image: Any) -> Any:
    """Returns an image of 16 bits a sample as one of 8, which Pillow's `convert` would make white."""
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in AS_INTEGERS):
        return Image.fromarray(np.round(np.asarray(image) / 257).clip(0, 255).astype(np.uint8))
    return image


class ImageModel(nn.Module):
    """A small convolutional network for pixels of any size, uint8 [b, channels, h, w].

    Stages of residual blocks, each of half the resolution and twice the width, with GroupNorm, which a batch
    in passes does not change. It returns `num_outputs` values a sample, shape [b, num_outputs].
    """

    def __init__(
        self,
        *,
        num_outputs: int,
        channels: int = 3,
        width: int = 16,
        num_blocks: int = 1,
        num_stages: int = 3,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
        for stage in range(num_stages):
            before = width << max(0, stage - 1)
            layers += [
                _Block(
                    before if number == 0 else width << stage,
                    width << stage,
                    stride=1 + (number == 0 < stage),
                )
                for number in range(num_blocks)
            ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width << num_stages - 1, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the outputs, float32 [b, num_outputs]."""
        features = self.layers(images.to(torch.float32) / 127.5 - 1)
        out: Tensor = self.head(features.mean(dim=(2, 3)))
        return out


class _Block(nn.Module):
    """Two convolutions beside a shortcut (He et al. 2016)."""

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.GroupNorm(math.gcd(8, before), before),
            nn.ReLU(),
            nn.Conv2d(before, after, 3, stride=stride, padding=1),
            nn.GroupNorm(math.gcd(8, after), after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1),
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the features of images, [b, after, h / stride, w / stride]."""
        out: Tensor = self.main(images) + self.shortcut(images)
        return out
