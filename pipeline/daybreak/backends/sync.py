"""Syncs what a job leaves to the bucket, and updates from the bucket to the job, in a thread beside it."""

import logging
import threading
from pathlib import Path

from daybreak.backends.staging import LINES, MEASURED, pull_updates
from daybreak.storage.bucket import BucketFolder

log = logging.getLogger(__name__)

FIRST_S, EVERY_S = 1.0, 10.0  # doubled each time, once a line was sent that says that the job began


class BucketSync:
    """Runs on the machine, beside the job: sends what it leaves and fetches updates, every few seconds.

    A failure of the bucket is logged and retried; only in `finish` it is an error.
    """

    def __init__(self, bucket: BucketFolder, name: str, folder: Path, *, node: int) -> None:
        self.bucket, self.name, self.folder, self.node = bucket, name, folder, str(node)
        self._sent: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Ends the thread and sends what is left, the result last; raises what the bucket raises."""
        self._over.set()
        self._thread.join()
        self.send()
        for file in MEASURED:
            if (self.folder / file).exists():
                self._put(file)
        if (self.folder / "result.json").exists():
            files = self.bucket.files
            for path in sorted((self.folder / "model").rglob("*")):
                if path.is_file():
                    target = self._up("model", path.relative_to(self.folder / "model").as_posix())
                    files.makedirs(target.rpartition("/")[0], exist_ok=True)
                    files.put_file(str(path), target)
            self._put("result.json")

    def send(self) -> None:
        """Sends the files of lines that have grown."""
        for file, size in self._sizes().items():
            if size != self._sent.get(file, 0):
                self._put(file)
                self._sent[file] = size

    def _sizes(self) -> dict[str, int]:
        paths = {file: self.folder / file for file in LINES}
        return {file: path.stat().st_size if path.exists() else 0 for file, path in paths.items()}

    def _run(self) -> None:
        every_s, before = FIRST_S, self._sizes()
        while not self._over.wait(every_s):
            try:
                pull_updates(self.bucket, self.name, self.folder)
                self.send()
            except Exception as error:  # noqa: BLE001 each filesystem has its own, none is a reason to end training
                log.warning("%s does not accept what the job leaves: %s; retrying", self.bucket.url, error)
            if any(size != before[file] for file, size in self._sent.items()):
                every_s = min(2 * every_s, EVERY_S)

    def _put(self, file: str) -> None:
        files, target = self.bucket.files, self._up(file)
        files.makedirs(target.rpartition("/")[0], exist_ok=True)
        files.pipe_file(target, (self.folder / file).read_bytes())

    def _up(self, *names: str) -> str:
        return self.bucket.at("jobs", self.name, "up", self.node, *names)
