"""The first screen says what came of a night and what a person may do, and leads there."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from daybreak.report.links import Places
from daybreak.report.outcome import NightView
from daybreak.report.summary import BY_HAND, Summary, brief, summarize
from daybreak.storage.ledger import Entry
from tests.minimal_records import answer_to
from tests.report.nights import only, sixty, whole

PLACES = Places(
    airflow_run="http://a/dags/retrain/runs/r",
    review="http://a/review",
    rollback="http://a/dags/rollback",
    run="http://m/#/runs/1",
    version="http://m/#/models/daybreak/versions/12",
)


def of(entry: Entry, history: Sequence[Entry] = (), places: Places = PLACES, **errors: str) -> Summary:
    return summarize(NightView(entry=entry, errors=errors, history=history), places=places)


def first_of(summary: Summary) -> tuple[str, str]:
    return summary.actions[0].name, summary.actions[0].address


def waiting() -> Entry:
    entry = replace(whole(action="reject"), commit="")
    assert entry.verdict
    until = entry.night.decide_until
    return replace(entry, verdict=replace(entry.verdict, inconclusive=True, approve_until=until))


def test_an_effect_says_on_how_many_samples_of_how_many_units_it_is() -> None:
    verdict = whole().verdict
    assert verdict
    judged = of(replace(whole(), verdict=replace(verdict, num_samples=2100, num_units=200))).effect
    assert judged and judged.on == "2,100 held-out samples of 200 units"


def test_what_serves_may_be_rolled_back_and_what_was_replaced_may_not() -> None:
    night = whole(12)
    assert first_of(of(night, [night])) == ("Roll back", "http://a/dags/rollback")
    assert first_of(of(night, [whole(13), night])) == ("See the checks", "#checks")


def test_a_first_version_has_nothing_to_roll_back_to() -> None:
    night = whole(12)
    assert night.release
    first = replace(night, release=replace(night.release, replaced=0))
    assert first_of(of(first, [first])) == ("See the checks", "#checks")


def test_a_night_that_waits_is_answered_where_airflow_asks_or_by_hand() -> None:
    summary = of(waiting())
    assert [(one.name, one.address) for one in summary.actions[:2]] == [
        ("Approve", "http://a/review"),
        ("Reject", "http://a/review"),
    ]
    assert summary.actions[1].command.endswith("approve --night 2011-11-08 --reject --reason TEXT")
    assert first_of(of(waiting(), places=Places())) == ("Approve", BY_HAND)
    verdict = waiting().verdict
    assert verdict
    answer = answer_to(verdict, approved=False, reason="", answered_at=whole().night.started_at)
    assert first_of(of(replace(waiting(), approval=answer)))[0] == "See the checks"


def test_a_night_that_the_data_stopped_goes_on_or_leads_to_its_bad_rows() -> None:
    stopped = of(only(whole(), "batch"), validate="6.2 % of 2,478 rows are quarantined")
    assert [(one.name, one.address) for one in stopped.actions[:2]] == [
        ("Go on with the night", "http://a/dags/retrain/runs/r"),
        ("Look at the bad rows", "#bad-rows"),
    ]
    assert stopped.facts[-1].beside == "refused"
    assert [one.command for one in stopped.actions[:2]] == [
        "daybreak night --night 2011-11-08",
        "daybreak rows --night 2011-11-08",
    ]


@pytest.mark.parametrize(
    ("seconds", "usd", "late", "over"), [(60, 1, False, False), (70_000, 51, True, True)]
)
def test_time_and_cost_are_held_against_deadline_and_budget(
    seconds: float, usd: float, late: bool, over: bool
) -> None:
    entry = whole()
    assert entry.training
    ended = entry.night.started_at + timedelta(seconds=seconds)
    summary = of(replace(entry, training=replace(entry.training, ended_at=ended, cost_usd=usd)))
    ready, cost, data = summary.facts
    assert (ready.good, cost.good, data.good) == (not late, not over, False)
    assert ("after the deadline" in ready.beside, cost.beside) == (
        late,
        f"{'over' if over else 'of'} $50.00 budget",
    )
    assert data.beside == "1.5 % quarantined by 2 of 4 rules, 1 rule broken, drift in country"


def test_a_reason_of_many_clauses_keeps_the_first_and_a_long_error_its_first_words() -> None:
    assert len(brief("; ".join(["six words are in this clause"] * 20)).split()) == 30
    assert brief("word " * 100).split()[-1] == "…"
    assert brief("the first line\n  of a traceback") == "the first line"
    assert brief("") == ""


def test_the_words_of_no_summary_fill_more_than_a_screen() -> None:
    for entry in (*sixty(), waiting(), only(whole(), "batch")):
        shown = of(entry, sixty())
        words = [
            shown.headline,
            shown.reason,
            shown.since,
            *(f"{f.name} {f.text} {f.beside}" for f in shown.facts),
        ]
        assert len(" ".join([*words, *(a.name for a in shown.actions)]).split()) <= 110
