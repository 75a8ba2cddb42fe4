"""Lineage over a ledger of 1,000 nights, asked as a person asks."""

import json
import shutil
from contextlib import chdir
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import records
from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.contract.record_parts import Event
from daybreak.contract.record_types import Champion, Night, Release, Verdict
from daybreak.extensions.care import audit
from daybreak.extensions.lineage import provenance
from daybreak.rollout.rollback import version_of
from daybreak.storage import branch, checkout, ledger
from daybreak.storage.home import Home
from tests.storage.ledgers import PARAMS, digest_of, import_nights

NUM_NIGHTS = 1000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    _lay_out(folder)
    import_nights(folder, NUM_NIGHTS)
    return folder


def _lay_out(folder: Path) -> None:
    (folder / "params.yaml").write_text(PARAMS)
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message=Begin"],
    ):
        checkout.git(*words, folder=folder)


@pytest.fixture(autouse=True)
def in_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    monkeypatch.chdir(home)


@pytest.mark.slow
def test_why_tells_what_made_a_version_who_judged_it_and_when_it_served() -> None:
    facts = dict(provenance.why(Home.here(), "501"))
    night = "2023-05-16"
    assert facts["version"] == f"daybreak 501, model {digest_of(500, 'model')}"
    assert facts["night"].startswith(f"{night}, schedule, began 2023-05-16 22:00 UTC")
    assert facts["samples"].endswith(
        f"2023-04-16 to 2023-05-15, judged up to {night}; {digest_of(500, 'arrays')}"
    )
    assert facts["machine"] == "g2-standard-4, spot, batch size 64"
    assert facts["training"] == "3,000 samples, 101 s, $0.90, 1 restarts, stopped by finished, on NVIDIA L4"
    assert facts["verdict"] == "promote: better"
    assert facts["approved"].startswith("by the gate; nobody was asked")
    assert facts["served"].startswith("2023-05-16 22:00 UTC to 2023-05-18 22:00 UTC")
    assert checkout.git("log", "-1", "--format=%s", facts["ledger"]) == f"{night}: promote: better"


def test_a_version_that_never_served_says_so() -> None:
    facts = dict(provenance.why(Home.here(), "2"))
    assert (facts["verdict"], facts["served"]) == ("reject: worse", "never")
    assert dict(provenance.why(Home.here(), str(NUM_NIGHTS - 1)))["served"].startswith("since 2024-09-25")


def test_who_used_a_day_names_those_that_trained_and_those_that_judged_on_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    uses = provenance.who_used(Home.here(), "2022-03-01")
    assert [(use.night, use.how) for use in uses[:2]] == [
        ("2022-03-01", "was judged on it"),
        ("2022-03-02", "trained on it"),
    ]
    assert len(uses) == 31
    assert not any(use.serves for use in uses)
    assert provenance.who_used(Home.here(), "2030-01-01") == []
    assert cli.main(["who-used", "2022-03-01", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(use["night"], use["version"]) for use in shown] == [(use.night, use.version) for use in uses]


@pytest.mark.slow
def test_who_used_a_digest_names_data_and_models() -> None:
    (use,) = provenance.who_used(Home.here(), digest_of(7, "arrays"))
    assert (use.night, use.version) == ("2022-01-08", 8)
    assert use.how == "trained on it, registered it, has it as data/arrays"
    assert (
        provenance.who_used(Home.here(), digest_of(7, "raw")[:12])[0].how
        == "brought it in, has it as data/raw"
    )
    made, *judged = provenance.who_used(Home.here(), digest_of(8, "model"))
    assert made.how == "made it, registered it, released it"
    assert [use.how for use in judged] == ["was judged against it"] * 2
    assert provenance.who_used(Home.here(), digest_of(NUM_NIGHTS - 2, "model"))[0].serves


@pytest.mark.parametrize("what", ["yesterday", "12345", "zzzzzz", "2022-02-30"])
def test_what_is_neither_a_day_nor_a_digest_is_said(what: str) -> None:
    with pytest.raises(ParamsError, match="is neither a date nor a digest"):
        provenance.who_used(Home.here(), what)


@pytest.mark.slow
def test_a_version_is_named_by_its_number_or_by_the_day_of_its_night() -> None:
    assert version_of(Home.here(), "501") == 501
    night = dict(provenance.why(Home.here(), "501"))["night"].split()[0].rstrip(",;:")
    assert version_of(Home.here(), night) == 501
    with pytest.raises(ReleaseError, match="2001-01-01 is not a version, nor a night of the ledger"):
        version_of(Home.here(), "2001-01-01")


def test_a_version_that_the_ledger_does_not_know_is_said() -> None:
    with pytest.raises(ReleaseError, match=r"no night of the ledger made version 5000; .*: 1 to 1000"):
        provenance.why(Home.here(), "5000")


@pytest.mark.slow
def test_the_command_line_answers_in_words_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", "501"]) == 0
    assert "verdict     promote: better" in capsys.readouterr().out
    assert cli.main(["why", "2023-05-16", "--json"]) == 0
    assert {"name": "verdict", "text": "promote: better"} in json.loads(capsys.readouterr().out)
    assert cli.main(["who-used", digest_of(7, "raw")[:10]]) == 0
    assert capsys.readouterr().out == "2022-01-08  version 8: brought it in, has it as data/raw\n"
    assert cli.main(["who-used", "2030-01-01"]) == 99
    assert cli.main(["why", "5000"]) == 1


def test_a_night_is_named_by_its_day_and_answers_with_its_version() -> None:
    shown = provenance.why(Home.here(), "2023-05-16")
    assert shown == provenance.why(Home.here(), "501")
    assert shown[0] == ("outcome", "Promoted: version 501 replaces version 499.")
    assert ("cost", "$0.90, of $3.00 budget") in shown


def test_what_names_no_night_is_said() -> None:
    with pytest.raises(
        ReleaseError,
        match=r"2031-01-01 is neither a version nor a night .*; the newest night of the ledger is 2024-09-26",
    ):
        provenance.why(Home.here(), "2031-01-01")


@pytest.fixture
def small_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Returns a home with three nights in its ledger, and none in its folder."""
    _lay_out(tmp_path)
    import_nights(tmp_path, 3)
    monkeypatch.setenv("DAYBREAK_HOME", str(tmp_path))
    return Home.here()


def test_a_night_that_failed_says_at_which_stage_and_how_to_go_on(small_home: Home) -> None:
    folder = _opened(small_home, "2022-01-04")
    (folder / records.RUN / "validate.error").write_text("DataError: 61 % of the rows are new;\nlook at them")
    shown = provenance.why(small_home, "2022-01-04")
    assert shown[0] == ("outcome", "The night failed at validate; version 3 stays.")
    assert shown[1] == ("reason", "DataError: 61 % of the rows are new;\nlook at them")
    assert shown[-1] == ("next", "daybreak night --night 2022-01-04")
    assert not {"version", "served", "ledger"} & dict(shown).keys()
    assert cli.main(["why", "2022-01-04"]) == 0


def test_a_failed_night_that_was_overtaken_is_not_gone_on_with(small_home: Home) -> None:
    folder = _opened(small_home, "2022-01-04")
    (folder / records.RUN / "train.error").write_text("no room")
    _roll_back(small_home)
    assert provenance.why(small_home, "2022-01-04")[-1] == (
        "next",
        "daybreak night --day 2022-01-04 --night 2022-01-04-2",
    )


def test_a_version_that_was_rolled_back_is_said_to_be(small_home: Home) -> None:
    _roll_back(small_home)
    shown = dict(provenance.why(small_home, "3"))
    assert shown["outcome"].startswith("Promoted, then rolled back: version 3 ")
    assert "to version 1: " in shown["since"]


@pytest.mark.parametrize("setting", ["color.ui=always", "diff.external=true", "diff.noprefix=true"])
def test_params_that_differ_from_the_commit_are_said_whatever_a_user_sets(
    small_home: Home, setting: str
) -> None:
    (small_home.folder / "params.yaml").write_text(f"# another\n{PARAMS}")
    words = ("-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--all", "--message=Edit")
    checkout.git(*words, folder=small_home.folder)
    entry = ledger.history(small_home, limit=1)[0]
    edited = checkout.git("rev-parse", "HEAD", folder=small_home.folder)
    entry = replace(entry, night=replace(entry.night, code_commit=edited))
    checkout.git("config", *setting.split("="), folder=small_home.folder)
    assert provenance._changed_params(small_home, entry) == "- # another"


def test_a_version_that_began_with_another_learned_from_what_that_one_did(small_home: Home) -> None:
    newest = ledger.history(small_home, limit=1)[0]
    assert newest.dataset and newest.training and newest.version
    days = [newest.dataset.first_day]
    learned = provenance.learned_from(small_home, days)
    assert newest.version.number in learned

    def made(number: int, *, warm: bool | None) -> Path:
        folder = _opened(small_home, f"2022-01-{number:02}")
        later = replace(newest.dataset, first_day=date(2022, 3, 1), last_day=date(2022, 3, 2))
        champion = records.read(Champion, folder / records.RUN)
        verdict = Verdict(action="reject", champion=champion.version, challenger=number, reason="a test")
        version = replace(newest.version, number=number)
        for record in (later, replace(newest.training, warm=warm), version, verdict):
            records.write(record, folder / records.RUN)
        return folder

    def closed(folder: Path, *, serves: int = 0) -> None:
        night = records.read(Night, folder / records.RUN)
        replaced = records.read(Champion, folder / records.RUN).version
        released = Release(version=serves, replaced=replaced, night=night.id) if serves else None
        shutil.copytree(folder / records.RUN, small_home.folder / records.RUN, dirs_exist_ok=True)
        with chdir(small_home.folder):
            ledger.commit_night(small_home, night, message=folder.name, release=released)

    for number, warm in ((4, True), (5, None), (6, True)):  # None: nobody told
        closed(made(number, warm=warm), serves=number)
    overtaken = made(7, warm=True)
    closed(made(8, warm=False), serves=8)
    closed(overtaken)
    passed_on = branch.read_at(small_home, branch.ledger_tip(small_home), Champion)
    assert passed_on and passed_on.version == 8  # though version 7 began with version 6
    assert provenance.learned_from(small_home, days) == [*learned, 4, 5, 6, 7]


def test_a_damaged_record_of_a_folder_hides_nothing_that_the_ledger_has(
    small_home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    before = provenance.why(small_home, "3")
    folder = _opened(small_home, "2022-01-03")
    records.path_of(Champion, folder / records.RUN).write_text("{")
    assert provenance.why(small_home, "3") == before
    _opened(small_home, "2022-01-05")
    records.path_of(Champion, small_home.nights / "2022-01-05" / records.RUN).write_text("{")
    with pytest.raises(ReleaseError, match="no night of the ledger made version 9"):
        provenance.why(small_home, "9")


def test_a_day_is_that_of_its_newest_night_open_or_closed(small_home: Home) -> None:
    assert dict(provenance.why(small_home, "2022-01-03"))["version"].startswith("daybreak 3,")
    _opened(small_home, "again", day="2022-01-03", at=datetime(2022, 1, 4, 9, tzinfo=UTC))
    shown = dict(provenance.why(small_home, "2022-01-03"))
    assert shown["outcome"] == "The night is under way; version 3 stays."
    assert shown["reason"] == "The last stage done is open."
    assert shown["night"].startswith("again, ")


def _roll_back(home: Home) -> None:
    """Has version 1 serve in place of version 3."""
    newest, *_, first = ledger.history(home)
    assert newest.verdict
    verdict = replace(newest.verdict, reason="complaints")
    release = Release(version=1, replaced=3, night=first.night.id)
    at = newest.night.started_at + timedelta(hours=1)
    event = Event(kind="rolled back", at=at, night="", version=1, champion=3, by="ann", reason="complaints")
    ledger.commit_rollback(home, first.commit, release, verdict, event, after=newest.commit, message="back")


def _opened(home: Home, name: str, *, day: str = "", at: datetime | None = None) -> Path:
    """Opens a night after the newest of the ledger by its records alone, and returns its folder."""
    newest = ledger.history(home, limit=1)[0]
    began = at or newest.night.started_at + timedelta(days=1)
    night = replace(
        newest.night,
        id=name,
        day=date.fromisoformat(day or name),
        started_at=began,
        decide_until=began + timedelta(days=1),
        previous=newest.commit,
    )
    folder = home.nights / name
    records.write(night, folder / records.RUN)
    champion = ledger.champion_at(home, newest.commit)
    assert champion
    records.write(champion, folder / records.RUN)
    return folder


def test_the_chain_of_a_sound_ledger_has_no_fault_and_a_forged_one_has() -> None:
    commits = ledger.commits(Home.here())
    texts = branch.texts_at(Home.here(), [commit.id for commit in commits], [*audit.PATHS.values()])
    nights = [audit.decoded(files) for files in texts]
    assert len(nights) == NUM_NIGHTS
    assert list(audit.chain_faults(commits, nights)) == []
    assert list(audit.release_faults(commits, nights)) == []
    nights[3]["night"]["previous"] = commits[7].id
    nights[3]["release"]["replaced"] = 8
    assert len(list(audit.chain_faults(commits, nights))) == 1
    (fault,) = audit.release_faults(commits, nights)
    assert fault.endswith("replaces version 8, but 995 served")


def test_only_the_ledger_is_read(home: Path) -> None:
    assert sorted(path.name for path in home.iterdir()) == [".git", "params.yaml"]
