"""Time that passes for a log, so that no test waits."""

import sqlalchemy as sa

from daybreak.storage.traffic_log import Log

TIMES = {"traffic": "changed_at", "moves": "changed_at", "exposures": "time", "outcomes": "time"}


def pass_time(log: Log, seconds: float) -> None:
    """Let all that the log has be so much longer ago."""
    with sa.create_engine(log.url).begin() as connection:
        for table, column in TIMES.items():
            later = f"update {table} set {column} = {column} - :seconds"
            connection.execute(sa.text(later), {"seconds": seconds})
