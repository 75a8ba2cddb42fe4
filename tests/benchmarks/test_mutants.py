"""The bench of mutants changes code that tests should notice, and leaves the rest alone."""

import pytest

from benchmarks.bench_mutants import mutants


def changed(source: str) -> set[str]:
    return {change for _, change, _ in mutants(source)}


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("a < b", {"a < b  ->  a <= b", "a < b  ->  a >= b"}),
        ("a and b", {"a and b  ->  a or b"}),
        ("not a", {"not a  ->  a"}),
        ("a - 2", {"a - 2  ->  a + 2", "2  ->  3", "2  ->  4"}),
        ("min(a, b)", {"min(a, b)  ->  max(a, b)"}),
        ("if a:\n    b", {"if a:  ->  if True:", "if a:  ->  if False:"}),
        (
            "[a for a in b if a]",
            {" for a in b if a  ->   for a in b if True", " for a in b if a  ->   for a in b if False"},
        ),
        ("def f():\n    g()", {"g()  ->  pass"}),
        ("def f():\n    return a", {"return a  ->  return None"}),
        (
            "def f():\n    return a == b",
            {"a == b  ->  a != b", "return a == b  ->  return None", "return a == b  ->  return not a == b"},
        ),
    ],
)
def test_one_place_is_changed_at_a_time(source: str, changes: set[str]) -> None:
    assert changed(source) == changes


@pytest.mark.parametrize(
    "source",
    ["'a text'", "x: tuple[int, 2]", "def f():\n    log.info('%d', 3)", "if TYPE_CHECKING:\n    import a"],
)
def test_texts_types_and_lines_of_a_log_are_left_alone(source: str) -> None:
    assert changed(source) == set()


def test_a_mutant_is_the_whole_module_with_its_line() -> None:
    source = "a = 0\nb = c\n"
    assert list(mutants(source)) == [(1, "0  ->  1", "a = 1\nb = c")]
