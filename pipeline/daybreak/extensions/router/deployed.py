"""Assigns the arm of a version behind an endpoint that draws the version for each request by itself.

A router draws by user; an endpoint of Vertex AI draws a version for each request, by its own traffic split,
and does not report the draw. So each request is a unit here, and its arm follows from the version that
received it. An answer counts for the experiment only while the log says that the endpoint follows the traffic
row (recorded by the endpoint's target after a check of the endpoint): otherwise the chance of the draw
differs from the row.
"""

import logging
import secrets
import threading
import time

from daybreak.contract.errors import PipelineError
from daybreak.extensions.router.answers import Answers, Predictor
from daybreak.extensions.router.model_manager import WARM_USERS, ServedVersions, warm
from daybreak.statistics.assignment import CHALLENGER, CHAMPION, STALE_S
from daybreak.storage.live_servers import RouterState
from daybreak.storage.traffic_log import Log

log = logging.getLogger(__name__)

POLL_S = 0.5


class Deployed:
    """Serves one version, in the arm that the traffic row gives it."""

    def __init__(self, answers: Answers | Predictor, traffic_log: Log | None, *, endpoint: str) -> None:
        self.fault = ""
        self._alone = ServedVersions(champion=answers)
        self._followed, self._read_at = self._alone, 0.0
        self._answers, self._log, self._endpoint = answers, traffic_log, endpoint
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="deployed", daemon=True)

    @property
    def standing(self) -> ServedVersions:
        """Returns what serves now; outside of any experiment if the traffic row was not read lately."""
        return self._followed if time.monotonic() < self._read_at + STALE_S else self._alone

    def draw(self, user: str, now: ServedVersions) -> tuple[str, str, ServedVersions]:
        """Returns a new unit for this request, the arm of this version, and `now`."""
        return secrets.token_hex(8), CHALLENGER if now.challenger else CHAMPION, now

    def state(self) -> RouterState:
        """Returns the state of this container for the log."""
        number, now = self._answers.version, self.standing
        return RouterState(
            id=self._endpoint,
            revision=now.revision,
            share=now.share,
            loaded=(number,),
            fault=self.fault,
            champion=number,
            challenger=now.challenger.version if now.challenger else 0,
        )

    def stop(self, experiment: str, why: str) -> None:
        """Does nothing: a container answers for one arm alone, and the gate's next look ends the test."""

    def start(self) -> None:
        """Computes the answers of likely users, then starts to follow the traffic row."""
        if isinstance(self._answers, Answers):
            warm(self._answers, self._answers.likely(WARM_USERS), ended=self._ended)
        if self._log:
            self._thread.start()

    def close(self) -> None:
        """Stops following the traffic row, and ends the version's process."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._answers.process.close()

    def look(self) -> None:
        """Reads the traffic row once, and the revision of it that the endpoint follows."""
        if self._log is None:
            return
        looked_at = time.monotonic()
        traffic = self._log.traffic.read()
        revision, since = self._log.servers.followed(self._endpoint)
        number = self._answers.version
        counts = revision == traffic.revision and self._log.now() >= since
        if counts and traffic.experiment and number in (traffic.champion, traffic.challenger):
            self._followed = ServedVersions(
                champion=self._answers,
                challenger=self._answers if number == traffic.challenger else None,
                share=traffic.share,
                experiment=traffic.experiment,
                revision=revision,
            )
        else:
            self._followed = self._alone
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
