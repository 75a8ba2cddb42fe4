"""A router in this process, on a free port of loopback."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import uvicorn

from daybreak.extensions.live_test.settings import LiveTestParams
from daybreak.extensions.router import server
from daybreak.extensions.router.model_manager import ModelManager
from daybreak.extensions.router.settings import RouterParams
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log

LIMIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """The router, and the log that it writes."""

    url: str
    log: Log
    app: Any

    @property
    def manager(self) -> ModelManager:
        """What decides which version serves."""
        manager: ModelManager = self.app.state.router.versions
        return manager

    def recommend(self, user: str, **more: Any) -> dict[str, Any]:
        """What the user is shown."""
        answer = requests.post(f"{self.url}/recommend", json={"user": user, **more}, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        recommended: dict[str, Any] = answer.json()
        return recommended

    def post(self, path: str, body: Any = None, **options: Any) -> tuple[int, Any]:
        """Status and answer."""
        answer = requests.post(f"{self.url}/{path}", json=body, timeout=LIMIT_S, **options)
        return answer.status_code, answer.json()

    def get(self, path: str) -> requests.Response:
        """The answer."""
        return requests.get(f"{self.url}/{path}", timeout=LIMIT_S)


@contextlib.contextmanager
def running(
    home: Path, *, token: str = "", ready: bool = True, limits: LiveTestParams | None = None, **changes: Any
) -> Iterator[Running]:
    """A router for that home with these params; once it serves, unless told otherwise."""
    from daybreak.extensions.router.router import make_app

    kept = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    params = RouterParams(**{"max_requests_per_s": 0, "timeout_s": 30, **changes})
    names = server.own_names("127.0.0.1", params, token=token)
    app = make_app(kept, params, name="daybreak", home=Home(home), token=token, limits=limits, names=names)
    listening = server.listen("127.0.0.1", 0)
    runs = uvicorn.Server(server.config(app, params))
    thread = threading.Thread(target=runs.run, kwargs={"sockets": [listening]})
    thread.start()
    until(lambda: runs.started)
    router = Running(url=f"http://127.0.0.1:{listening.getsockname()[1]}", log=kept, app=app.app.app)
    try:
        if ready:
            until(lambda: router.get("health").status_code == 200)
        yield router
    finally:
        runs.should_exit = True
        thread.join()
        listening.close()
        kept.close()


def has_ended(process: int) -> bool:
    """Whether a process is gone, or only waits for its parent to hear of it."""
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def until(holds: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    """Wait until it holds; fails loudly after a while."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.02)
