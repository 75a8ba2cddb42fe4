"""Asks a version for answers, in a process of its own that runs `version_worker.py`."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from daybreak.contract.errors import ReleaseError
from daybreak.registry.host import CodeHost, NoAnswer
from daybreak.storage.home import Home

LOAD_S = 900.0  # the most that loading may take
MAX_ABOUT = 1_000_000  # bytes of what it says about itself
LEAST_ANSWER_S = 5.0  # that an answer may take, before the process counts as stuck


def answer_s(timeout_s: float) -> float:
    """Returns how long a version may take for an answer, of which a request waits for `timeout_s`."""
    return max(LEAST_ANSWER_S, 10 * timeout_s)


class _Thread(ThreadPoolExecutor):
    """A thread that ends with its process; whoever comes later hears why from one for all that have ended."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Has a call made in the thread."""
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if not self._shutdown:  # no thread can be started, or the interpreter ends
                raise
            return OF_ENDED.submit(fn, *args, **kwargs)


OF_ENDED = ThreadPoolExecutor(1, thread_name_prefix="ended versions")


class VersionProcess(CodeHost):
    """The process of one version.

    Attributes:
        about: what the version is, as `version_worker.py` says.
        thread: asks it for the answers to users, so that requests to other versions do not wait.
    """

    def __init__(
        self,
        number: int,
        case: Mapping[str, Any],
        *,
        answer_s: float,
        home: Home | None = None,
        reads: Iterable[Path] = (),
    ) -> None:
        """Starts the process and loads the version as the case says; ReleaseError where it does not load."""
        folders = (Path(case[name]) for name in ("version", "arrays", "night") if case[name])
        worker = "daybreak.serving.version_worker"
        super().__init__(worker, answer_s=answer_s, home=home, reads=(*reads, *folders))
        self.thread = _Thread(1, thread_name_prefix=f"version {number}")
        try:
            self.about = self.ask("load", within_s=LOAD_S, most=MAX_ABOUT, **case)
        except NoAnswer as error:
            self.close()
            if error.is_sentence:
                raise ReleaseError(error.message) from None
            raise ReleaseError(f"version {number} does not answer: {error}; fix its workload") from None

    def close(self) -> None:
        """Ends the process, and its thread once that has done what it was given."""
        super().close()
        self.thread.shutdown(wait=False)

    def _failed(self, why: str) -> NoAnswer:
        self.thread.shutdown(wait=False)
        return super()._failed(why)

    def is_due(self, after_s: float) -> bool:
        """Returns whether the process has ended, and was started that long ago: it is worth another one."""
        return bool(self.ended) and time.monotonic() - self._started_at > after_s
