"""Small homes with real nights up to their arrays, in git, DVC and MLflow; and a look for a name in all."""

import os
import shutil
import sqlite3
import subprocess
from datetime import date
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from daybreak import runner
from daybreak.contract import params, records
from daybreak.contract.record_parts import JobForecast, PlanReasons, Rental, Tuning
from daybreak.contract.record_types import Dataset, Night, Plan, Verdict
from daybreak.contract.sections import Params
from daybreak.contract.workload import ARRAYS, STATE, make_model, read_state
from daybreak.data.partitions import PART
from daybreak.data.source import write_partition
from daybreak.evaluation.scores import write_scores
from daybreak.examples.fraud.payments import Payments
from daybreak.examples.shop.simulated_shop import Shop
from daybreak.registry.weights import MODEL
from daybreak.storage import branch, ledger, ledger_notes, snapshots
from daybreak.storage.home import Home
from tests.minimal_records import minimal_training
from tests.toy.nights import make_evaluation
from tests.toy.stages import promote_night, register_night

SUITE = "limits: off\ndrift: off\n"
COMMON = """\
backend: {{use: "tests.fakes:ScriptedBackend"}}
ingest: {{history_days: {days}, late_days: 2}}
prepare: {{test_days: 1}}
night: {{decide_hours: 24}}
register: {{name: daybreak}}
"""
FRAUD = COMMON.format(days=18) + (
    "workload: daybreak.examples.fraud.fraud:Fraud\n"
    "source: {use: 'tests.extensions.erasure.homes:NamedPayments'}\n"
)
SHOP = COMMON.format(days=6) + (
    "workload: daybreak.examples.shop.recommender:Recommender\n"
    "source: {use: 'tests.extensions.erasure.homes:NamedShop'}\n"
)
STAGES = {
    "open": ["data/champion"],
    "ingest": ["data/raw"],
    "validate": ["data/clean", "data/quarantine", "data/figures"],
    "prepare": ["data/arrays"],
    "train": ["data/run/model"],
    "evaluate": ["data/run/scores.npy"],
}
TODAY = date(2026, 3, 6)


class NamedPayments(Payments):
    """Payments whose accounts have names that nothing else is called by."""

    def __init__(self) -> None:
        super().__init__(
            start="2026-02-01", today=str(TODAY), rows_per_day=120, num_accounts=12, fraud_share=0.1
        )

    def fetch(self, day: date, folder: Path) -> None:
        super().fetch(day, folder)
        rename(folder, "account")


class NamedShop(Shop):
    """A shop whose customers have names that nothing else is called by."""

    def __init__(self) -> None:
        super().__init__(
            start="2026-02-01", today=str(TODAY), num_customers=30, num_items=20, orders_per_day=20
        )

    def fetch(self, day: date, folder: Path) -> None:
        super().fetch(day, folder)
        rename(folder, "customer")


def rename(folder: Path, column: str) -> None:
    rows = pq.read_table(folder / PART, partitioning=None)
    names = pa.array([name and f"person-{name}" for name in rows[column].to_pylist()], pa.string())
    place = rows.column_names.index(column)
    write_partition(rows.set_column(place, column, names), folder)


def begin(home: Path, text: str) -> None:
    """Make the repository a home of that workload."""
    (home / "params.yaml").write_text(text)
    lines = [f"  {stage}: {{cmd: 'true', outs: {outs}}}\n" for stage, outs in STAGES.items()]
    (home / "dvc.yaml").write_text("stages:\n" + "".join(lines))
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "expectations.yaml").write_text(SUITE)
    subprocess.run(["git", "add", "--all", "--force", "."], cwd=home, check=True)
    subprocess.run(["git", "commit", "--quiet", "-m", "A home"], cwd=home, check=True)


def run_night(home: Path, day: date, *, with_version: bool = False) -> Night:
    """A night up to its arrays, closed; with a version that was promoted, whose weights nobody trained."""
    os.chdir(home)
    night = runner.run(Home.here(), "open", day=day)
    assert isinstance(night, Night)
    snapshots.record(Home.here(), "open")
    loaded = params.load(Path())
    records.write(loaded.workload.make().table, records.RUN)
    for stage in ("ingest", "validate", "prepare"):
        runner.run(Home.here(), stage)
        snapshots.make_folders(Path(), stage)
        snapshots.record(Home.here(), stage)
    if with_version:
        promote(loaded)
    runner.run(Home.here(), "close")
    os.chdir(home)
    return night


def promote(loaded: Params) -> None:
    """Register and promote a model of the night, with weights as they begin."""
    workload = loaded.workload.make()
    torch.manual_seed(0)
    MODEL.mkdir(parents=True)
    save_file(make_model(workload, read_state(ARRAYS)).state_dict(), MODEL / "model.safetensors")
    if (ARRAYS / STATE).exists():
        shutil.copytree(ARRAYS / STATE, MODEL / STATE)
    dataset = records.read(Dataset, records.RUN)
    facts = f'{{"workload": "{loaded.workload.use}", "arguments": {{}}, "seen": 1, "data_digest": "d", '
    (MODEL / "model.json").write_text(facts + f'"last_day": "{dataset.last_day}"}}')
    digest = records.digest(MODEL)
    snapshots.record(Home.here(), "train")
    write_scores({"challenger": np.ones(3), "(unit)": np.arange(3)}, 3)
    snapshots.record(Home.here(), "evaluate")
    plan = Plan(
        rental=Rental(machine="local"),
        batch_size=8,
        micro_batch_size=8,
        num_samples=10,
        checkpoint_every_s=10,
        fallbacks=(),
        tuning=Tuning(num_loaders=1),
        forecast=JobForecast(expected_s=20, expected_usd=0, interval=(15, 25)),
        reasons=PlanReasons(runner_up="none"),
    )
    training = minimal_training(model_digest=digest, num_samples=10)
    for record in (plan, training, make_evaluation(digest)):
        records.write(record, records.RUN)
    version, serving = register_night(), ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    verdict = Verdict(
        action="promote",
        champion=serving.version if serving else 0,
        challenger=version.number,
        num_samples=10,
        reason="first",
    )
    records.write(verdict, records.RUN)
    promote_night()


def units(home: Path, column: str, day: date) -> list[str]:
    """Who has clean rows of a day in the newest night's folder, those with most rows first."""
    folder = home / "nights" / ledger.commits(Home.here())[0].night
    names = pq.read_table(folder / f"data/clean/day={day}/{PART}", partitioning=None)[column].to_pandas()
    return [str(name) for name in names.dropna().value_counts().index]


def places_of(name: str, home: Path) -> list[str]:
    """Every file and object of git in the home that has the name, whatever its form."""
    batch = ["git", "cat-file", "--batch-all-objects", "--batch"]
    objects = subprocess.run(batch, cwd=home, capture_output=True, check=True).stdout
    return files_with(name, home) + ["an object of git"] * (name.encode() in objects)


def files_with(name: str, folder: Path) -> list[str]:
    """Every file below the folder that has the name, whatever its form."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return [str(path.relative_to(folder)) for path in files if name in _text(path)]


def _text(path: Path) -> str:
    content = path.read_bytes()
    text = content.decode(errors="replace")
    if content[:4] == b"PAR1":
        return text + str(pq.read_table(BytesIO(content)).to_pydict())
    if content[:6] == b"\x93NUMPY" or content[:2] == b"PK":
        return text + _arrays(content)
    return text


def _arrays(content: bytes) -> str:
    try:
        loaded: Any = np.load(BytesIO(content), allow_pickle=False)
    except (ValueError, OSError):
        return ""
    values = [loaded[key] for key in loaded.files] if hasattr(loaded, "files") else [loaded]
    values = [value for value in values if isinstance(value, np.ndarray)]
    return " ".join(
        str(value.tolist()) for value in values if getattr(value, "dtype", np.dtype("f8")).kind in "US"
    )


def standing(home: Path) -> dict[str, str]:
    """What an erasure may change, but for times: the cache, folders of nights, versions and notes."""
    digests = {}
    for folder in (".dvc/cache/files", "nights", "var/artifacts", "var/columns"):
        for path in sorted((home / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.name != ".git":
                digests[str(path.relative_to(home))] = records.digest(path)
    notes = [one.text for one in ledger_notes.read(Home.here())]
    with sqlite3.connect(home / "var" / "mlflow.db") as database:
        tags = database.execute("select version, key, value from model_version_tags order by 1, 2").fetchall()
    return digests | {
        "notes": str(notes),
        "tags": str(tags),
        "left": str(sorted(path.name for path in (home / "var").iterdir())),
    }
