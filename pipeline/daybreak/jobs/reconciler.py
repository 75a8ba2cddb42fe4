"""Takes one look at the job of this night, and the one next action.

The actions: submit, wait, resubmit, move to another placement (`decider`), end the job when time or
money is up, or collect. A job is left in three steps, each of which may be the last of a call: recorded,
cancelled, seen ended. Only then the next one is submitted, so there are never two. Preemptions are not
failures: a job is restarted as often as it is preempted, and `MAX_RESTARTS` times after faults of its own.
"""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from daybreak.contract import clock as night_clock
from daybreak.contract import records
from daybreak.contract.backend import LIVE, Backend, Job, JobState, OutOfTime
from daybreak.contract.errors import JobError, NotYet
from daybreak.contract.record_parts import Placement, Taken
from daybreak.contract.record_types import Plan, Training
from daybreak.contract.trigger_lines import Trigger
from daybreak.jobs import collector, observed_job
from daybreak.jobs.decider import decide
from daybreak.jobs.escalation import FallbackChoice
from daybreak.jobs.heartbeats import QUIET_UPDATES, Heartbeats
from daybreak.jobs.job_budget import JobBudget
from daybreak.jobs.observed_job import ObservedJob
from daybreak.jobs.placement_jobs import PlacementJobs
from daybreak.jobs.remaining_work import forecast
from daybreak.jobs.submissions import JobAttempts
from daybreak.machines import startup
from daybreak.storage import jsonl
from daybreak.storage.home import Home
from daybreak.training import worker_errors
from daybreak.training.recipe import BATCH, MOVING, Recipe, Result
from daybreak.training.supervision import asked_batch_size, ended_early_by

log = logging.getLogger(__name__)

MAX_RESTARTS = 5  # of the whole job, after faults of its own
GRACE_S = 20.0  # after train_until, for the job to end by itself
ENDING_S = 30.0  # after that, for a cancelled job to end
HEARD = "heard.json"  # the newest heartbeat, and when this machine first saw it
LOCAL_START_S = 600.0  # to the first heartbeat, on a machine that is not rented


class Reconciler:
    """Takes a look at a job, and then one action."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        home: Home,
        folder: Path,
        plan: Plan,
        first: Placement,
        backend: Backend,
        num_workers: int,
        confidence: float,
        budget_usd: float,
        to_save: bool,
        triggers: Sequence[Trigger],
        clock: Callable[[], float],
        awake: Callable[[], float],
        into: Path = collector.MODEL,
    ) -> None:
        self.into = into
        self.recipe, self.folder, self.plan, self.first = recipe, folder, plan, first
        self.backend = backend
        self.clock, self.awake = clock, awake
        self.confidence, self.to_save, self.triggers = confidence, to_save, triggers
        self.deadline = recipe.train_until.timestamp()
        self.attempts = JobAttempts(folder)
        self.jobs = PlacementJobs(
            plan,
            first=first,
            home=home,
            folder=folder,
            backend=backend,
            num_workers=num_workers,
            until=self.deadline + 2 * GRACE_S,
            attempts=self.attempts,
        )
        self.budget = JobBudget(
            folder,
            night=recipe.night,
            budget_usd=budget_usd,
            first=first,
            attempts=self.attempts,
            backend=backend,
        )
        moving = folder / MOVING
        self.heartbeats = Heartbeats(
            jsonl.newest(folder / "progress.jsonl"),
            moved_at=moving.stat().st_mtime if moving.exists() else 0.0,
        )

    def act(self) -> Training:
        """Collects the model and returns its record, or takes the next action and raises NotYet.

        Raises JobError if the job cannot end with a model.
        """
        now, last = self.clock(), self.attempts.last
        if last and last.live and not last.handle and now < self.deadline:
            # The submitter was killed, or got no reply: attach to the job.
            self._submit(self.jobs.job(last.placement, now))
            last = self.attempts.last
        state = self.backend.state(last.handle) if last and last.live and last.handle else None
        self.budget.pay(now, state)
        if collector.has_ended(self.folder):
            self._note(now, "succeeded")
            return self._collect(now)
        end_by = self.budget.send_end_by(now, deadline=self.deadline)
        self._note(now, state)
        limit = min(end_by, self.deadline + GRACE_S)
        last_start = min(end_by - startup.start_s(self.plan), self.deadline)
        if now >= (limit if state in LIVE else last_start):
            return self._end(now, limit=limit)
        if last and last.leaving and state in LIVE:
            self._cancel(now)
        if last and state in LIVE and (other := self.jobs.older(last.job)):
            self.attempts.change(leaving=True, to=self.jobs.placement_of(other))
            self._cancel(now)
        if state in LIVE:
            self._watch(now, state)
        return self._go_on(now)

    def _watch(self, now: float, state: JobState | None) -> NoReturn:
        """Lets a live job go on, or moves it off its machines; always raises NotYet."""
        last, beat = self.attempts.last, self.heartbeats.last
        assert last
        hang = self._hang(now) if state == "running" else ""
        if hang:
            log.warning("job %s: %s", self.folder.name, hang)
            worker_errors.leave(self.folder, hang, rank=-1)
            self.attempts.change(leaving=True, hung=True)
            self._cancel(now)
        observed = self._observed(now, state)
        if beat and beat.end:
            self._note_early_end(now, beat.end, total=observed.num_samples)
        choice = decide(observed)
        if now < self.deadline and choice.placement and choice.placement.rental != last.placement.rental:
            self.attempts.change(leaving=True, to=choice.placement, taken=self._taken(now, choice))
            self._cancel(now)
        if choice.batch_size and (taken := self._taken(now, choice)):
            self.attempts.take(taken, once=False)
            records.replace_text(self.folder / BATCH, json.dumps({"batch_size": choice.batch_size}) + "\n")
        if not beat:
            raise NotYet(f"job {self.folder.name}: {'starting' if state == 'running' else state}")
        total, ahead = observed.num_samples, forecast(observed, observed.placement)
        progress = self.heartbeats.sentence(num_samples=total, ahead=ahead)
        raise NotYet(f"job {self.folder.name}: {progress}", share=beat.seen / total)

    def _cancel(self, now: float) -> NoReturn:
        """Cancels the job; once it has ended, goes on to the next."""
        last = self.attempts.last
        assert last
        self.backend.cancel(last.handle)
        state = self.backend.state(last.handle)
        if state in LIVE:
            raise NotYet(f"job {self.folder.name} was cancelled, and has not ended yet")
        self._note(now, state)
        if collector.has_ended(self.folder):
            raise NotYet(f"job {self.folder.name} has ended meanwhile")
        self._go_on(now)

    def _go_on(self, now: float) -> NoReturn:
        """Submits a job where none is alive, or waits; always raises NotYet."""
        self._give_up_if_hopeless()
        if now >= self.deadline:
            raise NotYet(f"job {self.folder.name} is past its time")
        placement = self._next_placement(now)
        _write_recipe(self.folder, self.recipe.on(placement))
        job = self.jobs.job(placement, now)
        self.attempts.ask(now, job=job.name, placement=placement)
        self._submit(job)
        asked = self.attempts.last
        if (
            asked
            and asked.handle
            and len(self.jobs.placements) > 1
            and self.backend.state(asked.handle) == "refused"
        ):
            self._note(now, "refused")
            self._go_on(now)  # the next place, at once
        raise NotYet(f"job {self.folder.name}: queued")

    def _next_placement(self, now: float) -> Placement:
        """Returns the placement to submit the job on; NotYet where there is none now."""
        last = self.attempts.last
        if other := self.jobs.older(last.job if last else ""):
            if placement := self.jobs.placement_of(other):
                return placement
            raise NotYet(f"job {self.folder.name}: another host runs it by another plan, as {other.job}")
        if last and last.to:
            return last.to
        choice = decide(self._observed(now, None))
        if taken := self._taken(now, choice):
            self.attempts.take(taken)
        if choice.placement is None and last and observed_job.was_refused(self.attempts, now):
            raise NotYet(
                f"job {self.folder.name}: {worker_errors.reason(self.folder)}; retries in a few minutes"
            )
        if choice.placement is None:
            raise NotYet(f"job {self.folder.name}: waits for spot capacity that lasts")
        if last:
            why = worker_errors.reason(self.folder)
            log.warning("job %s was ended: %s; restarting it", self.folder.name, why)
        return choice.placement

    def _submit(self, job: Job) -> None:
        """Submits the job, or attaches to it; NotYet if its deadline has passed meanwhile."""
        try:
            handle = self.backend.submit(job)
        except OutOfTime as error:
            # What was trained so far still counts: the next call takes the newest checkpoint.
            raise NotYet(str(error)) from error
        self.attempts.change(handle=handle)

    def _note(self, now: float, state: JobState | None) -> None:
        """Records a state that was not seen at the look before."""
        last = self.attempts.last
        if not last or not last.live or state is None:
            return
        if state not in LIVE:
            self.attempts.change(ended=state, ended_at=now)
        elif state == "running" and last.waits:
            self.attempts.change(**{"again_at" if last.run_at else "run_at": now})
        elif state == "queued" and not last.waits:  # its machines were lost or lent, and it gets others
            self.attempts.change(queued_at=now)

    def _observed(self, now: float, state: JobState | None) -> ObservedJob:
        return observed_job.observe(
            self.recipe,
            self.plan,
            first=self.first,
            attempts=self.attempts,
            heartbeats=self.heartbeats,
            state=state,
            now=now,
            confidence=self.confidence,
            left_usd=self.budget.left_usd,
            to_save=self.to_save,
            triggers=self.triggers,
            asked_size=asked_batch_size(self.folder),
        )

    def _hang(self, now: float) -> str:
        last, plan = self.attempts.last, self.plan
        assert last
        run_at = max(last.run_at, last.again_at)
        start_s = LOCAL_START_S if last.placement.rental.is_local else 2 * startup.restart_s(plan)
        # The first heartbeat follows the first update, which is the whole job where a fit is one update.
        update_s = plan.forecast.expected_s * min(1.0, plan.batch_size / plan.num_samples)
        return self.heartbeats.hang(
            now,
            awake_s=_silent_awake_s(self.folder, self.heartbeats, run_at=run_at, awake=self.awake),
            asked_at=last.since,
            run_at=run_at,
            start_s=max(start_s, QUIET_UPDATES * update_s),
            hang_after_s=self.recipe.hang_after_s,
        )

    def _give_up_if_hopeless(self) -> None:
        """Raises the worker's reason if a restart would not help; the next call counts from zero again."""
        final = worker_errors.final(self.folder, names=self.jobs.names)
        failed = sum(each.failed for each in self.attempts.all)
        if not final and failed <= MAX_RESTARTS:
            return
        reason = final or worker_errors.reason(self.folder)
        logs = self._logs() or self.folder
        worker_errors.forget(self.folder)
        self.attempts.forget()
        if final:
            raise JobError(reason)
        raise JobError(
            f"job {self.folder.name} failed {failed} times, at last by: {reason}; "
            f"look at {logs} and run train again"
        )

    def _taken(self, now: float, choice: FallbackChoice) -> Taken | None:
        if not choice.name:
            return None
        return _taking(self.folder.name, now, choice.name, usd=choice.usd, reason=choice.reason)

    def _note_early_end(self, now: float, end: int, *, total: int) -> None:
        """Records that the trainer lets the rate decay to end by a limit: a fallback of its own."""
        if end < total and not self.attempts.has_taken("finish early"):
            limit = ended_early_by(self.folder, self.recipe)
            reason = f"the {limit} comes before the end: {end:,} of {total:,} samples, with the rate decayed"
            self.attempts.take(_taking(self.folder.name, now, "finish early", reason=reason))

    def _end(self, now: float, *, limit: float) -> Training:
        """Ends the job, as time or money is up, and takes the last good checkpoint as the model."""
        last = self.attempts.last
        if last and last.live and last.handle:
            self.backend.cancel(last.handle)
            state = self.backend.state(last.handle)
            if state in LIVE:
                if now < limit + ENDING_S:
                    raise NotYet(f"job {self.folder.name} was cancelled, and has not ended yet")
                self.budget.pay(now + ENDING_S, state)  # no later call looks at it
            self._note(now, state)
        if not collector.has_ended(self.folder):
            result = collector.from_checkpoint(self.folder, self.recipe, now=now)
            reason = f"the {result.stopped_by} came first; taken at {result.num_samples:,} samples"
            self.attempts.take(_taking(self.folder.name, now, "checkpoint", reason=reason))
        return self._collect(now)

    def _collect(self, now: float) -> Training:
        result = records.read(Result, self.folder)
        if result.stopped_by in {"deadline", "budget"} and not self.attempts.has_taken("checkpoint"):
            total = self.heartbeats.num_samples or self.recipe.num_samples  # fewer where validation ended it
            self._note_early_end(now, result.num_samples, total=total)
        self.budget.pay(now, None)  # the job costs nothing after its end
        usd = self.budget.spent_usd
        return collector.collect(self.folder, self.attempts, cost_usd=usd, logs=self._logs(), into=self.into)

    def _logs(self) -> str:
        """Returns where a person reads what the last job printed; "" if no job was submitted."""
        last = self.attempts.last
        return self.backend.logs(last.handle) if last and last.handle else ""


def _taking(job: str, now: float, name: Any, *, usd: float = 0.0, reason: str) -> Taken:
    """Returns the record of a fallback that is taken now, and logs it."""
    more = f"${abs(usd):.2f} {'less' if usd < 0 else 'more'}"
    log.warning("job %s: %s, for %s: %s", job, name, more, reason)
    return Taken(time=datetime.fromtimestamp(now, UTC), name=name, usd=round(usd, 4), reason=reason)


def _write_recipe(folder: Path, recipe: Recipe) -> None:
    """Leaves the recipe where the workers read it; no job lives that could."""
    path, text = folder / "job.json", records.dumps(recipe)
    if not path.exists() or path.read_text() != text:
        records.replace_text(path, text)


def _silent_awake_s(
    folder: Path, heartbeats: Heartbeats, *, run_at: float, awake: Callable[[], float]
) -> float:
    """Returns how long this machine was awake since the newest heartbeat was first seen here.

    The clock of the job's machine may be another one, and a machine that wakes has heard nothing while it
    slept. So a job is not silent before it was silent for that long here.
    """
    beat, path = heartbeats.last, folder / HEARD
    newest = [
        run_at,
        heartbeats.moved_at,
        beat.num_updates if beat else 0,
        beat.time.isoformat() if beat else "",
        night_clock.boot(),
    ]
    heard = json.loads(path.read_text()) if path.exists() else {}
    if heard.get("newest") != newest:
        heard = {"newest": newest, "at": awake()}
        with suppress(OSError):  # as on a full disk: the next look begins to count
            records.replace_text(path, json.dumps(heard) + "\n")
    return awake() - float(heard["at"])
