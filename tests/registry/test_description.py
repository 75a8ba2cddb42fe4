"""A version's text in MLflow is whole lines, as many as its databases take."""

import pytest

from daybreak.registry.description import MOST_CHARACTERS, fitting, with_first

ROWS = "\n".join(f"| slice {n} | 0.5 |" for n in range(1000))


@pytest.mark.parametrize("text", ["", "short", "x" * MOST_CHARACTERS])
def test_a_text_that_fits_is_left_as_it_is(text: str) -> None:
    assert fitting(text) == text


def test_a_longer_one_ends_with_a_whole_line_and_says_where_the_rest_is() -> None:
    cut = fitting(f"Verdict\n\n{ROWS}")
    kept, _, note = cut.rpartition("\n\n")
    assert len(cut) <= MOST_CHARACTERS
    assert f"Verdict\n\n{ROWS}".startswith(f"{kept}\n| slice ")
    assert note == "Cut at 5,000 characters; all of it is in report.html of the night's run."
    again = fitting(with_first(cut, "A much longer verdict, after a person's answer"))
    assert again.count("Cut at 5,000") == 1 and len(again) <= MOST_CHARACTERS
