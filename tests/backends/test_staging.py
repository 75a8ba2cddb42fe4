"""Staging brings a job's inputs to an empty machine, and its outputs home, whole or not at all."""

import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import fsspec
import pytest

from daybreak.backends import staging
from daybreak.backends.staging import CODE, pack, pull_results, pull_updates, push_updates, unpack
from daybreak.backends.sync import BucketSync
from daybreak.contract import records
from daybreak.contract.errors import DataError, ParamsError
from daybreak.storage.bucket import BucketFolder, _written_at
from daybreak.training import worker_errors
from daybreak.training.recipe import Result, WarmStart
from tests import cloud_storage, s3_storage
from tests.fakes import read_lines
from tests.training.recipes import NEVER, recipe


@pytest.fixture(scope="module")
def storage() -> Iterator[str]:
    """Cloud Storage on loopback, with a bucket."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    yield f"http://127.0.0.1:{server._api._httpd.server_port}"
    server.stop()


SERVED = {"gs": cloud_storage, "s3": s3_storage}


@pytest.fixture(params=["memory", "path", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVED)])
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BucketFolder]:
    if service := SERVED.get(request.param):
        with service.served() as store, service.emulated(store):
            yield BucketFolder(url=f"{request.param}://bucket/{tmp_path.name}")
        return
    yield BucketFolder(url="memory://bucket/daybreak" if request.param == "memory" else f"{tmp_path}/bucket")
    fsspec.filesystem("memory").store.clear()


@pytest.mark.slow
@pytest.mark.parametrize("honours", [True, False, None])
def test_a_store_that_lets_two_create_a_file_takes_no_copies_of_checkpoints(honours: bool | None) -> None:
    def tried(*, exclusive: bool) -> str:
        return staging.writable("s3://bucket/copies", key="train.checkpoints", exclusive=exclusive)

    with s3_storage.served(honours=honours) as store, s3_storage.emulated(store):
        writable = "s3://bucket/copies is writable"
        if honours:
            assert tried(exclusive=True) == tried(exclusive=False) == writable
        else:
            lacks = "; it writes over what is there, so that no bag runs there"
            assert tried(exclusive=False) == writable + lacks
            with pytest.raises(ParamsError, match=r"train.checkpoints s3://bucket/copies writes over what"):
                tried(exclusive=True)
        assert not BucketFolder(url="s3://bucket/copies").files.find("bucket/copies")


def test_of_several_who_create_a_file_the_first_makes_it(depot: BucketFolder) -> None:
    assert depot.create("", "once")
    assert not depot.create("", "once")
    assert depot.create("first", "events", "1")
    assert not depot.create("second", "events", "1")
    assert depot.text("events", "1") == "first"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job in a night that is a checkout."""
    night = tmp_path / "night"
    folder = night / "jobs" / "j"
    for name in ("data/arrays/deep", "data/champion", "jobs/j", "pipeline"):
        (night / name).mkdir(parents=True)
    (night / "data/arrays/x.npy").write_bytes(b"x" * 1000)
    (night / "data/arrays/deep/y.npy").write_bytes(b"")
    (night / "data/champion/model.safetensors").write_bytes(b"weights")
    (night / "pipeline/module.py").write_text("VALUE = 1\n")
    trained = recipe(arrays="data/arrays", warm_start=WarmStart(folder="data/champion", digest="c"))
    (folder / "job.json").write_text(records.dumps(trained))
    (folder / "attempt").write_text("first")
    subprocess.run(["git", "init", "--quiet"], cwd=night, check=True)
    subprocess.run(["git", "add", "pipeline"], cwd=night, check=True)
    return folder


def packed(depot: BucketFolder, job: Path) -> None:
    pack(depot, "j", job, night=job.parents[1])


def test_a_machine_gets_arrays_champion_code_and_job(tmp_path, depot, job):
    packed(depot, job)
    root, folder = tmp_path / "machine", tmp_path / "machine" / "j"
    unpack(depot, "j", root, folder)
    assert (root / "data/arrays/x.npy").read_bytes() == b"x" * 1000
    assert (root / "data/arrays/deep/y.npy").exists()
    assert (root / "data/champion/model.safetensors").read_bytes() == b"weights"
    assert (root / CODE / "pipeline/module.py").read_text() == "VALUE = 1\n"
    assert (folder / "job.json").read_text() == (job / "job.json").read_text()
    assert (folder / "attempt").read_text() == "first"


def test_what_a_workload_reads_beside_its_modules_travels_too_unless_git_ignores_it(tmp_path, depot, job):
    night = job.parents[1]
    (night / "team").mkdir()
    for name in ("vocabulary.txt", "config.json", "secret.env"):
        (night / "team" / name).write_text(name)
    (night / ".gitignore").write_text("*.env\n")
    packed(depot, job)
    unpack(depot, "j", tmp_path / "machine", tmp_path / "machine" / "j")
    code = tmp_path / "machine" / CODE
    assert {path.name for path in (code / "team").iterdir()} == {"vocabulary.txt", "config.json"}
    assert not (code / "data").exists()


def written(depot: BucketFolder) -> dict[str, object]:
    """When each file of what was sent was written."""
    files = depot.files.find(depot.at("things"), detail=True)
    return {path: _written_at(facts) for path, facts in files.items()}


def test_what_has_not_changed_is_sent_once(depot, job):
    packed(depot, job)
    before = written(depot)
    packed(depot, job)
    assert written(depot) == before
    assert None not in before.values()


@pytest.mark.parametrize("text", ['{"x.npy": [1000', '["x.npy"]', '{"x.npy": 1000}', "null"])
def test_a_folder_whose_list_is_torn_is_not_there(tmp_path, depot, job, text):
    packed(depot, job)
    depot.files.pipe_file(depot.at("things", "d", "whole.json"), text.encode())
    with pytest.raises(DataError, match="has no whole things/d; run train again"):
        depot.bring_thing("d", tmp_path / "brought")
    assert not (tmp_path / "brought").exists()


def test_a_folder_without_files_is_brought_as_one(tmp_path, depot):
    (tmp_path / "empty").mkdir()
    depot.send_thing(tmp_path / "empty", "e")
    for _ in range(2):
        depot.bring_thing("e", tmp_path / "brought")
        assert (tmp_path / "brought").is_dir()


@pytest.mark.parametrize("loss", ["removed", "shorter", "torn list"])
def test_what_a_lifecycle_rule_or_a_kill_took_a_part_of_is_not_believed_and_sent_again(
    tmp_path, depot, job, loss
):
    packed(depot, job)
    name = depot.at("things", "d", "whole.json" if loss == "torn list" else "x.npy")
    if loss == "removed":
        depot.files.rm_file(name)
    else:
        depot.files.pipe_file(name, b"{" if loss == "torn list" else b"x" * 999)
    packed(depot, job)
    unpack(depot, "j", tmp_path / "machine", tmp_path / "machine" / "j")
    assert (tmp_path / "machine/data/arrays/x.npy").read_bytes() == b"x" * 1000


def test_what_is_used_and_old_is_written_anew_before_a_rule_by_age_takes_it(depot, job, monkeypatch):
    packed(depot, job)
    before = written(depot)
    monkeypatch.setattr("daybreak.storage.bucket.RENEWED", timedelta(0))
    after = before
    while not all(after[path] > before[path] for path in after):  # S3 tells times in whole seconds
        packed(depot, job)
        after = written(depot)
        assert after.keys() == before.keys()
    assert not list(depot.damaged())


@pytest.mark.slow
def test_of_the_same_size_and_with_another_digest_it_is_not_believed_where_the_storage_tells_digests(
    storage, tmp_path, monkeypatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage)
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    bucket = BucketFolder(url=f"gs://bucket/{tmp_path.name}")
    (tmp_path / "x").write_bytes(b"x")
    bucket.send_thing(tmp_path, "t")
    assert bucket.keep_thing("t")
    bucket.files.pipe_file(bucket.at("things", "t", "x"), b"y")
    assert not bucket.keep_thing("t")


def test_a_sending_that_was_killed_is_done_anew(tmp_path, depot, job):
    packed(depot, job)
    depot.files.rm_file(depot.at("things", "d", "whole.json"))
    depot.files.pipe_file(depot.at("things", "d", "x.npy"), b"half")
    with pytest.raises(DataError, match="has no whole things/d; run train again"):
        unpack(depot, "j", tmp_path / "machine", tmp_path / "machine" / "j")
    packed(depot, job)
    unpack(depot, "j", tmp_path / "machine", tmp_path / "machine" / "j")
    assert (tmp_path / "machine/data/arrays/x.npy").read_bytes() == b"x" * 1000


def test_what_was_tampered_with_is_not_trained_on(tmp_path, depot, job):
    packed(depot, job)
    depot.files.pipe_file(depot.at("things", "d", "x.npy"), b"y" * 1000)
    with pytest.raises(DataError, match=r"things/d/x\.npy is not what was sent; remove that folder"):
        unpack(depot, "j", tmp_path / "machine", tmp_path / "machine" / "j")
    assert not (tmp_path / "machine/data/arrays").exists()


def left(folder: Path, *, weights: bytes = b"weights") -> Result:
    """What a worker leaves at its end."""
    (folder / "model").mkdir(exist_ok=True, parents=True)
    (folder / "model/model.safetensors").write_bytes(weights)
    result = Result(
        model_digest=records.digest(folder / "model"),
        num_samples=1,
        num_updates=1,
        stopped_by="finished",
        warm=False,
        ended_at=NEVER,
    )
    records.write(result, folder)
    return result


def test_model_and_result_come_home_together(tmp_path, depot, job):
    machine = tmp_path / "machine"
    result = left(machine)
    sync = BucketSync(depot, "j", machine, node=0)
    sync.start()
    sync.finish()
    pull_results(depot, "j", job)
    assert records.read(Result, job) == result
    assert records.digest(job / "model") == result.model_digest


def test_a_model_that_is_not_the_results_stays_away(tmp_path, depot, job):
    machine = tmp_path / "machine"
    left(machine)
    sync = BucketSync(depot, "j", machine, node=0)
    sync.start()
    sync.finish()
    depot.files.pipe_file(depot.at("jobs", "j", "up", "0", "model", "model.safetensors"), b"torn")
    pull_results(depot, "j", job)
    assert not (job / "result.json").exists()
    assert not (job / "model").exists()


@pytest.mark.parametrize("broken", ['{"half', "{}", "[]", "weights"])
def test_a_result_that_is_not_whole_hides_no_whole_one_of_another_machine(tmp_path, depot, job, broken):
    for node in (0, 1):
        machine = tmp_path / f"machine{node}"
        result = left(machine, weights=str(node).encode())
        sync = BucketSync(depot, "j", machine, node=node)
        sync.start()
        sync.finish()
    if broken == "weights":
        depot.files.pipe_file(depot.at("jobs", "j", "up", "0", "model", "model.safetensors"), b"torn")
    else:
        depot.files.pipe_file(depot.at("jobs", "j", "up", "0", "result.json"), broken.encode())
    pull_results(depot, "j", job)
    assert records.read(Result, job) == result
    assert (job / "model/model.safetensors").read_bytes() == b"1"


def test_lines_of_all_machines_come_home_once_and_those_of_home_stay(tmp_path, depot, job):
    (job / "errors.jsonl").write_text('{"error": "of home"}\n')
    for node in (0, 1):
        machine = tmp_path / f"machine{node}"
        machine.mkdir()
        (machine / "errors.jsonl").write_text(json.dumps({"error": f"of {node}"}) + '\n{"half')
        BucketSync(depot, "j", machine, node=node).send()
    for _ in range(2):
        pull_results(depot, "j", job)
    assert [line["error"] for line in read_lines(job / "errors.jsonl")] == ["of home", "of 0", "of 1"]


def test_a_new_machine_knows_what_the_one_before_left(tmp_path, depot, job):
    packed(depot, job)
    for number in (1, 2):
        machine = tmp_path / f"machine{number}"
        folder = machine / "j"
        unpack(depot, "j", machine, folder)
        with (folder / "starts.jsonl").open("a") as file:
            file.write(json.dumps({"time": number}) + "\n")
        BucketSync(depot, "j", folder, node=0).send()
    pull_results(depot, "j", job)
    assert [line["time"] for line in read_lines(job / "starts.jsonl")] == [1, 2]


def test_that_a_job_began_is_sent_within_a_second_and_what_follows_less_and_less_often(
    tmp_path, depot, monkeypatch
):
    (tmp_path / "starts.jsonl").write_text("{}\n")  # of the machine before
    sync, waits = BucketSync(depot, "j", tmp_path, node=0), []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 4:
            (tmp_path / "starts.jsonl").write_text("{}\n{}\n")
        return len(waits) == 9

    monkeypatch.setattr(sync._over, "wait", wait)
    sync._run()
    assert waits == [1, 1, 1, 1, 2, 4, 8, 10, 10]


def test_the_machine_hears_of_a_newer_attempt(tmp_path, depot, job):
    packed(depot, job)
    machine = tmp_path / "machine"
    machine.mkdir()
    (job / "attempt").write_text("second")
    push_updates(depot, "j", job)
    pull_updates(depot, "j", machine)
    assert (machine / "attempt").read_text() == "second"


def test_a_profile_comes_home(tmp_path, depot, job):
    machine = tmp_path / "machine"
    machine.mkdir()
    (machine / "profile.json").write_text("{}\n")
    sync = BucketSync(depot, "j", machine, node=0)
    sync.start()
    sync.finish()
    pull_results(depot, "j", job)
    assert (job / "profile.json").read_text() == "{}\n"


@pytest.mark.parametrize("file", ["end_by.json", "batch.json"])
def test_an_update_that_is_withdrawn_at_home_is_gone_on_the_machine_and_on_the_next_one(
    tmp_path, depot, job, file
):
    packed(depot, job)
    machine, another = tmp_path / "machine", tmp_path / "another"
    machine.mkdir()
    (job / file).write_text('{"time": 100}\n')
    push_updates(depot, "j", job)
    pull_updates(depot, "j", machine)
    assert (machine / file).exists()
    (job / file).unlink()
    push_updates(depot, "j", job)
    pull_updates(depot, "j", machine)
    unpack(depot, "j", another, another / "j")
    assert not (machine / file).exists()
    assert not (another / "j" / file).exists()
    assert (another / "j/job.json").exists()


def test_errors_that_were_forgotten_do_not_come_back_from_the_bucket(tmp_path, depot, job):
    packed(depot, job)

    def met(attempt: str) -> None:
        machine = tmp_path / attempt
        machine.mkdir()
        line = {"attempt": attempt, "restart": "0", "rank": 0, "error": f"of {attempt}", "final": True}
        (machine / "errors.jsonl").write_text(json.dumps(line) + "\n")
        BucketSync(depot, "j", machine, node=0).send()
        pull_results(depot, "j", job)

    met("first")
    assert worker_errors.final(job) == "of first"
    worker_errors.forget(job)
    pull_results(depot, "j", job)
    assert not worker_errors.final(job)
    push_updates(depot, "j", job)
    unpack(depot, "j", tmp_path / "another", tmp_path / "another/j")
    assert not (tmp_path / "another/j/errors.jsonl").exists()
    met("second")
    assert worker_errors.final(job) == "of second"
