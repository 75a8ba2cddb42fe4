"""What the documentation says: commands parse, files are there, links lead somewhere, tables are current."""

import ast
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import daybreak
from daybreak import cli, stages
from daybreak.contract.sections import Params
from daybreak.extensions.live_test.settings import OwnMetricParams
from tests import architecture, docs

ROOT = architecture.ROOT
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE = re.compile(
    r"(?:pipeline|tests|benchmarks|dags|docs|data|\.ci)/[\w./*-]+|[\w-]+\.(?:md|toml|txt|yaml|conf)"
)
MADE = (
    "data/run",
    "data/work",
    "data/arrays",
    "data/raw",
    "data/clean",
    "data/quarantine",
    "data/figures",
    "data/champion",
)
LANGUAGES = {"sh", "text", "yaml", "python"}  # a fence without one could hide a command from these tests

API = re.compile(r"\b(?:from daybreak import ([\w, ]+)|daybreak:([A-Za-z]\w+))")
ROOM = re.compile(r"from (daybreak\.[\w.]+) import|\b(daybreak\.(?!examples\.)[\w.]+):\w")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


def inline(page: Path) -> list[str]:
    """What stands in backticks in the text, each in one line."""
    return [" ".join(code.split()) for code in CODE.findall(prose(page))]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each simple command: of the shell blocks, and of inline code that begins like one."""
    lines = [code for code in inline(page) if re.match(r"daybreak \w|python -m |make \w|pytest ", code)]
    for _, language, block in FENCE.findall(page.read_text()):
        if language == "sh":
            lines += block.replace("\\\n", " ").splitlines()
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if set(word) <= set("&|;()<>"):
                yield words
                words = []
            else:
                words.append(word)
        yield words


@cache
def parse(*words: str) -> None:
    """Parse the words of `daybreak` without a run; SystemExit where it refuses them."""
    cli.parser(list(words)).parse_args(words)


@cache
def dry_run(*words: str) -> None:
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"make {' '.join(words)}: {done.stderr}"


def check_daybreak(words: list[str]) -> None:
    """Check `daybreak ...`: its parser takes the words."""
    words = [stages.CHAIN[0], *words[1:]] if words[:1] == ["STAGE"] else words
    try:
        parse(*words)
    except SystemExit as error:
        assert error.code == 0, f"daybreak {' '.join(words)} is refused"


def check_python(module: str) -> None:
    """Check `python -m MODULE ...`: a module of ours is a file here."""
    for top, folder in (("daybreak", ROOT / "pipeline"), ("tests", ROOT), ("benchmarks", ROOT)):
        if module.startswith(f"{top}."):
            assert (folder / f"{module.replace('.', '/')}.py").is_file(), f"there is no module {module}"


def check_make(words: list[str]) -> None:
    """Check `make TARGET ...`: the target is there, and the benchmark that NAME names."""
    dry_run(*words)
    for name in (word.removeprefix("NAME=") for word in words if word.startswith("NAME=")):
        assert (ROOT / f"benchmarks/bench_{name}.py").exists(), f"no benchmark is named {name}"


def check(words: list[str]) -> None:
    """Check a command: its words are known, the files that it names are there."""
    if words[:2] == ["python", "-m"]:
        check_python(words[2])
    elif words[:1] == ["daybreak"]:
        check_daybreak(words[1:])
    elif words[:1] == ["make"]:
        check_make(words[1:])
    missing = [word for word in words if FILE.fullmatch(word) and not is_there(word)]
    assert not missing, f"{' '.join(words)}: there is no {missing[0]}"


@pages
def test_a_command_in_the_documentation_would_run(page: Path) -> None:
    for words in commands(page):
        check(words)


def test_each_benchmark_is_behind_a_sentence_of_the_documentation() -> None:
    cited = {name for page in PAGES for name in re.findall(r"NAME=(\w+)", page.read_text())}
    there = {path.stem.removeprefix("bench_") for path in (ROOT / "benchmarks").glob("bench_*.py")}
    assert there - cited == set()


WRONG = [
    "daybreak paln --night ID",
    "daybreak plan --explian",
    "python -m tests.nothing",
    "make nigth",
    "make bench NAME=nothing",
    "pytest tests/nothing -x",
]


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_is_seen(command: str) -> None:
    with pytest.raises(AssertionError):
        check(command.split())


def is_there(name: str) -> bool:
    """Is there such a file, folder, or pattern of files, unless a night makes it?"""
    return name.startswith(MADE) or any(ROOT.glob(name.rstrip("/")))


@pages
def test_a_file_that_the_documentation_names_is_there(page: Path) -> None:
    named = [code for code in inline(page) if FILE.fullmatch(code) and "/" in code]
    assert [name for name in named if not is_there(name)] == []


@pages
def test_a_fenced_block_says_its_language(page: Path) -> None:
    assert {language for _, language, _ in FENCE.findall(page.read_text())} <= LANGUAGES


@pages
def test_a_fenced_block_of_python_or_yaml_parses(page: Path) -> None:
    for _, language, text in FENCE.findall(page.read_text()):
        if language == "python":
            ast.parse(textwrap.dedent(text))
        elif language == "yaml":
            assert list(YAML(typ="safe", pure=True).load_all(text))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pages
def test_a_link_leads_to_a_file_or_a_heading(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), (
            f"{page.name} links to {target}, which has no such heading"
        )


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {
        (ROOT / target.partition("#")[0]).resolve() for target in LINK.findall(prose(ROOT / "README.md"))
    }
    assert [page.name for page in PAGES[1:] if page not in linked] == []


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1200


@pytest.mark.parametrize("page", docs.pages(), ids=lambda page: page.name)
def test_what_is_made_of_the_code_is_as_the_code_makes_it(page: Path) -> None:
    written = page.read_text() if page.exists() else ""
    assert written == docs.pages()[page] + "\n", f"{page.name} is not what the code makes; run: make docs"


def test_each_key_of_params_says_what_it_is() -> None:
    plugs = {name for name, field in Params.model_fields.items() if docs.is_plug(field.annotation)}
    kept = {(Params, name) for name in plugs}
    for section in (*(section for _, section in docs.sections()), OwnMetricParams):
        kept |= {(section, key) for key in section.model_fields}
    for section, key in kept:
        described = docs.descriptions(section)
        assert described.get(key, "").endswith("."), f"{section.__name__}.{key} has no text below it"


ROOMS = {"README.md": r"^  (\w+)/ ", "CONTRIBUTING.md": r"^\| `pipeline/daybreak/(\w+)/` \|"}


@pytest.mark.parametrize("page", ROOMS)
def test_every_room_is_named_in_order(page: str) -> None:
    rooms = re.findall(ROOMS[page], (ROOT / page).read_text(), re.MULTILINE)
    wanted = [*architecture.ROOMS, "night", architecture.EXTENSIONS, architecture.EXAMPLES]
    assert rooms == wanted, "run: python -m tests.architecture"


def test_a_file_in_the_table_of_rooms_is_there() -> None:
    rows = re.findall(
        r"^\| `(pipeline/daybreak/\w+/)` \|(.*)$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )
    named = [room + name for room, row in rows for name in re.findall(r"`([\w/]+\.(?:py|csv|html))`", row)]
    assert [name for name in named if not is_there(name)] == []


@pages
def test_a_page_names_the_api_and_no_module_inside(page: Path) -> None:
    named = {name for names, one in API.findall(page.read_text()) for name in (one or names).split(", ")}
    assert named - {""} <= set(daybreak.__all__)
    assert not ROOM.findall(page.read_text())


def kept() -> Iterator[str]:
    """The names by which tests keep pictures of what a browser shows, as patterns."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "keep":
                name = call.args[1]
                parts = name.values if isinstance(name, ast.JoinedStr) else [name]
                yield "".join(
                    re.escape(one.value) if isinstance(one, ast.Constant) else ".+" for one in parts
                )


def test_each_picture_is_one_that_a_test_keeps_and_a_page_shows() -> None:
    names = list(kept())
    shown = "".join(page.read_text() for page in PAGES)
    for picture in (ROOT / "docs").glob("*.png"):
        assert any(re.fullmatch(name, picture.stem) for name in names if name != ".+"), picture.name
        assert f"{picture.name})" in shown
