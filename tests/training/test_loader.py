"""Batches come whole, loaded ahead or not."""

import numpy as np
import pytest

from pipeline.training.loader import Loader
from tests.fakes import LineWorkload, write_curve

FIRST, SECOND = np.arange(5), np.arange(5, 9)


@pytest.fixture
def data(tmp_path):
    write_curve(tmp_path, num_samples=20)
    return LineWorkload().dataset(tmp_path, "train")


@pytest.mark.parametrize("num_loaders", [0, 1, 3])
@pytest.mark.parametrize("prepared", [[], [FIRST, SECOND], [SECOND], [FIRST, FIRST + 3, SECOND]])
def test_each_batch_is_what_was_asked_for_whatever_was_prepared(data, num_loaders, prepared):
    loader = Loader(data, num_loaders=num_loaders)
    loader.prepare(prepared)
    for part in (FIRST, SECOND):
        assert np.array_equal(loader.get(part)["x"], data.x[part].astype(np.float32))
    loader.close()


def test_samples_of_a_dataset_without_whole_batches_are_collated():
    loader = Loader([{"x": np.float32(number)} for number in range(20)], num_loaders=1)
    loader.prepare([SECOND])
    assert loader.get(SECOND)["x"].tolist() == SECOND.tolist()
    loader.close()


def test_what_fails_in_a_thread_is_told_where_the_batch_is_asked_for(data):
    loader = Loader(data, num_loaders=1)
    loader.prepare([FIRST + 100])
    with pytest.raises(IndexError):
        loader.get(FIRST + 100)
    loader.close()
