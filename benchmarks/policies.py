"""Retrains a model nightly by the gate of Daybreak, nightly without, weekly, monthly, or never.

All policies begin with the version that the gate promotes first. What serves after a night answers the next
day, and is measured there. The gate's decision is its own code: plausibility of the scores, all metrics, its
test of itself, the chain since the anchor, and then the watch.

    gated      each night, promoted, kept and rolled back by the gate and the watch of Daybreak
    ungated    each night, always promoted
    weekly     the first night of a week (from Sunday on), always promoted
    monthly    the first night of a month, always promoted
    never      the first version goes on to serve
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks import frame
from daybreak.contract.record_types import Champion, Evaluation, Night, Release, Verdict, Version
from daybreak.contract.sections import GateParams
from daybreak.data.features import UNIT
from daybreak.evaluation.scores import Columns
from daybreak.gate import chain as chains
from daybreak.gate.all_metrics import guardrails_of, success_of
from daybreak.gate.cold_start import why_cold
from daybreak.gate.judge import rules_of
from daybreak.gate.plausibility import NAME as PLAUSIBLE
from daybreak.gate.plausibility import plausible
from daybreak.gate.verdict import decide
from daybreak.gate.watch import compare
from daybreak.storage.ledger import Entry
from tests.minimal_records import minimal_training

GATED = "gated"
ARMS = {"challenger": "score"} | {arm: f"{arm}_score" for arm in ("champion", "anchor", "predecessor")}
OUTCOMES = (
    "promoted",
    "refused, proven worse",
    "refused, not proven no worse",
    "refused, the margin is spent",
    "no data, too few samples",
    "no data, scores not believed",
    "no data, the gate failed its own test",
    "held for its data",
    "rolled back",
    "cold as the gate asked",
)
Scores = NDArray[np.floating]
Served = dict[str, list[Scores]]  # of each policy, the scores on each day's samples


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that a night trained."""

    folder: Path
    digest: str
    cold: bool
    cpu_s: float


class Days(Protocol):
    """The days of a set, each with a night; a day is named by its number."""

    days: Sequence[date]
    gate: GateParams

    def holds(self, place: int) -> bool:
        """Returns whether the stage `validate` stops the night of a day."""

    def trained(self, night: Night, champion: Champion | None, model: Path | None) -> Trained:
        """Returns the model of a night: from the champion's in `model`, or cold, as nights decide."""

    def judged(self, place: int, models: Mapping[str, Trained]) -> Columns:
        """Returns the columns that the gate reads of a day, as it came."""

    def served(self, place: int, serving: Mapping[str, Trained]) -> Mapping[str, Scores]:
        """Returns the scores on what a day really was, [n] each, of each model and of rules without one."""


def run(
    gated: "Gated", plain: Days, *, first: int, num_nights: int
) -> tuple[list[date], Served, dict[str, "Ungated"]]:
    """Runs nights from that of the day `first` on; returns the days that were served, scores and policies.

    Args:
        gated: the policy that all others begin with.
        plain: the days as policies without a gate see them.
        first: place of the first night's day.
        num_nights: of the gated policy.
    """
    others, served, days = dict[str, Ungated](), Served(), list[date]()
    for place in range(first, first + num_nights + 1):
        if others:
            days.append(plain.days[place])
            serving = {GATED: gated.model} | {name: policy.serving for name, policy in others.items()}
            for name, scores in plain.served(place, serving).items():
                served.setdefault(name, []).append(scores)
        if place == first + num_nights:
            break  # its samples are the last that anything served
        gated.night(place)
        for policy in others.values():
            policy.night(frame.night(plain.days[place]))
        if gated.serving and not others:
            others = ungated_policies(plain, gated.model, since=plain.days[place])
    return days, served, others


def figures_of(
    days: Sequence[date], served: Served, gated: "Gated", others: Mapping[str, "Ungated"], *, metric: str
) -> dict[str, float]:
    """Prints the table and the differences, and returns the figures, with the metric by that name."""
    trainings = {GATED: gated.trained} | {name: policy.trained for name, policy in others.items()}
    figures: dict[str, float] = {"days": len(days), "samples": sum(map(len, served[GATED]))}
    rows = []
    for name, scores in served.items():
        trained = trainings.get(name, [])
        by_week = means_of_weeks(days, scores)
        worst = min(by_week, key=lambda week: by_week[week])
        row = {
            metric: float(np.concatenate(scores).mean(dtype=np.float64)),
            f"{metric}, mean of days": float(np.mean([one.mean() for one in scores])),
            "worst week": by_week[worst],
            "trainings": len(trained),
            "cold": sum(one.cold for one in trained),
            "CPU s of training": sum(one.cpu_s for one in trained),
        }
        rows.append({"policy": name, **row, "it began": worst})
        figures |= {f"{name}: {key}": value for key, value in row.items() if name in trainings or value}
    frame.table(rows)
    frame.table(by_quarter(days, served))
    for name in served:
        if name != GATED:
            mean, low, high = difference(days, served[GATED], served[name])
            print(f"{GATED} - {name}: {mean:+.4f} ({low:+.4f} to {high:+.4f}, 95 %)")
            figures |= {
                f"{GATED} - {name}": mean,
                f"{GATED} - {name}, low": low,
                f"{GATED} - {name}, high": high,
            }
    figures |= {f"nights: {what}": num for what, num in gated.outcomes().items()}
    return figures


@dataclass(kw_only=True)
class Ungated:
    """A policy that trains once in a period, and always lets the newest model serve."""

    days: Days
    serving: Trained
    since: date  # it was trained
    period: Callable[[date], Hashable]
    warm: bool  # whether nights may begin with what serves
    trained: list[Trained] = field(default_factory=list)

    def night(self, night: Night) -> None:
        """Trains, if a new period has begun."""
        if self.period(night.day) == self.period(self.since):
            return
        champion, version = None, 1 + len(self.trained)
        if self.warm:
            champion = Champion(version=version, replaced=version - 1, model_digest=self.serving.digest)
        self.serving = self.days.trained(night, champion, self.serving.folder if self.warm else None)
        self.since = night.day
        self.trained.append(self.serving)


def ungated_policies(days: Days, first: Trained, *, since: date) -> dict[str, Ungated]:
    """Returns the policies beside the gated one, all of which begin with the same version."""
    periods: dict[str, Callable[[date], Hashable]] = {
        "ungated": lambda day: day,
        "weekly": week_of,
        "monthly": lambda day: (day.year, day.month),
        "never": lambda day: None,
    }
    return {
        name: Ungated(days=days, serving=first, since=since, period=period, warm=name == "ungated")
        for name, period in periods.items()
    }


class Gated:
    """Nights by Daybreak's gate and watch, with a ledger in memory."""

    def __init__(self, days: Days) -> None:
        self.days, self.gate = days, days.gate
        self.serving: Release | None = None
        self.trained: list[Trained] = []  # version 1 first
        self.num_held = 0  # nights that `validate` stopped
        self._past: list[Entry] = []  # newest first
        self._made: dict[int, Entry] = {}  # what promoted each version

    @property
    def model(self) -> Trained:
        """Returns what serves."""
        assert self.serving
        return self.trained[self.serving.version - 1]

    def outcomes(self) -> Counter[str]:
        """Returns how many nights came to what; why they did, where nothing was promoted."""
        counts = Counter(dict.fromkeys(OUTCOMES, 0)) | Counter({"held for its data": self.num_held})
        for entry in self._past:
            counts["rolled back" if entry.rollback else outcome_of(entry)] += 1
            counts["cold as the gate asked"] += bool(entry.night.cold) and not entry.rollback
        return counts

    def night(self, place: int) -> None:
        """Trains, judges and promotes as a night does, and looks at the result as the watch does."""
        if self.days.holds(place):
            self.num_held += 1
            return
        champion = self._opened(self.days.days[place])
        night = frame.night(self.days.days[place])
        if champion:
            wanted = why_cold(champion, self._past, day=night.day, when_spent=self.gate.when_spent)
            night = replace(night, cold=wanted)
        self.trained.append(self.days.trained(night, champion, self.model.folder if champion else None))
        version = Version(
            name="",
            number=len(self.trained),
            night=night.id,
            data_digest="",
            model_digest=self.trained[-1].digest,
            run_id="",
        )
        columns = self._scores(place, champion)
        evaluation = Evaluation(
            model_digest=version.model_digest,
            data_digest="",
            num_samples=len(columns["challenger"]),
            metrics=means_of(columns),
            slices=(),
        )
        verdict = self._verdict(night, columns, evaluation, version, champion)
        release = None
        if verdict.action == "promote":
            release = Release(
                version=version.number,
                replaced=champion.version if champion else 0,
                model_digest=version.model_digest,
                night=night.id,
            )
        entry = Entry(
            commit=night.id,
            subject="",
            rollback=False,
            night=night,
            training=minimal_training(warm=not self.trained[-1].cold),
            evaluation=evaluation,
            version=version,
            verdict=verdict,
            champion=champion,
            release=release,
        )
        self._past.insert(0, entry)
        if release:
            self.serving, self._made[release.version] = release, entry
        else:
            print(f"{night.id} keeps the champion: {verdict.reason}", flush=True)
        if night.cold:
            print(f"{night.id} was cold: {night.cold}", flush=True)
        self._watch()

    def _opened(self, day: date) -> Champion | None:
        """Returns the champion when a night opens, with its anchor and its predecessor."""
        if self.serving is None:
            return None
        before = self._made.get(self.serving.replaced)
        return Champion(
            **vars(self.serving),
            anchor=chains.anchor_of(self.serving, self._made[self.serving.version], day=day),
            predecessor=before.release if before else None,
        )

    def _scores(self, place: int, champion: Champion | None) -> Columns:
        """Returns the columns of tonight's scores, of the versions that the evaluator scores."""
        models = {"challenger": self.trained[-1]}
        if champion:
            anchor = champion.anchor.release if champion.anchor else None
            arms = {"champion": champion, "anchor": anchor, "predecessor": champion.predecessor}
            models |= {
                name: self.trained[release.version - 1]
                for name, release in arms.items()
                if release and (name == "champion" or release.version != champion.version)
            }
        return self.days.judged(place, models)

    def _verdict(
        self,
        night: Night,
        columns: Columns,
        evaluation: Evaluation,
        version: Version,
        champion: Champion | None,
    ) -> Verdict:
        """Returns what the stage `gate` decides by held-out scores, but for the smoke test."""
        gate = self.gate
        rules = rules_of(gate, refresh=champion is not None, evaluation=evaluation)
        chain = chains.chain_of(
            columns,
            champion,
            self._past,
            night=night,
            refresh=True,
            margin=rules.margin,
            alpha=gate.alpha,
            evaluation=evaluation,
        )
        verdict = decide(
            columns,
            evaluation=evaluation,
            version=version,
            champion=champion,
            rules=replace(rules, may_lose=chain is not None and chain.level is not None),
            success=success_of(gate, evaluation),
            guardrails=guardrails_of(gate, evaluation),
            believed=plausible(
                columns,
                evaluation,
                self._past,
                false_alarms_per_year=gate.false_alarms_per_year,
                anchor=champion.anchor.release.version if champion and champion.anchor else None,
            ),
        )
        return chains.apply_chain(verdict, chain)

    def _watch(self) -> None:
        """Lets an earlier version serve again where the watch finds it better."""
        if self.serving is None:
            return
        watched = compare(self.serving, self._past, self.gate)
        if watched.outcome != "rolled back":
            return
        target = self._made[watched.predecessor]
        assert target.release
        verdict = Verdict(
            action="reject",
            champion=watched.predecessor,
            challenger=self.serving.version,
            reason=watched.reason,
        )
        release = replace(target.release, replaced=self.serving.version)
        self.serving = release
        self._past.insert(0, replace(target, rollback=True, release=release, verdict=verdict))
        print(f"rolled back to version {release.version}: {watched.reason}", flush=True)


def outcome_of(entry: Entry) -> str:
    """Returns what a night came to, one of OUTCOMES."""
    verdict = entry.verdict
    assert verdict
    if verdict.action == "promote":
        return "promoted"
    if verdict.action == "reject":
        spent = verdict.chain is not None and verdict.chain.spent
        effect = verdict.effect
        worse = effect is not None and effect.high is not None and effect.high < 0
        why = "the margin is spent" if spent else "proven worse" if worse else "not proven no worse"
        return f"refused, {why}"
    broken = {check.name for check in verdict.checks if not check.ok}
    if not broken:
        return "no data, too few samples"
    believed = "scores not believed" if PLAUSIBLE in broken else "the gate failed its own test"
    return f"no data, {believed}"


def means_of(columns: Columns) -> dict[str, float]:
    """Returns the means of the columns, as the evaluator names them."""
    return {
        ARMS.get(name, name.removeprefix("metric/")): float(values.mean(dtype=np.float64))
        for name, values in columns.items()
        if not name.startswith("slice/") and name != UNIT
    }


def week_of(day: date) -> int:
    """Returns the number of the week, from Sunday on."""
    return day.toordinal() // 7


def sums_of_weeks(
    days: Sequence[date], values: Sequence[NDArray[np.float32]]
) -> dict[int, tuple[float, int]]:
    """Returns sum and number of the values of each week."""
    sums: dict[int, tuple[float, int]] = {}
    for day, one in zip(days, values, strict=True):
        total, num = sums.get(week_of(day), (0.0, 0))
        sums[week_of(day)] = total + float(one.sum(dtype=np.float64)), num + len(one)
    return sums


def means_of_weeks(days: Sequence[date], scores: Sequence[NDArray[np.float32]]) -> dict[date, float]:
    """Returns the mean of each week's samples, by its Sunday."""
    sums = sums_of_weeks(days, scores)
    return {date.fromordinal(7 * week): total / num for week, (total, num) in sums.items()}


def difference(
    days: Sequence[date], ours: Sequence[NDArray[np.float32]], theirs: Sequence[NDArray[np.float32]]
) -> tuple[float, float, float]:
    """Returns the mean difference of all samples, and its 95 % interval by resampled weeks."""
    apart = [one - other for one, other in zip(ours, theirs, strict=True)]
    totals, nums = zip(*sums_of_weeks(days, apart).values(), strict=True)

    def mean(total: NDArray[np.float64], num: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        ratio: NDArray[np.float64] = total.sum(axis) / num.sum(axis)
        return ratio

    interval = stats.bootstrap(
        (np.array(totals), np.array(nums)), mean, paired=True, vectorized=True, method="percentile", rng=0
    ).confidence_interval
    return float(mean(np.array(totals), np.array(nums))), float(interval.low), float(interval.high)


def by_quarter(days: Sequence[date], served: Served) -> list[Mapping[str, object]]:
    """Returns a row a quarter: the mean of its samples under each policy."""
    quarters = [f"{day.year} Q{(day.month + 2) // 3}" for day in days]
    return [
        {"quarter": quarter}
        | {
            name: float(
                np.concatenate([s for q, s in zip(quarters, scores, strict=True) if q == quarter]).mean()
            )
            for name, scores in served.items()
        }
        for quarter in dict.fromkeys(quarters)
    ]
