"""A worker that moves no more is noticed; one that is slow, or was itself stopped, is left alone."""

import pytest

from daybreak.training.watchdog import Watchdog


class Worker:
    """Updates and looks by a clock of its own."""

    def __init__(self, *, hang_after_s: float = 60.0) -> None:
        self.now = 0.0
        self.dog = Watchdog(hang_after_s=hang_after_s, on_hang=lambda _: None, clock=lambda: self.now)

    def updates(self, count: int, *, each_s: float) -> "Worker":
        for _ in range(count):
            self.dog.beat()
            assert not self.looks(each_s)
        self.dog.beat()
        return self

    def looks(self, for_s: float) -> str:
        """What the looks of so many seconds found."""
        until = self.now + for_s
        while self.now < until:
            self.now = min(self.now + 1.0, until)
            sentence = self.dog.hung()
            if sentence:
                return sentence
        return ""


def test_no_update_for_ten_times_what_one_takes_is_a_hang():
    worker = Worker(hang_after_s=5).updates(20, each_s=3)
    assert not worker.looks(29)
    message = worker.looks(3)
    assert message.startswith("no update for 31 s, where one takes 3 s;")
    assert "raise train.hang_after_s (5)" in message


@pytest.mark.parametrize(("pause_s", "longest_s"), [(0, 60), (40, 120)])
def test_short_updates_may_pause_for_as_long_as_was_told_or_three_times_what_they_did(pause_s, longest_s):
    worker = Worker(hang_after_s=60).updates(50, each_s=0.01)
    if pause_s:
        worker.looks(pause_s)
        worker.dog.beat()
    worker.looks(1)
    worker.dog.beat()
    assert not worker.looks(longest_s)
    assert worker.looks(3)


def test_before_the_second_update_nothing_is_known():
    worker = Worker(hang_after_s=5)
    assert not worker.looks(1000)
    worker.dog.beat()
    assert not worker.looks(1000)


def test_a_process_that_was_itself_stopped_for_an_hour_has_not_hung():
    worker = Worker(hang_after_s=60).updates(20, each_s=1)
    worker.looks(3)
    worker.now += 3600
    assert not worker.dog.hung()
    assert not worker.looks(30)
    worker.dog.beat()
    assert not worker.looks(59)


def test_a_fit_that_takes_hours_in_its_first_update_is_alive_and_no_measure_of_later_ones():
    worker = Worker(hang_after_s=60)
    worker.dog.beat()
    for _ in range(1000):
        worker.dog.alive()
        assert not worker.looks(10)
    worker.updates(20, each_s=1)
    assert worker.looks(3 * 60)
