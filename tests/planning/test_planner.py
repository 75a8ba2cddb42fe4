"""The plan is feasible, repeatable, and where there is none it says the least that helps."""

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.catalogs import agreement
from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError, PlanError
from daybreak.contract.params import check
from daybreak.contract.record_parts import Line, Rental, Tuning
from daybreak.contract.record_types import Champion, Plan, Profile
from daybreak.contract.records import dumps, loads
from daybreak.contract.sections import Params, PlanParams, ProfileParams, TrainParams
from daybreak.extensions.spot.states import Place
from daybreak.extensions.spot.steering import place, zone_of
from daybreak.machines import catalog
from daybreak.machines.catalog import AT_HAND, rented
from daybreak.planning.fallback import MUCH_LATER, NUM_FALLBACKS
from daybreak.planning.planner import plan
from daybreak.planning.rationale import rationale, sentences
from daybreak.prediction.update_time import update
from daybreak.training import recipe
from tests.extensions.spot.test_steering import BEGUN
from tests.planning.jobs import DATASET, EVERYTHING, STARTED, line, night, profile

EVERYWHERE = PlanParams(machines=("local", "*-*"))
TRAINING = TrainParams(epochs=1, batch_size=256)

AT_HOME = {"available": (AT_HAND,), "listed": rented()}  # the backend has only the machine at hand


def planned(
    *,
    hours=18.0,
    budget_usd=40.0,
    params=EVERYWHERE,
    training=TRAINING,
    job=None,
    dataset=DATASET,
    test_hours=0.0,
) -> Plan:
    tonight = replace(night(hours=hours, budget_usd=budget_usd), test_hours=test_hours)
    return plan(
        tonight,
        dataset,
        job or profile(),
        None,
        params_of(params, training),
        available=EVERYTHING,
    )


def test_days_of_missed_nights_that_do_not_fit_are_left_out_of_a_warm_start_and_the_plan_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe.CHAMPION.mkdir(parents=True)
    facts = {"workload": "tests.fakes:LineWorkload", "arguments": {}, "last_day": str(DATASET.first_day)}
    (recipe.CHAMPION / "model.json").write_text(json.dumps(facts))
    champion = Champion(version=1, replaced=0, model_digest=records.digest(recipe.CHAMPION))
    plugs = dict.fromkeys(("source", "workload", "backend"), "tests.fakes:LineWorkload")
    training = TrainParams(batch_size=256, cold_every=10**6, warm_share=0.1)
    sections = Params(**plugs, plan=PlanParams(machines=("local",)), train=training)
    unseen = DATASET.num_samples * 9 // 10
    days = {str(DATASET.first_day): DATASET.num_samples - unseen, str(DATASET.last_day): unseen}
    dataset = replace(DATASET, num_of_days=days)
    made = [
        plan(night(hours=hours), dataset, profile(step_s=0.5), champion, sections, available=EVERYTHING)
        for hours in (160, 18)
    ]
    tenth = round(0.1 * DATASET.num_samples)
    assert [(each.num_samples, each.num_left_out) for each in made] == [(unseen, 0), (tenth, unseen - tenth)]
    assert f"{unseen - tenth:,} samples of missed nights" in " ".join(sentences(made[1], night()))


def params_of(params: PlanParams, training: TrainParams) -> Params:
    plugs = dict.fromkeys(("source", "workload", "backend"), "some.module:Class")
    return Params(**plugs, plan=params, train=training)


def test_this_machine_costs_nothing_and_is_taken_when_it_is_in_time():
    made = planned()
    assert (made.rental, made.forecast.expected_usd) == (Rental(machine="local"), 0.0)
    assert made.num_samples == 1_000_000
    assert made.forecast.interval[0] < made.forecast.expected_s < made.forecast.interval[1]


def test_a_short_night_rents():
    made = planned(hours=0.43, job=profile(step_s=5e-3))
    assert not made.rental.is_local
    assert made.forecast.expected_usd > 0


def test_a_job_bound_by_storage_is_planned_where_its_arrays_stay_in_memory():
    plain = profile(step_s=2e-5, load_s=1e-3)
    waiting = replace(plain, evidence=plain.evidence | {"storage": {"waited_share": 0.9, "cold_share": 0.9}})
    small, large = "n2-standard-4", "n2-standard-16"  # 16 and 64 GiB, at four times the price
    options = {
        "params": PlanParams(machines=(small, large), max_machines=1),
        "training": TrainParams(epochs=8, batch_size=256),
        "dataset": replace(DATASET, num_bytes=20 * 10**9),
    }
    assert planned(job=plain, **options).rental.machine == small
    assert planned(job=waiting, **options).rental.machine == large


def test_the_same_records_give_the_same_plan():
    assert dumps(planned(hours=1)) == dumps(planned(hours=1))


def test_a_plan_survives_its_file():
    made = planned(hours=1)
    assert loads(Plan, dumps(made)) == made


def test_the_fastest_is_faster_and_the_knee_between():
    by = {
        objective: planned(
            job=profile(step_s=1e-2),
            budget_usd=500,
            params=PlanParams(machines=("local", "*-*"), objective=objective),
        ).forecast
        for objective in ("cost", "knee", "time")
    }
    assert by["time"].expected_s <= by["knee"].expected_s <= by["cost"].expected_s
    assert by["cost"].expected_usd <= by["knee"].expected_usd <= by["time"].expected_usd


THREE = ("us-central1", "us-east4", "europe-west4")


def test_each_fallback_can_still_be_started_in_time():
    made = planned(hours=2, job=profile(step_s=5e-3))
    until = night(hours=2).train_until
    assert 0 < len(made.fallbacks) <= NUM_FALLBACKS
    for placement in made.fallbacks:
        assert placement.latest_start + timedelta(seconds=placement.expected_s) < until


def test_the_fallbacks_hold_machines_that_are_much_faster_for_a_job_that_turns_out_slow():
    made = planned(hours=2, job=profile(step_s=5e-3))
    fastest = min(made.fallbacks, key=lambda placement: placement.expected_s)
    assert fastest.expected_s < MUCH_LATER * made.forecast.expected_s
    # A machine that is expected to be about as fast may have a narrower interval, and so begin later.
    latest = max(placement.latest_start for placement in made.fallbacks)
    assert latest - fastest.latest_start < timedelta(minutes=2)


def test_one_machine_in_three_regions_can_be_had_in_the_other_two_at_the_same_speed():
    params = PlanParams(machines=("g2-standard-4",), regions=THREE, spot=False)
    made = planned(params=params, job=profile(step_s=1e-2))
    regions = [region for region in THREE if region != made.rental.region]
    assert [placement.rental for placement in made.fallbacks] == [
        Rental(machine="g2-standard-4", region=region) for region in regions
    ]


def test_the_fallbacks_are_spread_over_regions_and_devices_and_name_no_place_twice():
    params = PlanParams(machines=("*-*",), regions=THREE, spot=False, max_machines=8)
    made = planned(params=params, job=profile(step_s=1e-2))
    assert len(made.fallbacks) == NUM_FALLBACKS
    assert {placement.rental.region for placement in made.fallbacks} == set(THREE)
    assert len({placement.rental.machine.partition("-")[0] for placement in made.fallbacks}) > 4
    assert (
        len({(placement.rental.machine, placement.rental.region) for placement in made.fallbacks})
        == NUM_FALLBACKS
    )


def test_the_fallbacks_hold_what_the_budget_pays_half_of_where_there_is_room():
    params = PlanParams(machines=("g2-standard-4",), regions=THREE, spot=False)
    job = profile(step_s=1e-2)
    least = planned(params=params, job=job)
    poor = planned(params=params, job=job, budget_usd=least.forecast.expected_usd * 1.001)
    assert [placement.rental.region for placement in poor.fallbacks] == [
        placement.rental.region for placement in least.fallbacks
    ]
    assert all(placement.expected_usd > least.forecast.expected_usd * 1.001 for placement in poor.fallbacks)
    alone = PlanParams(machines=("g2-standard-4", "a2-highgpu-8g"), regions=THREE, spot=False)
    budget_usd = least.forecast.expected_usd * 1.1
    usd = {
        placement.expected_usd
        for placement in planned(params=alone, job=job, budget_usd=budget_usd).fallbacks
    }
    assert max(usd) <= 2 * budget_usd


def test_a_fallback_trains_in_batches_of_the_plan_s_size():
    plain = profile(step_s=5e-3)
    job = replace(plain, step_s=replace(plain.step_s, fixed=0.1))
    free = PlanParams(machines=("n2-*", "g2-*"), batch_sizes=(64, 256, 1024), spot=False)
    made = planned(params=free, job=job)
    same = planned(params=free.model_copy(update={"batch_sizes": (made.batch_size,)}), job=job)
    assert made.fallbacks == same.fallbacks


def test_each_fallback_takes_passes_that_fit_its_own_machines_and_batches_by_their_times():
    options = {
        "hours": 3,
        "job": profile(step_s=1e-2, sample_bytes=1.5e8),
        "params": PlanParams(machines=("g2-*", "a2-*", "n2-*"), max_machines=2),
    }
    made = planned(training=TrainParams(epochs=1, batch_size=256, batch_growth="goodput"), **options)
    machines = {(machine.name, machine.region): machine for machine in rented()}
    profiled = replace(catalog.local(options["job"], today=STARTED.date()), dated=DATASET.last_day)
    placements = (*made.fallbacks, *made.cheaper)
    for each in (made, *placements):
        machine = machines[each.rental.machine, each.rental.region]
        assert [size.batch_size for size in each.sizes] == [256, 512, 1024, 2048, 4096]
        assert each.micro_batch_size == each.sizes[0].micro_batch_size
        for size in each.sizes:
            assert options["job"].memory_bytes(size.micro_batch_size) <= 0.9 * machine.device_memory_bytes
            alone = update(
                options["job"],
                machine,
                measured=profiled,
                num_machines=each.rental.num_machines,
                batch_size=size.batch_size,
                num_workers=machine.num_workers,
                num_bytes=DATASET.num_bytes,
            )
            assert alone
            assert size.update_s == pytest.approx(alone.seconds)
    assert len({placement.micro_batch_size for placement in placements}) > 2
    assert (
        len(
            {round(placement.sizes[-1].update_s / placement.sizes[0].update_s, 2) for placement in placements}
        )
        > 2
    )
    stays = planned(**options)
    assert stays.sizes == ()
    assert stays.fallbacks == tuple(replace(placement, sizes=()) for placement in made.fallbacks)


def test_spot_elsewhere_comes_with_its_own_machines_on_demand():
    made = planned(hours=6, job=profile(step_s=5e-3), params=PlanParams(machines=("g2-*",), regions=THREE))
    bought = {placement.rental for placement in made.fallbacks if placement.rental.strategy == "on-demand"}
    spot = [placement.rental.on_demand for placement in made.fallbacks if placement.rental.is_spot]
    assert {rental.region for rental in spot} == set(THREE)
    assert bought >= set(spot)


def test_a_plan_on_spot_can_fall_back_on_its_own_machines_on_demand():
    made = planned(hours=6, job=profile(step_s=5e-3), params=PlanParams(machines=("g2-*", "a2-*")))
    assert made.rental.is_spot
    own = made.fallbacks[0]
    assert own.rental == made.rental.on_demand
    assert own.usd_per_hour > made.usd_per_hour
    waiting = replace(BEGUN, now=6 * 3600 - 2 * made.forecast.expected_s, deadline=6 * 3600, state="queued")
    assert place(made, waiting) == Place(zone_of(made.rental), spot=False)


def test_spot_is_left_out_when_it_is_not_allowed():
    params = PlanParams(machines=("g2-*",), spot=False)
    made = planned(params=params)
    assert not made.rental.is_spot
    assert not any(placement.rental.is_spot for placement in made.fallbacks)


def test_checkpoints_are_as_often_as_the_user_says():
    assert (
        planned(training=TrainParams(epochs=1, checkpoint_every_s=7, batch_size=256)).checkpoint_every_s == 7
    )


def refusal(**changes: object) -> str:
    with pytest.raises(PlanError) as caught:
        planned(**changes)
    return str(caught.value)


def test_what_cannot_be_done_is_told_with_the_least_that_helps():
    message = refusal(hours=1, budget_usd=0.01, job=profile(step_s=1e-1))
    assert message.startswith(
        "no machine of plan.machines trains on 1,000,000 samples by 12:00 UTC for $0.01; "
        "the least that helps: "
    )
    assert re.search(r"night\.budget_usd \d+\.\d\d", message)
    assert re.search(r"night\.train_hours \d", message)
    assert re.search(r"train\.epochs 0\.\d+ \([\d,]+ samples\)", message)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.floats(0.3, 3), st.floats(0, 5), st.floats(1e-3, 0.2))
def test_doing_what_the_refusal_says_helps(hours, budget_usd, step_s):
    job = profile(step_s=step_s)
    params = PlanParams(machines=("local", "g2-standard-*", "n2-standard-*"))
    given_ = {"hours": hours, "budget_usd": budget_usd, "params": params, "job": job}
    try:
        planned(**given_)
    except PlanError as error:
        message = str(error)
    else:
        assume(False)
    advice = dict(re.findall(r"(night\.budget_usd|night\.train_hours|train\.epochs) ([\d.]+)", message))
    assert advice
    changes = {
        "night.budget_usd": lambda value: {"budget_usd": value},
        "night.train_hours": lambda value: {"hours": value},
        "train.epochs": lambda value: {"training": TrainParams(epochs=value, batch_size=256)},
    }
    if " with " in message:
        both = {key: float(advice[key]) for key in ("night.train_hours", "night.budget_usd")}
        assert planned(
            **given_ | {"hours": both["night.train_hours"], "budget_usd": both["night.budget_usd"]}
        )
    else:
        for key, value in advice.items():
            assert planned(**given_ | changes[key](float(value)))


def test_a_deadline_that_has_passed_is_told():
    late = replace(night(), train_until=STARTED - timedelta(hours=1))
    with pytest.raises(PlanError, match=r"had passed when the night began at 11:00; raise night.train_hours"):
        plan(late, DATASET, profile(), None, params_of(EVERYWHERE, TRAINING), available=EVERYTHING)


def test_no_samples_are_told():
    with pytest.raises(DataError, match="1 epochs over 0 samples are none to train on"):
        plan(
            night(),
            replace(DATASET, num_samples=0),
            profile(),
            None,
            params_of(EVERYWHERE, TRAINING),
            available=EVERYTHING,
        )


def test_a_model_beyond_all_memory_is_told_with_both_sizes():
    message = refusal(job=profile(sample_bytes=1e14), params=PlanParams())
    assert "one sample needs 100000.30 GB on a device" in message
    assert "is 7.20 GB (local, less 10%)" in message


def test_a_whole_batch_that_no_memory_has_in_one_pass_is_told_with_its_size():
    job = replace(profile(sample_bytes=1e9), is_undivided=True, wants_one_worker=True, wants_whole=True)
    message = refusal(job=job, params=PlanParams(), training=TrainParams(batch_size=64))
    assert "a batch of 64 samples needs 64.30 GB on a device" in message
    assert message.endswith(
        ", lower train.batch_size to 6, or write encode and batch_loss in place of whole_batch"
    )


def test_a_batch_smaller_than_the_workers_is_told_as_that_and_not_as_memory():
    alone = {"params": PlanParams(), "training": TrainParams(batch_size=2, num_workers=4)}
    assert refusal(**alone) == (
        "a batch of 2 samples (train.batch_size) is smaller than the 4 workers of local, the fewest of "
        "plan.machines; raise train.batch_size to 4, or lower train.num_workers"
    )
    assert planned(params=PlanParams(), training=TrainParams(batch_size=4, num_workers=4, epochs=0.1))
    sizes = PlanParams(machines=("a2-highgpu-8g", "a2-highgpu-4g"), batch_sizes=(1, 2))
    assert refusal(params=sizes) == (
        "a batch of 2 samples (plan.batch_sizes) is smaller than the 4 workers of a2-highgpu-4g, the fewest "
        "of plan.machines; raise plan.batch_sizes to 4, or name a machine with fewer devices"
    )


def test_a_batch_larger_than_all_samples_is_planned_as_one_update_of_these(caplog):
    def of(batch_size: int) -> Plan:
        training = TrainParams(batch_size=batch_size, epochs=0.001)
        return planned(job=profile(step_s=0.5), params=PlanParams(), training=training)

    num_samples = of(1).num_samples
    assert not caplog.text
    fitting, larger = of(num_samples), of(100 * num_samples)
    assert larger.forecast.expected_s == pytest.approx(fitting.forecast.expected_s)
    assert f"is larger than the {num_samples:,} to train on, so that training is one update" in caplog.text


def test_copies_for_averages_that_no_memory_has_are_told_as_that():
    job = replace(profile(), sync_bytes=line(2e9, 0), memory_bytes=line(4e9, 0))
    apart = TRAINING.model_copy(update={"sync": "every_h_updates"})
    assert refusal(job=job, params=PlanParams(), training=apart).startswith(
        "one sample needs 12.00 GB on a device, 8.00 GB of it for averages of the weights, and the most that "
        "plan.machines has is 7.20 GB (local, less 10%); set train.sync: every_update, which holds no copies"
    )
    assert planned(job=job, params=PlanParams())


def test_a_machine_with_room_is_one_that_the_backend_offers_and_no_tpu_for_a_gpu():
    job = replace(profile(), memory_bytes=line(2.5e10, 0))
    assert "; name a2-ultragpu-1g in plan.machines, which has 72.00 GB" in (
        without_room(job, "g2-standard-4", "ct6e-standard-1t", "a2-ultragpu-1g")
    )
    assert (
        "; have a2-highgpu-1g of the catalog, which has 36.00 GB, offered by the backend in a region of "
        "plan.regions, or train" in without_room(job, "g2-standard-4", "ct6e-standard-1t")
    )


def without_room(job: Profile, *names: str) -> str:
    params = params_of(PlanParams(machines=("g2-standard-4",)), TRAINING)
    available = [machine for machine in EVERYTHING if machine.name in names]
    with pytest.raises(PlanError) as refused:
        plan(night(), DATASET, job, None, params, available=available)
    return str(refused.value)


def test_workers_that_share_a_device_are_told_with_the_memory_of_each():
    shared = {"params": PlanParams(), "training": TrainParams(num_workers=4, batch_size=64)}
    assert "is 1.80 GB (local, less 10%, for each of 4 workers)" in refusal(
        job=profile(sample_bytes=2e9), **shared
    )


def test_a_trillion_samples_are_told_as_the_cause_and_not_the_hours():
    trillion = replace(DATASET, num_samples=10**12)
    params = PlanParams(machines=("local", "*-*"))
    assert refusal(dataset=trillion, params=params) == (
        "evaluation on 4,115,226,337 held-out samples (prepare.test_days 1) and gate may take 318 d 14 h, "
        "and night.decide_hours leaves 1 d for the whole night; let the source deliver fewer samples a day"
    )
    # Of so many days one is quick to score, and even a hundredth of an epoch takes too long.
    endless = refusal(dataset=replace(trillion, first_day=date(1, 1, 1)), params=params)
    assert re.fullmatch(
        r"training on 1,000,000,000,000 samples would take [\d,]+ d.* longer than any night; name faster .*",
        endless,
    )
    assert "hours" not in endless


def test_a_model_beyond_the_machine_at_hand_is_told_where_the_backend_rents_no_other():
    params = params_of(EVERYWHERE, TRAINING)
    with pytest.raises(PlanError, match=r"one sample needs 10\.30 GB .* is 7\.20 GB \(local, less 10%\)"):
        plan(night(), DATASET, profile(sample_bytes=1e10), None, params, **AT_HOME)


def test_a_queue_without_anything_to_fall_back_on_is_refused():
    params = PlanParams(machines=("a3-highgpu-1g",), regions=("us-central1",), spot=False, flex_wait_hours=2)
    assert refusal(params=params) == (
        "a3-highgpu-1g can only be waited for, for 2 h (plan.flex_wait_hours), and nothing else of "
        "plan.machines could be rented at once if it does not come; name a machine with an on-demand price "
        "in plan.machines, or allow plan.spot"
    )


def test_machines_without_a_price_are_listed_and_not_planned():
    assert "no price in us-central1" in refusal(params=PlanParams(machines=("a4-highgpu-8g",)))


@pytest.mark.parametrize("seed", range(40))
def test_the_plan_is_the_one_that_an_exhaustive_search_finds(seed):
    compared = agreement(seed)
    assert compared.equal
    assert compared.relaxed is not False


def test_a_region_is_chosen_with_the_machine():
    params = PlanParams(machines=("g2-standard-4",), regions=("us-central1", "us-east4"), spot=False)
    made = planned(params=params)
    assert made.rental == Rental(machine="g2-standard-4", region="us-east4")  # 0.7045 rather than 0.7068
    assert {option.rental.region for option in made.reasons.options} == {"us-central1", "us-east4"}


def test_a_machine_is_not_planned_where_it_is_not_offered():
    params = PlanParams(machines=("a2-highgpu-1g",), regions=("us-east4",))
    with pytest.raises(
        ParamsError, match=r"a2-highgpu-1g, which is not offered in us-east4; add europe-west4"
    ):
        planned(params=params)


def test_flex_start_counts_the_longest_wait_and_bills_none_of_it():
    params = PlanParams(machines=("a2-highgpu-1g",), spot=False, flex_wait_hours=2)
    made = planned(params=params, job=profile(step_s=1e-2))
    at_once = planned(params=PlanParams(machines=("a2-highgpu-1g",), spot=False), job=profile(step_s=1e-2))
    assert (made.rental.max_wait_s, made.rental.strategy, at_once.rental.strategy) == (
        7200,
        "flex-start",
        "on-demand",
    )
    assert made.forecast.expected_s == pytest.approx(at_once.forecast.expected_s + 7200)
    share = (2.0204 / 3.6734 + 0.2) / 1.2
    assert made.forecast.expected_usd == pytest.approx(at_once.forecast.expected_usd * share)
    assert made.usd_per_hour == pytest.approx(2.0204 + 0.2 * 3.6734)  # with the fee
    assert str(made.reasons.price.dated) == "2026-08-02"
    assert made.fallbacks[0].rental.strategy == "on-demand"  # what is rented at once is there to fall back on
    assert made.forecast.portions[0].name == "wait, at most"


def test_flex_start_is_left_out_where_nothing_could_be_in_time_after_the_wait():
    params = PlanParams(machines=("a2-highgpu-1g",), spot=False, flex_wait_hours=2)
    made = planned(hours=2.2, params=params, job=profile(step_s=1e-2))
    assert not made.rental.is_queued
    assert "flex-start" in {option.rental.strategy for option in made.reasons.options}


def test_a_larger_batch_trains_on_more_samples_for_the_same_progress():
    params = PlanParams(machines=("local",), batch_sizes=(512,))
    assert planned(params=params).num_samples == round(1_000_000 * (1000 + 512) / (1000 + 256))
    assert planned(params=PlanParams(machines=("local",), batch_sizes=(256,))).num_samples == 1_000_000


def test_the_batch_that_is_done_sooner_is_taken():
    quick = replace(profile(), step_s=replace(profile().step_s, fixed=0.5), noise_scale=1e6)
    params = PlanParams(machines=("local",), batch_sizes=(64, 256, 1024))
    assert planned(params=params, job=quick).batch_size == 1024
    noisy = replace(quick, step_s=profile().step_s, noise_scale=1)
    assert planned(params=params, job=noisy).batch_size == 64


def test_a_backend_that_rents_nothing_gets_the_machine_at_hand_and_says_why():
    params = params_of(EVERYWHERE, TRAINING)
    made = plan(night(), DATASET, profile(), None, params, **AT_HOME)
    assert made.rental.is_local
    others = [option.why_not for option in made.reasons.options if not option.rental.is_local]
    assert set(others) == {"the backend does not have it"}
    assert made.fallbacks == ()


def test_a_backend_that_rents_nothing_is_told_where_only_rented_machines_are_named():
    params = params_of(PlanParams(machines=("g2-*",)), TRAINING)
    with pytest.raises(
        PlanError,
        match=r"plan.machines names g2-\*, and the backend has none of them; add one that it has \(local\)",
    ):
        plan(night(), DATASET, profile(), None, params, **AT_HOME)


def test_a_backend_that_rents_nothing_is_no_help_when_the_machine_at_hand_is_late():
    params = params_of(EVERYWHERE, TRAINING)
    with pytest.raises(PlanError, match=r"the least that helps: night.train_hours \d"):
        plan(night(hours=0.3), DATASET, profile(step_s=1e-1), None, params, **AT_HOME)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.floats(0.3, 12), st.floats(0, 20), st.floats(1e-3, 0.1), st.floats(0, 5), st.floats(0, 50))
def test_more_hours_or_dollars_never_make_the_plan_worse(hours, budget_usd, step_s, longer, richer):
    params = PlanParams(machines=("local", "g2-standard-*", "a2-*"), max_machines=3, flex_wait_hours=1)
    job = profile(step_s=step_s)
    try:
        before = planned(hours=hours, budget_usd=budget_usd, params=params, job=job)
    except PlanError:
        return
    for after in (
        planned(hours=hours + longer, budget_usd=budget_usd, params=params, job=job),
        planned(hours=hours, budget_usd=budget_usd + richer, params=params, job=job),
    ):
        assert after.forecast.expected_usd <= before.forecast.expected_usd


def test_portions_add_up_to_the_plan():
    made = planned(hours=2, job=profile(step_s=5e-3), params=PlanParams(machines=("g2-*",))).forecast
    assert sum(portion.expected_s for portion in made.portions) == pytest.approx(made.expected_s)
    assert sum(portion.expected_usd for portion in made.portions) == pytest.approx(made.expected_usd)
    assert [portion.name for portion in made.portions][:4] == ["queue", "start-up", "data", "training"]
    assert made.portions[0].expected_usd == 0  # no machine is there yet
    assert made.portions[2].expected_s == pytest.approx(DATASET.num_bytes / 200e6)


def test_options_are_the_plan_then_the_feasible_then_the_others_with_a_reason_each():
    made = planned(hours=2, budget_usd=0.1, job=profile(step_s=5e-3))
    first, *rest = made.reasons.options
    assert (first.rental, first.why_not) == (made.rental, "")
    assert all(option.why_not for option in rest)
    order = [option.feasible for option in made.reasons.options]
    assert order == sorted(order, reverse=True)
    assert any("is over night.budget_usd 0.10" in option.why_not for option in rest)
    assert made.forecast.chance == first.chance > 0.99


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"confidence": 1}, r"plan.confidence is 1, but input should be less than 1; fix it"),
        ({"regions": []}, r"plan.regions is .*, but .*at least 1 item.*; fix it"),
        ({"flex_wait_hours": -1}, r"plan.flex_wait_hours is -1, but .*greater than or equal to 0; fix it"),
        ({"batch_sizes": [0]}, r"plan.batch_sizes.0 is 0, but input should be greater than 0; fix it"),
    ],
)
def test_params_that_cannot_be_are_told_with_their_key(section, sentence):
    plugs = dict.fromkeys(("source", "workload", "backend"), "some.module:Class")
    with pytest.raises(ParamsError, match=sentence):
        check({**plugs, "plan": section})


def test_an_unknown_machine_is_told():
    with pytest.raises(ParamsError, match=r"plan.machines names b9-huge"):
        planned(params=PlanParams(machines=("b9-huge",)))


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["every_update", "auto"])
def test_thousands_of_candidates_are_planned_in_three_seconds(sync):
    params = PlanParams(machines=("local", "*-*"), max_machines=64)
    begin = time.process_time()
    planned(
        params=params, job=profile(step_s=1e-2), training=TrainParams(epochs=1, batch_size=4096, sync=sync)
    )
    assert time.process_time() - begin < 3


def test_workers_average_now_and_then_where_the_plan_finds_that_it_pays():
    job = replace(
        profile(step_s=1e-1), sync_bytes=Line(fixed=5e7, per_sample=0, fixed_error=0, per_sample_error=0)
    )
    job = replace(job, noise_scale=1e6)
    several = PlanParams(
        machines=("g2-standard-4",), max_machines=8, objective="time", usd_per_hour_saved=10_000
    )
    options = {"params": several, "job": job, "budget_usd": 400.0}
    plain, fixed, best = (
        planned(**options, training=TRAINING.model_copy(update={"sync": sync, "sync_every": 4}))
        for sync in ("every_update", "every_h_updates", "auto")
    )
    assert (plain.sync.every, fixed.sync.every) == (1, 4)
    assert fixed.num_samples == plain.num_samples
    assert best.sync.every > 1
    assert best.rental.num_machines > 1
    assert best.num_samples > plain.num_samples
    assert best.forecast.expected_s < plain.forecast.expected_s
    assert f"{best.sync}" in rationale(best, night())
    assert "times the samples as it averages every" in best.reasons.basis
    assert all(placement.rental != best.rental for placement in best.fallbacks)


def test_planning_imports_nothing_heavy():
    code = (
        "import sys, daybreak.planning.planner; heavy = "
        "('torch', 'numpy', 'scipy', 'mlflow', 'pandas', 'pydantic', 'ruamel'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_fewer_steps_are_taken_only_where_they_are_allowed():
    short = {"hours": 0.1, "budget_usd": 0.0, "params": PlanParams(), "job": profile(step_s=1e-2)}
    with pytest.raises(PlanError, match=r"train\.epochs"):
        planned(**short)
    allowed = params_of(PlanParams(), TRAINING).model_copy(
        update={"profile": ProfileParams(quality_remedies="allow")}
    )
    made = plan(
        night(hours=0.1, budget_usd=0.0), DATASET, profile(step_s=1e-2), None, allowed, available=EVERYTHING
    )
    assert 0 < made.num_samples < DATASET.num_samples


def test_the_plan_takes_over_what_the_profile_kept():
    tuned = replace(profile(), tuning=Tuning(num_loaders=4, fused=True))
    made = planned(job=tuned)
    assert made.tuning == tuned.tuning


def test_training_is_planned_to_end_before_the_hours_that_users_need_to_judge():
    slow = profile(step_s=0.04)  # eleven hours on this machine
    plain, early = planned(job=slow), planned(job=slow, test_hours=20.0)
    assert plain.rental.is_local
    assert not early.rental.is_local
    assert early.forecast.interval[1] < 4 * 3600
    assert [part.expected_s for part in early.after if part.name == "live test"] == [20 * 3600]


def test_where_the_budget_buys_no_faster_machine_the_live_test_has_what_is_left():
    plan = planned(job=profile(step_s=0.04), test_hours=20.0, budget_usd=0.0)
    assert plan.rental.is_local
    assert [part.expected_s for part in plan.after if part.name == "live test"] == [10 * 3600]
    text = rationale(plan, replace(night(budget_usd=0.0), test_hours=20.0))
    assert "10 h are kept for the live test, of 20 h that it needs" in text


def test_cheaper_places_that_are_too_slow_for_the_whole_job_are_named_for_one_that_is_ahead():
    short = {"hours": 1.0, "job": profile(step_s=5e-3)}
    made = planned(**short)
    assert 0 < len(made.cheaper) <= 4
    taken = {made.rental, *(placement.rental for placement in made.fallbacks)}
    for placement in made.cheaper:
        assert placement.expected_usd < 0.9 * made.forecast.expected_usd
        assert placement.latest_start < STARTED
        assert placement.rental not in taken
    fastest = PlanParams(machines=("local", "*-*"), objective="time")
    assert planned(params=fastest, **short).cheaper == ()


@pytest.mark.parametrize("key", [{"threads": "auto"}, {"sync": "every_h_updates"}, {"num_workers": 2}])
def test_a_plan_refuses_keys_that_a_class_does_not_allow(key):
    training = TRAINING.model_copy(update=key)
    job = replace(profile(), wants_one_worker="num_workers" in key, wants_whole=True)
    with pytest.raises(ParamsError, match=f"train.{next(iter(key))}"):
        planned(training=training, job=job)


def test_a_class_that_keeps_state_gets_one_worker_and_no_tpu():
    made = planned(job=replace(profile(step_s=0.05), wants_one_worker=True), hours=200, budget_usd=1000)
    for rental in (made.rental, *(each.rental for each in made.fallbacks)):
        machines = [each for each in EVERYTHING if each.name == rental.machine]
        assert rental.num_machines == 1
        assert all(each.is_local or each.num_workers == 1 for each in machines)
        assert not any(each.is_tpu for each in machines)
    several = PlanParams(machines=("*-8g", "a2-highgpu-8g"))
    with pytest.raises(PlanError, match="does not train on these; name a machine with one GPU, or local"):
        planned(params=several, job=replace(profile(), wants_one_worker=True))


def test_more_budget_never_makes_the_plan_for_time_slower():
    params = PlanParams(
        machines=("g2-standard-4", "a2-highgpu-1g", "a3-highgpu-1g", "g4-standard-48"),
        max_machines=8,
        objective="time",
        spot=False,
    )
    options = {"params": params, "job": profile(step_s=2.5), "hours": 200}
    times_s = [planned(**options, budget_usd=usd).forecast.expected_s for usd in (6.5, 8, 10, 15, 20, 40)]
    assert times_s == sorted(times_s, reverse=True)
