"""Holds a home: the checkout whose nights these are, with `nights/`, `var/` and a params.yaml of its own.

The command line makes it once, of `--home`, $DAYBREAK_HOME or the folder that it is called in, and passes it
on; a process that is started makes its own at its entry point, of the same variable or its folder. Nothing
else asks where the home is.

A stage's working folder is that of its night by design: it reads and writes records below `data/run`, as DVC
calls it there. All else that a stage needs is in the home, which it is given.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.storage.checkout import git

if TYPE_CHECKING:
    from daybreak.contract.params import Params

VARIABLE = "DAYBREAK_HOME"


@dataclass(frozen=True)
class Home:
    """The folder of a home, and what lies in it."""

    folder: Path

    @classmethod
    def here(cls) -> "Home":
        """Returns the home of this process: $DAYBREAK_HOME, or the main worktree of the checkout it is in.

        Raises ParamsError where it is in none.
        """
        if given := os.environ.get(VARIABLE):
            return cls(Path(given).resolve())
        try:
            common = git("rev-parse", "--path-format=absolute", "--git-common-dir")
        except ReleaseError:
            raise ParamsError(
                f"{Path.cwd()} is not in a git checkout; run in a clone of the repository, name one by "
                f"--home, or set {VARIABLE}"
            ) from None
        return cls(Path(common).parent)

    @classmethod
    def here_or_none(cls) -> "Home | None":
        """Returns the home of this process; None outside of any, as on a rented machine."""
        with suppress(ParamsError):
            return cls.here()
        return None

    @property
    def nights(self) -> Path:
        """Returns the folder with a folder for each night."""
        return self.folder / "nights"

    @property
    def var(self) -> Path:
        """Returns the folder of what is kept from night to night, and is not in git."""
        return self.folder / "var"

    @property
    def params(self) -> "Params":
        """Returns the home's own params.yaml, which is read again only once it has changed."""
        from daybreak.contract import params

        with suppress(OSError):  # of a file that is missing; reading it says so
            stat = (self.folder / params.FILE).stat()
            return _params_of(self.folder, (stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return params.load(self.folder)

    def below(self, path: Path) -> Path:
        """Returns a path below the home as it is from there, so that it may be kept; another one as it is."""
        inside = self.folder.resolve()
        return path.resolve().relative_to(inside) if path.resolve().is_relative_to(inside) else path

    def at(self, kept: str) -> Path:
        """Returns the path that `below` made fit to be kept."""
        return self.folder / kept  # which is `kept` where that is absolute


def home_folder() -> Path:
    """Returns the folder of the home of this process, for a team's own code, which is given none."""
    return Home.here().folder


@lru_cache(maxsize=16)  # of each home of a fleet
def _params_of(folder: Path, state: tuple[int, ...]) -> "Params":
    from daybreak.contract import params

    return params.load(folder)
