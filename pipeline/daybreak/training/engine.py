"""Takes updates: the protocol `Engine`, and its implementation in torch with one process per device.

The gradient of an update is the sum of the gradients of its samples / its global batch size, for any shares
of the workers and any size of the passes: shares may differ, and a share may be empty. Where memory does not
suffice for a pass on one worker, all workers repeat that update, in passes of half the size or as a guard of
the memory says (micro_batch.py).
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from daybreak.contract.errors import JobError, NotFinite, ParamsError, is_out_of_memory
from daybreak.contract.extra_state import SUFFIX
from daybreak.contract.record_parts import EVERY_UPDATE, Sync, Tuning
from daybreak.contract.workload import TrainingProgress, Workload, is_undivided, take_first_weights, thaws
from daybreak.training.accumulation import Accumulation
from daybreak.training.checkpoint import TrainingState
from daybreak.training.column_files import ColumnFiles
from daybreak.training.generators import seed_all
from daybreak.training.gradients import Gradients, Signals
from daybreak.training.learning_rate import Rule, Scaled
from daybreak.training.loader import Loader
from daybreak.training.micro_batch import MicroBatches, new_guard
from daybreak.training.own_state import keeps_state, load_own_state, pack_own_state
from daybreak.training.process_group import WorkerGroup
from daybreak.training.recipe import Clipping
from daybreak.training.sample_order import Indices
from daybreak.training.sampling import Sampling
from daybreak.training.timers import StepTimer
from daybreak.training.tuning import (
    Tuner,
    check_model,
    give_shapes,
    new_model,
    new_optimizers,
    normalised,
    read,
    wants_one_worker,
    wants_whole,
)
from daybreak.training.turns import Turns
from daybreak.training.updater import Updater
from daybreak.training.validation_score import validation_score

START = TrainingProgress()
MAX_NAMED = 5  # weights in an error


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """The result of an update, the same on all workers."""

    loss: float  # mean per sample of the global batch
    signals: Signals
    times_s: tuple[float, ...] = ()  # of each worker for its share of the update before; empty: shares stay
    noise: tuple[float, float] | None = None  # |g|^2 and tr(Sigma) (noise.py), at some updates
    nothing_left: bool = False  # the update changed nothing, and no later one would; never of several workers


class Engine(Protocol):
    """Takes the updates of one worker."""

    rank: int
    world_size: int
    least_share: int  # samples of a share that is not empty, where the batch has as many: 2 for BatchNorm
    has_rate: bool  # its updates follow the learning rate

    def prepare(self, indices: Indices, *, progress: TrainingProgress = START) -> None:
        """Starts to load a share that `step` will soon be called with, at this progress of the run."""

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Takes one update from this worker's share `indices` of a batch of `batch_size` samples.

        A loss that is not finite leaves the model unchanged.
        """

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Adapts the optimizer to this batch size, given a rate for batches of `base_size`.

        The caller multiplies the rate. Raises ParamsError where the optimizer has no rule.
        """

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the sum over workers, which all call it together."""

    def save(self) -> TrainingState:
        """Returns the state of model and optimizer; all workers call it together."""

    def load(self, state: TrainingState) -> None:
        """Restores a state that `save` returned, on any number of workers."""


class TorchEngine:
    """Data-parallel training: over gloo on CPUs, repeatable bit for bit; over nccl where all have GPUs.

    An engine has four parts: the `group` of workers, `micro_batches` that fit the memory, the `accumulation`
    of gradients, and the `updater` of weights. Engines of extensions make other parts (`_new_gradients`,
    `_new_accumulation`, `_new_updater`), place the model otherwise (`_shard`, `weights`, `_load_weights`), or
    take updates between those that are summed (`step`).
    """

    has_rate = True
    can_score = True  # samples, between updates
    takes_all = True  # that a class may have: several optimizers, weights that thaw, float16

    def __init__(
        self,
        workload: Workload,
        dataset: "Dataset[Any]",
        *,
        seed: int,
        micro_batch_size: int,
        tuning: Tuning,
        on_shrink: Callable[[int], None] = lambda micro_batch_size: None,
        column_files: ColumnFiles | None = None,
        follow_memory: Literal["off", "same_gradient", "band_limited"] = "off",
        clipping: Clipping | None = None,
    ) -> None:
        self._workload = workload
        self.group = group = WorkerGroup()
        self.rank, self.world_size, self.device = group.rank, group.world_size, group.device
        seed_all(seed)
        self._tuner = Tuner(tuning, self.device)
        model = new_model(workload, getattr(dataset, "state", {}), rate=tuning.band_rate)
        give_shapes(model, workload, lambda: read(dataset, [0]))
        take_first_weights(workload, model)
        check_model(model, workload)
        self.model = self._tuner.model(self._shard(model, workload))
        self.model.train()
        optimizers = new_optimizers(workload, self.model)
        asks_more = tuning.precision == "float16" or wants_whole(workload, self.model, optimizers)
        if wants_one_worker(workload) and (self.world_size > 1 or not self.takes_all):
            what = "state_dict" if keeps_state(workload) else "whole_batch"
            raise ParamsError(
                f"{type(workload).__name__}.{what} is of one worker, and {self.world_size} train by "
                f"{type(self).__name__}; set train.num_workers to 1 and plan.max_machines to 1, name a "
                f"machine with one device, and leave train.sync and train.threads at their defaults"
            )
        if asks_more and not self.takes_all:
            raise ParamsError(
                f"several optimizers, a method trainable, get_extra_state of modules, batch_loss and "
                f"train.precision: float16 need workers that each have the whole model and agree at every "
                f"update, and not {type(self).__name__}; name a machine with more memory in plan.machines, "
                f"and leave train.sync and train.threads at their defaults"
            )
        self.updater = self._new_updater(optimizers)
        gradients = self._new_gradients()
        self._loader = Loader(
            self._tuner.data(dataset, files=column_files),
            num_loaders=tuning.num_loaders,
            in_processes=tuning.loader_processes,
            seed=seed,
            on_cpu=self.device.type == "cpu",
        )
        has_batch_norm = normalised(self.model)
        # The statistics of a single value say nothing, and torch refuses to take them.
        self.least_share = 2 if has_batch_norm else 1
        self.micro_batches = MicroBatches(
            micro_batch_size,
            least=self.least_share,
            is_undivided=is_undivided(workload),
            lengths=Sampling.of(dataset).lengths,
            guard=None
            if is_undivided(workload)
            else new_guard(self.model, device=self.device, tuning=tuning, follow_memory=follow_memory),
            on_shrink=on_shrink if self.rank == 0 else lambda micro_batch_size: None,
        )
        self.accumulation = self._new_accumulation(
            workload,
            self.model,
            loader=self._loader,
            micro_batches=self.micro_batches,
            gradients=gradients,
            tuner=self._tuner,
            group=group,
            seed=seed,
            turns=Turns(optimizers),
            scaler=self.updater.scaler,
        )
        self._updates, self._clipping = 0, clipping
        # BatchNorm takes its statistics over a share, so a share of another size would change the model.
        self._timer = None if self.world_size == 1 or has_batch_norm else StepTimer(self.device)

    def _shard(self, model: nn.Module, workload: Workload) -> nn.Module:
        """Returns the model, divided among workers by engines that do so, before it goes to the device."""
        return model

    def _new_updater(self, optimizers: Mapping[str, Optimizer]) -> Updater:
        return Updater(optimizers, model=self.model, tuner=self._tuner, group=self.group)

    @property
    def optimizer(self) -> Optimizer:
        """The only optimizer; raises ParamsError where there are several."""
        return self.updater.optimizer

    def _new_gradients(self) -> Gradients:
        return Gradients(
            self.model,
            rank=self.rank,
            world_size=self.world_size,
            thaws=thaws(self._workload),
            optimizers=self.updater.optimizers,
        )

    def _new_accumulation(self, *args: Any, **parts: Any) -> Accumulation:
        return Accumulation(*args, **parts)

    @property
    def waited_s(self) -> float | None:
        """Seconds that this worker's device waited for samples, since the job began here; None: not known."""
        return self._loader.waited_s

    @property
    def queue_length(self) -> int | None:
        """Passes that loaders hold ready for this worker; None where it reads for itself."""
        return self._loader.num_ready

    @property
    def devices(self) -> str:
        """The devices of all workers, in a few words."""
        return self.group.devices

    @property
    def peak_bytes(self) -> int:
        """The most memory that the guard of the memory has seen."""
        return self.micro_batches.peak_bytes

    @property
    def short_of_memory(self) -> dict[str, int]:
        """Updates that were taken otherwise, as memory was short, by how."""
        return self.micro_batches.short_of_memory

    @property
    def num_skipped(self) -> int:
        """Updates that were skipped, as their gradients overflowed in float16."""
        return self.updater.num_skipped

    def prepare(self, indices: Indices, *, progress: TrainingProgress = START) -> None:
        """Starts to load a share."""
        self.accumulation.prepare(indices, progress=progress)

    def step(self, indices: Indices, *, batch_size: int, rate: float, signals: Signals) -> UpdateResult:
        """Takes one update; see the protocol. Raises JobError where memory does not suffice for it."""
        accumulation, micro_batches, timer = self.accumulation, self.micro_batches, self._timer
        share = -(-batch_size // accumulation.gradients.world_size)
        accumulation.begin(indices)
        before_s = timer.read() if timer else 0.0
        micro_batches.begin_update()
        accumulation.side_effects.begin_update()
        short = 1
        while short:
            micro_batches.follow(len(indices), share=share)
            restore = accumulation.side_effects.snapshot()
            if timer:
                timer.start()
            own = accumulation.add_up(indices, batch_size=batch_size, update=self._updates)
            if timer:
                timer.stop()
            measures_noise = accumulation.measures_noise(len(indices), update=self._updates)
            sums = accumulation.gradients.reduce(
                own.losses,
                replace(signals, short=1) if own.is_short else signals,
                time_s=before_s,
                num_samples=len(indices),
                batch_size=batch_size if measures_noise else 0,
                first=own.first,
                names=own.names,
            )
            short = sums.signals.short
            if short:
                restore()
            if short and not micro_batches.guard:
                micro_batches.shrink(share=share)
        self._updates += 1
        mean, noise = sums.loss / batch_size, sums.noise
        if math.isfinite(mean):
            factor = self.updater.unscale(sums.names)
            if noise and factor != 1:
                noise = noise[0] / factor**2, noise[1] / factor**2
            if self._clipping:
                accumulation.gradients.clip(self._clipping)
            self.updater.set_rate(rate)
            self.updater.step(sums.names)
            if names := self.updater.not_finite():
                raise NotFinite(
                    f"the gradient of {', '.join(names[:MAX_NAMED])} is not finite at update "
                    f"{self._updates}, though its loss is, and no factor of float16 changes "
                    f"that; look for a root or a logarithm of 0, or lower train.rate",
                    update=self._updates,
                )
        times_s = sums.times_s if timer else ()
        return UpdateResult(loss=mean, signals=sums.signals, times_s=times_s, noise=noise)

    def rescale(
        self, *, batch_size: int, base_size: int, rule: Rule, micro_batch_size: int | None = None
    ) -> Scaled:
        """Changes betas and eps of the optimizer by its rule; see the protocol."""
        scaling = self.updater.rescale(batch_size=batch_size, base_size=base_size, rule=rule)
        if micro_batch_size:
            self.micro_batches.resize(micro_batch_size)
        return scaling

    def total(self, counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the sum over workers."""
        return self.group.total(counts)

    def mean_score(self, samples: Indices, *, alive: Callable[[], None]) -> float:
        """Returns the mean score of samples by the weights of this moment; all workers call it together.

        It calls `alive` before each pass. Statistics of BatchNorm are those of worker 0, as in a version.
        """
        for buffer in self.model.buffers() if self.world_size > 1 else ():
            if buffer.is_floating_point():
                dist.broadcast(buffer, src=0)
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        # A score by the loss may change what the class keeps.
        kept = copy.deepcopy(pack_own_state(self._workload, device=self.device))
        own, size, total = samples[self.rank :: self.world_size], self.micro_batches.size, 0.0
        try:
            while len(own):
                alive()
                score = self._score(own[:size])
                if score is not None:
                    own, total = own[size:], total + score
                elif size == 1:
                    raise JobError(
                        "memory does not suffice to score one sample; name a larger machine in plan.machines"
                    )
                else:
                    size = -(-size // 2)
        finally:
            load_own_state(self._workload, *kept, device=self.device)
            for module, is_training in modes:  # a team may keep some of them in eval mode
                module.training = is_training
        return float(self.group.total(np.array([total]))[0]) / len(samples)

    def _score(self, samples: Indices) -> float | None:
        """Returns the sum of the scores of a pass; None where memory does not suffice for it."""
        try:
            with torch.no_grad():
                batch = self._tuner.batch(self._loader.get(samples))
                return float(validation_score(self._workload, self.model, batch).double().sum())
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None

    def weights(self) -> dict[str, Tensor]:
        """Returns the whole model on worker 0; all workers call it together."""
        return self.whole(self.model.state_dict())

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns weights as the workers hold them whole on worker 0; all workers call it together."""
        return dict(weights)

    def shares(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns whole weights as this worker holds them."""
        return dict(weights)

    def _load_weights(self, tensors: dict[str, Tensor]) -> None:
        """Loads the weights of a whole model."""
        self.model.load_state_dict(self.shares(tensors))

    def begin_from(self, tensors: dict[str, Tensor]) -> bool:
        """Loads the tensors of another model; returns False and changes nothing if their shapes differ."""
        if _shapes(self.model.state_dict()) != _shapes(tensors):
            return False
        self._load_weights(tensors)
        return True

    def save(self) -> TrainingState:
        """Returns model and optimizer as references, valid until the next step."""
        tensors, tree = self.updater.save()
        own, own_tree = pack_own_state(self._workload, device=self.device)
        draws = np.zeros(self.world_size, dtype=np.int64)
        draws[self.rank] = self.accumulation.generators.have_drawn()
        return TrainingState(
            tensors={"model": self.weights(), "optimizer": tensors, **({"workload": own} if own else {})},
            scalars={
                "optimizer": tree,
                "workload": own_tree,
                "draws": self.group.total(draws).tolist(),  # of each worker, whether its loss does
                "engine_updates": self._updates,
                "num_skipped": self.num_skipped,
                "device": self.devices,
                "short_of_memory": self.short_of_memory,
            },
        )

    def load(self, state: TrainingState) -> None:
        """Restores model and optimizer."""
        self._load_weights(state.tensors["model"])
        self.updater.load(state.tensors.get("optimizer", {}), state.scalars["optimizer"])
        own = state.tensors.get("workload", {}), state.scalars["workload"]
        load_own_state(self._workload, *own, device=self.device)
        draws = state.scalars["draws"]
        is_same = len(draws) == self.world_size  # otherwise each worker draws other numbers, anyway
        self.accumulation.generators.draws = bool(draws[self.rank] if is_same else max(draws))
        self._updates = state.scalars["engine_updates"]
        self.updater.num_skipped = state.scalars["num_skipped"]
        if self.micro_batches.guard:
            self.micro_batches.guard.taken.update(state.scalars.get("short_of_memory", {}))

    def finish(self) -> None:
        """Completes averages in flight after the last update; all workers call this together."""

    @property
    def sync(self) -> Sync:
        """When workers agree."""
        return EVERY_UPDATE

    def close(self) -> None:
        """Ends the loaders and the process group."""
        self._loader.close()
        self.group.close()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns the shape of each tensor; of what modules keep beside tensors, only that it is there."""
    return {name: None if name.endswith(SUFFIX) else tensor.shape for name, tensor in tensors.items()}
