"""Sends inputs of a job to the machine, and fetches results, by way of a bucket.

    BUCKET/things/DIGEST/    a folder that does not change: arrays, a model to start from, code; `whole.json`,
                             the list of files with sizes and digests, is written last
    BUCKET/jobs/NAME/        needs.json   the things that the job needs, and their paths
                             down/        updates for the job: job.json, attempt, end_by.json, batch.json,
                                          forgotten.json
                             up/NODE/     a machine's output: heartbeats, starts, errors, model, result

Any URL of fsspec is a bucket whose client is on both machines; the image `trainer` has that of gs://. Nothing
is locked or renamed there; a file that
`whole.json` does not list, or that does not match it, is not trusted. On the machine everything is in one
folder, under the same paths as in the folder of the night; result.json is written last, after the model that
it describes.
"""

import hashlib
import json
import logging
import secrets
import shutil
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from daybreak.contract import extras
from daybreak.contract.errors import DataError, ParamsError
from daybreak.contract.records import digest, loads, replace_text
from daybreak.storage import checkout
from daybreak.storage.bucket import BucketFolder, inside, is_here, s3_code
from daybreak.storage.source_code import archived_name
from daybreak.training import worker_errors
from daybreak.training.recipe import Result

log = logging.getLogger(__name__)

WITHDRAWN = ("end_by.json", "batch.json", worker_errors.FORGOTTEN)  # updates that may be taken back
DOWN = ("job.json", "attempt", *WITHDRAWN)
MEASURED = ("profile.json", "machinetrial.json")  # what short jobs leave
LINES = ("progress.jsonl", "starts.jsonl", "errors.jsonl")  # append-only
CODE = "code"  # on the machine, beside data/
# What stores of S3 answer that know no If-None-Match.
UNKNOWN = ("NotImplemented", "InvalidArgument", "501", "400")
CLIENTS = ("gcsfs", "google", "aiohttp", "s3fs", "botocore", "aiobotocore", "adlfs", "azure")  # of buckets


def writable(
    url: str, *, key: str = "backend.bucket", on_loopback: bool = False, exclusive: bool = False
) -> str:
    """Returns that a file can be written to the bucket that a key names by its URL, and removed again.

    Raises ParamsError where it cannot, or where the machines of jobs do not see it; those of a place
    `on_loopback` see this machine's disk. `exclusive`: also where a file can be created over another, as
    in a store that does not know `If-None-Match`; else the answer says so.
    """
    if is_here(url) and not on_loopback:
        raise ParamsError(
            f"{key} {url or 'is empty, and the folder of the night'} is on this machine only, and "
            f"jobs run on others; set it to the URL of a bucket, such as gs://my-bucket"
        )
    if not url:
        return "none is named; jobs run in the folder of the night"
    files = BucketFolder(url=url)
    name = f".check-{secrets.token_hex(4)}"
    try:
        files.files.pipe_file(files.at(name), b"")
        try:
            is_replaced = _writes_over(files, name)
        finally:
            files.files.rm_file(files.at(name))
    except ImportError as error:
        raise ParamsError(
            f"{key} {url} needs a client that is not installed here "
            f"({extras.missing(error) or error}); install it, also in the image of the jobs, or "
            f"name a bucket of gs://"
        ) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise ParamsError(
            f"{key} {url} is not writable ({_brief(error)}); make it, and give who runs the nights, "
            f"{_right(url)}"
        ) from None
    except Exception as error:  # each client has its own
        if type(error).__module__.split(".")[0] not in CLIENTS:
            raise
        raise ParamsError(
            f"{key} {url} is not writable ({_brief(error)}); look at the name of the bucket"
        ) from None
    if is_replaced and exclusive:
        raise ParamsError(
            f"{key} {url} writes over what is there, so that two writers would not notice each other; name a "
            f"folder in Cloud Storage or S3, or in a store that knows If-None-Match"
        )
    lacks = "; it writes over what is there, so that no bag runs there" if is_replaced else ""
    return f"{url} is writable{lacks}"


def _writes_over(files: BucketFolder, name: str) -> bool:
    """Returns whether a file that is there can be created again, or such a precondition is not known."""
    try:
        return files.create("", name)
    except (NotImplementedError, TypeError, ValueError):
        return True
    except OSError as error:
        if s3_code(error) not in UNKNOWN:
            raise
        return True


def _right(url: str) -> str:
    if url.startswith(("gs://", "gcs://")):
        return "and backend.service_account, the role roles/storage.objectAdmin on it"
    return "and the jobs, the right to list, read, write and delete there"


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def pack(bucket: BucketFolder, name: str, folder: Path, *, night: Path) -> None:
    """Sends what the job in `folder` needs, from the folder of its night."""
    recipe = json.loads((folder / "job.json").read_text())
    things = {"data/arrays": recipe["data_digest"]} if "data_digest" in recipe else {}
    if "dataset" in recipe:  # of a profile
        things = {"data/arrays": recipe["dataset"]["digest"]}
    if warm := recipe.get("warm_start"):
        things[warm["folder"]] = warm["digest"]
    if recipe.get("arrays"):
        things[recipe["arrays"]] = things.pop("data/arrays")
    for path, name_of in things.items():
        bucket.send_thing(night / path, name_of)
    with tempfile.TemporaryDirectory() as scratch:
        code = _pack_code(night, Path(scratch) / "code.zip")
        if code:
            bucket.send_thing(Path(scratch), code)
            things[CODE] = code
    bucket.write(json.dumps(things), "jobs", name, "needs.json")
    push_updates(bucket, name, folder)


def _pack_code(night: Path, path: Path) -> str:
    """Zips the files that git does not ignore, uncommitted too; returns their digest, "" outside a checkout.

    So what a workload reads beside its modules, a vocabulary as well as a configuration, is there too.
    """
    names = sorted(archived_name(file, night) for file in code_files(night))
    if not names:
        return ""
    seen = hashlib.md5(usedforsecurity=False)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in names:
            content = (night / name).read_bytes()
            seen.update(name.encode() + b"\0" + hashlib.md5(content, usedforsecurity=False).digest())
            packed.writestr(zipfile.ZipInfo(name), content)  # without times: the same code, the same bytes
    return seen.hexdigest()


def code_files(night: Path) -> list[Path]:
    """Returns the files of the folder of a night that travel to its jobs as their code."""
    others = checkout.unignored(night, leaving_out=("data", "nights", "var"))
    return sorted({*others, *checkout.unignored(night, tracked=True)})


def push_updates(bucket: BucketFolder, name: str, folder: Path) -> None:
    """Sends the files that update the job, where they have changed; one withdrawn here is removed there."""
    for file in DOWN:
        path, sent = folder / file, bucket.text("jobs", name, "down", file)
        if not path.exists():
            if sent is not None and file in WITHDRAWN:
                bucket.files.rm_file(bucket.at("jobs", name, "down", file))
        elif path.read_text() != sent:
            bucket.write(path.read_text(), "jobs", name, "down", file)


def unpack(bucket: BucketFolder, name: str, root: Path, folder: Path) -> None:
    """Fetches on the machine what the job needs to `root`, and the state of the job to `folder`.

    Raises DataError if the bucket does not have the job.
    """
    text = bucket.text("jobs", name, "needs.json")
    if text is None:
        raise DataError(f"{bucket.url} has no jobs/{name}; run train again, which sends it")
    things = json.loads(text)
    for path, name_of in things.items():
        bucket.bring_thing(name_of, inside(root, path))
    if CODE in things:
        with zipfile.ZipFile(root / CODE / "code.zip") as packed:
            packed.extractall(root / CODE)
    else:  # what another job left on this machine is not this one's
        shutil.rmtree(root / CODE, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    pull_updates(bucket, name, folder)  # first: they say which errors no longer count
    pull_results(bucket, name, folder)


def pull_updates(bucket: BucketFolder, name: str, folder: Path) -> None:
    """Fetches the files that update the job, and removes those that were withdrawn."""
    for file in DOWN:
        text = bucket.text("jobs", name, "down", file)
        if text is None:
            if file in WITHDRAWN:
                (folder / file).unlink(missing_ok=True)
        elif not ((folder / file).exists() and (folder / file).read_text() == text):
            replace_text(folder / file, text)


def pull_results(bucket: BucketFolder, name: str, folder: Path) -> None:
    """Fetches what all machines of the job left; lines that are here already are not added again.

    Nor are the errors of starts whose errors were forgotten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files, root = bucket.files, bucket.at("jobs", name, "up")
    with suppress(FileNotFoundError):
        paths = sorted(str(path) for path in files.find(root))
        for path in paths:
            if path.rpartition("/")[2] in LINES:
                _add_lines(folder / path.rpartition("/")[2], files.cat_file(path).decode())
            elif path.rpartition("/")[2] in MEASURED:
                replace_text(folder / path.rpartition("/")[2], files.cat_file(path).decode())
        results = [path for path in paths if path.endswith("/result.json")]
        if not (folder / "result.json").exists():
            any(_fetch_model(files, result, paths, folder) for result in results)


def _fetch_model(files: Any, result: str, paths: list[str], folder: Path) -> bool:
    """Fetches the model and then its result; neither, and False, if they are not whole or do not match."""
    model = result.removesuffix("result.json") + "model/"
    fresh = folder / ".model.new"
    shutil.rmtree(fresh, ignore_errors=True)
    for path in paths:
        if path.startswith(model):
            target = inside(fresh, path.removeprefix(model))
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(path, str(target))
    text = files.cat_file(result).decode(errors="replace")
    try:
        expected = loads(Result, text, source=result).model_digest
    except DataError as error:
        log.warning("%s; it is not fetched", error)
        return False
    if not fresh.exists() or digest(fresh) != expected:
        log.warning("%s does not match the digest in its result; it is not fetched", model)
        return False
    shutil.rmtree(folder / "model", ignore_errors=True)
    fresh.rename(folder / "model")
    replace_text(folder / "result.json", text)
    return True


def _add_lines(path: Path, text: str) -> None:
    here = path.read_text().splitlines() if path.exists() else []
    known = set(here)
    new = [line for line in text[: text.rfind("\n") + 1].splitlines() if line not in known]
    if path.name == worker_errors.FILE:
        new = worker_errors.remembered(path.parent, new)
    if new:
        with path.open("ab") as file:
            file.write("".join(f"{line}\n" for line in new).encode())
