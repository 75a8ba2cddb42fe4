"""Decides how many workers train on the cores that are free, and whether they wait for each other.

A batch of B samples, whose rate and momentum mu were tuned for one worker, is divided into k parts, among n
workers. They work together or asynchronously:

- Together, all parts are computed at the same weights and make one update: what is learned is the same, and
  workers wait for the last of them.
- Asynchronously, each part is an update, and nobody waits. Then one relation ties number, size, rate and
  momentum. The rate of a part follows its size by the rule of the optimizer (learning_rate.py): for SGD a
  k-th, so that the noise temperature rate / (samples (1 - mu)) stays (Smith & Le 2018). n asynchronous
  workers act like a momentum of 1 - 1/n (Mitliagkas et al. 2016): so much less is set, so that the sum stays
  mu. SGD with less momentum goes less far by a gradient in the end, so its rate is raised by as much.

Where n exceeds k, n/k batches are in flight, and gradients are late: others' updates overtake them. Whether
that does harm depends on the curvature, which nothing tells beforehand: the noise scale (noise.py) calls a
problem hopeless on which late gradients do no harm. So it is tried on the problem itself: a window of batches
is trained on with late gradients, undone, and trained on again as before. Both began at the same weights and
saw the same samples, so the difference of their losses, batch by batch, is due to lateness. It may
not cost more than the time that is gained, by the slope of the loss. What lateness adds to a loss because it
is measured before the updates in flight are made is left out. It is tried again and again, within a small
share of the time.

Goodput is samples a second times progress by a sample, where a lateness that was refused makes none. A
change is made only if goodput is predicted to rise, and taken back if it is measurably no faster. An
asynchronous window whose loss rises is undone, unless the loss falls again soon enough. What was refused is
tried again within the same share of the time, in longer windows, with at most half the lateness.

Pure: the engine (asynchronous.py) measures windows, and does what is decided here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, linear_regression

MIN_GAIN = 0.05  # of predicted goodput, for a change
MIN_SPEED = 1.02  # measured samples/s of a trial by those before it
NEARLY_BEST = 0.97  # of the best predicted goodput: with so much fewer workers do
HARM = 4.0  # standard errors by which a loss must rise for it not to be chance
MOST_ERROR = 2.0  # times the standard error of the window before that one may have
DOUBT = 1.0  # standard errors by which the difference that lateness makes may be chance
LEVEL = 0.5  # weight of the newest window in the smoothed loss
REMEMBERED = 0.995  # of the costs of updates, by each next one
FORGOTTEN = 64  # windows after which speeds are measured anew, and any lateness may be tried
CHECKING = 0.03  # most of all time that is spent on trials of lateness, but for the first
WAITING = 0.2  # most of all time that is spent on losses that rise, and do not fall again
MOST_RISEN = 8  # windows that a loss may stay above its level: a step may have to train on all of them again
SHORTEST, TRIAL, LONGEST = 8, 32, 128  # batches of windows: of the first, of most, of asynchronous ones
MOMENTUM_LEFT = 0.01  # an optimizer that keeps a velocity goes on to do so
GIVE_UP_BELOW, TAKE_FROM = 0.5, 0.75  # parts of a core that have to be free, to keep it and to take it


@dataclass(frozen=True, kw_only=True)
class ThreadSetting:
    """How a batch is trained on."""

    num_workers: int = 1
    num_parts: int = 1  # of a batch
    is_asynchronous: bool = False  # each part is an update

    @property
    def kind(self) -> int:
        """0: one worker; 1: several together; 2: asynchronous ones."""
        return 2 if self.is_asynchronous else int(self.num_workers > 1)

    @property
    def lateness(self) -> float:
        """Batches in flight at once; 0 where workers wait for each other."""
        return self.num_workers / self.num_parts if self.is_asynchronous else 0.0


ALONE = ThreadSetting()  # as tuned


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an update of one worker costs, in CPU seconds."""

    pass_s: float  # of a part, whatever its size
    sample_s: float
    apply_s: float  # changing the weights, one worker at a time
    add_s: float = 0.0  # adding the gradient of a part to those of others, one worker at a time

    def samples_per_s(self, setting: ThreadSetting, *, batch_size: int) -> float:
        """Returns the speed of all workers of a setting, each on a core of its own."""
        size, n = batch_size / setting.num_parts, setting.num_workers
        gradient_s = self.pass_s + size * self.sample_s
        if setting.is_asynchronous:
            return size / max((gradient_s + self.apply_s) / n, self.apply_s)
        adding_s = (setting.num_parts - 1) * self.add_s
        return batch_size / (math.ceil(setting.num_parts / n) * gradient_s + adding_s + self.apply_s)


@dataclass(frozen=True, kw_only=True)
class ThreadTiming:
    """What a few batches gave, all by one setting."""

    first: int  # number of the first batch
    num_samples: int
    elapsed_s: float
    losses: tuple[float, ...]  # mean per sample of each batch; NaN if it overflowed

    @property
    def speed(self) -> float:
        """Samples a second."""
        return self.num_samples / self.elapsed_s

    @property
    def loss(self) -> float:
        """Mean over batches."""
        return fmean(self.losses)

    @property
    def error(self) -> float:
        """Standard error of `loss`."""
        return _error(self.losses)


def _error(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(sum((each - mean) ** 2 for each in values)) / len(values)


def pays(late: ThreadTiming, window: ThreadTiming, *, every: int = 1, behind: float = 0.0) -> bool:
    """Returns whether what is faster and late pays, by windows on the same batches, with it and without.

    Losses of the second half of the batches are compared, of which each `every`-th can be. `behind`: updates
    that the weights lack at which a late loss is measured; they are made in the end, and are no harm.
    """
    if not all(map(math.isfinite, (*late.losses, *window.losses))) or late.speed <= window.speed:
        return False
    length = len(window.losses)
    second = slice(length // 2, length, every)
    rises = [a - b for a, b in zip(late.losses[second], window.losses[second], strict=True)]
    slope, start = linear_regression(range(length), window.losses)
    rest = [loss - start - slope * n for n, loss in enumerate(window.losses)]
    # Batches: the middle of the second half, by the share of the time that was saved until then.
    due = 0.75 * length * (1 - window.speed / late.speed)
    due += fmean(min(n, behind) for n in range(length)[second])
    doubt = DOUBT * math.hypot(_error(rises), due * math.sqrt(12) / length * _error(rest))
    return fmean(rises) <= due * max(0.0, -slope) + doubt


class CostLine:
    """Fits gradient_s = pass_s * passes + sample_s * samples by least squares; recent updates count more."""

    def __init__(self) -> None:
        # Sums of passes^2, passes * samples, samples^2, seconds * passes and seconds * samples.
        self._sums: tuple[float, ...] = (0.0,) * 5
        self._apply_s = {True: 0.0, False: 0.0}

    def add(
        self, *, num_passes: int, num_samples: int, gradient_s: float, apply_s: float, is_update: bool = True
    ) -> None:
        """Records an update, or a part that was added to others, in CPU seconds."""
        p, n = num_passes, num_samples
        new = p * p, p * n, n * n, gradient_s * p, gradient_s * n
        self._sums = tuple(REMEMBERED * old + each for old, each in zip(self._sums, new, strict=True))
        known = self._apply_s[is_update]
        self._apply_s[is_update] += (apply_s - known) * ((1 - REMEMBERED) if known else 1.0)

    def costs(self) -> Costs | None:
        """Returns the line, no part of it negative; None while all updates were alike."""
        pp, pn, nn, tp, tn = self._sums
        determinant = pp * nn - pn * pn
        if determinant <= 1e-6 * pp * nn:
            return None
        pass_s, sample_s = (tp * nn - tn * pn) / determinant, (tn * pp - tp * pn) / determinant
        if pass_s < 0:
            pass_s, sample_s = 0.0, tn / nn
        elif sample_s < 0:
            pass_s, sample_s = tp / pp, 0.0
        update_s, add_s = self._apply_s[True], self._apply_s[False]
        return Costs(pass_s=pass_s, sample_s=sample_s, apply_s=update_s, add_s=add_s or update_s)


def momentum_left(tuned: float, *, num_workers: int) -> float:
    """Returns the momentum to set, so that with the implicit momentum of asynchrony the sum is `tuned`.

    The published relation goes down to -0.5; this one ends above 0: at equal temperature, negative momentum
    adds less than a tenth to the steepest curvature that is stable (derived).

    >>> [round(momentum_left(0.9, num_workers=n), 2) for n in (1, 2, 4, 16)]
    [0.9, 0.4, 0.15, 0.01]
    """
    return tuned if num_workers == 1 else min(tuned, max(MOMENTUM_LEFT, tuned - (1 - 1 / num_workers)))


@dataclass(frozen=True, kw_only=True)
class Rise:
    """Windows whose loss is above its level."""

    loss: float  # of the last one
    elapsed_s: float  # of all
    num_windows: int


@dataclass(frozen=True, kw_only=True)
class ThreadPolicy:
    """The state of the decision; each method returns the next one."""

    batch_size: int
    setting: ThreadSetting = ALONE
    accepted: ThreadSetting = ALONE  # to go back to, while `setting` is on trial
    late: tuple[ThreadSetting, ThreadTiming] | None = (
        None  # was tried and undone; `accepted` trains on the same batches
    )
    slower: tuple[ThreadSetting, ...] = ()  # were no faster lately
    most_late: float = math.inf  # more lateness did not pay lately
    checked_late: float = 0.0  # lateness that paid
    num_checks: int = 0
    check_s: float = 0.0  # that the last one cost by training on its batches again
    checked_s: float = 0.0  # that all trials of lateness cost
    risen: "Rise | None" = None  # of the loss, if it may fall again
    waited_s: float = 0.0  # for losses that had risen, in vain
    elapsed_s: float = 0.0  # of all windows
    num_windows: int = 0
    num_settled: int = 0  # windows since the setting has changed
    num_undone: int = 0  # for harm
    num_refused: int = 0  # for lateness
    level: tuple[float, float] | None = None  # smoothed loss and its standard error
    speed: float = 0.0  # samples/s of the accepted setting; 0: not measured
    calibrations: tuple[float, float, float] = (0.0, 0.0, 0.0)  # speed by that predicted, by kind; 0: unknown
    before_error: float = math.inf  # standard error of the last window that stood

    @property
    def on_trial(self) -> bool:
        """Whether the setting has still to show that it pays."""
        return self.setting != self.accepted

    @property
    def window(self) -> int:
        """Batches of the next window: more where workers wait at its end, and nothing is on trial."""
        if not self.num_windows:
            return SHORTEST
        if not self.setting.is_asynchronous:
            return TRIAL
        if self.on_trial:
            return self._trial
        if self.risen is not None:
            return TRIAL
        return min(LONGEST, TRIAL << min(8, self.num_settled))

    @property
    def _trial(self) -> int:
        """Batches of a trial of lateness."""
        return min(TRIAL, SHORTEST << min(8, self.num_checks + self.num_refused))

    def give_up(self, free_cores: float) -> "ThreadPolicy":
        """Returns the state with no more workers than there are cores, at once and without a trial."""
        most = max(1, math.floor(free_cores + 1 - GIVE_UP_BELOW))
        if max(self.setting.num_workers, self.accepted.num_workers) <= most:
            fits = self.late is None or self.late[0].num_workers <= most
            return self if fits else replace(self, late=None)
        before, fewer = self.accepted, ALONE
        if before.num_workers <= most:
            fewer = before
        elif most > 1:
            parts = math.ceil(before.num_parts * most / before.num_workers)  # no later than before
            fewer = replace(before, num_workers=most, num_parts=parts if before.is_asynchronous else most)
        return replace(self, setting=fewer, accepted=fewer, late=None, speed=0.0, num_settled=0)

    def judge(
        self, window: ThreadTiming, *, free_cores: float, costs: Costs | None, may_undo: bool
    ) -> tuple["ThreadPolicy", bool]:
        """Returns the next state after a window of the setting, and whether the window has to be undone.

        `costs` is None while unknown. `may_undo` says whether the weights before the window were kept, which
        is the case if a part of the window was asynchronous.
        """
        elapsed_s = self.elapsed_s + window.elapsed_s
        tries_late = may_undo and self.on_trial and self.setting.lateness > self.checked_late
        # A setting on trial is judged by the same batches without it, not by earlier batches.
        if may_undo and not (tries_late and math.isfinite(window.loss)) and self.harms(window):
            if not self._may_fall(window):
                return replace(self, elapsed_s=elapsed_s).undone(window.elapsed_s), True
            rise = Rise(
                loss=window.loss,
                elapsed_s=self._risen_s + window.elapsed_s,
                num_windows=self.risen.num_windows + 1 if self.risen else 1,
            )
            return replace(self, risen=rise, elapsed_s=elapsed_s), False
        state = replace(
            self,
            num_windows=self.num_windows + 1,
            num_settled=self.num_settled + 1,
            elapsed_s=elapsed_s,
            risen=None,
        )._fresh()
        if tries_late:
            return replace(state, setting=self.accepted, late=(self.setting, window)), True
        state = state._seen(window, costs)
        if self.late and self.late[1].first == window.first:
            state = state._paired(*self.late, window)
        elif self.on_trial and window.speed < MIN_SPEED * self.speed:
            state = replace(state, setting=self.accepted, slower=(*self.slower, self.setting), num_settled=0)
        else:
            state = replace(state, accepted=self.setting, speed=window.speed)
        return replace(state, late=None)._choose(free_cores=free_cores, costs=costs), False

    def harms(self, window: ThreadTiming) -> bool:
        """Returns whether the loss rose by more than chance explains."""
        if not math.isfinite(window.loss):
            return True
        if self.level is None:
            return False
        loss, error = self.level
        usual = min(window.error, MOST_ERROR * self.before_error)  # a loss that explodes varies as much
        return window.loss - loss > HARM * math.hypot(usual, error)

    def _may_fall(self, window: ThreadTiming) -> bool:
        """Returns whether a loss that rose is expected to be where it was within the time left for that.

        Where the curvature is more than late gradients bear, the loss rises, the weights move to where the
        curvature is less, and the loss falls again (a catapult: Lewkowycz et al. 2020).
        """
        if not math.isfinite(window.loss) or self.on_trial or self.level is None:
            return False
        most_s = WAITING * self.elapsed_s
        left_s = most_s - self.waited_s - self._risen_s - window.elapsed_s
        if self.risen and self.risen.num_windows >= MOST_RISEN:
            return False
        if self.risen is None or left_s >= most_s / 2:  # it may rise further before it falls
            return left_s >= window.elapsed_s
        rise, fall = window.loss - self.level[0], self.risen.loss - window.loss
        return fall > 0 and window.elapsed_s * max(1.0, rise / fall) <= left_s  # it waits for whole windows

    @property
    def _risen_s(self) -> float:
        return self.risen.elapsed_s if self.risen else 0.0

    def undone(self, elapsed_s: float = 0.0) -> "ThreadPolicy":
        """Returns the state after windows that did harm, the last of them in so many seconds."""
        cost_s = self._risen_s + elapsed_s
        n = self.setting.num_workers
        together = ThreadSetting(num_workers=n, num_parts=n) if n > 1 else ALONE
        kept = together if self.accepted.is_asynchronous else self.accepted
        state = replace(
            self,
            accepted=kept,
            late=None,
            checked_late=0.0,
            speed=0.0,
            num_undone=self.num_undone + 1,
            risen=None,
            waited_s=self.waited_s + (cost_s if self.risen else 0.0),
        )
        return state._refused(self.setting, cost_s=cost_s)

    def wanted(self, limit: int, *, costs: Costs | None) -> int:
        """Returns how many cores this run would use of so many, for those who share them."""
        return self.best(limit, costs=costs).num_workers

    def goodput(self, setting: ThreadSetting, *, costs: Costs) -> float:
        """Returns the predicted progress a second, in samples of one worker."""
        if setting.lateness > self.most_late or setting in self.slower:
            return 0.0
        calibration = self.calibrations[setting.kind] or self.calibrations[0] or 1.0
        return calibration * costs.samples_per_s(setting, batch_size=self.batch_size)

    def best(self, cores: int, *, costs: Costs | None, most_late: float = math.inf) -> ThreadSetting:
        """Returns the setting with the fewest workers whose predicted goodput is nearly the best."""
        if costs is None:
            return ALONE
        goodputs = {
            each: self.goodput(each, costs=costs)
            for n in range(1, max(1, min(cores, self.batch_size)) + 1)
            for each in _settings(n)
            if each.lateness <= most_late
        }
        least = NEARLY_BEST * max(goodputs.values())
        fewest = min(each.num_workers for each, goodput in goodputs.items() if goodput >= least)
        return max((each for each in goodputs if each.num_workers == fewest), key=goodputs.__getitem__)

    def _choose(self, *, free_cores: float, costs: Costs | None) -> "ThreadPolicy":
        """Returns the state with the best setting for these cores, if it is predicted to be better.

        What is known to do no harm comes first: more lateness is then tried beside that.
        """
        if costs is None:
            return self
        next_check_s = 2 * self.check_s  # at most, as windows of checks double
        is_due = self.checked_s + next_check_s <= CHECKING * self.elapsed_s
        if self.setting.is_asynchronous and is_due:
            without = self.best(self.setting.num_workers, costs=costs, most_late=0.0)
            return replace(self, accepted=without, checked_late=0.0)
        kept = min(self.setting.num_workers, math.floor(free_cores + 1 - GIVE_UP_BELOW))
        cores = max(1, kept, math.floor(free_cores + 1 - TAKE_FROM))
        now = self.goodput(self.setting, costs=costs)
        for most_late in (self.checked_late, math.inf) if self._may_try() else (self.checked_late,):
            best = self.best(cores, costs=costs, most_late=most_late)
            if self.goodput(best, costs=costs) > (1 + MIN_GAIN) * now:
                return replace(self, accepted=self.setting, setting=best, num_settled=0)
        return self

    def _may_try(self) -> bool:
        """Returns whether a trial of more lateness is within the time left for trials."""
        if not (self.num_checks or self.num_refused):
            return True
        trial_s = self._trial * self.batch_size / self.speed if self.speed else math.inf
        return self.checked_s + trial_s <= CHECKING * self.elapsed_s

    def _paired(self, setting: ThreadSetting, late: ThreadTiming, window: ThreadTiming) -> "ThreadPolicy":
        """Returns the state after both windows of a trial of lateness, on the same batches."""
        if not pays(late, window, behind=(setting.num_workers - 1) / setting.num_parts):
            return replace(self, speed=window.speed)._refused(setting, cost_s=late.elapsed_s)
        return replace(
            self,
            setting=setting,
            accepted=setting,
            speed=late.speed,
            checked_late=setting.lateness,
            most_late=max(self.most_late, 2 * setting.lateness),
            num_settled=0,
            num_checks=self.num_checks + 1,
            check_s=window.elapsed_s,
            checked_s=self.checked_s + window.elapsed_s,
        )

    def _refused(self, late: ThreadSetting, *, cost_s: float) -> "ThreadPolicy":
        """Returns the state after a setting whose lateness does not pay; half of it is tried next."""
        # Harm may show only after cores were taken away, and then does not count against fewer cores.
        most_late = late.lateness / 2 if late.is_asynchronous else self.most_late
        return replace(
            self,
            setting=self.accepted,
            most_late=most_late,
            num_refused=self.num_refused + 1,
            checked_s=self.checked_s + cost_s,
            num_settled=0,
        )

    def _fresh(self) -> "ThreadPolicy":
        """Returns the state without speeds and refusals of long ago."""
        if self.num_windows % FORGOTTEN:
            return self
        return replace(self, slower=(), most_late=math.inf, calibrations=(self.calibrations[0], 0.0, 0.0))

    def _seen(self, window: ThreadTiming, costs: Costs | None) -> "ThreadPolicy":
        """Returns the state that knows loss and speed of this window of `self.setting`."""
        level, kept = self.level or (window.loss, window.error), 1 - LEVEL
        level = kept * level[0] + LEVEL * window.loss, math.hypot(kept * level[1], LEVEL * window.error)
        ratios = list(self.calibrations)
        if costs is not None:
            ratio = window.speed / costs.samples_per_s(self.setting, batch_size=self.batch_size)
            known = ratios[self.setting.kind]
            ratios[self.setting.kind] = (known + ratio) / 2 if known else ratio
        return replace(
            self, level=level, before_error=window.error, calibrations=(ratios[0], ratios[1], ratios[2])
        )


def _settings(num_workers: int) -> list[ThreadSetting]:
    """Returns the settings of so many workers: together, and with more or fewer parts in flight."""
    if num_workers == 1:
        return [ALONE]
    parts = {math.ceil(num_workers / 2**halvings) for halvings in range(num_workers.bit_length() + 1)}
    return [ThreadSetting(num_workers=num_workers, num_parts=num_workers)] + [
        ThreadSetting(num_workers=num_workers, num_parts=each, is_asynchronous=True) for each in sorted(parts)
    ]
