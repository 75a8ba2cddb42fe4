"""`prune` keeps what any ledger needs, and deletes the rest from git, DVC's cache and MLflow's artifacts."""

import hashlib
import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.record_types import Night, Predictions, Release, Version
from daybreak.contract.sections import NightParams, RegisterParams, ServingParams
from daybreak.extensions.live_test import own_serving
from daybreak.registry import aliases
from daybreak.rollout.prune import needed, prune
from daybreak.rollout.rollback import steps_back
from daybreak.storage import branch, checkout, ledger, ledger_notes
from daybreak.storage.branch import Commit
from daybreak.storage.home import Home
from daybreak.storage.mlflow_client import find_or_make_run, session
from daybreak.storage.traffic_log import open_log
from tests.minimal_records import minimal_night

NAME = params.load(Path()).register_.name


def commit(number: int, serves: int) -> Commit:
    return Commit(
        id=f"c{number}",
        parents=(),
        time=number,
        subject="",
        night=f"n{number}",
        rollback=serves < 0,
        serves=abs(serves) or None,
    )


@st.composite
def ledgers(draw: st.DrawFn) -> list[Commit]:
    """Nights that promote or do not, and rollbacks to what was promoted before, newest first."""
    made: list[Commit] = []
    promoted: list[int] = []
    for number in range(draw(st.integers(1, 25))):
        what = draw(st.sampled_from(["nothing", "promotion", "rollback"]))
        if what == "promotion":
            promoted.append(number + 1)
            made.append(commit(number, number + 1))
        elif what == "rollback" and promoted:
            made.append(commit(number, -draw(st.sampled_from(promoted))))
        else:
            made.append(commit(number, 0))
    return made[::-1]


@given(commits=ledgers(), since=st.integers(0, 30), newest=st.integers(1, 5))
def test_what_served_lately_and_what_a_rollback_brings_back_is_kept(
    commits: list[Commit], since: int, newest: int
) -> None:
    releases = [one for one in commits if one.serves]
    kept = needed(commits, releases, since=since, newest=newest)
    assert {one.id for one in kept} >= {one.id for one in commits if one.time >= since}
    assert {one.id for one in kept} >= {one.id for one in commits[:newest]}
    promotions = {one.serves for one in kept if not one.rollback}
    if releases:
        assert releases[0].serves in promotions
        promotions_ever = [one.serves for one in releases if not one.rollback]
        assert {one.serves for one in releases if one.time >= since} <= promotions <= {None, *promotions_ever}
    with suppress(ReleaseError):  # where there is none to go back to
        assert steps_back(releases, 1) in promotions


def put(content: str) -> str:
    """An object in DVC's cache; returns its digest."""
    digest = hashlib.md5(content.encode()).hexdigest()
    path = Home.here().folder / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return digest


def put_folder(*contents: str) -> str:
    """A folder in DVC's cache, with a file of each content; returns its digest."""
    listing = json.dumps([{"md5": put(text), "relpath": f"{number}"} for number, text in enumerate(contents)])
    digest = hashlib.md5(listing.encode()).hexdigest()
    path = Home.here().folder / ".dvc/cache/files/md5" / digest[:2] / f"{digest[2:]}.dir"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(listing)
    return f"{digest}.dir"


def cached() -> set[str]:
    objects = (Home.here().folder / ".dvc/cache/files/md5").glob("??/*")
    return {path.read_text() for path in objects if path.suffix != ".dir"}


def close(days_ago: int, monkeypatch: pytest.MonkeyPatch, *, version: int = 0, data: str = "") -> None:
    """Closes a night of `days_ago` that promoted `version`, if given, and keeps a file in its folder."""
    then = datetime.now(UTC) - timedelta(days=days_ago)
    name, tip = f"{then:%Y-%m-%d}", branch.ledger_tip(Home.here())
    serving = ledger.champion_at(Home.here(), tip) if tip else None
    night = minimal_night(
        then, id=name, trigger="schedule", code_commit=checkout.git("rev-parse", "HEAD"), previous=tip
    )
    digest = put_folder("always", data or f"data of {name}")
    Path("dvc.lock").write_text(f"stages: {{ingest: {{outs: [{{path: data/raw, md5: {digest}}}]}}}}\n")
    records.write(night, records.RUN)
    if version:
        register(version, name)
    release = Release(version=version, replaced=serving.version if serving else 0, night=name)
    for variable in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
        monkeypatch.setenv(variable, f"{then:%Y-%m-%dT%H:%M:%S+0000}")
    ledger.commit_night(Home.here(), night, message=name, release=release if version else None)


def register(number: int, night: str) -> None:
    """Makes a version of a night in MLflow, and its record."""
    with session(Home.here()) as client:
        run = find_or_make_run(Home.here(), client, night)
        client.log_text(run, f"weights {number}", "model/model.safetensors")
        client.create_model_version(NAME, f"{client.get_run(run).info.artifact_uri}/model")
    version = Version(
        name=NAME, number=number, night=night, data_digest="", model_digest="", run_id=run, files_digest=""
    )
    records.write(version, records.RUN)


def models(home: Path) -> set[str]:
    return {path.read_text() for path in (home / "var" / "artifacts").rglob("model.safetensors")}


@pytest.fixture
def home(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of six nights with a promotion each, 200 to 0 days ago."""
    with session(Home.here()) as client:
        client.create_registered_model(NAME)
    for version, days_ago in enumerate((200, 150, 120, 40, 30, 0), 1):
        close(days_ago, monkeypatch, version=version)
    return repository


def sections(**night: float) -> tuple[NightParams, RegisterParams, ServingParams]:
    loaded = params.load(Path())
    return loaded.night.model_copy(update={"keep": 1, **night}), loaded.register_, loaded.serving


@pytest.mark.slow
def test_old_data_and_old_models_are_deleted_and_the_rest_is_kept(home: Path) -> None:
    refit = ("night", "model_digest", "recipe", "refit_of", "status", "ledger", "erased", "vertex_model")
    with session(Home.here()) as client:
        aliases.tag(client, NAME, 1, **dict.fromkeys((*refit, "code_commit", "verdict"), "x"))
    before = cached()
    planned = list(prune(Home.here(), *sections(keep_days=35), dry_run=True))
    assert cached() == before
    freed = list(prune(Home.here(), *sections(keep_days=35)))
    assert freed == planned
    assert [one.num for one in freed[1:]] == [6, 0, 3]  # a file and a folder of each of three nights
    old = {
        f"data of {datetime.now(UTC).date() - timedelta(days=days)}" for days in (200, 150, 120)
    }  # 40 served since
    assert before - cached() == old  # that of 40 days ago served since
    assert models(home) == {"weights 4", "weights 5", "weights 6"}
    with session(Home.here()) as client:
        tags = {int(one.version): aliases.PRUNED in one.tags for one in aliases.versions(client, NAME)}
        assert tags == {1: True, 2: True, 3: True, 4: False, 5: False, 6: False}
        assert aliases.existing(client, NAME, 1).tags.keys() == {*refit, "pruned"} - {"recipe"}  # eight
        with pytest.raises(ReleaseError, match=r"version 2 of .* was deleted on .*choose another version"):
            aliases.expect(client, NAME, Release(version=2, replaced=6, night="x"))
    assert [one.num for one in prune(Home.here(), *sections(keep_days=35))] == [0, 0, 0, 0]


@pytest.mark.slow
def test_tags_that_a_killed_prune_has_left_go_with_the_next_one(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(Home.here()) as client:
        aliases.tag(client, NAME, 1, recipe="x", verdict="x")
        delete = type(client).delete_model_version_tag
    calls: list[str] = []

    def killed(self: object, name: str, version: str, key: str) -> None:
        calls.append(key)
        if len(calls) == 2:
            raise KeyboardInterrupt
        delete(self, name, version, key)

    monkeypatch.setattr(type(client), "delete_model_version_tag", killed)
    with pytest.raises(KeyboardInterrupt):
        list(prune(Home.here(), *sections(keep_days=35)))
    list(prune(Home.here(), *sections(keep_days=35)))
    with session(Home.here()) as client:
        assert aliases.existing(client, NAME, 1).tags.keys() == {"pruned"}


def predicted(days_ago: int, to: str) -> None:
    """Notes that the night of `days_ago` has written predictions to a place."""
    then = datetime.now(UTC) - timedelta(days=days_ago)
    facts = {"of": "rows", "num_rows": 1, "digest": "d", "elapsed_s": 1, "written_at": then}
    made = Predictions(night=f"{then:%Y-%m-%d}", day=then.date(), version=1, to=to, **facts)
    ledger_notes.add(Home.here(), "predictions", versions=(), predictions=made)


def written(folder: Path, *more: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("part-00000.parquet", "_SUCCESS", *more):
        (folder / name).write_text("text")
    return folder


@pytest.mark.slow
def test_predictions_below_var_go_with_the_data_of_their_night_and_those_of_a_team_stay(
    home: Path, tmp_path: Path
) -> None:
    old, recent = written(home / "var/lists/2025/01/31"), written(home / "var/lists/2025/08/31")
    shared, team = home / "var/newest.csv", written(tmp_path / "team")
    shared.write_text("text")
    for days_ago, to in ((200, "var/lists/2025/01/31"), (150, "var/newest.csv"), (120, str(team))):
        predicted(days_ago, to)
    for days_ago, to in ((30, str(recent)), (0, "var/newest.csv")):
        predicted(days_ago, to)

    def freed(**given: bool) -> tuple[int, int]:
        kinds = {one.what: one for one in prune(Home.here(), *sections(keep_days=35), **given)}
        return kinds["predictions of nights"].num, kinds["predictions of nights"].num_bytes

    assert freed(dry_run=True) == (1, 8)
    assert old.exists()
    assert freed() == (1, 8)
    assert sorted(path.name for path in (home / "var/lists/2025").iterdir()) == ["08"]
    assert all(len(list(folder.iterdir())) == 2 for folder in (recent, team))
    assert shared.exists()
    predicted(120, "var/lists/mixed")
    mixed = written(home / "var/lists/mixed", "notes.txt")
    assert freed() == (1, 8)
    assert [path.name for path in mixed.iterdir()] == ["notes.txt"]
    assert freed() == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["$LISTS/2025-01-31", "file://{home}/var/lists/2025-01-31"])
def test_predictions_below_var_go_however_their_place_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    monkeypatch.setenv("LISTS", str(home / "var/lists"))
    old = written(home / "var/lists/2025-01-31")
    predicted(200, to.format(home=home))
    freed = {one.what: one.num for one in prune(Home.here(), *sections(keep_days=35))}
    assert freed["predictions of nights"] == 1
    assert not old.exists()


@pytest.mark.slow
def test_a_log_of_serving_that_does_not_answer_is_told_of_and_the_rest_goes(home: Path) -> None:
    nights, register_, serving = sections(keep_days=35)
    away = serving.model_copy(update={"log": f"sqlite:///{home / 'var'}"})  # a folder
    freed = list(prune(Home.here(), nights, register_, away))
    (told,) = (one for one in freed if one.what == "exposures of the log of serving")
    assert told.num == 0
    assert told.left[0].startswith("the log of serving is not pruned: ")


@pytest.mark.slow
def test_a_version_in_a_place_that_nobody_named_is_told_of_and_the_rest_goes(home: Path) -> None:
    with closing(sqlite3.connect(home / "var" / "mlflow.db")) as database, database:
        update = (
            "UPDATE model_versions SET source = 's3://old/model', storage_location = '' WHERE version = 1"
        )
        database.execute(update)
    freed = list(prune(Home.here(), *sections(keep_days=35)))
    assert [one.num for one in freed[1:]] == [6, 0, 2]
    (left,) = freed[-1].left
    assert left.startswith("the model of version 1 is not pruned: MLflow names s3://old/model as a place")
    assert models(home) == {"weights 1", "weights 4", "weights 5", "weights 6"}


@pytest.mark.slow
def test_what_dvc_notes_of_each_stage_goes_with_the_nights_that_it_is_of(home: Path) -> None:
    notes = [home / ".dvc/cache/runs" / name for name in ("ab/abcd/1", "ab/abcd/2", "ef/ef01/3")]
    for path, days_ago in zip(notes, (30, 40, 200), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("cmd: daybreak plan\n")
        at = time.time() - days_ago * 86_400
        os.utime(path, (at, at))
    planned = list(prune(Home.here(), *sections(keep_days=35), dry_run=True))
    assert [path.exists() for path in notes] == [True, True, True]
    assert list(prune(Home.here(), *sections(keep_days=35))) == planned
    assert [path.exists() for path in notes] == [True, False, False]
    assert not notes[2].parent.exists()


@pytest.mark.slow
def test_data_of_a_worktree_stays_and_an_open_night_stops_it(home: Path) -> None:
    now = datetime.now(UTC)
    folder = home / "nights" / "open"
    (folder / records.RUN).mkdir(parents=True)
    night = minimal_night(
        now,
        id="open",
        decide_until=now + timedelta(hours=1),
        code_commit="0",
        previous=branch.newest_entry(Home.here()),
    )
    (folder / records.path_of(Night, records.RUN)).write_text(records.dumps(night))
    before = cached()
    checkout.git("config", "gc.autoPackLimit", "2")
    assert len(list(home.glob(".git/objects/pack/*.pack"))) > 2
    with pytest.raises(NothingToDo, match="while night open is open"):
        list(prune(Home.here(), *sections(keep_days=35)))
    assert cached() == before
    assert len(list(home.glob(".git/objects/pack/*.pack"))) == 1  # packs of the ledger do not pile up
    over = records.dumps(night).replace(f"{night.decide_until:%Y-%m-%dT%H}", "2020-01-01T00")
    (folder / records.path_of(Night, records.RUN)).write_text(over)
    digest = put_folder(f"data of {datetime.now(UTC).date() - timedelta(days=200)}")
    (folder / "dvc.lock").write_text(f"stages: {{open: {{outs: [{{path: data, md5: {digest}}}]}}}}\n")
    list(prune(Home.here(), *sections(keep_days=35)))
    gone = {f"data of {datetime.now(UTC).date() - timedelta(days=days)}" for days in (150, 120)}
    assert before - cached() == gone


@pytest.mark.slow
def test_what_users_of_a_teams_own_servers_met_goes_after_its_days(home: Path) -> None:
    with closing(open_log(f"sqlite:///{home / 'var' / 'serving.db'}")) as log:
        now = datetime.fromtimestamp(log.now(), UTC)
        times = [now - timedelta(days=days) for days in (91, 89)]
        own_serving.take_in(log, [{"user": "a", "version": 1, "time": at} for at in times], now=now)
        planned = list(prune(Home.here(), *sections(keep_days=35), dry_run=True))
        assert len(list(log.exposures.of(None))) == 2
        assert list(prune(Home.here(), *sections(keep_days=35))) == planned
        assert [one.num for one in planned if one.what == "exposures of the log of serving"] == [1]
        assert [now.timestamp() - one.time < 90 * 86_400 for one in log.exposures.of(None)] == [True]


@pytest.mark.slow
def test_what_a_team_added_by_itself_stays(home: Path) -> None:
    own, folder = put("a file of the team's"), put_folder("one of a folder")
    for name, digest in (("file", own), ("folder", folder)):
        (home / f"{name}.dvc").write_text(f"outs:\n- md5: {digest}\n  hash: md5\n  path: {name}\n")
    assert [one.num for one in prune(Home.here(), *sections(keep_days=35))][1] == 6  # those of old nights
    assert {"a file of the team's", "one of a folder"} <= cached()


@pytest.mark.slow
def test_nothing_is_deleted_where_a_list_of_files_is_lost(home: Path) -> None:
    newest = f"data of {datetime.now(UTC).date()}"
    before = cached()
    listings = (Home.here().folder / ".dvc/cache/files/md5").glob("??/*.dir")
    (listing,) = (path for path in listings if hashlib.md5(newest.encode()).hexdigest() in path.read_text())
    listing.write_text("torn")
    assert [one.num for one in prune(Home.here(), *sections(keep_days=35))][1] == 0
    assert cached() == before


@pytest.mark.slow
def test_what_a_killed_open_or_prune_left_of_a_folder_is_removed(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(Home.here()) as client:
        client.create_registered_model(NAME)
    for days_ago in (3, 2):
        close(days_ago, monkeypatch)
    closed, half = f"{datetime.now(UTC).date() - timedelta(days=3)}", "half"
    for name in (closed, half):
        checkout.git("worktree", "add", "--detach", str(repository / "nights" / name), "HEAD")
    (
        repository / "nights" / closed / ".git"
    ).unlink()  # as `git worktree remove` leaves it where it is killed
    list(prune(Home.here(), *sections(keep_days=35)))
    assert not list((repository / "nights").iterdir())
    assert len(checkout.git("worktree", "list").splitlines()) == 1
