"""README's section on a team's own data, word for word, and edits of what it made, by an installed wheel."""

import configparser
import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from daybreak.contract import records
from daybreak.contract.record_types import Champion, Evaluation, Night, Report, Verdict, Version
from daybreak.data.partitions import PART, part_of
from daybreak.evaluation.scores import read_scores
from daybreak.examples.fraud.payments import Payments
from daybreak.registry.packaging import slice_metrics
from tests.browser import chromium
from tests.dags.servers import IDENTITY, free_port, keep, server

ROOT = Path(__file__).parents[1]
FIRST = date(2026, 9, 1)
NEWEST = date(2026, 10, 12)
SMALL = ["profile.batch_sizes=[64]", "smoke_test.samples=20"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def environment() -> dict[str, str]:
    """The environment of a team's shell: without what earlier tests of this process set."""
    given = {**os.environ, "GIT_CONFIG_COUNT": "0"}
    for name in ("MLFLOW_TRACKING_URI", "DAYBREAK_HOME", "PYTHONPATH"):
        given.pop(name, None)
    return given


def run(*words: str, folder: Path, shell: str = "") -> str:
    """What a command printed, once it ended well."""
    command = ["bash", "-euc", shell] if shell else ["daybreak", *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def deliver(folder: Path, *, today: date, store: bool = False) -> None:
    """Write a file for each day, as the bank knows it on the day `today`; with another column, `store`."""
    bank = Payments(seed=3, start=str(FIRST), today=str(today), rows_per_day=500, fraud_share=0.05)
    folder.mkdir(exist_ok=True)
    for day in bank.days():
        bank.fetch(day, folder / "one")
        rows = pq.read_table(folder / "one" / PART, partitioning=None)
        if store:
            rows = rows.append_column("store", pa.array(["north", "south"] * len(rows))[: len(rows)])
        pq.write_table(rows, folder / f"{day}.parquet")
        (folder / "one" / PART).unlink()
    if (folder / "one").exists():
        (folder / "one").rmdir()


def edit(home: Path, *pairs: tuple[str, str]) -> None:
    """Replace texts in the team's module, and commit."""
    path = home / "payments.py"
    text = path.read_text()
    for before, after in pairs:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    path.write_text(text)
    subprocess.run(["git", *IDENTITY, "commit", "--quiet", "--all", "--message=Edit"], cwd=home, check=True)


def crowd(home: Path) -> None:
    """Adds modules named like ours and like Python's to the repository, one of them with the workload."""
    for name in ("dags/__init__", "contract/__init__", "training/__init__", "daybreak/__init__"):
        (home / name).parent.mkdir()
        (home / f"{name}.py").write_text("raise SystemExit('the module of the team was run')\n")
    for name in ("statistics", "types"):
        (home / f"{name}.py").write_text("raise SystemExit('the module of the team was run')\n")
    (home / "pipeline").mkdir()
    (home / "pipeline/__init__.py").touch()
    (home / "pipeline/widths.py").write_text("HIDDEN = 128\n")
    subprocess.run(["git", "add", "--all"], cwd=home, check=True)


def night(home: Path, day: date) -> Path:
    """Run the night of a day, small and without a smoke test, which README's night has; its folder."""
    few = [w for one in ("profile.batch_sizes=[64]", "smoke_test.samples=0") for w in ("--set", one)]
    run("night", "--day", str(day), "--trigger", "schedule", *few, folder=home)
    return home / "nights" / str(day)


def of(folder: Path, kind: Any) -> Any:
    return records.read(kind, folder / records.RUN)


@pytest.fixture(scope="module", autouse=True)
def commands(installed: Path) -> Iterator[None]:
    """Runs the commands of the wheel; jobs and stages are processes of the wheel's Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{installed}:{Path(sys.executable).parent}:{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def home(commands: None, tmp_path_factory: pytest.TempPathFactory, furnish: Callable[[Path], Path]) -> Path:
    """A home made and run by README's commands, from the folder `work` beside the data."""
    work = tmp_path_factory.mktemp("team") / "work"
    work.mkdir()
    deliver(work.parent / "cards", today=NEWEST + timedelta(days=1))
    (section,) = re.findall(
        r"## Your data and your model\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.S
    )
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.S)
    init, cd, rest = commands.partition("cd payments\n")
    assert cd
    run(folder=work, shell=init)
    home = furnish(work / "payments")
    printed = run(folder=home, shell=rest)
    assert "is in no digest" not in printed  # `try` says nothing of what the libraries read
    return home


@pytest.mark.promise
def test_readmes_commands_end_in_a_version_that_serves(home: Path) -> None:
    verdict = of(home / "nights" / str(NEWEST), Verdict)
    assert verdict.action == "promote"
    assert "better than the baseline constant" in verdict.reason
    assert not (home / "pipeline" / "daybreak").exists()


@pytest.mark.promise
def test_the_nights_ran_without_the_packages_of_extras(home: Path, installed: Path) -> None:
    """Without Airflow; what needs an extra says so in one sentence, and `check` knows what is missing."""
    code = (
        "import importlib.util as i; print([n for n in ('airflow', 'httptools', 'google.cloud', 'kubernetes')"
    )
    code += " if i.find_spec(n.partition('.')[0]) and i.find_spec(n)])"
    found = subprocess.check_output([installed / "python", "-P", "-c", code], cwd=home, text=True)
    assert found == "[]\n"
    for command in ("serve", "pages"):
        words = ["daybreak", command, "--port", "0"]
        done = subprocess.run(
            words, cwd=home, env=environment(), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 78
        assert re.search(r"\w+ is not installed; pip install 'daybreak\[serve\]'\n$", done.stderr)
    printed = run("check", folder=home)
    assert "ok   apache-airflow: is not installed: daybreak night runs without it" in printed


def test_an_edited_class_and_a_new_column_end_in_a_verdict_without_a_hand(home: Path) -> None:
    """The night after README's, of a wider model, a table with a column more, and a crowded repository."""
    crowd(home)
    deliver(home.parents[1] / "cards", today=NEWEST + timedelta(days=2), store=True)
    edit(
        home,
        ("return TableModel(state)", "return TableModel(state, hidden=widths.HIDDEN)"),  # wider in place
        ("\n\n\nclass ", "\nfrom pipeline import widths\n\n\nclass "),
        ('"online": Bool(),', '"online": Bool(),\n            "store": Category(nullable=True),'),
        (
            "return binary_cross_entropy_with_logits(logit, label,",
            "return 2 * binary_cross_entropy_with_logits(logit, label,",
        ),
    )
    folder = night(home, NEWEST + timedelta(days=1))
    changed, evaluation = of(folder, Verdict), of(folder, Evaluation)
    assert (changed.champion, changed.effect is None) == (1, False)
    assert evaluation.metrics["champion_score"] != evaluation.metrics["score"]  # each by its own code
    assert (changed.chain.anchor, changed.recipe_test.num_nights) == (1, 1)
    assert changed.reason.startswith("1 night of at least 7: not yet proven better over nights")
    rows = pq.read_table(part_of(FIRST, folder / "data/clean"), partitioning=None)
    assert set(rows["store"].to_pylist()) == {"north", "south"}  # history came in again
    assert of(folder, Report).num_quarantined == 0


def test_the_champions_recipe_has_its_turn_while_an_edit_is_tested(home: Path) -> None:
    """The nights after, of the schedule: of an edit, then by the commit of the champion, with it beside."""
    edit(
        home,
        ("return 2 * binary_cross_entropy_with_logits(", "return binary_cross_entropy_with_logits("),
        ('\n            "store": Category(nullable=True),', ""),
    )
    deliver(home.parents[1] / "cards", today=NEWEST + timedelta(days=4), store=True)
    edited = of(night(home, NEWEST + timedelta(days=2)), Night)
    folder = night(home, NEWEST + timedelta(days=3))
    tonight, champion, verdict = of(folder, Night), of(folder, Champion), of(folder, Verdict)
    assert champion.candidate.night == edited.id
    assert tonight.code_commit == champion.lineage["code_commit"] != edited.code_commit
    assert "no worse than the champion by the margin" in verdict.reason  # as of a refresh
    assert "the recipe under test, beside this one: 2 nights of at least 7" in verdict.reason
    assert "candidate_score" in of(folder, Evaluation).metrics
    assert len(verdict.recipe_test.days) == 1  # of four that are held out
    assert (verdict.recipe_test.num_nights, verdict.false_promotion_chance) == (2, None)


def test_a_night_that_a_person_starts_trains_the_checkouts_recipe(home: Path) -> None:
    deliver(home.parents[1] / "cards", today=NEWEST + timedelta(days=5), store=True)
    run("open", "--night", "manual", "--trigger", "manual: look", folder=home)
    folder = home / "nights" / "manual"
    assert of(folder, Champion).candidate is None
    here = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=home, text=True).strip()
    assert of(folder, Night).code_commit == here


@contextlib.contextmanager
def mlflow_of(home: Path, folder: Path) -> Iterator[str]:
    """The address of a server of the home's MLflow."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def up() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{url}/health", timeout=60).status == 200)
        return False

    call = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    call += ["--backend-store-uri", f"sqlite:///{home}/var/mlflow.db"]
    call += ["--artifacts-destination", str(home / "var/artifacts")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with server(call, given=environment() | quiet, folder=folder, up=up):
        yield url


def test_two_versions_beside_each_other_in_mlflow_show_a_reviewer_what_differs(
    home: Path, tmp_path: Path
) -> None:
    """Of README's night and the night of an edited class, in MLflow's own pages, as a person opens them."""
    nights = [home / "nights" / str(NEWEST + timedelta(days=later)) for later in (0, 1)]
    before, after = (of(one, Evaluation) for one in nights)
    with mlflow_of(home, tmp_path) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1400})
        page.goto(f"{url}/#/models/payments")
        for number in (1, 2):
            row = page.get_by_role("row").filter(
                has=page.get_by_role("link", name=f"Version {number}", exact=True)
            )
            row.get_by_role("checkbox").check(force=True)  # MLflow shows it under the pointer
        page.get_by_role("button", name="Compare", exact=True).click()
        page.get_by_role("link", name="train/loss").wait_for()
        keep(page, "comparison")
        shown = [one for one in page.locator("tr").all() if one.is_visible()]
        cells = [row.locator("th, td").all_inner_texts() for row in shown]
        rows = {name.strip(): values for name, *values in cells if values}
        assert {"code_commit", "day", "held_out", "num_samples", "recipe"} <= rows.keys()
        assert not {"machine", "device", "region", "train.rate", "workload.use"} & rows.keys()  # are the same
        for one, held_out in zip((before, after), rows["held_out"], strict=True):
            assert held_out.endswith(f'{one.days[-1]}, {one.num_samples:,} samples"')
        assert rows["compared_with"] == ['"no version"', '"version 1"']
        assert {"score", "effect", "effect_low", "effect_high"} <= rows.keys()
        assert slice_metrics(after.slices).keys() <= rows.keys()
        with page.expect_popup() as opened:
            page.get_by_role("link", name="train/loss").click()
        lines = opened.value.locator(".scatterlayer .trace")
        lines.nth(1).wait_for(state="attached")  # a curve of each version, over the samples
        opened.value.close()

        version = of(nights[1], Version)
        run = f"{url}/#/experiments/{version.experiment}/runs/{version.run_id}"
        page.goto(f"{run}?workflowType=machine_learning")
        page.get_by_text("Verdict: ").first.wait_for()
        page.get_by_role("link", name="Version 2 of payments").wait_for()
        page.get_by_text(f"training arrays ({version.data_digest})").wait_for()
        page.get_by_text("+1", exact=True).click()
        page.get_by_text(re.compile(rf"held out, .*{after.days[-1]} \({after.data_digest}\)")).wait_for()
        keep(page, "run-in-mlflow")
        page.goto(f"{run}/artifacts/slices.json?workflowType=machine_learning")
        page.get_by_role("cell", name="All samples", exact=True).wait_for()
        heads = page.get_by_role("columnheader").all_inner_texts()
        assert heads[:3] == ["slice", "num_samples", "challenger"]
        assert heads[-2:] == ["difference_low", "difference_high"]
        texts = page.get_by_role("cell").all_inner_texts()
        assert [part.name for part in after.slices] == texts[len(heads) :: len(heads)]
        asked = f"{url}/api/2.0/mlflow/model-versions/get?name=payments&version=2"
        with urllib.request.urlopen(asked, timeout=60) as answer:
            tags = [tag["key"] for tag in json.load(answer)["model_version"]["tags"]]
        assert 4 <= len(tags) <= 8


def test_the_router_of_make_up_serves_the_home(home: Path) -> None:
    """As its supervisor starts it: from the checkout of Daybreak, for a home elsewhere."""
    port = free_port()
    given = {"DAYBREAK_HOME": str(home), "SERVING_PORT": str(port)}
    known = {f"ENV_{name}": value for name, value in given.items()}
    config = configparser.ConfigParser(known, inline_comment_prefixes=(";",))
    config.read(ROOT / "supervisord.conf")
    serving = config["program:serving"]

    def answers() -> bool:
        with contextlib.suppress(OSError):
            url = f"http://127.0.0.1:{port}/health"
            return bool(json.load(urllib.request.urlopen(url, timeout=10))["champion"])
        return False

    folder = Path(serving.get("directory", str(ROOT)))
    command, *words = serving["command"].split()
    with server(
        [str(Path(sys.executable).with_name(command)), *words],
        given=environment() | given,
        folder=folder,
        up=answers,
    ):
        pass


@pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning")  # MLflow's, where a model is loaded
def test_model_file_and_trainer_give_the_same_numbers(home: Path) -> None:
    """By MLflow's own client and by `predict`, of the held-out rows; tests of the router have the rest."""
    import mlflow
    import pandas as pd

    folder = home / "nights" / str(NEWEST)
    day = NEWEST - timedelta(days=14)
    by_hand = ["--day", str(day), "--to", "predicted.csv", "--version", "1"]
    run("predict", "--night", str(NEWEST), *by_hand, folder=home)
    ours = pa.csv.read_csv(home / "predicted.csv")["prediction"].to_numpy()
    rows = pd.read_parquet(part_of(day, folder / "data/clean"))
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{home}/var/mlflow.db")
    try:
        theirs = mlflow.pyfunc.load_model("models:/payments/1").predict(rows.drop(columns="is_fraud"))
    finally:
        mlflow.set_tracking_uri(before)
    scores = read_scores(folder / "data/run/scores.npy")
    assert scores is not None
    assert np.abs(ours - theirs["prediction"].to_numpy()).max() <= 1e-6
    newest = scores["prediction/prediction"][-len(ours) :]  # of the held-out days, this one is the last
    assert np.abs(ours - newest).max() <= 1e-6
