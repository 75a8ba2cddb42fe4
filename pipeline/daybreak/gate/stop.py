"""Stage stop: a person ends a running night, and its job with it; the champion stays.

The record lies in the folder of the night, `stop.json`, and the ledger keeps it with the night. From then on
the runner refuses each stage but `close`, which the process that runs the night calls next. A stage that is
computing at that moment, a promotion included, finishes first.
"""

import logging

from daybreak.contract import clock, records
from daybreak.contract.backend import Backend
from daybreak.contract.errors import NothingToDo
from daybreak.contract.formats import one_line
from daybreak.contract.record_types import Night, Release, Stop
from daybreak.contract.user import user
from daybreak.gate.review import LONGEST
from daybreak.jobs import launcher
from daybreak.registry import approval
from daybreak.storage import ledger
from daybreak.storage.home import Home
from daybreak.storage.journal import alone

log = logging.getLogger(__name__)


def stop(
    home: Home,
    night: Night,
    *,
    release: Release | None = None,
    backend: Backend,
    reason: str = "",
    by: str = "",
) -> Stop:
    """End an open night and its job; the champion stays. Asked again, the first word stands.

    Also one that waits for a person's answer, or that was overtaken. Raises NothingToDo where the night is
    over or its version serves.

    Args:
        home: whose nights these are.
        night: that runs.
        release: of its version, where that serves.
        backend: where its job runs.
        reason: why
        by: who; you if left out
    """
    if release is not None:
        raise NothingToDo(f"version {release.version} of night {night.id} serves; use rollback")
    if ledger.is_over(home, night):
        raise NothingToDo(f"night {night.id} is closed, and its champion stays")
    with alone(records.path_of(Stop, home.records).with_suffix(".lock")):
        stopped = records.find(Stop, home.records)
        if stopped is None:
            now = clock.utc().replace(microsecond=0)
            stopped = Stop(by=by or user(), reason=one_line(reason)[:LONGEST], stopped_at=now)
            records.write(stopped, home.records)
    with alone(launcher.LOCK):  # a call that looks after the job ends first, and none begins after it
        left = launcher.end_jobs(home, backend)
    log.info(
        "night %s was %s%s",
        night.id,
        approval.stopped(stopped),
        f"; {', '.join(left)} ends in a while" if left else "",
    )
    log.info("the process that runs it closes it now; if none runs: daybreak close --night %s", night.id)
    return stopped
