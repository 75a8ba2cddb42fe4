"""What has grown old on the disk goes, and what is of use stays."""

import os
import time
from datetime import timedelta
from pathlib import Path

from daybreak.contract import disk


def test_files_and_folders_that_nobody_has_changed_for_so_long_are_removed(tmp_path: Path) -> None:
    old, kept = tmp_path / "kept", tmp_path / "elsewhere"
    for name in ("old folder", "new folder"):
        (old / name).mkdir(parents=True)
        (old / name / "log.txt").touch()
    (old / "old.json").touch()
    (old / "new.json").touch()
    kept.mkdir()
    (old / "old link").symlink_to(kept)
    for name in ("old folder", "old.json", "old link"):
        at = time.time() - 8 * 86_400
        os.utime(old / name, (at, at), follow_symlinks=name == "old link")
    disk.remove_old(old, after=timedelta(days=7))
    assert sorted(path.name for path in old.iterdir()) == ["new folder", "new.json"]
    assert kept.exists()
    disk.remove_old(tmp_path / "missing", after=timedelta(days=7))
