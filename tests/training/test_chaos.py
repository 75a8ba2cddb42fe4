"""Workers are killed at any instant, half of the kills during a save, and lose no more than they must.

The benchmark `chaos` does the same with more kills.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.nights import ROOT

pytestmark = pytest.mark.slow
KILLS = 14


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Any:
    folder: Path = tmp_path_factory.mktemp("chaos")
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.chaos", str(folder), str(KILLS), "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def test_jobs_killed_at_any_instant_end_bit_equal_to_those_left_alone(seen):
    assert seen["kills"] == KILLS
    assert seen["not_bit_equal"] == 0
    assert seen["jobs"] >= 2


def test_each_start_goes_on_from_the_newest_checkpoint_that_is_whole(seen):
    assert seen["in_a_save"] > 2
    assert seen["damaged"] > 0
    assert seen["resumed"] > KILLS / 4
    assert seen["from_another"] == 0


def test_no_more_is_lost_than_an_interval_and_what_was_in_flight(seen):
    assert seen["saves_lost"] <= 1


def test_on_1_2_4_3_and_1_workers_the_model_is_that_of_one(seen):
    assert seen["resized_apart"] <= 1e-6


def test_a_job_that_lost_its_machine_goes_on_from_a_copy(seen):
    assert seen["moved"]
