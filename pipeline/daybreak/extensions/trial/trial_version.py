"""Tries the files that a version would carry, and finds files that travel with none (row_checks.py)."""

import ast
import contextlib
import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daybreak.contract.sections import Params
from daybreak.registry import carried_code
from daybreak.storage.pretrained import PRETRAINED
from daybreak.storage.source_code import FRAME, INSTALLED, expect_portable

ENVIRONMENT = (
    "reads the environment, which other machines and later nights may not have; make it an argument of the "
    "workload, beside use in params.yaml"
)
CLOCK = (
    "asks what time it is, and the samples of a day must not depend on when they are made; take it from the "
    "rows, or from past.day"
)
CLOCKS = [
    ["date", "today"],
    ["datetime", "today"],
    ["datetime", "now"],
    ["datetime", "utcnow"],
    ["Timestamp", "now"],
    ["Timestamp", "today"],
]
OF_THE_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/lib64", "/opt", "/var")


class OpenedFiles:
    """The files that a team's code opens to read, as far as Python opens them."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self.addresses: set[str] = set()  # that it connects to
        self._is_watching = False
        sys.addaudithook(self._hear)  # for as long as the process lives

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._is_watching and event == "socket.connect" and isinstance(arguments[1], tuple):
            host, port, *_ = arguments[1]
            self.addresses.add(f"{host}:{port}")
        if self._is_watching and event == "open":
            path, mode, *_ = arguments
            if isinstance(path, str) and not set(mode or "") & set("wax"):
                self._paths.add(path)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watches what is opened meanwhile."""
        before, self._is_watching = self._is_watching, True
        try:
            yield
        finally:
            self._is_watching = before

    def stray(self, *, home: Path, folder: Path) -> list[Path]:
        """Returns those that travel nowhere: neither Python's nor of what was copied to a folder."""
        frame = Path(__file__).parents[3]
        places: list[str | Path] = [sys.prefix, sys.base_prefix, *OF_THE_SYSTEM, tempfile.gettempdir(), frame]
        if plots := sys.modules.get("matplotlib"):  # whose list of fonts libraries read as they are imported
            places.append(plots.get_cachedir())
        held = home / "var" / PRETRAINED  # to a digest, and downloaded by each machine
        known = [Path(place).resolve() for place in places]
        stray = []
        for path in sorted({Path(opened).resolve() for opened in self._paths}):
            inside = not path.is_relative_to(home) and (
                path.is_relative_to(folder) or any(path.is_relative_to(place) for place in known)
            )
            is_library = not set(INSTALLED).isdisjoint(path.parts)  # perhaps of another environment
            if not inside and not is_library and not path.is_relative_to(held) and path.is_file():
                stray.append(path)
        return stray


def carried(params: Params) -> dict[str, Path]:
    """Returns a team's own files that a version carries; ParamsError where one cannot travel."""
    use = params.workload.use
    files = carried_code.files_of(use)
    expect_portable(files.values(), what="into each version", max_mb=params.night.max_code_mb)
    return {name: path for name, path in files.items() if not name.startswith(f"{FRAME}/")}


@contextlib.contextmanager
def unpacked(params: Params, files: dict[str, Path], *, version: Path, code: Path) -> Iterator[Any]:
    """Yields the workload that a version makes from its own files, while the originals are moved away.

    Args:
        params: params, which name the workload.
        files: the workload's files, by name.
        version: folder of the version, with a model.
        code: folder that the files were packed from.
    """
    plug = params.workload
    if not files:  # it comes with Daybreak
        yield plug.make()
        return
    (version / carried_code.CODE).mkdir()
    carried_code.pack(files, version / carried_code.CODE / carried_code.ARCHIVE)
    facts = {"workload": plug.use, "arguments": plug.model_extra or {}}
    (version / carried_code.MODEL / "model.json").write_text(json.dumps(facts))
    away = code.with_name(f"{code.name}-away")
    with imported_anew(code):
        code.rename(away)
        try:
            yield carried_code.workload_of(version)
        finally:
            away.rename(code)


@contextlib.contextmanager
def imported_anew(code: Path) -> Iterator[None]:
    """Has the modules of a folder imported again meanwhile, as a process that starts does."""
    own = {name: module for name, module in sys.modules.items() if _is_in(module, code)}
    for name in own:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(own)


def surroundings(workload: type) -> list[str]:
    """Returns what the file of a workload reads that is neither of the rows nor of the file, in sentences.

    A source may be in the same file; its class, which has `fetch`, is left out.
    """
    path = inspect.getsourcefile(workload)
    if path is None or Path(path).is_relative_to(Path(__file__).parents[2]):
        return []
    seen: dict[str, int] = {}
    parts: list[ast.AST] = [ast.parse(Path(path).read_text())]
    while parts:
        part = parts.pop(0)
        if isinstance(part, ast.ClassDef) and "fetch" in {getattr(each, "name", "") for each in part.body}:
            continue
        if isinstance(part, ast.Subscript) and not isinstance(part.ctx, ast.Load):
            continue  # which sets it
        text = ast.unparse(part) if isinstance(part, ast.Attribute) else ""
        if text in ("os.environ", "os.getenv"):
            seen.setdefault(ENVIRONMENT, part.lineno)  # type: ignore[attr-defined]
        if text.split(".")[-2:] in CLOCKS:
            seen.setdefault(CLOCK, part.lineno)  # type: ignore[attr-defined]
        parts += ast.iter_child_nodes(part)
    return [f"line {line} of {Path(path).name} {sentence}" for sentence, line in seen.items()]


def _is_in(module: Any, folder: Path) -> bool:
    return Path(getattr(module, "__file__", None) or "/").is_relative_to(folder)
