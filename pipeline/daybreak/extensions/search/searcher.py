"""Tries settings on the samples of a night that is decided, until the time of the night is over.

Each try trains as a night would from new weights, on all but the newest samples, on the machine of the night.
Optuna proposes the settings and ends tries that lag at a ninth or a third of their samples (successive
halving, Jamieson & Talwalkar 2016); its study is kept in the home. The first run of a night has today's
settings, and all others are compared with it at the same share of their samples. The settings that did best
on other nights are tried again before new ones.
"""

import hashlib
import json
import logging
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daybreak.contract import extras, params, records
from daybreak.contract.errors import NotFinite, NothingToDo, PipelineError, sentence
from daybreak.contract.formats import counted, duration
from daybreak.contract.record_types import Champion, Dataset, Night
from daybreak.contract.sections import Params
from daybreak.contract.workload import ARRAYS
from daybreak.extensions.search import proposal
from daybreak.extensions.search.settings import SearchParams
from daybreak.extensions.search.space import distributions
from daybreak.extensions.search.winner import Try, Values, Winner, by_values, winner
from daybreak.registry import lineage
from daybreak.storage import night_folders
from daybreak.storage.home import Home
from daybreak.training.recipe import num_newest
from daybreak.training.short_run import ShortRun

if TYPE_CHECKING:
    import optuna

log = logging.getLogger(__name__)

STEPS = (1, 3, 9)  # ninths of a run's samples, after which it is scored
LEADERS = 2  # settings that are tried again on another night
MOST_SCORED = 10_000  # samples
LOOK_S = 10.0  # between looks for another night
NIGHT, AGAIN = "night", "again"  # attributes of tries


class _OutOfTime(Exception):
    """Raised where the time of the night is over, or another night needs the machine."""


class Searcher:
    """Tries settings on the samples of a night, whose folder is the current one."""

    def __init__(self, home: Home, night: Night) -> None:
        """Opens the study; raises NothingToDo where nothing is searched."""
        self._home, self._night, self._until, self._look_at = home, night, math.inf, 0.0
        self._own = home.params
        self._settings = self._own.section(SearchParams)
        if not self._settings.space:
            raise NothingToDo("search.space is empty, so no settings are tried; list some")
        self._proposed = proposal.read(home, self._own)
        self._today = self._with({})
        self._recipe = lineage.recipe(self._today.workload, self._today.train)
        self.study = self._opened()
        dataset = records.read(Dataset, home.records)
        num, num_scored = dataset.num_samples, max(1, num_newest(dataset, self._settings.validation))
        self._end = num - num_scored  # of the samples that are trained on
        self._num_failed = 0
        self._seen = [self._todays()]  # settings that need no run tonight, or had one
        self._scored = np.linspace(self._end, num - 1, min(num_scored, MOST_SCORED)).astype(np.int64)

    def search(self, *, until: float) -> Winner | None:
        """Tries settings until a time, in seconds since 1970; returns those found better by now."""
        self._until, began = until, time.monotonic()
        try:
            self._expect_time()
            base = list(self._scores(self._today))
            self._enqueue_leaders()
            for _ in range(self._settings.tries):
                self._expect_time()
                self._try(base)
        except _OutOfTime:
            pass
        log.info(
            "tried %s in %s on the samples of night %s%s",
            counted(len(self._seen) - 1 - self._num_failed, "setting"),
            duration(time.monotonic() - began),
            self._night.id,
            f"; {counted(self._num_failed, 'other')} failed, as said above" if self._num_failed else "",
        )
        found = winner(self._tries(), nights=self._settings.nights)
        if found:
            self._propose(found)
        return found

    def _with(self, values: Values) -> Params:
        """Returns the params with settings, beside those that were proposed before."""
        given = proposal.assignments(self._proposed.values | values)
        return params.override(self._home.folder, given)

    def _todays(self) -> Values:
        """Returns today's settings, without arguments that params.yaml leaves to the class."""
        known = self._today.model_dump(include={"train"})
        known["workload"] = {"variant": ""} | (self._today.workload.model_extra or {})  # "": the class itself
        keys = [(key, *key.split(".")) for key in self._settings.space]
        return {key: known[section][name] for key, section, name in keys if name in known[section]}

    def _opened(self) -> "optuna.Study":
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._home.var.mkdir(exist_ok=True)
        path = self._home.var / proposal.STUDY
        _cut_torn_line(path)
        workload = self._today.workload.make()
        # What a try is scored by (validation_score.py): the first metric, where the class names some.
        metrics = getattr(workload, "metrics", ())
        scored_by = repr(metrics[0]) if metrics and not callable(metrics) else ""
        asked = json.dumps(
            [self._recipe, self._settings.space, self._settings.validation, scored_by], sort_keys=True
        )
        seed = int(hashlib.md5(self._night.id.encode(), usedforsecurity=False).hexdigest()[:8], 16)
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(JournalFileBackend(str(path))),
            # A study takes no list of other values, and its gains are of one share of scored samples.
            study_name=hashlib.md5(asked.encode(), usedforsecurity=False).hexdigest(),
            direction="maximize",
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=3),
            load_if_exists=True,
        )

    def _try(self, base: list[float]) -> None:
        """Tries the next settings; raises _OutOfTime where the time is over amid it."""
        import optuna

        trial = self.study.ask(distributions(self._settings.space))
        trial.set_user_attr(NIGHT, self._night.id)
        state, gain = optuna.trial.TrialState.FAIL, None  # which the sampler passes over
        try:
            if trial.params not in self._seen:
                self._seen.append(trial.params)
                gain = self._gain(trial, base)
            if gain is not None:
                state = optuna.trial.TrialState.COMPLETE
        except optuna.TrialPruned:
            state = optuna.trial.TrialState.PRUNED
        except _OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001 whatever the team's class raises for these settings
            self._num_failed += 1
            log.warning("%s: %s", ", ".join(proposal.assignments(trial.params)), sentence(error))
        finally:
            self.study.tell(trial, gain, state=state)

    def _gain(self, trial: "optuna.Trial", base: list[float]) -> float | None:
        """Returns what settings add to today's score; None where that is no number.

        Raises TrialPruned for a run that lags behind others, unless it is tried again.
        """
        import optuna

        gain = None
        for step, score, other in zip(STEPS, self._scores(self._with(trial.params)), base, strict=True):
            gain = score - other
            if not math.isfinite(gain):
                return None
            trial.report(gain, step)
            if step < STEPS[-1] and not trial.user_attrs.get(AGAIN) and trial.should_prune():
                raise optuna.TrialPruned
        return gain

    def _scores(self, with_settings: Params) -> Iterator[float]:
        """Yields the mean score of the newest samples after each of the steps of a run."""
        workload: Any = with_settings.workload.make()
        samples = workload.dataset(ARRAYS, "train")  # anew, as an argument may act in it
        run = ShortRun(workload, samples, with_settings.train, samples=np.arange(self._end))
        ends = [math.ceil(step / STEPS[-1] * run.num_samples) for step in STEPS]
        try:
            for seen in run.updates():
                self._expect_time()
                while ends and seen >= ends[0]:
                    ends.pop(0)
                    yield run.engine.mean_score(self._scored, alive=self._expect_time)
        except NotFinite:
            yield from (math.nan for _ in ends)
        finally:
            run.engine.close()

    def _expect_time(self) -> None:
        """Raises _OutOfTime where the time is over, or another night is open, whose work comes first."""
        now = time.time()
        if now >= self._until:
            raise _OutOfTime
        if now >= self._look_at:
            if night_folders.undecided(self._home):
                raise _OutOfTime
            self._look_at = now + LOOK_S

    def _tries(self) -> list[Try]:
        """Returns the tries of all nights that went to the end."""
        import optuna

        done = self.study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        return [
            Try(values=each.params, night=each.user_attrs[NIGHT], gain=each.value)
            for each in done
            if each.value is not None
        ]

    def _enqueue_leaders(self) -> None:
        """Has the settings that did best on other nights tried first."""
        gains = [
            (sum(gains.values()) / len(gains), values)
            for values, gains in by_values(self._tries())
            if self._night.id not in gains
        ]
        for gain, values in sorted(gains, key=lambda each: -each[0])[:LEADERS]:
            if gain > 0:
                self.study.enqueue_trial(values, user_attrs={AGAIN: True})

    def _propose(self, found: Winner) -> None:
        """Has the next nights train the settings, unless others are still on trial before the gate."""
        champion = records.find(Champion, self._home.records)
        serves = champion is not None and champion.lineage.get("recipe") == self._recipe
        since = self._proposed.since
        if since and not serves and (self._night.day - since).days <= proposal.TESTED_DAYS:
            return
        values = self._proposed.values | found.values
        proposal.write(self._home, self._own, values, since=self._night.day)
        log.info(
            "%s gained %.3g a sample (%.3g at least) on %d nights; later nights train it as a changed recipe",
            ", ".join(proposal.assignments(found.values)),
            found.gain,
            found.low,
            found.num_nights,
        )


def _cut_torn_line(path: Path) -> None:
    """Leaves whole lines, as one that a kill left amid its writing would spoil all after it."""
    if path.exists():
        with path.open("rb+") as study:
            study.truncate(study.read().rfind(b"\n") + 1)


def main(home: Path, until: float) -> int:
    """Searches in the folder of a night, which is the current one."""
    here = Home(home)
    try:
        Searcher(here, records.read(Night, here.records)).search(until=until)
    except PipelineError as error:
        log.error("%s", error)
        return error.exit_status
    except ModuleNotFoundError as error:
        log.error("%s", extras.missing(error) or error)
        return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
