"""What the ledger's nights took reaches the plan of tonight."""

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak.contract import records
from daybreak.contract.record_parts import JobSpan, Live, Rental, Size, Sync, Taken
from daybreak.contract.record_types import Evaluation, Night, Plan, Profile, Training, Verdict
from daybreak.contract.sections import Params, PlanParams, TrainParams
from daybreak.machines.startup import BEFORE_WORK, IN_RUN_S
from daybreak.planning import planner
from daybreak.planning.plan_stage import plan
from daybreak.prediction import ledger_history, scorecard
from daybreak.prediction.calibration import CostCalibration
from daybreak.prediction.scorecard import NIGHTS
from daybreak.storage import branch, ledger
from daybreak.storage.home import Home
from tests.fakes import ScriptedBackend
from tests.minimal_records import minimal_training
from tests.planning.jobs import DATASET, EVERYTHING, STARTED, night, profile

PROFILE = profile()
PARAMS = Params(
    **dict.fromkeys(("source", "workload", "backend"), "some.module:Class"),
    plan=PlanParams(machines=("local",)),
    train=TrainParams(epochs=1, batch_size=256),
)


def learned(entries: Sequence[ledger.Entry]) -> CostCalibration:
    return ledger_history.calibration_of(entries, machines=EVERYTHING, num_workers=1)


@pytest.fixture
def nights(repository: Path) -> Callable[..., Night]:
    """Close nights that took so many times as long as planned without a ledger; returns the next one."""

    def close(times: Sequence[float], *, num_restarts: int = 0) -> Night:
        code = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=repository, text=True).strip()
        tip = branch.ledger_tip(Home.here())
        plain = planned(night())
        for number, each in enumerate(times):
            opened = replace(
                night(),
                id=f"night-{number}",
                started_at=STARTED + timedelta(days=number),
                code_commit=code,
                previous=tip,
            )
            run = repository / records.RUN
            for record in (
                opened,
                DATASET,
                PROFILE,
                plain,
                replace(took(plain, each), num_restarts=num_restarts),
            ):
                records.write(record, run)
            tip = ledger.commit_night(Home.here(), opened, message="promoted")
        return replace(night(), code_commit=code, previous=tip)

    return close


def planned(tonight: Night, job: Profile = PROFILE) -> Plan:
    return plan(Home.here(), tonight, DATASET, job, None, backend=ScriptedBackend(), params=PARAMS)


def took(made: Plan, times: float) -> Training:
    return minimal_training(
        num_samples=made.num_samples,
        num_updates=-(-made.num_samples // made.batch_size),
        elapsed_s=made.forecast.expected_s * times,
    )


def width(made: Plan) -> float:
    return made.forecast.interval[1] / made.forecast.interval[0]


@pytest.mark.slow
def test_a_machine_that_takes_longer_than_predicted_is_planned_longer(nights):
    plain, tonight = planned(night()), nights([1.3] * 8)
    assert planned(tonight).forecast.expected_s / plain.forecast.expected_s == pytest.approx(1.3, rel=0.04)
    assert len(learned(ledger.before(Home.here(), tonight, limit=NIGHTS)).past) == 8


@pytest.mark.slow
def test_the_ratio_stands_when_the_model_changes(nights):
    tonight, slower = nights([1.3] * 8), profile(step_s=4e-3)
    taught, untaught = (planned(of, slower).forecast.expected_s for of in (tonight, night()))
    assert taught / untaught == pytest.approx(1.3, rel=0.04)


@pytest.mark.slow
def test_intervals_that_did_not_hold_are_wider_tonight(nights, caplog):
    tonight = nights([0.5, 1.6, 0.6, 1.9] * 5)
    assert width(planned(tonight)) > 2 * width(planned(night()))
    assert "the 90 % interval held on 0 % of the last 20 nights" in caplog.text


@pytest.mark.slow
def test_what_cannot_be_learned_from_is_widened_for(nights):
    tonight = nights([1.0, 1.3, 0.8, 1.4] * 5, num_restarts=1)  # the time of a restart is no update's
    assert learned(ledger.before(Home.here(), tonight, limit=NIGHTS)).past == []
    made = planned(tonight)
    assert made.forecast.widened > 1.5
    assert width(made) > 1.5 * width(planned(night()))


def ran(training: Training) -> ledger.Entry:
    return ledger.Entry(
        commit="c",
        subject="s",
        rollback=False,
        night=night(),
        dataset=DATASET,
        profile=PROFILE,
        plan=planned(night()),
        training=training,
    )


@pytest.mark.parametrize(("stopped_by", "batch_size"), [("finished", 200), ("deadline", 256)])
def test_only_a_night_that_took_its_last_update_counts_that_one_as_smaller(stopped_by, batch_size):
    plain = replace(planned(night()), num_samples=400)  # two updates, of 256 samples and of 144
    ended = replace(took(plain, 1.0), num_updates=2, elapsed_s=100.0, stopped_by=stopped_by)
    (past,) = learned([replace(ran(ended), plan=plain)]).past
    assert past.setting.micro_batch_size == batch_size


def test_why_a_night_is_left_out_is_said_where_there_is_a_scorecard_too(caplog):
    entries = [ran(took(planned(night()), times)) for times in (13.0, *[1.0] * 5)]
    assert scorecard.card_of(entries)
    known = learned(entries)
    assert len(known.past) == 5
    assert known.left_out
    assert caplog.messages[-1:] == known.left_out
    assert "is left out; 5 newer nights in the same setting" in known.left_out[0]


def test_a_night_that_was_restarted_teaches_what_its_updates_took_before():
    whole = took(planned(night()), 1.0)
    again = replace(whole, num_restarts=1, elapsed_s=9e9)
    assert learned([ran(again)]).past == []
    update_s = (whole.elapsed_s - IN_RUN_S) / whole.num_updates
    first = replace(again, before_restart=(2000 * 1.4 * update_s + IN_RUN_S, 2000))
    assert learned([ran(first)]).past[0].ratio == pytest.approx(1.4 * learned([ran(whole)]).past[0].ratio)
    assert learned([ran(replace(again, before_restart=(60.0, 300)))]).past == []


def test_a_night_whose_machines_could_not_be_had_teaches_of_those_that_it_ran_on():
    asked = Rental(machine="g2-standard-4", region="us-central1")
    plain = replace(planned(night()), rental=asked)
    ended_at = STARTED + timedelta(hours=9)
    whole = replace(took(plain, 1.0), ended_at=ended_at, start_s=600.0)
    began_at = ended_at - timedelta(seconds=whole.elapsed_s)

    def learned_on(*rentals: Rental) -> tuple[list[str], set[str]]:
        refused = JobSpan(
            rental=asked, asked_at=STARTED, ended_at=began_at - timedelta(seconds=300), end="refused"
        )
        ran_on = [
            JobSpan(rental=one, asked_at=refused.ended_at, ran_at=began_at, ended_at=ended_at, end="finished")
            for one in rentals
        ]
        entry = replace(ran(replace(whole, attempts=(refused, *ran_on))), plan=plain)
        known = learned([entry])
        assert {machine for machine, *_ in known.runs} == {one.machine for one in rentals}
        return [each.machine for each in known.past], {*known.starts}

    assert learned_on(replace(asked, region="us-east4")) == (["g2-standard-4"], {"g2-standard-4"})
    assert learned_on(replace(asked, machine="a2-highgpu-1g")) == (["a2-highgpu-1g"], set())
    assert learned_on() == ([], set())  # the requests for what it ran on are forgotten


def test_updates_of_a_batch_that_grew_count_by_their_mean_size():
    plain = planned(night())
    grown = replace(
        plain, sizes=tuple(Size(batch_size=256 * n, micro_batch_size=256, update_s=n) for n in (1, 4))
    )
    whole = took(plain, 1.0)
    quarter = replace(whole, num_updates=whole.num_updates // 4)
    (of_plain,), (of_grown,) = (
        learned([replace(ran(one), plan=made)]).past for one, made in ((whole, plain), (quarter, grown))
    )
    assert of_grown.setting.micro_batch_size * of_grown.setting.num_passes == pytest.approx(1024, rel=0.01)
    assert of_grown.ratio == pytest.approx(of_plain.ratio, rel=0.1)
    again = replace(quarter, num_restarts=1, before_restart=(2000.0, 500))
    assert learned([replace(ran(again), plan=grown)]).past == []
    averaged = replace(again, sync=Sync(every=16))
    assert learned([replace(ran(averaged), plan=plain)]).past == []
    assert len(learned([replace(ran(replace(again, sync=Sync())), plan=plain)]).past) == 1


def test_machines_of_which_some_never_came_teach_nothing_of_all():
    several = replace(
        planned(night()), rental=Rental(machine="g2-standard-24", num_machines=2)
    )  # two L4 each
    whole = took(several, 1.0)
    for device, num_learned in (("2 x NVIDIA L4", 0), ("4 x NVIDIA L4", 1), ("", 1)):
        again = replace(whole, num_restarts=1, before_restart=(2000.0, 500), first_device=device)
        for training in (replace(whole, device=device), replace(again, device="4 x NVIDIA L4")):
            assert len(learned([replace(ran(training), plan=several)]).past) == num_learned


def test_nights_that_came_later_do_not_change_the_plan(nights, repository):
    tonight = nights([1.2] * 3)
    before = planned(tonight)
    later = replace(tonight, id="later", started_at=STARTED + timedelta(days=9))
    for record in (later, DATASET, PROFILE, before, took(before, 3.0)):
        records.write(record, repository / records.RUN)
    ledger.commit_night(Home.here(), later, message="promoted")
    assert planned(tonight) == before


def test_the_first_night_has_no_past(repository):
    assert ledger.before(Home.here(), night(), limit=NIGHTS) == []
    assert learned([]).past == []


def explored(made: Plan, *, cost_usd: float) -> ledger.Entry:
    training = replace(took(made, 1.0), cost_usd=cost_usd)
    return ledger.Entry(commit="c", subject="s", rollback=False, night=night(), plan=made, training=training)


def test_what_was_spent_on_trying_is_what_it_took_beyond_the_best():
    made = planned(night())
    tried = replace(made, forecast=replace(made.forecast, expected_usd=5.0), explore_usd=2.0)
    plain = replace(tried, explore_usd=0.0)
    entries = [explored(tried, cost_usd=6.0), explored(plain, cost_usd=99.0), explored(tried, cost_usd=1.0)]
    assert ledger_history.explored_usd(entries) == pytest.approx(3.0)
    late = replace(tried, explore_usd=-1.0)  # cheaper than the best, at $6, had it been in time
    assert ledger_history.explored_usd([explored(late, cost_usd=8.0)]) == pytest.approx(2.0)


def test_a_night_tries_what_may_be_cheaper_while_dollars_are_left_for_that():
    rented = PARAMS.model_copy(
        update={"plan": PlanParams(machines=("n2-*", "g2-*", "a2-*"), spot=False, explore_usd=30.0)}
    )
    kept = rented.model_copy(update={"plan": rented.plan.model_copy(update={"explore_usd": 0.0})})
    job = profile(step_s=1e-2)
    best, tried = (
        plan(Home.here(), night(), DATASET, job, None, backend=ScriptedBackend(), params=params)
        for params in (kept, rented)
    )
    assert best.explore_usd == 0
    assert 0 < tried.explore_usd <= 30
    assert tried.rental.machine != best.rental.machine
    assert tried.forecast.expected_usd - tried.explore_usd == pytest.approx(best.forecast.expected_usd)
    assert (
        f"{best.rental.machine} is the best that is known, but tonight explores: " in tried.reasons.runner_up
    )


SPOT = PARAMS.model_copy(update={"plan": PlanParams(machines=("g2-standard-4",), explore_usd=0.0)})


def after(made: Plan, *, number: int, **changes: object) -> ledger.Entry:
    training = replace(took(made, 1.0), **changes)
    evaluation = Evaluation(
        model_digest="d", data_digest="d", num_samples=9, metrics={"score": 0.3}, slices=(), elapsed_s=600.0
    )
    verdict = Verdict(
        action="reject",
        champion=0,
        challenger=1,
        num_samples=9,
        reason="",
        decided_at=STARTED + timedelta(hours=2, minutes=20),
    )
    return ledger.Entry(
        commit="c",
        subject="s",
        rollback=False,
        night=replace(night(), id=str(number)),
        dataset=DATASET,
        profile=PROFILE,
        plan=made,
        training=training,
        evaluation=evaluation,
        verdict=verdict,
    )


def on_spot(known: CostCalibration | None = None) -> Plan:
    job = profile(step_s=0.1, sample_bytes=1e3)
    return planner.plan(night(), DATASET, job, None, SPOT, available=EVERYTHING, known=known)


def test_evaluation_and_gate_are_told_from_the_end_of_training_to_the_decision():
    entries = [after(planned(night()), number=k, ended_at=STARTED + timedelta(hours=2)) for k in range(3)]
    portions = planner.plan(
        night(), DATASET, PROFILE, None, PARAMS, available=EVERYTHING, known=learned(entries)
    ).after
    assert [(each.name, round(each.expected_s)) for each in portions] == [
        ("evaluation", 600),
        ("register and gate", 600),
    ]


def test_nights_tell_what_samples_reach_unless_time_was_up_before_the_rate_had_decayed():
    late = Taken(time=STARTED, name="checkpoint", usd=0.0, reason="the deadline came first")
    early = replace(late, name="finish early")
    entries = [
        after(planned(night()), number=number, fallbacks=fallbacks, warm=bool(number))
        for number, fallbacks in enumerate([(), (early,), (late,)])
    ]
    assert [(each.warm, each.score) for each in learned(entries).reached] == [(False, 0.3), (True, 0.3)]


def test_the_hours_in_which_users_judged_are_no_time_of_the_gate():
    entries = [after(planned(night()), number=k, ended_at=STARTED + timedelta(hours=2)) for k in range(3)]
    began_at = STARTED + timedelta(hours=2, minutes=20)
    judged = [
        replace(
            each,
            verdict=replace(
                each.verdict,
                decided_at=STARTED + timedelta(hours=23),
                live=Live(experiment="e", began_at=began_at, ends_at=began_at, foretold=""),
            ),
        )
        for each in entries
    ]
    assert learned(judged).decided == learned(entries).decided


def test_machines_that_took_longer_to_come_are_expected_to_take_longer():
    plain = on_spot()
    before_s = sum(p.expected_s for p in plain.forecast.portions if p.name in BEFORE_WORK)
    entries = [after(plain, number=k, start_s=3 * before_s) for k in range(5)]
    now = on_spot(learned(entries))
    now_s = sum(p.expected_s for p in now.forecast.portions if p.name in BEFORE_WORK)
    assert now_s == pytest.approx(3 * before_s, rel=0.1)


@pytest.mark.slow
def test_spot_machines_that_were_often_lost_when_young_are_saved_on_by_the_program():
    lives = tuple((60.0 * 2**k, True) for k in range(10))
    entries = [after(on_spot(), number=k, spot_lives=(*lives, (30_000.0, False))) for k in range(4)]
    made = on_spot(learned(entries))
    assert "40 preemptions of 44 seen, which it predicts best when held out" in made.spot.basis
    assert made.spot.mean_time_to_loss_s < on_spot().spot.mean_time_to_loss_s
    assert made.spot.worst_usd <= night().budget_usd


def test_a_plan_on_spot_says_what_is_bought_where_its_own_machines_do_not_fit_the_budget():
    rich = on_spot()
    bought_usd = rich.fallbacks[0].expected_usd
    assert not rich.fallbacks[0].rental.is_spot
    budget_usd = 0.9 * bought_usd
    poor = planner.plan(
        night(budget_usd=budget_usd),
        DATASET,
        profile(step_s=0.1, sample_bytes=1e3),
        None,
        SPOT,
        available=EVERYTHING,
    )
    assert poor.rental.is_spot
    assert poor.fallbacks[0].expected_usd == pytest.approx(bought_usd)
    assert poor.spot.worst_usd <= budget_usd
    assert "which the budget allows" in poor.spot.basis
