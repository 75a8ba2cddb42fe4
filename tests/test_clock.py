"""A date and a time of day in two columns are one time, both for `init` and for nights."""

from datetime import date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.sections import Plug
from daybreak.contract.table import Category, Time
from daybreak.data.casts import conform
from daybreak.data.partitions import PART
from daybreak.data.source import Files
from daybreak.extensions.init.survey import survey
from daybreak.extensions.init.survey_rows import Options

MOMENTS = [datetime(2025, 3, 25, 1, 30) + timedelta(hours=2 * n) for n in range(24)]


def written(folder: Path, **columns: list[object]) -> str:
    rows = pa.table({**columns, "y": [0, 1] * 12})
    if any(not isinstance(values[0], str) for values in columns.values()):
        pq.write_table(rows, folder / "a.parquet")
        return str(folder / "a.parquet")
    pyarrow.csv.write_csv(rows, folder / "a.csv")
    return str(folder / "a.csv")


@pytest.mark.parametrize(
    ("dates", "clocks"),
    [
        ("%d/%m/%Y", "%H:%M:%S"),  # household power of UCI
        ("%d/%m/%Y", "%H.%M.%S"),  # its air quality
        ("%Y-%m-%d", "%H:%M"),
        ("%Y-%m-%d 00:00:00", "%H:%M:%S.000"),  # of a database
        ("%m/%d/%y", "%I:%M %p"),
        ("%m/%d/%Y 12:00:00 AM", "12/30/1899 %I:%M:%S %p"),  # of Access
    ],
)
def test_a_date_and_a_time_of_day_are_one_time(dates: str, clocks: str, tmp_path: Path) -> None:
    url = written(
        tmp_path,
        Date=[each.strftime(dates) for each in MOMENTS],
        Time=[each.strftime(clocks) for each in MOMENTS],
    )
    made = survey(url)
    assert made.plug["clock"] == "Time" and made.table.columns["Date"] == Time()
    assert "Time" not in made.table.columns and any("--clock" in guess for guess in made.guesses)
    Plug(**made.plug).make().fetch(date(2025, 3, 25), tmp_path)
    rows = conform(pq.read_table(tmp_path / PART, partitioning=None), made.table, origin="x")
    assert rows["Date"].to_pylist() == [each for each in MOMENTS if each.day == 25]


def test_dates_and_times_of_day_of_parquet_are_one_time_too(tmp_path: Path) -> None:
    url = written(tmp_path, d=[each.date() for each in MOMENTS], t=[each.time() for each in MOMENTS])
    made = survey(url)
    assert (made.plug["clock"], made.num_days) == ("t", 2)
    Plug(**made.plug).make().fetch(date(2025, 3, 25), tmp_path)
    rows = conform(pq.read_table(tmp_path / PART, partitioning=None), made.table, origin="x")
    assert rows["d"].to_pylist()[0] == MOMENTS[0]


def test_of_two_times_of_day_the_one_of_the_date_is_asked_for(tmp_path: Path) -> None:
    url = written(
        tmp_path,
        d=[f"{each:%Y-%m-%d}" for each in MOMENTS],
        opens=["08:00", "09:30"] * 12,
        at=[f"{each:%H:%M}" for each in MOMENTS],
    )
    made = survey(url)
    assert "clock" not in made.plug and made.notes[0] == (
        "d has no time of day, and opens and at are times of day; if one belongs to it, "
        "name it, as --clock opens"
    )
    made = survey(url, Options(clock="at"))
    assert made.plug["clock"] == "at" and made.table.columns["opens"] == Category()


def test_a_time_of_day_beside_whole_times_or_left_out_is_not_put_to_them(tmp_path: Path) -> None:
    clocks: list[object] = ["08:00", "09:30"] * 12
    assert "clock" not in survey(written(tmp_path, d=[str(each) for each in MOMENTS], opens=clocks)).plug
    url = written(tmp_path, d=[f"{each:%Y-%m-%d}" for each in MOMENTS], opens=clocks)
    assert "clock" not in survey(url, Options(without=["opens"])).plug


def test_what_is_not_a_time_of_day_is_refused_as_one(tmp_path: Path) -> None:
    url = written(tmp_path, d=[f"{each:%Y-%m-%d}" for each in MOMENTS], x=["8", "9"] * 12)
    with pytest.raises(ParamsError, match="--clock x is string such as 8, not times of day such as 13:45:00"):
        survey(url, Options(clock="x"))
    with pytest.raises(ParamsError, match="--clock z is not in the data; name one of d, x, y"):
        survey(url, Options(clock="z"))
    with pytest.raises(DataError, match=r"has no column z of the time of day.*; name it in source.clock"):
        Files(url, cut_by="d", clock="z").days()


def test_a_date_that_could_be_a_time_of_day_is_a_date(tmp_path: Path) -> None:
    assert "clock" not in survey(written(tmp_path, d=[f"{each:%d.%m.%y}" for each in MOMENTS])).plug
