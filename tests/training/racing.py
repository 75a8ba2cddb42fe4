"""What becomes of copies when two writers race? `python -m tests.training.racing STORAGE ROUNDS SEED`.

STORAGE is `gs`, or `s3`.
In each round two processes go on from the newest checkpoint, as runs on two machines would, and send two
each, as far on as the other's or nearly so; in some rounds one of them is killed. Meanwhile a reader brings
the newest there is, again and again. Afterwards what the newest head names is fetched and held against its
hashes. Prints what was seen as JSON; `careless` as a last word takes a service that does not honour
preconditions.
"""

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests import cloud_storage, s3_storage

os.environ |= cloud_storage.ENVIRONMENT | s3_storage.ENVIRONMENT

import s3fs  # noqa: F401

from daybreak.training import checkpoint
from daybreak.training.checkpoint_copies import CheckpointCopies

URL = f"{sys.argv[1]}://bucket/checkpoints/night/job"
SERVICE = {"gs": cloud_storage, "s3": s3_storage}[sys.argv[1]]
COMMITS = 2  # by each writer, a round
KILLED = 0.3  # share of the rounds in which a writer is
DELAY_S = 0.02  # of each call, at most
FORK = multiprocessing.get_context("fork")


def saved(folder: Path, seen: int, chance: random.Random) -> Path:
    """A checkpoint with nobody's weights."""
    path = folder / f"seen={seen:015d}"
    path.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.safetensors", checkpoint.SCALARS):
        (path / name).write_bytes(chance.randbytes(chance.randint(1, 5000)))
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.iterdir()}
    (path / checkpoint.MANIFEST).write_text(json.dumps(digests))
    return path


def write(folder: Path, seed: float, said: Connection) -> None:
    """Send a checkpoint after the other, and say which are there."""
    chance = random.Random(seed)
    bucket = CheckpointCopies(URL)
    bucket.fetch(folder)
    seen = far_on(folder)
    for _ in range(COMMITS):
        seen += chance.randint(1, 3)
        if bucket.send(saved(folder, seen, chance)):
            said.send(seen)
    said.close()


def far_on(folder: Path) -> int:
    """Samples that the newest whole checkpoint of a folder has seen; 0 where there is none."""
    whole = [int(path.name[5:]) for path in folder.glob("seen=*") if not checkpoint.fault(path)]
    return max(whole, default=0)


def read(folder: Path, known: int, over: Connection, said: Connection) -> None:
    """Bring the newest until told, then see all that the newest head names; say what was wrong."""
    bucket, looks, torn, lost = CheckpointCopies(URL), 0, 0, 0
    heard = False
    while not heard:
        heard = over.poll()
        shutil.rmtree(folder, ignore_errors=True)
        bucket.fetch(folder)
        looks, lost = looks + 1, lost + (far_on(folder) < known)
    for name, files in bucket.copies().items():
        torn += bool(bucket._get(name, files, folder / "again"))
    said.send((looks, torn, lost, sorted(int(name[5:20]) for name in bucket.copies())))


def race(folder: Path, known: int, chance: random.Random) -> tuple[dict[str, int], int]:
    """One round: what was seen, and how far the bucket is."""
    ears, mouths = zip(*(FORK.Pipe(duplex=False) for _ in range(2)), strict=True)
    over_here, over = FORK.Pipe(duplex=False)
    results, tell = FORK.Pipe(duplex=False)
    reader = FORK.Process(target=read, args=(folder / "reader", known, over_here, tell))
    writers = [
        FORK.Process(target=write, args=(folder / str(n), chance.random(), mouth))
        for n, mouth in enumerate(mouths)
    ]
    for process in (reader, *writers):
        process.start()
    for mouth in mouths:
        mouth.close()
    if killed := chance.random() < KILLED:
        time.sleep(chance.uniform(0.05, 0.3))
        os.kill(writers[0].pid or 0, signal.SIGKILL)
    for process in writers:
        process.join()
    done: list[int] = []
    for ear in ears:
        while ear.poll():
            try:
                done.append(ear.recv())
            except EOFError:
                break
    over.send("")
    looks, torn, lost, there = results.recv()
    reader.join()
    missed = sum(
        seen not in there and sum(other > seen for other in there) < checkpoint.KEEP for seen in done
    )
    facts = {"looks": looks, "torn": torn, "lost": lost + missed, "commits": len(done), "kills": int(killed)}
    return facts, max([known, *there])


def main(*, rounds: int, seed: int, honours: bool) -> dict[str, int]:
    """What was seen in all rounds."""
    chance, sums, known = (
        random.Random(seed),
        dict.fromkeys(("looks", "torn", "lost", "commits", "kills"), 0),
        0,
    )
    with SERVICE.served(honours=honours, delay_s=DELAY_S) as store, SERVICE.emulated(store):
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                facts, known = race(Path(folder), known, chance)
            sums = {name: sums[name] + facts[name] for name in sums}
        return {**sums, "refused": store.refused, "rounds": rounds}


if __name__ == "__main__":
    print(
        json.dumps(main(rounds=int(sys.argv[2]), seed=int(sys.argv[3]), honours="careless" not in sys.argv))
    )
