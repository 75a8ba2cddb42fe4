"""Words of a page that are explained where they stand, from the glossary."""

import re

from jinja2 import DictLoader
from markupsafe import Markup

from daybreak.report import glossary, templates


def shown(text: str) -> str:
    """The text as a page shows it that explains its words."""
    environment = templates.environment().overlay(loader=DictLoader({"page": "{{ text | explained }}"}))
    return environment.get_template("page").render({"text": text, glossary.USED: {}})


def test_a_word_is_a_button_where_it_stands_first_and_the_rest_stays_as_it_is() -> None:
    text = "Worse than the anchor <b> by more than the margin; the anchor stays."
    html = shown(text)
    assert html.count("<button") == 2
    assert 'popovertarget="word-anchor">anchor</button> &lt;b&gt; by' in html
    assert Markup(re.sub("<[^>]*>", "", html)).unescape() == text


def test_the_longest_word_is_explained_and_no_part_of_another() -> None:
    assert 'popovertarget="word-noise-scale">noise scale</button>' in shown("a noise scale of 30")
    assert "<button" not in shown("marginal costs, unbound, cold-start")
    assert 'popovertarget="word-hold-back">hold-back</button>' in shown("the hold-back of 5 %")


def test_each_line_of_the_glossary_explains_a_word_of_its_own() -> None:
    text = glossary.FILE.read_text()
    words = [line.split("**")[1] for line in text.splitlines() if line.startswith("- ")]
    assert list(glossary.lines()) == words == sorted(set(words))
    assert not [line for line in glossary.lines().values() if "](" in line or "`" in line]
