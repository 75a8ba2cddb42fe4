"""Simulates the hourly readings of electricity meters, and those of a weather station beside them.

A day is a pure function of (seed, day): the meter's base load, hour and weekday by kind (homes and shops),
the temperature, and a slow drift that is similar on neighbouring days, so that yesterday predicts more than
the calendar. The temperature comes from a weather station, as a separate table.
"""

from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from daybreak import ParamsError
from daybreak.examples.simulated_days import Simulated

HISTORY_DAYS = 60
HOURS = 24
MISSING = 0.002  # share of readings that a meter fails to send
SILENT = 0.02  # share of hours in which the station says nothing


class Weather(Simulated):
    """A station that says the temperature of each hour ten minutes before it.

    Args:
        seed: each seed has other weather.
        start: first day; 61 days before `today` if None.
        today: the last day is the one before; the clock's date (UTC) if None.
    """

    def __init__(
        self, *, seed: int = 0, start: date | str | None = None, today: date | str | None = None
    ) -> None:
        super().__init__(seed=seed, start=start, today=today, num_days=HISTORY_DAYS + 1)

    def _rows(self, day: date) -> pa.Table:
        """Returns the station's readings of `day`, from ten to one on."""
        at = np.datetime64(day, "us") + np.timedelta64(50, "m") + np.arange(HOURS) * np.timedelta64(60, "m")
        of_hours = np.append(degrees(self._seed, day)[1:], degrees(self._seed, day + timedelta(days=1))[0])
        said = np.random.default_rng([self._seed, 3, day.toordinal()]).random(HOURS) >= SILENT
        columns = {"at": at[said], "celsius": np.round(of_hours, 1)[said]}
        return pa.table(columns)


def degrees(seed: int, day: date) -> NDArray[Any]:
    """Returns the temperature in each hour of a day, shape [24]."""
    season = -8 * np.cos(2 * np.pi * (day.timetuple().tm_yday - 20) / 365.25)
    of_day = np.random.default_rng([seed, 4, day.toordinal()]).normal(0, 2.5)
    return np.asarray(10 + season + of_day + 4 * np.sin(2 * np.pi * (np.arange(HOURS) - 9) / 24))


class Meters(Simulated):
    """Meters that each send a reading an hour.

    Args:
        seed: each seed gives other meters.
        start: first day; 60 days before `today` if None.
        today: the last day is the one before; the clock's date (UTC) if None.
        num_meters: each has 24 rows a day.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        start: date | str | None = None,
        today: date | str | None = None,
        num_meters: int = 150,
    ) -> None:
        if num_meters < 1:
            raise ParamsError(f"source.num_meters is {num_meters}; give it at least one")
        super().__init__(seed=seed, start=start, today=today, num_days=HISTORY_DAYS)
        self._num = num_meters
        rng = np.random.default_rng([seed, 1])
        self._load = np.exp(rng.normal(0, 0.7, num_meters))  # kWh in an average hour
        self._is_shop = rng.random(num_meters) < 0.3
        self._heats = rng.uniform(0, 0.04, num_meters)  # share of the load that a degree below 15 adds
        self._phase = rng.uniform(0, 2 * np.pi, (3, num_meters))
        self._period = rng.uniform(6, 40, (3, num_meters))  # days

    def _rows(self, day: date) -> pa.Table:
        rng = np.random.default_rng([self._seed, 2, day.toordinal()])
        hour = np.arange(HOURS)
        kwh = self._mean(day, hour) * np.exp(rng.normal(0, 0.12, (HOURS, self._num)))
        sent = (rng.random((HOURS, self._num)) >= MISSING).ravel()
        time = np.datetime64(day, "us") + np.repeat(hour, self._num).astype("timedelta64[h]")
        columns = {
            "meter": np.tile([f"M{number:04}" for number in range(self._num)], HOURS),
            "time": time,
            "kwh": np.round(kwh, 3).ravel(),
        }
        return pa.table({name: pa.array(values[sent]) for name, values in columns.items()})

    def _mean(self, day: date, hour: NDArray[Any]) -> NDArray[Any]:
        """Returns what each meter is expected to read, kWh, shape [24, meters]."""
        home = 0.6 + 0.5 * np.exp(-((hour - 7.5) ** 2) / 4) + 0.9 * np.exp(-((hour - 19) ** 2) / 8)
        shop = 0.3 + 1.4 * ((hour >= 8) & (hour < 19)) * (1.0 if day.weekday() < 6 else 0.2)
        shape = np.where(self._is_shop, shop[:, None], home[:, None] * (1.1 if day.weekday() >= 5 else 1.0))
        slow = 0.25 * np.sin(2 * np.pi * day.toordinal() / self._period + self._phase).sum(axis=0)
        heated = 1 + self._heats * np.maximum(15 - degrees(self._seed, day), 0)[:, None]
        return np.asarray(self._load * shape * heated * np.exp(slow))
