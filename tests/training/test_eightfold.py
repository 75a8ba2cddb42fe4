"""A batch eight times as large learns as much where the rate follows it, and less where it does not."""

from dataclasses import replace

import pytest

from benchmarks.bench_batch import DIGITS
from benchmarks.eightfold import train


@pytest.mark.slow
def test_digits_are_known_as_well_from_batches_eight_times_as_large_by_the_rule():
    trial = replace(DIGITS, epochs=6)
    one = train(trial).scores.mean()
    ruled = train(trial, times=8).scores.mean()
    fixed = train(trial, times=8, scaling="fixed").scores.mean()
    margin = 0.03
    assert ruled >= one - margin
    assert fixed < one - 3 * margin
