"""Clones for tests and benchmarks, of a commit alone: neither remote nor ledger comes along.

After `git clone` the source is the remote origin, and once it has nights, as this checkout has after `make
night`, no night opens in the clone: a remote has a ledger that is missing there.
"""

import shutil
import subprocess
from pathlib import Path

from daybreak.storage.home import Home

ROOT = Path(__file__).resolve().parents[1]


def clone(source: Path, folder: Path) -> Path:
    """The commit that `source` is at, on the branch main of a new repository in `folder`."""
    for words in (
        ["init", "--quiet", "--initial-branch=main", str(folder)],
        # A shallow source, as actions/checkout makes, gives nothing without the option.
        ["-C", str(folder), "fetch", "--quiet", "--update-shallow", str(source), "HEAD"],
        ["-C", str(folder), "reset", "--quiet", "--hard", "FETCH_HEAD"],
        ["-C", str(folder), "config", "user.name", "A Test"],
        ["-C", str(folder), "config", "user.email", "test@example.org"],
    ):
        subprocess.run(["git", *words], check=True)
    return folder


def clone_as_it_is(folder: Path) -> Path:
    """A clone of this checkout whose files are as they are here, uncommitted."""
    clone(ROOT, folder)
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    return folder


def home_here() -> Home:
    """The current folder as a home without nights: an empty repository."""
    if not Path(".git").exists():
        subprocess.run(["git", "init", "--quiet"], check=True)
    return Home(Path.cwd())
