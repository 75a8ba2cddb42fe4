"""Asks the package registry by uv, which not every machine reaches."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CAUSE = re.compile(r"(?m)^ *(?:cause|caused by): (.*)$", re.IGNORECASE)


def uv(*words: str) -> str:
    """What a command of uv printed, run in the checkout; skips the test where it cannot reach the registry.

    It trusts whom this machine trusts: a company's proxy may show a certificate of its own.
    """
    environment = {"UV_SYSTEM_CERTS": "1"} | os.environ
    done = subprocess.run(
        ["uv", *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if why := out_of_reach(done.stderr):
        pytest.skip(why)
    assert done.returncode == 0, done.stderr
    return done.stdout


def out_of_reach(said: str) -> str:
    """Why uv could not reach the registry, by what it said; "" where it could."""
    if "Failed to fetch" not in said:
        return ""
    *_, cause = said.strip(), *CAUSE.findall(said)
    return f"uv cannot reach the package registry ({cause}); allow it, or name a mirror by UV_DEFAULT_INDEX"
