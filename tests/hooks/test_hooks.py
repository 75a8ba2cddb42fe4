"""The core asks each hook as it should: a fake extension stands in for those of the project."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from daybreak import check, cli, commands, extensions, hooks, runner
from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Tuning
from daybreak.contract.record_types import Night, Plan
from daybreak.contract.sections import PlanParams, PlanSections, PrepareParams
from daybreak.evaluation.live_judge import LiveJudge, judge_of
from daybreak.jobs import reaper
from daybreak.jobs.escalation import forced
from daybreak.planning import plan_stage
from daybreak.prediction import ledger_history
from daybreak.profiling.harness import Harness
from daybreak.report import publisher
from daybreak.rollout.targets import release_targets
from daybreak.storage import homes, ledger
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import open_log
from daybreak.storage.traffic_row import Traffic
from daybreak.training import engine, micro_batch, tuning, worker
from tests.conftest import PARAMS
from tests.fakes import ScriptedBackend
from tests.jobs.test_escalation import observed, plans
from tests.jobs.test_escalation import planned as planned_as
from tests.planning.jobs import DATASET, night, profile
from tests.planning.test_planner import planned
from tests.profiling.test_profiler import Job
from tests.training.recipes import recipe

FOLDER = Path(__file__).parent / "extensions"
Hooked = Callable[..., None]


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hooked]:
    """Makes the fake the only extension, with the given hooks."""

    def hook(**given: str) -> None:
        monkeypatch.setattr(hooks, "FOLDER", FOLDER)
        monkeypatch.setattr(hooks, "EXTENSIONS", {"fake": hooks.Extension(**given)})

    monkeypatch.setattr(extensions, "__path__", [*extensions.__path__, str(FOLDER)])
    yield hook


def fake(path: str) -> Any:
    """What the fake has at a path."""
    return hooks.imported(f"daybreak.extensions.fake.{path}")


def test_each_hook_has_a_test_with_the_fake() -> None:
    text = Path(__file__).read_text()
    names = {field.name for field in fields(hooks.Extension)} - {"keys"}
    assert {name for name in names if f"hooked({name}=" not in text and f", {name}=" not in text} == set()


def test_a_command_of_an_extension_is_one_of_the_command_line(
    hooked: Hooked, capsys: pytest.CaptureFixture[str]
) -> None:
    hooked(commands="commands")
    assert cli.main(["greet", "--name", "Ada"]) == 0
    assert capsys.readouterr().out == "good morning, Ada\n"


def test_a_section_and_a_key_of_an_extension_are_read_by_their_models(hooked: Hooked) -> None:
    hooked(sections="fake=settings:FakeParams watch=settings:FakeWatchParams")
    loaded = params.loads(f"{PARAMS}fake: {{size: 3}}\nwatch: {{patience_s: 5}}", source="params.yaml")
    assert loaded.section(fake("settings:FakeParams")).size == 3
    assert loaded.section(fake("settings:FakeWatchParams")).patience_s == 5
    assert params.loads(PARAMS, source="params.yaml").section(fake("settings:FakeParams")).size == 1
    with pytest.raises(ParamsError, match=r"fake\.size is 'three', but "):
        params.loads(f"{PARAMS}fake: {{size: three}}", source="params.yaml")


def test_a_job_is_trained_by_the_engine_that_an_extension_has_for_it(hooked: Hooked) -> None:
    hooked(engine="jobs:engine")
    assert worker._engine_class(recipe(threads="auto"), lambda: None) is fake("jobs:Engine")
    assert worker._engine_class(recipe(), lambda: None) is engine.TorchEngine


@pytest.fixture
def _leaves_no_process_group() -> Iterator[None]:
    """A process that profiled keeps its simulated group, which the next test here would find."""
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_leaves_no_process_group")
def test_what_divides_weights_returns_the_loss_that_a_profile_measures(hooked: Hooked) -> None:
    def loss(*, is_sharded: bool) -> torch.Tensor:
        torch.manual_seed(0)
        harness = Harness(Job(hidden=4), Path(), seed=0)
        harness.build(Tuning(sharded_weights=is_sharded, sharded=is_sharded), num_workers=2)
        return harness._loss(harness.load(4))

    hooked(shard="jobs:whole")
    torch.testing.assert_close(loss(is_sharded=True), 2 * loss(is_sharded=False))


def test_a_better_candidate_of_an_extension_is_planned(hooked: Hooked) -> None:
    hooked()
    own = planned()
    hooked(candidates="jobs:half_as_long")
    assert planned().forecast.expected_s == pytest.approx(own.forecast.expected_s / 2)


def test_tonights_way_is_the_one_that_an_extension_chooses_and_its_dollars_are_recorded(
    hooked: Hooked,
) -> None:
    hooked()
    own = planned(params=PlanParams(machines=("local", "*-*"), explore_usd=5))
    hooked(choice="jobs:second_best")
    made = planned(params=PlanParams(machines=("local", "*-*"), explore_usd=5))
    assert (made.rental != own.rental, made.explore_usd) == (True, fake("jobs:MORE_USD"))
    assert planned().explore_usd == 0  # nothing may be spent


def test_a_night_is_as_long_as_an_extension_makes_it(hooked: Hooked) -> None:
    hooked()
    own = planned()
    hooked(length="jobs:twice_as_long")
    assert planned().num_samples == 2 * own.num_samples


def test_a_plan_on_spot_has_the_checkpoints_that_an_extension_gives_it(hooked: Hooked) -> None:
    hooked(on_spot="jobs:with_checkpoints", steering="jobs:Waiting")
    made = planned_as(strategy="spot", machines="abc")
    assert (made.rental.is_spot, made.checkpoint_every_s) == (True, fake("jobs:CHECKPOINT_S"))
    assert planned_as(strategy="on-demand", machines="abc").checkpoint_every_s != made.checkpoint_every_s


def test_spot_is_waited_for_where_what_steers_the_job_says_so(hooked: Hooked) -> None:
    hooked(steering="jobs:Waiting")
    waiting = observed(planned_as(strategy="spot", machines="abc"))
    assert forced(waiting).placement is None
    assert forced(observed(planned_as(strategy="on-demand", machines="abc"))).placement


def test_how_often_spot_is_lost_is_learned_from_the_last_nights(hooked: Hooked) -> None:
    hooked(hazard="jobs:losses")
    learned: Any = ledger_history.calibration_of([], machines=plans.rented(), num_workers=1).hazard
    assert learned == "of 0 nights"


def test_a_home_that_shares_machines_plans_with_the_share_that_an_extension_gives_it(
    hooked: Hooked, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked(share="jobs:on_first_machine")
    (repository / "fleet.yaml").write_text("homes: []\nmachines: {g2-standard-4: 1}\n")
    homes.join(repository)
    home, given = Home(repository), params.loads(PARAMS, source="params.yaml")

    def plan() -> Plan:
        backend = ScriptedBackend()
        return plan_stage.plan(
            home, night(), DATASET, profile(), None, backend=backend, params=given.only(PlanSections)
        )

    assert plan().rental.machine == ScriptedBackend().machines()[0].name
    monkeypatch.setattr(hooks, "EXTENSIONS", {})
    with pytest.raises(ParamsError, match="no extension here divides them"):
        plan()


def test_a_night_trains_what_an_extension_proposes_and_a_person_has_the_last_word(
    hooked: Hooked, repository: Path
) -> None:
    hooked(proposal="jobs:one_day_more")
    opened = runner.run(Home(repository), "open", day=date(2025, 1, 2), set=["prepare.window_days=3"])
    assert isinstance(opened, Night)
    assert params.load(Path()).prepare.window_days == 3
    shutil.rmtree(repository / "nights")
    os.chdir(repository)
    runner.run(Home(repository), "open", day=date(2025, 1, 2))
    assert params.load(Path()).prepare.window_days == PrepareParams().window_days + 1


def test_an_extension_uses_the_time_that_a_night_left_but_for_nights_in_a_row(
    hooked: Hooked, tmp_path: Path
) -> None:
    hooked(leftover="jobs:note")
    for trigger in ("schedule", "nights 2025-01-01 to 2025-01-09"):
        runner.use_leftover(Home(tmp_path), trigger=trigger)
    assert (tmp_path / "ended").read_text() == "in time\n"


def test_a_model_is_band_limited_as_an_extension_does_it(hooked: Hooked) -> None:
    hooked(band_limit="jobs:scaled", limitable="jobs:linear_layers")
    assert tuning.limitable(nn.Linear(1, 1))
    assert not tuning.limitable(nn.ReLU())
    limited = tuning.band_limit(nn.Identity(), 0.25)
    assert limited(torch.tensor([0.1, 3.0])).tolist() == pytest.approx([0.1, 0.25])


def test_the_limit_of_memory_is_followed_by_what_an_extension_makes(hooked: Hooked) -> None:
    hooked(guard="jobs:guard")
    made = micro_batch.new_guard(
        nn.Linear(1, 1), device=torch.device("cpu"), tuning=Tuning(), follow_memory="band_limited"
    )
    assert made == fake("jobs:Guard")(band_limits=True)


def test_jobs_that_an_extension_looks_after_are_no_orphans(hooked: Hooked, repository: Path) -> None:
    hooked(jobs="jobs:owners")
    assert not reaper.standings(Home(repository))["fake-of-home"].is_over


def test_users_are_asked_by_the_judge_of_an_extension(hooked: Hooked, tmp_path: Path) -> None:
    hooked(judge="releases:Users")
    text = f"{PARAMS}gate: {{scores: live}}\n"
    (tmp_path / "params.yaml").write_text(text)

    def gate(judge: LiveJudge | None) -> None: ...

    asked = runner.arguments(Home(tmp_path), gate, tmp_path)["judge"]
    assert type(asked) is fake("releases:Users")
    [finding] = check._users(Home(tmp_path), params.loads(text, source="params.yaml"))
    assert (finding.what, finding.ok) == ("users", False)
    assert judge_of("replay") is None


def test_check_says_what_an_extension_finds(hooked: Hooked, tmp_path: Path) -> None:
    hooked(checks="releases:checks")
    loaded = params.loads(f"{PARAMS}register: {{name: m}}\n", source="params.yaml")
    [finding] = check._extensions(Home(tmp_path), loaded)
    assert (finding.what, finding.ok, finding.text) == ("register.name", False, "m is too short")


def test_a_release_is_shown_by_the_target_of_an_extension_once_there_is_a_log(
    hooked: Hooked, repository: Path
) -> None:
    hooked(target="releases:Sign")
    nobody: Any = None  # asks MLflow nothing
    assert [each.name for each in release_targets(Home(repository), nobody, "m")][1:] == []
    log = open_log(f"sqlite:///{repository / 'var' / 'serving.db'}")
    log.traffic.set(Traffic(champion=3))
    [_, sign] = release_targets(Home(repository), nobody, "m")
    assert (sign.name, sign.shown()) == ("sign", 3)


def test_a_night_in_the_ledger_is_shown_by_an_extension(hooked: Hooked, repository: Path) -> None:
    hooked(after_commit="releases:note")
    home = Home(repository)
    opened = runner.run(home, "open", day=date(2025, 1, 2))
    assert isinstance(opened, Night)
    publisher.publish_closed(home)
    assert not (home.var / fake("releases:NOTES")).exists()  # it is in no ledger yet
    commit = ledger.commit_night(home, opened, message="stopped")
    publisher.publish_closed(home)
    assert (home.var / fake("releases:NOTES")).read_text().split() == [commit]


def test_an_extension_tells_others_what_serves_at_each_look_at_the_ledger(
    hooked: Hooked, repository: Path
) -> None:
    hooked(downstream="releases:told")
    home = Home(repository)
    for _ in range(2):
        publisher.publish_ledger(home)
    assert (home.var / fake("releases:NOTES")).read_text().split() == ["told", "told"]


def test_an_extension_writes_what_stands_now_after_each_watch_and_night(
    hooked: Hooked, repository: Path
) -> None:
    hooked(now="releases:now")
    home = Home(repository)
    publisher.publish_home(home)
    runner.run(home, "open", day=date(2025, 1, 2))
    publisher.publish_failure(home, "train")  # for good, also where `close` never comes
    publisher.publish_closed(home)
    assert (home.var / fake("releases:NOTES")).read_text().split() == ["now", "now", "now"]


def test_the_watch_sends_the_digest_of_an_extension_once_a_day(hooked: Hooked, repository: Path) -> None:
    hooked(digest="releases:digest")
    home = Home(repository)
    heard = home.folder / "heard"
    (repository / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'cat >> {heard}'}}\n")
    for _ in range(2):
        publisher.publish_home(home)
    assert heard.read_text() == "two models\nare well"


def test_report_writes_the_board_of_an_extension(hooked: Hooked, tmp_path: Path) -> None:
    hooked(board="releases:board")
    [page] = commands._boards(Home(tmp_path), all=True)
    assert page.read_text() == "all: True"


def test_an_extension_without_its_folder_has_no_hooks(
    hooked: Hooked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooked(board="releases:board")
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    assert commands._boards(Home(tmp_path), all=True) == []
