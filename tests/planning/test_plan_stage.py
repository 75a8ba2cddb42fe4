"""The stage plans by the newest prices; the task log and `--explain` show the options that were weighed."""

import json
import logging
import re
import subprocess
from dataclasses import replace
from datetime import timedelta

import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.record_types import Batch, Plan
from daybreak.machines import pricelist
from tests.planning.jobs import DATASET, STARTED, night, profile

PARAMS = """\
source: some.module:Class
workload: some.module:Class
backend: tests.fakes:ScriptedBackend
plan: {machines: [local, g2-standard-4, g2-standard-8], spot: false}
train: {epochs: 1, batch_size: 256}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)  # the home of a ledger
    (tmp_path / "params.yaml").write_text(PARAMS)
    (tmp_path / "var").mkdir()
    for record in (night(hours=2), DATASET, profile(step_s=1e-2)):
        records.write(record, records.RUN)
    return tmp_path


def test_explain_prints_the_options_with_why_not(home, capsys):
    assert cli.main(["plan", "--explain"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("g2-standard-4, in us-central1, batch 256: ")
    assert "X the plan, o nothing is both faster and cheaper" in shown
    assert "in time with a chance of 0.000, below plan.confidence 0.99" in shown


def test_the_task_log_gets_the_same_and_the_output_ends_with_the_record(home, capsys, caplog):
    with caplog.at_level(logging.INFO):
        assert cli.main(["plan"]) == 0
    assert "90 % interval" in caplog.text
    assert json.loads(capsys.readouterr().out)["rental"]["machine"] == "g2-standard-4"
    assert records.read(Plan, records.RUN).reasons.options


def test_a_price_that_was_read_later_goes_before_the_shipped_one(home):
    backend = '{use: "daybreak:Vertex", project: p, image: i}'
    (home / "params.yaml").write_text(PARAMS.replace("tests.fakes:ScriptedBackend", backend))
    cli.main(["plan"])
    before = records.read(Plan, records.RUN)
    cheaper = home / pricelist.REFRESHED
    cheaper.write_text(
        f"{','.join(pricelist.COLUMNS)}\ng2-standard-8,us-central1,on-demand,0.1,a test,2026-11-21\n"
    )
    cli.main(["plan"])
    after = records.read(Plan, records.RUN)
    assert (before.rental.machine, after.rental.machine) == ("g2-standard-4", "g2-standard-8")
    assert after.forecast.expected_usd < before.forecast.expected_usd


def test_a_negative_price_is_told_with_its_line_and_nothing_is_planned(home, caplog):
    (home / pricelist.REFRESHED).write_text(
        f"{','.join(pricelist.COLUMNS)}\ng2-standard-8,us-central1,on-demand,-1,a test,2026-11-21\n"
    )
    assert cli.main(["plan"]) == 78
    assert "line 2: usd_per_hour of g2-standard-8 is -1, which is not a valid price" in caplog.text
    assert records.find(Plan, records.RUN) is None


def test_a_plan_that_cannot_be_says_the_least_that_helps(home, caplog):
    records.write(night(hours=0.01, budget_usd=0), records.RUN)
    assert cli.main(["plan", "--explain"]) == 78
    assert "PlanError: no machine of plan.machines trains on 1,000,000 samples by" in caplog.text


def test_what_the_night_waited_for_its_day_is_no_time_to_train(home):
    records.write(night(hours=4), records.RUN)
    assert cli.main(["plan"]) == 0
    assert records.read(Plan, records.RUN).rental.machine == "local"
    batch = Batch(day=DATASET.last_day, num_rows=1, num_bytes=1, digest="", late_days=(), waited_hours=1.5)
    records.write(batch, records.RUN)
    assert cli.main(["plan"]) == 0
    assert records.read(Plan, records.RUN).rental.machine == "g2-standard-4"


def test_what_helps_after_a_wait_counts_from_the_opening(home, caplog):
    waited_hours = 9.0
    batch = Batch(
        day=DATASET.last_day, num_rows=1, num_bytes=1, digest="", late_days=(), waited_hours=waited_hours
    )
    records.write(batch, records.RUN)
    records.write(night(hours=9.1), records.RUN)
    assert cli.main(["plan"]) == 78
    assert "no time to train; raise night.train_hours by more than 0.374, or let it wait less" in caplog.text
    of_decision = replace(night(hours=20), decide_until=STARTED + timedelta(hours=9.2))
    records.write(of_decision, records.RUN)
    assert cli.main(["plan"]) == 78
    assert re.search(
        r"no time to train; raise night.decide_hours by more than 0\.\d+, or let it wait", caplog.text
    )
    records.write(night(hours=9.6), records.RUN)
    assert cli.main(["plan"]) == 78
    (hours,) = re.findall(r"the least that helps: night.train_hours ([\d.]+)", caplog.text)
    assert float(hours) > waited_hours
    for change, planned in ((-0.1, False), (0.0, True)):
        records.write(night(hours=float(hours) + change), records.RUN)
        assert (cli.main(["plan"]) == 0) == planned


def test_after_a_wait_the_stages_before_training_have_as_long_as_without(home):
    records.write(night(hours=20), records.RUN)  # an hour of which is kept for them
    for waited_hours, has_time in ((17.0, True), (17.9, False)):
        came = Batch(
            day=DATASET.last_day, num_rows=1, num_bytes=1, digest="", late_days=(), waited_hours=waited_hours
        )
        records.write(came, records.RUN)
        assert (cli.main(["plan"]) == 0) == has_time
