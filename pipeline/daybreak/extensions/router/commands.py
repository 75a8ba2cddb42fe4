"""Implements the commands `serve` and `predict` (daybreak/cli.py)."""

import logging
from datetime import date

from daybreak.storage.home import Home

log = logging.getLogger(__name__)


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


def predict(home: Home, *, day: date, to: str, version: str = "") -> int:
    """Write what a version predicts of the clean rows of a day, as a file.

    Args:
        home: whose nights these are
        day: the day, of which a night here has clean rows
        to: the file, any URL of fsspec that ends with .parquet or .csv
        version: its number, or the night or the day that made it; the champion if left out
    """
    from daybreak.extensions.router import day_predictions
    from daybreak.rollout.rollback import version_of

    number, num_rows = day_predictions.write_day(home, day, to, version=version_of(home, version or "0"))
    log.info("%s has what version %d predicts of %d rows of %s", to, number, num_rows, day)
    return 0
