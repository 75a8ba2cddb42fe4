"""The verdict is the largest share, and it is proven only by its own counterfactual."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract.record_parts import Line
from daybreak.profiling.bounds import CLOSE, Operator, judge, memory_share, room, symptoms
from daybreak.profiling.line_fit import constant


@dataclass(frozen=True)
class Device:
    """One second for a GFLOP, for a GB in order, for 100 MB of random rows, for 500 MB of new pages."""

    flops_per_s: float = 1e9
    copy_bytes_per_s: float = 1e9
    fresh_bytes_per_s: float = 5e8

    def scatter_bytes_per_s(self, row_bytes: float) -> float:
        return 5e7

    def gather_bytes_per_s(self, row_bytes: float) -> float:
        return 1e8


def operator(seconds: float, **of: float) -> Operator:
    return Operator(
        **{"name": "o", "seconds": seconds, "flops": 0, "num_bytes": 0, "num_rows": 0, "row_bytes": 64, **of}
    )


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        (operator(1.0, flops=9e8, num_bytes=1e8), "compute"),
        (operator(1.0, flops=1e8, num_bytes=9e8), "memory"),
        (operator(1.0, num_bytes=9e7), "compute"),  # too few bytes to be what takes so long
        (operator(1.0, num_bytes=1e8, new_bytes=1e8), "memory"),  # unless the pages were new
        (operator(1.0, num_bytes=1e6, new_bytes=1e9), "compute"),  # room to work in
        (operator(1.0, num_rows=10**6), "memory"),  # 64 MB, but at random
    ],
)
def test_an_operator_is_where_the_roofline_puts_it(given, bound):
    assert given.bound(Device()) == bound


def test_the_share_of_memory_is_that_of_the_time_at_its_limit():
    operators = [operator(1.0, num_bytes=1e9), operator(3.0, flops=3e9)]
    assert memory_share(operators, Device()) == 0.25
    assert memory_share([], Device()) == 0


share = st.floats(0, 1)
gains = st.fixed_dictionaries({"io": share, "compute": share, "memory": share})


@given(st.floats(0, 10), st.floats(1e-3, 10), share, gains)
def test_shares_add_up_and_the_largest_is_the_verdict(load_s, step_s, of_memory, gained):
    verdict = judge(load_s=load_s, step_s=step_s, memory_share=of_memory, fits=True, gains=gained)
    assert sum(verdict.shares.values()) == pytest.approx(1)
    assert verdict.shares[verdict.bound] == max(verdict.shares.values())


@given(st.floats(0, 10), st.floats(1e-3, 10), share, gains)
def test_a_verdict_that_its_own_counterfactual_does_not_single_out_is_mixed(
    load_s, step_s, of_memory, gained
):
    verdict = judge(load_s=load_s, step_s=step_s, memory_share=of_memory, fits=True, gains=gained)
    others = max(gain for bound, gain in gained.items() if bound != verdict.bound)
    assert (verdict.mixed == ()) == (gained[verdict.bound] - others > CLOSE)
    assert len(verdict.mixed) in (0, 2)


@given(st.floats(0, 10), st.floats(1e-3, 10), gains)
def test_what_does_not_fit_is_bound_by_memory_whatever_its_speed(load_s, step_s, gained):
    verdict = judge(load_s=load_s, step_s=step_s, memory_share=0.0, fits=False, gains=gained)
    assert (verdict.bound, verdict.kind) == ("memory", "capacity")


@pytest.mark.parametrize(
    ("batch_size", "too_large", "fits"),
    [(80, None, True), (81, None, False), (40, 40, False), (39, 40, True)],
)
def test_a_batch_fits_if_a_tenth_stays_free_and_none_as_small_was_too_large(batch_size, too_large, fits):
    line = Line(fixed=100, per_sample=10, fixed_error=0, per_sample_error=0)
    memory = room(
        line, batch_size=batch_size, num_workers=1, sharing=1, device_bytes=1000, too_large=too_large
    )
    assert (memory.peak_bytes, memory.fits) == (100 + 10 * batch_size, fits)


def test_workers_that_share_a_device_need_its_memory_together():
    memory = room(constant(100), batch_size=8, num_workers=4, sharing=4, device_bytes=400, too_large=None)
    assert memory.peak_bytes == 400
    assert not memory.fits


def test_a_step_of_operators_that_are_too_small_is_bound_by_their_dispatch():
    gains = {"io": 0.0, "compute": 0.5, "memory": 0.1}
    measured = {"load_s": 0.1, "step_s": 1.0, "memory_share": 0.1, "fits": True, "gains": gains}
    assert judge(**measured, dispatch_share=0.6).kind == "dispatch"
    assert judge(**measured, dispatch_share=0.3).kind == ""
    assert judge(**{**measured, "memory_share": 0.9}, dispatch_share=0.6).kind == "bandwidth"


def test_adding_to_random_rows_has_a_rate_of_its_own():
    read, written = (
        operator(1.0, num_rows=1000, scatters=each).traffic_s(Device()) for each in (False, True)
    )
    assert written == pytest.approx(2 * read)


@pytest.mark.parametrize(("load_s", "lookup_share", "of"), [(1.0, 0.1, "io"), (0.1, 0.9, "memory")])
def test_many_inputs_are_a_symptom_of_what_they_cost_more_in(load_s, lookup_share, of):
    verdict = judge(
        load_s=load_s, step_s=1.0, memory_share=0.5, fits=True, gains={"io": 0, "compute": 0, "memory": 0}
    )
    signs = symptoms(
        verdict=verdict,
        room=room(constant(10), batch_size=1, num_workers=1, sharing=1, device_bytes=1000, too_large=None),
        load_busy=0.25,
        input_bytes=100,
        lookup_share=lookup_share,
        flops=1000,
        fastest_times=2.0,
        fixed_bytes=10,
    )
    assert signs["many_inputs_are_a_symptom_of"] == of
    assert signs["io_parsing_share"] + signs["io_slow_storage_share"] == pytest.approx(verdict.shares["io"])
    assert ("io_many_inputs_bytes" in signs["present"]) == (of == "io")
    assert len(signs) == 9 + 2
