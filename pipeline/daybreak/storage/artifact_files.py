"""Fetches the files of a version that the ledger names, and nothing else that a store has.

What a store lists is its own word, and may be a million files, or one that fills the disk. So nothing is
listed: each file is asked for by the name that the ledger has, read as it comes, and no further than the size
that it had when it was registered. Where a server redirects to, nothing is asked.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote, urlsplit

from daybreak.contract import disk, extras
from daybreak.contract.errors import (
    JobError,
    PipelineError,
    ReleaseError,
    is_unreachable,
    sentence,
    without_password,
)
from daybreak.storage import bucket, mlflow_client
from daybreak.storage.locations import OF_HTTP, SCHEME, SQLITE, beside, folder_of
from daybreak.storage.transfer_line import transfer_line

CHUNK = 1 << 20  # bytes
RESTORE = "; restore MLflow's artifacts"  # ends what is said of files that are not to be had
REWRITTEN = 1 << 16  # bytes that a small file may have more after an erasure
# Statuses and errors of clients that say nothing of the files: asked again, the store may give them.
PASSING = (408, 429)  # and all from 500 on
OF_CONNECTIONS = {
    "ChunkedEncodingError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "HTTPClientError",
    "IncompleteRead",
    "MaxRetryError",
    "ProtocolError",
    "Timeout",
    "TimeoutError",
}


class _Stream(Protocol):
    def read(self, length: int, /) -> bytes:
        """Returns the next bytes, at most so many."""


def sizes(folder: Path) -> dict[str, int]:
    """Returns the files of a folder by their names, with their sizes in bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def fetch(
    location: str, files: Mapping[str, int], *, into: Path, server: str, is_erased: bool = False
) -> None:
    """Fetches those of the files that are there.

    Raises ReleaseError where a file is larger than it may be, or a link, or where the store gives none, and
    JobError where the store fails.

    Args:
        location: of a version, which has been looked at (`storage/locations.py`).
        files: names, with the most bytes that each may have.
        into: folder.
        server: URI of the tracking store.
        is_erased: rows were erased from the version, so that files were written anew, or are gone.
    """
    if is_erased:  # fewer rows may take more bytes
        files = {name: 2 * num_bytes + REWRITTEN for name, num_bytes in files.items()}
    with (
        told_in_a_sentence(location),
        transfer_line("fetch a version's files", num_bytes=sum(files.values())) as arrived,
    ):
        for name, most in files.items():
            named = f"{name} of {without_password(location)}"
            try:
                with _opened(location, name, server=server, is_erased=is_erased) as stream:
                    _copy(stream, into / name, most=most, what=named, arrived=arrived)
            except FileNotFoundError:  # the digest of all files says so, unless it is known to be gone
                continue


def _copy(stream: _Stream, to: Path, *, most: int, what: str, arrived: Callable[[int], object]) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    left = most
    with to.open("wb") as file:
        while chunk := stream.read(min(CHUNK, left + 1)):
            if len(chunk) > left:
                raise ReleaseError(
                    f"{what} has more than the {most:,} bytes that the ledger says; "
                    f"restore MLflow's artifacts"
                )
            file.write(chunk)
            arrived(len(chunk))
            left -= len(chunk)


@contextmanager
def _opened(location: str, name: str, *, server: str, is_erased: bool) -> Iterator[_Stream]:
    """Yields a stream of the bytes of a file; raises FileNotFoundError where there is none."""
    is_served = urlsplit(location).scheme in (SCHEME, *OF_HTTP)
    folder = beside(server, location) if is_served and server.startswith(SQLITE) else folder_of(location)
    if folder is not None:
        with _opened_here(folder, name) as file:
            yield file
    elif is_served:
        with _opened_at_server(location, name, server=server, is_erased=is_erased) as stream:
            yield stream
    else:
        with _opened_in_bucket(f"{location.rstrip('/')}/{name}") as stream:
            yield stream


def _opened_here(folder: Path, name: str) -> BinaryIO:
    path = folder / name
    if path.resolve() != folder.resolve() / name:
        raise ReleaseError(f"{path} is a link; restore MLflow's artifacts")
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.open("rb")


@contextmanager
def _opened_at_server(location: str, name: str, *, server: str, is_erased: bool) -> Iterator[_Stream]:
    from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository
    from mlflow.utils import credentials, rest_utils

    url = location
    if urlsplit(location).scheme == SCHEME:
        url = MlflowArtifactsRepository.resolve_uri(location, server)  # type: ignore[no-untyped-call]
    account = credentials.get_default_host_creds(url)  # type: ignore[no-untyped-call]
    with rest_utils.http_request(  # type: ignore[no-untyped-call]
        account,
        f"/{quote(name)}",
        "GET",
        extra_headers={"Accept-Encoding": "identity"},
        raise_on_status=False,
        stream=True,
        allow_redirects=False,
    ) as answer:
        # Of a bucket's file that is missing, MLflow says 500, as of all that is wrong with the bucket.
        if answer.status_code == 404 or (is_erased and answer.status_code == 500):
            raise FileNotFoundError(name)
        asked, file = f"MLflow at {without_password(server)}", f"{name} of {without_password(location)}"
        said = f"{asked} answers {answer.status_code} {answer.reason} when asked for {file}"
        if _is_passing(answer.status_code):
            raise JobError(f"{said}; look at its log, and whether the file is there, then run this again")
        if answer.is_redirect:
            to = without_password(answer.headers["Location"])[:200]
            raise ReleaseError(
                f"{said}, and leads to {to}, where nothing is asked; put that host into "
                f"register.tracking_uri, if it is yours"
            )
        if answer.status_code != 200:
            raise ReleaseError(f"{said}; look at its log, and whether this account may read there")
        if (packed := answer.headers.get("Content-Encoding", "identity")) != "identity":
            raise ReleaseError(
                f"{asked} sends {file} packed as {packed}, which was not asked for; turn that off for "
                f"/api/2.0/mlflow-artifacts/ in the proxy before it"
            )
        yield answer.raw


@contextmanager
def _opened_in_bucket(url: str) -> Iterator[_Stream]:
    import fsspec

    options = bucket.options(url)
    if url.startswith("s3:"):
        options |= _as_mlflow()
    files, path = fsspec.core.url_to_fs(url, **options)
    files.invalidate_cache()
    with files.open(path, "rb") as stream:
        yield stream


def _as_mlflow() -> dict[str, Any]:
    """Returns the options of s3fs for what MLflow's client of S3 is told by its environment."""
    options: dict[str, Any] = {}
    if endpoint := os.environ.get("MLFLOW_S3_ENDPOINT_URL"):
        options["endpoint_url"] = endpoint
    if os.environ.get("MLFLOW_S3_IGNORE_TLS", "").lower() in ("true", "1"):
        options["client_kwargs"] = {"verify": False}
    if style := os.environ.get("MLFLOW_BOTO_CLIENT_ADDRESSING_STYLE"):
        options["config_kwargs"] = {"s3": {"addressing_style": style}}
    return options


@contextmanager
def told_in_a_sentence(location: str, *, writes: bool = False) -> Iterator[None]:
    """Turns an error of the store at a location into a ReleaseError of one sentence; JobError if it may pass.

    Raised unchanged is what is of a disk of this machine, and what the session of MLflow tells of: that its
    server does not answer, or refuses the account.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if disk.fault(error) or mlflow_client.is_of_server(error):
            raise
        where = without_password(location)
        if lacks := extras.missing(error):
            raise ReleaseError(f"{where} cannot be reached from here: {lacks}") from None
        message = " ".join(sentence(error).split())[:200]
        if _is_of_connection(error):
            raise JobError(f"{where} cannot be reached: {message}; run this again once it answers") from None
        if writes:
            raise ReleaseError(
                f"{where} cannot be changed: {message}; mend that, then run this again"
            ) from None
        raise ReleaseError(f"{where} cannot be reached: {message}{RESTORE}") from None


def _is_passing(status: object) -> bool:
    return isinstance(status, int) and (status in PASSING or status >= 500)


def _is_of_connection(error: Exception) -> bool:
    """Returns whether a store did not answer, or not in full; clients of buckets have errors of their own."""
    names = {one.__name__ for one in type(error).__mro__}
    statuses = [getattr(error, "code", None)]
    for one in (error, error.__cause__):  # s3fs raises errors of the system from those of botocore
        answer = getattr(one, "response", None)
        said = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
        statuses += [getattr(answer, "status_code", None), said.get("HTTPStatusCode")]
    return is_unreachable(error) or any(map(_is_passing, statuses)) or bool(names & OF_CONNECTIONS)
