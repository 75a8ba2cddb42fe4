"""Reads params for what has to go on although a params.yaml cannot be read: ends of nights, and messages."""

import logging
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from daybreak.contract import params
from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.contract.params import Params, Plug
from daybreak.storage.checkout import git
from daybreak.storage.home import Home

log = logging.getLogger(__name__)

CHANGES = 30  # of params.yaml that are looked at, newest first


def load(home: Home, folder: Path) -> Params:
    """Returns the params of a folder; where they cannot be read, those of the home or the newest that can.

    The latter are of the newest commit with a params.yaml that can be read; without one, as in a home whose
    first commit cannot be read, the defaults hold.
    """
    try:
        return params.load(folder)
    except ParamsError as error:
        fault = str(error)
    for name, read in _others(home, folder):
        try:
            loaded = read()
        except (ParamsError, ReleaseError):
            continue
        _warn(f"{fault}; until then, that of {name} is read where a night ends")
        return loaded
    _warn(f"{fault}; until then, the defaults hold where a night ends")
    unknown = Plug(use="params:unreadable")
    return Params(source=unknown, workload=unknown, backend=Plug(use="daybreak:Local"))


def _others(home: Home, folder: Path) -> Iterator[tuple[str, Callable[[], Params]]]:
    if folder.resolve() != home.folder.resolve():
        yield str(home.folder), partial(params.load, home.folder)
    words = ("--first-parent", f"--max-count={CHANGES}", "HEAD", "--", str(params.FILE))
    for commit in git("rev-list", *words, folder=home.folder).split():
        yield f"commit {commit[:9]}", partial(_at, home, commit)


def _at(home: Home, commit: str) -> Params:
    return params.loads(git("show", f"{commit}:{params.FILE}", folder=home.folder), source=commit)


@cache  # once in a process, however often it is asked for
def _warn(text: str) -> None:
    log.warning("%s", text)
