"""Answers why a version serves, and which nights used a day or a digest, from the ledger alone.

Every commit of the ledger has the night's records in it, so nothing has to be looked up elsewhere; only the
files that the answer needs are read, all by one `git cat-file`, since there is a night for every day.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from daybreak.contract import records
from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.contract.record_parts import Record
from daybreak.contract.record_types import (
    Batch,
    Champion,
    Dataset,
    Night,
    Refit,
    Release,
    Report,
    Training,
    Version,
)
from daybreak.registry import approval
from daybreak.report import outcome
from daybreak.storage import branch, checkout, ledger, ledger_notes
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

FEWEST_DIGITS = 6  # of a digest, so that they name one thing
LOCK = "dvc.lock"
_ROLES = {  # what a night did with a digest that its record names
    Batch: "brought it in",
    Report: "cleaned it",
    Dataset: "trained on it",
    Training: "made it",
    Version: "registered it",
    Refit: "refitted it",
    Release: "released it",
    Champion: "was judged against it",
}


@dataclass(frozen=True, kw_only=True)
class Use:
    """A night that used a day or a digest, and the number of the version it made; 0 where it made none."""

    night: str
    day: str
    version: int
    how: str
    serves: bool


def why(home: Home, number: int) -> list[tuple[str, str]]:
    """Returns what a version was made of and who judged it, as pairs of a name and a text.

    Raises ReleaseError where no night of the ledger made the version.
    """
    commits = ledger.commits(home)
    paths = [str(records.path_of(kind, records.RUN)) for kind in (Version, Refit)]
    texts = branch.texts_at(home, [commit.id for commit in commits], paths)
    made = [
        commit
        for commit, files in zip(commits, texts, strict=True)
        if not commit.rollback and number in _numbers(files)
    ]
    if not made:
        known = sorted({known for files in texts for known in _numbers(files)})
        span = f"{known[0]} to {known[-1]}" if known else "none"
        raise ReleaseError(f"no night of the ledger made version {number}; the versions it has are: {span}")
    entry = ledger.entries_of(home, [made[0]])[0]
    return [
        ("outcome", outcome.headline(outcome.NightView(entry=entry)).sentence),
        *_made_of(home, entry, number),
        *_judged(entry),
        *(
            ("erased" if note.erasure else "by hand", str(note))
            for note in ledger_notes.read(home)
            if number in note.versions
        ),
        ("served", "; ".join(_served(home, number, commits)) or "never"),
        ("ledger", entry.commit),
    ]


def _numbers(files: dict[str, str]) -> list[int]:
    """Returns the versions that a night made: tonight's, and its refit; `files` are texts by path."""
    written = [
        json.loads(files[path])
        for kind in (Version, Refit)
        if (path := str(records.path_of(kind, records.RUN))) in files
    ]
    versions = [record.get("version", record) for record in written]
    return [version["number"] for version in versions if version]


def who_used(home: Home, what: str) -> list[Use]:
    """Returns the nights that used a day or a digest, oldest first.

    `what` is a date as 2011-09-30, or a digest or its first six digits; ParamsError where it is neither.
    """
    try:
        day = date.fromisoformat(what)
    except ValueError:
        day = None
    if day is None and not re.fullmatch(rf"[0-9a-f]{{{FEWEST_DIGITS},32}}(\.dir)?", what):
        raise ParamsError(
            f"{what!r} is neither a date nor a digest; write 2011-09-30, or {FEWEST_DIGITS} or more digits"
        )
    commits = [commit for commit in ledger.commits(home) if not commit.rollback]
    kinds: Sequence[type[Record]] = (Night, Dataset, Version, Refit) if day else (Night, Version, *_ROLES)
    paths = [*(str(records.path_of(kind, records.RUN)) for kind in kinds), *([] if day else [LOCK])]
    serving = ledger.champion_at(home, branch.ledger_tip(home))
    uses = []
    for files in reversed(branch.texts_at(home, [commit.id for commit in commits], paths)):
        texts = {path.rpartition("/")[2].partition(".json")[0]: text for path, text in files.items()}
        how = _how_day(texts, day) if day else _how_digest(texts, what)
        if not how:
            continue
        night = json.loads(texts["night"])
        made = _numbers(files)
        version = made[0] if made else 0
        if serving is not None and serving.version in made:
            version = serving.version
        serves = serving is not None and serving.version == version != 0
        uses.append(Use(night=night["id"], day=night["day"], version=version, how=how, serves=serves))
    return uses


def learned_from(home: Home, days: Collection[date]) -> list[int]:
    """Returns the numbers of the versions that were trained on any of `days`, in order.

    A refit is trained on the held-out days too.
    """
    commits = [commit for commit in ledger.commits(home) if not commit.rollback]
    paths = [str(records.path_of(kind, records.RUN)) for kind in (Night, Dataset, Version, Refit)]
    numbers = set()
    for files in branch.texts_at(home, [commit.id for commit in commits], paths):
        night, dataset, version, refit = (json.loads(files.get(path, "null")) for path in paths)
        if not (night and dataset and version):
            continue
        made = [(version, dataset["last_day"])]
        made += [(refit["version"], night["day"])] if refit and refit["version"] else []
        for one, last in made:
            if any(dataset["first_day"] <= str(day) <= last for day in days):
                numbers.add(int(one["number"]))
    return sorted(numbers)


def _how_day(texts: dict[str, str], day: date) -> str:
    if "dataset" not in texts:
        return ""
    dataset, night = json.loads(texts["dataset"]), json.loads(texts["night"])
    if dataset["first_day"] <= str(day) <= dataset["last_day"]:
        return "trained on it"
    if not dataset["last_day"] < str(day) <= night["day"]:
        return ""
    refit = json.loads(texts.get("refit", "{}"))
    refitted = refit and refit["version"] and not refit["why_not"]
    return f"was judged on it{', then trained on it' * bool(refitted)}"


def _how_digest(texts: dict[str, str], digest: str) -> str:
    roles = [how for kind, how in _ROLES.items() if _names(texts.get(kind.__name__.lower(), ""), digest)]
    if digest not in texts.get(LOCK, ""):
        return ", ".join(roles)
    blocks = texts[LOCK].split("path: ")[1:]  # of dvc.lock; a YAML parser would take a second for 100 nights
    outs = [block.split()[0] for block in blocks if re.search(rf"md5: '?{re.escape(digest)}", block)]
    return ", ".join([*roles, *(f"has it as {path}" for path in dict.fromkeys(outs))])


def _names(text: str, digest: str) -> bool:
    """Returns whether a record, given as JSON, names a digest that begins with `digest`; "" names none."""
    if f'"{digest}' not in text:  # most records, which then need not be parsed
        return False
    values = json.loads(text)
    values |= values.get("version") or {} if isinstance(values.get("version"), dict) else {}
    named = [value for key, value in values.items() if key.endswith("digest")]
    return any(value.startswith(digest) for value in (*named, *values.get("lineage", {}).values()))


def _made_of(home: Home, entry: Entry, number: int) -> list[tuple[str, str]]:
    night, version, dataset, refit = entry.night, entry.version, entry.dataset, entry.refit
    assert version is not None
    if refit and refit.version and refit.version.number == number:
        version = refit.version
    pairs = [
        ("version", f"{version.name} {version.number}, model {version.model_digest}"),
        ("night", f"{night.id}, {night.trigger}, began {night.started_at:%Y-%m-%d %H:%M} UTC"),
        ("run", version.run_id),
        *([("refit", _refit(refit))] if refit else []),
    ]
    if dataset is not None:
        pairs.append(
            (
                "data",
                f"{dataset.num_samples:,} samples, {dataset.first_day} to {dataset.last_day}, judged up to "
                f"{night.day}; {dataset.digest}",
            )
        )
    if entry.report is not None:
        pairs.append(
            ("rows", f"{entry.report.num_clean:,} clean, {entry.report.num_quarantined:,} quarantined")
        )
    pairs.append(("code", night.code_commit))
    pairs.append(("params", _changed_params(home, entry)))
    if entry.plan is not None:
        pairs.append(("machine", f"{entry.plan.rental}, batch size {entry.plan.batch_size}"))
    if entry.training is not None:
        ran = entry.training
        pairs.append(
            (
                "training",
                f"{ran.num_samples:,} samples, {ran.elapsed_s:,.0f} s, ${ran.cost_usd:,.2f}, "
                f"{ran.num_restarts} restarts, stopped by {ran.stopped_by}"
                f"{f', on {ran.device}' if ran.device else ''}",
            )
        )
    return pairs


def _refit(refit: Refit) -> str:
    """Returns what a refit on the held-out days came to."""
    if refit.why_not or refit.version is None:
        return f"version {refit.judged} serves as it was judged: {refit.why_not}"
    return (
        f"version {refit.version.number} is version {refit.judged} after training on the held-out days too; "
        f"verdict and scores are those of version {refit.judged}"
    )


def _judged(entry: Entry) -> list[tuple[str, str]]:
    if entry.verdict is None:
        return [("verdict", "none")]
    verdict = entry.verdict
    pairs = [("verdict", f"{verdict.action}: {verdict.reason}")]
    pairs += [("check", f"{check.name}: {check.text}") for check in verdict.checks]
    who = "by the gate, and by nobody since it was not promoted"
    if verdict.approve_until:
        who = f"it {approval.words(verdict, entry.approval, over=True)}"
    elif entry.release is not None:
        who = f"by the gate; nobody was asked ({entry.night.trigger})"
    return [*pairs, ("approved", who)]


def _changed_params(home: Home, entry: Entry) -> str:
    """Returns how the night's params differ from those of its code commit, line by line."""
    folder = home.folder
    names = (f"{entry.night.code_commit}:params.yaml", f"{entry.commit}:params.yaml")
    changed = checkout.git("diff", "--unified=0", *names, folder=folder).splitlines()
    lines = [f"{line[0]} {' '.join(line[1:].split())}" for line in changed if re.match(r"[+-](?![+-])", line)]
    return "; ".join(lines) or "those of the code commit"


def _served(home: Home, number: int, commits: Sequence[Commit]) -> list[str]:
    """Returns when the version served: from one commit of the ledger to the next with another version."""
    path = str(records.path_of(Release, records.RUN))
    spans: list[str] = []
    since = ""
    texts = branch.texts_at(home, [commit.id for commit in commits], [path])
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
