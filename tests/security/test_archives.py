"""Names in buckets and archives lead nowhere but into the folder that was meant."""

import io
import json
import stat
import zipfile
from pathlib import Path

import fsspec
import pytest

from daybreak.backends.staging import pull_results, unpack
from daybreak.contract import records
from daybreak.contract.errors import DataError, ReleaseError
from daybreak.contract.record_types import Night
from daybreak.registry import carried_code
from daybreak.storage import jsonl
from daybreak.storage.bucket import BucketFolder, inside

OUT = ["../out", "deep/../../out", "/tmp/out", "..", ""]


@pytest.fixture
def bucket() -> BucketFolder:
    """A bucket in memory, whose keys may be any text, as those of a cloud."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    return BucketFolder(url="memory://bucket")


def put(bucket: BucketFolder, text: str, key: str) -> None:
    """Write a key past the client, which would tidy it up."""
    files = bucket.files
    path = bucket.at(key)
    made = type(files).open(files, bucket.at("scratch"), "wb")
    made.write(text.encode())
    made.close()
    files.store[path] = files.store.pop(bucket.at("scratch"))


@pytest.mark.parametrize("name", OUT)
def test_a_name_that_leads_out_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="leads out of"):
        inside(tmp_path, name)


def test_a_list_of_files_in_a_bucket_cannot_name_files_elsewhere(
    bucket: BucketFolder, tmp_path: Path
) -> None:
    bucket.write("{}", "things", "t", "x.npy")
    for name in ("../../.bashrc", f"{tmp_path}/absolute"):
        bucket.write(json.dumps({name: [2, "md5"]}), "things", "t", "whole.json")
        with pytest.raises(DataError, match=r"leads out of .*; see who writes to the bucket"):
            bucket.bring_thing("t", tmp_path / "home" / "arrays")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_a_job_needs_cannot_be_put_elsewhere_on_its_machine(
    bucket: BucketFolder, tmp_path: Path
) -> None:
    bucket.write("{}", "things", "t", "x.npy")
    bucket.write("{}", "things", "t", "whole.json")
    bucket.write(json.dumps({"../.ssh": "t"}), "jobs", "j", "needs.json")
    with pytest.raises(DataError, match="leads out of"):
        unpack(bucket, "j", tmp_path / "root", tmp_path / "job")
    assert not (tmp_path / ".ssh").exists()


def test_a_job_cannot_leave_files_elsewhere_at_home(bucket: BucketFolder, tmp_path: Path) -> None:
    put(bucket, json.dumps({"model_digest": "d"}), "jobs/j/up/0/result.json")
    put(bucket, "ssh-rsa AAAA", "jobs/j/up/0/model/../../../.ssh/authorized_keys")
    folder = tmp_path / "night" / "job"
    with pytest.raises(DataError, match="leads out of"):
        pull_results(bucket, "j", folder)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_brackets_without_end_in_a_record_or_a_line_are_no_crash(tmp_path: Path) -> None:
    for text in ("[" * 1_000_000, '{"a":' * 1_000_000):
        with pytest.raises(DataError, match="is not a valid Night"):
            records.loads(Night, text)
        (tmp_path / "progress.jsonl").write_text(f'{{"seen": 1}}\n{text}\n{{"seen": 2}}\n')
        assert jsonl.whole(tmp_path / "progress.jsonl") == [{"seen": 1}, {"seen": 2}]


def version(folder: Path, *entries: tuple[zipfile.ZipInfo, bytes]) -> Path:
    """Files of a version whose archive of code has these entries."""
    (folder / "code").mkdir(parents=True)
    model = folder / carried_code.MODEL
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps({"workload": "work:W", "arguments": {}}))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in entries:
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    (folder / "code" / carried_code.ARCHIVE).write_bytes(packed.getvalue())
    return folder


def refused(folder: Path) -> None:
    """No version of these files is in the ledger, so that nothing of them is unpacked."""
    with pytest.raises(ReleaseError, match=r"have digest .*, the ledger says"):
        carried_code.verify(folder, model_digest="of the ledger", files_digest="of the ledger", uri="here")


def test_a_link_in_an_archive_of_code_is_unpacked_as_a_file(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("team/secrets")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    folder = version(tmp_path / "version", (link, b"/etc/passwd"))
    carried_code.unpack(folder, tmp_path / "to")
    made = tmp_path / "to" / "team" / "secrets"
    assert made.read_bytes() == b"/etc/passwd"
    assert not made.is_symlink()
    refused(folder)


def test_an_archive_that_names_a_file_twice_is_not_the_one_that_the_ledger_has(tmp_path: Path) -> None:
    twice = [(zipfile.ZipInfo("work.py"), text) for text in (b"W = object\n", b"import os\n")]
    with pytest.warns(UserWarning, match="Duplicate name"):
        refused(version(tmp_path / "version", *twice))


def test_a_bomb_of_zeros_or_of_names_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    zeros = version(tmp_path / "zeros", (zipfile.ZipInfo("work.py"), b"\0" * (1 << 26)))
    assert (zeros / "code" / carried_code.ARCHIVE).stat().st_size < 1 << 17
    refused(zeros)
    names = version(tmp_path / "names", *((zipfile.ZipInfo(f"n{n}"), b"") for n in range(20_000)))
    refused(names)
