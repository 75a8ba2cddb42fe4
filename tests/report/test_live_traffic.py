from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from daybreak.contract.record_parts import Check, Live, MeasuredEffect, Segment
from daybreak.report.outcome import in_live
from daybreak.report.page import page
from daybreak.report.version_page import described
from daybreak.storage.home import Home
from tests.report.nights import lay, whole

LIVE = Live(
    experiment="2011-11-08",
    began_at=datetime(2011, 11, 9, 4, tzinfo=UTC),
    ends_at=datetime(2011, 11, 9, 14, tzinfo=UTC),
    foretold="at 100 users an hour 10 hours show 0.0212 at 80 % power",
    share=0.25,
    num_challenger=1234,
    num_champion=4321,
    effect=MeasuredEffect(mean=0.0171, low=0.0012, high=0.0333),
    reason="proven better",
    checks=(Check(name="errors", ok=True, text="none"), Check(name="items shown", ok=False, text="far off")),
)


@pytest.mark.slow
def test_the_page_tells_what_users_showed(tmp_path: Path) -> None:
    entry = whole()
    assert entry.verdict is not None
    with_live = replace(entry, verdict=replace(entry.verdict, live=LIVE))
    text = page(Home.here(), lay(with_live, tmp_path), []).replace("\xa0", " ")
    for figure in ("1,234", "4,321", "25 %", "+0.0171", "+0.0012 to +0.0333", "0.0212 at 80 %", "far off"):
        assert figure in text
    assert "What users showed" not in page(Home.here(), lay(entry, tmp_path / "other"), [])


@pytest.mark.slow
def test_the_page_shows_groups_of_users_and_that_they_decide_nothing(tmp_path: Path) -> None:
    entry = whole()
    assert entry.verdict is not None
    phones = Segment(
        attribute="device",
        value="<phone>",
        num_challenger=1021,
        num_champion=3987,
        effect=MeasuredEffect(mean=-0.0204, low=-0.0391, high=-0.0017),
    )
    unknown = replace(phones, value="desk", effect=MeasuredEffect(mean=0.1, low=None, high=None))
    live = replace(LIVE, segments=(phones, unknown))
    with_live = replace(entry, verdict=replace(entry.verdict, live=live))
    text = page(Home.here(), lay(with_live, tmp_path), []).replace("\xa0", " ")
    for seen in (
        "device: &lt;phone&gt;",
        "1,021",
        "3,987",
        "-0.0391 to -0.0017",
        "not known",
        "none decides",
    ):
        assert seen.replace("-", "\u2212") in text or seen in text, seen


def test_an_experiment_without_evidence_says_so_without_figures() -> None:
    text = in_live(replace(LIVE, effect=None, reason="nobody came"))
    assert "differ" not in text
    assert "In the end: nobody came." in text


def test_where_several_challengers_were_tested_the_share_is_one_of_a_part_of_the_users() -> None:
    live = replace(LIVE, num_slots=2)
    assert "at last 25 % of its part of the traffic, one of 2." in in_live(live)
    entry = whole()
    assert entry.verdict
    text = described(replace(entry, verdict=replace(entry.verdict, live=live)), {})
    assert "(at last 25% of its part of the traffic, one of 2)" in text


def test_a_reviewer_reads_of_it_in_mlflow() -> None:
    entry = whole()
    assert entry.verdict
    text = described(replace(entry, verdict=replace(entry.verdict, live=LIVE)), {})
    assert text.startswith("**Verdict: promote.**")
    assert text.count("**On live traffic:** 1,234 users met the challenger (at last 25% of the traffic)") == 1
    assert "guardrails broken: items shown" in text
