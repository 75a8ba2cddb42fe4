"""How does what a job needs reach its machine, and how does what it leaves come home? By way of a bucket.

    BUCKET/things/DIGEST/    a folder that does not change: arrays, a model to start from, code; `whole.json`,
                             its files with their sizes and digests, is written last
    BUCKET/jobs/NAME/        needs.json   which things the job needs, and where they are to lie
                             down/        what home tells the job: job.json, attempt, end_by.json
                             up/NODE/     what a machine left: heartbeats, starts, errors, model, result

Any URL of fsspec is a bucket: gs://..., or a path. Nothing is locked or renamed there; what is not listed
in a `whole.json` that was written last, or does not match it, is not believed. On the machine all lies
under one folder, paths as they are in the folder of the night; result.json comes home last, after the
model that it speaks of.
"""

import hashlib
import json
import logging
import shutil
import subprocess
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.contract.errors import DataError
from pipeline.contract.records import digest, replace_text
from pipeline.storage.bucket import BucketFolder

log = logging.getLogger(__name__)

DOWN = ("job.json", "attempt", "end_by.json")
PROFILE = "profile.json"  # of a job that measures
LINES = ("progress.jsonl", "starts.jsonl", "errors.jsonl")  # only ever added to
CODE = "code"  # on the machine, beside data/


def pack(bucket: BucketFolder, name: str, folder: Path, *, night: Path) -> None:
    """Send what the job in `folder` needs, from the folder of its night."""
    told = json.loads((folder / "job.json").read_text())
    things = {"data/arrays": told["data_digest"]} if "data_digest" in told else {}
    if "dataset" in told:  # of a profile
        things = {"data/arrays": told["dataset"]["digest"]}
    if told.get("warm_from"):
        things[told["warm_from"]] = told["warm_digest"]
    if told.get("arrays"):
        things[told["arrays"]] = things.pop("data/arrays")
    for path, name_of in things.items():
        bucket.send_thing(night / path, name_of)
    with tempfile.TemporaryDirectory() as scratch:
        code = _pack_code(night, Path(scratch) / "code.zip")
        if code:
            bucket.send_thing(Path(scratch), code)
            things[CODE] = code
    bucket.write(json.dumps(things), "jobs", name, "needs.json")
    tell(bucket, name, folder)


def _pack_code(night: Path, path: Path) -> str:
    """Zip the code of the night, uncommitted changes and all; its digest, "" where there is no checkout."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", "*.py", "*.yaml",
              "*.csv", "*.html"]  # fmt: skip
    done = subprocess.run(listed, cwd=night, capture_output=True, check=False)
    names = sorted(name for name in done.stdout.decode().split("\0") if name and (night / name).is_file())
    if done.returncode or not names:
        return ""
    seen = hashlib.md5(usedforsecurity=False)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            content = (night / name).read_bytes()
            seen.update(name.encode() + b"\0" + hashlib.md5(content, usedforsecurity=False).digest())
            packed.writestr(zipfile.ZipInfo(name), content)  # without times: the same code, the same bytes
    return seen.hexdigest()


def tell(bucket: BucketFolder, name: str, folder: Path) -> None:
    """Send what home tells the job, where it has changed."""
    for file in DOWN:
        path = folder / file
        if path.exists() and path.read_text() != bucket.text("jobs", name, "down", file):
            bucket.write(path.read_text(), "jobs", name, "down", file)


def unpack(bucket: BucketFolder, name: str, root: Path, folder: Path) -> None:
    """Lay out under `root`, on the machine, what the job needs, and in `folder` what is known of it."""
    text = bucket.text("jobs", name, "needs.json")
    if text is None:
        raise DataError(f"{bucket.url} has no jobs/{name}; run train again, which sends it")
    for path, name_of in json.loads(text).items():
        bucket.bring_thing(name_of, root / path)
    if (root / CODE / "code.zip").exists():
        with zipfile.ZipFile(root / CODE / "code.zip") as packed:
            packed.extractall(root / CODE)
    come_home(bucket, name, folder)
    hear(bucket, name, folder)


def hear(bucket: BucketFolder, name: str, folder: Path) -> None:
    """Bring what home tells the job."""
    for file in DOWN:
        text = bucket.text("jobs", name, "down", file)
        if text is not None and not ((folder / file).exists() and (folder / file).read_text() == text):
            replace_text(folder / file, text)


def come_home(bucket: BucketFolder, name: str, folder: Path) -> None:
    """Bring what all machines of the job left; lines that are here already are not added again."""
    folder.mkdir(parents=True, exist_ok=True)
    files, root = bucket.files, bucket.at("jobs", name, "up")
    with suppress(FileNotFoundError):
        found = sorted(str(path) for path in files.find(root))
        for path in found:
            if path.rpartition("/")[2] in LINES:
                _add_lines(folder / path.rpartition("/")[2], files.cat_file(path).decode())
            elif path.endswith(f"/{PROFILE}"):
                replace_text(folder / PROFILE, files.cat_file(path).decode())
        results = [path for path in found if path.endswith("/result.json")]
        if results and not (folder / "result.json").exists():
            _bring_model(files, results[0], found, folder)


def _bring_model(files: Any, result: str, found: list[str], folder: Path) -> None:
    """The model first, then the result that vouches for it; neither if they do not match."""
    model = result.removesuffix("result.json") + "model/"
    fresh = folder / ".model.new"
    shutil.rmtree(fresh, ignore_errors=True)
    for path in found:
        if path.startswith(model):
            target = fresh / path.removeprefix(model)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(path, str(target))
    text = files.cat_file(result).decode()
    if not fresh.exists() or digest(fresh) != json.loads(text)["model_digest"]:
        log.warning("%s is not the model that its result speaks of; it is left there", model)
        return
    shutil.rmtree(folder / "model", ignore_errors=True)
    fresh.rename(folder / "model")
    replace_text(folder / "result.json", text)


def _add_lines(path: Path, text: str) -> None:
    here = path.read_text().splitlines() if path.exists() else []
    known = set(here)
    new = [line for line in text[: text.rfind("\n") + 1].splitlines() if line not in known]
    if new:
        with path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in new).encode())
