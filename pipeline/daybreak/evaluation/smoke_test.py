"""Tests in a clean process whether a version is fit to serve, before any user meets it.

The process (daybreak/evaluation/smoke_process.py) knows nothing of the night: it loads the version, fetched
from the registry, with the version's own code, and scores samples together and one by one. The gate compares
these scores with the trainer's on the same samples, and the times with the limits of params.yaml. A version
that predicts raw rows gets the clean rows of the samples as a client would send them, so that a feature that
differs between serving and training is noticed. The version that would be replaced is loaded too, since a
rollback must be possible. All files of both versions are checked against the digest on record before any is
run.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from daybreak.contract import records
from daybreak.contract.errors import PipelineError, ReleaseError, without_password
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Champion, Release, Version
from daybreak.contract.sections import SmokeTestParams
from daybreak.contract.table import Table
from daybreak.contract.workload import ARRAYS
from daybreak.data.features import read_clean
from daybreak.data.partitions import held_out_days
from daybreak.evaluation.scores import Columns
from daybreak.registry import carried_code
from daybreak.registry.host import CodeHost, NoAnswer
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from daybreak.workloads.served_rows import as_records, conformed

TOLERANCE = 1e-5  # of a score and of their mean size: the order of summing may differ
LIMIT_S = 600.0
# Checks of speed on this machine: they may fail on a busy machine, and a person may overrule them.
TIMED = ("start", "latency")


def smoke_test(
    home: Home,
    version: Version,
    champion: Champion | None,
    scores: NDArray[Any] | None,
    params: SmokeTestParams,
    *,
    predicted: Columns | None = None,
    arrays: Path = ARRAYS,
) -> tuple[Check, ...]:
    """Returns the checks of the version; none where `smoke_test.samples` is 0.

    A version that failed by its speed alone is tested once more. What is wrong with it is a check that says
    so. Raises JobError where MLflow does not answer, which says nothing of the version.

    Args:
        home: whose nights these are.
        version: the challenger.
        champion: that it would replace.
        scores: the trainer's own, shape [n].
        params: how many samples, and the limits.
        predicted: what the trainer's own process predicted by name, shape [n, ...], where rows are predicted.
        arrays: folder of the samples that these are of.
    """
    if not params.samples:
        return ()
    if scores is None or not len(scores):
        return (Check(name="loads", ok=False, text="there are no scores of the trainer to compare with"),)
    chosen = np.unique(np.linspace(0, len(scores) - 1, min(params.samples, len(scores))).astype(int))
    numbers = [int(number) for number in chosen]
    try:
        rows = _rows(home, chosen, arrays) if predicted else []
    except PipelineError as error:
        return (Check(name="loads", ok=False, text=str(error)),)
    # In the order of smoke_process.py.
    values = [values[chosen].ravel() for _, values in sorted((predicted or {"": scores}).items())]
    expected = np.concatenate(values)
    # Both processes import at the same time.
    with _process(home, arrays) as ours, _process(home, arrays) if champion else nullcontext() as theirs:
        seen = _measured(home, ours, version, name=version.name, numbers=numbers, rows=rows, arrays=arrays)
        checks = tuple(judged(seen, expected, params))
        if only_slow(checks):
            with _process(home, arrays) as again:
                seen = _measured(
                    home, again, version, name=version.name, numbers=numbers, rows=rows, arrays=arrays
                )
            checks = tuple(judged(seen, expected, params))
        if champion is None or theirs is None:
            return checks
        before = _measured(home, theirs, champion, name=version.name, numbers=numbers[:1], scored=False)
    text = before.get("error") or f"version {champion.version} loads in {before['start_cpu_s']:.1f} s of CPU"
    return (*checks, Check(name="rollback", ok="error" not in before, text=text))


def _rows(home: Home, chosen: NDArray[Any], arrays: Path) -> list[dict[str, Any]]:
    """Returns the clean rows of these held-out samples, as a client would send them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = records.read(Table, home.records)
    rows = pa.concat_tables([read_clean(day) for day in held_out_days(arrays)])
    if table.label:
        rows = rows.filter(pc.is_valid(rows[table.label.column]))
    return as_records(conformed(rows.take(chosen), table))


def only_slow(checks: Sequence[Check]) -> bool:
    """Returns whether checks failed, and only such as depend on the speed of this machine."""
    failed = [check.name for check in checks if not check.ok]
    return bool(failed) and set(failed) <= set(TIMED)


def judged(seen: dict[str, Any], expected: NDArray[Any], params: SmokeTestParams) -> Iterator[Check]:
    """Yields checks of what a process measured, by the trainer's scores and the limits of params.yaml."""
    if "error" in seen:
        yield Check(name="loads", ok=False, text=seen["error"])
        return
    yield Check(name="loads", ok=True, text="in a process that has nothing but its files")
    yield Check(
        name="start",
        ok=seen["start_cpu_s"] <= params.max_start_s,
        text=f"ready after {seen['start_cpu_s']:.1f} s of CPU, {params.max_start_s:g} s allowed",
    )
    scores = np.array(seen["scores"], dtype=float)
    lost = int((~np.isfinite(scores)).sum())
    shaped = scores.shape == expected.shape
    text = f"{len(scores):,} scores for {len(expected):,} samples, {lost:,} not finite"
    yield Check(name="schema", ok=shaped and not lost, text=text)
    if shaped and not lost:
        sizes = np.abs(expected.astype(float))
        apart, allowed = np.abs(scores - expected), TOLERANCE * (sizes + (sizes.mean() or 1.0))
        close, most = bool((apart <= allowed).all()), int((apart - allowed).argmax())
        text = f"scores are {apart[most]:.2g} apart from the trainer's at most, {allowed[most]:.2g} allowed"
        yield Check(name="parity", ok=close, text=text)
    p50, p99 = seen["p50_s"], seen["p99_s"]
    yield Check(
        name="latency",
        ok=p99 <= params.max_p99_s,
        text=f"P50 {1000 * p50:.1f} ms, P99 {1000 * p99:.1f} ms, {1000 * params.max_p99_s:g} ms allowed",
    )
    limit = params.max_memory_bytes
    text = f"{seen['memory_bytes'] / 1e6:,.0f} MB at the peak" + (
        f", {limit / 1e6:,.0f} MB allowed" * bool(limit)
    )
    yield Check(name="memory", ok=not limit or seen["memory_bytes"] <= limit, text=text)


def _measured(
    home: Home,
    process: CodeHost,
    wanted: Release | Version,
    *,
    name: str,
    numbers: list[int],
    rows: Sequence[dict[str, Any]] = (),
    scored: bool = True,
    arrays: Path = ARRAYS,
) -> dict[str, Any]:
    """Returns what a clean process measured of a version, or under `error` why it measured nothing.

    The files are fetched once: those that were verified are those that run.
    """
    number = wanted.number if isinstance(wanted, Version) else wanted.version
    uri = f"models:/{name}/{number}"
    try:
        with session(home):
            folder = carried_code.fetch(home, uri, wanted, into=process.scratch / "version")
        return process.ask(
            "smoke",
            version=str(folder),
            folder=str(arrays.resolve()),
            numbers=numbers,
            rows=rows,
            scored=scored,
        )
    except ReleaseError as error:
        return {"error": str(error)}
    except NoAnswer as error:
        return {"error": f"{uri} does not load: {without_password(str(error))}"}


def _process(home: Home, arrays: Path) -> CodeHost:
    """Returns a process that knows nothing of the night, imports, and waits for its request."""
    script = Path(__file__).with_name("smoke_process.py")
    return CodeHost(script, answer_s=LIMIT_S, home=home, reads=(script, arrays))
