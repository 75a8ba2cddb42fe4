"""Implements the command `serve` (daybreak/cli.py)."""

from daybreak.storage.home import Home


def serve(home: Home, *, host: str = "", port: int = -1) -> int:
    """Answer users with the champion, and with a challenger where the gate lets it, until Ctrl-C.

    Args:
        home: whose nights these are
        host: address to listen on; that of params.yaml if left out
        port: port to listen on, 0 for any that is free; that of params.yaml if left out
    """
    from daybreak.extensions.router import server

    server.serve(home, host=host, port=None if port < 0 else port)
    return 0
