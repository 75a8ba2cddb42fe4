"""Stage predict: writes what the version that serves predicts for the next day, however the night ended.

It comes after the decision, so that the predictions are by the version that was promoted tonight, or by the
champion where none was: after a refusal, a failure or a stop as well. While another stage still waits, the
runner calls it at `night.predict_from`, and the champion's predictions are in time.

Rows are scored file by file in `data/work/predict`, and written to `predict.to` once all are there. A call
after a kill goes on with the files that are missing, if they are of the same rows by the same version. Calls
of a night take turns, so that of two at once one finds the predictions of the other. A call by hand has a
folder of its own.
"""

import json
import logging
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daybreak.batch_inference import day_drift, destinations, scorer
from daybreak.batch_inference.scorer import Scorer
from daybreak.contract import clock, records
from daybreak.contract.errors import DataError, NothingToDo, ParamsError, ReleaseError, without_password
from daybreak.contract.formats import counted
from daybreak.contract.record_parts import Drift
from daybreak.contract.record_types import Dataset, Night, Predictions
from daybreak.contract.sections import PredictParams, PredictSections
from daybreak.contract.table import Table
from daybreak.data.partitions import CLEAN, PART, part_of, partitions
from daybreak.rollout import night_events
from daybreak.rollout.rollback import version_of
from daybreak.serving.recorded import NIGHTS_BACK, NightArrays, arrays_of, newest_arrays
from daybreak.storage import branch, known_digests, ledger, ledger_notes
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

WORK = Path("data/work/predict")
LOCK = Path("data/work/predict.lock")
OLDEST_DAYS = 7  # that rows may be older than the night's day, and its predictions still be of use
USERS = 10  # rows_per_file is of so many lists' users


def predict(
    home: Home,
    night: Night,
    params: PredictSections,
    *,
    to: str = "",
    version: str = "",
    day: date | None = None,
    ahead_of: str = "",
) -> Predictions | None:
    """Returns the predictions that were written for the next day; None where they are not the night's own.

    Where the night's day has no clean rows, as it did not come or was not trusted, those of the newest day
    that has some are predicted, of the `OLDEST_DAYS` before; `Predictions.older` names it.

    Args:
        home: whose nights these are.
        night: the night, whose day is the newest.
        params: what is predicted, and where it is written.
        to: where to write, instead of `predict.to`; the night's own predictions stay as they are.
        version: its number, or the night or day that made it, for `to`; the one that serves if empty.
        day: an earlier day of which the night has clean rows, for `to`; the night's if left out.
        ahead_of: the stage that the night still waits in, before whose end these are written.

    Raises:
        NothingToDo: none are asked for, no version serves yet, or the place has those of a later day.
        ParamsError: the place cannot be used.
        DataError: there are no rows to predict, or only old ones, or predictions are too far from those of
            days before.
        ReleaseError: the version cannot be loaded, or predicts neither rows nor lists.
        JobError: the predictions cannot be written there.
    """
    place = to or params.predict.to
    if not place:
        raise NothingToDo("predict.to is empty, so that nothing is predicted")
    if (version or day) and not to:
        raise ParamsError("another version or day needs another place; name it by --to")
    if to:
        by_hand = _Call(
            home=home,
            night=replace(night, day=day or night.day),
            params=params,
            place=to,
            version=version_of(home, version) if version else _serving(home),
            is_of_day=day is not None,
        )
        parent = home.tonight / WORK.parent
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{WORK.name}-", dir=parent) as work:
            _write(by_hand, _score(by_hand, Path(work)))
        return None
    with alone(home.tonight / LOCK):
        call = _Call(home=home, night=night, params=params, place=place, version=_serving(home))
        done = records.find(Predictions, home.records)
        if done and _stands(done, call):
            return done
        _expect_newest(call)
        scored = _score(call, home.tonight / WORK)
        day_drift.keep(home, night.day, scored.sample)  # refused or not, so that a change is refused once
        predictions = replace(_write(call, scored), ahead_of=ahead_of)
        _note(home, night, predictions)
        records.write(predictions, home.records)  # by the runner it would be after another call has begun
        if predictions.is_late:
            late = night_events.late_predictions(night, at=predictions.written_at)
            night_events.note_event(late, home.tonight)
        shutil.rmtree(home.tonight / WORK)
        return predictions


@dataclass(frozen=True, kw_only=True)
class _Call:
    """What is predicted, and where it is written."""

    home: Home
    night: Night
    params: PredictSections
    place: str
    version: int
    is_of_day: bool = False  # a person named the day, so that no other one will do
    began: float = field(default_factory=time.monotonic)


def _serving(home: Home) -> int:
    """Returns the version that serves by the ledger; NothingToDo where none does yet."""
    champion = ledger.champion_at(home, branch.ledger_tip(home))
    if champion is None:
        raise NothingToDo("no version serves yet, so that nothing can be predicted")
    return champion.version


def lacking(home: Home, version: int, table: Table) -> str:
    """Returns which columns a version reads and a table lacks, and what to do; "" for none."""
    (made,) = ledger.promotions(home, version)
    own = branch.read_at(home, made.commit, Table) if made else None
    read = {name for name, column in own.features.items() if not column.nullable} if own else set()
    if not (missing := sorted(read - table.columns.keys())):
        return ""
    these = "it" if len(missing) == 1 else "them"
    return (
        f"version {version} reads {', '.join(missing)}, which the workload's table lacks, and "
        f"predicts no rows without {these}; declare {these} there too, or name rows that have {these} by "
        f"predict.source"
    )


def _stands(done: Predictions, call: _Call) -> bool:
    """Returns whether predictions that were written stay, though another version may serve since.

    Those of older rows do not, once the rows of the day are there and there is time for them.
    """
    since, until = call.night.predict_from, call.night.predict_until
    if done.older and part_of(call.night.day, call.home.tonight / CLEAN).exists():
        return until is not None and clock.utc() >= until
    return done.version == call.version or (since is not None and clock.utc() >= since)


def _expect_newest(call: _Call) -> None:
    """Raises NothingToDo where the predictions would replace those of a later day.

    Each day has its own rows of a table, and its own file or folder where the name has the day.
    """
    day, given = call.night.day, call.params.predict
    destination = destinations.destination_of(call.home, call.place, day=day, table=given.table)
    if isinstance(destination, destinations.DatabaseTable):
        return
    url = destinations.url_of(call.place, day=day)
    if url != destinations.url_of(call.place, day=day + timedelta(days=1)):
        return
    for made in (entry.predictions for entry in ledger.history(call.home) if entry.predictions):
        if made.day > day and made.to == without_password(call.place):
            raise NothingToDo(
                f"{made.to} has predictions of {made.day}, which those of {day} would replace; write "
                f"each day to a place of its own, by {{day}} in predict.to"
            )


def _write(call: _Call, scored: "_Scored") -> Predictions:
    """Writes predictions, unless they are too far from those of days before."""
    night, given = call.night, call.params.predict
    destination = destinations.destination_of(call.home, call.place, day=night.day, table=given.table)
    drift = _drift(call.home, night, given, scored.sample)
    num_rows, digest = _num_rows(scored.files), records.digest(scored.files[0].parent)
    facts = {"day": str(night.day), "version": call.version, "night": night.id}
    with destinations.alone(call.home):
        destinations.note(call.home, call.place, day=night.day, table=given.table)
        destination.write(scored.files, facts | {"num_rows": num_rows, "digest": digest})
    predictions = Predictions(
        night=night.id,
        day=night.day,
        version=call.version,
        to=without_password(destinations.named(call.place, day=night.day)),
        of=scored.of,
        older=scored.older,
        num_rows=num_rows,
        digest=digest,
        drift=drift,
        elapsed_s=round(time.monotonic() - call.began, 3),
        num_kept=scored.num_kept,
        num_files=len(scored.files),
        written_at=clock.utc().replace(microsecond=0),
        until=night.predict_until,
    )
    log.info("%s has what version %d predicts: %s", predictions.to, call.version, counted(num_rows, "row"))
    if predictions.is_late:
        log.warning("predictions were to be written until %s UTC", f"{night.predict_until:%Y-%m-%d %H:%M}")
    return predictions


def _note(home: Home, night: Night, predictions: Predictions) -> None:
    """Adds the predictions of a night that is in the ledger already; else `promote` or `close` does it."""
    if not ledger.commit_of(home, night):
        return
    rows = counted(predictions.num_rows, "row")
    text = (
        f"night {night.id} wrote {rows} of predictions by version {predictions.version} to {predictions.to}"
    )
    ledger_notes.add(home, text, versions=(), predictions=predictions)


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """Files of predictions, and what they are."""

    files: list[Path]
    of: str
    older: date | None  # whose rows are predicted, if not those of the night's day
    sample: "pa.Table"  # of the predictions alone
    num_kept: int  # files that a call before had scored


def _score(call: _Call, work: Path) -> _Scored:
    """Scores what is missing in a folder of the files of a version's predictions, and returns all of them."""
    home, night, given = call.home, call.night, call.params.predict
    beside = {
        destinations.DAY: str(night.day),
        destinations.VERSION: call.version,
        destinations.NIGHT: night.id,
    }
    arrays = _arrays(home, night)
    with scorer.opened(
        home,
        call.version,
        name=call.params.register_.name,
        arrays=arrays,
        clean=_clean(home),
        work=work,
    ) as version:
        is_lists = version.about["answers"] == "users"
        of, older = (_of_lists(version, arrays), None) if is_lists else _of_rows(version, call)
        case = {**beside, "of": of, "rows_per_file": given.rows_per_file, "top": given.top}
        case["source"] = given.source.model_dump(mode="json") if given.source else None
        if not is_lists and version.clean.exists():  # else nothing is predicted, or looked back on
            case["clean"] = known_digests.digest(home, version.clean)
        _go_on(work, case)
        if is_lists:
            size = ceil(given.rows_per_file / USERS)
            files = _files(work, version.about["num_users"], size)
            asks = scorer.lists_asked(version, files, size=size, top=given.top, beside=beside)
        else:
            rows = _rows(version, call)
            files = _files(work, _num_rows([rows]), given.rows_per_file)
            asks = scorer.rows_asked(version, rows, files, size=given.rows_per_file, beside=beside)
        num_kept = version.score(files, asks)
        names = (*version.about["beside"], *beside)
    sample = day_drift.sample_of(files, without=names, whole=names[0] if is_lists else "")
    return _Scored(files=files, of=of, older=older, sample=sample, num_kept=num_kept)


def _arrays(home: Home, night: Night) -> NightArrays | None:
    """Returns tonight's arrays, those of the newest closed night if tonight came to none, or None."""
    tonight = arrays_of(home, night.id) if records.find(Dataset, home.records) else None
    return tonight or newest_arrays(home)


def _clean(home: Home) -> Path:
    """Returns the folder of tonight's clean rows, or of the newest closed night's where tonight has none.

    One that could not be opened has not those of the nights before, as others have.
    """
    own, closed = home.tonight / CLEAN, ledger.commits(home, limit=NIGHTS_BACK)
    others = [home.nights / commit.night / CLEAN for commit in closed if not commit.rollback]
    return next((folder for folder in (own, *others) if partitions(folder)), own)


def _of_lists(version: Scorer, arrays: NightArrays | None) -> str:
    """Returns which data lists are made from; ReleaseError where the workload names no users."""
    if "num_users" not in version.about or arrays is None:
        raise ReleaseError(
            f"version {version.number} is of {version.about['workload']}, which does not say whose lists to "
            f"make; give it `users(samples)` (help(daybreak.Workload))"
        )
    return f"lists of all users, by the data of night {arrays.night}"


def _of_rows(version: Scorer, call: _Call) -> tuple[str, date | None]:
    """Returns which rows are predicted, and their day if that is an older one than the night's.

    Raises ReleaseError where the version predicts no rows, and DataError where all are too old.
    """
    given = call.params.predict
    if version.about["answers"] != "rows":
        raise ReleaseError(
            f"version {version.number} is of {version.about['workload']}, which predicts neither rows nor "
            f"lists; give it `features` and `predict`, or `recommend` and `users`; or no night has its "
            f"arrays here any more"
        )
    if given.source:
        return f"rows of {given.source.use}", None
    if version.about["names_rows"]:
        return f"rows that {version.about['workload']}.score_rows names", None
    table = records.find(Table, call.home.records)
    if table and (lacks := lacking(call.home, call.version, table)):
        raise DataError(lacks)
    day, wanted = _clean_day(version, call), call.night.day
    if day == wanted:
        return f"clean rows of {day}", None
    if (wanted - day).days > OLDEST_DAYS:
        raise DataError(
            f"{wanted} has no clean rows to predict, and the newest are of {day}, more than {OLDEST_DAYS} "
            f"days before; see why none came since, or name rows that need no night by predict.source or "
            f"score_rows"
        )
    of = f"clean rows of {day}, the newest, as {wanted} has none"
    log.warning("predicted are %s", of)
    return of, day


def _clean_day(version: Scorer, call: _Call) -> date:
    """Returns the newest day with clean rows, up to the night's; DataError where there is none."""
    wanted = call.night.day
    for day in reversed(partitions(version.clean)):
        if (day == wanted if call.is_of_day else day <= wanted) and _num_rows([part_of(day, version.clean)]):
            return day
    raise DataError(
        f"there are no clean rows of {wanted} to predict, since the night ended before they were judged; run "
        f"it again, or name rows that need no night by predict.source or score_rows"
    )


def _rows(version: Scorer, call: _Call) -> Path:
    """Returns the file of the rows to predict, which is fetched once."""
    night, given = call.night, call.params.predict
    folder = version.work / "rows"
    fetched = folder / PART
    if given.source is None and not version.about["names_rows"]:
        return part_of(_clean_day(version, call), version.clean)
    if not fetched.exists():
        fresh = folder.with_name("fetching")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        if given.source:
            given.source.make().fetch(night.day, fresh)
            with (fresh / PART).open("rb") as file:
                version.copy(file, fresh / PART)
        else:
            version.ask(
                version.first,
                "candidates",
                fresh / PART,
                day=str(night.day),
                clean=str(version.clean.absolute()),
            )
        fresh.rename(folder)
    return fetched


def _go_on(work: Path, case: dict[str, Any]) -> None:
    """Keeps the files that a call before has scored of the same case; removes those of another."""
    path = work / "case.json"
    if path.exists() and json.loads(path.read_text()) == case:
        return
    for left in work.iterdir():  # not the folder itself, which the version's process may read
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    records.replace_text(path, json.dumps(case))


def _files(work: Path, num: int, size: int) -> list[Path]:
    """Returns the files of so many rows or users; DataError where there are none."""
    if not num:
        raise DataError("there are no rows to predict; look at what brings them")
    (work / "files").mkdir(exist_ok=True)
    return [work / "files" / f"part-{part:05}.parquet" for part in range(ceil(num / size))]


def _num_rows(files: list[Path]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in files)


def _drift(home: Home, night: Night, given: PredictParams, sample: Any) -> tuple[Drift, ...]:
    """Returns the distances from the predictions of days before; DataError where they are refused."""
    if given.drift == "off":
        return ()
    drift = day_drift.distances(home, night.day, sample, limit=given.max_drift)
    far = [
        f"{one.column} by {one.value:.2f}, where {one.limit:.2f} is allowed"
        for one in drift
        if one.value > one.limit
    ]
    if far:
        text = f"predictions are far from those of the days before: {'; '.join(far)}"
        if given.drift == "refuse":
            raise DataError(f"{text}; look at the rows, or write them with predict.drift: warn")
        log.warning("%s", text)
    return drift
