"""Puts the routers of several models behind one port: /models/NAME/... is the router of that model.

All other paths are of the home that leads, as if it were alone. A router that cannot start is left out, and
its paths answer 503 with the reason, so that no model's fault keeps another from its users. GET /metrics has
the metrics of all models.
"""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from daybreak.extensions.router.limits import Message, Receive, RequestLimiter, Send, refuse

log = logging.getLogger(__name__)

MODELS = "/models/"


class Front:
    """Passes a request to the router of its model."""

    def __init__(self, own: RequestLimiter, others: Mapping[str, RequestLimiter]) -> None:
        self.own, self._others = own, dict(others)
        self._faults: dict[str, str] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request, or one message of the server's own."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope["path"]
        if scope["type"] != "http" or not path.startswith(MODELS):
            await self.own(scope, receive, send)
            return
        name, slash, rest = path.removeprefix(MODELS).partition("/")
        prefix = f"{MODELS}{name}"
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": prefix}
        if name in self._others and name not in self._faults and slash:
            await self._others[name](inner, receive, send)
        elif not await self.own.admits(inner, send):
            return
        elif name in self._faults:
            # /health needs no token, so it gives no address or path away.
            why = "" if inner["path"] == "/health" else f": {self._faults[name]}"
            await refuse(send, 503, f"the router of {name} did not start{why}")
        else:
            await refuse(
                send, 404, f"no model is named {name!r:.80}; /health of each is at {MODELS}NAME/health"
            )

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        async with contextlib.AsyncExitStack() as stack:
            own = _app(self.own)
            try:
                await stack.enter_async_context(own.router.lifespan_context(own))
            except BaseException as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
            beside = []
            for name, limits in self._others.items():
                app = _app(limits)
                try:
                    await stack.enter_async_context(app.router.lifespan_context(app))
                    beside.append(app.state.router)
                except Exception as error:  # noqa: BLE001 - whatever it is, the other models serve
                    log.error("the router of %s did not start: %s", name, error)
                    self._faults[name] = str(error)
            own.state.router.beside = tuple(beside)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def _app(limits: RequestLimiter) -> Any:
    """Returns the app of FastAPI inside of a router's layers."""
    return limits.app.app  # type: ignore[attr-defined]
