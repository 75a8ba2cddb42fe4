"""Answers why a night ended as it did and a version serves, and which nights used a day or a digest.

Every commit of the ledger has the night's records in it, so nothing has to be looked up elsewhere; only the
files that the answer needs are read, all by one `git cat-file`, since there is a night for every day. The
folder of a night, while it is here, adds what its stages wrote, and is all there is of a night that runs.
"""

import difflib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from daybreak.contract import formats, params, records
from daybreak.contract.errors import DataError, ParamsError, ReleaseError
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
    Verdict,
    Version,
)
from daybreak.registry import approval
from daybreak.report import evidence, outcome, summary
from daybreak.report.links import Places
from daybreak.report.outcome import NightView
from daybreak.storage import branch, ledger, ledger_notes, night_folders
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.ledger import Entry

log = logging.getLogger(__name__)

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


def why(home: Home, what: str) -> list[tuple[str, str]]:
    """Returns the end of a night with its reason, and the origin, verdict and service of its version.

    Each is a pair of a name and a text.

    Args:
        home: whose nights these are.
        what: the number of a version, or the id or the day of a night, closed or not. A day stands for its
            night that was opened last.

    Raises:
        ReleaseError: no night of the home made the version, or has that name.
    """
    commits = ledger.commits(home)
    paths = [str(records.path_of(kind, records.RUN)) for kind in (Version, Refit)]
    texts = branch.texts_at(home, [commit.id for commit in commits], paths)
    made = {
        commit.id: _numbers(files)
        for commit, files in zip(commits, texts, strict=True)
        if not commit.rollback
    }
    if what.isascii() and what.isdigit():
        view, number = _of_version(home, int(what), commits, made), int(what)
    else:
        view = _of_night(home, what, [commit for commit in commits if not commit.rollback])
        version = view.entry.refitted or view.entry.version
        number = version.number if version else 0
    entry = view.entry
    view = replace(
        view,
        history=ledger.history(home, limit=outcome.NIGHTS),
        new_night=ledger.new_night(home, entry.night) if ledger.overtaken(home, entry.night) else "",
    )
    headline = outcome.headline(view)
    is_in_verdict = entry.verdict and headline.reason == entry.verdict.reason
    summed = summary.summarize(view, places=Places())
    return [
        ("outcome", headline.sentence),
        *([] if is_in_verdict else [("reason", headline.reason)]),
        *([("since", summed.since)] if summed.since else []),
        *_made_of(home, entry, number),
        *((fact.name.lower(), f"{fact.text}, {fact.beside}") for fact in summed.facts),
        *_judged(entry),
        *(
            ("erased" if note.erasure else "by hand", str(note))
            for note in ledger_notes.read(home)
            if number in note.versions
        ),
        *([("served", "; ".join(_served(home, number, commits)) or "never")] if number else []),
        *(
            ("happened", f"{moment.at:%Y-%m-%d %H:%M} UTC {moment.what}")
            for moment in evidence.timeline(entry)
            if not moment.planned
        ),
        *([("ledger", entry.commit)] if entry.commit else []),
        *(("next", action.command) for action in summed.actions if action.is_due),
    ]


def _of_version(
    home: Home, number: int, commits: Sequence[Commit], made: Mapping[str, Sequence[int]]
) -> NightView:
    """Returns the night that made a version; `made` has the versions of each night by its commit."""
    found = next((commit for commit in commits if number in made.get(commit.id, ())), None)
    if found:
        return _view(home, ledger.entries_of(home, [found])[0])
    for folder, _ in night_folders.unclosed(home):
        try:
            view = outcome.view_of(folder)
        except (DataError, OSError) as error:  # another night may have made it
            log.warning("the night in %s cannot be read: %s", folder, error)
            continue
        if number in _numbers_of(view.entry):
            return view
    known = sorted({each for numbers in made.values() for each in numbers})
    span = f"{known[0]} to {known[-1]}" if known else "none"
    raise ReleaseError(f"no night of the ledger made version {number}; the versions it has are: {span}")


def _of_night(home: Home, what: str, commits: Sequence[Commit]) -> NightView:
    """Returns the night of an id or a day, the last one opened; `commits` are the ledger's nights."""
    path = str(records.path_of(Night, records.RUN))
    texts = branch.texts_at(home, [commit.id for commit in commits], [path])
    closed = [
        (records.loads(Night, files[path], source=f"{commit.id[:9]}:{path}"), commit)
        for commit, files in zip(commits, texts, strict=True)
        if path in files and (formats.short_id(commit.night) == what or f'"{what}"' in files[path])
    ]
    found = max(
        (pair for pair in closed if _is_named(pair[0], what)),
        key=lambda pair: pair[0].started_at,
        default=None,
    )
    running = [pair for pair in night_folders.unclosed(home) if _is_named(pair[1], what)]
    newest = max(running, key=lambda pair: pair[1].started_at, default=None)
    if newest and (found is None or newest[1].started_at > found[0].started_at):
        return outcome.view_of(newest[0])
    if found is None:
        last = f"; the newest night of the ledger is {commits[0].night}" if commits else ""
        raise ReleaseError(f"{what} is neither a version nor a night or its day{last}")
    return _view(home, ledger.entries_of(home, [found[1]])[0])


def _is_named(night: Night, what: str) -> bool:
    return what in (night.id, formats.short_id(night.id), str(night.day))


def _view(home: Home, entry: Entry) -> NightView:
    """Returns a night of the ledger, with the sentences of its stages where its folder is still here."""
    folder = home.nights / entry.night.id
    try:
        if records.find(Night, folder / records.RUN):
            return replace(outcome.view_of(folder), entry=entry)
    except (DataError, OSError) as error:  # the ledger has its records
        log.warning("what stages of night %s said is left out: %s", entry.night.id, error)
    return NightView(entry=entry)


def _numbers_of(entry: Entry) -> list[int]:
    refit = entry.refit.version if entry.refit else None
    return [version.number for version in (entry.version, refit) if version]


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
    """Returns the numbers of the versions that learned from any of `days`, in order.

    A refit is trained on the held-out days too. A version that began with another's weights learned from
    what that one learned from.
    """
    commits = [commit for commit in reversed(ledger.commits(home)) if not commit.rollback]
    kinds = (Night, Dataset, Training, Champion, Verdict, Version, Refit)
    paths = [str(records.path_of(kind, records.RUN)) for kind in kinds]
    numbers: set[int] = set()
    for files in branch.texts_at(home, [commit.id for commit in commits], paths):
        night, dataset, training, champion, verdict, version, refit = (
            json.loads(files.get(path, "null")) for path in paths
        )
        if not (night and dataset and version):
            continue
        is_warm = training and training.get("warm") is not False  # where nobody told it may be
        # A night that was overtaken has the champion of the one that did so; its verdict names its own.
        began_with = {champion and champion["version"], verdict and verdict["champion"]} if is_warm else set()
        made = [(version, dataset["last_day"], began_with)]
        made += [(refit["version"], night["day"], {version["number"]})] if refit and refit["version"] else []
        for one, last, before in made:
            if before & numbers or any(dataset["first_day"] <= str(day) <= last for day in days):
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
    if refit and refit.version and refit.version.number == number:
        version = refit.version
    pairs = [("night", f"{night.id}, {night.trigger}, began {night.started_at:%Y-%m-%d %H:%M} UTC")]
    if version:
        pairs.append(("version", f"{version.name} {version.number}, model {version.model_digest}"))
        pairs.append(("run", version.run_id))
    if refit:
        pairs.append(("refit", _refit(refit)))
    if dataset is not None:
        pairs.append(
            (
                "samples",
                f"{dataset.num_samples:,}, {dataset.first_day} to {dataset.last_day}, judged up to "
                f"{night.day}; {dataset.digest}",
            )
        )
    pairs.append(("code", night.code_commit))
    if entry.commit:
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
    if not verdict.challenger:
        return pairs
    who = "by the gate, and by nobody since it was not promoted"
    if verdict.approve_until:
        who = f"it {approval.words(verdict, entry.approval, over=True)}"
    elif entry.release is not None:
        who = f"by the gate; nobody was asked ({entry.night.trigger})"
    return [*pairs, ("approved", who)]


def _changed_params(home: Home, entry: Entry) -> str:
    """Returns how the night's params differ from those of its code commit, line by line."""
    both = branch.texts_at(home, [entry.night.code_commit, entry.commit], [params.FILE])
    before, after = (files.get(str(params.FILE), "").splitlines() for files in both)
    changed = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]  # after the names of the files
    lines = [f"{line[0]} {' '.join(line[1:].split())}" for line in changed if line[0] in "+-"]
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
