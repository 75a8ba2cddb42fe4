"""Is a bit that rots seen, and put back? Flips of single bits and truncations, wherever Daybreak keeps bytes.

A small home runs nights with a remote of DVC and one of the ledger, and copies of checkpoints; arrays and
models of its nights are sent to a bucket. Then files are damaged as a disk does it: at their place, their
time unchanged. For each group of one kind, the checks of `audit --deep` have to name each damaged file or
what it is part of, and `repair` has to put back to the bit what has a good copy. All is then as before, for
the next group. Last, objects that a night needs are damaged, with DVC's remote and without: `open`'s restore
has to refuse, or to restore what the ledger says.

Damaged are objects of DVC's cache (partitions, arrays, models, lists), checkpoints, files of versions in
MLflow, folders in the bucket, and objects of the ledger in git, taken out of its packs; a flip of git's that
leaves what the object says as it was (a bit that only fills a byte up) is drawn anew. QUICK=1 does a tenth.
"""

import contextlib
import os
import random
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import frame
from daybreak.backends.local import Local
from daybreak.contract import params, records
from daybreak.contract.errors import DataError
from daybreak.contract.sections import Params, Plug
from daybreak.extensions.care import audit, repair
from daybreak.registry.carried_code import MODEL
from daybreak.rollout import rot
from daybreak.storage import branch, checkout, dvc_cache, snapshots
from daybreak.storage.bucket import BucketFolder
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session
from tests.storage.ledgers import unpack
from tests.toy.nights import files_of_version

NUM = 100 if frame.QUICK else 1000
DAYS = ("2026-03-02", "2026-03-03")
SHARES = {"cache": 0.5, "git": 0.25, "versions": 0.05, "checkpoints": 0.1, "bucket": 0.1}
GROUP = 40  # files that are damaged at once, where there are as many
NUM_RESTORED = NUM // 25
SETS = frame.sets([*frame.SMALL, "profile.steps=2", "profile.batch_sizes=[32,64]", "gate.min_samples=5"])


class LocalWithBucket(Local):
    """The machine at hand, beside a bucket as that of a backend whose jobs run elsewhere."""

    def __init__(self, *, bucket: str) -> None:
        super().__init__()
        self._bucket = bucket

    @property
    def bucket_url(self) -> str:
        return self._bucket


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Where files of one kind are, and how damage in them is seen."""

    files: Callable[[], list[Path]]
    seen: Callable[[], set[Path]]  # what is named
    part_of: Callable[[Path], Path]  # by which damage in a file is named
    has_copy: Callable[[Path, set[Path]], bool]  # beside the files that are damaged
    at_once: int = GROUP


def main() -> None:
    """Run the nights, damage, look, repair, and count."""
    tally: Counter[str] = Counter()
    with frame.home() as home:
        made = prepare(home)
        for name, kind in kinds(home, made).items():
            number = 0
            while number < round(NUM * SHARES[name]):
                at_once = min(kind.at_once, round(NUM * SHARES[name]) - number)
                number += group(name, kind, made, at_once=at_once, seed=number, tally=tally)
            print(f"{name}: {number} damaged", file=sys.stderr, flush=True)
        restore(home, made, tally)
        faults = [check.text for check in audit.audit(Home.here(), made, deep=True) if not check.ok]
        assert not faults, faults
    frame.finish(
        "rot",
        {
            **{f"damaged: {name}": tally[name] for name in SHARES},
            "damaged": tally["damaged"],
            "seen / damaged": tally["seen"] / tally["damaged"],
            "with a good copy": tally["copied"],
            "repaired to the bit / with a good copy": tally["repaired"] / tally["copied"],
            "not as before, nor said to be": tally["unsaid"],
            "restored for a night from a damaged cache": tally["restored"],
            "refused": tally["refused"],
            "restored with other bytes": tally["used"],
        },
        {
            "seen / damaged": ("==", 1),
            "repaired to the bit / with a good copy": ("==", 1),
            "not as before, nor said to be": ("==", 0),
            "restored with other bytes": ("==", 0),
        },
    )


def prepare(home: Path) -> Params:
    """Nights, and all places that bytes are kept in; returns the home's params."""
    off = home.parent / "off"
    subprocess.run(["git", "init", "--quiet", "--bare", str(off / "ledger")], check=True)
    (home / ".dvc" / "config").write_text(
        f"[core]\n    analytics = false\n    remote = off\n['remote \"off\"']\n    url = {off / 'dvc'}\n"
    )
    path = home / "params.yaml"
    path.write_text(path.read_text().replace("night:\n", f'night:\n  ledger_remote: "{off / "ledger"}"\n'))
    for words in (
        ["commit", "--quiet", "-am", "Name remotes"],
        ["remote", "add", "origin", str(off / "ledger")],
        ["push", "--quiet", "origin", "HEAD"],
    ):
        subprocess.run(["git", *words], cwd=home, check=True)
    copies = frame.sets([f"train.checkpoints={off / 'checkpoints'}", "train.checkpoint_every_s=0.5"])
    for day in DAYS:
        frame.pipeline(home, "night", "--day", day, *SETS, *copies)
        print(f"night {day} is over", file=sys.stderr, flush=True)
    os.environ["DAYBREAK_HOME"] = str(home)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    os.chdir(home)
    bucket = BucketFolder(url=str(off / "bucket"))
    for day in DAYS:
        for name in ("data/arrays", "data/run/model"):
            bucket.send_thing(home / "nights" / day / name, records.digest(home / "nights" / day / name))
    made = params.load(home).model_copy(
        update={"backend": Plug(use="benchmarks.bench_rot:LocalWithBucket", bucket=bucket.url)}
    )
    faults = [check.text for check in audit.audit(Home.here(), made, deep=True) if not check.ok]
    assert not faults, faults
    return made


def kinds(home: Path, made: Params) -> dict[str, Kind]:
    """The kinds of places."""
    with session(Home.here()) as client:
        registered = client.search_model_versions("name = 'daybreak'")
        numbers = [int(one.version) for one in registered]
    versions = {number: files_of_version(home, number) for number in numbers}
    off, loose = home.parent / "off", home / ".git" / "objects"
    sent = off / "bucket" / "things"
    unpack(home)
    tip = branch.ledger_tip(Home.here())
    listed = checkout.git("rev-list", "--objects", tip, folder=home).splitlines()
    of_ledger = {line.split()[0] for line in listed}

    def remote_has(path: Path, damaged: set[Path]) -> bool:
        return (off / "dvc" / "files" / "md5" / path.parent.name / path.name).exists()

    def is_shared(path: Path, damaged: set[Path]) -> bool:
        """Whether DVC has the file, as one of the model, or another version has it too."""
        top = part_of_version(path)
        if path.relative_to(top).is_relative_to(MODEL):
            return True
        others = [other / path.relative_to(top) for other in versions.values() if other != top]
        return any(
            other not in damaged and other.is_file() and other.read_bytes() == path.read_bytes()
            for other in others
        )

    def part_of_version(path: Path) -> Path:
        return next(top for top in versions.values() if path.is_relative_to(top))

    def was_copied(path: Path, damaged: set[Path]) -> bool:
        url = rot.copies_of(path.parents[2])
        return bool(url and list(Path(url).glob(f"{path.parent.name}.*")))

    return {
        "cache": Kind(
            files=lambda: [
                dvc_cache.path_of(Home.here(), digest) for digest in dvc_cache.objects(Home.here())
            ],
            seen=lambda: {
                dvc_cache.path_of(Home.here(), fault.name)
                for fault in rot.in_cache(Home.here(), dvc_cache.objects(Home.here()))
            },
            part_of=lambda path: path,
            has_copy=remote_has,
        ),
        "git": Kind(
            files=lambda: [
                path for path in sorted(loose.glob("??/*")) if path.parent.name + path.name in of_ledger
            ],
            seen=lambda: {Path(fault.name) for fault in rot.in_git(Home.here())},
            part_of=lambda path: path,
            has_copy=lambda path, damaged: True,
        ),
        "versions": Kind(
            files=lambda: files_below(*versions.values()),
            seen=lambda: {versions[int(fault.name)] for fault in rot.in_versions(Home.here(), made)},
            part_of=part_of_version,
            has_copy=is_shared,
            at_once=max(1, len(versions) - 1),
        ),
        "checkpoints": Kind(
            files=lambda: files_below(*home.glob("nights/*/data/work/jobs/*/checkpoints/seen=*")),
            seen=lambda: {Path(fault.name) for fault in rot.in_checkpoints(Home.here())},
            part_of=lambda path: path.parent,
            has_copy=was_copied,
        ),
        "bucket": Kind(
            files=lambda: files_below(sent),
            seen=lambda: {sent / fault.name for fault in rot.in_buckets(Home.here(), made)},
            part_of=lambda path: sent / path.relative_to(sent).parts[0],
            has_copy=lambda path, damaged: True,
        ),
    }


def files_below(*folders: Path) -> list[Path]:
    """All files in some folders that have bytes, in order."""
    paths = [path for folder in folders for path in folder.rglob("*")]
    return sorted(path for path in paths if path.is_file() and path.stat().st_size)


def group(name: str, kind: Kind, made: Params, *, at_once: int, seed: int, tally: Counter[str]) -> int:
    """Damages a file each of some parts, counts what is seen and repaired; returns how many were damaged."""
    draw = random.Random(f"{name} {seed}")
    files = kind.files()
    damaged: dict[Path, Path] = {}  # by part
    for path in draw.sample(files, len(files)):
        if len(damaged) < at_once:
            damaged.setdefault(kind.part_of(path), path)
    folders = {path.parent for path in damaged.values()} if name == "checkpoints" else set(damaged.values())
    before = {
        path: path.read_bytes() for top in folders for path in ([top] if top.is_file() else files_below(top))
    }
    packs = set((Home.here().folder / ".git/objects/pack").iterdir())
    copied = {path for path in damaged.values() if kind.has_copy(path, set(damaged.values()))}
    for path in damaged.values():
        damage(path, draw, is_git=name == "git")
    seen = kind.seen()
    lines = list(repair.PLACES[name](Home.here(), made))
    as_before = {path: is_as_before(name, path, before[path]) for path in damaged.values()}
    lost, said = sum(not good for good in as_before.values()), sum(not check.ok for check in lines)
    tally["unsaid"] += max(0, lost - said)
    for part, path in damaged.items():
        tally["damaged"] += 1
        tally[name] += 1
        tally["seen"] += part in seen
        if part not in seen:
            print(f"{name}: {path} was damaged and is not named")
        if path not in copied:
            continue
        tally["copied"] += 1
        if as_before[path]:
            tally["repaired"] += 1
        else:
            print(f"{name}: {path} has a copy and is not as it was: {[check.text for check in lines]}")
    put_back(before)
    for pack in set((Home.here().folder / ".git/objects/pack").iterdir()) - packs:
        pack.unlink()
    return len(damaged)


def put_back(before: dict[Path, bytes]) -> None:
    """Writes these files as they were."""
    for path, content in before.items():
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.chmod(0o644)
            path.write_bytes(content)


def is_as_before(name: str, path: Path, content: bytes) -> bool:
    """Whether the damaged file is whole again; in git, whether the object is, also in a pack."""
    if name != "git":
        return path.is_file() and path.read_bytes() == content
    kind, _, body = zlib.decompress(content).partition(b"\0")
    words = ["git", "cat-file", kind.split()[0].decode(), path.parent.name + path.name]
    done = subprocess.run(words, cwd=Home.here().folder, capture_output=True, check=False)
    return done.returncode == 0 and done.stdout == body


def damage(path: Path, draw: random.Random, *, is_git: bool = False) -> None:
    """Flips a bit of a file or cuts the file short, and keeps its time."""
    stat, before = path.stat(), path.read_bytes()
    assert not is_git or stat.st_nlink == 1, f"{path} may be a link to an object of this checkout"
    content = bytearray(before)
    if draw.random() < 0.25:
        del content[draw.randrange(len(content)) :]
    else:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    if is_git and says_the_same(bytes(content), before):
        damage(path, draw, is_git=True)
        return
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()
    path.chmod(stat.st_mode)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def says_the_same(content: bytes, before: bytes) -> bool:
    """Whether an object of git still unpacks, wholly, to what it was."""
    reader = zlib.decompressobj()
    try:
        return reader.decompress(content) == zlib.decompress(before) and reader.eof and not reader.unused_data
    except zlib.error:
        return False


def restore(home: Path, made: Params, tally: Counter[str]) -> None:
    """Damages objects that the next night needs, one at a time, and restores each as `open` does."""
    lock = str(branch.text_at(Home.here(), branch.ledger_tip(Home.here()), "dvc.lock"))
    paths = ["data/raw", "data/clean", "data/quarantine", "data/figures", "data/arrays"]
    outs = {path: digest for path, digest in dvc_cache.outputs(lock).items() if path in paths}
    needed: Sequence[str] = sorted(
        {digest for _, digest in dvc_cache.files_of(Home.here(), outs)} | set(outs.values())
    )
    draw = random.Random(0)
    for number in range(NUM_RESTORED):
        digest = draw.choice(needed)
        path = dvc_cache.path_of(Home.here(), digest)
        before = path.read_bytes()
        if not before:
            continue
        folder = home / "nights" / f"restored-{number}"
        checkout.git("worktree", "add", "--quiet", "--detach", str(folder), "HEAD", folder=home)
        snapshots.share_cache(folder, cache=home / ".dvc" / "cache")
        if number % 2:
            (folder / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
        (folder / "dvc.lock").write_text(lock)
        damage(path, draw)
        tally["restored"] += 1
        with contextlib.chdir(folder):
            try:
                snapshots.restore(Home.here(), paths)
                tally["used"] += any(records.digest(Path(name)) != outs[name] for name in outs)
            except DataError:
                tally["refused"] += 1
        path.chmod(0o644)
        path.write_bytes(before)
        path.chmod(0o444)
        checkout.git("worktree", "remove", "--force", str(folder), folder=home)


if __name__ == "__main__":
    main()
