"""A ledger that is signed by git's own SSH signing, with a key made here."""

import subprocess
from pathlib import Path

import pytest

from daybreak.contract.errors import ReleaseError
from daybreak.contract.sections import RegisterParams
from daybreak.extensions.care.restore import restore
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.serving.recorded import newest_arrays, recorded
from daybreak.storage import branch, checkout
from daybreak.storage.home import Home
from tests.rollout.ledgers import close, make_home, release_of, rolling_back

PARAMS = """\
source: {use: "tests.fakes:TwoDays"}
workload: {use: "toy:Toy"}
backend: {use: "tests.fakes:ScriptedBackend"}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose params.yaml asks for nothing yet; its key may sign, and `other` is a stranger's."""
    (tmp_path / "home").mkdir()
    home = make_home(tmp_path / "home", monkeypatch)
    for name in ("key", "other"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    signers = tmp_path / "signers"
    signers.write_text(f'nights@here namespaces="git" {(tmp_path / "key.pub").read_text()}')
    checkout.git("config", "gpg.ssh.allowedSignersFile", str(signers))
    (home / "params.yaml").write_text(PARAMS)
    return home


def ask_for(home: Path, *, key: str = "", require: bool = False) -> None:
    key = str(home.parent / key) if key else ""
    release = f"release: {{signing_key: '{key}', require_signature: {str(require).lower()}}}\n"
    (home / "params.yaml").write_text(PARAMS + release)


def state_of(commit: str) -> str:
    return checkout.git("log", "-1", "--format=%G?", commit)


def test_nights_and_rollbacks_are_signed_where_a_key_is_named_and_no_others(home: Path) -> None:
    first = close(1, after="", release=release_of(1))
    ask_for(home, key="key")
    second = close(2, after=first, release=release_of(2))
    ask_for(home, key="key", require=True)
    third = close(3, after=second, release=release_of(3))
    back = rolling_back(to=2).commit()
    assert [state_of(commit) for commit in (first, second, third, back)] == ["N", "G", "G", "G"]
    assert close(3, after=second) == third  # again, as after a kill
    branch.expect_signed(Home.here())


def test_a_signed_ledger_is_read_by_a_user_who_has_git_show_signatures(home: Path) -> None:
    ask_for(home, key="key", require=True)
    close(1, after="", release=release_of(1))
    checkout.git("config", "log.showSignature", "true")
    branch.all_commits.cache_clear()
    assert [one.serves for one in branch.all_commits(Home.here(), branch.ledger_tip(Home.here()))] == [1]
    branch.expect_signed(Home.here())
    ask_for(home, key="other", require=True)
    with pytest.raises(ReleaseError, match="not signed by a key"):
        close(3, after=close(2, after=branch.ledger_tip(Home.here())))


def test_the_key_may_be_that_of_gits_own_configuration(home: Path) -> None:
    ask_for(home, require=True)
    with pytest.raises(ReleaseError, match=r"no key signs; name one by release.signing_key"):
        close(1, after="")
    assert not branch.ledger_tip(Home.here())
    checkout.git("config", "user.signingkey", str(home.parent / "key"))
    assert state_of(close(1, after="")) == "G"


def forged(home: Path, *, key: str) -> tuple[str, str]:
    """A signed night, and after it one by somebody who has another key or none; both commits."""
    ask_for(home, key="key")
    signed = close(1, after="", release=release_of(1))
    ask_for(home, key=key)
    forged = close(2, after=signed, release=release_of(2))
    ask_for(home, key="key", require=True)
    return signed, forged


@pytest.mark.parametrize("key", ["", "other"])
def test_a_ledger_that_a_stranger_wrote_is_not_acted_upon_and_the_way_back_is_named(
    home: Path, key: str
) -> None:
    signed, tip = forged(home, key=key)
    way_back = f"git update-ref {branch.BRANCH} {signed} {tip}"
    acts = [
        lambda: expect_ledger(Home.here(), RegisterParams(), opens=True),  # open, gate, watch, rollback
        lambda: newest_arrays(Home(home)),  # a router
        lambda: recorded(Home(home), "daybreak", 2, night=release_of(2).night),  # a router, and predict
        lambda: close(3, after=tip, release=release_of(3)),
        lambda: rolling_back(to=1).commit(),
    ]
    for act in acts:
        with pytest.raises(ReleaseError, match=f"ends at {tip[:9]}, which is not signed") as refused:
            act()
        assert str(refused.value).endswith(way_back)
    assert branch.ledger_tip(Home.here()) == tip
    subprocess.run(way_back.split(), check=True)
    branch.expect_signed(Home.here())
    assert newest_arrays(Home(home)) is None


@pytest.mark.parametrize("key", ["", "other"])
def test_a_lost_ledger_is_restored_up_to_the_newest_signed_commit_and_no_further(
    home: Path, key: str
) -> None:
    signed, tip = forged(home, key=key)
    checkout.git("update-ref", "-d", branch.BRANCH)
    with pytest.raises(
        ReleaseError, match=f"{tip[:9]} is not signed by a key of .*; choose another --commit"
    ):
        list(restore(Home.here(), RegisterParams(), commit=tip, yes=True))
    lines = "\n".join(restore(Home.here(), RegisterParams(), yes=True))
    assert f"git here: {tip[:9]}, night 2025-01-12" in lines
    assert "version 2 serves; passed over, as it is not signed by a key of" in lines
    assert branch.ledger_tip(Home.here()) == signed
    branch.expect_signed(Home.here())
    with pytest.raises(
        ReleaseError, match=f"{tip[:9]}, which git here has, is not signed .* no other is known"
    ):
        list(restore(Home.here(), RegisterParams(), yes=True))
    ask_for(home)
    list(restore(Home.here(), RegisterParams(), yes=True))
    assert branch.ledger_tip(Home.here()) == tip


def test_where_nothing_was_ever_signed_or_no_keys_are_named_the_sentence_says_what_to_do(home: Path) -> None:
    close(1, after="")
    ask_for(home, key="key", require=True)
    with pytest.raises(ReleaseError, match=r"unset release.require_signature until a night has been signed"):
        branch.expect_signed(Home.here())
    checkout.git("config", "--unset", "gpg.ssh.allowedSignersFile")
    with pytest.raises(ReleaseError, match=r"name their file by git config gpg.ssh.allowedSignersFile"):
        branch.expect_signed(Home.here())


def test_a_ledger_is_not_asked_for_signatures_unless_params_say_so(home: Path) -> None:
    signed, _ = forged(home, key="")
    ask_for(home)
    branch.expect_signed(Home.here())
    (home / "params.yaml").unlink()
    branch.expect_signed(Home.here())
    assert signed
