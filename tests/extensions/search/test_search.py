"""The search for settings in the time that nights leave, and the nights that train what proved better."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import get_all_study_names

from daybreak import runner
from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo, ParamsError
from daybreak.contract.record_types import Dataset, Night
from daybreak.extensions.search import commands, proposal
from daybreak.extensions.search.leftover import search_leftover
from daybreak.extensions.search.searcher import Searcher
from daybreak.extensions.search.winner import Winner
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.workloads.metrics import AUC, Calibration, LogLoss
from tests.clones import ROOT
from tests.conftest import PARAMS
from tests.extensions.search.line import NUM, Line
from tests.planning.jobs import night
from tests.rollout.ledgers import close, make_home, release_of, rolling_back

pytestmark = pytest.mark.slow
SEARCH = "search: {space: {train.rate: [0.000001, 0.05]}, nights: 2, tries: 20}\n"
TRAIN = "train: {rate: 0.000001, epochs: 2, batch_size: 16}\n"
FIRST, AN_HOUR_S = date(2025, 1, 2), 3600.0


@pytest.fixture
def home(repository: Path, commit: Callable[[str], str]) -> Home:
    given = PARAMS.replace("tests.fakes:Nothing", "tests.extensions.search.line:Line")
    (repository / "params.yaml").write_text(f"{given}{TRAIN}{SEARCH}")
    commit("Search for a rate")
    return Home(repository)


def searched(home: Home, number: int, *, seconds: float = AN_HOUR_S) -> Winner | None:
    """What a search finds on the samples of a night, whose folder is made."""
    tonight = Night(**{**vars(night()), "id": f"night-{number}", "day": FIRST + timedelta(days=number)})
    folder = home.nights / tonight.id
    folder.mkdir(parents=True)
    os.chdir(folder)
    dataset = Dataset(
        digest="d.dir", num_samples=NUM, num_bytes=1, first_day=FIRST - timedelta(days=1), last_day=FIRST
    )
    for record in (tonight, dataset):
        records.write(record, home.records)
    try:
        return Searcher(home, tonight).search(until=time.time() + seconds)
    finally:
        os.chdir(home.folder)


def rate_of_night(home: Home, **options: object) -> float:
    """The rate that a night trains with which opens now."""
    os.chdir(home.folder)
    opened = runner.run(home, "open", **options)
    assert isinstance(opened, Night)
    return params.load(home.nights / opened.id).train.rate


def test_a_setting_that_gains_on_two_nights_is_trained_by_the_next_as_a_changed_recipe(home: Home) -> None:
    assert searched(home, 1) is None
    found = searched(home, 2)
    assert found and found.values == {"train.rate": 0.05}
    assert found.num_nights == 2 and found.low > 0
    assert home.params.train.rate == 0.000001
    assert rate_of_night(home, day=FIRST) == 0.05


def test_an_edit_of_the_recipe_and_a_persons_word_go_before_what_was_found(
    home: Home, commit: Callable[[str], str]
) -> None:
    searched(home, 1), searched(home, 2)
    assert rate_of_night(home, day=FIRST, set=["train.rate=0.002"]) == 0.002
    shutil.rmtree(home.nights)
    text = (home.folder / "params.yaml").read_text()
    (home.folder / "params.yaml").write_text(text.replace("epochs: 2", "epochs: 3"))
    os.chdir(home.folder)
    commit("Train longer")
    assert rate_of_night(home, day=FIRST) == 0.000001


def test_a_setting_that_was_not_found_may_be_set_for_a_night_beside_one_that_was(home: Home) -> None:
    searched(home, 1), searched(home, 2)
    assert rate_of_night(home, day=FIRST, set=["train.epochs=3"]) == 0.05


def test_what_was_found_is_dropped_after_nights_that_failed_with_it(home: Home) -> None:
    searched(home, 1), searched(home, 2)
    found = proposal.read(home, home.params).values
    rates = []
    for number in range(4):
        rates.append(rate_of_night(home, day=FIRST + timedelta(days=3 + number)))
        runner.run(home, "close")
    assert rates == [0.05, 0.000001, 0.05, 0.000001]
    assert proposal.read(home, home.params).values == {}
    proposal.write(home, home.params, found, since=FIRST + timedelta(days=9))
    assert proposal.read(home, home.params).values == {}
    proposal.write(home, home.params, {"train.rate": 0.04}, since=FIRST + timedelta(days=9))
    assert proposal.read(home, home.params).values == {"train.rate": 0.04}


def test_what_was_found_is_dropped_when_it_does_not_come_to_serve(home: Home) -> None:
    searched(home, 1), searched(home, 2)
    rate_of_night(home, day=FIRST)
    runner.run(home, "close")
    kept = proposal.read(home, home.params)
    records.write(replace(kept, since=FIRST - timedelta(days=proposal.TESTED_DAYS + 1)), home.var)
    assert proposal.read(home, home.params).values == {}


def test_what_was_found_is_forgotten_at_a_persons_word(home: Home) -> None:
    searched(home, 1), searched(home, 2)
    assert commands.search(home, forget=True) == 0
    assert rate_of_night(home, day=FIRST) == 0.000001
    shutil.rmtree(home.nights)
    assert searched(home, 3) is None


def test_a_study_whose_last_line_is_torn_goes_on(home: Home) -> None:
    searched(home, 1)
    with (home.var / proposal.STUDY).open("a") as study:
        study.write('{"op_code":')
    assert searched(home, 2)


def test_settings_that_are_worse_than_todays_are_never_trained(
    home: Home, commit: Callable[[str], str]
) -> None:
    text = (home.folder / "params.yaml").read_text()
    (home.folder / "params.yaml").write_text(text.replace("rate: 0.000001, epochs", "rate: 0.05, epochs"))
    commit("Begin with the better rate")
    assert [searched(home, number) for number in (1, 2)] == [None, None]
    assert rate_of_night(home, day=FIRST) == 0.05


def test_a_search_ends_amid_a_run_when_the_time_of_the_night_is_over(home: Home) -> None:
    assert [searched(home, number, seconds=0) for number in (1, 2)] == [None, None]
    assert rate_of_night(home, day=FIRST) == 0.000001


def changed(home: Home, **words: str) -> None:
    """Replaces words of params.yaml."""
    path = home.folder / "params.yaml"
    text = path.read_text()
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_an_argument_that_acts_where_the_samples_are_read_is_tried(
    home: Home, commit: Callable[[str], str]
) -> None:
    changed(
        home, **{"line:Line": "line:Flat", "train.rate: [0.000001, 0.05]": "workload.wide: [false, true]"}
    )
    commit("Search for samples that are easier to learn")
    searched(home, 1)
    found = searched(home, 2)
    assert found and found.values == {"workload.wide": True}


def test_a_variant_that_the_class_offers_is_tried_and_trained_by_the_next_night(
    home: Home, commit: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    words = {"train.rate: [0.000001, 0.05]": "workload.variant: ['', simpler model]"}
    changed(home, **{"line:Line": "line:Deaf", "rate: 0.000001": "rate: 0.05", **words})
    commit("Search among the variants of the class")
    searched(home, 1)
    found = searched(home, 2)
    assert found and found.values == {"workload.variant": "simpler model"}
    assert "tried 1 setting" in caplog.text  # the class as it is runs once, as today's setting
    os.chdir(home.folder)
    opened = runner.run(home, "open", day=FIRST)
    assert isinstance(opened, Night)
    assert type(params.load(home.nights / opened.id).workload.make()) is Line


def test_another_list_of_values_begins_another_study(home: Home, commit: Callable[[str], str]) -> None:
    searched(home, 1)
    changed(home, **{"[0.000001, 0.05]": "[0.000001, 0.04, 0.05]"})
    commit("Try a third rate")
    searched(home, 2)
    found = searched(home, 3)
    assert found and found.num_nights == 2


def test_another_first_metric_begins_another_study(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, metrics in enumerate(
        [(), (LogLoss(), AUC()), (LogLoss(), Calibration()), (AUC(), LogLoss())]
    ):
        monkeypatch.setattr(Line, "metrics", metrics, raising=False)
        searched(home, number, seconds=0)
    log = JournalStorage(JournalFileBackend(str(home.var / proposal.STUDY)))
    assert len(get_all_study_names(log)) == 3


def test_no_run_begins_while_another_night_is_open(home: Home) -> None:
    changed(home, **{"line:Line": "line:Broken"})
    opened = replace(night(), decide_until=datetime.now(UTC) + timedelta(hours=1))
    records.write(opened, home.nights / opened.id / records.RUN)
    assert searched(home, 1) is None


def test_a_night_that_ended_in_time_searches_in_a_process_of_its_own_one_at_a_time(
    home: Home, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(home, 1, seconds=0)
    folder = home.nights / "night-1"
    shutil.copy(home.folder / "params.yaml", folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where the workload of this test is
    soon = datetime.now(UTC) + timedelta(hours=1)
    records.write(replace(records.read(Night, home.records), decide_until=soon), home.records)
    with (home.var / "search.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        search_leftover(home)
    assert "tried" not in capfd.readouterr().err
    search_leftover(home)
    assert "tried 0 settings in" in capfd.readouterr().err  # as the night of this folder is not closed
    assert (home.var / "search.log").exists()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("{train.seed: [1, 2]}", "train.seed is not searched; name train.epochs, train.batch_size"),
        ("{workload.layers: [[64, 64], [128]]}", r"lists \[64, 64\]; have the class take a word for it"),
        ("{train.rate: 'float(0, inf)'}", r"float\(0, inf\) has no end; give two numbers"),
        ("{train.rate: log(1, 2)}", "YAML ends a range within braces at its comma; quote it, as 'log"),
        ("{train.rate: [0.1]}", "train.rate lists 1 value; list two at least, or a range"),
        (
            "{train.batch_size: 'log(31.5, 512)'}",
            r"train.batch_size is a whole number, and .* gives others; write int\(32, 512\), or list values",
        ),
        (
            "{train.rate: 'lg(1, 2)'}",
            r"train.rate: 'lg\(1, 2\)' is not a range; write one as log\(1e-4, 1e-2\)",
        ),
        (
            "{train.rate: 'log(0, 1)'}",
            r"train.rate: log\(0, 1\) is an empty range, or its ends do not go with",
        ),
    ],
)
def test_settings_that_cannot_be_searched_are_refused_in_a_sentence(
    home: Home, space: str, said: str
) -> None:
    with pytest.raises(ParamsError, match=said):
        params.override(home.folder, [f"search.space={space}"])


def test_after_a_rollback_the_newest_night_is_searched_and_not_the_one_that_serves_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_home(tmp_path, monkeypatch)
    close(3, after=close(1, after="", release=release_of(1)), release=release_of(3))
    rolling_back(to=1).commit()
    home = Home.here()
    of_rollback, newest, oldest = (entry.night for entry in ledger.history(home))
    assert of_rollback == oldest
    for each in (newest, oldest):
        records.write(each, home.nights / each.id / records.RUN)
    with pytest.raises(NothingToDo, match=f"the time of night {newest.id} is over"):
        commands.search(home)
