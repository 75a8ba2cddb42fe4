"""Lines of `plan.triggers`: what they say, and why one is refused."""

from typing import Any

import pytest

from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from daybreak.contract.trigger_lines import parse

ANY = {"source": "tests.fakes:TwoDays", "workload": "tests.fakes:LineWorkload", "backend": "daybreak:Local"}


def checked(*lines: str, **train: Any) -> object:
    return params.check({**ANY, "plan": {"triggers": list(lines)}, "train": train})


def test_a_line_says_figure_limit_minutes_action_and_cost() -> None:
    trigger = parse("own.signals:backlog  > 1.5e3 for 2.5 min: step up for $1.50")
    assert (trigger.signal, trigger.limit, trigger.minutes) == ("own.signals:backlog", 1500, 2.5)
    assert (trigger.action, trigger.most_usd) == ("step up", 1.5)
    assert [trigger.is_beyond(value) for value in (1500, 1501)] == [False, True]
    assert parse("device_use < 0.3 for 10 min: step down").is_beyond(0.2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("device_use < 0.3: step down", "is not a trigger; write one such as"),
        ("device_use < 0.3 for 10 min: go away", "is not a trigger"),
        ("device_use < 0..3 for 10 min: step down", "is not a trigger"),
        ("gpu < 0.3 for 10 min: step down", "heartbeats have no gpu; name one of device_use"),
        ("device_use < 0.3 for 90 min: step down", "not above 0 and at most 20"),
        ("device_use < 0.3 for 0 min: step down", "not above 0 and at most 20"),
    ],
)
def test_a_line_that_cannot_be_followed_is_refused_with_what_to_write(line: str, why: str) -> None:
    with pytest.raises(ParamsError, match=why):
        checked(line)


def test_opposite_triggers_need_a_distance_between_their_limits() -> None:
    up, down = "device_use > {} for 5 min: step up", "device_use < {} for 5 min: step down"
    for above, below in ((0.4, 0.5), (0.5, 0.5)):
        with pytest.raises(ParamsError, match="opposite things; leave a distance between their limits"):
            checked(up.format(above), down.format(below))
    assert checked(up.format(0.9), down.format(0.3))


def test_opposite_triggers_are_on_opposite_sides_and_others_may_hold_at_once() -> None:
    up = "device_use > 0.9 for 5 min: step up"
    with pytest.raises(ParamsError, match="opposite things on the same side of a limit; turn one of them"):
        checked(up, "device_use > 0.5 for 10 min: step down")
    larger = "device_use < 0.95 for 5 min: larger batch"
    assert checked(up, larger, "device_use > 0.8 for 10 min: step up", batch_growth="goodput")
    with pytest.raises(ParamsError, match="opposite things; leave a distance"):
        checked(larger, up, "device_use > 0.9 for 5 min: smaller batch", batch_growth="goodput")


def test_another_batch_needs_sizes_to_choose_among() -> None:
    line = "memory_use < 0.4 for 5 min: larger batch"
    with pytest.raises(ParamsError, match=r"train.batch_growth is none.*set it to goodput"):
        checked(line)
    assert checked(line, batch_growth="goodput")
