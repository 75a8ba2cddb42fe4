import json
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from rich.console import Console

from daybreak.extensions.pages.board import Model, files, nights_of, status_rows, status_table
from daybreak.extensions.pages.selection import Query
from daybreak.report import outcome
from daybreak.report.night_rows import row_of
from daybreak.storage.ledger import Entry
from tests.minimal_records import answer_to
from tests.report.nights import sixty, whole

AT = datetime(2011, 11, 10, 12, tzinfo=UTC)


def board(history: list[Entry]) -> str:
    model = Model(name="shop", rows=[row_of(entry) for entry in history], pages={})
    ((_, page),) = files([model], name="board", at=AT)
    return page


def printed(history: list[Entry], *, width: int = 160) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(status_table([row_of(entry) for entry in history]))
    return capture.get()


def rolled_back() -> Entry:
    entry = whole(12)
    assert entry.release
    assert entry.verdict
    return replace(
        entry,
        rollback=True,
        closed_at=datetime(2026, 11, 22, 14, 3, tzinfo=UTC),
        subject="rollback to version 10",
        release=replace(entry.release, version=10, replaced=12),
        verdict=replace(entry.verdict, action="reject", reason="complaints of customers"),
    )


def test_the_board_has_a_row_for_every_night() -> None:
    html = board(sixty())
    assert len(re.findall(r"<tr data-o", html)) == 60
    assert "60 nights, 48&nbsp;promoted, 3&nbsp;failed; version 60 serves." in html
    assert "://" not in html
    assert len(html.encode()) < 500_000


def test_the_board_of_no_nights_says_how_to_get_one() -> None:
    assert "No nights yet." in board([])


def test_a_rollback_is_on_the_board_with_its_reason() -> None:
    html = board([rolled_back(), *sixty()[:2]])
    assert "rolled back" in html
    assert "complaints of customers" in html
    assert "2 nights" in html
    assert "2026-11-22" in html
    assert "14:03 UTC" in html


def test_the_board_of_several_models_has_their_nights_together_and_each_in_short() -> None:
    mine, theirs = [row_of(entry) for entry in sixty()], [row_of(entry) for entry in sixty()[:20]]
    models = [Model(name="shop", rows=mine, pages={}), Model(name="fraud", rows=theirs, pages={}, fault="")]
    ((_, html),) = files(models, name="board", at=AT)
    assert "2 models: 80 nights" in html
    assert html.count('data-m="fraud"') == 20
    short = re.search(r'<table class="tight models">.*?</table>', html, flags=re.DOTALL)
    assert short
    heads = re.findall(r'<th scope="row".*?</th>', short[0])
    assert [re.sub("<.*?>", "", head) for head in heads] == ["shop", "fraud"]


def test_a_board_of_more_nights_than_a_page_has_is_written_as_several_files_that_lead_to_each_other() -> None:
    rows = [replace(row_of(entry), commit=f"{n}") for n in range(21) for entry in sixty()[:50]]
    written = dict(files([Model(name="shop", rows=rows, pages={})], name="board", at=AT))
    assert list(written) == ["board.html", "board-2.html"]
    assert [html.count("<tr data-o") for html in written.values()] == [1000, 50]
    assert 'href="board-2.html">older' in written["board.html"]
    assert 'href="board.html">newer' in written["board-2.html"]


def test_what_the_last_seven_days_cost_is_the_sum_of_their_nights() -> None:
    html = board(sixty())
    usd = sum(e.training.cost_usd for e in sixty() if e.training and (AT - e.night.started_at).days < 7)
    assert f'<td class="n">${usd:.2f}</td>' in html


def test_a_night_outside_of_its_predicted_interval_is_marked_and_counted() -> None:
    late = whole()
    assert late.training
    assert late.plan
    slow = replace(late, training=replace(late.training, elapsed_s=2 * late.plan.forecast.interval[1]))
    assert (row_of(slow).held, row_of(replace(late, training=replace(late.training, elapsed_s=80))).held) == (
        False,
        True,
    )
    assert "0 of 1</td>" in board([slow])


def test_what_people_typed_is_escaped() -> None:
    entry = whole()
    assert entry.verdict
    entry = replace(entry, verdict=replace(entry.verdict, reason='"><script>'))
    html = board([entry])
    assert '"><script>' not in html
    assert "&#34;&gt;&lt;script&gt;" in html


def test_the_board_has_the_beginning_of_a_long_reason_alone_and_the_server_searches_the_same() -> None:
    row = replace(row_of(whole()), reason=f"{'loss ' * 1000}diverged")
    model = Model(name="shop", rows=[row], pages={})
    ((_, html),) = files([model], name="board", at=AT)
    ((_, short),) = files([replace(model, rows=[replace(row, reason="")])], name="board", at=AT)
    assert len(html) - len(short) < 1500
    assert "loss loss" in html
    assert len(nights_of([model], Query(text="loss"))) == 1
    assert nights_of([model], Query(text="diverged")) == []


def test_words_on_a_rollback_since_find_its_night_on_the_page_and_by_the_server() -> None:
    history = [rolled_back(), whole(12), whole(10, date(2011, 11, 6))]
    rows = re.findall(r'<tr data-o[^>]* data-q="([^"]*)"', board(history))
    assert ["rolled back since" in told for told in rows] == [False, True, False]
    model = Model(name="shop", rows=[row_of(entry) for entry in history], pages={})
    found = nights_of([model], Query(text="rolled back since"))
    assert [(one["outcome"], one["champion"]) for one in found] == [("promoted", 12)]


def test_the_page_sorts_by_whole_figures() -> None:
    row = replace(row_of(whole()), score=0.12345678, champion_score=0.1, decided_s=80_000.123, usd=1e-7)
    assert row.predicted_s
    assert row.trained_s
    ((_, html),) = files([Model(name="shop", rows=[row], pages={})], name="board", at=AT)
    given = [float(value) for value in re.findall(r'<td class="n(?: accent)?" data-v="([^"]+)"', html)]
    of_plan = row.trained_s / row.predicted_s[1]
    assert given == [row.score, row.effect, row.decided_s, row.usd, of_plan, row.num_quarantined]


def test_the_status_has_the_columns_that_were_promised() -> None:
    text = printed([whole()])
    heads = ("day", "night", "verdict", "champion", "hours against deadline", "dollars", "bound")
    positions = [text.index(head) for head in heads]
    assert positions == sorted(positions)
    assert re.search(r"2011-11-08 +2011-11-08 +promoted +12 +0\.02\d of 18 +\$0\.\d\d +compute", text)


def test_the_status_as_json_has_whole_figures_and_a_rollback_has_none() -> None:
    rows = json.loads(json.dumps(status_rows([row_of(one) for one in (rolled_back(), *sixty(), whole(12))])))
    assert (rows[0]["outcome"], rows[0]["champion"], rows[0]["night"]) == ("rollback", 10, None)
    assert rows[0]["closed_at"] == "2026-11-22T14:03:00+00:00"
    assert "elapsed_s" not in rows[0]
    training = whole(12).training
    assert training
    assert rows[-1]["elapsed_s"] == training.elapsed_s
    assert (rows[-1]["verdict"], rows[-1]["limit_s"], rows[-1]["bound"]) == ("promoted", 64800, "compute")
    assert (rows[-1]["effect"], rows[-1]["by"]) == (row_of(whole(12)).effect, None)
    assert rows[-1]["trained_s"] == training.took_s
    assert 0.5 < rows[-1]["trained_s"] / rows[-1]["predicted_s"] < 2
    failed = next(row for row in rows if row["outcome"] == "failed")
    assert failed["cost_usd"] is None


def test_a_failed_night_is_in_the_status_with_its_gaps() -> None:
    failed = next(entry for entry in sixty() if entry.training is None)
    assert re.search(r"failed +\d+ +– of 18 +– +–", printed([failed]))


def test_a_rollback_is_in_the_status_with_its_own_time_and_nothing_of_the_night_it_goes_back_to() -> None:
    lines = printed([rolled_back(), whole(12)]).splitlines()
    assert lines[1].split() == ["2026-11-22", "14:03", "rolled", "back", "10"]
    assert "promoted" in lines[2]


def test_the_status_keeps_its_verdicts_in_a_narrow_terminal() -> None:
    entry = whole()
    name = "manual__2026-11-21T20-26-01.192720-00-00"
    long = replace(entry, night=replace(entry.night, id=name))
    text = printed([long, rolled_back(), *sixty()[:30]], width=80)
    assert "verdict" in text
    for word in ("promoted", "rolled back", "rejected"):
        assert word in text
    assert re.search(r"2011-11-08 +manual-57b6 +promoted +12 ", text)
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_of_a_night_says_that_its_version_was_rolled_back() -> None:
    history = [rolled_back(), whole(12)]
    sentence = outcome.since(whole(12), history)
    assert (
        sentence
        == "Version 12 was rolled back at 2026-11-22 14:03 UTC to version 10: complaints of customers."
    )
    line = outcome.headline(outcome.NightView(entry=whole(12), history=history)).sentence
    assert line == "Promoted, then rolled back: version 12 replaced version 11."
    assert outcome.since(whole(12), [whole(12)]) == ""


def test_a_rejected_newest_night_names_the_rollback_after_it_and_an_older_one_does_not() -> None:
    rejected = whole(13, date(2011, 11, 9), action="reject")
    history = [rolled_back(), rejected, whole(12)]
    assert outcome.since(rejected, history).startswith("Since 2026-11-22 14:03 UTC, version 10 serves again")
    older = whole(9, date(2011, 11, 5))
    assert outcome.since(older, [*history, older]) == ""


def test_a_rollback_takes_all_promotions_back_that_it_goes_over_until_one_serves_again() -> None:
    day = date(2011, 11, 1)
    nights = [whole(n, day + timedelta(days=n)) for n in (12, 11, 10)]
    back = rolled_back()
    assert outcome.rolled_back([back, *nights]) == {11: back, 12: back}
    later = whole(13, day + timedelta(days=13))
    assert outcome.rolled_back([later, back, *nights]) == {11: back, 12: back}
    assert back.release
    far = replace(back, release=replace(back.release, version=3))  # of before this history
    assert outcome.rolled_back([far, *nights]) == {10: far, 11: far, 12: far}
    forth = replace(back, release=replace(back.release, version=12, replaced=10))
    assert outcome.rolled_back([forth, back, *nights]) == {10: forth, 11: back}


def test_the_board_marks_the_night_whose_version_was_rolled_back_and_lends_the_rollback_no_figure() -> None:
    html = board([rolled_back(), whole(12), whole(10, date(2011, 11, 6))])
    rows = re.findall(r"<tr data-o.*?</tr>", html, flags=re.DOTALL)
    assert ["rolled back since" in row for row in rows] == [False, True, False]
    assert "of $50.00" not in rows[0]
    assert "of $50.00" in rows[1]


def test_the_name_of_a_night_is_no_markup() -> None:
    entry = whole()
    entry = replace(entry, night=replace(entry.night, id="[red]x[/red]"))
    assert "[red]x[/red]" in printed([entry])


def test_a_night_that_a_person_approved_and_that_was_rolled_back_says_both() -> None:
    night, by = whole(12), "Ada Lovelace (in Airflow run manual__2026-11-21T20-26-01.192720-00-00)"
    assert night.verdict
    asked = replace(night.verdict, approve_until=night.night.decide_until)
    answer = answer_to(asked, by=by, answered_at=night.night.started_at)
    html = board([rolled_back(), replace(night, verdict=asked, approval=answer)])
    assert f'<small class="by" title="{by}">by {by}</small> <small>rolled back since</small>' in html


def test_a_first_night_of_all_the_past_flattens_no_chart_and_is_named_below_it() -> None:
    nights = [whole(number, date(2011, 11, number)) for number in (8, 7, 6, 5)]
    first = nights[-1]
    assert first.report
    assert first.training
    long = replace(first.training, cost_usd=400.0)
    all_past = replace(first, training=long, report=replace(first.report, num_rows=450_000))
    html = board([*nights[:-1], all_past])
    assert "those that were quarantined. Beyond this chart: 450,000 on 2011-11-05." in html
    assert "Beyond this chart: $400.00 on 2011-11-05." in html
    assert '<span class="top">2,478</span>' in html
