"""Every line about security names a test that is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.bench_attacks import ATTACKS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NODE = re.compile(r"(tests/[\w/]+\.py)::(test_\w+)")
NAMED = sorted({match[0] for text in (PAGE, *(one.test for one in ATTACKS)) for match in NODE.finditer(text)})


@cache
def names_in(path: Path) -> set[str]:
    """The names of the tests in a file."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("node", NAMED)
def test_a_test_that_is_named_is_there(node: str) -> None:
    path, _, name = node.partition("::")
    assert name in names_in(ROOT / path)


def test_each_line_of_the_page_names_its_test_or_says_that_it_is_not_defended() -> None:
    lines = re.split(r"^- ", PAGE, flags=re.M)[1:]
    assert len(lines) > 20
    assert [line[:60] for line in lines if not NODE.search(line) and not line.startswith("**")] == []


@cache
def in_the_quick_tier(node: str) -> bool:
    """Returns whether `make test` has it, by the marks of the test and of its file."""
    path, _, name = node.partition("::")
    marks: list[str] = []
    for each in ast.parse((ROOT / path).read_text()).body:
        if isinstance(each, ast.FunctionDef) and each.name == name:
            marks += map(ast.unparse, each.decorator_list)
        elif isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "pytestmark":
            marks += map(ast.unparse, each.value.elts if isinstance(each.value, ast.List) else [each.value])
    return "pytest.mark.promise" in marks or "pytest.mark.slow" not in marks


def test_each_boundary_has_an_attack_in_the_quick_tier() -> None:
    parts = [part for part in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:] if NODE.search(part)]
    assert len(parts) > 10
    slow = [
        part.splitlines()[0]
        for part in parts
        if not any(in_the_quick_tier(one[0]) for one in NODE.finditer(part))
    ]
    assert slow == []


def test_the_attacks_are_at_least_forty_by_other_names() -> None:
    assert len({one.name for one in ATTACKS}) == len(ATTACKS) >= 40
