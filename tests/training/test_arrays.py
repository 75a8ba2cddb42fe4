"""Arrays on disk are a data set, larger than memory if need be."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from daybreak.contract.errors import DataError
from daybreak.training.arrays import Arrays, padded
from tests.training.nights import ROOT

ROW = np.dtype([("user", "i4"), ("price", "f4"), ("near", "i2", (3,)), ("new", "?")])


def write_rows(folder, num_samples, row=ROW):
    rows = np.zeros(num_samples, row)
    rows["user"] = np.arange(num_samples)
    rows["price"] = np.arange(num_samples) / 2
    rows["near"] = np.arange(num_samples)[:, None] % 100 + np.arange(3)
    np.save(folder / "rows.npy", rows)


@pytest.mark.parametrize("indices", [[3, 3, 19, 0], np.array([7]), range(2, 9), range(0), [-1]])
def test_fields_of_rows_and_columns_come_as_tensors(tmp_path, indices):
    write_rows(tmp_path, 20, padded(ROW))
    np.save(tmp_path / "image.npy", np.arange(20 * 6, dtype=np.float32).reshape(20, 2, 3))
    data = Arrays(tmp_path)
    batch = data.__getitems__(indices)
    expected = np.arange(20)[np.asarray(indices, dtype=int)]
    assert list(batch) == ["image", "user", "price", "near", "new"]
    assert batch["user"].tolist() == expected.tolist()
    assert batch["price"].dtype == torch.float32
    assert batch["near"].shape == (len(expected), 3)
    assert batch["image"].shape == (len(expected), 2, 3)
    assert batch["image"][:, 1, 2].tolist() == (expected * 6 + 5).tolist()


def test_a_batch_has_memory_of_its_own(tmp_path):
    write_rows(tmp_path, 20, padded(ROW))
    data = Arrays(tmp_path)
    for indices in (range(5), [0, 1, 2]):
        data.__getitems__(indices)["price"].fill_(-1)
    assert data[2]["price"] == 1


def test_a_sample_that_is_not_there_is_refused(tmp_path):
    write_rows(tmp_path, 20, padded(ROW))
    with pytest.raises(IndexError):
        Arrays(tmp_path).__getitems__([20])


def test_rows_padded_keep_their_fields():
    assert padded(ROW).itemsize == 16
    assert padded(padded(ROW)) == padded(ROW)
    assert padded(np.dtype([("a", "u1")])).itemsize == 1


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "no samples"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "'x': 3, 'y': 4"),
        ({"x": np.array(["a", "b"])}, "torch does not take"),
        ({"x": np.zeros(3, [("a", "i1"), ("b", "f4")])}, "torch does not take"),
        ({"x": np.array(1.0)}, "no rows"),
        ({"x": np.asfortranarray(np.zeros((3, 2)))}, "C order"),
    ],
)
def test_arrays_that_are_no_samples_are_refused_in_one_sentence(tmp_path, arrays, reason):
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    with pytest.raises(DataError, match=reason) as error:
        Arrays(tmp_path)
    assert ";" in str(error.value)


UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
import numpy as np
from daybreak.training import sample_order
from daybreak.training.arrays import Arrays

MiB = 2**20
def kib(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

data, n = Arrays(Path(sys.argv[1]), block=2048), 1 << 23
before = kib("RssAnon:")
limit = kib("VmData:") * 1024 + 64 * MiB  # what may be allocated from here on: a quarter of the data
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
total = 0
for start in range(0, n, 1 << 14):
    stop = start + (1 << 14)
    indices = sample_order.indices(seed=1, num_samples=n, start=start, stop=stop, block=data.block)
    total += int(data.__getitems__(indices)["x"][:, 0].sum())
assert total == n * (n - 1) // 2, total
assert kib("RssAnon:") - before < 64 * 1024, kib("RssAnon:") - before
try:
    np.load(Path(sys.argv[1]) / "x.npy")
except MemoryError:
    print("whole: refused")
"""


@pytest.mark.slow
def test_data_of_four_times_the_memory_limit_is_read_whole(tmp_path):
    """The kernel holds the limit; what is mapped does not count, nor does loading it all at once succeed."""
    values = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.int64, (1 << 23, 4))  # 256 MiB
    values[:, 0] = np.arange(1 << 23)
    values.flush()
    code = [sys.executable, "-c", UNDER_A_LIMIT, str(tmp_path)]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "whole: refused\n"
