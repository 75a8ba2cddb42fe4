"""Who has the shared machines this evening, as the homes of a fleet see it one after the other."""

import json
import subprocess
from calendar import monthrange
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from daybreak import cli, hooks
from daybreak.contract import records
from daybreak.contract.errors import NotYet, ParamsError, PlanError
from daybreak.contract.record_types import Action, Night, Plan, Refit, Verdict
from daybreak.extensions.fleets import evening, month
from daybreak.extensions.fleets.sharing import Way
from daybreak.jobs import submissions
from daybreak.jobs.cost_tracker import JOBS
from daybreak.storage import homes
from daybreak.storage.home import Home
from tests.planning.jobs import DATASET, night, profile

PARAMS = """\
source: some.module:Class
workload: some.module:Class
backend: tests.fakes:ScriptedBackend
plan: {machines: [local, g2-standard-4], spot: false, max_machines: 2}
train: {epochs: 1, batch_size: 256}
"""
HOUR = Way(machine="g2-standard-4", num_machines=1, seconds=3600, late_s=4000, usd=2.0)


@pytest.fixture
def lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Homes of models shop and cards, each with an open night in its own folder; shop leads."""
    monkeypatch.delenv("DAYBREAK_HOME", raising=False)
    now = datetime.now(UTC).replace(microsecond=0)
    for name in ("shop", "cards"):
        (tmp_path / name / "var").mkdir(parents=True)
        subprocess.run(["git", "init", "--quiet", str(tmp_path / name)], check=True)  # the home of a ledger
        (tmp_path / name / "params.yaml").write_text(f"{PARAMS}register: {{name: {name}}}\n")
        folder = tmp_path / name / "nights" / "one"
        open_night = replace(
            night(),
            id="one",
            started_at=now,
            train_until=now + timedelta(hours=18),
            decide_until=now + timedelta(hours=20),
        )
        for record in (open_night, DATASET, profile(step_s=1e-2)):
            records.write(record, folder / records.RUN)
        (folder / "params.yaml").write_text((tmp_path / name / "params.yaml").read_text())
    write(tmp_path / "shop", machines="{g2-standard-4: 1}")
    homes.join(tmp_path / "shop")
    return tmp_path / "shop"


def write(lead: Path, **keys: str) -> None:
    text = "".join(f"{key}: {value}\n" for key, value in keys.items())
    (lead / "fleet.yaml").write_text(f"homes: [../cards]\n{text}")


def look(
    home: Path, *ways: Way, later_s: float = 0.0, of: str = "one", refits: bool = False
) -> tuple[str, float]:
    folder = home / "nights" / of
    tonight = records.read(Night, folder / records.RUN)
    now = tonight.started_at.timestamp() + later_s
    share, waited_s = evening.turn(Home(home), tonight, ways, refits=refits, now=now)
    return share.way.machine, waited_s


def test_a_model_waits_until_the_one_that_trains_is_done_even_if_that_is_early(lead: Path) -> None:
    cards = lead.parent / "cards"
    with pytest.raises(NotYet, match="waits for what cards offers"):
        look(lead, HOUR)
    with pytest.raises(NotYet, match="waits about 1 h"):
        look(cards, replace(HOUR, seconds=3601))
    assert look(lead, HOUR, later_s=10) == ("g2-standard-4", 10)
    with pytest.raises(NotYet, match="waits about 50 min"):
        look(cards, HOUR, later_s=610)
    assert look(lead, HOUR, later_s=620) == ("g2-standard-4", 10)  # its call was killed, and is repeated
    (lead / "nights/one" / records.RUN / "training.json").write_text("{}")
    assert look(cards, HOUR, later_s=1200) == ("g2-standard-4", 1200)


def test_a_short_job_that_should_be_done_keeps_its_machine_until_it_is(lead: Path) -> None:
    short = replace(HOUR, seconds=9.0, late_s=20.0)
    cards = lead.parent / "cards"
    with pytest.raises(NotYet, match="waits for what cards offers"):
        look(lead, short)
    with pytest.raises(NotYet):
        look(cards, replace(short, seconds=10.0))
    assert look(lead, short, later_s=10)
    with pytest.raises(NotYet, match="which other models of the fleet have"):
        look(cards, short, later_s=60)


def test_a_night_that_does_not_look_any_more_keeps_nobody_waiting(lead: Path) -> None:
    cards = lead.parent / "cards"
    with pytest.raises(NotYet):
        look(lead, HOUR)
    with pytest.raises(NotYet):
        look(cards, replace(HOUR, seconds=4000))
    assert look(cards, HOUR, later_s=evening.UNSEEN_S + 1)[0] == "g2-standard-4"


def test_the_dollars_of_a_month_are_spread_over_its_evenings(lead: Path) -> None:
    today = records.read(Night, lead / "nights/one" / records.RUN).started_at.date()
    num_days = monthrange(today.year, today.month)[1] - today.day + 1
    write(
        lead,
        machines="{g2-standard-4: 2}",
        budget_usd="100",
        usd_per_month=str(3.0 * num_days),
        value="{shop: 2}",
    )
    with pytest.raises(NotYet):
        look(lead, HOUR)
    with pytest.raises(PlanError, match=r"has \$3\.00 left and cards needs \$2\.00 .* or usd_per_month"):
        look(lead.parent / "cards", HOUR)


def test_people_hear_once_a_month_what_all_models_together_have_spent(lead: Path, tmp_path: Path) -> None:
    write(lead, machines="{g2-standard-4: 2}", usd_per_month="100")
    heard, cards = tmp_path / "heard", lead.parent / "cards"
    for home in (lead, cards):
        with (home / "params.yaml").open("a") as file:
            file.write(f"notify: {{command: 'cat >> {heard}; echo >> {heard}'}}\n")
    for home, usd, count in ((lead, 50, 0), (cards, 35, 1), (lead, 60, 1), (lead, 70, 2), (cards, 90, 2)):
        cost = json.dumps({"night": "one", "usd": usd})
        records.replace_text(home / "nights/one" / JOBS / "job" / "meter.json", cost)
        assert month.tell(Home(home), "")
        lines = heard.read_text().splitlines() if heard.exists() else []
        assert len([line for line in lines if line.strip()]) == count
    assert "$85.00 of this month's $100.00 of the fleet are spent (usd_per_month in fleet.yaml)" in lines[0]
    assert "$105.00 of this month's $100.00 of the fleet are spent" in lines[-1] + lines[-2]


def test_a_model_that_the_dollars_do_not_suffice_for_goes_first_on_the_next_evening(lead: Path) -> None:
    write(lead, machines="{g2-standard-4: 2}", budget_usd="3.0", value="{shop: 2}")
    cards = lead.parent / "cards"
    with pytest.raises(NotYet):
        look(lead, HOUR)
    with pytest.raises(PlanError, match=r"has \$3\.00 left and cards needs \$2\.00 at least; it goes first"):
        look(cards, HOUR)
    assert look(lead, HOUR)[0] == "g2-standard-4"
    day = 24 * 3600.0
    for home in (cards, lead):
        tonight = records.read(Night, home / "nights/one" / records.RUN)
        later = {
            name: getattr(tonight, name) + timedelta(seconds=day)
            for name in ("started_at", "train_until", "decide_until")
        }
        records.write(replace(tonight, id="two", **later), home / "nights/two" / records.RUN)
    with pytest.raises(NotYet, match="waits for what shop offers"):
        look(cards, HOUR, of="two")
    with pytest.raises(PlanError, match="shop needs"):
        look(lead, HOUR, of="two")
    assert look(cards, HOUR, of="two")[0] == "g2-standard-4"


def test_a_night_that_was_refused_begins_once_the_limit_is_raised(lead: Path) -> None:
    write(lead, machines="{g2-standard-4: 2}", budget_usd="3.0", value="{shop: 2}")
    cards = lead.parent / "cards"
    with pytest.raises(NotYet):
        look(lead, HOUR)
    for _ in range(2):
        with pytest.raises(PlanError, match=r"has \$3\.00 left and cards needs \$2\.00"):
            look(cards, HOUR)
    assert look(lead, HOUR)[0] == "g2-standard-4"
    write(lead, machines="{g2-standard-4: 2}", budget_usd="4.0", value="{shop: 2}")
    assert look(cards, HOUR)[0] == "g2-standard-4"


def test_an_evening_whose_dollars_are_overspent_has_none_left(lead: Path) -> None:
    write(lead, machines="{g2-standard-4: 2}", budget_usd="4.0")
    cards = lead.parent / "cards"
    with pytest.raises(NotYet):
        look(lead, HOUR)
    with pytest.raises(PlanError, match="goes first"):
        look(cards, replace(HOUR, usd=9.0))
    assert look(lead, HOUR)[0] == "g2-standard-4"
    write(lead, machines="{g2-standard-4: 2}", budget_usd="1.0")
    with pytest.raises(PlanError, match=r"has \$0\.00 left"):
        look(cards, HOUR)


@pytest.mark.parametrize("offered", [False, True])
def test_a_member_with_a_damaged_record_keeps_no_other_from_its_plan(
    lead: Path, caplog: pytest.LogCaptureFixture, offered: bool
) -> None:
    cards = lead.parent / "cards"
    if offered:
        with pytest.raises(NotYet):
            look(cards, HOUR)
        assert look(cards, HOUR, later_s=evening.PATIENCE_S)[0] == "g2-standard-4"
        (cards / "nights/one" / records.RUN / "training.json").write_text("{}")
        (cards / "nights/one" / records.RUN / "verdict.json").write_text("{")
    (cards / "nights/one" / records.RUN / "night.json").write_text("{")
    assert look(lead, HOUR, later_s=evening.PATIENCE_S + 1)[0] == "g2-standard-4"
    assert "cannot be read" in caplog.text


def test_a_model_that_waits_is_not_given_another_share_while_nothing_has_changed(
    lead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards, divided, divide = lead.parent / "cards", [], evening.divide

    def counted(*given: Any, **also: Any) -> Any:
        divided.append(given)
        return divide(*given, **also)

    monkeypatch.setattr(evening, "divide", counted)
    with pytest.raises(NotYet):
        look(lead, HOUR)
    with pytest.raises(NotYet, match="waits about 1 h"):
        look(cards, replace(HOUR, seconds=3601))
    assert look(lead, HOUR, later_s=10)
    before = len(divided)
    for later_s in (610, 620, 630):
        with pytest.raises(NotYet, match=r"waits about (50|49) min"):
            look(cards, HOUR, later_s=later_s)
    assert len(divided) == before + 1
    with pytest.raises(NotYet, match="which other models of the fleet have"):
        look(cards, HOUR, later_s=3620)  # the other should be done, and is late
    assert len(divided) == before + 2


def verdict(action: Action) -> Verdict:
    return Verdict(action=action, champion=1, challenger=2, reason="")


@pytest.mark.parametrize("has_rented", [True, False])
def test_a_second_night_of_an_evening_has_what_the_first_did_not_spend(lead: Path, has_rented: bool) -> None:
    write(lead, machines="{g2-standard-4: 2}", budget_usd="3.0")
    first = lead / "nights/one"
    with pytest.raises(NotYet):
        look(lead, HOUR)
    assert look(lead, HOUR, later_s=evening.PATIENCE_S)[0] == "g2-standard-4"
    if has_rented:
        (first / JOBS / "job").mkdir(parents=True)
        (first / JOBS / "job" / submissions.FILE).write_text("")
    records.write(verdict("no data"), first / records.RUN)  # it trained nothing, or only planned
    second = replace(records.read(Night, first / records.RUN), id="two")
    records.write(second, lead / "nights/two" / records.RUN)
    later_s = evening.PATIENCE_S + 1
    with pytest.raises(NotYet):
        look(lead, HOUR, later_s=later_s, of="two")
    if has_rented:
        with pytest.raises(PlanError, match=r"has \$1\.00 left and shop needs \$2\.00"):
            look(lead, HOUR, later_s=2 * later_s, of="two")
    else:
        assert look(lead, HOUR, later_s=2 * later_s, of="two")[0] == "g2-standard-4"


@pytest.mark.parametrize("end", ["refit", "reject"])
def test_a_night_that_refits_keeps_its_machines_until_that_is_done_or_nothing_is_promoted(
    lead: Path, end: str
) -> None:
    cards, run = lead.parent / "cards", lead / "nights/one" / records.RUN
    for home in (lead, cards):
        with pytest.raises(NotYet):
            look(home, replace(HOUR, seconds=3600 + (home == cards)), refits=home == lead)
    assert look(lead, HOUR, later_s=10, refits=True)[0] == "g2-standard-4"
    (run / "training.json").write_text("{}")
    with pytest.raises(NotYet, match="which other models of the fleet have"):
        look(cards, HOUR, later_s=1200)
    if end == "refit":
        records.write(verdict("promote"), run)
        with pytest.raises(NotYet, match="which other models of the fleet have"):
            look(cards, HOUR, later_s=1300)
        assert "1 x g2-standard-4 since" in evening.standing(lead)["shop"]
        records.write(Refit(judged=2), run)
    else:
        records.write(verdict("reject"), run)
    assert "shop" not in evening.standing(lead)
    assert look(cards, HOUR, later_s=1400) == ("g2-standard-4", 1400)


def test_a_member_whose_params_break_keeps_the_machines_it_has_and_no_other_from_its_plan(lead: Path) -> None:
    cards = lead.parent / "cards"
    with pytest.raises(NotYet):
        look(cards, HOUR)
    assert look(cards, HOUR, later_s=evening.PATIENCE_S)[0] == "g2-standard-4"
    (cards / "params.yaml").write_text("register: {name: [}\n")
    with pytest.raises(NotYet, match="which other models of the fleet have"):
        look(lead, HOUR, later_s=evening.PATIENCE_S + 1)
    assert look(cards, HOUR, later_s=evening.PATIENCE_S + 2)[0] == "g2-standard-4"  # repeated after a kill


@pytest.mark.parametrize("machine", ["g2-standard-4", "local"])
def test_the_stage_plans_with_its_share_and_is_called_again_until_it_begins(
    lead: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    write(lead, machines=f"{{{machine}: 1}}")

    def called(name: str) -> int:
        monkeypatch.setenv("DAYBREAK_HOME", str(lead.parent / name))
        monkeypatch.chdir(lead.parent / name / "nights" / "one")
        return cli.main(["plan"])

    assert called("shop") == 75
    assert called("cards") in (0, 75)
    ended = {name: called(name) for name in ("shop", "cards")}
    assert sorted(ended.values()) == [0, 75]
    has = next(name for name, status in ended.items() if status == 0)
    plan = records.read(Plan, lead.parent / has / "nights/one" / records.RUN)
    assert (plan.rental.machine, plan.rental.num_machines) == (machine, 1)
    assert plan.reasons.share == f"1 x {machine} of the fleet's 1"
    entries = json.loads((lead / evening.JOURNAL).read_text())
    assert ["share" in entries[name] for name in ("shop", "cards")] == [has == "shop", has == "cards"]


def test_each_number_of_machines_that_is_faster_is_a_way_to_train(
    lead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The division of the evening weighs the dollars, so none is held back as within the error."""
    write(lead, machines="{a2-highgpu-1g: 4}")
    folder = lead / "nights" / "one"
    tonight = records.read(Night, folder / records.RUN)
    records.write(replace(tonight, budget_usd=400.0), folder / records.RUN)
    records.write(profile(step_s=0.5), folder / records.RUN)
    (folder / "params.yaml").write_text(
        PARAMS.replace("local, g2-standard-4", "a2-highgpu-1g").replace("max_machines: 2", "max_machines: 4")
    )
    monkeypatch.setenv("DAYBREAK_HOME", str(lead))
    monkeypatch.chdir(folder)
    assert cli.main(["plan"]) == 75
    ways = json.loads((lead / evening.JOURNAL).read_text())["shop"]["ways"]
    assert [way["num_machines"] for way in ways] == [1, 2, 3, 4]


def test_a_home_that_shares_machines_is_not_planned_without_this_extension(
    lead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks, "FOLDER", tmp_path)
    monkeypatch.setenv("DAYBREAK_HOME", str(lead))
    monkeypatch.chdir(lead / "nights" / "one")
    assert cli.main(["plan"]) == ParamsError.exit_status
    assert "no extension here divides them; restore pipeline/daybreak/extensions" in caplog.text
