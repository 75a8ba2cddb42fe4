"""Checks ledger, aliases, DVC objects and MLflow against each other, and changes nothing.

The ledger is hash-chained by git, so `git fsck` proves that no entry was altered; what a chain cannot prove,
that every release follows from the one before it and from a verdict, is read from the records.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from daybreak.contract import forms, records
from daybreak.contract.errors import NotYet, PipelineError, ReleaseError, sentence
from daybreak.contract.record_parts import Check
from daybreak.contract.record_types import Approval, Night, Refit, Release, Verdict, Version
from daybreak.contract.sections import Params
from daybreak.registry import aliases
from daybreak.rollout import ledger_copy, rot
from daybreak.rollout.targets import release_targets
from daybreak.storage import branch, checkout, dvc_cache, erasures, ledger, ledger_notes
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import session

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK = "dvc.lock"
NUM_SHOWN = 3  # faults of each check


def audit(home: Home, params: Params, *, deep: bool = False) -> Iterator[Check]:
    """Yields one check after the other; MLflow comes last, since it may not answer.

    A release that is being made meanwhile is waited for, as half of it would look like a fault. A `deep` one
    then reads every byte that is kept, too.
    """
    with home.release_journal.alone():
        yield from _checks(home, params)
    if deep:
        yield from _bytes(home, params)


def _checks(home: Home, params: Params) -> Iterator[Check]:
    commits = ledger.commits(home)
    yield _objects(home)
    signature = _signature(home)
    yield signature
    texts = branch.texts_at(home, [commit.id for commit in commits], [*PATHS.values(), LOCK])
    contents = [decoded(files) for files in texts]
    faults = chain(chain_faults(commits, contents), ledger_notes.faults(home, branch.ledger_tip(home)))
    yield _check("chain of nights", faults, f"{len(commits):,} entries follow each other")
    yield _check(
        "releases", release_faults(commits, contents), "each follows from a verdict and the one before"
    )
    keep = params.night.keep
    locks = [(commit, files[LOCK]) for commit, files in zip(commits, texts, strict=True) if LOCK in files]
    yield _data(home, locks[:keep], changes=erasures.changed(home) if signature.ok else {})
    left = home.release_journal.path.exists()
    text = "a release was interrupted; run watch" if left else "no release is unfinished"
    yield Check(name="journal", ok=not left, text=text)
    yield _erasures(home, len(erasures.erasures(home)) if signature.ok else 0)
    yield from _copy(home)
    with session(home) as client:
        name = params.register_.name
        serving = ledger.champion_at(home, branch.ledger_tip(home))
        yield _check("targets", _target_faults(home, client, name, serving), "all show what the ledger says")
        yield _check(
            "tags", _tag_faults(home, client, name), "no version names a commit that the ledger lacks"
        )
        yield _check(
            "MLflow", _registry_faults(client, name, commits, contents), "it has what the ledger has"
        )


KINDS = (Night, Version, Verdict, Approval, Refit, Release)
PATHS = {kind.__name__: str(records.path_of(kind, records.RUN)) for kind in KINDS}  # in a commit
Contents = dict[str, dict[str, Any]]  # the records of a commit by name, as plain values


def decoded(texts: dict[str, str]) -> Contents:
    """Returns the records among the files of a commit, each as a dict, by their names in lower case."""
    return {
        name.lower(): forms.record(name, json.loads(texts[path]))
        for name, path in PATHS.items()
        if path in texts
    }


def _objects(home: Home) -> Check:
    """Checks by `git fsck` that every object of the ledger exists and has the content that its name says."""
    tip = branch.ledger_tip(home)
    try:
        if tip:
            checkout.git("fsck", "--no-dangling", "--no-reflogs", "--no-progress", tip, folder=home.folder)
    except ReleaseError as error:
        return Check(name="ledger's objects", ok=False, text=str(error))
    return Check(
        name="ledger's objects", ok=True, text=f"git fsck finds no fault up to {tip[:9] or 'nothing'}"
    )


def _signature(home: Home) -> Check:
    """Checks that the newest commit is signed, where it has to be."""
    try:
        branch.expect_signed(home)
    except ReleaseError as error:
        return Check(name="signature", ok=False, text=str(error))
    return Check(name="signature", ok=True, text="the ledger is signed, or need not be")


def _erasures(home: Home, num: int) -> Check:
    """Checks that the ledger has all erasures, and that none was interrupted; `num` are in it."""
    lost, left = erasures.lost(home), erasures.journal(home).path.exists()
    if lost:
        text = f"{lost}, and the ledger does not have it; look at daybreak restore"
    elif left:
        text = "one was interrupted; run erase again"
    else:
        text = f"all {num} are done" if num else "there is none"
    return Check(name="erasures", ok=not (lost or left), text=text)


def chain_faults(commits: Sequence[Commit], contents: Sequence[Contents]) -> Iterator[str]:
    """Yields a sentence for each entry that does not follow the one before it, newest first."""
    for number, (commit, content) in enumerate(zip(commits, contents, strict=True)):
        before = commits[number + 1].id if number + 1 < len(commits) else ""
        if "night" not in content:
            yield f"{commit.id[:9]} has no night.json"
        elif commit.rollback:
            if len(commit.parents) != 1 or not before:
                yield f"rollback {commit.id[:9]} does not follow {before[:9]} alone"
        elif (content["night"]["previous"], content["night"]["id"]) != (before, commit.night):
            yield f"night {commit.night} says it follows {content['night']['previous'][:9]}, not {before[:9]}"
        elif commit.parents[-1] != content["night"]["code_commit"]:
            yield f"night {commit.night} has another code commit than its parent {commit.parents[-1][:9]}"


def release_faults(commits: Sequence[Commit], contents: Sequence[Contents]) -> Iterator[str]:
    """Yields a sentence for each release without a verdict, or with another model or predecessor."""
    serving = 0
    for commit, content in reversed(list(zip(commits, contents, strict=True))):
        if "release" not in content:
            continue
        release, verdict = content["release"], content.get("verdict", {})
        if release["replaced"] != serving:
            yield f"{commit.id[:9]} replaces version {release['replaced']}, but {serving} served"
        if not commit.rollback:
            version, judged = content.get("version", {}), release["version"]
            if refitted := _refitted(content):
                version, judged = refitted, version.get("number")
            if not _allowed(verdict, content.get("approval", {}), judged):
                yield f"version {release['version']} was released by {commit.id[:9]} without a verdict on it"
            if (version.get("number"), version.get("model_digest")) != (
                release["version"],
                release["model_digest"],
            ):
                yield f"{commit.id[:9]} released another model than version {version.get('number')}"
        serving = release["version"]


def _refitted(content: Contents) -> dict[str, Any]:
    """Returns the version that a refit of the judged one became; empty where none serves in its place."""
    refit = content.get("refit", {})
    judged = content.get("version", {}).get("number")
    serves = refit and not refit["why_not"] and refit["judged"] == judged
    return (refit["version"] or {}) if serves else {}


def _allowed(verdict: dict[str, Any], approval: dict[str, Any], number: int) -> bool:
    """Returns whether the gate promoted the version or, if a person had to approve it, one did."""
    if verdict.get("challenger") != number:
        return False
    if not verdict.get("approve_until"):
        return bool(verdict["action"] == "promote")
    keys = ("champion", "challenger", "action")
    answered = all(approval.get(key) == verdict[key] for key in keys) and approval["approved"]
    return answered and (verdict["action"] == "promote" or verdict["inconclusive"])


def _data(home: Home, locks: Sequence[tuple[Commit, str]], *, changes: Mapping[str, str]) -> Check:
    """Checks that the cache has the files that dvc.lock of the newest nights names, those in folders too."""
    wanted: dict[str, str] = {}
    for commit, text in locks:
        lock = YAML(typ="safe").load(erasures.now_of_lock(home, text, changes)) or {}
        for stage in lock.get("stages", {}).values():
            for out in stage.get("outs", ()):
                if "md5" in out and not out["path"].endswith(".json"):  # records are in git
                    wanted.setdefault(out["md5"], f"{out['path']} of {commit.night}")
    missing, num_objects = [], 0
    for digest, where in wanted.items():
        listing = dvc_cache.path_of(home, digest)
        num_objects += 1
        if not listing.exists():
            missing.append(f"{where} ({digest[:9]}) is not in the cache")
            continue
        if not digest.endswith(".dir"):
            continue
        if records.digest(listing) != digest.removesuffix(".dir"):
            missing.append(f"the list of {where} does not match its digest")
            continue
        parts = [part["md5"] for part in json.loads(listing.read_text())]
        num_objects += len(parts)
        lost = [part for part in parts if not dvc_cache.path_of(home, part).exists()]
        if lost:
            missing.append(f"{len(lost)} of {len(parts)} files of {where} are not in the cache")
    return _check("DVC objects", iter(missing), f"{num_objects:,} of {len(locks)} nights are there")


def _copy(home: Home) -> Iterator[Check]:
    """Holds the ledger against its copy at the remote of params.yaml, if one is named."""
    remote, tip = ledger_copy.configured(home), branch.ledger_tip(home)
    if not remote:
        return
    copy = ledger_copy.look(home, remote, tip=tip)
    text = ledger_copy.more_than_here(copy, tip) if copy.has_more else str(copy)
    yield Check(name="pushed ledger", ok=copy.state in ("same", "behind"), text=text)


def _bytes(home: Home, params: Params) -> Iterator[Check]:
    """Reads all bytes that are kept; a place that cannot be read at all is a fault of its own."""
    objects = dvc_cache.objects(home)
    places = {
        "bytes of DVC": rot.in_cache(home, objects),
        "files of nights": rot.in_nights(home),
        "bytes of git": rot.in_git(home),
        "checkpoints": rot.in_checkpoints(home),
        "bucket": rot.in_buckets(home, params),
        "MLflow's database": rot.in_database(home),
        "versions": rot.in_versions(home, params),
    }
    for name, faults in places.items():
        fine = f"{len(objects):,} objects have their digests" if name == "bytes of DVC" else "all are whole"
        try:
            yield _check(name, map(str, faults), fine)
        except (PipelineError, OSError) as error:
            yield Check(name=name, ok=False, text=sentence(error))


def _tag_faults(home: Home, client: "MlflowClient", name: str) -> Iterator[str]:
    newest = aliases.newest_tagged(client, name)
    if newest and not branch.is_part(home, newest[1], branch.ledger_tip(home)):
        yield f"version {newest[0]} is of commit {newest[1][:9]}, which the ledger does not have"


def _target_faults(home: Home, client: "MlflowClient", name: str, serving: Release | None) -> Iterator[str]:
    for target in release_targets(home, client, name):
        try:
            if (shown := target.shown()) != (serving.version if serving else 0):
                yield f"{target.name} shows {shown}, the ledger says {serving.version if serving else 0}"
        except NotYet as pending:
            yield f"what {target.name} shows is not known: {pending}"


def _registry_faults(
    client: "MlflowClient", name: str, commits: Sequence[Commit], contents: Sequence[Contents]
) -> Iterator[str]:
    releases = [content["release"]["version"] for content in contents if "release" in content]
    serving = releases[0] if releases else 0
    made = {
        version["number"]: version
        for commit, content in zip(commits, contents, strict=True)
        for version in (content.get("version"), content.get("refit", {}).get("version"))
        if version and not commit.rollback
    }
    have = {int(version.version): version for version in aliases.versions(client, name)}
    for number, version in made.items():
        if number not in have:
            yield f"version {number} of night {version['night']} is missing"
            continue
        tags = have[number].tags
        for key in ("model_digest", "night"):
            if tags.get(key) != version[key]:
                yield f"version {number} has {key} {tags.get(key)}, the ledger says {version[key]}"
    for number, registered in have.items():
        status = registered.tags.get("status", "")
        if status == aliases.SERVING and number != serving:
            yield f"version {number} is tagged {status}, but version {serving} serves"
        if status == "replaced" and number not in releases:
            yield f"version {number} is tagged {status}, but never served"
        if number == serving and status != aliases.SERVING:
            yield f"version {number} serves, but is tagged {status or 'nothing'}"


def _check(name: str, sentences: Iterator[str], fine: str) -> Check:
    faults = list(sentences)
    more = f" and {len(faults) - NUM_SHOWN} more" if len(faults) > NUM_SHOWN else ""
    text = "; ".join(re.sub(r"\s+", " ", fault) for fault in faults[:NUM_SHOWN]) + more
    return Check(name=name, ok=not faults, text=text or fine)
