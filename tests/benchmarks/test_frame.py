"""A benchmark is asked for by its name, in any checkout."""

import json
import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.slow
def test_make_bench_runs_one_by_its_name_and_ends_with_its_figures():
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"QUICK": "1"}
    output = subprocess.run(
        ["make", "--no-print-directory", "--assume-old=setup", "bench", "NAME=search"],
        cwd=Path(__file__).parents[2],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    result = json.loads(output.splitlines()[-1])
    assert result["name"] == "search"
    assert result["figures"].keys() >= result["targets"].keys()
