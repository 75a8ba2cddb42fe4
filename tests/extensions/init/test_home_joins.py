"""`daybreak init` on several tables: the table with the rows, and joins as of the time."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import yaml

from daybreak import cli
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import Plug
from daybreak.contract.table import Float
from daybreak.extensions.init import survey
from daybreak.extensions.trial.rehearsal import rehearse

pytestmark = pytest.mark.slow

FIRST = datetime(2025, 1, 1)
CITIES = ["Berlin", "Hamburg", "Munich", "Cologne"]
NUM_DAYS = 6


def sales() -> pa.Table:
    """Eighty sales a day in four cities; the amount follows the temperature."""
    draws = np.random.default_rng(0)
    seconds = np.sort(draws.integers(0, NUM_DAYS * 86_400, NUM_DAYS * 80))
    city = draws.integers(0, len(CITIES), len(seconds))
    return pa.table(
        {
            "sold_at": [FIRST + timedelta(seconds=int(each)) for each in seconds],
            "city": [CITIES[each] for each in city],
            "shop_id": draws.integers(1, 6, len(seconds)),
            "amount": [
                temperature(int(each) // 3600, of) + draws.normal()
                for each, of in zip(seconds, city, strict=True)
            ],
        }
    )


def temperature(hour: int, city: int) -> float:
    return 100.5 * city + hour + 0.25  # tells of which hour and city it is


def weather(*, place: str = "city", cities: list[str] = CITIES) -> pa.Table:
    hours = range(-5, NUM_DAYS * 24 + 5)
    return pa.table(
        {
            "at": [FIRST + timedelta(hours=hour) for hour in hours for _ in cities],
            place: [city for _ in hours for city in cities],
            "celsius": [temperature(hour, city) for hour in hours for city in range(len(cities))],
        }
    )


def delivered(folder: Path, **tables: pa.Table) -> Path:
    for name, rows in tables.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(rows, folder / name / "all.parquet")
    return folder


def found(folder: Path, **options: str) -> survey.Survey:
    return survey.survey(str(folder), survey.Options(**{"label": "amount", **options}))


def fetched(made: survey.Survey, folder: Path) -> pa.Table:
    """All rows as a night brings them in."""
    source = Plug(**made.plug).make()
    parts = []
    for day in source.days():
        source.fetch(day, folder)
        parts.append(pq.read_table(folder / "part.parquet"))
    return pa.concat_tables(parts)


def test_sales_get_the_newest_weather_of_their_city_and_none_of_a_later_hour(tmp_path: Path) -> None:
    made = found(delivered(tmp_path / "data", sales=sales(), weather=weather()))
    assert made.plug["tables"] == {
        "weather": {
            "rows": {"use": "daybreak:Files", "url": f"{tmp_path}/data/weather", "cut_by": "at"},
            "time": "at",
            "key": ["city"],
            "columns": ["celsius"],
            "max_age_hours": 3,
            "known_after_hours": 0,
        }
    }
    assert made.table.columns["celsius"] == Float(nullable=True)
    rows = fetched(made, tmp_path)
    hours = [(at - FIRST) // timedelta(hours=1) for at in rows["sold_at"].to_pylist()]
    own = [
        temperature(hour, CITIES.index(city))
        for hour, city in zip(hours, rows["city"].to_pylist(), strict=True)
    ]
    assert len(own) == NUM_DAYS * 80 and rows["celsius"].to_pylist() == own
    assert made.joined == (
        "sales is joined with weather by city: the newest row by at, at most 3 hours old; "
        "100% of rows have one",
    )


def test_names_that_differ_are_known_by_their_values_and_taken_names_get_another(tmp_path: Path) -> None:
    others = weather(place="place").append_column("shop_id", pa.array(["a"] * len(weather())))
    made = found(delivered(tmp_path, sales=sales(), weather=others))
    arguments = made.plug["tables"]["weather"]
    assert arguments["key"] == {"city": "place"}
    assert arguments["columns"] == {"celsius": "celsius", "weather_shop_id": "shop_id"}


def test_keys_whose_values_are_others_are_no_keys(tmp_path: Path) -> None:
    others = weather(cities=["BER", "HAM", "MUC", "CGN"])
    made = found(delivered(tmp_path, sales=sales(), weather=others))
    assert "tables" not in made.plug
    (sentence,) = made.apart
    assert sentence.startswith("weather is not joined: 462 of 616 rows have the time of another")
    assert "of the values of city, 0% are found in its city" in sentence


def test_of_rows_with_the_same_key_and_time_the_last_counts_if_they_are_few(tmp_path: Path) -> None:
    corrected = weather().slice(40, 8).set_column(2, "celsius", pa.array([-1.0] * 8))
    few = pa.concat_tables([weather(), corrected])
    made = found(delivered(tmp_path / "few", sales=sales(), weather=few))
    assert "of 8 rows with the key and time of another, the last" in made.joined[0]
    assert -1.0 in fetched(made, tmp_path)["celsius"].to_pylist()
    many = pa.concat_tables([weather(), weather()])
    made = found(delivered(tmp_path / "many", sales=sales(), weather=many))
    assert not made.joined and "the key and time of another" in made.apart[0]


def test_a_table_that_has_no_time_no_rows_or_no_series_is_left_out_with_the_reason(tmp_path: Path) -> None:
    shops = pa.table({"shop_id": [1, 2, 3, 4, 5], "area": [100, 50, 80, 70, 60]})
    empty = pa.table({"at": pa.array([], pa.timestamp("us")), "city": pa.array([], pa.string())})
    staff = pa.table({"hired": [FIRST + timedelta(days=n * n) for n in range(9)], "name": [*"abcdefghi"]})
    made = found(delivered(tmp_path, sales=sales(), shops=shops, empty=empty, staff=staff))
    reasons = dict(sentence.split(" is not joined: ") for sentence in made.apart)
    assert reasons["shops"].startswith("it has no time, so that nothing says since when its rows were known")
    assert "has no rows" in reasons["empty"]
    assert reasons["staff"].startswith("it has no key in common with the rows")
    assert "tables" not in made.plug


def test_figures_of_a_day_count_once_it_is_over_and_a_later_time_goes_before(tmp_path: Path) -> None:
    days = [FIRST + timedelta(days=day) for day in range(-3, NUM_DAYS)]
    visitors = pa.table({"day": days, "visitors": [float(day.day) for day in days]})
    news = weather().append_column(
        "published", pa.array([at + timedelta(hours=2) for at in weather()["at"].to_pylist()])
    )
    made = found(delivered(tmp_path / "data", sales=sales(), visitors=visitors, news=news))
    tables = made.plug["tables"]
    assert (tables["visitors"]["known_after_hours"], tables["visitors"].get("key")) == (24, None)
    assert tables["news"]["time"] == "published"
    rows = fetched(made, tmp_path)
    yesterday = [float((at - timedelta(days=1)).day) for at in rows["sold_at"].to_pylist()]
    assert rows["visitors"].to_pylist() == yesterday


def test_two_tables_that_have_the_label_are_asked_about(tmp_path: Path) -> None:
    returns = sales().append_column("reason", pa.array(["torn", "late"] * (NUM_DAYS * 40)))
    folder = delivered(
        tmp_path,
        sales=sales(),
        returns=returns.rename_columns(["returned_at", "place", "till", "amount", "reason"]),
    )
    with pytest.raises(ParamsError, match=r"returns and sales have .*; say .* --table returns"):
        found(folder)
    made = found(folder, table="sales")
    assert made.table.time == "sold_at"
    with pytest.raises(ParamsError, match=r"--table tills is none of the tables; name one of returns, sales"):
        found(folder, table="tills")


def test_files_that_have_most_columns_in_common_are_one_table_as_before(tmp_path: Path) -> None:
    pq.write_table(sales().slice(0, 200), tmp_path / "berlin.parquet")
    pq.write_table(sales().slice(200), tmp_path / "munich.parquet")
    made = found(tmp_path)
    assert made.plug["use"] == "daybreak:Files" and not made.joined and not made.apart
    with pytest.raises(ParamsError, match="--from leads to one"):
        found(tmp_path, table="berlin")


def test_files_of_days_of_unlike_columns_are_told_apart_by_their_names(tmp_path: Path) -> None:
    days = sales()["sold_at"].cast(pa.date32()).to_pylist()
    for day in sorted(set(days)):
        own = sales().filter(pa.array([other == day for other in days]))
        pyarrow.csv.write_csv(own, tmp_path / f"sales_{day}.csv")
    pyarrow.csv.write_csv(weather(), tmp_path / "weather.csv")
    made = found(tmp_path)
    assert made.plug["rows"]["url"] == f"{tmp_path}/sales*.csv"
    assert made.table.columns["celsius"] == Float(nullable=True) and made.num_days == NUM_DAYS


def test_all_tables_of_a_database_become_a_home_that_goes_through_every_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine = sa.create_engine(url)
    for name, rows in {"sales": sales(), "weather": weather()}.items():
        kinds = {"timestamp[us]": sa.DateTime, "string": sa.String, "int64": sa.Integer, "double": sa.Float}
        table = sa.Table(name, sa.MetaData(), *(sa.Column(f.name, kinds[str(f.type)]) for f in rows.schema))
        table.create(engine)
        with engine.begin() as connection:
            connection.execute(table.insert(), rows.to_pylist())
    folder = tmp_path / "shops"
    assert cli.main(["init", str(folder), "--from", f"{url}#", "--label", "amount"]) == 0
    assert "sales is joined with weather by city" in capfd.readouterr().out
    source = yaml.safe_load((folder / "params.yaml").read_text())["source"]
    assert source["tables"]["weather"]["key"] == ["city"]
    rehearse(folder)
