"""Columns of images: decoding, scaling, and the network."""

import io

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from daybreak.contract.errors import DataError
from daybreak.workloads.image_columns import ImageModel, decodes, pixels, sizes


def file(kind: str, *, mode: str = "RGB", size: tuple[int, int] = (10, 6)) -> bytes:
    out = io.BytesIO()
    draw = np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(draw).convert(mode).save(out, kind)
    return out.getvalue()


def test_a_file_that_is_cut_off_or_no_image_fails_the_rule_and_a_null_does_not() -> None:
    whole = file("JPEG")
    given = [whole, whole[: len(whole) // 2], b"", b"%PDF-1.7", None, file("PNG"), file("PNG")[:60]]
    rows = pa.table({"image": pa.array(given, pa.binary()), "name": ["a"] * len(given)})
    assert decodes(rows).tolist() == [True, False, False, False, True, True, False]


def test_an_image_that_claims_more_pixels_than_memory_holds_is_refused_before_it_is_read() -> None:
    header = bytearray(file("PNG"))
    header[16:24] = (60_000).to_bytes(4) * 2  # width and height
    assert decodes(pa.table({"image": [bytes(header)]})).tolist() == [False]


def test_pixels_of_any_size_and_mode_come_in_one_shape() -> None:
    images = pa.chunked_array([[file("JPEG"), file("PNG", mode="L", size=(4, 4)), None]], pa.binary())
    color = pixels(images, size=4)
    assert (color.shape, color.dtype) == ((3, 3, 4, 4), np.uint8)
    assert color[0].any() and not color[2].any()
    grey = pixels(images, size=4, color=False)
    assert grey.shape == (3, 1, 4, 4)
    assert np.array_equal(grey[1, 0], np.asarray(Image.open(io.BytesIO(images[1].as_py()))))
    assert sizes(images) == [(10, 6, True), (4, 4, False)]


def test_pixels_of_a_broken_image_name_the_rule_that_was_missing() -> None:
    with pytest.raises(DataError, match="image 0 of 1 does not decode; add the rule"):
        pixels(pa.chunked_array([[b"no"]], pa.binary()), size=4)


@pytest.mark.parametrize("size", [8, 28, 31])
def test_the_network_takes_images_of_any_size(size: int) -> None:
    torch.manual_seed(1)
    model = ImageModel(num_outputs=5, channels=1, num_blocks=2)
    assert model(torch.zeros(2, 1, size, size, dtype=torch.uint8)).shape == (2, 5)


@pytest.mark.parametrize(("width", "num_stages"), [(12, 3), (4, 2), (1, 1)])
def test_the_network_is_of_any_width_and_number_of_stages(width: int, num_stages: int) -> None:
    model = ImageModel(num_outputs=5, width=width, num_stages=num_stages)
    assert model(torch.zeros(2, 3, 28, 28, dtype=torch.uint8)).shape == (2, 5)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("color", [True, False])
def test_an_image_of_16_bits_keeps_its_greys(kind: str, color: bool) -> None:
    deep, out = np.arange(256, dtype=np.uint16).reshape(16, 16) * 257, io.BytesIO()
    Image.fromarray(deep).save(out, kind)
    made = pixels(pa.chunked_array([[out.getvalue()]]), size=16, color=color)
    assert (made[0] == np.arange(256).reshape(16, 16)).all()


def test_an_image_is_upright_as_its_orientation_says() -> None:
    drawn, out = Image.new("RGB", (20, 10)), io.BytesIO()
    drawn.paste((255, 0, 0), (0, 0, 10, 10))  # the left half, which is the upper one of the turned image
    exif = drawn.getexif()
    exif[0x0112] = 6
    drawn.save(out, "PNG", exif=exif)
    images = pa.chunked_array([[out.getvalue()]])
    assert sizes(images) == [(10, 20, True)]
    red = pixels(images, size=20)[0, 0]
    assert red[:8].min() == 255 and red[12:].max() == 0
