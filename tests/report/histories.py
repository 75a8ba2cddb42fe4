"""Ledgers of many nights, with figures drawn from a seed: written by one `git fast-import`."""

import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.record_parts import Chain, JobForecast, MeasuredEffect, Placement, Record, Rental
from daybreak.storage.ledger import Entry
from tests.report.nights import only, whole


def nights(num: int, *, last: date, seed: int = 1) -> Iterator[Entry]:
    """Nights in a row until that day, oldest first: promoted, refused, failed, late, over the budget."""
    draw = random.Random(seed)
    serves, level, anchor = 1, 0.30, 0.30
    for at in range(num):
        day = last - timedelta(days=num - 1 - at)
        drawn = draw.random()
        entry = whole(at + 2, day, action="reject" if drawn < 0.22 else "promote")
        entry = _with_figures(entry, draw, serves=serves, level=level, anchor=anchor)
        if drawn > 0.96:
            assert entry.verdict
            reason = "validate failed: 9.1 % of the rows are quarantined, above validate.max_quarantined 5 %"
            failed = replace(entry.verdict, action="no data", effect=None, reason=reason, failed="validate")
            entry = replace(only(entry, "batch", "report", "champion"), verdict=failed)
        if entry.release:
            serves, level = entry.release.version, level + draw.gauss(0.0004, 0.002)
        if at % 28 == 27:
            anchor = level
        yield entry


def _with_figures(entry: Entry, draw: random.Random, *, serves: int, level: float, anchor: float) -> Entry:
    assert (
        entry.plan
        and entry.profile
        and entry.training
        and entry.evaluation
        and entry.verdict
        and entry.report
    )
    night = entry.night
    wave = level + 0.01 * draw.gauss(0, 1)
    step = draw.gauss(0.003, 0.004)
    slow = draw.lognormvariate(0, 0.09)
    usd = 21.0 * slow * (2.6 if draw.random() < 0.02 else 1.0)
    forecast = entry.plan.forecast
    elapsed_s = forecast.expected_s * 300 * slow
    chain = Chain(anchor=max(1, serves - 5), since=night.day - timedelta(days=9), margin=0.012, offset=0.0)
    metrics = entry.evaluation.metrics | {
        "score": wave + step,
        "champion_score": wave,
        "anchor_score": wave + anchor - level,
    }
    rental = Rental(machine="g2-standard-8", region="us-central1", strategy="spot")
    bought = Placement(
        rental=rental.on_demand,
        expected_s=forecast.expected_s * 300,
        expected_usd=55.0,
        latest_start=night.train_until - timedelta(hours=8),
        usd_per_hour=8.4,
    )
    bad = int(2478 * draw.choice([0.004, 0.011, 0.018]))
    return replace(
        entry,
        report=replace(entry.report, num_clean=2478 - bad, num_quarantined=bad),
        profile=replace(entry.profile, bound=draw.choices(["compute", "io", "memory"], [8, 3, 1])[0]),
        plan=replace(
            entry.plan,
            rental=rental,
            fallbacks=(bought,),
            forecast=JobForecast(
                expected_s=forecast.expected_s * 300,
                expected_usd=20.0,
                interval=(forecast.interval[0] * 290, forecast.interval[1] * 310),
            ),
        ),
        training=replace(entry.training, elapsed_s=elapsed_s, cost_usd=usd),
        evaluation=replace(entry.evaluation, metrics=metrics),
        verdict=replace(
            entry.verdict,
            champion=serves,
            chain=chain,
            effect=MeasuredEffect(mean=step, low=step - 0.008, high=step + 0.008),
            decided_at=night.started_at + timedelta(seconds=elapsed_s + 5000 * draw.lognormvariate(0, 0.4)),
        ),
        champion=replace(entry.champion, version=serves) if entry.champion else None,
        release=replace(entry.release, replaced=serves) if entry.release else None,
    )


def write_ledger(home: Path, entries: Sequence[Entry]) -> None:
    """Commits these nights to the branch `nights` of the repository in `home`, oldest first."""
    code = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=home, capture_output=True, text=True, check=True
    ).stdout.strip()
    stream = b"".join(_commit(entry, code, is_first=at == 0) for at, entry in enumerate(entries))
    subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=home, input=stream, check=True)


def _commit(entry: Entry, code: str, *, is_first: bool) -> bytes:
    """Returns a commit for fast-import; the parents of a night are the one before and the code."""
    serves = entry.release.version if entry.release else 0
    trailer = f"Rollback: {serves}" if entry.rollback else f"Serves: {serves}"
    message = f"{entry.subject}\n\nNight: {entry.night.id}\n{trailer}\n".encode()
    at = entry.verdict.decided_at if entry.verdict and entry.verdict.decided_at else entry.night.decide_until
    lines = [
        b"commit refs/heads/nights\n",
        f"committer A Test <test@example.org> {at.timestamp():.0f} +0000\n".encode(),
        f"data {len(message)}\n".encode(),
        message,
        f"from {code}\n".encode() if is_first else b"" if entry.rollback else f"merge {code}\n".encode(),
    ]
    lines.append(b"deleteall\n")
    for name in Entry.__dataclass_fields__:
        if isinstance(record := getattr(entry, name), Record):
            text = records.dumps(record).encode()
            lines.append(
                f"M 100644 inline {records.path_of(type(record), records.RUN)}\ndata {len(text)}\n".encode()
                + text
            )
    return b"".join(lines) + b"\n"
