"""Records erasures: the units whose rows stay out, and the digests that replace old ones.

The ledger is never rewritten, so its nights keep the digests that they saw. Each erasure
(daybreak/extensions/erasure/) is a note of the ledger, which maps old digests to new ones; code that looks
for bytes asks here first. A unit is noted as a hash keyed by `var/erasure.key`, so that the ledger alone does
not reveal, by trying all units, whose rows were erased. The file of the key also names the ledger's commit of
the newest erasure, so that a ledger without this commit is noticed.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from daybreak.contract.errors import DataError
from daybreak.contract.record_parts import Erasure
from daybreak.contract.records import replace_bytes
from daybreak.contract.table import code, spellings
from daybreak.storage import branch, ledger_notes
from daybreak.storage.home import Home
from daybreak.storage.journal import Journal

KEY = Path("var/erasure.key")  # in the home
GONE = ""  # what a digest became that nothing took the place of


@dataclass(frozen=True, kw_only=True)
class ErasedUnits:
    """The units whose rows stay out."""

    key: bytes
    hashes: frozenset[str]

    def __contains__(self, unit: object) -> bool:
        return any(hash_of(one, self.key) in self.hashes for one in spellings(code(str(unit))))


def erasures(home: Home | None) -> list[Erasure]:
    """Returns all erasures of a home, oldest first; none outside of any.

    Raises ReleaseError where the ledger has to be signed and is not: an erasure names the files, code among
    them, that replace a version's.
    """
    if home is None:
        return []
    notes = ledger_notes.read(home, branch.expect_signed(home))
    return [note.erasure for note in notes if note.erasure]


def journal(home: Home) -> Journal:
    """Returns the journal, which is there while an erasure goes on, or was interrupted."""
    return Journal(home.var / "erasure.json")


def note(home: Home, erasure: Erasure) -> str:
    """Writes an erasure to the ledger; returns its sentence."""
    learned = ", ".join(map(str, erasure.versions))
    span = f" ({erasure.days[0]} to {erasure.days[-1]})" if erasure.days else ""
    text = (
        f"{erasure.num_rows:,} rows of {len(erasure.days)} days{span} were erased with their unit "
        f"{erasure.unit}; {len(erasure.digests):,} digests became others; "
        f"{f'versions that learned from them: {learned}' if learned else 'no version learned from them'}"
    )
    ledger_notes.add(home, text, versions=erasure.versions, erasure=erasure)
    return text


def remember(home: Home) -> None:
    """Writes to the file of the key that the ledger has all erasures up to its newest commit."""
    key, _ = _key_file(home)
    if key:
        replace_bytes(home.folder / KEY, f"{key}\n{branch.ledger_tip(home)}\n".encode(), mode=0o600)


def lost(home: Home) -> str:
    """Returns a clause that names what knows of an erasure which the ledger does not have; "" for none."""
    _, commit = _key_file(home)
    if commit and not branch.is_part(home, commit, branch.ledger_tip(home)):
        return f"{home.folder / KEY} names an erasure by the ledger's commit {commit[:9]}"
    return ""


def units(home: Home) -> ErasedUnits | None:
    """Returns the units whose rows must not come in again; None where none was erased.

    Raises DataError where the key of their hashes is gone, since then any row may be one of theirs, and where
    the ledger lost an erasure.
    """
    if said := lost(home):
        raise DataError(
            f"{said}; but the ledger has no such commit, so that it is not known whose rows to leave out; "
            f"daybreak restore shows what can be brought back"
        )
    known = erasures(home)
    if not known:
        return None
    key = read_key(home)
    if key is None or {one.key for one in known} != {_name_of(key)}:
        raise DataError(
            f"{len(known)} units were erased, and {home.folder / KEY}, by which their rows are known, is "
            f"{'missing' if key is None else 'another one'}; put it back from a backup, so that the source "
            f"does not bring them back"
        )
    return ErasedUnits(key=key, hashes=frozenset(one.unit for one in known))


def read_key(home: Home) -> bytes | None:
    """Returns the key of this home's hashes; None where there is none yet."""
    return bytes.fromhex(_key_file(home)[0]) or None


def _key_file(home: Home) -> tuple[str, str]:
    """Returns the key in hexadecimal, and the commit of the newest erasure; "" for what there is not."""
    path = home.folder / KEY
    key, commit, *_ = (path.read_text().splitlines() if path.exists() else []) + ["", ""]
    return key, commit


def make_key(home: Home) -> bytes:
    """Returns the key of this home's hashes, made now if there is none."""
    units(home)  # which must be of this key
    if read_key(home) is None:
        replace_bytes(home.folder / KEY, f"{secrets.token_hex(32)}\n".encode(), mode=0o600)
    return bytes.fromhex(_key_file(home)[0])


def hash_of(unit: str, key: bytes) -> str:
    """Returns the hash that stands for a unit."""
    return blake2b(unit.encode(errors="surrogatepass"), key=key, digest_size=16).hexdigest()


def by(unit: str, key: bytes, **what: Any) -> Erasure:
    """Returns the erasure of a unit."""
    return Erasure(unit=hash_of(unit, key), key=_name_of(key), **what)


def _name_of(key: bytes) -> str:
    return blake2b(b"name", key=key, digest_size=8).hexdigest()


def changed(home: Home | None) -> dict[str, str]:
    """Returns what each digest is now that erasures made another; GONE where nothing took its place."""
    steps = {old: new for one in erasures(home) for old, new in one.digests.items()}
    return {old: _last(new, steps) for old, new in steps.items()}


def _last(digest: str, steps: Mapping[str, str]) -> str:
    while digest in steps:
        digest = steps[digest]
    return digest


def now(home: Home | None, digest: str) -> str:
    """Returns what a digest that a night recorded is now; the same where no erasure made it another."""
    return changed(home).get(digest, digest)


def forms(home: Home, digest: str) -> list[str]:
    """Returns the digest that a night recorded, followed by its replacements by erasures, in order."""
    steps = {old: new for one in erasures(home) for old, new in one.digests.items()}
    passed = [digest]
    while passed[-1] in steps:
        passed.append(steps[passed[-1]])
    return passed


def now_of_lock(home: Home, text: str, changes: Mapping[str, str] | None = None) -> str:
    """Returns a dvc.lock with the digests that its outputs have now, without those that are gone.

    `changes` are those of `changed`, where they have been read.
    """
    changes = changed(home) if changes is None else changes
    if not any(old in text for old in changes):
        return text
    yaml = YAML()
    content = yaml.load(text)
    for stage in content.get("stages", {}).values():
        for output in list(stage.get("outs", ())):
            digest = output.get("md5", "")
            if digest not in changes:
                continue
            if changes[digest] == GONE:
                stage["outs"].remove(output)
                continue
            output["md5"] = changes[digest]
            for name in ("size", "nfiles"):
                output.pop(name, None)
    stream = StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def of_version(home: Home, number: int) -> str:
    """Returns a sentence where rows that a version learned from were erased; "" where none were."""
    times = [one.at for one in ledger_notes.read(home) if one.erasure and number in one.erasure.versions]
    return f"rows that version {number} learned from were erased on {times[-1]}" if times else ""
