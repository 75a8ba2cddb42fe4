"""Which arm does a version answer for, where an endpoint draws who meets it?

A router draws by user; an endpoint of Vertex AI draws a version anew for each request, by its own traffic
split, and tells nobody. So here a request is a unit of its own, and its arm is that of the version which it
came to. An answer counts for the experiment only while the log says that the endpoint does what the traffic
row says (pipeline/rollout/endpoint.py writes that, after it has asked the endpoint): else the chance that it
was drawn with is not the one in the row.
"""

import logging
import secrets
import threading
import time

from pipeline.contract.errors import PipelineError
from pipeline.serving.answers import Answers
from pipeline.serving.model_manager import WARM_USERS, Standing, warm
from pipeline.statistics.assignment import CHALLENGER, CHAMPION, STALE_S
from pipeline.storage.traffic_log import Log, RouterState

log = logging.getLogger(__name__)

POLL_S = 0.5


class Deployed:
    """Keeps one version standing, in the arm that the traffic row gives it."""

    def __init__(self, answers: Answers, kept: Log | None, *, endpoint: str) -> None:
        self.fault = ""
        self._alone = Standing(champion=answers)
        self._told, self._read_at = self._alone, 0.0
        self._answers, self._log, self._endpoint = answers, kept, endpoint
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="keeper", daemon=True)

    @property
    def standing(self) -> Standing:
        """The version, and the experiment that its answers count for; none where nothing new is known."""
        return self._told if time.monotonic() < self._read_at + STALE_S else self._alone

    def draw(self, user: str, now: Standing) -> tuple[str, str]:
        """A unit of its own, and the arm of this version."""
        return secrets.token_hex(8), CHALLENGER if now.challenger else CHAMPION

    def state(self) -> RouterState:
        """What serves here."""
        number, now = self._answers.version, self.standing
        return RouterState(
            id=self._endpoint, revision=now.revision, share=now.share, loaded=(number,), fault=self.fault,
            champion=number, challenger=now.challenger.version if now.challenger else 0,
        )  # fmt: skip

    def start(self) -> None:
        """Answer those who are likely to come first; then begin to follow the traffic row."""
        warm(self._answers, self._answers.likely(WARM_USERS), ended=self._ended)
        if self._log:
            self._thread.start()

    def close(self) -> None:
        """End."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once at the traffic row, and at what the endpoint does of it."""
        if self._log is None:
            return
        looked_at = time.monotonic()
        traffic = self._log.traffic()
        revision, since = self._log.followed(self._endpoint)
        number = self._answers.version
        counts = revision == traffic.revision and time.time() >= since
        if counts and traffic.experiment and number in (traffic.champion, traffic.challenger):
            self._told = Standing(
                champion=self._answers, challenger=self._answers if number == traffic.challenger else None,
                share=traffic.share, experiment=traffic.experiment, revision=revision,
            )  # fmt: skip
        else:
            self._told = self._alone
        self._read_at = looked_at

    def _follow(self) -> None:
        while not self._ended.wait(POLL_S):
            try:
                self.look()
                self.fault = ""
            except PipelineError as error:
                if str(error) != self.fault:
                    log.warning("%s", error)
                self.fault = str(error)
