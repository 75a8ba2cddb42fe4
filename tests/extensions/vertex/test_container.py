"""How a container of an endpoint holds connections to limits; its protocol, without a socket."""

import asyncio
import contextlib
from typing import Any

from uvicorn.server import ServerState

from daybreak.extensions.router.connections import MAX_CONNECTIONS, MAX_HEADER_BYTES
from daybreak.extensions.vertex import container
from tests.extensions.router.test_connection_bytes import Sent, waits_for_ever


def test_a_container_has_the_routers_limits_but_not_for_the_one_address_that_asks() -> None:
    config = container.config(waits_for_ever, {"SERVING": '{"max_connections_per_address": 1}'})
    config.load()
    protocol: Any = config.http_protocol_class
    assert not config.ws_protocol_class
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        sent = [Sent() for _ in range(MAX_CONNECTIONS // 4)]
        state = ServerState()
        made = [protocol(config=config, server_state=state, app_state={}, _loop=loop) for _ in sent]
        for connection, transport in zip(made, sent, strict=True):
            connection.connection_made(transport)
        assert not any(transport.is_closed for transport in sent)
        made[0].data_received(b"POST / HTTP/1.1\r\nX: " + b"x" * (MAX_HEADER_BYTES + 1))
        assert sent[0].is_closed
        assert b"the headers have more than 65,536 bytes" in sent[0].written
        for connection in made:
            connection.connection_lost(None)
