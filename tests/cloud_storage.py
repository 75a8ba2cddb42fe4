"""Cloud Storage on loopback: gcp-storage-emulator, that honours ifGenerationMatch here, as the real one does.

Each call has a thread of its own and may be held up for a while, so calls of several clients overtake each
other; whether a precondition holds and what comes of it is one step.
"""

import io
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import Request, RequestHandler
from gcp_storage_emulator.storage import Storage

from tests import loopback

# What clients have to be told of a service on loopback; else gcsfs waits a minute for an answer.
ENVIRONMENT = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false", "GOOGLE_CLOUD_PROJECT": "p"}


class Store:
    """What all calls share."""

    def __init__(self, *, honours: bool, delay_s: float) -> None:
        self.storage = Storage(use_memory_fs=True)
        self.honours, self.delay_s = honours, delay_s
        self.read_only = False
        self.refused = 0  # calls whose precondition did not hold
        self.url = ""
        self.lock = threading.Lock()
        self.chance = random.Random(0)
        create_bucket("bucket", self.storage)

    def generation(self, bucket: str, name: str) -> str:
        """Of an object; "0" where there is none."""
        return str(self.storage.objects.get(bucket, {}).get(name, {}).get("generation", "0"))


class Handler(RequestHandler):  # type: ignore[misc]
    """One call."""

    def __init__(self, store: Store, *given: Any) -> None:
        self.store = store
        super().__init__(store.storage, *given)

    def _answer(self, act: Any) -> None:
        body = self._whole(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        if self.store.delay_s:
            time.sleep(self.store.chance.random() * self.store.delay_s)
        with self.store.lock:
            status = self._refusal(body)
            self.rfile = io.BytesIO(body)
            if not status:
                act()
                return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _whole(self, body: bytes) -> bytes:
        """The body; its last line end as CRLF, else the emulator takes a last CR for a part of it."""
        kind = self.headers.get("Content-Type", "")
        if not kind.startswith("multipart/related") or body.partition(b"\n")[0].endswith(b"\r"):
            return body
        body = b"\r\n--".join(body.rsplit(b"\n--", 1))
        self.headers.replace_header("Content-Length", str(len(body)))
        return body

    def _refusal(self, body: bytes) -> int:
        if self.store.read_only and self.command != "GET":
            return 403
        url = urlsplit(self.path)
        wanted = parse_qs(url.query).get("ifGenerationMatch")
        if not wanted or not self.store.honours:
            return 0
        bucket, _, name = url.path.partition("/b/")[2].partition("/o")
        if name := unquote(name.removeprefix("/")) or self._named(body):
            held = self.store.generation(bucket, name) == wanted[0]
            self.store.refused += not held
            return 0 if held else 412
        return 400

    def _named(self, body: bytes) -> str:
        """The object that an upload is to make."""
        self.rfile = io.BytesIO(body)
        asked = Request(self, self.command)
        if "name" in asked.query:
            return str(asked.query["name"][0])
        return str(asked.data["meta"]["name"]) if isinstance(asked.data, dict) else ""

    def do_GET(self) -> None:
        """Read."""
        self._answer(super().do_GET)

    def do_POST(self) -> None:
        """Write."""
        self._answer(super().do_POST)

    def do_PUT(self) -> None:
        """Write."""
        self._answer(super().do_PUT)

    def do_PATCH(self) -> None:
        """Change."""
        self._answer(super().do_PATCH)

    def do_DELETE(self) -> None:
        """Remove."""
        self._answer(super().do_DELETE)


@contextmanager
def served(*, honours: bool = True, delay_s: float = 0.0) -> Iterator[Store]:
    """The service, with an empty bucket named bucket."""
    store = Store(honours=honours, delay_s=delay_s)
    with loopback.served(partial(Handler, store)) as address:
        store.url = f"http://{address}"
        yield store


@contextmanager
def emulated(store: Store) -> Iterator[None]:
    """This process and its children find the service."""
    with loopback.told({**ENVIRONMENT, "STORAGE_EMULATOR_HOST": store.url}, forget=_forget):
        yield


def _forget() -> None:
    from gcsfs import GCSFileSystem  # which reads some of these when it is imported

    GCSFileSystem.clear_instance_cache()
