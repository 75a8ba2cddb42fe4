"""Fetches the files of a version that the ledger names, and nothing else that a store has.

What a store lists is its own word, and may be a million files, or one that fills the disk. So nothing is
listed: each file is asked for by the name that the ledger has, read as it comes, and no further than the size
that it had when it was registered. Where a server redirects to, nothing is asked.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, urlsplit

from daybreak.contract import disk, extras
from daybreak.contract.errors import PipelineError, ReleaseError, sentence, without_password
from daybreak.storage import bucket, mlflow_client
from daybreak.storage.locations import OF_HTTP, SCHEME, SQLITE, beside, folder_of

if TYPE_CHECKING:
    from _typeshed import SupportsRead

CHUNK = 1 << 20  # bytes
REWRITTEN = 1 << 16  # bytes that a small file may have more after an erasure


def sizes(folder: Path) -> dict[str, int]:
    """Returns the files of a folder by their names, with their sizes in bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def fetch(
    location: str, files: Mapping[str, int], *, into: Path, server: str, is_erased: bool = False
) -> None:
    """Fetches those of the files that are there.

    Raises ReleaseError where a file is larger than it may be, or a link, or where the store gives none.

    Args:
        location: of a version, which has been looked at (`storage/locations.py`).
        files: names, with the most bytes that each may have.
        into: folder.
        server: URI of the tracking store.
        is_erased: rows were erased from the version, so that files were written anew, or are gone.
    """
    if is_erased:  # fewer rows may take more bytes
        files = {name: 2 * num_bytes + REWRITTEN for name, num_bytes in files.items()}
    with told_in_a_sentence(location):
        for name, most in files.items():
            try:
                with _opened(location, name, server=server, is_erased=is_erased) as stream:
                    _copy(stream, into / name, most=most, what=f"{name} of {without_password(location)}")
            except FileNotFoundError:  # the digest of all files says so, unless it is known to be gone
                continue


def _copy(stream: "SupportsRead[bytes]", to: Path, *, most: int, what: str) -> None:
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
            left -= len(chunk)


@contextmanager
def _opened(location: str, name: str, *, server: str, is_erased: bool) -> "Iterator[SupportsRead[bytes]]":
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
def _opened_at_server(
    location: str, name: str, *, server: str, is_erased: bool
) -> "Iterator[SupportsRead[bytes]]":
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
        if answer.status_code != 200:
            raise ReleaseError(
                f"MLflow at {without_password(server)} answers {answer.status_code} {answer.reason} when "
                f"asked for {name} of {without_password(location)}; look at its log, and whether this "
                f"account may read there"
            )
        yield answer.raw


@contextmanager
def _opened_in_bucket(url: str) -> "Iterator[SupportsRead[bytes]]":
    import fsspec

    options = bucket.options(url)
    if url.startswith("s3:") and (endpoint := os.environ.get("MLFLOW_S3_ENDPOINT_URL")):  # as MLflow's client
        options["endpoint_url"] = endpoint
    files, path = fsspec.core.url_to_fs(url, **options)
    files.invalidate_cache()
    with files.open(path, "rb") as stream:
        yield stream


@contextmanager
def told_in_a_sentence(location: str) -> Iterator[None]:
    """Turns an error of the store at a location into a ReleaseError of one sentence.

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
        raise ReleaseError(f"{where} cannot be reached: {message}; restore MLflow's artifacts") from None
