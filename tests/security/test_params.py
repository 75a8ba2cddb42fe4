"""params.yaml and forms are data: nothing runs but the classes named there, and no secret shows."""

import ast
from pathlib import Path

import pytest

from daybreak import cli
from daybreak.contract import params
from daybreak.contract.errors import ParamsError
from daybreak.report import notifier
from daybreak.storage.home import Home
from tests.conftest import PARAMS

ROOT = Path(__file__).parents[2]
SOURCES = [*(ROOT / "pipeline" / "daybreak").rglob("*.py"), *(ROOT / "dags").glob("*.py")]
RUNS = "!!python/object/apply:os.system ['touch spoils']"


@pytest.mark.parametrize(
    "value", [RUNS, "!!python/name:os.system", "!!python/module:os", "!ruby/object:Gem {}"]
)
def test_a_tag_of_yaml_runs_nothing(repository: Path, value: str, caplog: pytest.LogCaptureFixture) -> None:
    (repository / "params.yaml").write_text(f"{PARAMS}plan: {{objective: {value}}}\n")
    with pytest.raises(ParamsError, match=r"params.yaml is not YAML|objective"):
        params.load(repository)
    (repository / "params.yaml").write_text(PARAMS)
    assert cli.main(["night", "--until", "open", "--set", f"plan.objective={value}"]) == 78
    assert not list(repository.rglob("spoils"))


LAUGHS = "\n".join(
    f"    a{number}: &a{number} {{x: *a{number - 1}, y: *a{number - 1}}}" for number in range(1, 64)
)
LOL = "\n".join(f"    b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 32))


@pytest.mark.parametrize(
    "text",
    [
        f"    a0: &a0 {{x: 1, y: 1}}\n{LAUGHS}",
        f"    b0: &b0 [1]\n{LOL}",
        "    a: &a {b: *a}",
        "    a: &a [*a]",
    ],
    ids=["laughs of mappings", "laughs of lists", "a cycle", "a cyclic list"],
)
def test_aliases_that_repeat_each_other_are_refused_at_once(tmp_path: Path, text: str) -> None:
    plug = "source:\n    use: tests.fakes:TwoDays\n"
    (tmp_path / "params.yaml").write_text(f"{plug}{text}\n{PARAMS.partition(chr(10))[2]}")
    with pytest.raises(ParamsError, match="holds more than 100,000 values"):
        params.load(tmp_path)


MESSAGE = "$(touch pwned) `touch pwned`; touch pwned & | \" ' \\ \n--option"


def test_a_notifier_is_given_the_message_as_its_input_and_never_as_words(repository: Path) -> None:
    (repository / "params.yaml").write_text(f"{PARAMS}notify: {{command: 'cat > heard; echo $# >> heard'}}\n")
    assert notifier.send(Home.here(), MESSAGE)
    assert (repository / "heard").read_text() == f"{MESSAGE}0\n"
    assert not list(repository.rglob("pwned"))


def test_the_address_of_a_webhook_is_in_no_log(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    canary = "-".join(("canary", "4711"))
    for command in (f"exit 22 # https://hooks.example.org/services/{canary}", f"/missing/{canary}"):
        (repository / "params.yaml").write_text(f"{PARAMS}notify: {{command: '{command}'}}\n")
        assert not notifier.send(Home.here(), "hello")
    assert caplog.text.count("the notifier ended with exit status") == 2
    assert canary not in caplog.text


RUNNERS = {
    "eval",
    "exec",
    "compile",
    "os.system",
    "os.popen",
    "pickle.load",
    "pickle.loads",
    "torch.load",
    "marshal.loads",
    "joblib.load",
    "pd.read_pickle",
    "cloudpickle.loads",
    "mlflow.pyfunc.load_model",
}


def test_nothing_of_ours_unpickles_evaluates_text_or_builds_a_command_of_the_shell() -> None:
    unsafe, shells = [], []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            options = {one.arg: ast.unparse(one.value) for one in node.keywords}
            if ast.unparse(node.func) in RUNNERS or options.get("allow_pickle") == "True":
                unsafe.append(f"{path.name}: {ast.unparse(node)}")
            if options.get("shell") == "True":
                shells.append(f"{path.name}: {ast.unparse(node.args[0])}")
    assert len(SOURCES) > 200
    # Of files that have the digest in the ledger, or that a person adopts; without secrets and network.
    loads = "mlflow.pyfunc.load_model"
    assert sorted(unsafe) == [
        f"adopted.py: {loads}(folder, suppress_warnings=True)",
        f"smoke_process.py: {loads}(version, suppress_warnings=True)",
    ]
    assert shells == ["notifier.py: command"]  # that of params.yaml, whole
