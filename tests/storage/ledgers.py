"""A ledger of many nights, made at once by `git fast-import`."""

import hashlib
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from daybreak.contract import records
from daybreak.contract.record_parts import JobForecast, MeasuredEffect, PlanReasons, Record, Rental
from daybreak.contract.record_types import (
    Batch,
    Champion,
    Dataset,
    Night,
    Plan,
    Release,
    Training,
    Verdict,
    Version,
)
from daybreak.storage import checkout

FIRST = date(2022, 1, 1)
PARAMS = "night: {train_hours: 1}\n"


def digest_of(number: int, kind: str) -> str:
    """A digest that looks like DVC's, another one for each night and kind."""
    return hashlib.md5(f"{kind} {number}".encode(), usedforsecurity=False).hexdigest() + ".dir"


def records_of(number: int, *, code: str, previous: str, serving: Release | None) -> Iterator[Record]:
    """Yields the records of a night; every second night promotes its version, numbered from 1."""
    day = FIRST + timedelta(days=number)
    started = datetime(day.year, day.month, day.day, 22, tzinfo=UTC)
    yield Night(
        id=str(day),
        day=day,
        started_at=started,
        train_until=started,
        decide_until=started,
        budget_usd=3,
        trigger="schedule",
        code_commit=code,
        previous=previous,
    )
    yield Batch(day=day, num_rows=10, num_bytes=100, digest=digest_of(number, "raw"), late_days=())
    yield Dataset(
        digest=digest_of(number, "arrays"),
        num_samples=1000,
        num_bytes=1,
        first_day=max(FIRST, day - timedelta(days=30)),
        last_day=max(FIRST, day - timedelta(days=1)),
    )
    yield Plan(
        rental=Rental(machine="g2-standard-4", strategy="spot"),
        batch_size=64,
        micro_batch_size=64,
        num_samples=3000,
        checkpoint_every_s=60,
        fallbacks=(),
        forecast=JobForecast(expected_s=100, expected_usd=1, interval=(90, 120)),
        reasons=PlanReasons(runner_up="none"),
    )
    yield Training(
        model_digest=digest_of(number, "model"),
        num_samples=3000,
        num_updates=47,
        num_restarts=1,
        elapsed_s=101,
        cost_usd=0.9,
        stopped_by="finished",
        device="NVIDIA L4",
    )
    yield Version(
        name="daybreak",
        number=number + 1,
        night=str(day),
        data_digest=digest_of(number, "arrays"),
        model_digest=digest_of(number, "model"),
        run_id=f"run {number}",
    )
    promoted = number % 2 == 0
    before = serving.version if serving else 0
    yield Verdict(
        action="promote" if promoted else "reject",
        champion=before,
        challenger=number + 1,
        effect=MeasuredEffect(mean=0.1, low=0.0, high=0.2),
        num_samples=500,
        reason="better" if promoted else "worse",
    )
    if serving:
        yield Champion(**vars(serving))
    if promoted:
        yield Release(
            version=number + 1, replaced=before, model_digest=digest_of(number, "model"), night=str(day)
        )


LOCK = """\
schema: '2.0'
stages:
  ingest:
    cmd: daybreak ingest
    outs:
    - path: data/raw
      hash: md5
      md5: {raw}
      size: 10
      nfiles: 1
  prepare:
    cmd: daybreak prepare
    outs:
    - path: data/arrays
      hash: md5
      md5: {arrays}
      size: 10
"""


def import_nights(home: Path, num_nights: int) -> None:
    """Put that many nights into the ledger of a repository that has none."""
    code = checkout.git("rev-parse", "HEAD", folder=home)
    before, serving = "", None
    importer = subprocess.Popen(
        ["git", "fast-import", "--quiet", "--cat-blob-fd=1"],
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert importer.stdin and importer.stdout
    for number in range(num_nights):
        written = list(records_of(number, code=code, previous=before, serving=serving))
        serving = next((record for record in written if type(record) is Release), serving)
        importer.stdin.write(_commit(number, written, code=code).encode())
        importer.stdin.flush()
        before = importer.stdout.readline().decode().strip()  # the next night.json names this commit
    importer.stdin.close()
    importer.stdout.close()
    assert importer.wait() == 0


def unpack(home: Path) -> None:
    """Make each object of git a file of its own."""
    for pack in sorted((home / ".git/objects/pack").glob("*.pack")):
        aside = pack.replace(home / ".git" / pack.name)
        for part in pack.parent.glob(f"{pack.stem}.*"):
            part.unlink()
        with aside.open("rb") as file:
            subprocess.run(["git", "unpack-objects", "-q"], cwd=home, stdin=file, check=True)
        aside.unlink()


def _commit(number: int, written: list[Record], *, code: str) -> str:
    """The commit of a night, as `git fast-import` reads it, and the question for its name."""
    night = next(record for record in written if isinstance(record, Night))
    verdict = next(record for record in written if isinstance(record, Verdict))
    message = f"{night.day}: {verdict.action}: {verdict.reason}\n\nNight: {night.id}\n"
    stamp = int(night.started_at.timestamp())
    lock = LOCK.format(raw=digest_of(number, "raw"), arrays=digest_of(number, "arrays"))
    files = {str(records.path_of(type(record), records.RUN)): records.dumps(record) for record in written}
    files |= {"dvc.lock": lock, "params.yaml": PARAMS}
    changes = "".join(
        f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n" for path, text in files.items()
    )
    return (
        f"commit refs/heads/nights\nmark :{number + 1}\ncommitter A Test <test@example.org> {stamp} +0000\n"
        f"data {len(message)}\n{message}\n{'merge' if number else 'from'} {code}\ndeleteall\n{changes}\n"
        f"get-mark :{number + 1}\n"
    )
