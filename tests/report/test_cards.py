"""The cards of a team's class: what is shown of a night, within limits, and what becomes of a failure."""

import base64
import json
import os
import re
import struct
import textwrap
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from toy import Toy

from daybreak import runner
from daybreak.contract import clock, records
from daybreak.contract.record_parts import OwnCard
from daybreak.contract.record_types import Cards, Dataset, Evaluation, Night, Training
from daybreak.contract.sections import EvaluateParams, RegisterParams, WorkloadPlug
from daybreak.evaluation.evaluator import evaluate
from daybreak.report import cards, page
from daybreak.report.templates import markdown, render
from daybreak.storage.home import Home
from tests.minimal_records import minimal_night, minimal_training
from tests.toy.nights import OWN, PARAMS, make_arrays, make_model, make_night
from tests.toy.stages import home  # noqa: F401  the fixture

ROOT = Path(__file__).parents[2]
SECTION = "### Cards of your own"
START = "import matplotlib.figure\nfrom toy import Toy as TableWorkload\n"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
Made = Callable[[str], tuple[OwnCard, ...]]


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a night whose arrays are there, as the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(OWN)]))
    night = minimal_night(datetime(2026, 11, 29, tzinfo=UTC))
    make_arrays(Path("data/arrays"), night.day)
    records.write(night, Path(records.RUN))
    return tmp_path


@pytest.fixture
def made(night: Path) -> Made:
    """The cards of a class whose method has these lines."""

    def made(lines: str, limit_s: float = cards.LIMIT_S) -> tuple[OwnCard, ...]:
        body = textwrap.indent(textwrap.dedent(lines), "        ")
        use = team(f"class Own(TableWorkload):\n    def cards(self, night):\n{body}\n", name="own_lines")
        return cards.asked(Home(night), WorkloadPlug(use=use), limit_s=limit_s)

    return made


def team(code: str, *, name: str) -> str:
    """Write a team's module into the current folder; returns the import path of its class."""
    Path(f"{name}.py").write_text(START + code)
    kind = code[code.index("class ") + len("class ") :].partition("(")[0]
    return f"{name}:{kind}"


def score(night: Night, *, weight: float = 1.0) -> None:
    """Write what training and evaluate leave."""
    digest = make_model(Path(records.RUN / "model"), weight, last_day=night.day - timedelta(1))
    training = minimal_training(model_digest=digest)
    dataset = Dataset(digest="d", num_samples=1, num_bytes=1, first_day=night.day, last_day=night.day)
    here = Home(Path.cwd())
    scored = evaluate(
        dataset, training, None, Toy(), EvaluateParams(), registered=RegisterParams(), home=here
    )
    for record in (training, scored):
        records.write(record, Path(records.RUN))


def recipe() -> str:
    """The class of the recipe in docs/own-data.md."""
    text = (ROOT / "docs/own-data.md").read_text()
    section = text[text.index(SECTION) :]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]


@pytest.mark.slow
def test_the_recipe_shows_what_is_known_before_the_model_is_scored_and_more_after(night: Path) -> None:
    use = team(recipe(), name="own_recipe")
    Path("params.yaml").write_text(PARAMS.replace("toy:Toy", use))
    cards.renew(Home(night), "prepare")
    first = records.read(Cards, records.LOOKS).cards
    assert [card.title for card in first] == ["Held out"]
    assert first[0].rows[0] == ("samples", "200")
    score(records.read(Night, records.RUN))
    cards.renew(Home(night), "evaluate")
    shown = records.read(Cards, records.LOOKS).cards
    assert [card.failed for card in shown] == [""] * len(shown)
    assert [card.title for card in shown] == ["Held out", "How to read it", "Largest weights", "Scores"]
    assert shown[2].head == ("weight", "value")
    assert shown[3].png
    for html in (page.page(Home(night), night, []), page.write_with_copy(Home(night), night, [])[1]):
        assert "Largest weights" in html
        assert "<em>one</em> weight" in html
        assert f'src="data:image/png;base64,{shown[3].png}"' in html


@pytest.mark.slow
def test_a_class_without_cards_is_not_asked(night: Path) -> None:
    Path("params.yaml").write_text(PARAMS)
    cards.renew(Home(night), "prepare")
    assert not records.LOOKS.exists()


@pytest.mark.slow
def test_what_a_class_shows_is_escaped_and_cut_and_what_cannot_be_shown_says_so(
    night: Path, made: Made
) -> None:
    shown = made(
        """
        import numpy as np, pandas as pd, pyarrow as pa
        yield "<script>alert(1)</script>", (
            "<img src=x onerror=alert(1)> [a](javascript:alert(1)) ![b](http://x/y)"
        )
        yield "t" * 1000, "# w" * 100_000
        yield "figures", {
            "<b>": 10**400, "nan": float("nan"), "none": None, "one": np.float32(0.25),
            "s": "\\ud800\\x00\\u202e",
        }
        many = {"a": range(10_000), "b": [np.nan] * 10_000} | {f"c{n}": 1 for n in range(30)}
        yield "frame", pd.DataFrame(many)
        yield "arrow", pa.table({"when": pd.to_datetime(["2026-11-30", None]), "much": ["x" * 5000, "<i>"]})
        yield "rows", [{"a": 1, "b": None}, {"a": 2.5}]
        yield "png", bytes.fromhex("PNG")
        yield "no png", b"GIF89a" * 10
        yield "object", object()
        yield "truth", True
        yield "huge", 10**5000
        yield "number", np.int64(1234567)
        yield "one too many", "x"
    """.replace("PNG", PNG.hex())
    )
    by_title = {card.title: card for card in shown}
    assert [card.title for card in shown[-2:]] == ["number", "More cards"]
    assert all(len(card.title) <= cards.MOST_TITLE and len(card.text) <= cards.MOST_TEXT for card in shown)
    assert shown[1].note == "Cut after 10,000 characters."
    figures = dict(by_title["figures"].rows)
    assert len(figures["<b>"]) == cards.MOST_CELL
    assert (figures["nan"], figures["none"], figures["one"], figures["s"]) == ("–", "–", "0.25", "   ")
    frame = by_title["frame"]
    assert (len(frame.rows), len(frame.head)) == (cards.MOST_ROWS, cards.MOST_COLUMNS)
    assert frame.note == "The first 50 of 10,000 rows. The first 12 of 32 columns."
    assert frame.rows[1][:3] == ("1", "–", "1")
    assert by_title["arrow"].rows[1] == ("–", "<i>")
    assert by_title["rows"].rows == (("1", "–"), ("2", "–")) or by_title["rows"].rows[1][0] == "2.5"
    assert by_title["png"].png
    assert by_title["no png"].failed.startswith("it is no PNG file")
    assert "object is not shown; give text" in by_title["object"].failed
    assert "huge" in by_title
    assert by_title["huge"].failed.startswith("this card failed: ValueError")
    assert by_title["number"].rows == (("number", "1,234,567"),)
    score(records.read(Night, records.RUN))
    records.LOOKS.mkdir(exist_ok=True)
    records.write(Cards(at=clock.utc(), cards=shown), records.LOOKS)
    html = page.write(Home(night), night, []).read_text()
    assert "&lt;script&gt;alert(1)" in html
    assert "&lt;img src=x" in html
    assert "javascript:" not in re.sub(r"\[a\]\(javascript:alert\(1\)\)", "", html)
    assert "<script>" not in html
    assert 'src="http' not in html


@pytest.mark.slow
def test_charts_of_vega_are_drawn_without_a_network_and_one_that_cannot_be_says_why(made: Made) -> None:
    pytest.importorskip("vl_convert", reason="no charts of Vega-Lite here; pip install 'daybreak[vega]'")
    shown = made(
        """
        import altair as alt, pandas as pd
        frame = pd.DataFrame({"day": pd.to_datetime(["2026-11-29", "2026-11-30"]), "loss": [0.5, 0.25]})
        one = alt.Chart(frame).mark_line().encode(x="day", y="loss")
        yield "altair", one
        yield "side by side", one | one
        lite = one.to_dict()
        yield "dict", lite
        kept = {key: value for key, value in lite.items() if key != "datasets"}
        yield "own rows", kept | {"data": {"values": frame.to_dict("records")}}
        yield "vega", {
            "$schema": "https://vega.github.io/schema/vega/v6.json", "width": 50, "height": 40,
            "marks": [{"type": "rect", "encode": {"enter": {
                "width": {"value": 50}, "height": {"value": 40}, "fill": {"value": "red"}}}}],
        }
        yield "images", lite | {"mark": "image"}
        yield "elsewhere", alt.Chart("https://me:pass@example.com/a.json").mark_bar().encode(x="a:Q")
        source = [{"name": "far", "url": "file:///etc/passwd"}]
        yield "file", {"$schema": "https://vega.github.io/schema/vega/v6.json", "data": source}
        yield "huge", lite | {"width": 50_000, "height": 50_000}
        yield "none", {key: value for key, value in lite.items() if key != "mark"}
        import matplotlib.figure
        yield "large", matplotlib.figure.Figure(figsize=(600, 600))
    """
    )
    why = {card.title: card.failed for card in shown if card.failed}
    drawn = {card.title: card for card in shown if card.png}
    assert list(drawn) == ["altair", "side by side", "dict", "own rows", "vega", "images"]
    sides = struct.unpack(">II", base64.b64decode(drawn["vega"].png)[16:24])
    assert sides == (50, 40)
    assert drawn["altair"].png == drawn["dict"].png == drawn["own rows"].png != drawn["side by side"].png
    assert [bool(card.note) for card in drawn.values()] == [False] * 5 + [True]
    assert why["elsewhere"].startswith("the chart's data are at https://")
    assert "pass@" not in why["elsewhere"]
    assert "/etc/passwd, and a card fetches nothing" in why["file"]
    assert "50," in why["huge"] and "pixels, of at most 4,000 a side; draw it smaller" in why["huge"]
    assert why["none"].startswith("the chart cannot be drawn: ")
    assert 'at least one of the following properties: "mark"' in why["none"]
    assert "60,000 x 60,000 pixels" in why["large"]


@pytest.mark.slow
def test_a_grid_of_seaborn_and_pyplot_itself_are_shown_and_their_sides_are_limited(made: Made) -> None:
    shown = made(
        """
        from matplotlib import pyplot as plt

        class Grid:  # seaborn's, of which these two are public
            def __init__(self, side):
                self.figure = plt.figure(figsize=(side, side))

            def savefig(self, *args, **kwargs):
                self.figure.savefig(*args, **(kwargs | {"bbox_inches": "tight"}))

        yield "grid", Grid(2)
        yield "pyplot", plt
        yield "large grid", Grid(600)
        yield "large pyplot", plt
    """
    )
    assert [card.failed for card in shown[:2]] == ["", ""]
    assert shown[0].png and shown[1].png
    assert all("60,000 x 60,000 pixels" in card.failed for card in shown[2:])


def test_a_chart_has_values_of_numpy_and_pandas_as_json() -> None:
    day = pd.Timestamp("2026-11-29 05:30")
    frame = pd.DataFrame({"at": [day, pd.NaT], "n": np.array([1, 2], dtype=np.int64), "x": [0.5, np.nan]})
    values = {
        "frame": frame,
        "rows": frame.to_dict("records"),
        "column": frame["n"],
        "array": np.array([np.float32(0.5), np.inf]),
        "times": frame["at"].to_numpy(),
        "day": day.date(),
        "time": day.to_pydatetime(),
        "truth": np.bool_(True),
        "money": Decimal("1.5"),
        "none": pd.NA,
    }
    schema = "https://vega.github.io/schema/vega-lite/v6.json"
    chart = cards._vega({"$schema": schema, "datasets": values})
    assert chart is not None
    rows = [{"at": "2026-11-29T05:30:00", "n": 1, "x": 0.5}, {"at": None, "n": 2, "x": None}]
    assert json.loads(json.dumps(chart, allow_nan=False))["datasets"] == {
        "frame": rows,
        "rows": rows,
        "column": [1, 2],
        "array": [0.5, None],
        "times": ["2026-11-29T05:30:00", None],
        "day": "2026-11-29T00:00:00",  # a date alone would be midnight in UTC
        "time": "2026-11-29T05:30:00",
        "truth": True,
        "money": 1.5,
        "none": None,
    }


@pytest.mark.slow
def test_a_chart_of_vega_says_what_to_install_where_nothing_draws_it(made: Made) -> None:
    (card,) = made(
        """
        import sys
        sys.modules["vl_convert"] = None  # as where it is not installed
        yield "a", {"$schema": "https://vega.github.io/schema/vega-lite/v6.json", "mark": "bar"}
    """
    )
    assert "vl_convert is not installed; pip install 'daybreak[vega]'" in card.failed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "titles", "why"),
    [
        (
            "yield 'a', 'text'\nyield 'b', {}['amount']",
            ["a", "Cards"],
            " at line 6 of own_lines.py: KeyError: 'amount'",
        ),
        ("return None", ["Cards"], "TypeError: 'NoneType' object is not iterable"),
        ("return 'ab'", ["Cards"], "ValueError: not enough values"),
        ("import os; os._exit(3)", ["Cards"], "its process ended with exit status 3"),
        ("raise SystemExit('no')", ["Cards"], "SystemExit: no"),
    ],
)
def test_a_class_whose_cards_fail_is_a_sentence_after_those_before(
    made: Made, lines: str, titles: list[str], why: str
) -> None:
    shown = made(lines)
    assert [card.title for card in shown] == titles
    assert shown[-1].failed.startswith("cards of own_lines:Own failed")
    assert why in shown[-1].failed


@pytest.mark.slow
def test_cards_that_do_not_end_are_ended(made: Any) -> None:
    (card,) = made("while True: pass", limit_s=10.0)
    assert card.failed.endswith("its process was ended, since it was not done after 10 s")


@pytest.mark.slow
def test_cards_see_no_secret(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    (card,) = made("import os; yield 'all', str(sorted(os.environ))")
    assert "PATH" in card.text
    assert "PASSWORD" not in card.text


def test_a_process_that_sends_more_than_it_should_is_cut() -> None:
    sent = [OwnCard(title="a\n\x1b[2J", rows=(("x", "y", "z"), (), ("1" * 9999,))) for _ in range(99)]
    shown = cards.bounded(sent)
    assert len(shown) == cards.MOST_CARDS + 1
    assert shown[0].title == "a  [2J"
    assert [len(row) for row in shown[0].rows] == [2, 2, 2]
    assert render("page_cards.html", cards=Cards(at=clock.utc(), cards=shown))


def image(width: int, height: int, *, num_bytes: int = 100) -> str:
    """An image's head, and zeros."""
    head = cards.PNG + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", width, height)
    return base64.b64encode(head.ljust(num_bytes, b"\0")).decode()


@pytest.mark.parametrize(
    ("png", "why"),
    [
        (image(100_000, 100_000), "100,000 x 100,000 pixels"),
        (image(10, 10, num_bytes=600_000), "draw it smaller"),
        ("x" * 99, "no PNG"),
        ("é", "no PNG"),
        ("AAAA", "no PNG"),
        ('"><script>', "no PNG"),
    ],
)
def test_no_image_is_shown_that_a_browser_could_not_take(png: str, why: str) -> None:
    (card,) = cards.bounded([OwnCard(title="a", png=png)])
    assert not card.png
    assert why in card.failed


def test_images_that_are_not_shown_take_no_room_from_others() -> None:
    refused = OwnCard(title="a", png=image(10, 10, num_bytes=600_000))
    shown = cards.bounded([refused, refused, OwnCard(title="b", png=image(9, 9, num_bytes=400_000))])
    assert [bool(card.png) for card in shown] == [False, False, True]


def test_joiners_stay_in_texts_as_scripts_need_them() -> None:
    text = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \U0001f468\u200d\U0001f469"
    (card,) = cards.bounded([OwnCard(title=text, text=f"{text}\u202e")])
    assert (card.title, card.text) == (text, f"{text} ")


def test_a_class_that_shows_no_card_has_no_section(night: Path) -> None:
    score(records.read(Night, records.RUN))
    records.LOOKS.mkdir(exist_ok=True)
    none = Cards(at=clock.utc(), cards=())
    records.write(none, records.LOOKS)
    assert 'id="cards"' not in page.write(Home(night), night, []).read_text()


def test_tables_show_any_values_and_columns() -> None:
    frame = pd.DataFrame(
        {"a": [1, 2], "b": [np.array([1, 2]), np.array([])]}, index=pd.Index([7, 8], name="a")
    )
    shown = cards._table("t", frame)
    assert shown.head == ("a", "a", "b")
    assert shown.rows == (("7", "1", "[1 2]"), ("8", "2", "[]"))
    assert cards._table("t", pa.chunked_array([[1, 2]])).rows == (("1",), ("2",))


def test_images_together_have_a_limit() -> None:
    shown = cards.bounded([OwnCard(title="a", png=image(9, 9, num_bytes=400_000)) for _ in range(4)])
    assert [bool(card.png) for card in shown] == [True, True, False, False]
    assert "together" in shown[2].failed


def test_markdown_has_no_html_of_its_author() -> None:
    html = markdown(
        "# A\n\n<b>b</b> `c<d>` ![x](http://x/y.png) [l](javascript:a) **e**\n\n|f|g|\n|-|-|\n|1|2|"
    )
    assert "<h4>A</h4>" in html
    assert "&lt;b&gt;b" in html
    assert "<img" not in html
    assert 'href="javascript' not in html
    assert "<strong>e</strong>" in html
    assert "<td>2</td>" in html


@pytest.mark.slow
def test_cards_are_asked_for_again_while_a_night_trains_but_neither_often_nor_after_a_failure(
    night: Path,
) -> None:
    use = team(
        "class Own(TableWorkload):\n    def cards(self, night):\n        yield 'seen', night.losses[-1][0]\n",
        name="own_losses",
    )
    Path("params.yaml").write_text(PARAMS.replace("toy:Toy", use))
    job = Path("data/work/jobs/one")
    job.mkdir(parents=True)
    (job / "progress.jsonl").write_text('{"seen": 40, "loss": 0.5}\n')

    def after(kept: tuple[OwnCard, ...], age: timedelta) -> tuple[OwnCard, ...]:
        records.LOOKS.mkdir(exist_ok=True)
        records.write(Cards(at=clock.utc() - age, cards=kept), records.LOOKS)
        cards.renew(Home(night), "train")
        return records.read(Cards, records.LOOKS).cards

    cards.renew(Home(night), "train")
    assert not records.LOOKS.exists()  # `prepare` asks first
    old, failed = OwnCard(title="old"), OwnCard(title="old", failed="it failed")
    assert after((old,), cards.AGAIN / 2) == (old,)
    assert after((failed,), 2 * cards.AGAIN) == (failed,)
    assert after((old,), 2 * cards.AGAIN)[0].rows == (("seen", "40"),)


@pytest.mark.slow
def test_the_stage_evaluate_shows_the_cards_and_goes_on_where_they_fail(
    home: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(OWN)]))
    folder = make_night(home, 0, weight=1.0)
    monkeypatch.chdir(folder)
    code = "class Own(TableWorkload):\n    def cards(self, night):\n        yield 'w', night.model.weight\n"
    use = team(code, name="own_stage")
    Path("params.yaml").write_text(PARAMS.replace("toy:Toy", use))
    model = records.RUN / "model" / "model.json"
    model.write_text(model.read_text().replace("toy:Toy", use))
    training = records.read(Training, records.RUN)
    records.write(
        Training(**{**vars(training), "model_digest": records.digest(records.RUN / "model")}), records.RUN
    )
    runner.run(Home.here(), "evaluate")
    (card,) = records.read(Cards, records.LOOKS).cards
    assert "Parameter is not shown" in card.failed
    assert records.read(Evaluation, records.RUN).num_samples


def test_the_losses_so_far_are_those_of_the_model_as_the_record_has_them(night: Path) -> None:
    job = Path("data/work/jobs/one")
    job.mkdir(parents=True)
    beats = [(10, 4.0), (20, 3.0), (30, 2.5), (20, 2.75), (30, float("nan"))]
    lines = [{"seen": seen, "loss": loss, "filler": "x" * 200_000} for seen, loss in beats]
    (job / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert cards._facts(night, None)["losses"] == ((10, 4.0), (20, 2.75))
