"""Nights to report on: whole, partial and sixty of them, with figures that are easy to recognise."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np

from daybreak.contract import records
from daybreak.contract.record_parts import (
    Chain,
    ColumnDistribution,
    ColumnUse,
    Confusion,
    Differences,
    DifferingSamples,
    Drift,
    Epoch,
    Expectation,
    FigureSeries,
    JobForecast,
    Line,
    ListReach,
    MeasuredEffect,
    Placement,
    PlanReasons,
    RecommendedLists,
    Record,
    Reliability,
    ReliabilityBin,
    Remedy,
    Rental,
    Slice,
    StageSpan,
    Trend,
    Tuning,
)
from daybreak.contract.record_types import (
    Batch,
    Champion,
    Dataset,
    Distributions,
    Evaluation,
    Night,
    Plan,
    Profile,
    Release,
    Report,
    Spans,
    Training,
    Verdict,
    Version,
)
from daybreak.storage.ledger import Entry

ODD_NAME = "<b>Côte d'Ivoire</b> & more"
START = datetime(2011, 11, 9, 3, 0, tzinfo=UTC)


def line(fixed: float, per_sample: float) -> Line:
    return Line(
        fixed=fixed, per_sample=per_sample, fixed_error=fixed * 0.08, per_sample_error=per_sample * 0.05
    )


def whole(number: int = 12, day: date = date(2011, 11, 8), *, action: str = "promote") -> Entry:
    """Returns a night that ended; version `number` challenges the version before."""
    started = START + timedelta(days=(day - date(2011, 11, 8)).days)
    champion = number - 1
    promoted = action == "promote"
    effect = 0.0142 if promoted else -0.0067
    score = 0.3487 + 0.01 * float(np.sin(number))
    wobble = 1 + 0.1 * float(np.cos(number * 1.7))
    return Entry(
        commit=f"{number:040x}",
        subject=f"{day}: {action}",
        rollback=False,
        night=Night(
            id=str(day),
            day=day,
            started_at=started,
            train_until=started + timedelta(hours=18),
            decide_until=started + timedelta(hours=24),
            budget_usd=50,
            trigger="schedule",
            code_commit="c0de" * 10,
            previous=f"{champion:040x}",
        ),
        batch=Batch(
            day=day,
            num_rows=2478,
            num_bytes=61_234,
            digest="aa" * 16 + ".dir",
            late_days=(day - timedelta(days=2),),
        ),
        report=Report(
            num_rows=2478,
            num_clean=2441,
            num_quarantined=37,
            expectations=(
                Expectation(rule="price_is_positive", column="price", num_failed=29, success=True),
                Expectation(rule="quantity_is_not_zero", column="quantity", num_failed=8, success=True),
                Expectation(rule="item_is_known_form", column="item", num_failed=0, success=True),
                Expectation(rule="rows_as_usual", column="", num_failed=0, success=False),
            ),
            drift=(
                Drift(column="price", statistic="Kolmogorov-Smirnov", value=0.061, limit=0.35),
                Drift(column="quantity", statistic="Kolmogorov-Smirnov", value=0.113, limit=0.35),
                Drift(column="country", statistic="total variation", value=0.392, limit=0.35),
                Drift(column="time", statistic="Kolmogorov-Smirnov", value=0.214, limit=0.35),
            ),
            digest="bb" * 16 + ".dir",
            trends=(
                Trend(
                    figure="rows",
                    words="2,478 rows, 59 days before: 4,471",
                    began=4471,
                    ended=2478,
                    days=tuple(day - timedelta(days=ago) for ago in range(59, -1, -1)),
                    values=tuple(4471 * 0.99**number * (0.9 + number % 7 / 30) for number in range(60)),
                ),
            ),
        ),
        dataset=Dataset(
            digest="cc" * 16 + ".dir",
            num_samples=16_543,
            num_bytes=18_765_432,
            first_day=date(2010, 12, 1),
            last_day=day - timedelta(days=1),
        ),
        profile=Profile(
            device="cpu (2 cores)",
            load_s=line(0.0021, 0.000093),
            step_s=line(0.0148, 0.000141),
            memory_bytes=line(312e6, 71_000),
            sync_bytes=line(5.2e6, 0),
            flops_per_sample=1_834_211.0,
            noise_scale=1834.2,
            bound="compute",
            evidence={
                "batch_size": 256,
                "load_share": 0.337,
                "input_bound": "highly",
                "memory": {"kind": "", "peak_bytes": 330e6, "device_bytes": 15.6e9},
                "compute_share": 0.541,
                "memory_share": 0.122,
                "mixed": {},
                "roofline": {
                    "flops_per_s": 9.2e9,
                    "peak_flops_per_s": 1.4e11,
                    "bytes_per_s": 2.2e9,
                    "peak_bytes_per_s": 2.06e10,
                    "gather_bytes_per_s": 1e9,
                    "peak_gather_bytes_per_s": 4e9,
                    "flops_per_byte": 4.21,
                    "ridge_flops_per_byte": 6.8,
                },
                "counterfactual": {"no_input_gain": 0.331, "no_compute_gain": 0.652, "agrees": True},
                "measured": {"batch_sizes": [64, 128, 256, 512], "elapsed_s": 4.71},
                "tuned": {"before_s": 0.0766, "after_s": 0.0556},
                "timeline": {
                    "before": [
                        [n * 0.08, n * 0.08 + 0.025, n * 0.08 + 0.026, n * 0.08 + 0.08] for n in range(8)
                    ],
                    "after": [
                        [
                            n * 0.055 - 0.05 * (n > 1) + 0.01,
                            n * 0.055 + 0.02,
                            n * 0.055 + 0.03,
                            n * 0.055 + 0.084,
                        ]
                        for n in range(8)
                    ],
                },
            },
            remedies=(
                Remedy(
                    name="parallel loaders",
                    bound="io",
                    applies=True,
                    applied=True,
                    kept=True,
                    predicted_gain=0.31,
                    measured_gain=0.274,
                    quality=False,
                    note="2 loaders, not 0",
                ),
                Remedy(
                    name="compiled model",
                    bound="compute",
                    applies=True,
                    applied=True,
                    kept=False,
                    predicted_gain=0.12,
                    measured_gain=-0.021,
                    quality=False,
                    note="compiling costs 24 s",
                ),
                Remedy(
                    name="smaller batch",
                    bound="io",
                    applies=True,
                    applied=False,
                    kept=False,
                    predicted_gain=0.05,
                    measured_gain=0.0,
                    quality=True,
                    note="more updates an epoch",
                ),
                Remedy(
                    name="activation checkpointing",
                    bound="memory",
                    applies=False,
                    applied=False,
                    kept=False,
                    predicted_gain=0,
                    measured_gain=0,
                    quality=False,
                    note="0.3 of 16 GB",
                ),
            ),
        ),
        plan=Plan(
            rental=Rental(machine="local"),
            batch_size=256,
            micro_batch_size=256,
            num_samples=49_629,
            checkpoint_every_s=31.5,
            fallbacks=(
                Placement(
                    rental=Rental(machine="n1-standard-8", strategy="spot"),
                    expected_s=61,
                    expected_usd=0.57,
                    latest_start=started + timedelta(hours=17, minutes=55),
                ),
            ),
            tuning=Tuning(num_loaders=2),
            forecast=JobForecast(expected_s=78.4, expected_usd=0.42, interval=(70.1, 91.3)),
            reasons=PlanReasons(runner_up="n1-standard-4 at $0.51, dearer by $0.09."),
        ),
        training=Training(
            model_digest="dd" * 16 + ".dir",
            num_samples=49_629,
            num_updates=194,
            num_restarts=1,
            elapsed_s=83.7 * wobble,
            cost_usd=0.4475 * wobble,
            stopped_by="finished",
            device="2 x NVIDIA L4",
            losses=tuple(
                (496 * at, 0.42 + 0.25 * 0.96**at + 0.01 * float(np.sin(at * number))) for at in range(1, 101)
            ),
            validations=tuple((16_543 * at, 0.31 + 0.012 * at + 0.001 * (number % 5)) for at in (1, 2, 3)),
            epochs=(
                *(Epoch(num_samples=16_543, whole=True, digest=f"{n:016x}") for n in range(2)),
                Epoch(num_samples=16_543, whole=True, digest="9ac8" * 4),
            ),
        ),
        evaluation=Evaluation(
            model_digest="dd" * 16 + ".dir",
            data_digest="cc" * 16 + ".dir",
            num_samples=400,
            metrics={
                "score": score,
                "champion_score": score - effect,
                "recall@20": 0.3104,
                "hit_rate": 0.7211,
                "champion/recall@20": 0.3011,
                "champion/hit_rate": 0.7178,
                "baseline/popularity": 0.1262,
                "baseline/own_counts": 0.3131,
                "baseline/item_knn": 0.2417,
                "baseline/ease": 0.2875,
            },
            by_slice={
                "score": {"": (score, 0.014), "customer: new": (score - 0.14 * wobble, 0.031)},
                "hit_rate": {"": (0.72 * wobble, 0.02), ODD_NAME: (0.5, 0.04)},
            },
            lists=RecommendedLists(
                num_users=1000,
                top=20,
                challenger=ListReach(num_items=812, beyond_popular=0.43),
                champion=ListReach(num_items=790, beyond_popular=0.41),
                kept=0.71,
            ),
            reliability=Reliability(
                challenger=tuple(
                    ReliabilityBin(num_samples=40, predicted=at / 10, observed=(at / 10) ** 1.2)
                    for at in range(1, 11)
                ),
                champion=tuple(
                    ReliabilityBin(num_samples=40, predicted=at / 10, observed=(at / 10) ** 0.8)
                    for at in range(1, 11)
                ),
            ),
            confusion=Confusion(
                classes=("stays", ODD_NAME), challenger=((301, 12), (25, 62)), champion=((298, 15), (31, 56))
            ),
            differences=Differences(
                columns=(
                    ColumnUse(column="item", challenger=0.1102, champion=0.1004),
                    ColumnUse(column="hour", challenger=0.0031, champion=-0.0002),
                ),
                left_out=("referrer",),
                num_shuffled=400,
                samples=(
                    DifferingSamples(
                        name="device is tablet", num_samples=71, difference=-0.0412, elsewhere=0.0169
                    ),
                ),
                num_groups=38,
                elapsed_s=2.1,
            ),
            slices=tuple(
                Slice(
                    name=name,
                    num_samples=n,
                    score=score + shift,
                    champion_score=score + shift - effect * (0.4 + 3 * abs(shift)),
                )
                for name, n, shift in (
                    ("country: other", 31, 0.021),
                    ("country: United Kingdom", 369, -0.002),
                    ("customer: known", 322, 0.034),
                    ("customer: new", 78, -0.141),
                    ("purchase: first-time", 187, -0.171),
                    ("purchase: repeat", 213, 0.112),
                )
            ),
        ),
        version=Version(
            name="daybreak",
            number=number,
            night=str(day),
            data_digest="cc" * 16 + ".dir",
            model_digest="dd" * 16 + ".dir",
            run_id="0123456789abcdef0123456789abcdef",
        ),
        verdict=Verdict(
            action=action,  # type: ignore[arg-type]
            champion=champion,
            challenger=number,
            effect=MeasuredEffect(mean=effect, low=effect - 0.0193, high=effect + 0.0193),
            num_samples=400,
            chain=Chain(
                anchor=3,
                since=day - timedelta(days=9),
                margin=0.03,
                level=0.004 * float(np.sin(number / 3)) - 0.004,
                half_width=0.011,
                num_nights=9,
            ),
            reason="proven no worse than the margin 0.03: +0.0142 (from -0.0051 to +0.0335, 400 samples); "
            "400 samples show 0.0276 at 80 % power"
            if promoted
            else "inconclusive: not proven no worse than the margin 0.03",
        ),
        spans=Spans(stages=tuple(spans(started))),
        champion=Champion(version=champion, replaced=champion - 1, night="2011-11-07"),
        release=Release(
            version=number,
            replaced=champion,
            model_digest="dd" * 16 + ".dir",
            night=str(day),
            lineage={"dvc_lock": "ee" * 16},
        )
        if promoted
        else None,
    )


def spans(began: datetime) -> Iterator[StageSpan]:
    """Yields the times of a night that waited 2 hours for its day."""
    seconds = {
        "open": 3,
        "ingest": 12,
        "validate": 41,
        "prepare": 25,
        "profile": 30,
        "plan": 8,
        "train": 95,
        "evaluate": 14,
        "register": 10,
        "gate": 4,
        "refit": 1,
        "promote": 9,
    }
    at = began
    for stage, lasted in seconds.items():
        called = at + timedelta(hours=2) if stage == "ingest" else at
        ended = called + timedelta(seconds=lasted)
        yield StageSpan(
            stage=stage,
            began_at=at,
            last_call_at=called,
            ended_at=ended,
            num_calls=1 + 24 * (stage == "ingest"),
            end="nothing to do" if stage == "refit" else "done",
            why="2011-11-08 is not there yet" if stage == "ingest" else "",
        )
        at = ended + timedelta(seconds=1)


def only(entry: Entry, *names: str) -> Entry:
    """The night with only these records beside the first."""
    kept = {name: getattr(entry, name) for name in names}
    return Entry(commit=entry.commit, subject=entry.subject, rollback=False, night=entry.night, **kept)


def sixty() -> list[Entry]:
    """Sixty nights, newest first, of which some rejected, failed or without data."""
    history = []
    for n in range(60):
        action = "reject" if n % 7 == 3 else "promote"
        entry = whole(n + 2, date(2011, 9, 10) + timedelta(days=n), action=action)
        if n % 19 == 11:
            assert entry.verdict is not None
            failed = replace(
                entry.verdict,
                action="no data",
                effect=None,
                reason="validate failed: schema changed",
                failed="validate",
            )
            entry = replace(only(entry, "batch", "champion"), verdict=failed)
        history.append(entry)
    return history[::-1]


def lay(entry: Entry, folder: Path, *, scores: bool = True, **errors: str) -> Path:
    """Write the records of the night, its scores and the texts of failed stages into the folder."""
    run = folder / records.RUN
    for name in Entry.__dataclass_fields__:
        if isinstance(record := getattr(entry, name), Record):
            records.write(record, run)
    if scores and entry.evaluation:
        np.save(run / "scores.npy", _scores(entry.evaluation))
    for stage, text in errors.items():
        (run / f"{stage}.error").write_text(text)
    return folder


def unlike(day: date = date(2011, 11, 8), *, country: str = ODD_NAME) -> Distributions:
    """Returns what a day looks like that has too many rows of a country."""
    days = tuple(day - timedelta(days=ago) for ago in range(27, -1, -1))
    edges = tuple(float(edge) for edge in range(1, 20))
    shares = tuple(number / 210 for number in range(20, 0, -1))
    return Distributions(
        day=day,
        before=tuple(day - timedelta(days=7 * weeks) for weeks in (4, 3, 2, 1)),
        label="bought",
        drifted=("country",),
        columns=(
            ColumnDistribution(
                column="country",
                values=("Germany", country, "France"),
                tonight=(0.4, 0.5, 0.1),
                before=(0.8, 0.0, 0.2),
                missing=(0.0, 0.0),
                label_tonight=(0.1, None, 0.3),
                label_before=(0.1, None, 0.2),
            ),
            ColumnDistribution(
                column="price",
                values=("below 1", *(f"{edge:g} to {edge + 1:g}" for edge in edges[:-1]), "19 and above"),
                edges=edges,
                tonight=shares,
                before=shares[::-1],
                missing=(0.03, 0.01),
                label_tonight=shares,
                label_before=(*shares[:-1], None),
            ),
        ),
        left_out=("colour",),
        figures=(
            FigureSeries(
                figure="new country",
                column="",
                words="country is new in 50 % of the rows, between 0 % and 2 % expected",
                is_share=True,
                holds=False,
                days=days,
                values=(*(0.01,) * 27, 0.5),
                lows=(*(None,) * 20, *(0.0,) * 8),
                highs=(*(None,) * 20, *(0.02,) * 8),
                stops=True,
            ),
            FigureSeries(
                figure="size price",
                column="price",
                words="price is 7 in the geometric mean, between 5 and 9 expected",
                is_share=False,
                holds=True,
                days=days,
                values=tuple(7 + number % 3 / 10 for number in range(28)),
                lows=(5.0,) * 28,
                highs=(9.0,) * 28,
            ),
        ),
    )


def _scores(evaluation: Evaluation) -> np.ndarray:
    rng = np.random.default_rng(7)
    n = evaluation.num_samples
    ours = np.clip(rng.normal(evaluation.metrics["score"], 0.28, n), 0, 1).astype(np.float32)
    columns = {"challenger": ours, "champion": np.clip(ours - rng.normal(0.014, 0.1, n), 0, 1)}
    for name in evaluation.metrics:
        if name.startswith("baseline/"):
            columns[name] = np.clip(ours - rng.normal(0.1, 0.2, n), 0, 1)
    for part in evaluation.slices:
        mask = np.zeros(n, dtype=bool)
        mask[rng.permutation(n)[: part.num_samples]] = True
        columns[f"slice/{part.name}"] = mask
    table = np.zeros(n, dtype=[(name, np.asarray(values).dtype) for name, values in columns.items()])
    for name, values in columns.items():
        table[name] = values
    return table
