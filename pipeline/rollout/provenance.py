"""Answers from the ledger alone why a version serves, and which nights used a day or a digest.

Every commit of the ledger has the night's records in it, so nothing has to be looked up elsewhere; only those
files are read that the answer needs, all by one `git cat-file`, since there is a night for every day.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from pipeline.contract import records
from pipeline.contract.errors import ParamsError, ReleaseError
from pipeline.contract.records import (
    Batch,
    Champion,
    Dataset,
    Night,
    Record,
    Release,
    Report,
    Training,
    Version,
)
from pipeline.registry import approval
from pipeline.storage import ledger
from pipeline.storage.ledger import Commit, Entry

FEWEST_DIGITS = 6  # of a digest, so that it names one thing
LOCK = "dvc.lock"
_SAID = {  # what it means that a record names a digest
    Batch: "brought it in",
    Report: "cleaned it",
    Dataset: "trained on it",
    Training: "made it",
    Version: "registered it",
    Release: "released it",
    Champion: "was judged against it",
}


@dataclass(frozen=True, kw_only=True)
class Use:
    """A night that used what was asked for, and the version it made; 0 where it made none."""

    night: str
    day: str
    version: int
    how: str
    serves: bool


def why(number: int) -> list[tuple[str, str]]:
    """Returns all that decided a version, as pairs of a name and a text; ReleaseError where none is known."""
    commits = ledger.commits()
    path = str(records.path_of(Version))
    texts = ledger.texts_at([commit.id for commit in commits], [path])
    made = [
        commit
        for commit, files in zip(commits, texts, strict=True)
        if not commit.rollback and path in files and json.loads(files[path])["number"] == number
    ]
    if not made:
        known = sorted({json.loads(files[path])["number"] for files in texts if path in files})
        numbers = f"{known[0]} to {known[-1]}" if known else "none"
        raise ReleaseError(
            f"no night of the ledger made version {number}; the versions it has are: {numbers}"
        )
    entry = ledger.entries_of([made[0]])[0]
    return [
        *_made_of(entry),
        *_judged(entry),
        *(("by hand", str(note)) for note in ledger.notes() if number in note.versions),
        ("served", "; ".join(_served(number, commits)) or "never"),
        ("ledger", entry.commit),
    ]


def who_used(what: str) -> list[Use]:
    """Returns nights that used a day, as 2011-09-30, or a digest or how it begins; oldest first.

    ParamsError where it is neither.
    """
    try:
        day = date.fromisoformat(what)
    except ValueError:
        day = None
    if day is None and not re.fullmatch(rf"[0-9a-f]{{{FEWEST_DIGITS},32}}(\.dir)?", what):
        raise ParamsError(
            f"{what!r} is no day and no digest; write 2011-09-30, or {FEWEST_DIGITS} or more digits of one"
        )
    commits = [commit for commit in ledger.commits() if not commit.rollback]
    kinds: Sequence[type[Record]] = (Night, Dataset, Version) if day else (Night, Version, *_SAID)
    paths = [*(str(records.path_of(kind)) for kind in kinds), *([] if day else [LOCK])]
    serving = ledger.champion_at(ledger.ledger_tip())
    uses = []
    for files in reversed(ledger.texts_at([commit.id for commit in commits], paths)):
        texts = {path.rpartition("/")[2].partition(".json")[0]: text for path, text in files.items()}
        how = _how_day(texts, day) if day else _how_digest(texts, what)
        if not how:
            continue
        night = json.loads(texts["night"])
        version = json.loads(texts["version"])["number"] if "version" in texts else 0
        serves = serving is not None and serving.version == version != 0
        uses.append(Use(night=night["id"], day=night["day"], version=version, how=how, serves=serves))
    return uses


def _how_day(texts: dict[str, str], day: date) -> str:
    if "dataset" not in texts:
        return ""
    dataset, night = json.loads(texts["dataset"]), json.loads(texts["night"])
    if dataset["first_day"] <= str(day) <= dataset["last_day"]:
        return "trained on it"
    return "was judged on it" if dataset["last_day"] < str(day) <= night["day"] else ""


def _how_digest(texts: dict[str, str], digest: str) -> str:
    said = [how for kind, how in _SAID.items() if _names(texts.get(kind.__name__.lower(), ""), digest)]
    if digest not in texts.get(LOCK, ""):
        return ", ".join(said)
    blocks = texts[LOCK].split("path: ")[1:]  # of dvc.lock; a YAML parser would take a second for 100 nights
    outs = [block.split()[0] for block in blocks if re.search(rf"md5: '?{re.escape(digest)}", block)]
    return ", ".join([*said, *(f"has it as {path}" for path in dict.fromkeys(outs))])


def _names(text: str, digest: str) -> bool:
    """Returns whether a record names a digest that begins so; `text` is its JSON, "" where there is none."""
    if f'"{digest}' not in text:  # most records: spares reading them
        return False
    values = json.loads(text)
    named = [value for key, value in values.items() if key.endswith("digest")]
    return any(value.startswith(digest) for value in (*named, *values.get("lineage", {}).values()))


def _made_of(entry: Entry) -> list[tuple[str, str]]:
    night, version, dataset = entry.night, entry.version, entry.dataset
    assert version is not None
    facts = [
        ("version", f"{version.name} {version.number}, model {version.model_digest}"),
        ("night", f"{night.id}, {night.trigger}, began {night.started_at:%Y-%m-%d %H:%M} UTC"),
        ("run", version.run_id),
    ]
    if dataset is not None:
        facts.append(
            (
                "data",
                f"{dataset.num_samples:,} samples, {dataset.first_day} to {dataset.last_day}, judged up to "
                f"{night.day}; {dataset.digest}",
            )
        )
    if entry.report is not None:
        facts.append(
            ("rows", f"{entry.report.num_clean:,} clean, {entry.report.num_quarantined:,} quarantined")
        )
    facts.append(("code", night.code_commit))
    facts.append(("params", _changed_params(entry)))
    if entry.plan is not None:
        facts.append(("machine", f"{entry.plan.rental}, batch size {entry.plan.batch_size}"))
    if entry.training is not None:
        ran = entry.training
        facts.append(
            (
                "training",
                f"{ran.num_samples:,} samples, {ran.elapsed_s:,.0f} s, ${ran.cost_usd:,.2f}, "
                f"{ran.num_restarts} restarts, stopped by {ran.stopped_by}"
                f"{f', on {ran.device}' if ran.device else ''}",
            )
        )
    return facts


def _judged(entry: Entry) -> list[tuple[str, str]]:
    if entry.verdict is None:
        return [("verdict", "none")]
    verdict = entry.verdict
    facts = [("verdict", f"{verdict.action}: {verdict.reason}")]
    facts += [("check", f"{check.name}: {check.text}") for check in verdict.checks]
    who = "by the gate, and by nobody since it was not promoted"
    if verdict.approve_until:
        who = f"it {approval.words(verdict, entry.approval, over=True)}"
    elif entry.release is not None:
        who = f"by the gate; nobody was asked ({entry.night.trigger})"
    return [*facts, ("approved", who)]


def _changed_params(entry: Entry) -> str:
    """How the night's params differ from those of its code commit."""
    folder = ledger.home()
    names = (f"{entry.night.code_commit}:params.yaml", f"{entry.commit}:params.yaml")
    changed = ledger.git("diff", "--unified=0", *names, folder=folder).splitlines()
    lines = [f"{line[0]} {' '.join(line[1:].split())}" for line in changed if re.match(r"[+-](?![+-])", line)]
    return "; ".join(lines) or "those of the code commit"


def _served(number: int, commits: Sequence[Commit]) -> list[str]:
    """When the version served: from one commit of the ledger to the next that let another one serve."""
    path = str(records.path_of(Release))
    spans: list[str] = []
    since = ""
    texts = ledger.texts_at([commit.id for commit in commits], [path])
    for commit, files in reversed(list(zip(commits, texts, strict=True))):
        if path not in files:
            continue
        serving = records.loads(Release, files[path], source=f"{commit.id[:9]}:{path}").version
        at = f"{datetime.fromtimestamp(commit.time, UTC):%Y-%m-%d %H:%M} UTC"
        if serving == number and not since:
            since = at
        elif serving != number and since:
            spans.append(f"{since} to {at} ({commit.subject})")
            since = ""
    return [*spans, *([f"since {since}"] if since else [])]
