"""Simulates lines of text that are grammatical and mean nothing, a few to a document.

A day is a pure function of (seed, day). Words come in and out of use over weeks, so that a model of last
month is a little surprised.
"""

from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa

from daybreak import ParamsError
from daybreak.examples.simulated_days import Simulated

HISTORY_DAYS = 60
TEMPLATES = (
    "the {adjective} {noun} {verb} the {noun}.",
    "a {noun} that {verb} no {noun} is {adjective}.",
    "why does the {noun} of the {adjective} {noun} never sleep?",
    "when the {noun} {verb} a {noun}, every {noun} is {adjective}.",
    "no {adjective} {noun} {verb} {number} {noun}s.",
)
WORDS = {
    "adjective": (
        "green",
        "idle",
        "loud",
        "ancient",
        "wooden",
        "polite",
        "sour",
        "round",
        "distant",
        "plain",
    ),
    "noun": ("idea", "lantern", "river", "clerk", "engine", "pigeon", "teapot", "senate", "comma", "glacier"),
    "verb": ("paints", "follows", "forgets", "measures", "borrows", "greets", "outruns", "praises"),
    "number": ("two", "three", "seven", "twelve", "forty"),
}


class Nonsense(Simulated):
    """Documents of one to eight lines.

    Args:
        seed: each seed gives other texts.
        start: first day; 60 days before `today` if None.
        today: the last day is the one before; the clock's date (UTC) if None.
        rows_per_day: lines of an average day.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        start: date | str | None = None,
        today: date | str | None = None,
        rows_per_day: int = 1000,
    ) -> None:
        if rows_per_day < 1:
            raise ParamsError(f"source.rows_per_day is {rows_per_day}; give it at least one")
        super().__init__(seed=seed, start=start, today=today, num_days=HISTORY_DAYS)
        self._rows_per_day = rows_per_day
        rng = np.random.default_rng([seed, 1])
        self._phase = {kind: rng.uniform(0, 2 * np.pi, len(words)) for kind, words in WORDS.items()}

    def _rows(self, day: date) -> pa.Table:
        rng = np.random.default_rng([self._seed, 2, day.toordinal()])
        num = 1 + int(rng.poisson(self._rows_per_day))
        size = rng.integers(1, 9, num)  # lines of each document, more than are needed
        document = np.repeat(np.arange(num), size)[:num]
        words = {kind: iter(self._words(kind, 3 * num, day, rng)) for kind in WORDS}
        texts = [self._line(TEMPLATES[number], words) for number in rng.integers(0, len(TEMPLATES), num)]
        seconds = np.sort(rng.integers(0, 86_400, num)).astype("timedelta64[s]")
        columns = {
            "document": pa.array([f"{day:%y%m%d}-{number}" for number in document]),
            "text": pa.array(texts),
            "time": pa.array(np.datetime64(day, "us") + seconds),
        }
        return pa.table(columns)

    def _words(self, kind: str, num: int, day: date, rng: np.random.Generator) -> list[str]:
        """Returns words as they are in use on that day."""
        use = np.exp(np.sin(2 * np.pi * day.toordinal() / 60 + self._phase[kind]))
        return [WORDS[kind][place] for place in rng.choice(len(use), num, p=use / use.sum())]

    def _line(self, template: str, words: dict[str, Iterator[str]]) -> str:
        line = template
        for kind, drawn in words.items():
            while f"{{{kind}}}" in line:
                line = line.replace(f"{{{kind}}}", next(drawn), 1)
        return line
