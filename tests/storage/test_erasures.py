"""Only the ledger says what was erased: no entry beside it counts, and a lost entry is noticed."""

import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

from daybreak.contract import records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.contract.record_parts import Erasure
from daybreak.contract.record_types import Note, Release
from daybreak.data.ingest import without
from daybreak.registry import carried_code
from daybreak.storage import artifact_files, branch, checkout, erasures
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home, release_of

KEY = b"k" * 32


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of one night."""
    (tmp_path / "home").mkdir()
    home = make_home(tmp_path / "home", monkeypatch)
    close(1, after="", release=release_of(1))
    return home


def erasure(unit: str = "A1", **digests: str) -> Erasure:
    return erasures.by(unit, KEY, num_rows=1, days=("2025-01-11",), digests=digests, versions=(1,))


def beside(*lines: str) -> None:
    """Writes git's notes, as anyone may who can write to a ref of git."""
    for line in lines:
        checkout.git("notes", "--ref=refs/notes/nights", "append", "-m", line, branch.ledger_tip(Home.here()))


def as_line(erasure: Erasure) -> str:
    note = Note(at="2025-01-12 03:00 UTC", text="rows were erased", versions=(1,), erasure=erasure)
    return json.dumps(asdict(note))


def versions(folder: Path) -> tuple[Release, str]:
    """Lays out a version as in MLflow, with other code than the ledger names; returns both digests."""
    model = folder / "artifacts" / "model" / "model.json"
    model.parent.mkdir(parents=True)
    model.write_text("{}")
    (folder / "code").mkdir()
    (toy := folder.parent / "toy.py").write_text("mine = True\n")
    archive = folder / carried_code.CODE / carried_code.ARCHIVE
    carried_code.pack({"toy.py": toy}, archive)
    genuine, digest = records.digest(folder), records.digest(model.parent)
    toy.write_text("mine = False\n")
    carried_code.pack({"toy.py": toy}, archive)
    release = Release(
        version=1,
        replaced=0,
        night="",
        model_digest=digest,
        files_digest=genuine,
        files=artifact_files.sizes(folder),
    )
    return release, records.digest(folder)


def test_no_note_beside_the_ledger_chooses_the_code_of_a_version(tmp_path: Path) -> None:
    files = Home.here().var / "artifacts" / "version"
    release, forged = versions(files)
    beside(as_line(erasure(**{release.files_digest: forged})))
    with pytest.raises(ReleaseError, match=f"have digest {forged}, the ledger says {release.files_digest}"):
        carried_code.fetch(Home.here(), str(files), release, into=tmp_path / "into")
    erasures.note(Home.here(), erasure(**{release.files_digest: forged}))  # the ledger may
    assert carried_code.fetch(Home.here(), str(files), release, into=tmp_path / "into")


def test_a_version_of_before_the_ledger_named_files_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    files = Home.here().var / "artifacts" / "version"
    release = replace(versions(files)[0], files={})
    with pytest.raises(ReleaseError, match="was registered before the ledger named the files of a version"):
        carried_code.fetch(Home.here(), str(files), release, into=tmp_path / "into")


def test_an_erasure_that_nobody_signed_has_no_effect_where_signatures_are_required(home: Path) -> None:
    erasures.note(Home.here(), erasure(a="b"))
    assert erasures.now(Home.here(), "a") == "b"
    (home / "params.yaml").write_text(
        'source: "a.b:C"\nworkload: "a.b:C"\nbackend: "a.b:C"\nrelease: {require_signature: true}\n'
    )
    for act in (
        lambda: erasures.now(Home.here(), "a"),
        lambda: erasures.units(Home.here()),
        lambda: erasures.note(Home.here(), erasure(c="d")),
    ):
        with pytest.raises(ReleaseError, match="no keys that may sign"):
            act()


def test_a_ledger_that_lost_an_erasure_lets_nobody_in_again(home: Path) -> None:
    before = branch.ledger_tip(Home.here())
    (home / erasures.KEY).parent.mkdir()
    (home / erasures.KEY).write_text(KEY.hex() + "\n")
    erasures.note(Home.here(), erasure())
    erasures.remember(Home.here())
    units = erasures.units(Home.here())
    assert units and "A1" in units and "A2" not in units
    tip = branch.ledger_tip(Home.here())
    close(2, after=before)  # nights go on, and follow the note
    assert checkout.git("rev-parse", f"{branch.BRANCH}^1") == tip
    for left in (before, ""):
        words = ["update-ref", branch.BRANCH, left] if left else ["update-ref", "-d", branch.BRANCH]
        subprocess.run(["git", *words], check=True)
        with pytest.raises(DataError, match=f"names an erasure by the ledger's commit {tip[:9]}; .* restore"):
            erasures.units(Home.here())
    assert (home / erasures.KEY).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("erased", ["17850", "17850.0"])  # where another id keeps its column so
def test_an_erased_unit_stays_out_however_its_id_is_written(erased: str) -> None:
    units = erasures.ErasedUnits(key=KEY, hashes=frozenset({erasures.hash_of(erased, KEY)}))
    for ids in (["17850.0", "guest"], ["17850", "178500"], [17850, 178500], [17850.0, None]):
        rows = pa.table({"customer": ids})
        assert without(rows, "customer", units)["customer"].to_pylist() == ids[1:]
        assert without(rows, "customer", {"17850"})["customer"].to_pylist() == ids[1:]
