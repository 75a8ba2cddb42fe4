"""Holds a home: the checkout that nights run in, with `nights/`, `var/` and params.yaml.

The command line makes it once, of `--home`, $DAYBREAK_HOME or the folder that it is called in, and passes it
on; a process that is started makes its own at its entry point, of the same variable or its folder. Nothing
else asks where the home is, which night a process works on, or what params.yaml says.

A stage runs in the folder of its night, as DVC calls it there: `tonight`. Its files have paths below that.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.storage.checkout import git

if TYPE_CHECKING:
    from daybreak.contract.sections import Params
    from daybreak.storage.journal import Journal

log = logging.getLogger(__name__)

VARIABLE = "DAYBREAK_HOME"
CHANGES = 30  # of params.yaml that are looked at where it cannot be read, newest first


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
        except ReleaseError as error:
            if "not a git repository" not in str(error):  # such as of a folder that another user owns
                raise ParamsError(str(error)) from None
            raise ParamsError(
                f"{Path.cwd()} is not in a git checkout; run in a clone of the repository, name one by "
                f"--home, or set {VARIABLE}"
            ) from None
        return cls(_main_checkout(Path(common)))

    @classmethod
    def here_or_none(cls) -> "Home | None":
        """Returns the home of this process; None outside of any, as on a rented machine."""
        with suppress(ParamsError):
            return cls.here()
        return None

    @property
    def tonight(self) -> Path:
        """Returns the folder of the night that this process works on."""
        return Path.cwd()

    @property
    def records(self) -> Path:
        """Returns the folder of the records of the night that this process works on."""
        from daybreak.contract import records  # which the help of a command does without

        return self.tonight / records.RUN

    @property
    def predictions_lock(self) -> Path:
        """Returns the lock that each call holds while it writes, erases or prunes predictions."""
        return self.var / "predictions.lock"

    @property
    def nights(self) -> Path:
        """Returns the folder with a folder for each night."""
        return self.folder / "nights"

    @property
    def var(self) -> Path:
        """Returns the folder of what is kept from night to night, and is not in git."""
        return self.folder / "var"

    @property
    def release_journal(self) -> "Journal":
        """Returns the journal of the release that a saga is making; its file is missing while none is made.

        A restarted process finishes that release or takes it back (daybreak/rollout/saga.py).
        """
        from daybreak.storage.journal import Journal

        return Journal(self.var / "release.json")

    @property
    def params(self) -> "Params":
        """Returns the home's own params.yaml."""
        return self.params_of(self.folder)

    def params_of(self, folder: Path) -> "Params":
        """Returns the params.yaml of the folder of a night, which is read again only once it has changed."""
        from daybreak.contract import params

        with suppress(OSError):  # of a file that is missing; reading it says so
            stat = (folder / params.FILE).stat()
            return _params_of(folder, (stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return params.load(folder)

    def last_params(self, folder: Path) -> "Params":
        """Returns the params of a folder for what goes on in any case: ends of nights, and messages.

        Where they cannot be read, those of the home hold, or of the newest commit whose params.yaml can be
        read; without one, as in a home whose first commit cannot be read, the defaults.
        """
        from daybreak.contract.sections import BackendPlug, Params, SourcePlug, WorkloadPlug

        try:
            return self.params_of(folder)
        except ParamsError as error:
            fault = str(error)
        for name, read in self._other_params(folder):
            try:
                loaded = read()
            except (ParamsError, ReleaseError):
                continue
            _warn(f"{fault}; until then, that of {name} is read where a night ends")
            return loaded
        _warn(f"{fault}; until then, the defaults hold where a night ends")
        unknown = "params:unreadable"
        return Params(
            source=SourcePlug(use=unknown),
            workload=WorkloadPlug(use=unknown),
            backend=BackendPlug(use="daybreak:Local"),
        )

    def _other_params(self, folder: Path) -> "Iterator[tuple[str, Callable[[], Params]]]":
        from daybreak.contract import params

        if folder.resolve() != self.folder.resolve():
            yield str(self.folder), lambda: self.params
        words = ("--first-parent", f"--max-count={CHANGES}", "HEAD", "--", str(params.FILE))
        for commit in git("rev-list", *words, folder=self.folder).split():
            yield f"commit {commit[:9]}", partial(self._params_at, commit)

    def _params_at(self, commit: str) -> "Params":
        from daybreak.contract import params

        text = git("show", f"{commit}:{params.FILE}", folder=self.folder)
        return params.loads(text, source=commit)

    def below(self, path: Path) -> Path:
        """Returns a path relative to the home, to be kept in files; a path outside the home unchanged."""
        inside = self.folder.resolve()
        return path.resolve().relative_to(inside) if path.resolve().is_relative_to(inside) else path

    def at(self, kept: str) -> Path:
        """Returns the path that `below` made fit to be kept."""
        return self.folder / kept  # which is `kept` where that is absolute


def _main_checkout(common: Path) -> Path:
    """Returns the checkout of a repository whose folder need not be in it, as that of a submodule is not."""
    if common.name == ".git":
        return common.parent
    try:
        if Path(git("rev-parse", "--path-format=absolute", "--git-dir")) == common:
            return Path(git("rev-parse", "--show-toplevel"))
        return (common / git("config", "--file", str(common / "config"), "core.worktree")).resolve()
    except ReleaseError:
        raise ParamsError(
            f"the repository {common} does not say which checkout is the home; name it by --home, or set "
            f"{VARIABLE}"
        ) from None


def home_folder() -> Path:
    """Returns the folder of the home of this process, for a team's own code, which is given none."""
    return Home.here().folder


@lru_cache(maxsize=16)  # of each home of a fleet
def _params_of(folder: Path, state: tuple[int, ...]) -> "Params":
    from daybreak.contract import params

    return params.load(folder)


@cache  # once in a process, however often it is asked for
def _warn(text: str) -> None:
    log.warning("%s", text)
