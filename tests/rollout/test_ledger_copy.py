"""The ledger is pushed off the host, and is held against what was pushed."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.params import load
from daybreak.contract.sections import Params
from daybreak.extensions.care import audit
from daybreak.extensions.care.restore import restore
from daybreak.rollout import ledger_copy
from daybreak.rollout.lost_ledger import expect_ledger
from daybreak.storage import branch, checkout, ledger
from daybreak.storage.home import Home
from tests.conftest import PARAMS
from tests.rollout.ledgers import close, make_home, release_of

pytestmark = pytest.mark.slow


def point_to(remote: object) -> None:
    """Names the remote in the params of the home."""
    key = f', ledger_remote: "{remote}"}}'
    (Home.here().folder / "params.yaml").write_text(PARAMS.replace("budget_usd: 3}", f"budget_usd: 3{key}"))


@pytest.fixture
def home(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of two nights whose remote is a bare repository beside it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "home" / "var").mkdir(parents=True)
    shutil.copy(empty_store, tmp_path / "home" / "var" / "mlflow.db")
    home = make_home(tmp_path / "home", monkeypatch)
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "bare")], check=True)
    point_to(tmp_path / "bare")
    close(2, after=close(1, after="", release=release_of(1)))
    return home


@pytest.fixture
def params(home: Path) -> Params:
    return load(home)


def pushed(tmp_path: Path) -> str:
    """The end of the copy."""
    return checkout.git("for-each-ref", "--format=%(objectname)", branch.BRANCH, folder=tmp_path / "bare")


def test_what_is_pushed_brings_a_ledger_back_that_git_here_has_lost(
    home: Path, params: Params, tmp_path: Path
) -> None:
    tip = branch.ledger_tip(Home.here())
    copy = ledger_copy.push(Home.here())
    assert copy
    assert copy.state == "same"
    assert pushed(tmp_path) == tip
    subprocess.run(["git", "update-ref", "-d", branch.BRANCH], check=True)
    subprocess.run(["git", "gc", "--quiet", "--prune=now"], check=True)
    with pytest.raises(ReleaseError, match=f"has the branch nights at {tip[:9]}; but the ledger"):
        expect_ledger(Home.here(), params.register_, opens=True)
    lines = list(restore(Home.here(), params.register_))
    assert not branch.ledger_tip(Home.here())
    assert f"remote {tmp_path / 'bare'}: {tip[:9]}, night 2025-01-12" in "\n".join(lines)
    assert "2 entries" in "\n".join(lines)
    list(restore(Home.here(), params.register_, yes=True))
    assert branch.ledger_tip(Home.here()) == tip
    with pytest.raises(NothingToDo):
        list(restore(Home.here(), params.register_, yes=True))


def test_a_branch_that_was_cut_back_is_proposed_as_its_reflog_has_it(home: Path, params: Params) -> None:
    tip = branch.ledger_tip(Home.here())
    first = ledger.commits(Home.here())[1].id
    close(3, after=tip)  # loses no race: it is undone by hand, and was the newest
    newest = branch.ledger_tip(Home.here())
    subprocess.run(["git", "update-ref", branch.BRANCH, first], check=True)
    lines = list(restore(Home.here(), params.register_, yes=True))
    assert branch.ledger_tip(Home.here()) == newest
    assert lines[1].startswith(f"git here: {newest[:9]}, night 2025-01-13")
    assert "version 1 serves" in lines[0]


@pytest.mark.parametrize("cut", ["deleted", "reset"])
def test_what_a_named_remote_that_is_away_had_is_proposed(home: Path, tmp_path: Path, cut: str) -> None:
    """A push to a remote by its name moves git's own ref of what that has, too."""
    subprocess.run(["git", "remote", "add", "off", str(tmp_path / "bare")], check=True)
    point_to("off")
    first, tip = ledger.commits(Home.here())[1].id, branch.ledger_tip(Home.here())
    ledger_copy.push(Home.here())
    assert checkout.git("rev-parse", "refs/remotes/off/nights") == tip
    words = ["-d", branch.BRANCH] if cut == "deleted" else [branch.BRANCH, first]
    subprocess.run(["git", "update-ref", *words], check=True)
    (tmp_path / "bare").rename(tmp_path / "away")
    lines = list(restore(Home.here(), load(home).register_, yes=True))
    assert lines[1].startswith(f"git here: {tip[:9]}, night 2025-01-12")
    assert branch.ledger_tip(Home.here()) == tip
    assert branch.lost(Home.here()) == []


def test_a_night_that_lost_its_race_is_not_what_is_restored(home: Path, params: Params) -> None:
    tip = branch.ledger_tip(Home.here())
    won = close(3, after=tip)
    subprocess.run(["git", "update-ref", branch.BRANCH, tip], check=True)
    close(4, after=tip)  # newer, and as long
    subprocess.run(["git", "update-ref", branch.BRANCH, won], check=True)
    subprocess.run(["git", "update-ref", branch.BRANCH, tip], check=True)
    list(restore(Home.here(), params.register_, yes=True))
    assert branch.ledger_tip(Home.here()) == won


def test_a_remote_that_is_ahead_or_diverged_is_an_alarm_and_is_not_overwritten(
    home: Path, params: Params, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, tip = ledger.commits(Home.here())[1].id, branch.ledger_tip(Home.here())
    ledger_copy.push(Home.here())
    subprocess.run(["git", "update-ref", branch.BRANCH, first], check=True)
    copy = ledger_copy.push(Home.here())
    assert copy
    assert copy.state == "ahead"
    with pytest.raises(ReleaseError, match=f"which follows the ledger's {first[:9]}"):
        expect_ledger(Home.here(), params.register_, opens=True)
    close(5, after=first)  # as a ledger whose newest entry was rewritten
    copy = ledger_copy.push(Home.here())
    assert copy
    assert copy.state == "diverged"
    assert pushed(tmp_path) == tip
    assert "is not part of the ledger" in caplog.text
    with pytest.raises(ReleaseError, match="is not part of the ledger"):
        expect_ledger(Home.here(), params.register_, opens=True)
    assert [(check.name, check.ok) for check in audit._copy(Home.here())] == [("pushed ledger", False)]
    assert "1 entries of today's ledger are not in it" in "\n".join(
        restore(Home.here(), params.register_, commit=tip, yes=True)
    )
    assert branch.ledger_tip(Home.here()) == tip


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes requests and never answers, and asks for a password by name."""
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/closed"):
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic realm=git")
                self.end_headers()
            else:
                over.wait()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        over.set()
        server.shutdown()


@pytest.mark.parametrize("place", ["silent", "closed"])
def test_a_remote_that_is_silent_or_asks_for_a_password_holds_no_night(
    home: Path, silent: str, place: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger_copy, "PUSH_S", 1)
    monkeypatch.setattr(ledger_copy, "ANSWER_S", 1)
    point_to(f"{silent}/{place}")
    began = time.monotonic()
    copy = ledger_copy.push(Home.here())
    assert copy
    assert copy.state == "no answer"
    assert time.monotonic() - began < 300
    assert "the ledger is not pushed" in caplog.text
    expect_ledger(Home.here(), load(home).register_, opens=True)  # the night goes on


SSH = """\
#!/bin/sh
echo "$@" >> "{log}"
for word; do [ "$word" = -G ] && exit 0; done
eval "$word"
"""


@pytest.mark.parametrize("named_in", ["core.sshCommand", "GIT_SSH", "GIT_SSH_COMMAND"])
def test_the_ledger_is_pushed_by_the_ssh_that_git_uses(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_in: str
) -> None:
    for name in ("GIT_SSH", "GIT_SSH_COMMAND"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "its own").mkdir()
    ssh = tmp_path / "its own" / "ssh"
    ssh.write_text(SSH.format(log=tmp_path / "asked"))
    ssh.chmod(0o755)
    if named_in == "core.sshCommand":
        checkout.git("config", named_in, f"'{ssh}' -i key")
    else:
        monkeypatch.setenv(named_in, str(ssh) if named_in == "GIT_SSH" else f"'{ssh}' -i key")
    point_to(f"someone@host:{tmp_path / 'bare'}")
    copy = ledger_copy.push(Home.here())
    assert copy
    assert copy.state == "same"
    assert pushed(tmp_path) == branch.ledger_tip(Home.here())
    asked = (tmp_path / "asked").read_text()
    assert "-o BatchMode=yes someone@host git-receive-pack" in asked
    assert ("-i key" in asked) == (named_in != "GIT_SSH")
