"""Knows a home by a token and by where it lies, and so notices that it was moved or copied.

The token labels this home's things elsewhere, such as jobs at a service. A copy has the token of the
original, and would end the original's jobs as orphans: so a copy gets a new token, at the first look. It is a
copy if the home of that token is still where it was; else the home was moved, or is mounted elsewhere. A copy
on another machine is not noticed; without `var/home` it gets a new token there too.
"""

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from daybreak.contract.records import replace_text
from daybreak.storage.journal import alone

FILE = Path("var/home")


@dataclass(frozen=True, kw_only=True)
class Address:
    """What `FILE` holds."""

    token: str
    folder: str  # where the home was when its newest night was opened
    copy_of: str = ""  # folder of the home that this one was copied from


def look(home: Path) -> Address:
    """Returns the address of a home, which is made once, and anew in a copy; else nothing is written."""
    if known := _own(home):
        return known
    with alone(home / "var" / "home.lock"):
        if known := _own(home):  # another process has made it
            return known
        before = _read(home)
        fresh = Address(
            token=secrets.token_hex(8), folder=str(home.resolve()), copy_of=before.folder if before else ""
        )
        _write(home, fresh)
        return fresh


def settle(home: Path) -> None:
    """Records where the home lies now."""
    known, folder = look(home), str(home.resolve())
    if known.folder != folder:
        _write(home, Address(token=known.token, folder=folder, copy_of=known.copy_of))


def _own(home: Path) -> Address | None:
    known = _read(home)
    return known if known and not _is_copied(known, home) else None


def _is_copied(known: Address, home: Path) -> bool:
    before = Path(known.folder)
    if before == home.resolve():
        return False
    original = _read(before)
    return original is not None and original.token == known.token and not before.samefile(home)


def _read(home: Path) -> Address | None:
    try:
        return Address(**json.loads((home / FILE).read_text()))
    except (OSError, ValueError, TypeError):  # also where another user's folder is in that place now
        return None


def _write(home: Path, address: Address) -> None:
    replace_text(home / FILE, json.dumps(asdict(address)) + "\n")
