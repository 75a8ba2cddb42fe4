"""The pages of a home's nights, served on a free port of loopback by this process."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from daybreak.extensions.pages import night_pages
from daybreak.extensions.router import server
from daybreak.extensions.router.settings import RouterParams
from tests.extensions.router.running import until


@contextlib.contextmanager
def served(lead: Path, *, token: str = "", host: str = "127.0.0.1") -> Iterator[str]:
    """The address of the pages."""
    params = RouterParams(max_requests_per_s=0)
    listening = server.listen(host, 0)
    config = server.config(night_pages.make_app(lead, params, token=token, host=host), params)
    config.timeout_graceful_shutdown = 1  # streams are open
    runs = uvicorn.Server(config)
    thread = threading.Thread(target=runs.run, kwargs={"sockets": [listening]})
    thread.start()
    until(lambda: runs.started)
    try:
        yield server.address_of(listening, host)
    finally:
        runs.should_exit = True
        thread.join()
        listening.close()
