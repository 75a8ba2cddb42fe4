"""Gives the nights of a home as data frames of pandas, which any folder may ask for.

A frame has a row for each night, oldest first, or for each metric of a night. Names say the units: `_s` are
seconds, `_usd` and `usd` dollars, `num_` counts; times are UTC, a `day` is of the data. What a night did not
reach is missing. Each call reads the ledger as it is then, and writes nothing.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.contract import environment, params
from daybreak.contract.errors import NothingToDo, ParamsError
from daybreak.contract.record_types import Evaluation, Verdict
from daybreak.extensions.notebooks.versions import OpenVersion
from daybreak.report.night_rows import NightRow, row_of
from daybreak.report.standing import standing
from daybreak.rollout.rollback import version_of
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

if TYPE_CHECKING:
    import pandas as pd

NIGHTS = (
    *("night", "day", "outcome", "verdict", "reason", "failed", "by", "challenger", "serves"),
    *("started_at", "closed_at", "decided_s", "decide_within_s", "bound", "num_rows", "num_quarantined"),
    *("score", "champion_score", "rule_score", "commit"),
)
VERDICTS = (
    *("night", "day", "action", "champion", "challenger", "effect", "low", "high", "margin"),
    *("num_samples", "num_units", "reason", "decided_at"),
)
METRICS = ("night", "day", "version", "slice", "metric", "value", "champion", "num_samples")
COSTS = ("night", "day", "rental", "trained_s", "train_within_s", "usd", "predicted_usd", "budget_usd")
FORECASTS = (
    *("night", "day", "rental", "predicted_s", "low_s", "high_s", "actual_s"),
    *("compared_s", "held", "is_whole", "moved"),
    *("predicted_usd", "usd"),
)


def open(home: str | Path) -> "OpenHome":
    """Opens the home of a model, to read its nights as data frames; the current folder does not matter.

    It changes `os.environ` of this process for good, as each command does of its own: variables by which Git
    would look for another repository are removed, and a proxy is not asked for loopback.

    Raises ParamsError where the folder is not a home.
    """
    folder = Path(home).expanduser().resolve()
    missing = [name for name in (params.FILE.name, ".git") if not (folder / name).exists()]
    if missing:
        raise ParamsError(
            f"{folder} is not a home: it has no {' and no '.join(missing)}; name the folder that "
            f"`daybreak init` made, or a checkout with params.yaml"
        )
    environment.forget_repository(os.environ)  # as at the beginning of each command
    environment.spare_loopback(os.environ)
    return OpenHome(folder)


@dataclass(frozen=True)
class OpenHome:
    """A home whose nights are data frames, and whose versions predict."""

    folder: Path

    def nights(self) -> "pd.DataFrame":
        """Returns a row for each night and each rollback, oldest first.

        `outcome` is promoted, kept, failed, rollback or open; `serves` is the version that serves from then
        on, 0 for none; `failed` names the stage that failed, `by` the person who answered; `decided_s` is
        from the opening to the decision, `decide_within_s` what the deadline left for that; `score`,
        `champion_score` and `rule_score` are of the challenger, the champion and the best simple rule on
        that night's held-out samples.
        """
        rows = (_row(row_of(entry)) for entry in self._entries())
        return _frame(rows, NIGHTS, times=("started_at", "closed_at"))

    def verdicts(self) -> "pd.DataFrame":
        """Returns a row for each night with a verdict, oldest first.

        `effect` is what the challenger scores more than the champion, from `low` to `high` by the interval
        that the gate decided by; `margin` is what a refresh may be worse by; all four in units of the score.
        """
        return _frame(
            (
                {**_flat(entry.verdict), "night": entry.night.id, "day": entry.night.day}
                for entry in self._entries()
                if entry.verdict and not entry.rollback
            ),
            VERDICTS,
            times=("decided_at",),
        )

    def metrics(self) -> "pd.DataFrame":
        """Returns a row for each metric of a night, and one for the score on each slice.

        `value` is of the night's `version`, `champion` that of the champion on the same held-out samples.
        `slice` is "" for all samples. The metric `score` is what the gate decides by, higher is better;
        `baseline/NAME` is the score of a simple rule.
        """
        rows = (
            {
                "night": entry.night.id,
                "day": entry.night.day,
                "version": entry.version.number if entry.version else 0,
                **row,
            }
            for entry in self._entries()
            if entry.evaluation and not entry.rollback
            for row in metrics_of(entry.evaluation)
        )
        return _frame(rows, METRICS)

    def costs(self) -> "pd.DataFrame":
        """Returns a row for each night with training: machines, seconds of training, dollars and budget."""
        rows = (_row(row_of(entry)) for entry in self._entries() if entry.training and not entry.rollback)
        return _frame(rows, COSTS)

    def forecasts(self) -> "pd.DataFrame":
        """Returns a row for each night with a plan that trained: what was predicted, and what came.

        `low_s` to `high_s` is the interval of 90 % around `predicted_s`; `held` says whether `compared_s` was
        in it: `actual_s`, or of a night that `moved` to other machines the time at its rate before.
        `is_whole` says whether training came to its own end.
        """
        rows = (_row(row_of(entry)) for entry in self._entries() if entry.plan and entry.training)
        return _frame((row for row in rows if row["predicted_s"] is not None), FORECASTS)

    def version(self, which: int | str | date | None = None) -> OpenVersion:
        """Returns a version by its number, or by the night or the day that made it; the champion without.

        Raises NothingToDo where no version serves or that night made none, and ReleaseError where there is
        no such night.
        """
        home = Home(self.folder)
        if which is not None:
            return OpenVersion(home, version_of(home, str(which)))
        champion = ledger.champion_at(home, branch.ledger_tip(home))
        if champion is None:
            raise NothingToDo(f"no version of {self.folder} serves yet; run a night, or name a version")
        return OpenVersion(home, champion.version)

    def _entries(self) -> Sequence[Entry]:
        return ledger.history(Home(self.folder))[::-1]


def _flat(verdict: Verdict) -> dict[str, Any]:
    effect = verdict.effect
    mean, low, high = (effect.mean, effect.low, effect.high) if effect else (None, None, None)
    return {**vars(verdict), "effect": mean, "low": low, "high": high}


def _row(row: NightRow) -> dict[str, Any]:
    low, middle, high = row.predicted_s or (None, None, None)
    named = {"low_s": low, "predicted_s": middle, "high_s": high, "actual_s": row.trained_s, "held": row.held}
    times = {name: _time(getattr(row, name)) for name in ("started_at", "closed_at")}
    return {**vars(row), **named, **times}


def _time(seconds: float) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def metrics_of(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Yields a row for each metric of an evaluation, and one for the score on each slice."""
    scores = standing(evaluation)
    everything = {"slice": "", "num_samples": evaluation.num_samples}
    for row in filter(None, (scores.overall, *scores.slices)):
        yield {
            "slice": "" if row is scores.overall else row.name,
            "metric": "score",
            "value": row.challenger.value,
            "champion": row.champion.value if row.champion else None,
            "num_samples": row.num_samples,
        }
    for name, (ours, theirs) in scores.metrics.items():
        yield {**everything, "metric": name, "value": ours, "champion": theirs}
    for name, mean in scores.baselines.items():
        yield {**everything, "metric": f"baseline/{name}", "value": mean.value}


def _frame(
    rows: Iterable[dict[str, Any]], columns: Sequence[str], times: Sequence[str] = ()
) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame.from_records(list(rows), columns=list(columns))
    frame["day"] = pd.to_datetime(frame["day"])
    for name in times:
        frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame
