"""No erasure passes over a version whose files it cannot look into."""

from dataclasses import replace
from pathlib import Path

import pytest

from daybreak.contract.errors import ReleaseError
from daybreak.contract.record_types import Version
from daybreak.extensions.erasure import version_rows
from daybreak.storage import artifact_files
from daybreak.storage.home import Home
from tests.rollout.ledgers import make_home
from tests.toy.nights import make_version

VERSION = replace(make_version(1, model_digest="m", night="n"), files={"MLmodel": 7})


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a version in the store of a home."""
    (tmp_path / "home").mkdir()
    folder = make_home(tmp_path / "home", monkeypatch) / "var" / "artifacts" / "model"
    folder.mkdir(parents=True)
    return folder


def test_a_version_of_before_the_ledger_named_files_is_looked_into_whole(kept: Path, tmp_path: Path) -> None:
    (kept / "past").mkdir()
    (kept / "past" / "part.parquet").write_text("rows")
    old = replace(VERSION, files={})
    (into := tmp_path / "into").mkdir()
    folder = version_rows._brought(Home.here(), str(kept), 1, old, into=into)
    assert artifact_files.sizes(folder) == {"past/part.parquet": 4}


@pytest.mark.parametrize("version", [VERSION, None])
def test_a_version_none_of_whose_files_is_there_ends_the_erasure(
    kept: Path, version: Version | None, tmp_path: Path
) -> None:
    kept.rmdir()
    (into := tmp_path / "into").mkdir()
    with pytest.raises(ReleaseError, match=r"files of version 1 are not to be had as .*; daybreak repair"):
        version_rows._brought(Home.here(), str(kept), 1, version, into=into)
