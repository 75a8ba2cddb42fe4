"""The pages of nights over HTTP: what is shown, to whom, and what moves."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import requests
from fastapi import FastAPI
from markupsafe import escape

from daybreak.contract import records
from daybreak.contract.record_parts import OwnCard
from daybreak.contract.record_types import Cards
from daybreak.extensions.pages import night_pages
from daybreak.extensions.router.settings import RouterParams
from daybreak.report import links, night_rows, page
from daybreak.storage import ledger
from daybreak.storage.home import Home
from tests.extensions.pages import fleet, training_night
from tests.extensions.pages.served import served
from tests.minimal_records import answer_to
from tests.report.histories import nights, write_ledger
from tests.report.nights import lay, whole
from tests.training import nights as training_nights

LAST = date(2026, 11, 24)
LIMIT_S = 300


@pytest.fixture(scope="module")
def lead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = fleet.make(tmp_path_factory.mktemp("fleet"), num=8, last=LAST, shop=1, fraud=2)
    fleet.lay_page(home, "2026-11-24")
    fleet.lay_page(home, "2026-11-23")
    return home


@pytest.fixture(scope="module")
def url(lead: Path) -> Iterator[str]:
    with served(lead) as address:
        yield address


def get(address: str, **given: object) -> requests.Response:
    return requests.get(address, timeout=LIMIT_S, allow_redirects=False, **given)  # type: ignore[arg-type]


def test_the_board_has_the_nights_of_all_models_and_answers_what_is_asked(url: str) -> None:
    assert "2 models: 16 nights" in get(f"{url}/nights").text
    assert get(f"{url}/nights?model=fraud").text.count("<tr data-o") == 8
    searched = get(f"{url}/nights?q=2026-11-24&sort=-cost").text
    assert searched.count("<tr data-o") == 2
    assert 'aria-sort="descending"' in searched
    assert "Daybreak" in get(f"{url}/nights?page=x&sort=nothing&outcome=<script>").text
    assert get(url).headers["location"] == "/nights"


def test_two_nights_are_compared_figure_by_figure(url: str) -> None:
    html = get(f"{url}/nights/compare?night=shop/2026-11-24&night=fraud/2026-11-20").text
    assert "fraud 2026-11-20 and shop 2026-11-24" in html
    assert html.count("<tr") == 18
    assert get(f"{url}/nights/compare?night=shop/2026-11-24").status_code == 422
    assert get(f"{url}/nights/compare?night=shop/2026-11-24&night=../x").status_code == 422


def test_a_night_is_served_with_links_to_the_nights_around_it(url: str) -> None:
    assert 'href="/nights/shop/2026-11-24/"' in get(f"{url}/nights").text
    page = get(f"{url}/nights/shop/2026-11-24/").text
    assert '<a href="/nights">Board</a>' in page
    assert '<a href="/nights/shop/2026-11-23/">Previous night</a>' in page
    assert "../" not in page
    assert '<a href="/nights/shop/2026-11-24/">Next night</a>' in get(f"{url}/nights/shop/2026-11-23/").text


def test_a_night_whose_folder_is_gone_leads_to_mlflow_and_else_says_so(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_UI", raising=False)
    assert get(f"{url}/nights/shop/2026-11-20/").status_code == 404
    monkeypatch.setenv("MLFLOW_UI", "http://127.0.0.1:5000")
    assert get(f"{url}/nights/shop/2026-11-20/").headers["location"].startswith("http://127.0.0.1:5000/#/")


@pytest.mark.parametrize(
    "path",
    [
        "shop/..%2f..%2fparams.yaml/",
        "nobody/2026-11-24/",
        "shop/.git/",
        "shop/2026-11-24/docs/..%2freport.html",
        "shop/2026-11-24/docs/%2e%2e/%2e%2e/%2e%2e/%2e%2e/params.yaml",
    ],
)
def test_no_other_file_of_a_home_is_served(url: str, path: str) -> None:
    assert get(f"{url}/nights/{path}").status_code == 404


def test_data_docs_of_a_night_are_served_without_scripts(url: str, lead: Path) -> None:
    page = lead / "nights/2026-11-24" / links.PAGE.parent / "docs/days.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>all is well</p>")
    answer = get(f"{url}/nights/shop/2026-11-24/docs/days.html")
    assert answer.text == "<p>all is well</p>"
    assert "script-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["a%00b", "n" * 300, "a/" * 3000, "a.png", "", "static"])
def test_an_address_that_is_no_page_of_data_docs_is_not_found(url: str, lead: Path, path: str) -> None:
    docs = lead / "nights/2026-11-24" / links.PAGE.parent / "docs"
    (docs / "static").mkdir(parents=True, exist_ok=True)
    (docs / "a.png").write_bytes(b"\x89PNG")
    assert get(f"{url}/nights/shop/2026-11-24/docs/{path}").status_code == 404


@pytest.mark.slow
def test_a_night_that_trains_shows_the_cards_of_its_class_and_asks_for_the_page_anew_once_they_change(
    tmp_path: Path,
) -> None:
    lead = fleet.make(tmp_path, num=3, last=LAST, shop=1)
    night = training_nights.night(seconds=3600, name="2026-11-25", day=date(2026, 11, 25))
    folder = lead / "nights/2026-11-25"
    with training_night.training(folder, night=night), served(lead) as address:

        def other(*states: str) -> str:
            """The first page that the stream says the night has which is none of these."""
            source = f"{address}/nights/live?model=shop&night=2026-11-25"
            with requests.get(source, stream=True, timeout=LIMIT_S) as stream:
                lines = stream.iter_lines(decode_unicode=True)
                pages = (next(lines).removeprefix("data: ") for line in lines if line == "event: page")
                return next(page for page in pages if page not in states)

        states = [other()]
        assert "Cards" not in get(f"{address}/nights/shop/2026-11-25/").text
        assert states == ["live"]
        (folder / records.LOOKS).mkdir()
        for text in ("first <b>", "second"):
            card = OwnCard(title=text, text="a *word*")
            records.write(Cards(at=night.started_at, cards=(card,)), folder / records.LOOKS)
            shown = get(f"{address}/nights/shop/2026-11-25/").text
            assert f"<h3>{escape(text)}</h3>" in shown
            assert "a <em>word</em>" in shown
            states.append(other(*states))
            assert f'data-page="{states[-1]}"' in shown
        records.write(Cards(at=night.started_at, cards=()), folder / records.LOOKS)
        assert 'id="cards"' not in get(f"{address}/nights/shop/2026-11-25/").text


@pytest.mark.parametrize("night", ["n" * 300, "n" + "\U00020000" * 80, "a%00b"])
def test_a_night_that_no_folder_can_be_called_is_not_found(url: str, night: str) -> None:
    assert get(f"{url}/nights/shop/{night}/").status_code == 404
    assert get(f"{url}/nights/shop/{night}/docs/a.html").status_code == 404


def test_a_page_may_load_nothing_and_be_shown_in_no_frame(url: str) -> None:
    policy = get(f"{url}/nights").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_a_request_that_names_another_host_is_refused_on_loopback(lead: Path, host: str) -> None:
    with served(lead, host=host) as url:
        assert get(f"{url}/nights").status_code == 200
        assert get(f"{url}/nights", headers={"host": "evil.example"}).status_code == 403


def test_with_a_token_only_those_who_have_it_read_the_nights(lead: Path) -> None:
    with served(lead, token="s3cret", host="0.0.0.0") as address:
        refused = get(f"{address}/nights")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
        assert get(f"{address}/nights/live").status_code == 401
        assert get(f"{address}/nights", auth=("anybody", "s3cre")).status_code == 401
        assert get(f"{address}/nights", headers={"authorization": "Basic !"}).status_code == 401
        assert get(f"{address}/nights", auth=("anybody", "s3cret")).status_code == 200
        assert get(f"{address}/nights", headers={"authorization": "Bearer s3cret"}).status_code == 200
        assert get(f"{address}/health").status_code == 200


def test_a_ledger_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=LAST, shop=1, fraud=2)
    (tmp_path / "fraud/.git/HEAD").write_text("nothing")
    with served(lead) as address:
        text = get(f"{address}/nights").text
    assert "fraud: git" in text
    assert text.count("<tr data-o") == 3


def digests(homes: Path) -> dict[str, str]:
    """Of all files of the homes in a folder, but the rows of figures that pages keep."""
    kept = {home / night_rows.FILE for home in homes.iterdir()}
    return {
        str(path.relative_to(homes)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in homes.rglob("*")
        if path.is_file() and path not in kept
    }


METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH")


@pytest.mark.slow
def test_nothing_but_the_rows_of_figures_is_changed_by_any_request(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=LAST, shop=1, fraud=2)
    fleet.lay_page(lead, "2026-11-24")
    app = night_pages.make_app(lead, RouterParams()).app
    assert isinstance(app, FastAPI)
    paths = [
        path.format(model="shop", night="2026-11-24", **{"path:path": "days.html", "path": "days.html"})
        for path in app.openapi()["paths"]
    ]
    assert {"/", "/health", "/nights", "/nights/live", "/nights/shop/2026-11-24/"} <= {*paths}
    before = digests(tmp_path)
    assert any(".git/" in path for path in before)
    answered = set()
    with served(lead) as url:
        for path in paths:
            for method in METHODS:
                with requests.request(
                    method, f"{url}{path}", stream=True, timeout=LIMIT_S, allow_redirects=False
                ) as answer:
                    answered.add((method, answer.status_code))
                    if path != "/nights/live":  # which does not end
                        answer.content  # noqa: B018 is read to its end
            assert digests(tmp_path) == before
    assert ("GET", 200) in answered
    assert {status for method, status in answered if method not in ("GET", "HEAD")} == {405}
    assert (lead / night_rows.FILE).exists()


@pytest.mark.slow
def test_a_night_that_waits_for_a_person_shows_its_evidence_until_the_answer(tmp_path: Path) -> None:
    lead = fleet.make(tmp_path, num=3, last=LAST, shop=1)
    night = training_nights.night(seconds=3600, name="2026-11-25", day=date(2026, 11, 25))
    entry = replace(whole(action="reject"), night=night, commit="", champion=None)
    assert entry.verdict
    asked = replace(entry.verdict, inconclusive=True, approve_until=night.decide_until)
    folder = lay(replace(entry, verdict=asked), lead / "nights/2026-11-25")
    address_of_night = "nights/shop/2026-11-25/"
    with served(lead) as address:
        assert "approve waits for a person" in get(f"{address}/{address_of_night}").text
        page.write(Home(lead), folder, ledger.history(Home(lead)))
        html = get(f"{address}/{address_of_night}").text
        for part in (
            'class="effect"',
            'id="slices"',
            'id="data"',
            ">Approve</a>",
            ">Reject</a>",
            "by-hand",
            '<a href="/nights/shop/2026-11-24/">Previous night</a>',
            'data-page="evidence"',
        ):
            assert part in html
        assert 'title="not reached">– approve' in html
        records.write(
            answer_to(asked, answered_at=night.started_at),
            folder / records.RUN,
        )
        html = get(f"{address}/{address_of_night}").text
        assert 'data-page="live"' in html
        assert "refit is under way" in html


@pytest.mark.slow
def test_a_stream_sends_a_running_night_as_it_moves_and_tells_when_it_is_in_the_ledger(
    tmp_path: Path,
) -> None:
    lead = fleet.make(tmp_path, num=3, last=LAST, shop=1, fraud=2)
    night = training_nights.night(seconds=3600, name="2026-11-25", day=date(2026, 11, 25))
    seen: list[str] = []
    moved = threading.Event()

    def listen(address: str) -> None:
        with requests.get(f"{address}/nights/live", stream=True, timeout=LIMIT_S) as stream:
            for line in stream.iter_lines(decode_unicode=True):
                seen.append(line)
                moved.set()
                if seen.count("event: ledger") == 2:
                    return

    with training_night.training(lead / "nights/2026-11-25", night=night) as job, served(lead) as address:
        listener = threading.Thread(target=listen, args=(address,))
        listener.start()
        for number in (1, 2):
            training_night.beat(job, number, night=night)
            until_seen(f"{number * training_night.STEP / training_night.SAMPLES:.4f}", seen, moved)
        shown = get(f"{address}/nights/shop/2026-11-25/").text
        assert 'data-page="live"' in shown
        assert "nights/live?model=shop&amp;night=2026-11-25" in shown
        write_ledger(lead, list(nights(4, last=date(2026, 11, 25))))
        listener.join(LIMIT_S)
        assert seen.count("event: ledger") == 2
        assert (
            get(f"{address}/nights/shop/2026-11-25/").status_code == 404
        )  # it is closed, and has left no page
    assert datetime.now(UTC) < night.train_until


def until_seen(text: str, lines: list[str], moved: threading.Event) -> None:
    while not any(text in line for line in lines):
        assert moved.wait(LIMIT_S)
        moved.clear()
