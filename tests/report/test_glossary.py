"""Words of a page that are explained where they stand, from the glossary."""

import re
from dataclasses import replace
from pathlib import Path

from jinja2 import DictLoader
from markupsafe import Markup

from daybreak.report import glossary, templates
from daybreak.report.page import page
from daybreak.storage.home import Home
from tests.report.nights import lay, sixty, whole


def shown(text: str) -> str:
    """The text as a page shows it that explains its words."""
    environment = templates.environment().overlay(loader=DictLoader({"page": "{{ text | explained }}"}))
    return environment.get_template("page").render({"text": text, glossary.USED: glossary.ExplainedWords()})


def test_a_word_is_a_button_where_it_stands_first_and_the_rest_stays_as_it_is() -> None:
    text = "Worse than the anchor <b> by more than the margin; the anchor stays."
    html = shown(text)
    assert html.count("<button") == 2
    assert 'popovertarget="word-anchor">anchor</button> &lt;b&gt; by' in html
    assert Markup(re.sub("<[^>]*>", "", html)).unescape() == text


def test_no_line_begins_with_the_sign_that_follows_a_word() -> None:
    html = shown("Line: the deadline. The anchor's (chain), and margin:s")
    kept = [re.sub("<[^>]*>", "", one) for one in re.findall('<span class="nb">(.*?)</span>', html)]
    assert Markup(" ").join(map(Markup, kept)).unescape() == "deadline. anchor's (chain), margin:"


def test_the_longest_word_is_explained_and_no_part_of_another() -> None:
    assert 'popovertarget="word-noise-scale">noise scale</button>' in shown("a noise scale of 30")
    assert "<button" not in shown("marginal costs, unbound, cold-start, too few to bound it")
    assert 'popovertarget="word-hold-back">hold-back</button>' in shown("the hold-back of 5 %")


def test_each_line_of_the_glossary_explains_a_word_of_its_own() -> None:
    text = glossary.FILE.read_text()
    words = [line.split("**")[1] for line in text.splitlines() if line.startswith("- ")]
    assert list(glossary.lines()) == words == sorted(set(words))
    assert not [line for line in glossary.lines().values() if "](" in line or "`" in line]


def test_each_part_of_a_nights_page_explains_its_words_and_every_button_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("source: a:B\nworkload: a:B\nbackend: a:B\n")
    night = whole(62)
    assert night.verdict
    night = replace(night, verdict=replace(night.verdict, margin=0.03))
    html = page(Home.here(), lay(night, tmp_path), sixty())
    parts = dict(re.findall(r'<div id="([a-z-]+)">\n(.*?)\n  </div>\n</details>', html, flags=re.DOTALL))
    buttons = {name: re.findall(r'popovertarget="word-([a-z-]+)"', part) for name, part in parts.items()}
    for part, words in {
        "checks": {"challenger"},
        "bottleneck": {"bound", "noise-scale"},
        "plan": {"interval", "fallback"},
        "nights": {"chain", "challenger", "margin", "interval"},
    }.items():
        assert words <= set(buttons[part])
    assert all(len(words) == len(set(words)) for words in buttons.values())
    lines = re.findall(r'<div popover class="meaning" id="word-([a-z-]+)">', html)
    assert set(lines) == set(re.findall(r'popovertarget="word-([a-z-]+)"', html))
    assert len(lines) == len(set(lines))
