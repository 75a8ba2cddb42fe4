"""The rooms in order, and the imports among files. `python -m tests.architecture` draws both.

`python -m tests.architecture planning jobs` says what each file of these rooms is about.

A room may import only itself and rooms before it. All imports count: of packages, below TYPE_CHECKING, and
inside functions.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from sys import argv

ROOT = Path(__file__).parent.parent
ROOMS = (
    "contract",
    "statistics",
    "storage",
    "machines",
    "data",
    "training",
    "workloads",
    "profiling",
    "prediction",
    "planning",
    "backends",
    "jobs",
    "registry",
    "evaluation",
    "rollout",
    "gate",
    "report",
    "serving",
    "batch_inference",
)
FIRST = ("hooks",)  # the table of extensions, which every room may ask
# Modules beside the rooms, which know all of them, in order too.
TOP = (
    "supervisord_listener",
    "with_secrets",
    "airflow_health",
    "airflow_api",
    "airflow_question",
    "warm_parent",
    "night",
    "stages",
    "runner",
    "dvc_file",
    "dag_file",
    "check",
    "commands",
    "cli",
    "__main__",
)
EXAMPLES = "examples"  # leans on the rooms as a team's own package does, and is imported by none
EXTENSIONS = "extensions"  # lean on the core, which asks daybreak/hooks.py for them and imports none
CORE_TO_EXTENSION: set[tuple[str, str]] = set()  # what the core still imports of them; it only shrinks
Graph = dict[str, set[str]]  # modules, and what each imports


def modules(root: Path) -> dict[str, Path]:
    """Returns the modules of the package in `root` by their names, a package by `__init__.py`; no tests."""
    root /= "pipeline"
    files = sorted(p for p in (root / "daybreak").rglob("*.py") if not p.name.startswith("test_"))
    return {".".join(p.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): p for p in files}


def imported(path: Path) -> frozenset[str]:
    """Returns the absolute names that a file imports, those of attributes among them."""
    return _imported(path.read_text())


@cache  # the tests of the house read each file ten times
def _imported(text: str) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{ast.unparse(node)}: relative imports hide what is imported"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@cache
def _extensions_in_strings(text: str) -> frozenset[str]:
    """Returns the names of extensions' modules in strings, by which they are imported too; no docstrings."""
    tree = ast.parse(text)
    about = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in about
    ]
    return frozenset(re.findall(rf"daybreak\.{EXTENSIONS}\.\w[\w.]*", " ".join(strings)))


def graph(root: Path = ROOT) -> Graph:
    """Returns which module imports which, or names in a string, without the package `daybreak` itself."""
    known = modules(root)
    edges: Graph = {}
    for name, path in known.items():
        resolve = _resolver(known)
        targets = {target for target in map(resolve, imported(path)) if target}
        strings = {target for target in map(resolve, _extensions_in_strings(path.read_text())) if target}
        targets |= {target for target in strings if room(target) != room(name)}
        edges[name] = targets - {name, "daybreak"}
    return edges


def _resolver(known: dict[str, Path]):
    def resolve(name: str) -> str | None:
        """The longest module that the name begins with: `daybreak.a.b.f` is of `daybreak.a.b`."""
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name or None

    return resolve


def room(module: str) -> str:
    """Returns the room of a module, such as `data` or `extensions.bag`, or a loose module's own name."""
    if "." not in module:
        return module
    return ".".join(module.split(".")[1 : 3 if is_extension(module) else 2])


def is_extension(module: str) -> bool:
    """Returns whether a module belongs to an extension; the table of extensions does not."""
    return module.startswith(f"daybreak.{EXTENSIONS}.")


def leans_on(name: str, root: Path = ROOT) -> set[str]:
    """Returns the extensions that the README of an extension names as those that it imports."""
    text = (root / "pipeline" / "daybreak" / EXTENSIONS / name / "README.md").read_text()
    return set(re.findall(r"`(\w+)`", re.findall(r"^- Other extensions: (.*)$", text, re.MULTILINE)[0]))


def place(module: str) -> int:
    """Returns where a module comes in the order: it may import what comes earlier, or the same room."""
    return (*FIRST, *ROOMS, EXTENSIONS, EXAMPLES, *TOP).index(room(module))


def forbidden(edges: Graph) -> list[str]:
    """Returns a sentence for each import that leads to a later room, to an example, or out of the core."""
    return [
        f"{module} imports {target}"
        for module, targets in edges.items()
        if module != "daybreak"
        for target in sorted(targets)
        if room(target) != room(module) and not _may_import(module, target)
    ]


def _may_import(module: str, target: str) -> bool:
    if room(target) == EXAMPLES:
        return False
    if is_extension(target):
        if is_extension(module):
            return room(target).rpartition(".")[2] in leans_on(room(module).rpartition(".")[2])
        return room(module) == EXAMPLES or (module, target) in CORE_TO_EXTENSION
    return is_extension(module) or place(target) <= place(module)


def cycle(edges: Graph) -> list[str]:
    """Returns the modules of one cycle of imports; none where there is no cycle."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def closure(edges: Graph, module: str) -> set[str]:
    """Returns the modules that a module imports, by however many others, and itself."""
    reached, wanted = set[str](), [module]
    while wanted:
        if (name := wanted.pop()) not in reached:
            reached.add(name)
            wanted += edges[name]
    return reached


def lines(root: Path = ROOT) -> Counter[str]:
    """Returns the number of lines of each room."""
    counts: Counter[str] = Counter()
    for name, path in modules(root).items():
        counts[room(name)] += len(path.read_text().splitlines())
    return counts


def drawing(root: Path = ROOT) -> Iterator[str]:
    """Yields a line for each room: the number of files and lines, and the imported rooms."""
    edges, counts = graph(root), lines(root)
    arrows = {(room(module), room(target)) for module, targets in edges.items() for target in targets}
    for name in dict.fromkeys(map(room, edges)):
        used = sorted(target for source, target in arrows if source == name != target)
        files = sum(room(module) == name for module in edges)
        yield f"{name:15} {files:3} files {counts[name]:5} lines -> {' '.join(used)}"
    knots = f"a cycle of files: {' -> '.join(cycle(edges))}" if cycle(edges) else "no cycle of files"
    yield f"{len(arrows)} arrows between rooms; {len(forbidden(edges))} to a later room; {knots}"


def contents(rooms: list[str], root: Path = ROOT) -> Iterator[str]:
    """Yields a line for each file of these rooms: the path, and the docstring's first line."""
    for name, path in modules(root).items():
        if room(name) in rooms and path.stem != "__init__":
            about = ast.get_docstring(ast.parse(path.read_text())) or ""
            yield f"{path.relative_to(root).as_posix():45} {about.partition(chr(10))[0]}"


if __name__ == "__main__":
    print(*(contents(argv[1:]) if argv[1:] else drawing()), sep="\n")
