"""What the release before wrote is read as what it is called now."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from pipeline import cli
from pipeline.backends.submission_journal import SubmissionJournal
from pipeline.contract import older, params, records
from pipeline.contract.errors import DataError
from pipeline.contract.records import Champion, Option, Plan, Profile, Release, Rental, Rung, Verdict
from pipeline.jobs.submissions import Attempts
from pipeline.report import evidence
from pipeline.rollout import audit
from pipeline.storage import checkout
from pipeline.storage.source_code import source_digest
from tests.report.nights import whole

# As the release before wrote it, less what a record may leave out.
RUNG = """
{"machine": "g2-standard-8", "num_machines": 2, "spot": false, "expected_s": 3600.0, "expected_usd": 1.7,
"latest_start": "2026-11-21T21:00:00Z", "region": "us-central1", "wait_s": 0.0, "usd_per_hour": 0.85}
"""
OPTION = """
{"machine": "g2-standard-8", "num_machines": 2, "region": "us-central1", "strategy": "spot",
"batch_size": 256, "expected_s": 3600.0, "interval": [3000.0, 4200.0], "expected_usd": 0.6,
"chance": 0.99, "feasible": true, "frontier": true, "why_not": ""}
"""
PLAN = f"""
{{"machine": "g2-standard-8", "num_machines": 2, "spot": true, "batch_size": 256, "micro_batch_size": 128,
"num_samples": 1000, "checkpoint_every_s": 60.0, "expected_s": 3600.0, "expected_usd": 0.6,
"interval": [3000.0, 4200.0], "ladder": [{RUNG}], "runner_up": "g2-standard-4: $0.70 rather than $0.60",
"tuning": {{"num_loaders": 0, "in_memory": false, "pinned": false, "precision": "float32", "compiled": false,
"fused": false, "channels_last": false, "recompute": false, "sharded": false, "sharded_weights": false}},
"region": "us-central1", "wait_s": 0.0, "chance": 0.99, "usd_per_hour": 0.3, "price_source": "",
"price_dated": null, "options": [{OPTION}], "portions": [], "basis": "", "risk": "", "widened": 1.0,
"after": [], "checkpoints_s": [], "mean_time_to_loss_s": null, "worst_usd": null, "sizes": [],
"explore_usd": 0.0}}
"""
SUBMISSIONS = f"""\
{{"time": 1.0, "event": "ask", "name": "j", "rung": {" ".join(RUNG.split())}}}
{{"time": 2.0, "event": "submit", "handle": "h"}}
{{"time": 3.0, "event": "leave", "why": "rung", "to": {" ".join(RUNG.split())}, "taken": null}}
"""
ORDERS = """
[{"attempt": "a1", "job": "j", "machine": "g2-standard-8", "num_machines": 2, "region": "us-central1",
"strategy": "flex-start", "asked_at": "2026-11-21T03:00:00+00:00", "wait_s": 600.0,
"resource": "projects/1/locations/us-central1/customJobs/7", "state": "running", "started_at": "",
"ended_at": "", "reason": ""}]
"""
SPOT = Rental(machine="g2-standard-8", num_machines=2, region="us-central1", strategy="spot")
OLD = """\
# comments stay
source: {use: "pipeline.intake.shop:Shop", seed: 7}
workload: pipeline.workloads.regression:Regression  # the smallest
backend: pipeline.backends.vertex:Vertex
serving: {endpoint: {use: pipeline.release.endpoint:Endpoint, bucket: gs://b}}
"""
# As 02042c7 wrote them.
RELEASE = """{
  "champion": 4,
  "replaced": 3,
  "model_digest": "ab12.dir",
  "night": "2011-09-30",
  "lineage": {
    "recipe": "ef"
  }
}
"""
CHAMPION = """{
  "champion": 4,
  "replaced": 3,
  "model_digest": "ab12.dir",
  "night": "2011-09-30",
  "lineage": {}
}
"""
NO_EVIDENCE = """{
  "action": "no data",
  "champion": 3,
  "challenger": 0,
  "effect": null,
  "low": null,
  "high": null,
  "num_samples": 0,
  "reason": "train failed: JobError: no machine",
  "decided_at": null,
  "inconclusive": false,
  "checks": [],
  "approve_until": null,
  "live": null
}
"""
NOTE = (
    "2025-01-11 07:30 UTC: alias champion was moved by hand to version 1, "
    "moved back to version 2: version 1 was never promoted; choose one of: 2"
)


def test_the_stage_that_failed_is_read_from_the_reason_that_it_began() -> None:
    assert records.loads(Verdict, NO_EVIDENCE).failed == "train"
    judged = NO_EVIDENCE.replace("train failed: JobError: no machine", "18 samples")
    assert records.loads(Verdict, judged).failed == ""
    today = replace(records.loads(Verdict, judged), reason="train failed: a plan of no night")
    assert records.loads(Verdict, records.dumps(today)).failed == ""  # today's form says it by its key


def test_what_trying_remedies_measured_is_found_in_a_profile_of_the_release_before() -> None:
    profile = whole().profile
    assert profile and profile.evidence["tuned"]
    assert evidence.bottleneck(profile).gained
    before = records.dumps(profile).replace('"tuned":', '"mended":')
    assert records.loads(Profile, before) == profile


def test_a_note_that_was_a_sentence_names_its_versions() -> None:
    values = older.note(NOTE)
    assert (values["at"], values["versions"]) == ("2025-01-11 07:30 UTC", [1, 2, 1])
    assert f"{values['at']}: {values['text']}" == NOTE


def test_who_served_is_read_from_the_key_that_it_had() -> None:
    known = {"version": 4, "replaced": 3, "model_digest": "ab12.dir", "night": "2011-09-30"}
    assert records.loads(Release, RELEASE) == Release(**known, lineage={"recipe": "ef"})
    assert records.loads(Champion, CHAMPION) == Champion(**known)


def test_a_record_in_todays_form_is_left_alone() -> None:
    release = Release(version=4, replaced=3)
    assert records.loads(Release, records.dumps(release)) == release
    values = {"champion": 3, "challenger": 4}
    assert older.record("Approval", values) == values  # here the key means what it says


def test_two_keys_for_one_thing_are_refused() -> None:
    with pytest.raises(records.DataError, match="champion"):
        records.loads(Release, RELEASE.replace("{", '{"version": 5,', 1))


def test_the_audit_reads_releases_of_the_release_before() -> None:
    assert audit.decoded({"data/run/release.json": RELEASE})["release"]["version"] == 4


def test_a_class_that_moved_is_found_where_it_is_now() -> None:
    values = {"source": "pipeline.intake.shop:Shop", "workload": "pipeline.workloads.regression:Regression",
              "backend": "pipeline.backends.local:Local"}  # fmt: skip
    checked = params.check(values)
    assert checked.workload.use == "pipeline.examples.shop.regression:Regression"
    for plug in (checked.source, checked.workload, checked.backend):
        plug.make()


@pytest.mark.parametrize("path", older.MOVED.values())
def test_what_moved_is_there(path: str) -> None:
    params.Plug(use=f"{path}:Any").find()


def test_params_are_rewritten_once_and_keep_their_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIPELINE_HOME", str(tmp_path))
    (tmp_path / "params.yaml").write_text(OLD)
    checkout.git("init", "--quiet", folder=tmp_path)  # of which migrate looks at the ledger
    assert cli.main(["migrate"]) == 0
    assert capsys.readouterr().out.count(" is now ") == 4
    text = (tmp_path / "params.yaml").read_text()
    assert text.startswith("# comments stay\n")
    assert "workload: pipeline.examples.shop.regression:Regression  # the smallest\n" in text
    params.load(tmp_path)
    assert cli.main(["migrate"]) == 99
    assert (tmp_path / "params.yaml").read_text() == text


GATE = """\
gate:
  margin: 0.02  # ours
  fit_samples: 20
  ramp: [0.1, 0.5]  # two steps
  max_p99_s: 3
"""


def test_keys_of_the_gate_are_read_where_they_are_now() -> None:
    checked = params.check(YAML(typ="safe").load(f"source: a:B\nworkload: a:B\nbackend: a:B\n{GATE}"))
    assert (checked.gate.margin, checked.smoke_test.samples, checked.smoke_test.max_p99_s) == (0.02, 20, 3)
    assert checked.live_test.ramp == (0.1, 0.5)


def test_keys_of_the_gate_move_to_their_sections() -> None:
    text, changes = older.migrate(GATE)
    assert "margin: 0.02  # ours" in text
    assert YAML(typ="safe").load(text) == {
        "gate": {"margin": 0.02},
        "smoke_test": {"samples": 20, "max_p99_s": 3},
        "live_test": {"ramp": [0.1, 0.5]},
    }
    assert len(changes) == 3
    assert older.migrate(text) == (text, [])


def test_items_to_leave_out_are_an_argument_of_the_shops_workload_now() -> None:
    old = 'workload: pipeline.examples.recommender:Recommender\nprepare: {leave_out_items: ["22222"]}\n'
    text, changes = older.migrate(old)
    assert YAML(typ="safe").load(text) == {
        "workload": {"use": "pipeline.examples.shop.recommender:Recommender", "leave_out_items": ["22222"]},
        "prepare": {},
    }
    assert "prepare.leave_out_items is now workload.leave_out_items" in changes
    read = older.params(YAML(typ="safe").load(old))
    assert read["workload"]["leave_out_items"] == ["22222"]


def test_a_workload_of_the_release_before_had_a_shops_rows() -> None:
    class Before:
        def dataset(self) -> None: ...

    class Today:
        table = "its own"

        def dataset(self) -> None: ...

    read = older.workload(Before())
    assert {"invoice", "customer"} <= set(read.table.columns)
    assert callable(read.arrays)
    assert older.workload(Today()).table == "its own"


def test_a_plan_of_the_release_before_carries_its_rentals() -> None:
    plan = records.loads(Plan, PLAN)
    assert (plan.rental, plan.usd_per_hour) == (SPOT, 0.3)
    assert [rung.rental for rung in plan.ladder] == [SPOT.on_demand]
    assert [option.rental for option in plan.options] == [SPOT]
    assert records.loads(Plan, records.dumps(plan)) == plan
    assert "spot" not in json.loads(records.dumps(plan))


def test_a_wait_meant_flex_start() -> None:
    waiting = PLAN.replace('"spot": true', '"spot": false').replace(
        '"wait_s": 0.0, "ch', '"wait_s": 7200.0, "ch'
    )
    rental = records.loads(Plan, waiting).rental
    assert rental == replace(SPOT, strategy="flex-start", max_wait_s=7200)
    assert records.loads(Rung, RUNG).rental == SPOT.on_demand
    assert records.loads(Option, OPTION).rental == SPOT


def test_what_is_missing_in_an_older_record_is_named() -> None:
    with pytest.raises(DataError, match="is not a valid Rung: rental: field required"):
        records.loads(Rung, RUNG.replace('"machine"', '"engine"'))
    with pytest.raises(DataError, match="is not a valid Plan: the file: invalid json"):
        records.loads(Plan, PLAN[:90])


def test_a_job_that_the_release_before_submitted_is_looked_after(tmp_path: Path) -> None:
    (tmp_path / "submissions.jsonl").write_text(SUBMISSIONS)
    last = Attempts(tmp_path).last
    assert last
    assert (last.handle, last.rung.rental, last.to) == ("h", SPOT.on_demand, last.rung)
    (tmp_path / "orders.json").write_text(ORDERS)
    (order,) = SubmissionJournal(tmp_path).submissions()
    assert order.rental == replace(SPOT, strategy="flex-start", max_wait_s=600)
    assert order.state == "running"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "moving.py"


def test_the_source_of_a_workload_is_the_same_when_only_a_module_moved(module: Path) -> None:
    own = "class Own(Workload):\n    dim = 8\n"
    module.write_text(f"import json\nfrom pipeline.workload import Workload\n\n{own}")
    before = source_digest("moving:Own")
    module.write_text(f"import json\nfrom pipeline.contract.workload import Workload\n\n{own}")
    assert source_digest("moving:Own") == before
    module.write_text(
        f"import json\nfrom pipeline.contract.workload import Workload\n\n{own.replace('8', '9')}"
    )
    assert source_digest("moving:Own") != before
