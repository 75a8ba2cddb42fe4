"""Thirty real nights in a row: each day's model judged on the day after, no manual step.

Online Retail from 2011-09-01 on, through the `files` source, in a clone of its own. Then a planted bad night
(a model trained on shuffled labels), and a rollback that is read back. The first three nights are run once
more, in another clone, by `make night` through Airflow: the same verdicts must come of it, and where both
profiles kept the same remedies, the same models.
"""

import json
import os
import statistics
import subprocess
import time
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

from benchmarks import frame
from daybreak.contract import params
from daybreak.contract.record_types import Champion, Version
from daybreak.storage import checkout, ledger
from daybreak.storage.home import Home

NUM_NIGHTS = 3 if frame.QUICK else 30
NUM_BY_AIRFLOW = 3
SOURCE = {
    "use": "daybreak:Files",
    "url": str(frame.DATA / "online_retail/online_retail.parquet"),
    "columns": {
        "invoice": "InvoiceNo",
        "item": "StockCode",
        "description": "Description",
        "quantity": "Quantity",
        "time": "InvoiceDate",
        "price": "UnitPrice",
        "customer": "CustomerID",
        "country": "Country",
    },
}
BAD_WORKLOAD = "benchmarks.mislabelled:Mislabelled"
OWN_COUNTS, POPULARITY = "baseline/counts", "baseline/popularity"
TIED = "baseline/counts_popularity"  # own counts, ties broken by popularity: a rule much harder to beat
SHORT = ["profile.steps=2", "profile.batch_sizes=[32,64]"]  # one profile a month would do here


def trading_days(first: date, count: int) -> list[date]:
    """The first days with data from `first` on."""
    from daybreak.data.source import Files

    arguments = {key: value for key, value in SOURCE.items() if key != "use"}
    return [day for day in Files(**arguments).days() if day >= first][:count]


def dvc_md5(folder: Path, commit: str, path: str) -> str:
    """Digest that a commit's dvc.lock has for a path."""
    from ruamel.yaml import YAML

    lock = YAML(typ="safe").load(checkout.git("show", f"{commit}:dvc.lock", folder=folder))
    outs = {out["path"]: out["md5"] for stage in lock["stages"].values() for out in stage["outs"]}
    return str(outs[path])


def main() -> None:
    """Run the nights, print them, and hold them against the targets."""
    days = trading_days(date(2011, 9, 1), NUM_NIGHTS + 1)
    with frame.home() as home:
        os.environ["DAYBREAK_HOME"] = str(home)
        began = time.monotonic()
        frame.pipeline(
            home,
            "nights",
            "--first",
            str(days[0]),
            "--last",
            str(days[NUM_NIGHTS - 1]),
            *frame.sets([f"source={json.dumps(SOURCE)}", *SHORT]),
        )
        elapsed_s = time.monotonic() - began
        entries = ledger.history(Home.here())[::-1]
        rows = []
        for entry in entries:
            assert entry.verdict and entry.report and entry.evaluation and entry.profile and entry.training
            metrics = entry.evaluation.metrics
            rows.append(
                {
                    "day": entry.night.day,
                    "verdict": entry.verdict.action,
                    "champion": entry.serving.version if entry.serving else 0,
                    "score": metrics["score"],
                    "own counts": metrics[OWN_COUNTS],
                    "own counts, tied": metrics[TIED],
                    "popularity": metrics[POPULARITY],
                    "effect": entry.verdict.effect.mean if entry.verdict.effect else None,
                    "bound": entry.profile.bound,
                    "train s": entry.training.elapsed_s,
                    "rows": entry.report.num_rows,
                    "quarantined": entry.report.num_quarantined,
                }
            )
            if entry.verdict.action != "promote":
                print(f"{entry.night.day} keeps the champion: {entry.verdict.reason}")
        frame.table(rows)
        ratios = [row["score"] / row["own counts"] for row in rows]
        before = ledger.history(Home.here(), limit=1)[0]
        bad = plant_a_bad_night(home, days[NUM_NIGHTS])
        back_s, restored = roll_back(home)
    by_airflow = nights_by_airflow(days[:NUM_BY_AIRFLOW])
    pairs = list(zip(entries, by_airflow, strict=False))
    alike = [one for one, other in pairs if one.plan and other.plan and one.plan.tuning == other.plan.tuning]
    frame.finish(
        "nights",
        {
            "nights": len(rows),
            "seconds a night": elapsed_s / len(rows),
            "score / own counts": statistics.fmean(r["score"] for r in rows)
            / statistics.fmean(r["own counts"] for r in rows),
            "nights below own counts": sum(ratio < 1 for ratio in ratios),
            "score / own counts with ties by popularity": statistics.fmean(r["score"] for r in rows)
            / statistics.fmean(r["own counts, tied"] for r in rows),
            "nights below own counts with ties by popularity": sum(
                row["score"] < row["own counts, tied"] for row in rows
            ),
            "worst train s": max(row["train s"] for row in rows),
            "median train s": statistics.median(row["train s"] for row in rows),
            "promoted": Counter(row["verdict"] for row in rows)["promote"],
            "rows quarantined": sum(row["quarantined"] for row in rows),
            "bad night refused": float(
                bad.verdict is not None
                and bad.verdict.action != "promote"
                and champion_of(bad) == champion_of(before)
            ),
            "rollback restored": float(restored),
            "rollback s": back_s,
            "nights through Airflow with the same end": sum(same_end(one, other) for one, other in pairs),
            "of them to the bit, as tuned alike": len(alike),
        },
        {
            "nights": ("==", NUM_NIGHTS),
            "score / own counts": (">=", 1.10),
            "nights below own counts": ("<=", 3),
            "worst train s": ("<=", 90),
            "bad night refused": ("==", 1),
            "rollback restored": ("==", 1),
            "rollback s": ("<=", 60),
            "nights through Airflow with the same end": ("==", NUM_BY_AIRFLOW),
        },
    )


def nights_by_airflow(days: list[date]) -> list[ledger.Entry]:
    """Entries of the nights by `make night`, oldest first, in a clone whose params.yaml names the data."""
    with frame.home() as home:
        frame.lend_environment(home)
        params.override(home, [f"source={json.dumps(SOURCE)}", *SHORT], into=home)
        subprocess.run(["git", "commit", "--all", "--quiet", "-m", "our own data"], cwd=home, check=True)
        for day in days:
            command = ["make", "night", f"DAY={day}", "AIRFLOW_PORT=18082", "MLFLOW_PORT=15002"]
            subprocess.run(command, cwd=home, env=frame.environment(home), check=True)
        os.environ["DAYBREAK_HOME"] = str(home)
        return ledger.history(Home.here())[::-1]


def same_end(one: ledger.Entry, other: ledger.Entry) -> bool:
    """Whether two runs of a night came to the same; to the bit, where both take an update the same way.

    Which remedies are kept is measured on each home's own clock, and bfloat16 rounds otherwise.
    """
    assert one.plan and other.plan
    bits = one.plan.tuning == other.plan.tuning
    return outcome(one, bits=bits) == outcome(other, bits=bits)


def outcome(entry: ledger.Entry, *, bits: bool) -> object:
    """What a night came to."""
    assert entry.training and entry.verdict
    verdict = entry.verdict
    exact = (entry.training.model_digest, verdict.effect) if bits else ()
    return entry.night.day, verdict.action, champion_of(entry), exact


def champion_of(entry: ledger.Entry) -> int:
    """Version that serves after an entry of the ledger."""
    return entry.serving.version if entry.serving else 0


def plant_a_bad_night(home: Path, day: date) -> ledger.Entry:
    """A night whose model is trained on shuffled labels."""
    frame.pipeline(
        home,
        "night",
        "--day",
        str(day),
        "--trigger",
        "a planted bad night",
        *frame.sets([f"source={json.dumps(SOURCE)}", f"workload={BAD_WORKLOAD}", *SHORT]),
    )
    entry = ledger.history(Home.here(), limit=1)[0]
    print(f"planted bad night {day}: {entry.verdict and entry.verdict.reason}")
    return entry


def roll_back(home: Path) -> tuple[float, bool]:
    """Roll back by one; seconds, and whether alias, model and data are those of the older version."""
    entries = ledger.history(Home.here())
    serving = entries[0].serving
    assert serving is not None
    target = next(e for e in entries if e.release and e.release.version == serving.replaced)
    began = time.monotonic()
    frame.pipeline(home, "rollback", "--reason", "to see that it works")
    elapsed_s = time.monotonic() - began
    newest = ledger.history(Home.here(), limit=1)[0]
    frame.pipeline(
        home, "open", "--night", "after-rollback", "--day", str(target.night.day + timedelta(days=1))
    )
    from daybreak.contract import records

    folder = home / "nights" / "after-rollback"
    raw = records.digest(folder / "data/raw")
    model = records.digest(folder / "data/champion")
    assert target.version and target.release
    restored = (
        newest.rollback
        and frame.champion_of(home) == target.release.version == target.version.number
        and raw == dvc_md5(home, target.commit, "data/raw")
        and model == target.release.model_digest == records.read(Champion, folder / records.RUN).model_digest
    )
    return elapsed_s, bool(restored and isinstance(target.version, Version))


if __name__ == "__main__":
    main()
