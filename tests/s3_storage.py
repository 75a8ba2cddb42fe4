"""S3 on loopback: the server of moto, which honours If-None-Match and If-Match.

Moto looks whether a precondition holds, and stores, without a lock in between; S3 does both as one step. So
requests that write are answered one after the other here. Each call may be held up for a while, and one that
writes for as long as several that read, so that another writer's come between what a client reads and what it
writes.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from s3fs import S3FileSystem
from werkzeug.serving import WSGIRequestHandler, make_server

from tests import loopback

# An account that moto does not look at, so that no client asks a service of Amazon for one.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "b",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


READS_A_WRITE = 10  # that take as long


class Store:
    """A server, as an application of WSGI, with an empty bucket named bucket."""

    def __init__(self, *, honours: bool | None, delay_s: float) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._honours, self._delay_s = honours, delay_s
        self._writes = threading.Lock()
        self._chance = random.Random(0)
        self.read_only = False
        self.refused = 0  # calls whose precondition did not hold
        self.url = ""

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Answers a call."""
        reads = environ["REQUEST_METHOD"] in ("GET", "HEAD")
        if self._delay_s:
            time.sleep(self._chance.random() * self._delay_s * (1 if reads else READS_A_WRITE))
        if reads:
            return self._moto(environ, start_response)
        if self.read_only:
            start_response("403 FORBIDDEN", [("Content-Length", "0")])
            return []
        if self._honours is None and "HTTP_IF_NONE_MATCH" in environ:
            body = (
                b"<Error><Code>NotImplemented</Code><Message>A header is not implemented.</Message></Error>"
            )
            start_response("501 Not Implemented", [("Content-Length", str(len(body)))])
            return [body]
        if not self._honours:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            environ.pop("HTTP_IF_MATCH", None)

        def started(status: str, headers: Any, *more: Any) -> Any:
            self.refused += status.startswith("412")
            return start_response(status, headers, *more)

        with self._writes:
            return [b"".join(self._moto(environ, started))]


class Quiet(WSGIRequestHandler):
    """Logs no call."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Logs nothing."""


@contextmanager
def served(*, honours: bool | None = True, delay_s: float = 0.0) -> Iterator[Store]:
    """The service, with an empty bucket named bucket; `honours` is None where it refuses preconditions."""
    store = Store(honours=honours, delay_s=delay_s)
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=Quiet)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with emulated(store):
            client = boto3.client("s3")
            client.create_bucket(Bucket="bucket")
            client.close()
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def emulated(store: Store) -> Iterator[None]:
    """This process and its children find the service."""
    given = {**ENVIRONMENT, "AWS_ENDPOINT_URL": store.url}
    with loopback.told(given, forget=S3FileSystem.clear_instance_cache):
        yield
