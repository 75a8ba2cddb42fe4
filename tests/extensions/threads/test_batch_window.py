"""Batches that are judged together: their losses, and what is named or undone where one does harm."""

import math

import numpy as np
import pytest
import torch

from daybreak.contract.errors import NotFinite
from daybreak.contract.workload import TrainingProgress
from daybreak.extensions.threads.batch_window import LEAST_BATCHES, WINDOW_S, BatchWindow, Piece, TrainBatch


def piece(number: int, *, start: int = 0, size: int = 4) -> Piece:
    indices = np.arange(start, start + size)
    batch = TrainBatch(number=number, indices=indices, progress=TrainingProgress(), rate=0.1, size=8)
    return Piece(indices=indices, batch=batch)


def window(*numbers: int, length: int = 100) -> BatchWindow:
    """A window that began at 10 s, with these batches handed out."""
    made = BatchWindow()
    made.begin(10.0, length=length, copy=[torch.zeros(1)])
    made.batches = [piece(number).batch for number in numbers]
    return made


def test_the_parts_of_a_batch_count_as_one_loss_per_sample() -> None:
    two = window(1, 2)
    two.add(piece(2), 40.0, noise=None)
    two.add(piece(1), 4.0, noise=None)
    two.add(piece(1, start=4, size=2), 8.0, noise=None)
    timing = two.timing(12.0)
    assert (timing.first, timing.losses) == (1, (2.0, 10.0))
    assert timing.speed == 5.0


def test_a_step_reports_the_mean_of_what_came_since_the_last_or_that_of_the_last() -> None:
    each = window(1)
    assert not each.has_loss
    each.add(piece(1), 8.0, noise=None)
    assert [each.mean_loss(), each.mean_loss()] == [2.0, 2.0]
    each.add(piece(1), 12.0, noise=None)
    assert each.mean_loss() == 3.0


def test_a_window_that_takes_long_ends_early_once_enough_batches_are_handed_out() -> None:
    late = 10.0 + WINDOW_S + 1
    assert not window(*range(LEAST_BATCHES - 1)).is_over(late, may_be_short=True)
    assert not window(*range(LEAST_BATCHES)).is_over(late, may_be_short=False)
    assert window(*range(LEAST_BATCHES)).is_over(late, may_be_short=True)


def test_windows_that_wait_for_a_judgement_are_undone_together() -> None:
    each = window(1, 2, length=2)
    each.extend(20.0, length=2)
    assert not each.is_over(20.0, may_be_short=False)
    each.batches.append(piece(3).batch)
    assert each.timing(21.0).first == 3
    assert [batch.number for batch in each.undo()] == [1, 2, 3]


def test_a_loss_that_is_not_finite_names_its_samples_unless_it_can_be_undone() -> None:
    each = window(7)
    each.overflowed = piece(7, start=12, size=2)
    each.expect_finite()
    assert math.isnan(each.timing(11.0).losses[0])
    each.copy = []
    with pytest.raises(NotFinite, match="update 7 is not a number, on 2 samples: 12, 13"):
        each.expect_finite()
