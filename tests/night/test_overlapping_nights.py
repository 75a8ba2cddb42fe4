"""Two nights of one home at once, their data in DVC: the first missed its deadline, and goes on."""

import multiprocessing
import os
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.record_types import Night
from daybreak.data.partitions import part_of
from daybreak.storage import branch, dvc_cache, ledger, night_folders
from daybreak.storage.home import Home
from tests.data.test_odd_days import FIRST, home

__all__ = ["home"]
DAYS = [FIRST + timedelta(days=n) for n in range(4)]  # whose files the home has; the first two are of "base"
NIGHTS = {"base": DAYS[1], "one": DAYS[2], "two": DAYS[3]}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*infer_string.*"),
]


def opened(name: str) -> Path:
    os.chdir(Home.here().folder)
    assert cli.main(["open", "--night", name, "--day", str(NIGHTS[name])]) == 0
    return Path.cwd()


def at_once(*calls: tuple[Path, str]) -> None:
    """Runs these stages in processes of their own, each in the folder of its night, all at the same time."""
    fork = multiprocessing.get_context("fork")
    running = [fork.Process(target=_run, args=call) for call in calls]
    for process in running:
        process.start()
    for process in running:
        process.join(300)
    assert [process.exitcode for process in running] == [0] * len(calls)


def _run(folder: Path, stage: str) -> None:
    os.chdir(folder)
    sys.exit(cli.main([stage]))


def data_of(commit: str) -> dict[str, str]:
    """Returns the digests of the rows that a night of the ledger had, by file; each is whole in the cache."""
    home = Home.here()
    outs = dvc_cache.outputs(branch.text_at(home, commit, "dvc.lock"))
    files = dict(dvc_cache.files_of(home, {"data/raw": outs["data/raw"]}))
    assert all(dvc_cache.is_intact(home, digest) for digest in files.values())
    return files


@pytest.mark.promise
@pytest.mark.usefixtures("home")
def test_nights_that_overlap_keep_their_own_data_and_both_verdicts(repository: Path) -> None:
    base = opened("base")
    at_once((base, "ingest"))
    at_once((base, "close"))
    one = opened("one")
    night = records.read(Night, one / records.RUN)
    records.write(replace(night, decide_until=night.started_at), one / records.RUN)  # the next may open
    two = opened("two")
    assert {night.id for _, night in night_folders.unclosed(Home.here())} == {"one", "two"}

    at_once((one, "ingest"), (two, "ingest"))
    at_once((one, "validate"), (two, "validate"))
    at_once((one, "close"), (two, "close"))

    os.chdir(repository)
    entries = {entry.night.id: entry for entry in ledger.history(Home.here())}
    assert set(entries) == set(NIGHTS)
    for name, entry in entries.items():
        days = [day for day in DAYS if day <= NIGHTS[name]]
        files = data_of(entry.commit)
        assert set(files) == {str(part_of(day)) for day in days}
        assert entry.batch
        assert (entry.batch.day, entry.batch.num_rows) == (NIGHTS[name], 40 * (2 if name != "one" else 1))
        assert entry.verdict
        assert (entry.verdict.action, entry.verdict.reason) == (
            "no data",
            "the night was ended before its gate",
        )
        assert bool(entry.report) == (name != "base")
