"""Downloaded files are kept in the home, held to their digest, and downloaded anew where they are damaged."""

import re
from pathlib import Path

import pytest

from daybreak.contract.errors import DataError, ParamsError
from daybreak.storage.pretrained import pretrained


class Package:
    """Downloads a file, and keeps notes in a hidden folder, as Hugging Face's does."""

    def __init__(self) -> None:
        self.content, self.num_downloads = "weights", 0

    def download(self, folder: Path) -> None:
        assert not list(folder.iterdir())
        self.num_downloads += 1
        (folder / "model.safetensors").write_text(self.content)
        (folder / ".cache").mkdir()
        (folder / ".cache/notes").write_text(f"download {self.num_downloads}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "params.yaml").write_text("")
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    return tmp_path


def digest_of(package: Package) -> str:
    """The digest, as the error without one says it."""
    with pytest.raises(DataError, match=r"downloaded as bert has the digest \w{64}; write that one") as error:
        pretrained("bert", package.download, digest="")
    return re.findall(r"\w{64}", str(error.value))[0]


def test_files_are_downloaded_once_in_a_home(home: Path) -> None:
    package = Package()
    digest = digest_of(package)
    folders = {pretrained("bert", package.download, digest=digest) for _ in range(3)}
    assert folders == {home / f"var/pretrained/bert-{digest[:12]}"}
    assert (folders.pop() / "model.safetensors").read_text() == "weights"
    assert package.num_downloads == 2


def test_a_name_may_be_that_of_a_repository(home: Path) -> None:
    package = Package()
    with pytest.raises(DataError, match=r"google/bert has the digest \w{64};") as error:
        pretrained("google/bert", package.download, digest="")
    digest = re.findall(r"\w{64}", str(error.value))[0]
    folder = pretrained("google/bert", package.download, digest=digest)
    assert folder == home / f"var/pretrained/google--bert-{digest[:12]}"
    with pytest.raises(ParamsError, match=r"have the name '\.\.'; give them one that"):
        pretrained("..", package.download, digest=digest)


def test_two_classes_may_use_one_name(home: Path) -> None:
    package, other = Package(), Package()
    other.content = "others"
    asked = [(package, digest_of(package)), (other, digest_of(other))]
    folders = [pretrained("bert", each.download, digest=digest) for each, digest in 2 * asked]
    assert folders[:2] == folders[2:]
    assert [each.num_downloads for each, _ in asked] == [2, 2]


def test_what_a_killed_download_left_is_removed_by_the_next(home: Path) -> None:
    stale = home / "var/pretrained/bert.new-1"
    stale.mkdir(parents=True)
    package = Package()
    pretrained("bert", package.download, digest=digest_of(package))
    assert not stale.exists()


def test_a_damaged_file_is_downloaded_again(home: Path) -> None:
    package = Package()
    digest = digest_of(package)
    folder = pretrained("bert", package.download, digest=digest)
    (folder / "model.safetensors").write_text("damaged")
    assert (
        pretrained("bert", package.download, digest=digest) / "model.safetensors"
    ).read_text() == "weights"


def test_an_address_whose_content_changed_is_refused_and_nothing_is_kept(home: Path) -> None:
    package = Package()
    digest = digest_of(package)
    package.content = "others"
    with pytest.raises(DataError, match=rf"bert has the digest \w{{64}}, and {digest} is expected; write"):
        pretrained("bert", package.download, digest=digest)
    assert {path.name for path in (home / "var/pretrained").iterdir()} <= {"bert.lock"}


def test_a_machine_without_a_home_keeps_them_in_the_folder_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAYBREAK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    package = Package()
    digest = digest_of(package)
    assert pretrained("bert", package.download, digest=digest) == Path(f"pretrained/bert-{digest[:12]}")
