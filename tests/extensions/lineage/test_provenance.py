"""Lineage over a ledger of 1,000 nights, asked as a person asks."""

import json
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract.errors import ParamsError, ReleaseError
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
    (folder / "params.yaml").write_text(PARAMS)
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["add", "--all"],
        ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--message=Begin"],
    ):
        checkout.git(*words, folder=folder)
    import_nights(folder, NUM_NIGHTS)
    return folder


@pytest.fixture(autouse=True)
def in_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYBREAK_HOME", str(home))
    monkeypatch.chdir(home)


@pytest.mark.slow
def test_why_tells_what_made_a_version_who_judged_it_and_when_it_served() -> None:
    facts = dict(provenance.why(Home.here(), 501))
    night = "2023-05-16"
    assert facts["version"] == f"daybreak 501, model {digest_of(500, 'model')}"
    assert facts["night"].startswith(f"{night}, schedule, began 2023-05-16 22:00 UTC")
    assert facts["data"].endswith(
        f"2023-04-16 to 2023-05-15, judged up to {night}; {digest_of(500, 'arrays')}"
    )
    assert facts["machine"] == "g2-standard-4, spot, batch size 64"
    assert facts["training"] == "3,000 samples, 101 s, $0.90, 1 restarts, stopped by finished, on NVIDIA L4"
    assert facts["verdict"] == "promote: better"
    assert facts["approved"].startswith("by the gate; nobody was asked")
    assert facts["served"].startswith("2023-05-16 22:00 UTC to 2023-05-18 22:00 UTC")
    assert checkout.git("log", "-1", "--format=%s", facts["ledger"]) == f"{night}: promote: better"


def test_a_version_that_never_served_says_so() -> None:
    facts = dict(provenance.why(Home.here(), 2))
    assert (facts["verdict"], facts["served"]) == ("reject: worse", "never")
    assert provenance.why(Home.here(), NUM_NIGHTS - 1)[-2][1].startswith("since 2024-09-25")


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
    night = dict(provenance.why(Home.here(), 501))["night"].split()[0].rstrip(",;:")
    assert version_of(Home.here(), night) == 501
    with pytest.raises(ReleaseError, match="2001-01-01 is not a version, nor a night of the ledger"):
        version_of(Home.here(), "2001-01-01")


def test_a_version_that_the_ledger_does_not_know_is_said() -> None:
    with pytest.raises(ReleaseError, match=r"no night of the ledger made version 5000; .*: 1 to 1000"):
        provenance.why(Home.here(), 5000)


@pytest.mark.slow
def test_the_command_line_answers_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["why", "501"]) == 0
    assert "verdict   promote: better" in capsys.readouterr().out
    assert cli.main(["who-used", digest_of(7, "raw")[:10]]) == 0
    assert capsys.readouterr().out == "2022-01-08  version 8: brought it in, has it as data/raw\n"
    assert cli.main(["who-used", "2030-01-01"]) == 99
    assert cli.main(["why", "5000"]) == 1


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
