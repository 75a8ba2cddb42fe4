"""What a training process leaves when it is killed."""

import os
import subprocess
import sys

import pytest

KILLED = """
import os, signal
from daybreak.training.supervision import set_up_process

set_up_process()
print("the shapes are [8, 3]")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_lines_that_a_class_prints_are_in_the_log_of_a_process_that_is_killed() -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(
        [sys.executable, "-c", KILLED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "the shapes are [8, 3]\n"
