import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract import formats
from daybreak.report import page


def test_the_examples_in_the_documentation_hold() -> None:
    for module in (formats, page):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (4.2e-7, "0.42 µs"),
        (0.9996, "1 s"),
        (9.996e-4, "1 ms"),
        (59.99, "1 min"),
        (60, "1 min"),
        (3599.9, "1 h"),
        (90_000, "1 d 1 h"),
        (-12.3, "−12.3 s"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert formats.duration(seconds) == text


@given(st.floats(min_value=1e-6, max_value=1e9))
def test_a_duration_is_never_more_than_five_percent_off(seconds: float) -> None:
    units = {"d": 86400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3, "µs": 1e-6}
    words = formats.duration(seconds).split()
    shown = sum(float(n) * units[unit] for n, unit in zip(words[::2], words[1::2], strict=True))
    assert shown == pytest.approx(seconds, rel=0.05)


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(999_500, "1 MB"), (999.6e12, "1 PB"), (5.4e18, "5,400 PB"), (-1.5e3, "−1.5 kB")]
)
def test_bytes_are_shown_in_the_largest_unit(num_bytes: float, text: str) -> None:
    assert formats.size(num_bytes) == text


@given(st.floats(min_value=0.01, max_value=1e7))
def test_dollars_are_right_to_the_cent(amount: float) -> None:
    shown = float(formats.dollars(amount).removeprefix("$").replace(",", ""))
    assert abs(shown - amount) <= 0.0051


def test_what_is_not_known_is_a_dash() -> None:
    shows = (formats.count, formats.duration, formats.dollars, formats.size, formats.score, formats.effect)
    assert {show(None) for show in shows} == {"–"}
