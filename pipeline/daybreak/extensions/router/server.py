"""Runs a router as one process: uvicorn around the app, on loopback unless `--host` says otherwise."""

import contextlib
import errno
import functools
import logging
import os
import resource
import socket
import sys
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from daybreak.contract.errors import JobError, ParamsError, PipelineError
from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router.settings import RouterParams
from daybreak.serving.version_worker import expect_online
from daybreak.storage import checkout
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, log_url, open_log

if TYPE_CHECKING:
    import uvicorn

    from daybreak.extensions.router.limits import RequestLimiter

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost", "ip6-localhost")
OTHER_FILES = 256  # that a router has open beside its connections: its log, the models, libraries
SWITCH_S = 0.001  # how long a thread computes before the event loop has its turn; Python's own is 5 ms


def is_loopback(host: str) -> bool:
    """Returns whether nobody but this machine reaches a server on that host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK


def own_names(host: str, params: RouterParams, *, token: str) -> tuple[str, ...]:
    """Returns the names by which a router on `host` may be asked; () for any.

    Where only this machine reaches it, and no token is asked for, a page in somebody's browser may reach it
    by a name that leads here. A proxy that is trusted passes on names of its own.
    """
    return (*LOOPBACK, host) if is_loopback(host) and not token and not params.trusted_proxies else ()


def serve(home: Home, *, host: str = "", port: int | None = None) -> None:
    """Serves until interrupted; PipelineError if it cannot start."""
    import uvicorn

    from daybreak.extensions.router.front import MODELS, Front
    from daybreak.extensions.router.router import make_app

    params = home.params
    expect_online(params.workload.make())
    settings = params.section(RouterParams)
    host, port = host or settings.host, settings.port if port is None else port
    token = os.environ.get("DAYBREAK_TOKEN", "")
    listening = listen(host, port)
    traffic_log = open_log(log_url(params.serving, home.folder))
    sys.setswitchinterval(SWITCH_S)
    names = own_names(host, settings, token=token)
    own = make_app(
        traffic_log,
        settings,
        name=params.register_.name,
        home=home,
        token=token,
        limits=params.section(LiveTestParams),
        names=names,
    )
    logs = [traffic_log]
    members = dict(_members(home, logs, token=token, names=names))
    app = Front(own, members) if members else own
    if not is_loopback(host) and not token:
        log.warning(
            "%s is reachable from outside and DAYBREAK_TOKEN is not set: anybody may send requests", host
        )
    address = address_of(listening, host)
    log.info(
        "Daybreak answers on %s (POST /recommend, /predict, /outcomes, /assignment, /observations; "
        "GET /health, /metrics, /docs)%s; log %s; end it by Ctrl-C",
        address,
        ", token required" if token else "",
        traffic_log.url,
    )
    for model in members:
        log.info("%s answers on %s%s%s", model, address, MODELS, model)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        with contextlib.suppress(KeyboardInterrupt):  # everything is written and closed by then
            uvicorn.Server(config(app, settings)).run(sockets=[listening])
    finally:
        for each in logs:
            each.close()
        listening.close()


def _members(
    lead: Home, logs: list[Log], *, token: str, names: Collection[str]
) -> Iterator[tuple[str, "RequestLimiter"]]:
    """Yields the routers of the other homes of the fleet, by model, and adds their logs to `logs`.

    One that cannot be made, or whose home has a fault, is left out with a warning: the others serve.
    """
    from daybreak.extensions.router.router import make_app
    from daybreak.storage import homes

    if checkout.membership(lead.folder):  # a member that is served by itself
        return
    taken = {log_url(lead.params.serving, lead.folder)}
    for member in homes.join(lead.folder)[1:]:
        try:
            loaded = member.home.params
            url = log_url(loaded.serving, member.folder)
            if member.own_registry:
                raise ParamsError(
                    f"its versions are in an MLflow of its own; run daybreak serve in {member.folder}"
                )
            if url in taken:
                raise ParamsError(
                    f"its log of serving is another model's too; set another serving.log in {member.folder}"
                )
            logs.append(open_log(url))
            taken.add(url)
            yield (
                member.model,
                make_app(
                    logs[-1],
                    loaded.section(RouterParams),
                    name=member.model,
                    home=member.home,
                    token=token,
                    limits=loaded.section(LiveTestParams),
                    names=names,
                ),
            )
        except PipelineError as error:
            log.warning("%s is not served here: %s", member.model, error)


def config(app: Any, params: RouterParams) -> "uvicorn.Config":
    """Returns how uvicorn serves the app of a router."""
    import uvicorn

    from daybreak.extensions.router.connections import Connection, Connections

    protocol: Any = functools.partial(Connection, Connections(params, max_connections=_room()))
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=10,
    )


def _room() -> int:
    """Returns how many connections this process may hold, once it may open as many files as it can."""
    from daybreak.extensions.router.connections import MAX_CONNECTIONS

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, soft - OTHER_FILES)


def address_of(listening: socket.socket, host: str) -> str:
    """Returns the URL of a server on that host, which is in brackets where it is an IPv6 address."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket; JobError if the port is taken, or the machine has no such address."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise JobError(
                f"{host} is no address of this machine; name another by --host, on loopback 127.0.0.1 or ::1"
            ) from None
        raise JobError(
            f"port {port} of {host} cannot be used: {error.strerror or error}; "
            f"choose another by --port, or serving.port"
        ) from None
