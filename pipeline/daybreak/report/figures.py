"""Turns a night's records into the charts that they allow, drawn by daybreak/report/charts.py."""

import math
from collections.abc import Sequence

from daybreak.contract import formats
from daybreak.contract.record_parts import Drift, Line
from daybreak.contract.record_types import Plan, Verdict
from daybreak.report import charts
from daybreak.report.night_rows import NightRow, row_of
from daybreak.report.standing import Standing
from daybreak.storage.ledger import Entry

NIGHTS = 60  # in the trend at most
SLICES = 24  # drawn at most; the table has them all
BATCH = 256  # at which a profile is shown where there is no plan


def until(entry: Entry, history: Sequence[Entry]) -> list[NightRow]:
    """Returns the last nights up to this one, which may or may not be in the ledger yet, by day."""
    at = entry.night.started_at
    earlier = [e for e in history if e.night.id != entry.night.id and e.night.started_at <= at]
    nights = sorted((e for e in [entry, *earlier] if not e.rollback), key=lambda e: e.night.started_at)
    return [row_of(e) for e in sorted(nights[-NIGHTS:], key=lambda e: e.night.day)]


def used(entry: Entry, plan: Plan) -> str:
    """Draws time and dollars of the training, against the plan, the deadline and the budget."""
    night, training, forecast = entry.night, entry.training, plan.forecast
    limit_s = (night.train_until - night.started_at).total_seconds()
    used_s = training.took_s if training else None
    used_usd = training.cost_usd if training else None
    return charts.used(
        [
            charts.Used(
                label="Time",
                used=used_s,
                planned=forecast.expected_s,
                low=forecast.interval[0],
                high=forecast.interval[1],
                limit=limit_s,
                text=f"{formats.duration(used_s)} of {formats.duration(forecast.expected_s)} planned",
                limit_text=f"deadline {formats.duration(limit_s)}",
            ),
            charts.Used(
                label="Cost",
                used=used_usd,
                planned=forecast.expected_usd,
                limit=night.budget_usd,
                text=f"{formats.dollars(used_usd)} of {formats.dollars(forecast.expected_usd)} planned",
                limit_text=f"budget {formats.dollars(night.budget_usd)}",
            ),
        ]
    )


def batch_size(entry: Entry) -> int:
    """Returns the samples that one device takes at a time tonight."""
    return entry.plan.micro_batch_size if entry.plan else BATCH


def error(line: Line, num_samples: float) -> float:
    """Returns the half-width of the interval of a line at a batch, its two errors taken as independent."""
    return math.hypot(line.fixed_error, line.per_sample_error * num_samples)


def drift(rows: Sequence[Drift]) -> str:
    """Draws the distance of each column as a share of its limit, the worst first."""
    bars = [
        charts.Bar(
            label=row.column,
            value=row.value / row.limit if row.limit else 0.0,
            text=f"{formats.quantity(row.value)} of {formats.quantity(row.limit)}",
            strong=row.value > row.limit,
        )
        for row in sorted(rows, key=lambda row: -row.value / (row.limit or 1))
    ]
    return charts.bars(bars[:12], name="drift", label="Drift against its limit", limit=1)


def effect(verdict: Verdict, margin: float | None) -> str | None:
    """Draws the effect with its interval, and the margin of a refresh; None where there is no evidence."""
    judged = verdict.effect
    if judged is None or judged.low is None or judged.high is None:
        return None
    shown = margin if verdict.champion else None
    return charts.effect(value=judged.mean, low=judged.low, high=judged.high, margin=shown)


def scores(now: Standing) -> str | None:
    """Draws the scores on all samples and on the largest slices, the champion's, and the simple rules."""
    largest = sorted(now.slices, key=lambda row: -row.num_samples)[:SLICES]
    rows = [
        charts.Score(
            label=f"{row.name} ({formats.count(row.num_samples)})",
            value=row.challenger.value,
            low=row.challenger.low,
            high=row.challenger.high,
            champion=row.champion.value if row.champion else None,
        )
        for row in (now.overall, *(row for row in now.slices if row in largest))
        if row
    ]
    rules = [
        charts.Score(label=name, value=mean.value, low=mean.low, high=mean.high, rule=True)
        for name, mean in now.baselines.items()
    ]
    ordered = [*rows[: 1 if now.overall else 0], *rules, *rows[1 if now.overall else 0 :]]
    return charts.scores(ordered) if ordered else None
