"""What runs the tests elsewhere: .ci/run, and the workflows of GitHub."""

import ast
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
SLOWEST = """=== slowest 10 durations ===
90.10s call     tests/test_a.py::test_one
2.50s setup    tests/test_a.py::test_two"""
PARTS = {
    "test": "= 1 failed, 4000 passed, 3 skipped, 1296 deselected in 500.25s (0:08:20) =",
    "test-rest": "=== 1290 passed, 8 skipped, 4004 deselected, 1 error in 2000.25s (0:33:20) ===",
}


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with a make that says how each part of the tests ended, and an apt-get that has nothing."""
    cases = "".join(f"{part}) echo '{SLOWEST}\n{line}';;" for part, line in PARTS.items())
    for name, text in (("make", f"case $1 in {cases} esac"), ("apt-get", "false"), ("sudo", "false")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def ended(stubs: Path) -> tuple[int, str]:
    """Exit status and last line of .ci/run."""
    status, lines = ran(stubs)
    return status, lines[-1]


def ran(stubs: Path) -> tuple[int, list[str]]:
    """Exit status and lines of .ci/run."""
    call = ["env", f"PATH={stubs}:/usr/sbin:/usr/bin:/bin", str(ROOT / ".ci/run")]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_the_last_line_counts_both_parts_as_the_test_runner_says_it(stubs: Path) -> None:
    line = "1 failed, 5290 passed, 11 skipped, 1 error in 2500.50s (0:41:40)"
    assert ended(stubs) == (0, f"=========== {line} ===========")


def test_the_slowest_tests_and_the_time_of_both_parts_stand_before_the_last_line(
    stubs: Path,
) -> None:
    _, tests = SLOWEST.split("\n", 1)
    took = r"make {}: [0-9.]+ s, of CPU [0-9.]+ s and of the system's [0-9.]+ s"
    expected = [
        rf"make {part}, slowest 10 durations:\n{re.escape(tests)}\n{took.format(part)}" for part in PARTS
    ]
    assert re.fullmatch("\n".join(expected), "\n".join(ran(stubs)[1][-9:-1]))


def test_the_tests_run_after_a_night(stubs: Path) -> None:
    make = stubs / "make"
    make.write_text(f'{make.read_text()}echo "$1" >> {stubs}/called\n')
    ran(stubs)
    assert (stubs / "called").read_text().split() == ["night", "test", "test-rest", "check"]


def test_what_is_missing_is_asked_for_and_named_where_it_cannot_be_had(stubs: Path) -> None:
    for name, text in (
        ("apt-get", f'echo "$@" >> {stubs}/asked; [ "$4" != chromium ]'),
        ("sudo", 'shift; exec "$@"'),
    ):
        (stubs / name).write_text(f"#!/bin/sh\n{text}\n")
    for name in ("bash", "env", "id"):
        (stubs / name).symlink_to(shutil.which(name) or "")
    call = [str(stubs / "bash"), str(ROOT / ".ci/packages")]
    done = subprocess.run(call, env={"PATH": str(stubs)}, capture_output=True, text=True, check=True)
    update, *installs = (stubs / "asked").read_text().splitlines()
    assert update == "update"
    asked = [line.split()[3:] for line in installs]
    wanted = ["chromium", "slurm-wlm", "btrfs-progs", "faketime", "prometheus"]
    assert asked[: len(wanted)] == [[name] for name in wanted]
    assert done.stdout == "not installed: chromium\n"


@pytest.mark.parametrize("part", ["night", "test", "test-rest", "check"])
def test_each_part_that_fails_fails_the_whole(stubs: Path, part: str) -> None:
    make = stubs / "make"
    make.write_text(f"{make.read_text()}[ $1 != {part} ]\n")
    assert ended(stubs)[0] == 1


def test_a_part_that_ends_without_its_line_is_an_error(stubs: Path) -> None:
    make = stubs / "make"
    make.write_text(make.read_text().replace(PARTS["test-rest"], "Killed"))
    assert (
        ended(stubs)[1]
        == "=========== 1 failed, 4000 passed, 3 skipped, 1 error in 500.25s (0:08:20) ==========="
    )


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_valid_and_runs_what_the_makefile_has(workflow: Path) -> None:
    # Not actionlint: what PyPI has fetches the program from elsewhere, without a hash, when it is installed.
    command = ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    commands = re.findall(r"- run: (.*)", workflow.read_text())
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(commands) <= {".ci/packages", ".ci/run", *(f"make {target}" for target in targets)}


def test_the_tests_whose_seconds_are_noted_exist() -> None:
    noted: dict[str, set[str]] = {}
    for test in json.loads((ROOT / "tests/durations.json").read_text()):
        path, _, name = test.partition("::")
        noted.setdefault(path, set()).add(name.partition("[")[0])
    for path, names in noted.items():
        assert (ROOT / path).exists(), path
        there = {each.name for each in ast.parse((ROOT / path).read_text()).body if hasattr(each, "name")}
        assert names <= there, names - there
