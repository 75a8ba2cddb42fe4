"""What a version can do to the router that asks it: nothing but give no answer. Real processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from daybreak.contract.code_path import PASSED_ON
from daybreak.contract.errors import ReleaseError
from daybreak.extensions.router.answers import Answer, Answers
from daybreak.extensions.router.loading import served
from daybreak.registry import carried_code, host
from daybreak.registry.host import NoAnswer
from daybreak.serving.recorded import case_of
from daybreak.serving.version_process import OF_ENDED, VersionProcess, _Thread
from tests.extensions.router.running import has_ended, until
from tests.toy.nights import FIRST, make_arrays, make_model

pytestmark = [pytest.mark.slow]

TOY = Path(__file__).parents[1] / "toy" / "own" / "toy.py"

ROGUE = """\
import os, pickle, signal, socket, struct, sys, time
from pathlib import Path
from toy import Toy

SPOILS = Path("FOLDER/spoils")

class Spoils:
    def __reduce__(self):
        return (open, (str(SPOILS), "w"))

def sent(body):
    other = socket.socket(fileno=os.dup(int(sys.argv[1])))
    other.sendall(body)
    time.sleep(600)

def frame(body):
    return struct.pack("!I", len(body)) + body

class Rogue(Toy):
    def recommend(self, model, samples, users, top):
        return getattr(self, users[0].partition("/")[0])(top)

    def crash(self, top):
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self, top):
        os._exit(3)

    def hang(self, top):
        time.sleep(600)

    def pickles(self, top):
        sent(frame(pickle.dumps(Spoils())))

    def floods(self, top):
        sent(struct.pack("!I", 2**32 - 1))

    def nests(self, top):
        sent(frame(b"[" * 1_000_000))

    def bare(self, top):
        sent(frame(b"[" + b"[]," * 5_000_000 + b"0]"))

    def swells(self, top):
        return [["x" * 1_000_000] * top]

    def long(self, top):
        return [["x" * 200] * top]

    def short(self, top):
        return [["17850"] * top]

    def long_item(self, top):
        return [["x" * 201]]

    def many_items(self, top):
        return [["x"] * (top + 1)]

    def counts(self, top):
        return [[1, 2]]

    def too_many(self, top):
        return [["a"], ["b"]]

    def mixed(self, top):
        return [["a"], ["x" * 201], ["b"]]

    def explains(self, top):
        raise KeyError("ü" * 100_000 + "not in index")

    def looks(self, top):
        seen = [*os.environ, str(os.getppid())]
        for path in (f"/proc/{os.getppid()}/environ", f"/proc/{os.getppid()}/maps"):
            try:
                seen.append(Path(path).read_text())
            except OSError as error:
                seen.append(type(error).__name__)
        try:
            socket.create_connection(("127.0.0.1", PORT), 5)
            seen.append("connected")
        except OSError as error:
            seen.append(type(error).__name__)
        return [[*seen, str(sorted(os.listdir("/proc/self/fd"), key=int))]]
"""


def carry(folder: Path, rogue: str, *, port: int = 0) -> None:
    """Gives the version in `folder` its code: the toy workload, and this module beside it."""
    (folder / "rogue.py").write_text(rogue.replace("FOLDER", str(folder)).replace("PORT", str(port)))
    archive = folder / "version" / carried_code.CODE / carried_code.ARCHIVE
    archive.parent.mkdir(exist_ok=True)
    carried_code.pack({"rogue.py": folder / "rogue.py", "toy.py": TOY}, archive)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[list[VersionProcess]]:
    """The processes that a test has started by `rogue`, which are ended afterwards."""
    model = tmp_path / "version" / "artifacts" / "model"
    make_model(model, 0.5, last_day=FIRST)
    facts = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**facts, "workload": "rogue:Rogue"}))
    carry(tmp_path, ROGUE)
    make_arrays(tmp_path / "arrays", FIRST)
    started: list[VersionProcess] = []
    yield started
    for process in started:
        process.close()


def rogue(start: list[VersionProcess], tmp_path: Path, *, answer_s: float = 60) -> Answers:
    case = case_of(tmp_path / "version", tmp_path / "arrays")
    start.append(VersionProcess(1, case, answer_s=answer_s))
    answers = served(start[-1], 1, night="", top=5, keep=10)
    assert isinstance(answers, Answers)
    return answers


def test_what_a_version_sends_is_bounded() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        host.send(theirs, ["x" * 100])
        with pytest.raises(ValueError, match="a document of 104 bytes, at most 50 are taken"):
            host.receive(ours, most=50)


@pytest.mark.parametrize("nest", ["[]", "{}"])
def test_a_short_document_that_would_take_all_memory_is_not_parsed(nest: str) -> None:
    ours, theirs = socket.socketpair()

    def framed(num: int) -> bytes:
        body = f"[{','.join([nest] * num)}]".encode()
        return host.HEAD.pack(len(body)) + body

    with ours, theirs:
        sending = threading.Thread(target=theirs.sendall, args=(framed(host.MAX_NESTS),))
        sending.start()
        tracemalloc.start()
        with pytest.raises(ValueError, match="a document of 500,001 lists and objects, at most 500,000 are"):
            host.receive(ours)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        sending.join()
        assert peak < 8 * host.MAX_NESTS  # parsed, it takes 60 and more for each
        theirs.sendall(framed(10))
        assert len(host.receive(ours)) == 10


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("crash", "its process ended by SIGSEGV"),
        ("leave", "its process ended with exit status 3"),
        ("pickles", "its process was ended, since it did not send a valid reply"),
        ("floods", "its process was ended, since it did not send a valid reply"),
        ("nests", "its process was ended, since it did not send a valid reply"),
        ("bare", "its process was ended, since it did not send a valid reply"),
        ("swells", "its process was ended, since it did not send a valid reply"),
    ],
)
def test_a_version_that_harms_its_process_gives_no_answer_and_no_later_one(
    start: list[VersionProcess], tmp_path: Path, does: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers = rogue(start, tmp_path)
    for _ in range(2):
        with pytest.raises(NoAnswer) as error:
            answers.of([does])
        assert str(error.value) == why
    assert answers.process.ended == why
    told = "what a version replied to recommend is not taken: a document of"
    assert (told in caplog.text) == (does in ("floods", "nests", "bare", "swells"))
    assert not (tmp_path / "spoils").exists()
    assert answers.popular.items[0] == "popular/0"


def test_a_thread_ends_with_its_process_and_whoever_asks_later_hears_why(
    start: list[VersionProcess], tmp_path: Path
) -> None:
    answers = rogue(start, tmp_path)
    for _ in range(2):
        with pytest.raises(NoAnswer, match="its process ended with exit status 3"):
            answers.process.thread.submit(answers.of, ["leave"]).result()
    until(lambda: not any(each.name.startswith("version 1") for each in threading.enumerate()))


def test_a_version_that_does_not_come_back_is_ended_in_time(
    start: list[VersionProcess], tmp_path: Path
) -> None:
    answers = rogue(start, tmp_path)
    answers.process._answer_s = 0.5
    with pytest.raises(NoAnswer, match=r"its process was ended, since it was not done after 0\.5 s"):
        answers.of(["hang"])
    with pytest.raises(ProcessLookupError):
        os.kill(answers.process.pid, 0)


def test_what_is_no_answer_is_not_taken_for_one_and_the_next_is(
    start: list[VersionProcess], tmp_path: Path
) -> None:
    answers = rogue(start, tmp_path)
    for does, why in (
        ("too_many", "it has no list of items for each of 1 users"),
        ("unknown", "AttributeError: 'Rogue' object has no attribute 'unknown'"),
    ):
        with pytest.raises(NoAnswer) as error:
            answers.of([does])
        assert str(error.value) == why
    for does, why in (
        ("counts", "it has [1, 2] where a list of texts is due"),
        ("long_item", "it has a text of 201 characters, at most 200 are taken"),
    ):
        (wrong,) = answers.of([does])
        assert (str(wrong), answers.cached(does)) == (why, None)
    with pytest.raises(NoAnswer, match=r"^KeyError: .*not in index'$"):  # its process goes on
        answers.of(["explains"])
    (of_many,) = answers.of(["many_items"])
    assert isinstance(of_many, Answer) and of_many.items == ("x",) * 5
    first, wrong, last = answers.of(["mixed", "b", "c"])
    assert isinstance(first, Answer) and isinstance(wrong, NoAnswer) and isinstance(last, Answer)
    assert answers.likely(2) == ["u200", "u201"]


def test_answers_that_are_kept_take_no_more_memory_where_their_items_are_long(
    start: list[VersionProcess], tmp_path: Path
) -> None:
    answers = rogue(start, tmp_path)
    for does, num in (("short", 10), ("long", 3), ("short", 10)):
        for number in range(20):
            answers.of([f"{does}/{number}"])
            assert sum(len(each.text) for each in answers._cache.values()) == answers._num_kept <= 10 * 5 * 64
        assert [each.partition("/")[0] for each in answers.newest_users(100)] == [does] * num
        assert answers.cached(f"{does}/19")


def test_a_version_sees_no_secret_and_reaches_nothing(
    start: list[VersionProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYBREAK_TOKEN", "canary")
    with socket.create_server(("127.0.0.1", 0)) as server:
        carry(tmp_path, ROGUE, port=server.getsockname()[1])
        reply = rogue(start, tmp_path).process.ask("recommend", users=["looks"], top=1000)
    ((*environment, parent, environ, maps, network, files),) = reply["items"]
    assert int(parent) in (os.getpid(), 1)  # 1 is the first process of a namespace
    own = {"HOME", "TMPDIR", "PYTHONPATH", "LC_CTYPE", "OMP_WAIT_POLICY"}
    assert set(environment) <= {*PASSED_ON, *own}
    assert "canary" not in json.dumps(reply)
    assert len(json.loads(files.replace("'", '"'))) <= 6  # three, a socket, the folder, one to spare
    if network == "connected":
        pytest.skip("this machine confines no process, and the log has said so")
    assert (environ, maps) == ("PermissionError", "PermissionError")
    assert network in ("PermissionError", "OSError")


def test_a_version_that_does_not_load_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    model = tmp_path / "version" / "artifacts" / "model"
    make_model(model, 0.5, last_day=FIRST)
    carry(tmp_path, "")
    case = case_of(tmp_path / "version", None)
    with pytest.raises(ReleaseError, match="no night has its arrays here any more; run a night"):
        VersionProcess(1, case, answer_s=5)
    (model / "model.json").write_text(json.dumps({"workload": "toy:Gone", "arguments": {}}))
    with pytest.raises(ReleaseError, match="Gone"):
        VersionProcess(1, case, answer_s=5)


PARENT = """\
import sys
from pathlib import Path
from daybreak.serving.recorded import case_of
from daybreak.serving.version_process import VersionProcess
process = VersionProcess(1, case_of(Path(sys.argv[1]), Path(sys.argv[2])), answer_s=900)
print(process.pid, flush=True)
process.ask("recommend", users=["hang"], top=1)
"""


def test_a_version_that_computes_ends_with_a_router_that_is_killed(
    start: list[VersionProcess], tmp_path: Path
) -> None:
    words = [sys.executable, "-c", PARENT, str(tmp_path / "version"), str(tmp_path / "arrays")]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, env={**os.environ, **path}, stdout=subprocess.PIPE, text=True) as router:
        assert router.stdout is not None
        process = int(router.stdout.readline())
        router.send_signal(signal.SIGKILL)
    until(lambda: has_ended(process))


def test_calls_go_to_the_thread_of_ended_versions_only_where_their_own_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ended, alive = _Thread(1), _Thread(1)
    ended.shutdown()
    assert ended.submit(threading.get_ident).result() == OF_ENDED.submit(threading.get_ident).result()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        alive.submit(threading.get_ident)
