"""What memory taught on a machine is known to the next job of the same model, for a while."""

import os

import pytest

from daybreak.machines import this_machine
from daybreak.storage.home import Home
from daybreak.training import micro_batch


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    return tmp_path


def test_a_size_is_remembered_for_its_model_alone():
    micro_batch.remember(Home.here(), "a:A", {"dim": 8}, micro_batch_size=16)
    assert micro_batch.at_most(Home.here(), "a:A", {"dim": 8}, micro_batch_size=64) == 16
    assert micro_batch.at_most(Home.here(), "a:A", {"dim": 8}, micro_batch_size=4) == 4
    assert micro_batch.at_most(Home.here(), "a:A", {"dim": 9}, micro_batch_size=64) == 64


def test_a_size_is_forgotten_with_the_machine(home):
    micro_batch.remember(Home.here(), "a:A", {}, micro_batch_size=16)
    (path,) = home.glob("var/passes/*.json")
    long_ago = path.stat().st_mtime - this_machine.KEPT.total_seconds() - 1
    os.utime(path, (long_ago, long_ago))
    assert micro_batch.at_most(Home.here(), "a:A", {}, micro_batch_size=64) == 64


def test_a_file_that_cannot_be_read_is_no_hindrance(home):
    micro_batch.remember(Home.here(), "a:A", {}, micro_batch_size=16)
    (path,) = home.glob("var/passes/*.json")
    path.write_text("{")
    assert micro_batch.at_most(Home.here(), "a:A", {}, micro_batch_size=64) == 64
