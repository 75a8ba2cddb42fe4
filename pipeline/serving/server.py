"""How does a router run? One process: uvicorn around the app, on loopback unless told otherwise."""

import contextlib
import logging
import os
import socket
import sys

from pipeline.contract.errors import JobError
from pipeline.contract.params import Params
from pipeline.serving.loading import expect_online
from pipeline.storage import ledger
from pipeline.storage.traffic_log import log_url, open_log

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
MAX_CONNECTIONS = 1000
SWITCH_S = 0.001  # that a thread computes before the event loop has its turn; 5 ms is Python's own


def serve(params: Params, *, host: str = "", port: int | None = None) -> None:
    """Serve until asked to end; PipelineError where it cannot begin."""
    import torch
    import uvicorn

    from pipeline.serving.router import make_app

    expect_online(params.workload.make())
    told = params.serving
    host, port = host or told.host, told.port if port is None else port
    token = os.environ.get("DAYBREAK_TOKEN", "")
    home = ledger.home()
    listening = listen(host, port)
    kept = open_log(log_url(told, home))
    torch.set_num_threads(1)  # of one user's answer, more threads only wait for each other
    sys.setswitchinterval(SWITCH_S)
    app = make_app(kept, told, name=params.register_.name, home=home, token=token)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, server_header=False, limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=10,
    )  # fmt: skip
    if host not in LOOPBACK and not token:
        log.warning("%s is reachable from outside and DAYBREAK_TOKEN is not set: anybody may ask", host)
    address = f"http://{host}:{listening.getsockname()[1]}"
    log.info("Daybreak answers on %s (POST /recommend, POST /outcomes, GET /health, GET /metrics)%s; "
             "log %s; end it by Ctrl-C", address, ", token asked" if token else "", kept.url)  # fmt: skip
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # all is written and closed by then
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        kept.close()
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; JobError where the port is taken."""
    try:
        found = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise JobError(
            f"port {port} of {host} cannot be had: {error.strerror or error}; "
            f"choose another by --port, or serving.port"
        ) from None
    return found
