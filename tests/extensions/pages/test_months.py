"""Months of nights: their sums by hand, what they are compared with, and what is given as a file."""

import csv
import io
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import requests

from daybreak.contract.record_parts import LOCAL, Chain, Placement, Rental
from daybreak.contract.record_types import Approval, Bill, Refit, Spans
from daybreak.extensions.pages import export, months
from daybreak.extensions.pages.board import Model
from daybreak.extensions.pages.selection import Query, searched
from daybreak.report.night_rows import NightRow, RentedMachines, row_of
from daybreak.storage.ledger import Entry
from tests.extensions.pages import fleet
from tests.extensions.pages.served import served
from tests.report.histories import nights
from tests.report.nights import whole
from tests.report.test_stage_times import preempted

OCTOBER, NOVEMBER = date(2026, 10, 31), date(2026, 11, 1)


def model(*rows: NightRow, name: str = "shop") -> Model:
    return Model(name=name, rows=rows, pages={})


def night(day: date, *, action: str = "promote", usd: float = 10.0, **changed: object) -> NightRow:
    return replace(row_of(whole(12, day, action=action)), usd=usd, **changed)  # type: ignore[arg-type]


def test_a_month_has_the_nights_of_its_days_and_what_one_promoted_version_cost() -> None:
    promoted, refused = night(NOVEMBER), night(NOVEMBER, action="reject", usd=5)
    shown = months.months([model(promoted, refused, night(OCTOBER))], Query())
    november, october = shown.months
    assert (november.month, october.month) == ("2026-11", "2026-10")
    assert (november.num_nights, november.num_promoted, november.num_refused) == (2, 1, 1)
    assert (november.usd, november.usd_per_promoted) == (15, 15)
    assert months.months([model(refused)], Query()).months[0].usd_per_promoted is None


def test_each_night_counts_once_among_refused_held_and_failed() -> None:
    entry = whole(12, NOVEMBER, action="reject")
    assert entry.verdict
    held = row_of(replace(entry, verdict=replace(entry.verdict, held=("c0ffee",))))
    failed = row_of(replace(entry, verdict=replace(entry.verdict, action="no data", failed="validate")))
    late = night(NOVEMBER, action="reject", decided_s=2.0, decide_within_s=1.0)
    (one,) = months.months([model(held, failed, late)], Query()).months
    assert (one.num_refused, one.num_held, one.num_failed, one.num_late) == (1, 1, 1, 1)


def test_a_persons_no_is_refused_and_every_night_is_in_one_column() -> None:
    entry = whole(12, NOVEMBER)
    assert entry.verdict
    asked = replace(
        entry, release=None, verdict=replace(entry.verdict, approve_until=entry.night.decide_until)
    )
    assert asked.verdict
    no = Approval(
        champion=asked.verdict.champion,
        challenger=asked.verdict.challenger,
        action=asked.verdict.action,
        approved=False,
        by="ann",
        reason="not on a Friday",
        answered_at=entry.night.started_at,
    )
    rows = [row_of(replace(asked, approval=no)), row_of(asked), night(NOVEMBER)]
    (one,) = months.months([model(*rows)], Query()).months
    assert (one.num_refused, one.num_undecided, one.num_promoted, one.num_nights) == (1, 1, 1, 3)


def test_a_promotion_that_was_rolled_back_is_none() -> None:
    scores = {"anchor": 3, "score": 0.5, "champion_score": 0.45, "anchor_score": 0.4}
    promoted = night(NOVEMBER, release=(12, 11), **scores)
    back = replace(promoted, commit="back", outcome="rollback", release=(11, 12))
    (one,) = months.months([model(back, promoted)], Query()).months
    assert (one.num_promoted, one.num_taken_back, one.usd_per_promoted) == (0, 1, None)
    assert one.over_anchor == pytest.approx(0.05)


def test_models_are_summed_and_stand_by_themselves_and_their_scores_have_no_mean() -> None:
    scores = {"anchor": 3, "score": 0.5, "anchor_score": 0.4}
    two = [model(night(NOVEMBER, **scores)), model(night(NOVEMBER, **scores), name="fraud")]
    shown = months.months(two, Query()).months
    assert [(one.model, one.usd, one.over_anchor) for one in shown] == [
        ("", 20, None),
        ("fraud", 10, pytest.approx(0.1)),
        ("shop", 10, pytest.approx(0.1)),
    ]
    assert [one.model for one in months.months(two, Query(model="shop")).months] == ["shop"]


def test_what_serves_is_compared_with_never_retrained_while_the_anchor_is_the_first_version() -> None:
    first = night(OCTOBER, release=(1, 0), anchor=0)
    later = night(NOVEMBER, anchor=1, score=0.5, anchor_score=0.4)
    rebased = night(NOVEMBER, anchor=7, score=0.5, anchor_score=0.48)
    november = months.months([model(rebased, later, first)], Query(month="2026-11")).months[0]
    assert november.over_anchor == pytest.approx(0.06)
    assert november.over_first == pytest.approx(0.1)
    restored = [rebased, later, replace(first, release=(3, 2))]  # version 1 is not on record
    assert months.months([model(*restored)], Query(month="2026-11")).months[0].over_first is None


def on_spot() -> Entry:
    """A night whose training had 3 hours of spot machines for $2.50, at $2 an hour on demand."""
    entry = whole(12, NOVEMBER)
    assert entry.plan
    assert entry.training
    spot = Rental(machine="g2-standard-8", num_machines=2, region="us-central1", strategy="spot")
    bought = Placement(
        rental=spot.on_demand,
        expected_s=3600,
        expected_usd=4,
        latest_start=entry.night.train_until,
        usd_per_hour=2.0,
    )
    trained = replace(entry.training, elapsed_s=5400, cost_usd=2.5, num_restarts=0, fallbacks=())
    return replace(entry, training=trained, plan=replace(entry.plan, rental=spot, fallbacks=(bought,)))


def test_spot_saves_what_the_same_hours_cost_on_demand_by_the_plan_less_what_they_cost() -> None:
    priced = on_spot()
    (one,) = months.months([model(row_of(priced))], Query()).months
    assert (one.spot_hours, one.spot_saved_usd) == (3.0, 3.5)
    assert one.spot_saved_hours == 1.75  # at $2 an hour
    lost = months.months([model(row_of(preempted()))], Query()).months[0]
    assert (lost.spot_hours, lost.spot_saved_usd, lost.spot_saved_hours) == (2.0, None, None)
    assert priced.plan
    unpriced = replace(priced, plan=replace(priced.plan, fallbacks=()))
    assert months.months([model(row_of(unpriced))], Query()).months[0].spot_saved_usd is None


def test_a_night_of_which_a_job_failed_says_nothing_of_what_spot_saved() -> None:
    night = on_spot()
    assert night.training
    hour = replace(night.training, elapsed_s=1800, cost_usd=3.5)  # of both jobs
    refitted = replace(night, refit=Refit(judged=12, training=hour), bill=Bill(usd=3.5 + 1e-15))
    assert months.months([model(row_of(refitted))], Query()).months[0].spot_saved_usd == pytest.approx(4.5)
    crashed = replace(night, refit=Refit(judged=12, why_not="it crashed"), bill=Bill(usd=9.0))
    again = replace(night, spans=failed_first(night, "train"))
    for one in (crashed, again):
        (month,) = months.months([model(row_of(one))], Query()).months
        assert (month.spot_hours, month.spot_saved_usd, month.spot_saved_hours) == (3.0, None, None)


def failed_first(night: Entry, stage: str) -> Spans:
    """The times of the stages of a night of which one failed, and was called again."""
    assert night.spans
    of_stage = next(one for one in night.spans.stages if one.stage == stage)
    return Spans(stages=(replace(of_stage, end="failed", why="it crashed"), *night.spans.stages))


def test_costs_are_summed_by_machine_and_place_and_make_up_the_whole() -> None:
    there = RentedMachines("g2-standard-8", "us-central1", "spot", 2.0, 10)
    here = RentedMachines("local", "", "on-demand", 1.0, 5)
    rows = [night(NOVEMBER, rented=(there,))] * 2 + [night(NOVEMBER, usd=5, rented=(here,))]
    first, second = months.months([model(*rows)], Query()).machines
    assert (first.machine, first.num_nights, first.hours, first.usd, first.share) == (
        "g2-standard-8",
        2,
        4.0,
        20,
        0.8,
    )
    assert (second.place, second.usd, second.share) == (months.HERE, 5, 0.2)
    shown = months.months([model(*rows, night(NOVEMBER, usd=3, rented=()))], Query()).machines
    assert [(one.machine, one.usd) for one in shown][-1] == (months.UNPLANNED, 3)
    assert sum(one.usd for one in shown) == 28


def test_a_night_that_moved_costs_what_each_of_its_machines_did() -> None:
    moved = preempted()
    costs = months.months([model(row_of(moved))], Query()).machines
    assert [(one.machine, one.strategy, one.num_nights) for one in costs] == [
        ("n1-standard-8", "on-demand", 1),
        ("n1-standard-8", "spot", 1),
    ]
    assert [one.usd for one in costs] == pytest.approx([2.2, 0.9])
    assert [one.hours for one in costs] == pytest.approx([58 / 60, 2.0])
    assert moved.training
    billed = replace(moved, training=replace(moved.training, cost_usd=6.2))  # twice what was planned
    assert [one.usd for one in months.months([model(row_of(billed))], Query()).machines] == pytest.approx(
        [4.4, 1.8]
    )
    assert all(name in searched("shop", row_of(moved), ()) for name in ("n1-standard-8", "spot"))


def test_a_refit_counts_among_the_hours_of_its_machines() -> None:
    entry = whole(12, NOVEMBER)
    assert entry.training
    hour = replace(entry.training, elapsed_s=3600)
    refitted = replace(entry, training=hour, refit=Refit(judged=12, training=hour))
    (whole_night,), (one,) = row_of(refitted).rented, row_of(replace(entry, training=hour)).rented
    assert whole_night.hours == 2 * one.hours > 0


def test_only_the_machine_at_hand_is_this_machine() -> None:
    entry = whole(12, NOVEMBER)
    assert entry.plan

    def place(rental: Rental) -> str:
        assert entry.plan
        return row_of(replace(entry, plan=replace(entry.plan, rental=rental))).rented[0].place

    assert place(Rental(machine=LOCAL)) == ""
    assert place(Rental(machine="a100", backend="slurm")) == "slurm"
    assert place(Rental(machine="a100")) == "the only backend"


def test_a_chain_leaves_its_anchor_in_the_row() -> None:
    entry = whole(12, NOVEMBER)
    assert entry.verdict
    chain = Chain(anchor=4, since=NOVEMBER, margin=0.012, offset=0.0)
    assert row_of(replace(entry, verdict=replace(entry.verdict, chain=chain))).anchor == 4


def test_a_text_that_a_spreadsheet_would_run_is_a_text_in_the_file() -> None:
    answer = export.as_csv([{"reason": "=1+1", "effect": -0.5}, {"reason": "so", "more": 1}], name="nights")
    lines = list(csv.DictReader(io.StringIO(bytes(answer.body).decode())))
    assert lines[0] == {"reason": "'=1+1", "effect": "-0.5", "more": ""}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lead = fleet.make(tmp_path_factory.mktemp("fleet"), num=40, last=date(2026, 11, 24), shop=1, fraud=2)
    with served(lead) as address:
        yield address


def get(address: str) -> requests.Response:
    return requests.get(address, timeout=300)


def test_the_board_shows_a_month_and_gives_the_same_nights_as_files(url: str, tmp_path: Path) -> None:
    asked = "month=2026-10&model=shop"
    expected = [entry for entry in nights(40, last=date(2026, 11, 24), seed=1) if entry.night.day.month == 10]
    assert get(f"{url}/nights?{asked}").text.count("<tr data-o") == len(expected) == 16
    given = get(f"{url}/nights?{asked}&format=json").json()
    assert [one["day"] for one in given] == [str(entry.night.day) for entry in reversed(expected)]
    answer = get(f"{url}/nights?{asked}&format=csv")
    assert [one["cost_usd"] for one in csv.DictReader(io.StringIO(answer.text))] == [
        "" if one["cost_usd"] is None else str(one["cost_usd"]) for one in given
    ]
    assert answer.headers["content-disposition"] == 'attachment; filename="nights.csv"'
    assert get(f"{url}/nights?month=2026-1&format=csv").text.count("\r\n") == 81  # is no month


def test_the_page_of_months_answers_for_one_model_and_the_fleet_and_gives_both_files(url: str) -> None:
    page = get(f"{url}/nights/months?month=2026-11").text
    given = get(f"{url}/nights/months?month=2026-11&format=json").json()
    both, fraud, shop = given["months"]
    assert (both["model"], fraud["model"], shop["model"]) == ("", "fraud", "shop")
    assert both["usd"] == pytest.approx(fraud["usd"] + shop["usd"])
    assert f"November 2026: ${both['usd']:,.2f} for 48 nights" in page
    assert sum(one["usd"] for one in given["machines"]) == pytest.approx(both["usd"])
    machines = get(f"{url}/nights/months?month=2026-11&format=machines")
    assert machines.headers["content-disposition"] == 'attachment; filename="machines.csv"'
    costs = [float(one["usd"]) for one in csv.DictReader(io.StringIO(machines.text))]
    assert costs == pytest.approx([one["usd"] for one in given["machines"]])
    lines = csv.DictReader(io.StringIO(get(f"{url}/nights/months?model=shop&format=csv").text))
    assert [(line["month"], line["num_nights"]) for line in lines] == [("2026-11", "24"), ("2026-10", "16")]
    assert "No nights of nobody." in get(f"{url}/nights/months?model=nobody").text
