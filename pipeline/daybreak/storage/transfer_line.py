"""Shows a transfer of files as one line on a terminal; in a log, its size and time once it is done."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator

from daybreak.contract.formats import duration, size

log = logging.getLogger(__name__)

REFRESH_S = 0.5
LOGGED_S = 10.0  # a transfer that takes less is not worth a line of a log
TIMED = "{desc}: {elapsed}"  # of a transfer whose bytes nobody tells
COUNTED = "{desc}: {n_fmt}B, {elapsed}"  # of one whose total nobody tells


@contextlib.contextmanager
def transfer_line(
    what: str, *, num_bytes: int = 0, measure: Callable[[], int] | None = None
) -> Iterator[Callable[[int], object]]:
    """Shows a transfer while the block runs, and yields what to call with the bytes of each part of it.

    Args:
        what: the transfer in a few words, as "fetch data from DVC's remote".
        num_bytes: its bytes; 0 where they are not known.
        measure: returns the bytes that have arrived by now, where no part is told of.
    """
    began = time.monotonic()
    if sys.stderr.isatty() and not _has_bar():
        with _drawn(what, num_bytes, measure) as arrived:
            yield arrived
    else:
        yield lambda _: None
    took_s = time.monotonic() - began
    if took_s >= LOGGED_S:
        log.info("%s: %s%s", what, f"{size(num_bytes)} in " if num_bytes else "", duration(took_s))


def _has_bar() -> bool:
    """Returns whether the bar of a stage that waits is on the terminal, which has every line go above it."""
    rich = sys.modules.get("rich.file_proxy")
    return rich is not None and isinstance(sys.stderr, rich.FileProxy)


@contextlib.contextmanager
def _drawn(what: str, num_bytes: int, measure: Callable[[], int] | None) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm  # here, as rented machines have no terminal, and their image has no tqdm

    form = None if num_bytes else COUNTED if measure else TIMED
    with tqdm(
        total=num_bytes or None,
        desc=what,
        bar_format=form,
        unit="B",
        unit_scale=True,
        leave=False,
        file=sys.stderr,
    ) as line:
        done = threading.Event()

        def follow() -> None:
            while not done.wait(REFRESH_S):
                line.n = measure() if measure else line.n
                line.refresh()

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield line.update
        finally:
            done.set()
            follower.join()
