"""What a version leaves instead of a file that it is to write: no stage reads by it. Real processes."""

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from daybreak.batch_inference.scorer import Scorer
from daybreak.contract.errors import ReleaseError
from daybreak.contract.workload import ARRAYS
from daybreak.evaluation import own_code
from daybreak.registry import carried_code
from daybreak.registry.host import CodeHost, NoAnswer
from daybreak.storage.home import Home
from tests.toy.nights import FIRST, make_arrays, make_model

LEAVES = """
import os
from pathlib import Path

def leaves(to, what, secret):
    to = Path(to)
    if what == "a link":
        to.symlink_to(secret)
    elif what == "a link to its folder":
        (to.parent.parent / "beside").symlink_to(Path(secret).parent)
        to.parent.rmdir()
        to.parent.symlink_to(Path(secret).parent)
    elif what == "a pipe":
        os.mkfifo(to)
    elif what == "a folder":
        to.mkdir()
    elif what == "a file":
        to.write_text("rows")
    elif what == "folders in folders":
        for _ in range(3000):
            os.mkdir("in")
            os.chdir("in")
    return {}

VERBS = {"leaves": leaves}
"""
WHAT = ["a link", "a link to its folder", "a pipe", "a folder", "nothing"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[CodeHost]:
    """A process of a version that leaves what it is told to, beside a secret of the user."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "id").write_text("canary")
    script = tmp_path / "script.py"
    script.write_text(LEAVES)
    with CodeHost(script, answer_s=60, reads=(script,)) as process:
        (process.scratch / "out").mkdir()
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("what", [*WHAT, "a file"])
def test_of_what_a_version_left_only_a_file_is_opened(process: CodeHost, tmp_path: Path, what: str) -> None:
    to = process.scratch / "out" / "id"
    process.ask("leaves", to=str(to), what=what, secret=str(tmp_path / "secrets" / "id"))
    if what == "a file":
        with process.written(to) as file:
            assert file.read() == b"rows"
        return
    with pytest.raises(NoAnswer, match="it left no id that can be read: "):
        process.written(to)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a link", "a pipe", "a file"])
def test_predictions_are_no_copy_of_what_is_no_file_of_rows(
    process: CodeHost, tmp_path: Path, what: str
) -> None:
    scorer = Scorer(
        home=cast(Any, None),
        number=3,
        files=tmp_path,
        arrays=None,
        others=None,
        clean=tmp_path,
        work=tmp_path,
        first=cast(Any, process),
        erased=None,
    )
    with pytest.raises(ReleaseError, match=r"version 3 does not predict: it left no part\.parquet that"):
        scorer.ask(
            cast(Any, process),
            "leaves",
            tmp_path / "part.parquet",
            what=what,
            secret=str(tmp_path / "secrets" / "id"),
        )
    assert not (tmp_path / "part.parquet").exists()


ROGUE = """
import os, sys
from toy import Toy

asked = sys.modules["daybreak.evaluation.own_code"]
LEFT = {
    "a link": lambda to: os.symlink("SECRET", to),
    "an array": lambda to: asked.np.save(open(to, "wb"), asked.np.zeros(3)),
    "objects": lambda to: asked.np.save(open(to, "wb"), asked.np.array([{}]), allow_pickle=True),
    "text": lambda to: open(to, "w").write("rows"),
}
asked.np.savez = lambda to, **columns: LEFT["WHAT"](to)

class Rogue(Toy):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a link", "an array", "objects", "text"])
def test_scores_of_own_code_are_read_from_an_archive_of_columns_alone(
    repository: Path, tmp_path: Path, what: str
) -> None:
    version, toy = tmp_path / "version", Path(__file__).parents[1] / "toy" / "own" / "toy.py"
    model = version / "artifacts" / "model"
    make_model(model, 0.5, last_day=FIRST)
    facts = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**facts, "workload": "rogue:Rogue"}))
    (tmp_path / "rogue.py").write_text(ROGUE.replace("SECRET", str(tmp_path / "id")).replace("WHAT", what))
    (tmp_path / "id").write_text("canary")
    (version / carried_code.CODE).mkdir()
    carried_code.pack(
        {"rogue.py": tmp_path / "rogue.py", "toy.py": toy}, version / carried_code.CODE / carried_code.ARCHIVE
    )
    make_arrays(ARRAYS, FIRST)
    with pytest.raises(NoAnswer, match=r"it left no columns\.npz that can be read: "):
        own_code.asked(Home.here(), version, arm="champion", days=(), batch_size=64)


@pytest.mark.slow
def test_folders_in_folders_stop_nobody_who_removes_them(
    process: CodeHost, caplog: pytest.LogCaptureFixture
) -> None:
    process.ask("leaves", to=str(process.scratch), what="folders in folders", secret="")
    process.close()
    assert "was not removed" in caplog.text
    subprocess.run(["rm", "-r", process.scratch], check=True)


def test_no_stage_opens_by_itself_what_a_version_wrote() -> None:
    package = Path(own_code.__file__).parents[1]
    used = {
        path.name: sum(isinstance(node, ast.Attribute) and node.attr == "scratch" for node in ast.walk(tree))
        for path in package.rglob("*.py")
        for tree in [ast.parse(path.read_text())]
        if path.name != "host.py"
    }
    # Each names once what a version is to write; the last one writes there before any code of the version.
    named = ("scorer.py", "own_code.py", "own_predictions.py", "smoke_test.py")
    assert {name: num for name, num in used.items() if num} == dict.fromkeys(named, 1)
