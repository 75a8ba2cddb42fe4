"""Is the model fit to serve? Found out in a clean process, from the registry, before any user meets it.

The process (pipeline/release/trial.py) knows nothing of the night: it loads the version with the code that
the version carries, as whatever serves would, and scores samples together and one by one. The gate holds that
against what the trainer's own process scored on the same samples, and against the limits of params.yaml. The
version that would be replaced is loaded too, since a rollback has to be able to come back to it. The digest
of either is checked before it is loaded, and a version that holds a pickle is not loaded at all.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import PipelineError, without_password
from pipeline.params import GateParams
from pipeline.records import Champion, Check, Version
from pipeline.release import packaging
from pipeline.release.evaluator import ARRAYS
from pipeline.release.tracking import session, tracking_uri

TOLERANCE = 1e-5  # of a score, relative and absolute: another order of adding up
LIMIT_S = 600.0


def fitness(
    version: Version, champion: Champion | None, scores: NDArray[Any] | None, params: GateParams
) -> tuple[Check, ...]:
    """What was found of the version; `scores` are the trainer's own, shape [n]. None where none is asked for.

    Every failure is a check that says so, never an exception.
    """
    if not params.fit_samples:
        return ()
    if scores is None or not len(scores):
        return (Check(name="loads", ok=False, text="there are no scores of the trainer to compare with"),)
    chosen = np.unique(np.linspace(0, len(scores) - 1, min(params.fit_samples, len(scores))).astype(int))
    numbers = [int(number) for number in chosen]
    with _trial() as ours, _trial() if champion else nullcontext() as theirs:  # both import at the same time
        found = _tried(ours, version.name, version.number, version.model_digest, numbers=numbers)
        checks = tuple(judged(found, scores[chosen], params))
        if champion is None or theirs is None:
            return checks
        number, digest = champion.champion, champion.model_digest
        before = _tried(theirs, version.name, number, digest, numbers=numbers[:1], scored=False)
    text = before.get("error") or f"version {champion.champion} loads in {before['start_s']:.1f} s"
    return (*checks, Check(name="rollback", ok="error" not in before, text=text))


def judged(told: dict[str, Any], expected: NDArray[Any], params: GateParams) -> Iterator[Check]:
    """What a trial told, against what the trainer scored and what params.yaml allows."""
    if "error" in told:
        yield Check(name="loads", ok=False, text=told["error"])
        return
    yield Check(
        name="loads", ok=told["start_s"] <= params.max_start_s,
        text=f"ready after {told['start_s']:.1f} s, {params.max_start_s:g} s allowed",
    )  # fmt: skip
    scores = np.array(told["scores"], dtype=float)
    lost = int((~np.isfinite(scores)).sum())
    shaped = scores.shape == expected.shape
    text = f"{len(scores):,} scores for {len(expected):,} samples, {lost:,} not finite"
    yield Check(name="schema", ok=shaped and not lost, text=text)
    if shaped and not lost:
        apart = np.abs(scores - expected.astype(float))
        close = bool((apart <= TOLERANCE * (1 + np.abs(expected))).all())
        text = f"scores are {float(apart.max()):.2g} apart from the trainer's at most, {TOLERANCE:g} allowed"
        yield Check(name="parity", ok=close, text=text)
    p50, p99 = told["p50_s"], told["p99_s"]
    yield Check(
        name="latency", ok=p99 <= params.max_p99_s,
        text=f"P50 {1000 * p50:.1f} ms, P99 {1000 * p99:.1f} ms, {1000 * params.max_p99_s:g} ms allowed",
    )  # fmt: skip
    limit = params.max_memory_bytes
    text = f"{told['memory_bytes'] / 1e6:,.0f} MB at the peak" + (
        f", {limit / 1e6:,.0f} MB allowed" * bool(limit)
    )
    yield Check(name="memory", ok=not limit or told["memory_bytes"] <= limit, text=text)


def _tried(
    process: "subprocess.Popen[str]", name: str, number: int, digest: str, *, numbers: list[int],
    scored: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """What a clean process found of a version, or under `error` why it found nothing."""
    uri = f"models:/{name}/{number}"
    case = {"uri": uri, "folder": str(ARRAYS.resolve()), "numbers": numbers, "scored": scored}
    try:
        with tempfile.TemporaryDirectory() as scratch, session() as client:
            packaging.check_files(client, uri, digest, into=Path(scratch))
        told, wrong = process.communicate(json.dumps(case) + "\n", timeout=LIMIT_S)
    except PipelineError as error:
        return {"error": str(error)}
    except subprocess.TimeoutExpired:
        return {"error": f"{uri} was not done after {LIMIT_S:g} s"}
    if process.returncode:
        why = without_password(" ".join(wrong.split()))[-300:]
        return {"error": f"{uri} does not load: ... {why}"}
    found: dict[str, Any] = json.loads(told.splitlines()[-1])
    return found


@contextmanager
def _trial() -> Iterator["subprocess.Popen[str]"]:
    """A process that imports and waits for its case, and is gone at the end."""
    unset = ("PYTHONPATH", "PIPELINE_HOME", "DVC_STAGE", "DVC_ROOT")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    with tempfile.TemporaryDirectory() as scratch:
        process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("trial.py"))],
            cwd=scratch, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**environment, "MLFLOW_TRACKING_URI": tracking_uri()},
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
