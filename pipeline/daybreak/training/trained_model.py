"""Exports the model of a run that has ended, with the facts and the state to load it by, and the result."""

import json
import os
import shutil
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from daybreak.contract import clock, disk, records
from daybreak.contract.errors import NotFinite
from daybreak.contract.record_parts import Epoch
from daybreak.contract.workload import STATE, Workload
from daybreak.training.recipe import Recipe, Result
from daybreak.training.supervision import ended_early_by

if TYPE_CHECKING:
    from torch import Tensor

    from daybreak.training.supervision import AnyEngine
    from daybreak.training.trainer import RunOutcome
    from daybreak.training.validation import Validator
    from daybreak.training.weight_average import WeightAverage

WEIGHTS = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run that has ended, and the engine that took its updates."""

    engine: "AnyEngine"
    workload: Workload
    dataset: Sized  # that it trains on
    model: "Validator | WeightAverage | AnyEngine"  # which has its weights
    scores: tuple[tuple[int, float], ...]  # of its validations
    outcome: "RunOutcome"
    warm: bool  # it began from the champion's weights
    epochs: tuple[Epoch, ...]  # whose samples are proven
    alive: Callable[[], None]  # shows that what follows is no hang


def check_finite(weights: dict[str, "Tensor"], parameters: Sequence[str], *, update: int) -> None:
    """Raises NotFinite where the last update left such a weight, which no loss has shown."""
    for name in parameters:
        if not weights[name].isfinite().all():
            raise NotFinite(
                f"weight {name} is not finite after update {update}, the last one, though its loss is; look "
                f"for a gradient that is not (a root or a logarithm of 0), or lower train.rate",
                update=update,
            )


def parameters_of(engine: "AnyEngine") -> list[str]:
    """Returns the names of the weights that are learned; buffers such as masks may hold infinities."""
    return [name for name, _ in engine.model.named_parameters()]


def export(
    folder: Path,
    recipe: Recipe,
    weights: dict[str, "Tensor"],
    trained: Trained,
    *,
    kept: "tuple[dict[str, Tensor], Any] | None",
) -> None:
    """Writes the model, then the result, each whole or not at all."""
    from daybreak.training import checkpoint, moments

    engine, outcome = trained.engine, trained.outcome
    stopped_by: Literal["finished", "validation"]
    stopped_by = "validation" if outcome.stopped_by == "validation" else "finished"
    fresh = folder / f".model.{os.getpid()}"
    fresh.mkdir()
    checkpoint.write_tensors(fresh / WEIGHTS, weights)
    if kept:
        moments.write(fresh, *kept)
    digest = complete_model(fresh, recipe, seen=outcome.seen)
    disk.sync(fresh)
    shutil.rmtree(folder / "model", ignore_errors=True)
    fresh.rename(folder / "model")
    result = Result(
        model_digest=digest,
        num_samples=outcome.seen,
        num_updates=outcome.num_updates,
        stopped_by=ended_early_by(folder, recipe) if outcome.stopped_by == "deadline" else stopped_by,
        validations=trained.scores,
        warm=trained.warm,
        ended_at=clock.utc(),
        epochs=trained.epochs,
        noise_scale=outcome.noise_scale,
        device=engine.devices,
        sync=engine.sync,
        short_of_memory=engine.short_of_memory,
        num_skipped=engine.num_skipped,
    )
    records.write(result, folder)


def complete_model(folder: Path, recipe: Recipe, *, seen: int) -> str:
    """Lays beside a model's weights what loading needs: facts and state; returns the digest of all."""
    write_facts(folder, recipe, seen=seen)
    if (state := Path(recipe.arrays) / STATE).exists():
        shutil.copytree(state, folder / STATE)
    return records.digest(folder)


def write_facts(folder: Path, recipe: Recipe, *, seen: int) -> None:
    """Writes `model.json`: how to construct the model that the tensors beside it belong to."""
    facts = {
        "workload": recipe.workload,
        "arguments": recipe.arguments,
        "seen": seen,
        "data_digest": recipe.data_digest,
        "last_day": recipe.last_day.isoformat(),
    }
    if recipe.last_trained_day:
        facts["last_trained_day"] = recipe.last_trained_day.isoformat()
    if recipe.tuning.band_rate:
        facts["band_rate"] = recipe.tuning.band_rate
    records.replace_text(folder / "model.json", json.dumps(facts, indent=2) + "\n")
