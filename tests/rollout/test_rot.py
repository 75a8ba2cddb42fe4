"""What is damaged, and what only went elsewhere."""

import subprocess
from pathlib import Path

import pytest

from daybreak.rollout import rot
from daybreak.storage import checkout
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home


def test_an_object_that_git_packs_while_it_is_looked_at_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path, monkeypatch)
    close(1, after="")
    name = checkout.git("hash-object", "-w", "--stdin", text="content")
    path = home / ".git" / "objects" / name[:2] / name[2:]
    assert rot._is_whole(path)
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    assert rot.damaged_objects(Home.here()) == [path]
    path.unlink()
    subprocess.run(["git", "hash-object", "-w", "--stdin"], input=b"content", check=True, capture_output=True)
    seen = [path]  # as it was listed
    subprocess.run(["git", "update-ref", "refs/tags/kept", name], check=True)
    subprocess.run(["git", "gc", "--quiet"], check=True)
    assert not path.exists()
    assert all(map(rot._is_whole, seen))
    assert rot.damaged_objects(Home.here()) == []
