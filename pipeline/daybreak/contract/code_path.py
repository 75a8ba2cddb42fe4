"""Says where processes find code: Daybreak's own of their night first, the team's before other libraries.

A night runs the commit that it was opened on, checked out in its folder. If that commit has Daybreak's own
code, as a checkout of this repository has, that code goes before the installed one. A team's modules come
after the standard library, so that a team's `types.py` or folder `daybreak/` hides nothing.
"""

import os
import sys
from pathlib import Path

SOURCE = "pipeline"  # folder of a checkout of Daybreak that holds the package
FOLDER = "DAYBREAK_CODE"  # environment variable: the folder whose modules are the team's
AT_HOME = ("PYTHONPATH", "PYTHONSAFEPATH", FOLDER)  # variables that mean something on this machine only
LIBRARIES = ("site-packages", "dist-packages")
# Variables that a process which runs or reads what others made is given; all others may be secrets.
PASSED_ON = (
    "PATH",
    "PYTHONPATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)


def source_of(folder: Path) -> Path | None:
    """Returns the folder to import Daybreak from where `folder` is a checkout of it."""
    source = folder / SOURCE
    return source.absolute() if (source / "daybreak" / "__init__.py").is_file() else None


def without_secrets() -> dict[str, str]:
    """Returns the variables of a process that runs code of others, or reads their files."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def environment(folder: Path) -> dict[str, str]:
    """Returns the variables of a process that runs the code of the commit in `folder`."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    own = source_of(folder)
    first = [str(own)] if own else []
    return {
        "PYTHONPATH": os.pathsep.join([*first, *(path for path in paths if path not in first)]),
        "PYTHONSAFEPATH": "1",  # `python -m` puts the current folder first: the team's before all others
        FOLDER: str(folder.absolute()),
    }


def run_own() -> None:
    """Goes on as the Daybreak of the commit in the current folder, where that is another one than this."""
    folder, own = Path.cwd(), source_of(Path.cwd())
    if own is None or own.samefile(Path(__file__).parents[2]) or os.environ.get(FOLDER) == str(folder):
        return
    command = [sys.executable, "-P", "-m", "daybreak", *sys.argv[1:]]
    os.execve(sys.executable, command, {**os.environ, **environment(folder)})


def find_teams() -> None:
    """Has this process import the team's modules, those of FOLDER or else of the current folder."""
    folder = os.environ.get(FOLDER) or str(Path.cwd())
    if folder in sys.path:
        return
    first = (number for number, path in enumerate(sys.path) if Path(path).name in LIBRARIES)
    place = next(first, len(sys.path))
    own = Path(__file__).parents[2]
    if own.name in LIBRARIES and (Path(folder) / "daybreak").exists():
        place = len(sys.path)  # so that a process that is spawned finds Daybreak in the library
    sys.path.insert(place, folder)
    if own.name not in LIBRARIES:  # installed editable: a process that is spawned looks for it after the path
        sys.path.insert(place, str(own))
