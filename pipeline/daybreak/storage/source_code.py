"""Finds the files that make up a workload by git and by reading its imports, none of which is run.

A workload is its module, all direct and indirect imports from the folder that holds the package, and all
files of these packages, since a module may be loaded by a name that no statement has: an edit of any of these
files makes another model. Of Python files only the code counts: comments, docstrings and formatting change no
model. Beside a module without a package, files count if the module's text has their names. A workload that
comes with Daybreak is its own folder alone, so that an edit of the rest does not change the model.
"""

import ast
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from daybreak.contract import code_path
from daybreak.contract.errors import ParamsError
from daybreak.contract.formats import counted, size
from daybreak.storage import checkout

FRAME = __name__.partition(".")[0]
NOTHING = ast.Module(body=[], type_ignores=[])
MOST_FILES = 4096  # of a workload that are parsed once in a process
INSTALLED = ("site-packages", "dist-packages")
LOCKS = (
    "constraints.txt",
    "pdm.lock",
    "Pipfile.lock",
    "poetry.lock",
    "pylock.toml",
    "requirements.txt",
    "uv.lock",
)


def source_digest(use: str) -> str:
    """Returns the digest of the files of the workload with the import path `use`.

    Where files lie does not count for Python, so that a package may move, and a data file counts by its name
    too.
    """
    return digest_of(file_digests(use))


def digest_of(digests: Mapping[str, str]) -> str:
    """Returns the digest of a workload's files by their digests, as `source_digest` does."""
    parts = sorted(digest if name.endswith(".py") else f"{name} {digest}" for name, digest in digests.items())
    return _md5("\n".join(parts).encode())


def file_digests(use: str) -> dict[str, str]:
    """Returns the digests of the files that make up a workload, by their names below its root.

    Comments, docstrings and formatting of Python files do not count, nor do their imports of each other.
    """
    files = workload_files(use)
    own = frozenset(name.partition("/")[0].removesuffix(".py") for name in files)
    return {
        name: _code_digest(path.read_bytes(), own=own) if name.endswith(".py") else _md5(path.read_bytes())
        for name, path in files.items()
    }


def workload_files(use: str, *, tracked: bool = True) -> dict[str, Path]:
    """Returns the files that make up a workload, by their names below the folder that its package is in.

    These are the files of its packages that git tracks, or all files outside a checkout; with
    `tracked=False`, all files that git does not ignore, committed or not, since these travel. Raises
    ParamsError where there is no such module.
    """
    module = use.partition(":")[0]
    root, modules = _root(module), source_files(module)
    files: set[Path] = set()
    while not files.issuperset(modules):  # what a package imports may be of another one
        inside = [path for folder in _packages(module, root, modules) for path in _inside(folder, tracked)]
        files = {*modules, *inside, *_named(root, modules, tracked=tracked)}
        names = (path.relative_to(root).with_suffix("") for path in files if path.suffix == ".py")
        modules = source_files(module, *(".".join(name.parts).removesuffix(".__init__") for name in names))
    return {archived_name(path, root): path for path in sorted(files)}


def _packages(module: str, root: Path, modules: Iterable[Path]) -> list[Path]:
    """Returns the folders of a workload's files: the team's packages, or one folder within Daybreak."""
    if module.partition(".")[0] == FRAME:
        return [(root / module.replace(".", "/")).parent]
    tops = sorted({root / path.relative_to(root).parts[0] for path in modules})
    return [top for top in tops if top.is_dir()]


def _named(root: Path, modules: Iterable[Path], *, tracked: bool) -> list[Path]:
    """Returns the files around modules without a package whose names stand in their text.

    Of a Python file that is its path, or its dotted name.
    """
    alone = [path for path in modules if path.parent == root]
    if not alone or set(INSTALLED) & set(root.parts):
        return []
    texts = {text for path in alone for text in _texts(path.read_bytes())}
    return [path for path in _inside(root, tracked) if texts & _names(path.relative_to(root))]


def _names(path: Path) -> set[str]:
    dotted = {".".join(path.with_suffix("").parts)} if path.suffix == ".py" else set()
    return {path.name, path.as_posix(), *dotted}


def _inside(folder: Path, tracked: bool) -> list[Path]:
    return (tracked and listed(folder, tracked=True)) or listed(folder)


def listed(folder: Path, *, tracked: bool = False) -> list[Path]:
    """Returns the files in a folder that git does not ignore, or tracks; all of one outside a checkout."""
    return checkout.unignored(folder, tracked=tracked) or ([] if tracked else sorted(checkout.walked(folder)))


def archived_name(path: Path, folder: Path) -> str:
    """Returns the name of a file in an archive of a folder; ParamsError where it is not UTF-8."""
    name = path.relative_to(folder).as_posix()
    if (written := os.fsencode(name)) != name.encode(errors="replace"):
        raise ParamsError(
            f"the name of the file {written!r} is not UTF-8, so that it cannot travel with the code; "
            f"rename it, or have git ignore it"
        )
    return name


def expect_portable(files: Iterable[Path], *, what: str, max_mb: float) -> None:
    """Raises ParamsError where files hold more than may travel, naming the largest, or one cannot travel.

    Args:
        files: that would travel.
        what: where to, as an error says it.
        max_mb: `night.max_code_mb`.
    """
    sizes = {path: path.stat().st_size for path in files}
    for path in sizes:
        archived_name(path, Path(path.anchor))
    total = sum(sizes.values())
    if total > max_mb * 1e6:
        largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
        named = ", ".join(f"{path} ({size(sizes[path])})" for path in largest)
        raise ParamsError(
            f"{counted(len(sizes), 'file')} of {size(total)} would travel {what}, more than "
            f"night.max_code_mb: {max_mb:g} allows; the largest: {named}: have git ignore what is not code, "
            f"keep it in a bucket, or raise night.max_code_mb"
        )


def class_digest(use: str, arguments: Mapping[str, Any]) -> str:
    """Returns the digest of a workload's class: its import path, arguments and source files."""
    parts = (use, json.dumps(arguments, sort_keys=True), source_digest(use))
    return _md5("\n".join(parts).encode())


@cache  # of files that this process runs: the launcher asks at each look, and an update needs a new process
def frame_digest(*rooms: str) -> str:
    """Returns the digest of Daybreak's own code and tables, of some rooms or of all."""
    root = Path(__file__).parent.parent
    folders = [root / room for room in rooms] or [root]
    suffixes = ("py", "csv", "html")
    return _digest(sorted(path for of in folders for suffix in suffixes for path in of.rglob(f"*.{suffix}")))


def running_digest(use: str) -> str:
    """Returns the digest of all code that prepares a workload's rows: its own, the libraries', Daybreak's.

    The libraries are those of the lock files in the current folder.
    """
    locks = _digest([Path(name) for name in LOCKS if Path(name).is_file()])
    parts = (source_digest(use), locks, frame_digest("contract", "data", "workloads"))
    return _md5("\n".join(parts).encode())


def _digest(files: Iterable[Path]) -> str:
    return _md5(b"".join(f"{path.name}\0".encode() + path.read_bytes() + b"\0" for path in files))


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def source_files(module: str, *others: str) -> list[Path]:
    """Returns the files of a module and of its imports from the same root.

    For an installed library, only imports from its own package count. `others` names more modules of the same
    root. Raises ParamsError where there is no such module.
    """
    top, root = module.partition(".")[0], _root(module)
    if top == FRAME:
        below: str = f"{module.rpartition('.')[0]}."
    else:
        below = f"{top}." if set(INSTALLED) & set(root.parts) else ""
    files = imported_files(module, *others, below=below)
    if not files:
        raise ParamsError(f"workload: module {module} is not found; name one that python can import here")
    return [files[name] for name in sorted(files)]


def imported_files(module: str, *others: str, below: str) -> dict[str, Path]:
    """Returns the files of modules and of their direct and indirect imports, by dotted name.

    Follows only names that begin with `below`; an empty `below` stands for all names but Daybreak's.
    """
    root = _root(module)
    # Most imports are of libraries, which need no look each. A root that is an archive has no files.
    tops: set[str] = {path.stem for path in root.iterdir()} if root.is_dir() else set()
    files: dict[str, Path] = {}
    seen: set[str] = set()
    wanted = [module, *others]
    while wanted:
        name = wanted.pop()
        if name in seen or name.partition(".")[0] not in tops:
            continue
        seen.add(name)
        path = _file(root, name)
        if path is None:
            continue
        files[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        imported = _imports(path.read_bytes(), package=package) | {package}  # which importing a module runs
        wanted += sorted(
            other
            for other in imported
            if other and other.startswith(below) and (below or other.partition(".")[0] != FRAME)
        )
    return files


def imported_libraries(use: str) -> dict[str, str]:
    """Returns the dotted names that a workload's files import from libraries, each with such a file."""
    files = workload_files(use, tracked=False)
    own = {name.partition("/")[0].removesuffix(".py") for name in files}
    return {
        library: name
        for name, path in sorted(files.items(), reverse=True)
        if path.suffix == ".py"
        for library in _imports(path.read_bytes(), package="")
        if library.partition(".")[0] not in {*sys.stdlib_module_names, *own, FRAME, ""}
    }


@lru_cache(maxsize=MOST_FILES)
def _code_digest(text: bytes, *, own: frozenset[str]) -> str:
    """Returns the digest of a Python file's code, or of its bytes where it cannot be parsed.

    Leaves out docstrings, and from where Daybreak and modules of the workload are imported: so a module that
    only moved keeps its digest.
    """
    tree = _parsed(text)
    if tree is None:
        return _md5(text)
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
        elif isinstance(node, ast.ImportFrom) and (node.level or _top(node) in {*own, FRAME}):
            node.module, node.level = None, 1
    return _md5(ast.unparse(tree).encode(errors="surrogatepass"))


def _top(node: ast.ImportFrom) -> str:
    return (node.module or "").partition(".")[0]


def _parsed(text: bytes) -> ast.Module | None:
    """Returns the syntax tree of a Python file; None where it cannot be parsed."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=MOST_FILES)
def _texts(text: bytes) -> frozenset[str]:
    """Returns the constants of text in a Python file, as paths that begin nowhere."""
    nodes = ast.walk(_parsed(text) or NOTHING)
    return frozenset(
        PurePosixPath(node.value).as_posix()
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _root(module: str) -> Path:
    """Returns the folder that holds the top package of the module, or the module itself."""
    code_path.find_teams()
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])  # of a package, this runs nothing
    except (ModuleNotFoundError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    place = folders[0] if folders else spec.origin if spec and spec.origin else "."
    return Path(place).parent


def _file(root: Path, name: str) -> Path | None:
    path = root.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


def _imports(text: bytes, *, package: str) -> frozenset[str]:
    """Returns the absolute names that a file of `package` imports, some of which are not modules."""
    names: set[str] = set()
    for node in _import_statements(text):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names.update((base, *(f"{base}.{alias.name}" for alias in node.names)))
    return frozenset(names)


@lru_cache(maxsize=MOST_FILES)
def _import_statements(text: bytes) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Returns the imports of a Python file, also those within functions."""
    statements = _statements(_parsed(text) or NOTHING)
    return tuple(node for node in statements if isinstance(node, ast.Import | ast.ImportFrom))


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yields a syntax tree and all statements in it, and spares itself their expressions, most of a file."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, name, ())
