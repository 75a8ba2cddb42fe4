"""Whoever keeps the files of versions sends no more than the ledger has of them, and nothing elsewhere."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec.registry  # noqa: F401 which keeps what was imported
import pytest
import requests

from daybreak.contract.errors import JobError, PipelineError, ReleaseError
from daybreak.storage import artifact_files
from tests import s3_storage
from tests.loopback import Quiet, served

PLACE = "mlflow-artifacts:/4/run/artifacts/model"
FILE = "sqlite:////no/such/home/var/mlflow.db"
HUGE = 400 << 20  # bytes


class Keeper(Quiet):
    """Answers as MLflow that keeps artifacts, and remembers what it was asked."""

    asked: list[str]
    status = 200
    to = packed = ""
    length = HUGE
    num_sent = 0

    def do_GET(self) -> None:
        """Sends far more than was registered, or redirects."""
        type(self).asked.append(self.path)
        self.send_response(self.status)
        if self.to:
            self.send_header("Location", self.to)
        if self.packed:
            self.send_header("Content-Encoding", self.packed)
        self.send_header("Content-Length", str(HUGE))
        self.end_headers()
        while type(self).num_sent < self.length:
            try:
                self.wfile.write(b"x" * (1 << 20))
            except OSError:
                return
            type(self).num_sent += 1 << 20


@pytest.fixture
def keeper() -> type[Keeper]:
    return type("OneKeeper", (Keeper,), {"asked": []})


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have MLflow's client ask once."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


def test_a_server_sends_no_more_than_the_ledger_has_and_is_asked_for_its_names_alone(
    keeper: type[Keeper], tmp_path: Path
) -> None:
    with (
        served(keeper) as address,
        pytest.raises(ReleaseError, match=r"a b.bin of mlflow-artifacts:.* has more than the 3,000,000 byte"),
    ):
        artifact_files.fetch(
            PLACE, {"a b.bin": 3_000_000, "c": 1}, into=tmp_path, server=f"http://{address}/team"
        )
    assert keeper.asked == ["/team/api/2.0/mlflow-artifacts/artifacts/4/run/artifacts/model/a%20b.bin"]
    assert keeper.num_sent < HUGE // 4
    assert (tmp_path / "a b.bin").stat().st_size <= 3_000_000


def test_a_server_that_redirects_has_nobody_asked_there(keeper: type[Keeper], tmp_path: Path) -> None:
    elsewhere = type("Elsewhere", (Keeper,), {"asked": []})
    with served(elsewhere) as other, served(keeper) as address:
        keeper.status, keeper.to = 302, f"http://{other}/"
        with pytest.raises(ReleaseError, match=rf"answers 302 Found .*leads to http://{other}/.*; put that"):
            artifact_files.fetch(PLACE, {"MLmodel": 9}, into=tmp_path, server=f"http://{address}")
    assert elsewhere.asked == []


@pytest.mark.parametrize(("status", "is_erased"), [(404, False), (404, True), (500, True)])
def test_a_file_that_a_server_does_not_have_is_left_out(
    keeper: type[Keeper], tmp_path: Path, status: int, is_erased: bool
) -> None:
    keeper.status = status
    with served(keeper) as address:
        server = f"http://{address}"
        artifact_files.fetch(PLACE, {"MLmodel": 9}, into=tmp_path, server=server, is_erased=is_erased)
    assert len(keeper.asked) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("status", "error"), [(429, JobError), (500, JobError), (503, JobError), (403, ReleaseError)]
)
def test_a_server_that_fails_is_told_of_in_a_sentence_and_may_be_asked_again(
    keeper: type[Keeper], tmp_path: Path, status: int, error: type[PipelineError]
) -> None:
    keeper.status = status
    with (
        served(keeper) as address,
        pytest.raises(error, match=rf"answers {status} .* when asked for MLmodel of mlflow-art.*; look at"),
    ):
        artifact_files.fetch(PLACE, {"MLmodel": 9}, into=tmp_path, server=f"http://{address}")


def test_an_answer_that_is_cut_off_says_nothing_of_the_file(keeper: type[Keeper], tmp_path: Path) -> None:
    keeper.length = 1 << 20
    with served(keeper) as address, pytest.raises(JobError, match=r"cannot be reached: .*; run this again"):
        artifact_files.fetch(PLACE, {"MLmodel": HUGE}, into=tmp_path, server=f"http://{address}")


def test_an_answer_that_a_proxy_packed_is_not_taken_for_the_file(
    keeper: type[Keeper], tmp_path: Path
) -> None:
    keeper.packed, keeper.length = "gzip", 1 << 20
    with served(keeper) as address, pytest.raises(ReleaseError, match=r"packed as gzip, .*; turn that off"):
        artifact_files.fetch(PLACE, {"MLmodel": 9}, into=tmp_path, server=f"http://{address}")


def test_a_file_in_a_folder_may_neither_be_larger_nor_a_link_and_others_are_left(tmp_path: Path) -> None:
    (store := tmp_path / "store").mkdir()
    (store / "MLmodel").write_text("flavors")
    (store / "unknown").write_text("of nobody")
    into = tmp_path / "into"
    artifact_files.fetch(str(store), {"MLmodel": 7, "gone": 1}, into=into, server=FILE)
    assert [path.name for path in into.iterdir()] == ["MLmodel"]
    with pytest.raises(ReleaseError, match="has more than the 6 bytes that the ledger says"):
        artifact_files.fetch(str(store), {"MLmodel": 6}, into=into, server=FILE)
    (store / "linked").symlink_to(tmp_path)
    with pytest.raises(ReleaseError, match=r"linked/secret is a link; restore"):
        artifact_files.fetch(str(store), {"linked/secret": 6}, into=into, server=FILE)


@pytest.mark.slow
def test_a_bucket_is_asked_for_the_names_in_the_ledger(tmp_path: Path) -> None:
    with s3_storage.served() as store, s3_storage.emulated(store):
        import s3fs

        bucket = s3fs.S3FileSystem(endpoint_url=store.url)
        bucket.pipe_file("bucket/mlflow/4/model/MLmodel", b"flavors")
        bucket.pipe_file("bucket/mlflow/4/model/code/code.zip", b"PK" * 1000)
        place = "s3://bucket/mlflow/4/model"
        artifact_files.fetch(place, {"MLmodel": 7, "gone": 1}, into=tmp_path / "into", server=FILE)
        assert [path.name for path in (tmp_path / "into").iterdir()] == ["MLmodel"]
        with pytest.raises(ReleaseError, match=r"code/code.zip of s3:.* has more than the 1,999 bytes that"):
            artifact_files.fetch(place, {"code/code.zip": 1999}, into=tmp_path / "into", server=FILE)


def _without_s3(patch: pytest.MonkeyPatch) -> None:
    known = sys.modules["fsspec.registry"]._registry  # type: ignore[attr-defined]
    patch.delitem(known, "s3", raising=False)
    patch.setitem(sys.modules, "s3fs", None)


def _without_service(patch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "MLFLOW_S3_ENDPOINT_URL"):
        patch.setenv(name, "http://127.0.0.1:9")
    patch.setenv("AWS_ACCESS_KEY_ID", "a")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    patch.setenv("AWS_MAX_ATTEMPTS", "1")


UNREACHABLE: list[tuple[str, Callable[[Any], None], str]] = [
    ("s3://bucket/of-nobody", _without_s3, r"cannot be reached from here: s3fs is not installed; pip inst"),
    ("s3://bucket/of-somebody", _without_service, r"cannot be reached: .*; run this again once"),
    (
        "dbfs-of-others://x/y",
        lambda _: None,
        r"cannot be reached: ValueError: Protocol not known: dbfs-o",
    ),
]


@pytest.mark.parametrize(("place", "prepare", "said"), UNREACHABLE)
def test_an_error_of_a_store_is_one_sentence(
    place: str,
    prepare: Callable[[Any], None],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare(monkeypatch)
    with pytest.raises(PipelineError, match=said) as refused:
        artifact_files.fetch(place, {"MLmodel": 7}, into=tmp_path, server=FILE)
    assert "\n" not in str(refused.value)


def test_a_store_that_takes_nothing_is_not_told_to_be_restored() -> None:
    answer = requests.Response()
    answer.status_code = 413
    with (
        pytest.raises(ReleaseError, match=r"cannot be changed: .*413.*; mend that, then run this again"),
        artifact_files.told_in_a_sentence(PLACE, writes=True),
    ):
        raise requests.HTTPError("413 Client Error: too large", response=answer)


def test_an_account_that_is_refused_is_left_to_the_session() -> None:
    with (
        pytest.raises(requests.HTTPError, match="401"),
        artifact_files.told_in_a_sentence(PLACE, writes=True),
    ):
        raise requests.HTTPError("401 Client Error: UNAUTHORIZED for url: x")


def test_a_bucket_is_read_by_what_mlflow_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert artifact_files._as_mlflow() == {}
    monkeypatch.setenv("MLFLOW_S3_IGNORE_TLS", "true")
    monkeypatch.setenv("MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE", "path")
    assert artifact_files._as_mlflow() == {
        "client_kwargs": {"verify": False},
        "config_kwargs": {"s3": {"addressing_style": "path"}},
    }
