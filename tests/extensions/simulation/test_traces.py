"""A file says all, or is refused with the sentence that names what is missing; drawn traces repeat."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from daybreak.contract.errors import DataError
from daybreak.extensions.simulation.traces import draw, read
from tests.extensions.spot.markets import measured

HEAD = "zone,start_tick_600s,run_ticks,available,spot_usd_h,on_demand_usd_h\n"


def written(folder: Path, text: str, *, name: str = "capacity.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_runs_become_ticks_and_prices_may_change(tmp_path):
    path = written(tmp_path, HEAD + "a-1,0,2,1,1.5,4\na-1,3,1,1,2,4\na-1,2,1,0,1.5,4\n")
    (trace,) = read(path)
    assert (trace.zone, trace.tick_s, trace.on_demand_usd_per_hour) == ("a-1", 600.0, 4.0)
    assert trace.up == (True, True, False, True)
    assert trace.spot_usd_per_hour == (1.5, 1.5, 1.5, 2.0)


def test_the_length_of_a_tick_is_in_the_name_of_its_column(tmp_path):
    (trace,) = read(written(tmp_path, HEAD.replace("600", "60") + "a-1,0,2,1,1,4\n"))
    assert trace.tick_s == 60.0


def test_prices_may_be_beside(tmp_path):
    written(tmp_path, "zone,spot_usd_h,on_demand_usd_h\na-1,1,4\n", name="x_info.csv")
    with gzip.open(tmp_path / "x_rle.csv.gz", "wt") as file:
        file.write("zone,start_tick_600s,run_ticks,available\na-1,0,2,1\n")
    assert read(tmp_path / "x_rle.csv.gz")[0].spot_usd_per_hour == (1.0, 1.0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (HEAD + "a-1,0,2,1,1,4\na-1,5,2,1,1,4\n", "nothing is said of zone a-1 from start_tick_600s 2 to 4"),
        (HEAD + "a-1,1,2,1,1,4\n", "from start_tick_600s 0 to 0"),
        (HEAD + "a-1,0,2,1,1,4\na-1,1,2,1,1,4\n", "two runs of zone a-1 overlap at start_tick_600s 1"),
        (HEAD + "a-1,0,2,1,1,4\nb-1,0,3,1,1,4\n", "different numbers of ticks (a-1 2, b-1 3)"),
        (HEAD + "a-1,0,2,1,-1,4\n", "zone a-1: spot_usd_h or on_demand_usd_h (-1, 4) is not a valid price"),
        (HEAD + "a-1,0,2,1,nan,4\n", "(nan, 4) is not a valid price"),
        (HEAD + "a-1,0,-2,1,1,4\n", "zone a-1: run_ticks -2 at start_tick_600s 0 is below 1"),
        (HEAD + "a-1,0,2,yes,1,4\n", "available 'yes' at start_tick_600s 0 is neither 0 nor 1"),
        (HEAD + "a-1,0,2,1,1,4,9\n", "line 2, has more cells than there are columns; fix that row"),
        (HEAD + "a-1,0\n", "zone a-1: int() argument must be"),
        (HEAD + "a-1,0,many,1,1,4\n", "zone a-1: invalid literal for int() with base 10: 'many'"),
        (HEAD, "has no runs"),
        ("day,sales\n2026-01-01,3\n", "the columns day, sales; give a table with the columns zone, start"),
        ("zone,start_tick_600s,run_ticks,available\na-1,0,2,1\n", "no capacity_info.csv is beside it"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, reason):
    path = written(tmp_path, text)
    with pytest.raises(DataError) as caught:
        read(path)
    assert reason in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert ";" in str(caught.value)


def test_files_that_are_missing_or_no_tables_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no file"):
        read(tmp_path / "none.csv")
    (tmp_path / "x.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="is not a table"):
        read(tmp_path / "x.csv.gz")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DataError, match="is not a table"):
        read(tmp_path / "x.csv")


def test_a_zone_without_a_price_is_named(tmp_path):
    written(tmp_path, "zone,spot_usd_h,on_demand_usd_h\na-1,1,4\n", name="x_info.csv")
    path = written(tmp_path, "zone,start_tick_600s,run_ticks,available\nb-1,0,2,1\n", name="x_rle.csv")
    with pytest.raises(DataError, match="has no prices of zone b-1"):
        read(path)


def test_a_seed_draws_the_same_and_another_one_something_else():
    assert draw(seed=1, num_ticks=2000) == draw(seed=1, num_ticks=2000)
    assert draw(seed=1, num_ticks=2000) != draw(seed=2, num_ticks=2000)


def test_drawn_capacity_comes_and_goes_and_spot_is_cheaper_than_on_demand():
    for trace in draw(seed=3, num_ticks=30_000):
        assert 0.8 < np.mean(trace.up) < 0.999
        assert max(trace.spot_usd_per_hour) < trace.on_demand_usd_per_hour
        assert len(set(trace.spot_usd_per_hour)) > 3


@pytest.mark.slow
def test_outages_are_drawn_as_they_were_measured():
    traces = read(measured("skynomad_h100_merged_rle.csv.gz"))
    assert (len(traces), len(traces[0].up)) == (13, 2114)
    gone, drawn_gone = (
        np.concatenate([outages(trace.up) for trace in zones])
        for zones in (traces, draw(seed=0, num_ticks=400_000))
    )
    assert np.mean(gone > 18) == pytest.approx(np.mean(drawn_gone > 18), abs=0.02)  # longer than three hours
    assert np.median(gone) == np.median(drawn_gone) == 1


def outages(up: tuple[bool, ...]) -> np.ndarray:
    """Ticks of each stretch without capacity."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], up, [True]]).astype(int)))
    return edges[1::2] - edges[::2]


def test_a_packed_file_that_was_cut_is_said(tmp_path):
    path = tmp_path / "cut.csv.gz"
    packed = gzip.compress((HEAD + "".join(f"a,{tick},1,1,1,2\n" for tick in range(5000))).encode())
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"cut\.csv\.gz is not a table"):
        read(path)
    path.write_bytes(packed[:30] + b"odd bytes" + packed[39:])
    with pytest.raises(DataError, match=r"cut\.csv\.gz is not a table"):
        read(path)


def test_a_file_of_a_spreadsheet_may_begin_with_a_byte_order_mark(tmp_path):
    (trace,) = read(written(tmp_path, "\ufeff" + HEAD + "a-1,0,2,1,1,4\n"))
    assert trace.zone == "a-1"
