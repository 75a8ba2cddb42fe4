"""Before a night runs, the machines that params.yaml names are looked up."""

import os
import subprocess
from dataclasses import replace
from datetime import date

import pyarrow as pa
import pytest

from daybreak import check, hooks
from daybreak.check import Finding, findings
from daybreak.contract import environment, params, records
from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import LiveSections, Plug
from daybreak.contract.table import Category, Float
from daybreak.data.features import Past
from daybreak.examples.fraud.fraud import Fraud
from daybreak.extensions.live_test import readiness
from daybreak.extensions.live_test.settings import HoldbackParams, LiveTestParams
from daybreak.storage.home import Home
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import open_log
from daybreak.workloads.calibrators import TemperatureScaling
from daybreak.workloads.metrics import AUC
from tests.fakes import Nothing
from tests.rollout.ledgers import close, make_home, release_of

PARAMS = """\
source: tests.fakes:TwoDays
workload: tests.fakes:Nothing
backend: tests.fakes:ScriptedBackend
plan: {{machines: [{machines}], regions: [us-central1]}}
"""


def machines(home, monkeypatch, named: str) -> Finding:
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    (home / "params.yaml").write_text(PARAMS.format(machines=named))
    return next(finding for finding in findings(Home.here()) if finding.what == "machines")


@pytest.mark.parametrize("variable", ["", "HTTP_PROXY", "https_proxy"])
def test_a_proxy_is_named_with_what_is_asked_without_it(tmp_path, monkeypatch, variable):
    for name in (*environment.PROXIES, *(name.upper() for name in environment.PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    (tmp_path / "params.yaml").write_text(PARAMS.format(machines="local"))
    monkeypatch.setenv("no_proxy", "localhost,a.example")
    if variable:
        monkeypatch.setenv(variable, "http://user:secret@proxy.example:3128")
    found = [finding for finding in findings(Home.here()) if finding.what == "proxy"]
    text = f"{variable} is set; localhost,a.example is asked without it"
    assert found == [Finding(what="proxy", ok=True, text=text)] * bool(variable)


def test_an_edit_that_is_not_committed_is_named_before_a_night_runs_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    (tmp_path / "params.yaml").write_text(PARAMS.format(machines="local"))
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    finding = next(finding for finding in findings(Home.here()) if finding.what == "checkout")
    assert finding.ok
    assert finding.text.endswith(
        "; 1 uncommitted file is not part of a night: params.yaml; commit, or run daybreak night --here"
    )


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("local", "local"),
        ("local, g2-standard-4", "local, g2-standard-4; prices of 2026-07-30 to 2026-07-30, "),
        ("a2-highgpu-1g", "a2-highgpu-1g; prices of 2026-07-30 to 2026-08-02, daybreak"),
        ("n2-*", "n2-standard-4, n2-standard-8, n2-standard-16, n2-standard-32, n2-standard-48 and 4 more; "),
    ],
)
def test_machines_are_told_with_the_days_of_their_prices(tmp_path, monkeypatch, named, text):
    finding = machines(tmp_path, monkeypatch, named)
    assert finding.ok
    assert finding.text.startswith(text)


def test_a_machine_that_nobody_knows_is_found_before_the_night(tmp_path, monkeypatch):
    finding = machines(tmp_path, monkeypatch, "g2-standrd-4")
    assert not finding.ok
    assert "plan.machines names g2-standrd-4, which the catalog does not have; nearest are" in finding.text


def test_machines_that_cannot_be_rented_here_are_found_before_the_night(tmp_path, monkeypatch):
    finding = machines(tmp_path, monkeypatch, "a4-highgpu-8g")
    assert not finding.ok
    assert "plan.machines names a4-highgpu-8g, for which there is no price in us-central1" in finding.text
    local = PARAMS.replace("backend: tests.fakes:ScriptedBackend", "backend: daybreak:Local")
    monkeypatch.setattr("tests.test_check.PARAMS", local)
    finding = machines(tmp_path, monkeypatch, "g2-standard-4")
    assert not finding.ok
    assert "and the backend has none of them; add one that it has (local) to plan.machines" in finding.text


def test_a_backend_that_does_not_say_what_it_has_is_found_before_the_night(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    older = PARAMS.replace("ScriptedBackend", "Nothing").format(machines="local")
    (tmp_path / "params.yaml").write_text(older)
    made, lacking = (finding for finding in findings(Home.here()) if finding.what == "backend")
    assert (made.ok, lacking.ok) == (True, False)
    assert "tests.fakes:Nothing lacks submit, state, cancel, machines, logs, usd, " in lacking.text


@pytest.mark.parametrize(
    ("settings", "key", "extension"),
    [
        ("plan: {objective: quality}", "plan.objective", "exploration"),
        ("plan: {explore_usd: 5}", "plan.explore_usd", "exploration"),
        ("plan: {spot: true}", "plan.spot", "spot"),
        ("gate: {scores: live}", "gate.scores", "live_test"),
        ("train: {follow_memory: band_limited}", "train.follow_memory", "memory_limits"),
        ("train: {band_rate: 0.5}", "train.band_rate", "band_limits"),
        ("train: {sync: auto}", "train.sync", "averaging"),
        ("train: {threads: auto}", "train.threads", "threads"),
    ],
)
def test_a_key_that_only_an_absent_extension_reads_is_found(tmp_path, monkeypatch, settings, key, extension):
    head, _, _ = PARAMS.partition("plan:")
    loaded = params.loads(head + settings, source="params.yaml")
    assert [*hooks.unread_keys(loaded)] == []
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    loaded = params.loads(head + settings, source="params.yaml")
    found = dict(reversed([*hooks.unread_keys(loaded)]))
    assert set(found) == {key}
    assert f" needs the extension {extension}, which is not in this installation; remove the " in found[key]
    assert [*hooks.unread_keys(params.loads(head, source="params.yaml"))] == []


@pytest.mark.parametrize(
    ("settings", "key", "extension"),
    [
        ("live_test: {ramp_users: 7}", "live_test", "live_test"),
        ("watch: {holdback: 0.1}", "watch.holdback", "live_test"),
        ("serving: {port: 8001}", "serving.port", "router"),
        ("notify: {openlineage: shop}", "notify.openlineage", "lineage"),
    ],
)
def test_a_key_that_an_absent_extension_brings_is_refused(tmp_path, monkeypatch, settings, key, extension):
    text = PARAMS.partition("plan:")[0] + settings
    params.loads(text, source="params.yaml")
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    with pytest.raises(ParamsError) as refused:
        params.loads(text, source="params.yaml")
    assert f"params.yaml: {key} needs the extension {extension}, which is not in this " in str(refused.value)


def test_what_an_extension_brings_is_checked_with_the_rest_and_read_by_its_model():
    text = (
        PARAMS.partition("plan:")[0]
        + "watch: {alias_edits: adopt, holdback: 0.1}\nlive_test: {ramp_users: 7}"
    )
    loaded = params.loads(text, source="params.yaml")
    assert loaded.watch.alias_edits == "adopt"
    assert loaded.section(HoldbackParams).holdback == 0.1
    assert loaded.only(LiveSections).section(LiveTestParams).ramp_users == 7
    for wrong, key in (("ramp_users: 7", "ramp_users: 0"), ("holdback: 0.1", "holdback: 1")):
        with pytest.raises(ParamsError, match=rf"(live_test|watch)\.{key.partition(':')[0]} is "):
            params.loads(text.replace(wrong, key), source="params.yaml")
    with pytest.raises(
        ParamsError, match=r"live_test\.ramp_user is not a key, but live_test\.ramp_users is; fix it"
    ):
        params.loads(text.replace("ramp_users", "ramp_user"), source="params.yaml")


def test_check_says_which_keys_need_an_absent_extension(tmp_path, monkeypatch):
    (tmp_path / "params.yaml").write_text(PARAMS.partition("plan:")[0] + "plan: {explore_usd: 5}")
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    finding = next(finding for finding in findings(Home(tmp_path)) if finding.what == "plan.explore_usd")
    assert not finding.ok
    assert finding.text.startswith("plan.explore_usd: 5.0 needs the extension exploration, which is not")


def test_an_argument_that_the_workload_does_not_know_is_found_before_the_night_that_tries_it(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    text = PARAMS.format(machines="local").replace(
        "plan: {", "search: {space: {workload.widht: [1, 2]}}\nplan: {"
    )
    (tmp_path / "params.yaml").write_text(text)
    misspelt = next(
        finding for finding in findings(Home.here()) if finding.what == "search.space.workload.widht"
    )
    assert not misspelt.ok
    assert "tests.fakes:Nothing refuses its arguments" in misspelt.text


def test_users_who_are_to_judge_need_a_router(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.delenv("DAYBREAK_LOG", raising=False)
    text = PARAMS.format(machines="local")

    def router() -> Finding:
        return next(
            finding for finding in findings(Home.here()) if finding.what in ("router", "expectations")
        )

    (tmp_path / "params.yaml").write_text(text)
    assert router().what == "expectations"
    (tmp_path / "params.yaml").write_text(f"{text}gate: {{scores: live}}\n")
    assert (router().what, router().ok) == ("router", False)
    assert "daybreak serve" in router().text
    (tmp_path / "var").mkdir()
    log = open_log(f"sqlite:///{tmp_path / 'var' / 'serving.db'}")
    log.servers.beat(RouterState(id="here:1", champion=1))
    assert (router().ok, router().text) == (True, "1 lives: here:1")


def test_a_team_that_serves_by_itself_needs_no_router_but_what_its_users_met(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    monkeypatch.delenv("DAYBREAK_LOG", raising=False)
    own = "metric: {name: m, low: 0, high: 1, margin: 0.1}, observations: {use: 'daybreak:Files'"
    own = f"gate: {{scores: live}}\nlive_test: {{{own}, url: '{tmp_path}/{{day}}.jsonl'}}}}\n"
    (tmp_path / "params.yaml").write_text(PARAMS.format(machines="local") + own)

    def observations() -> Finding:
        [finding] = check._users(Home(tmp_path), params.load(tmp_path))
        return finding

    assert (observations().what, observations().ok) == ("observations", False)
    assert "matches no file" in observations().text
    for day in ("2026-11-22", "2026-11-23"):
        (tmp_path / f"{day}.jsonl").write_text("{}\n")
    assert (observations().ok, observations().text) == (True, "rows of 2 days, the newest of 2026-11-23")


def test_an_endpoint_whose_users_are_to_judge_needs_a_log_and_whole_percent(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    text = PARAMS.format(machines="local")
    text += "serving: {endpoint: {use: 'daybreak:Endpoint'"
    text += ", project: p, image: i, bucket: b"

    def router(more: str, live_test: str) -> Finding:
        judged = f"gate: {{scores: live}}\nlive_test: {{{live_test}}}\n"
        (tmp_path / "params.yaml").write_text(f"{text}{more}}}}}\n{judged}")
        [finding] = check._users(Home(tmp_path), params.load(tmp_path))
        return finding

    assert "set serving.endpoint.log, or run daybreak serve" in router("", "").text
    assert router(", log: l", "").ok
    odd = router(", log: l", "ramp: [0.015, 0.5]")
    assert (odd.ok, odd.text.split(";")[0]) == (False, "the endpoint gives whole percent, not 0.015")


class Ranked(Fraud):
    """Judged by the order of all rows alone."""

    metrics = (AUC(role="success"),)


def test_users_cannot_judge_a_metric_of_a_set(monkeypatch, tmp_path):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))

    def live_score(use: str) -> list[tuple[str, bool, str]]:
        return list(readiness.live_score(Plug(use=use)))

    [(_, ok, text)] = live_score("tests.test_check:Ranked")
    assert not ok
    assert "has no value of a single sample; add a metric that has, such as LogLoss()" in text
    assert live_score("daybreak.examples.fraud.fraud:Fraud") == []
    assert live_score("tests.fakes:LineWorkload") == []


@pytest.mark.slow
def test_the_machine_that_a_plan_would_take_is_tried(repository, capfd):
    local = PARAMS.replace("backend: tests.fakes:ScriptedBackend", "backend: daybreak:Local")
    (repository / "params.yaml").write_text(local.format(machines="local"))
    before = repository / "var" / "trials" / "before"
    before.mkdir(parents=True)
    os.utime(before, (0, 0))
    asked, device, speed, cost = check.rented(Home.here(), params.load(repository))
    assert asked.text == "asking for local; Ctrl-C ends it"
    assert device.text.startswith("local has ")
    assert "FLOP/s" in speed.text
    assert cost.text.startswith("$0.00 for ")
    assert all(one.ok for one in (asked, device, speed, cost))
    assert len(list(before.parent.iterdir())) == 1 and not before.exists()


def test_mlflow_s_database_may_be_missing_before_the_first_night_alone(repository):
    (repository / "var" / "mlflow.db").unlink()
    assert check._registry(Home.here(), Home.here().params) == Finding(
        what="mlflow", ok=True, text="no database yet; the first night creates it"
    )
    subprocess.run(["git", "update-ref", "refs/heads/nights", "HEAD"], cwd=repository, check=True)
    finding = check._registry(Home.here(), Home.here().params)
    assert not finding.ok
    assert "the database of MLflow, is missing; bring it back from a backup" in finding.text


@pytest.mark.parametrize(
    ("to", "ok", "text"),
    [
        ("gs://bucket/{day}", True, "gs://bucket/{day}"),
        ("gs://bucket/{day:%Y/%m/%d}", True, "gs://bucket/{day:%Y/%m/%d}"),
        ("gs://bucket/{day:%Y/%m}", False, "gs://bucket/{day:%Y/%m} has {day:%Y/%m}, which is no day; write"),
        ("gs://bucket/{hour}", False, "gs://bucket/{hour} has {hour}, which is no day; write {day}"),
        ("abfs://box/day", False, "predict.to abfs://box/day cannot be used: Install adlfs"),
        ("$NOT_SET_HERE", False, "$NOT_SET_HERE names no place while $NOT_SET_HERE is not set"),
        ("postgres://me:secret@host/shop", False, "predict.to cannot be used: Can't load plugin"),
    ],
)
def test_a_place_that_predictions_cannot_be_written_to_is_found_before_the_night(
    tmp_path, monkeypatch, to, ok, text
):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    (tmp_path / "params.yaml").write_text(f"{PARAMS.format(machines='local')}predict: {{to: '{to}'}}\n")
    finding = next(finding for finding in findings(Home.here()) if finding.what == "predict.to")
    assert finding.ok == ok
    assert finding.text.startswith(text)
    assert "secret" not in finding.text


def predicts(monkeypatch, home, workload, *keys: str) -> list[Finding]:
    """The findings on what a class predicts, in a home whose predictions are written."""
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    text = PARAMS.format(machines="local").replace("tests.fakes:Nothing", workload)
    (home / "params.yaml").write_text(f"{text}predict: {{{', '.join(('to: out', *keys))}}}\n")
    return [finding for finding in findings(Home.here()) if finding.what == "predict"]


def test_a_class_that_predicts_nothing_is_found_before_a_version_of_it_serves(tmp_path, monkeypatch):
    (found,) = predicts(monkeypatch, tmp_path, "tests.fakes:Nothing")
    assert not found.ok
    assert found.text.startswith("Nothing predicts neither rows nor lists, and the stage predict would fail")
    assert predicts(monkeypatch, tmp_path, "daybreak.examples.shop.recommender:Recommender") == []
    assert predicts(monkeypatch, tmp_path, "daybreak.examples.fraud.fraud:Fraud") == []


@pytest.mark.slow
def test_a_table_without_what_the_version_that_serves_reads_is_found_before_the_night(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    home = make_home(tmp_path / "home", monkeypatch)
    more = {"terminal": Category(), "more": Float(nullable=True)}
    records.write(replace(Fraud.table, columns=Fraud.table.columns | more), records.RUN)
    close(1, after="", release=release_of(1))
    (found,) = predicts(monkeypatch, home, "daybreak.examples.fraud.fraud:Fraud")
    assert not found.ok
    assert found.text.startswith("version 1 reads terminal, which the workload's table lacks")
    source = "source: {use: 'tests.fakes:TwoDays'}"
    assert predicts(monkeypatch, home, "daybreak.examples.fraud.fraud:Fraud", source) == []
    for needs_none in ("daybreak.examples.shop.recommender:Recommender", f"{__name__}:Named"):
        assert predicts(monkeypatch, home, needs_none) == []


class Named(Fraud):
    """A class that names the rows to predict, so that the columns of tonight's table do not matter."""

    def score_rows(self, day: date, past: Past) -> pa.Table:
        return past.rows().slice(0, 1)


class Estimating(Nothing):
    def estimator(self, state):
        raise NotImplementedError


def test_a_key_that_an_estimator_does_not_have_is_found_before_the_night(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    text = PARAMS.format(machines="local").replace("tests.fakes:Nothing", "tests.test_check:Estimating")
    (tmp_path / "params.yaml").write_text(text + "train: {cold_every: 1, rate: 0.1}\n")
    finding = next(finding for finding in findings(Home.here()) if finding.what == "estimator")
    assert not finding.ok
    assert finding.text.startswith("train.rate is for networks, and tests.test_check:Estimating is an")


def test_a_function_of_a_trigger_that_is_not_there_is_found_before_the_night(tmp_path, monkeypatch):
    line = "tests.jobs.test_triggers:no_such > 1 for 5 min: step up"
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    named = PARAMS.format(machines="local")
    (tmp_path / "params.yaml").write_text(named.replace("plan: {", f'plan: {{triggers: ["{line}"], '))
    (found,) = [each for each in findings(Home.here()) if each.what == "plan.triggers"]
    assert not found.ok
    assert found.text.startswith("tests.jobs.test_triggers:no_such of plan.triggers cannot be imported: ")


class Calibrated(Nothing):
    """A class that calibrates chances."""

    calibrator = TemperatureScaling()

    def schedule(self, done, model):
        raise AssertionError  # as nobody has a model yet


def test_a_calibrator_without_validation_is_found_before_the_night_and_no_model_is_asked_for(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    text = PARAMS.format(machines="local").replace("tests.fakes:Nothing", "tests.test_check:Calibrated")
    (tmp_path / "params.yaml").write_text(text + "train: {schedule: own}\n")
    by_name = {finding.what: finding for finding in findings(Home.here())}
    assert by_name["calibrator"].text.startswith("Calibrated has a calibrator, which is fitted on samples")
    assert by_name["train.schedule"].text == "by the class, from its model"


class Comparing(Nothing):
    """A class whose loss compares the samples of a batch."""

    whole_batch = True


def test_batches_by_tokens_of_a_loss_over_a_batch_are_found_before_the_night(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    text = PARAMS.format(machines="local").replace("tests.fakes:Nothing", "tests.test_check:Comparing")
    (tmp_path / "params.yaml").write_text(text + "train: {batch_by: tokens}\n")
    (finding,) = (finding for finding in findings(Home.here()) if finding.what == "batches")
    assert finding.text.startswith("the loss of Comparing is over a batch")
