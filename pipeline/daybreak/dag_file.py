"""Writes one DAG file for a home, for an Airflow that is already there.

The file is made of the modules in dags/, in the order in which they import each other: their functions,
classes and constants, without what `make up` makes of them for its own home. It imports Airflow and the
standard library alone, and runs stages by the command of Daybreak's own environment. What follows its last
comment is the team's, and is kept when the file is written again.
"""

import ast
import re
from graphlib import TopologicalSorter
from hashlib import sha256
from pathlib import Path

from daybreak.contract.errors import ParamsError
from daybreak.contract.records import replace_text
from daybreak.contract.sections import NightParams, RegisterParams

PACKAGED = Path(__file__).parent / "dags"  # in a wheel
DAGS = PACKAGED if PACKAGED.exists() else Path(__file__).parents[2] / "dags"
ENTRY, VERSIONS = "team", "airflow_versions"
LEFT_OUT = ("homes",)  # reads which homes `make up` runs; the file has one
HEAD = "# Written by daybreak dags ({digest}): write it again to change it, down to the last comment."
HELP = """\
# help(dags) says what can be given, such as owner, pool, queue, schedule and secrets; dags(HOME) can also be
# called in a file of your own that imports both.
"""
YOURS = "# Yours from here on: daybreak dags keeps it.\n"  # stays as it is: files of earlier releases have it
CALL = "dags(HOME)\n"


def write(path: Path, *, home: Path, register: RegisterParams, night: NightParams, command: Path) -> bool:
    """Writes the DAG file of a home, and returns whether that changed it.

    Its DAGs are named after the model of `register`. Raises ParamsError for a file of another home, and for
    one that `daybreak dags` did not write, or that was changed above what is the team's.
    """
    try:
        there = path.read_text() if path.exists() else ""
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not in UTF-8 ({error}); save it so, or move it away") from None
    yours = _yours(path, there, home) if there else CALL
    body = text(home=home, register=register, night=night, command=command)
    written = f"{HEAD.format(digest=_digest(body))}\n{body}{YOURS}{yours}"
    if written == there:
        return False
    replace_text(path, written)
    return True


def text(*, home: Path, register: RegisterParams, night: NightParams, command: Path) -> str:
    """Returns the part of the DAG file that is not the team's."""
    name, server = register.name, register.tracking_uri.rstrip("/")
    modules = _modules()
    sections = {module: _section(module, *modules[module]) for module in _order(modules)}
    sections["notify"] = _with_command(sections["notify"], command)
    body = "\n\n".join(f"# From dags/{module}.py\n\n{part}" for module, part in sections.items())
    due = f"Schedule({night.schedule!r}, {night.time_zone!r}, {night.assets!r}, {night.decide_hours!r})"
    links = f", env={{'MLFLOW_UI': {server!r}}}" if server.startswith("http") else ""
    of_home = f"HOME = Home(Path({str(home)!r}), {name!r}, {name!r}, {due}{links})\n"
    doc = f'"""DAGs of the nights of {name}, for an Airflow without Daybreak."""\n'
    return f"{doc}\n{_imports(modules, body)}\n{body}\n\n{of_home}\n\n{HELP}"


def others(path: Path, *, home: Path) -> list[Path]:
    """Returns the other DAG files beside `path` that are of the same home, under an earlier name."""
    beside = sorted(set(path.parent.glob("nights_*.py")) - {path})
    return [each for each in beside if _home_of(each.read_text(errors="replace")) == str(home)]


def lacking() -> dict[tuple[int, int], str]:
    """Returns what does not work before a version of Airflow."""
    tree = ast.parse((DAGS / f"{VERSIONS}.py").read_text())
    named = (node for node in tree.body if isinstance(node, ast.Assign))
    (table,) = (node.value for node in named if ast.unparse(node.targets[0]) == "LACKING")
    lacks: dict[tuple[int, int], str] = ast.literal_eval(table)
    return lacks


def _home_of(text: str) -> str:
    """Returns the home of a DAG file that `daybreak dags` wrote; "" of any other."""
    named = re.search(r"""^HOME = Home\(Path\(('.*?'|".*?")\), """, text, re.M)
    return str(ast.literal_eval(named[1])) if named else ""


def _yours(path: Path, there: str, home: Path) -> str:
    head, _, rest = there.partition("\n")
    body, is_ours, yours = rest.partition(YOURS)
    if not is_ours or _digest(body) not in head:
        raise ParamsError(
            f"{path} was not written by daybreak dags, or was changed above its last comment; move it away, "
            "and what is yours below that comment of the new file"
        )
    if (other := _home_of(body)) != str(home):
        raise ParamsError(
            f"{path} is of the home {other}; give {home} another register.name, or, if the home has moved, "
            "move the file away, and what is yours below the last comment of the new file"
        )
    return yours


def _digest(body: str) -> str:
    return sha256(body.encode()).hexdigest()[:16]


def _modules() -> dict[str, tuple[str, ast.Module]]:
    """Returns the source of the modules in dags/ that the file is made of."""
    sources = {path.stem: path.read_text() for path in sorted(DAGS.glob("*.py"))}
    return {name: (source, ast.parse(source)) for name, source in sources.items() if name not in LEFT_OUT}


def _order(modules: dict[str, tuple[str, ast.Module]]) -> list[str]:
    """Returns the modules that the entry imports, directly or not, each after those that it imports."""
    imports = {
        name: {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
        for name, (_, tree) in modules.items()
    }
    needs = {name: imported & set(modules) for name, imported in imports.items()}
    wanted, found = {ENTRY}, set[str]()
    while wanted - found:
        name = (wanted - found).pop()
        found.add(name)
        wanted |= needs[name]
    return [*TopologicalSorter({name: sorted(needs[name]) for name in sorted(found)}).static_order()]


def _section(name: str, source: str, tree: ast.Module) -> str:
    """Returns the functions, classes and constants of a module, with their comments."""
    constant = f"{name.upper()}_DOC"
    uses_doc = "=__doc__" in source
    lines = source.splitlines(keepends=True)
    parts = [f'{constant} = """{ast.get_docstring(tree)}\n"""\n'] if uses_doc else []
    end = tree.body[0].end_lineno or 0
    for node in tree.body[1:]:
        start, end = end, node.end_lineno or 0
        if _is_kept(node):
            parts.append("".join(lines[start:end]))
    return "".join(parts).replace("=__doc__", f"={constant}").strip("\n") + "\n"


def _is_kept(node: ast.stmt) -> bool:
    """Returns whether a statement of a module defines something, which no other module has defined."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return False
    if isinstance(node, ast.Assign):
        names = [each.id for each in ast.walk(node.targets[0]) if isinstance(each, ast.Name)]
        return all(each[0].isupper() for each in names)  # others are the DAGs of `make up`, and its log
    return isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign | ast.For)


def _with_command(section: str, command: Path) -> str:
    written, made = re.subn(
        r"^DAYBREAK = .*$", lambda _: f"DAYBREAK = [{str(command)!r}]", section, flags=re.M
    )
    assert made == 1, "dags/notify.py names the program once"
    return written


def _imports(modules: dict[str, tuple[str, ast.Module]], body: str) -> str:
    """Returns what the modules import and `body` uses, of Airflow and the standard library."""
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    whole, parts = {"logging"}, dict[str, set[str]]()
    for _, tree in modules.values():
        for node in tree.body:
            if isinstance(node, ast.Import):
                whole |= {each.name for each in node.names} & used
            elif isinstance(node, ast.ImportFrom) and node.module not in {*modules, *LEFT_OUT}:
                names = {each.name for each in node.names} & used
                parts.setdefault(node.module or "", set()).update(names)
    lines = [f"import {name}" for name in sorted(whole)]
    lines += [_line(module, sorted(names)) for module, names in sorted(parts.items()) if names]
    return "\n".join([*lines, "", "log = logging.getLogger(__name__)", "", ""])


def _line(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= 110 else f"from {module} import (\n    {', '.join(names)},\n)"
