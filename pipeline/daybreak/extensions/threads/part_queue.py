"""Sends parts of batches to workers, as many as there are free cores, and takes back what they have done."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from daybreak.extensions.threads.asynchronous_workers import BatchPart, Done, WorkerPool
from daybreak.extensions.threads.batch_window import BatchWindow, Piece
from daybreak.extensions.threads.thread_policy import ALONE, CostLine, ThreadPolicy, ThreadSetting
from daybreak.extensions.threads.trainee import PartUpdater
from daybreak.training.micro_batch import MicroBatches

log = logging.getLogger(__name__)

QUEUE = 2  # parts that a worker has, so that it need not wait for the next
POLL_S = 0.1  # between looks at the cores
GIVE_UP_S = 0.3  # until a worker whose core was taken is stopped
# Updates between measurements of the noise: of the first ones, and later.
LOOK_EVERY, NUM_FIRST, LOOK_LATER = 8, 16, 64


class Cores(Protocol):
    """Says how many cores there are for this run; free_cores.py does."""

    limit: int  # cores that this process may ever use

    def free(self, *, pids: Sequence[int], wants: int) -> float:
        """Returns the cores that these processes may use now, given how many they would use at most."""

    def close(self) -> None:
        """Leaves the cores to others."""


class PartQueue:
    """Parts of batches that wait for a worker, or that a worker has."""

    def __init__(
        self,
        make_pool: Callable[[], WorkerPool],
        *,
        cores: Cores,
        window: BatchWindow,
        updater: PartUpdater,
        micro_batches: MicroBatches,
    ) -> None:
        """Starts no worker yet; `window` gets the losses, and is restarted when a core is given up."""
        self.cores = cores
        self.policy: ThreadPolicy | None = None  # None before the first batch
        self.number = 0  # of the next update
        self.max_give_up_s = 0.0  # longest time from the loss of a core until its worker had ended
        self._make_pool, self._window = make_pool, window
        self._updater, self._micro_batches = updater, micro_batches
        self._pool: WorkerPool | None = None
        self._pieces: deque[Piece] = deque()
        self._sent: dict[int, deque[Piece]] = {}  # what each worker has
        self._leave_at: dict[int, float] = {}  # workers whose core was taken
        self._polled = -math.inf
        self._free = 1.0
        self._line = CostLine()

    @property
    def setting(self) -> ThreadSetting:
        """The setting that the policy has chosen."""
        return self.policy.setting if self.policy else ALONE

    def pool(self) -> WorkerPool:
        """Returns the workers, made when they are first needed."""
        if self._pool is None:
            self._pool = self._make_pool()
        return self._pool

    def send(self, pieces: Iterable[Piece] = ()) -> None:
        """Sends these pieces and all that wait, each to a worker that has room for it."""
        self._pieces.extend(pieces)
        pool = self.pool()
        while self._pieces:
            self.look_at_cores()
            room = [w for w in range(self.setting.num_workers) if len(self._sent.get(w, ())) < QUEUE]
            if not room:
                self.collect()
                continue
            worker = min(room, key=lambda w: len(self._sent.get(w, ())))
            piece = self._pieces.popleft()
            self._sent.setdefault(worker, deque()).append(piece)
            pool.send(worker, self._part(piece))
            self.number += 1

    def _part(self, piece: Piece) -> BatchPart:
        """Returns the part that a worker gets, by the setting of now."""
        setting, batch, num_samples = self.setting, piece.batch, len(piece.indices)
        look_every = LOOK_EVERY if self.number < LOOK_EVERY * NUM_FIRST else LOOK_LATER
        return BatchPart(
            number=self.number,
            indices=piece.indices,
            progress=batch.progress,
            options=self._updater.options(
                rate=batch.rate,
                num_samples=batch.size if piece.of > 1 else num_samples,
                batch_size=batch.size,
                num_workers=setting.num_workers if setting.is_asynchronous else 1,
            ),
            micro_batch_size=self._micro_batches.size,
            weight=num_samples / batch.size if piece.of > 1 else 1.0,
            of=piece.of,
            measures_noise=(self.number + 1) % look_every == 0,
        )

    def drain(self) -> None:
        """Waits until all that was handed out is trained on."""
        while self._pieces or any(self._sent.values()):
            self.send()
            if any(self._sent.values()):
                self.collect()

    def collect(self) -> None:
        """Takes back what workers have done; waits for the first, at most `POLL_S`."""
        for worker, done in self.pool().wait(POLL_S):
            self._take(self._sent[worker].popleft(), done)
        self.look_at_cores()

    def _take(self, piece: Piece, done: Done) -> None:
        number = len(piece.indices)
        if done.short:
            if number > self._micro_batches.size // 2:  # others may have shrunk it meanwhile
                self._micro_batches.shrink(share=number)
            self._pieces.appendleft(piece)
        elif not math.isfinite(done.loss):
            self._window.overflowed = piece
        else:
            self._window.add(piece, done.loss, noise=done.noise)
            self._line.add(
                num_passes=done.num_passes,
                num_samples=number,
                gradient_s=done.gradient_s,
                apply_s=done.apply_s,
                is_update=done.is_update,
            )

    def judge(self, *, may_undo: bool) -> bool:
        """Has the policy judge the window, and returns whether it is to be undone."""
        assert self.policy
        timing = self._window.timing(self.pool().now())
        self.look_at_cores()
        self.policy, undo = self.policy.judge(
            timing, free_cores=self._free, costs=self._line.costs(), may_undo=may_undo
        )
        log.debug("a loss of %.4g at %.0f samples/s: %s", timing.loss, timing.speed, self.setting)
        return undo

    def look_at_cores(self) -> None:
        """Gives up cores that were taken away; a few times a second."""
        pool = self.pool()
        now = pool.now()
        for worker, since in list(self._leave_at.items()):
            if worker < self.setting.num_workers or not self._sent.get(worker):
                self.max_give_up_s = max(self.max_give_up_s, now - since)
                del self._leave_at[worker]
            elif now >= since + GIVE_UP_S:
                for done in pool.stop(worker):
                    self._take(self._sent[worker].popleft(), done)
                self._pieces.extendleft(reversed(self._sent.pop(worker, deque())))
        if now < self._polled + POLL_S or self.policy is None:
            return
        self._polled = now
        wants = self.policy.wanted(self.cores.limit, costs=self._line.costs())
        self._free = self.cores.free(pids=pool.pids(), wants=wants)
        before = self.setting.num_workers
        self.policy = self.policy.give_up(self._free)
        if self.setting.num_workers < before:
            self._leave_at |= dict.fromkeys(range(self.setting.num_workers, before), now)
            self._window.restart(now)  # a mixture is not judged

    def close(self) -> None:
        """Ends the workers and drops their parts; the next part starts new workers."""
        if self._pool:
            self._pool.close()
        self._pool, self._sent, self._leave_at = None, {}, {}
        self._pieces.clear()
