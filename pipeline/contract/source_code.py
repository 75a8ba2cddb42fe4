"""Finds the source files that make up a workload by reading its imports, none of which is run.

A workload is its module and what that imports from its own package, directly or not: an edit of any of these
files makes another model. For a module without a package, the modules beside it count as its own. For a
workload that comes with Daybreak, its own folder does, so that an edit of the rest does not change the model.
"""

import ast
import hashlib
import importlib.util
import os
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path

from pipeline.contract.errors import ParamsError
from pipeline.contract.formats import counted, size

FRAME = __name__.partition(".")[0]
LOCKS = (
    "constraints.txt", "pdm.lock", "Pipfile.lock", "poetry.lock", "pylock.toml", "requirements.txt",
    "uv.lock",
)  # fmt: skip


def source_digest(use: str) -> str:
    """Returns the digest of the source files of the workload with the import path `use`."""
    files = source_files(use.partition(":")[0])
    text = "\0".join(_without_own_imports(path.read_text(), top=use.partition(".")[0]) for path in files)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def archived_name(path: Path, folder: Path) -> str:
    """Returns the name of a file in an archive of a folder; ParamsError where it is not UTF-8."""
    name = path.relative_to(folder).as_posix()
    if (written := os.fsencode(name)) != name.encode(errors="replace"):
        raise ParamsError(
            f"the name of the file {written!r} is not UTF-8, so that it cannot travel with the code; "
            f"rename it, or have git ignore it"
        )
    return name


def expect_small(files: Iterable[Path], *, what: str, max_mb: float) -> None:
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
    return hashlib.md5("\n".join(parts).encode(), usedforsecurity=False).hexdigest()


def _digest(files: Iterable[Path]) -> str:
    seen = hashlib.md5(usedforsecurity=False)
    for path in files:
        seen.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return seen.hexdigest()


def source_files(module: str) -> list[Path]:
    """Returns the files of a module and of what it imports from its own package, by their dotted names.

    Raises ParamsError where there is no such module.
    """
    top = module.partition(".")[0]
    own = f"{module.rpartition('.')[0] if top == FRAME else top}." if "." in module else ""
    files = imported_files(module, below=own)
    if not files:
        raise ParamsError(f"workload: module {module} is not found; name one that python can import here")
    return [files[name] for name in sorted(files)]


def imported_files(module: str, *, below: str) -> dict[str, Path]:
    """Returns the files of a module and of what it imports, directly or not, by their dotted names.

    Only names that begin with `below` are followed.
    """
    root = _root(module)
    files: dict[str, Path] = {}
    wanted = [module]
    while wanted:
        name = wanted.pop()
        path = _file(root, name) if name not in files else None
        if path is None:
            continue
        files[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        others = _imports(path.read_text(), package=package) | {package}  # which importing a module runs
        wanted += sorted(other for other in others if other.startswith(below))
    return files


@lru_cache(maxsize=1024)
def _without_own_imports(text: str, *, top: str) -> str:
    """Returns the text of a file without its imports of Daybreak and of its own package.

    So a module that only moved keeps its digest.
    """
    lines = text.splitlines()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").split(".")[0] in {top, FRAME}
        ):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return "\n".join(line for line in lines if line)


def _root(module: str) -> Path:
    """Returns the folder that holds the top package of the module, or the module itself."""
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


@lru_cache(maxsize=1024)
def _imports(text: str, *, package: str) -> frozenset[str]:
    """Returns the absolute names that a file of `package` imports, some of which are not modules."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names.update((base, *(f"{base}.{alias.name}" for alias in node.names)))
    return frozenset(names)
