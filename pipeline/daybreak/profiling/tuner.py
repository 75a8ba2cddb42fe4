"""Tries the remedies: applied one after the other, measured, and kept or reverted.

The remedies of the job's bound come first, in the order of Lakshmanan's thread (remedies.py), then others
that promise enough. A remedy that the program can apply is tried against the current state, on the same
batches (`ab_timing`), and kept only if it is clearly faster and the losses of the first updates are the same.
A remedy is not tried if the trial would cost more than it could save in the whole training. Finally, the last
variant is timed against the initial one and dropped unless it is clearly faster, so the job never ends slower
than it began.
"""

import logging
import math
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from daybreak.contract.errors import ParamsError
from daybreak.contract.record_parts import Remedy, Tuning
from daybreak.contract.sections import TrainParams
from daybreak.contract.workload import is_undivided
from daybreak.machines import this_machine
from daybreak.profiling.ab_timing import PAIRS, Comparison, Trials, Variant, updates
from daybreak.profiling.job_facts import JobFacts, ModelFacts
from daybreak.profiling.memory_fit import MEMORY_REMEDIES
from daybreak.profiling.remedies import (
    MANY_LOADERS,
    NOT_TRIED,
    SMALLER_BATCH,
    VARIANTS,
    Offer,
    offers,
)
from daybreak.training.loader import draws
from daybreak.training.tuning import blocks, fusible, limitable, read, same_if_sparse, tables, tensors

if TYPE_CHECKING:
    from daybreak.profiling.harness import Harness

log = logging.getLogger(__name__)

CLEARLY = 0.02  # least gain that counts
LIMIT_S, SHARE = 180.0, 0.1  # for all trials, at most: seconds, and share of the planned training
COLUMNS_SHARE = 0.1  # of this machine's memory, for samples kept in columns
NUM_CHECKED = 16  # samples


@dataclass(frozen=True, kw_only=True)
class TuningResult:
    """The remedies with the result of each, and the tuning with those that were kept."""

    remedies: tuple[Remedy, ...]
    tuning: Tuning
    evidence: dict[str, Any]


def tune(
    harness: "Harness",
    job: JobFacts,
    training: TrainParams,
    *,
    quality: Literal["offer", "allow"],
    limit_s: float = math.inf,
) -> TuningResult:
    """Tries the remedies that apply to the job on the harness.

    Args:
        harness: with the tuning that the job begins with.
        job: what was measured of it.
        training: how long it will run; its batch is the one that trials take.
        quality: whether remedies that touch the quality of the model are tried.
        limit_s: seconds that all trials may take.
    """
    return _RemedySearch(harness, job, training, quality=quality, limit_s=limit_s).run()


class _RemedySearch:
    def __init__(
        self, harness: "Harness", job: JobFacts, training: TrainParams, *, quality: str, limit_s: float
    ) -> None:
        self.cheaper_workloads = variants(harness.workload)
        measured = with_measurements(harness, job, training)
        model = replace(measured.model, variants=frozenset(self.cheaper_workloads))
        self.job = replace(measured, model=model)
        self.trials = Trials(harness.workload, harness.data, training)
        self.quality = quality
        self.begin = time.perf_counter()
        size = min(training.batch_size, harness.num_samples)
        micro = min(size, job.memory.most_samples or size)
        self.start = self.variant = Variant(tuning=harness.tuning, batch_size=size, micro_batch_size=micro)
        self.start_s = self.update_s = job.load_s(size) + job.step_s(size)
        self.step_s = job.step_s(size)  # of the variant, as far as it is known
        num_updates = training.epochs * harness.num_samples / job.batch_size
        self.training_s = num_updates * job.total_s
        # Trials run one worker, which has no memory for an optimizer state that several must share.
        self.limit_s = 0.0 if harness.tuning.sharded else min(LIMIT_S, SHARE * self.training_s, limit_s)

    def run(self) -> TuningResult:
        """Tries all offers, those of the bound first, and returns them in the order of the thread."""
        offered = offers(self.job)
        tried = sorted(offered, key=self._turn)
        results = {id(each): self._apply(each) for each in tried}
        remedies = tuple(results[id(each)] for each in offered)
        last = self._confirm()
        if self.variant == self.start:
            remedies = tuple(_undone(remedy) for remedy in remedies)
        return TuningResult(
            remedies=remedies,
            tuning=self.variant.tuning,
            evidence={
                "batch_size": self.start.batch_size,
                "compile_s": self.job.model.compile_s,
                "kept_by_day": self.job.reads.new_share < 1,
                "before_s": last.old_s if last else self.update_s,
                "after_s": last.new_s if last and self.variant != self.start else None,
                "ratio": [last.ratio, last.low, last.high] if last else None,
                "tuning": asdict(self.variant.tuning),
                "elapsed_s": time.perf_counter() - self.begin,
                "limit_s": self.limit_s,
                "training_s": self.training_s,
            },
        )

    def _turn(self, offer: Offer) -> tuple[bool, bool, bool]:
        """Returns the sort key of a trial: remedies of the bound come first, slow trials last.

        Samples that stay in memory come after loaders, which read them in the first epoch.
        """
        other = offer.remedy.bound != self.job.bound
        return offer.change.get("compiled", False), other, "in_memory" in offer.change

    def _apply(self, offer: Offer) -> Remedy:
        remedy = offer.remedy
        if remedy.name in MEMORY_REMEDIES:
            return self._memory_remedy(offer)
        if not remedy.applies or not (offer.change or remedy.quality):
            return remedy
        if remedy.quality:
            return self._touch_quality(offer)
        if "num_loaders" in offer.change:
            return self._loaders(offer)
        if "fused" in offer.change and self.variant.tuning.sparse:
            return replace(remedy, note=f"{NOT_TRIED}the fused optimizer takes no sparse gradients")
        return self._try(offer)

    def _memory_remedy(self, offer: Offer) -> Remedy:
        """Returns a remedy that makes a job fit: applied before anything was timed, or not needed."""
        remedy, start = offer.remedy, self.start
        note = self.job.memory.remedies.get(remedy.name)
        if note and (self.job.model.blocks or "recompute" not in offer.change):
            return replace(remedy, applies=True, applied=True, kept=True, note=note)
        if not remedy.applies:
            return remedy
        passes = f"passes of {start.micro_batch_size} samples"
        if offer.change:
            return replace(remedy, note=f"{remedy.note}; {NOT_TRIED}{passes} fit without it")
        split = start.micro_batch_size < start.batch_size
        return replace(
            remedy, applies=split, applied=split, kept=split, note=f"{passes} of {start.batch_size}"
        )

    def _try(self, offer: Offer) -> Remedy:
        """Applies the remedy, measures it, and keeps or reverts it."""
        new = replace(self.variant, tuning=replace(self.variant.tuning, **offer.change))
        share = self.job.again_share if "in_memory" in offer.change else 1.0  # of the reads that gain
        return self._trial(offer, new, share=share)

    def _trial(self, offer: Offer, new: Variant, *, share: float = 1.0) -> Remedy:
        remedy = offer.remedy
        cost_s = self._cost_s(new) + offer.extra_s
        # Once loading is faster, another remedy for it can save less than was predicted.
        left = 1 - self.step_s / self.update_s if remedy.bound == "io" else 1.0
        could_save_s = min(left, remedy.predicted_gain) * self.training_s - offer.extra_s
        if cost_s >= could_save_s:
            why = f"a trial takes {cost_s:.1f} s and could save {max(0.0, could_save_s):.1f} s"
            return replace(remedy, note=f"{remedy.note}; {NOT_TRIED}{why}")
        left_s = self.begin + self.limit_s - time.perf_counter()
        if cost_s > left_s:
            why = f"a trial takes {cost_s:.1f} s of {max(0.0, left_s):.1f} s left"
            return replace(remedy, note=f"{remedy.note}; {NOT_TRIED}{why}")
        needed = CLEARLY / share + offer.extra_s / self.training_s
        try:
            comparison = self.trials.compare(
                self.variant, new, update_s=self.update_s, enough=1 - needed, limit_s=left_s
            )
        except Exception as error:  # whatever fails: the job runs without the remedy
            log.debug("%s failed", remedy.name, exc_info=error)
            reason = (str(error).splitlines() or [""])[0]
            return replace(remedy, applied=True, note=f"failed: {type(error).__name__}: {reason}"[:300])
        gain = (1 - comparison.ratio) * share
        if not comparison.loss_difference <= offer.tolerance:
            note = (
                f"losses of the first updates are {comparison.loss_difference:.1g} apart; "
                f"allowed are {offer.tolerance:g}"
            )
            return replace(remedy, applied=True, measured_gain=gain, note=note)
        kept = comparison.high < 1 - needed
        if kept:
            if remedy.bound != "io":
                self.step_s = max(0.0, self.step_s - (1 - comparison.ratio) * self.update_s)
            self.variant, self.update_s = new, comparison.new_s
        note = (
            f"{remedy.note}; the median of {comparison.num_pairs} pairs is {comparison.ratio:.2f} of the time"
        )
        return replace(remedy, applied=True, kept=kept, measured_gain=gain, note=note)

    def _loaders(self, offer: Offer) -> Remedy:
        """Tries threads, then processes if samples are read one by one in Python, and keeps the faster."""
        if offer.change["loader_processes"]:
            return self._try(offer)
        remedy = self._threads(offer)
        tuning = self.variant.tuning
        if self.job.reads.whole_batches or tuning.in_memory or self.update_s < 1.1 * self.step_s:
            return remedy
        number = self.job.device.num_cores
        change = {"num_loaders": number, "loader_processes": True}
        note = f"{number} process(es) ahead of the step"
        return _both(
            remedy, self._try(replace(offer, change=change, remedy=replace(offer.remedy, note=note)))
        )

    def _threads(self, offer: Offer) -> Remedy:
        """Tries as many threads as help: more while they are clearly faster, one where many are not."""
        number = offer.change["num_loaders"]
        remedy = self._try(offer)
        if number == 1 or not remedy.applied:
            return remedy
        more = MANY_LOADERS[1] if remedy.kept else 1
        if remedy.kept and self.update_s < 1.5 * self.step_s:
            return remedy
        change = offer.change | {"num_loaders": more}
        note = f"{more} loader(s)"
        return _both(
            remedy, self._try(replace(offer, change=change, remedy=replace(offer.remedy, note=note)))
        )

    def _touch_quality(self, offer: Offer) -> Remedy:
        remedy = offer.remedy
        if self.quality == "offer":
            return remedy
        if remedy.name == SMALLER_BATCH:
            half = max(1, self.variant.batch_size // 2)
            micro = min(half, self.variant.micro_batch_size)
            return self._trial(offer, replace(self.variant, batch_size=half, micro_batch_size=micro))
        if remedy.name in VARIANTS:
            return self._cheaper(offer)
        if remedy.name == "fewer steps":
            return replace(
                remedy, note=f"{remedy.note}; allowed, so the plan takes fewer where time is short"
            )
        return remedy

    def _cheaper(self, offer: Offer) -> Remedy:
        """Times the workload's variant of that name; never keeps it, since a variant is another recipe."""
        remedy = offer.remedy
        variant = self.cheaper_workloads.get(remedy.name)
        if variant is None:
            return remedy
        cost_s, left_s = self._cost_s(self.variant), self.begin + self.limit_s - time.perf_counter()
        if cost_s > left_s:
            why = f"a trial takes {cost_s:.1f} s of {max(0.0, left_s):.1f} s left"
            return replace(remedy, note=f"{remedy.note}; {NOT_TRIED}{why}")
        try:
            timed = self.trials.compare(
                self.variant,
                self.variant,
                update_s=self.update_s,
                enough=1 - CLEARLY,
                limit_s=left_s,
                workload=variant,
            )
        except Exception as error:  # whatever fails in the team's code: the job runs as it is
            log.debug("the variant %r failed", remedy.name, exc_info=error)
            reason = (str(error).splitlines() or [""])[0]
            return replace(remedy, applied=True, note=f"failed: {type(error).__name__}: {reason}"[:300])
        note = (
            f"an update of this variant takes {timed.ratio:.2f} of the time; list it in search.space under "
            f"workload.variant, or set that key, and the gate judges it as an edited workload"
        )
        return replace(remedy, applied=True, measured_gain=1 - timed.ratio, note=note)

    def _confirm(self) -> Comparison | None:
        """Times the final variant against the initial one, and goes back unless the final one is faster."""
        if self.variant == self.start:
            return None
        comparison = self.trials.compare(
            self.start, self.variant, update_s=self.start_s, enough=1 - CLEARLY, limit_s=self.limit_s
        )
        if comparison.high >= 1:
            self.variant = self.start
        return comparison

    def _cost_s(self, new: Variant) -> float:
        """Returns the seconds of the fewest pairs, the first updates, and making two engines."""
        count = updates(self.variant, new, self.update_s)
        return (2 * PAIRS[0] + 4) * count * self.update_s


def with_measurements(harness: "Harness", job: JobFacts, training: TrainParams) -> JobFacts:
    """Returns the job with the facts that remedies need beside its lines, measured on the harness."""
    checked = list(range(min(NUM_CHECKED, harness.num_samples)))
    batch = read(harness.data, checked)
    num_bytes = sum(leaf.numel() * leaf.element_size() for leaf in tensors(batch)) / len(checked)
    size = min(training.batch_size, harness.num_samples, job.memory.most_samples or training.batch_size)
    step_s, optimizer_s = _least_s(harness, harness.load(size), size)
    dense = [] if harness.tuning.sharded_weights else tables(harness.model)
    num_rows = sum(len(table.weight) for table in dense)
    num_parameters = sum(parameter.numel() for parameter in harness.model.parameters())
    return replace(
        job,
        epochs=training.epochs,
        num_workers=training.num_workers,
        reads=replace(
            job.reads,
            draws=draws(harness.data, np.array(checked)),
            batch_bytes=int(num_bytes * job.batch_size),
            columns_bytes=int(num_bytes * harness.num_samples) * training.num_workers
            if _repeatable(harness.data, batch, checked)
            else 0,
            memory_bytes=int(COLUMNS_SHARE * this_machine.installed_bytes()),
            new_share=_new_share(harness.data) if training.num_workers == 1 else 1.0,
        ),
        step=replace(job.step, optimizer_share=optimizer_s / step_s if step_s else 0.0),
        model=ModelFacts(
            sparse_rows=sum(map(_rows_with_gradient, dense)) / num_rows if num_rows else 0.0,
            sparse_equal=all(map(same_if_sparse, harness.optimizers.values())),
            table_share=sum(table.weight.numel() for table in dense) / max(1, num_parameters),
            is_undivided=is_undivided(harness.workload),
            fusible=all(map(fusible, harness.optimizers.values())),
            images=any(isinstance(module, nn.Conv2d) for module in harness.model.modules()),
            blocks=bool(blocks(harness.model)),
            convolves=limitable(harness.model),
            band_rate=harness.tuning.band_rate,
            num_layers=sum(any(True for _ in m.parameters(recurse=False)) for m in harness.model.modules()),
        ),
    )


def _new_share(dataset: Any) -> float:
    """Returns the share of the samples that is of the newest day, where a data set says its days; else 1."""
    days = getattr(dataset, "days", {})
    return next(reversed(days.values())) / max(1, sum(days.values())) if days else 1.0


def variants(workload: Any) -> dict[str, Any]:
    """Returns the workloads that a workload offers in its place, by the name of the remedy.

    Raises ParamsError for another name.
    """
    offered = dict(workload.variants()) if hasattr(workload, "variants") else {}
    if unknown := sorted(set(offered) - set(VARIANTS)):
        raise ParamsError(
            f"{type(workload).__name__}.variants names {unknown[0]!r}; name one of {', '.join(VARIANTS)}"
        )
    return offered


def _rows_with_gradient(table: nn.Embedding | nn.EmbeddingBag) -> int:
    """Returns the rows that the last step looked up."""
    gradient = table.weight.grad
    return 0 if gradient is None else int((gradient != 0).any(dim=1).sum())


def _least_s(harness: "Harness", batch: Any, size: int) -> tuple[float, float]:
    """Returns the least seconds of a step and of the optimizer in it, of three."""
    seconds = []
    for _ in range(3):
        begin = harness.now()
        harness.backward(batch, size)
        between = harness.now()
        harness.update()
        end = harness.now()
        seconds.append((end - begin, end - between))
    return min(step_s for step_s, _ in seconds), min(optimizer_s for _, optimizer_s in seconds)


def _repeatable(dataset: Any, batch: Any, samples: list[int]) -> bool:
    """Returns whether samples are tensors that come out the same when read again, and each by itself."""
    whole = list(tensors(batch))
    if not whole or any(not leaf.dim() or len(leaf) != len(samples) for leaf in whole):
        return False
    again = list(tensors(read(dataset, samples)))
    each = [list(tensors(read(dataset, [sample]))) for sample in samples]
    return all(_equal(a, b) for a, b in zip(whole, again, strict=True)) and all(
        _equal(leaf[place : place + 1], alone)
        for place, parts in enumerate(each)
        for leaf, alone in zip(whole, parts, strict=True)
    )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether both are equal bit for bit, NaN included."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(torch.nan_to_num(one), torch.nan_to_num(other))
    )


def _both(remedy: Remedy, again: Remedy) -> Remedy:
    """Returns the result of two trials of a remedy, one after the other: the second if it was kept."""
    if not again.kept:
        return remedy
    left = 1 - remedy.measured_gain if remedy.kept else 1.0
    return replace(again, measured_gain=1 - (1 - again.measured_gain) * left)


def _undone(remedy: Remedy) -> Remedy:
    if not remedy.kept or remedy.name in MEMORY_REMEDIES:
        return remedy
    return replace(
        remedy,
        kept=False,
        note=f"{remedy.note}; reverted, as the final variant was not faster in a last trial",
    )
