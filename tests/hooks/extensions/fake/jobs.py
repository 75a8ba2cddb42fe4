"""Hooks for plans, jobs and training."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from daybreak.contract.record_parts import Placement
from daybreak.contract.record_types import Night, Plan
from daybreak.jobs.observed_job import ObservedJob
from daybreak.jobs.reaper import JobOwner
from daybreak.planning.search import Candidate, PlanChoice
from daybreak.storage.home import Home
from daybreak.training.recipe import Recipe

CHECKPOINT_S = 77.0
MORE_USD = 1.25


def owners(home: Home) -> dict[str, JobOwner]:
    """Returns one that is not over."""
    return {f"fake-of-{home.folder.name}": JobOwner()}


def half_as_long(
    job: object, machines: object, params: object, *, than: PlanChoice, **_: object
) -> Iterator[Candidate]:
    """Yields the core's best in half the time."""
    parts = tuple(replace(part, seconds=part.seconds / 2) for part in than.best.estimate.parts)
    yield replace(than.best, estimate=replace(than.best.estimate, parts=parts))


def second_best(
    choice: PlanChoice, offered: Sequence[Candidate], *_: object, **__: object
) -> tuple[PlanChoice, float]:
    """Tries what is ranked second."""
    return replace(choice, best=choice.ranked[1]), MORE_USD


def twice_as_long(made: Plan, longer: Callable[[float], Plan | None], **_: object) -> Plan:
    """Returns the plan on twice the samples, where there is one."""
    return longer(2) or made


def with_checkpoints(plan: Plan, best: Candidate, *_: object, **__: object) -> Plan:
    """Returns the plan on spot with its own time between checkpoints."""
    return replace(plan, checkpoint_every_s=CHECKPOINT_S)


@dataclass(frozen=True)
class Waiting:
    """Waits for spot, whatever happens."""

    job: ObservedJob

    def best(self) -> Placement | None:
        """Returns None: spot is waited for."""
        return None

    def elsewhere(self) -> Placement | None:
        """Returns no other placement."""
        return None


def losses(entries: Sequence[object]) -> str:
    """Returns what stands for a hazard: of how many nights it was learned."""
    return f"of {len(entries)} nights"


def on_first_machine(
    home: Home, night: Night, profile: object, planned: Callable[..., Plan], *, available: Any, params: Any
) -> Plan:
    """Returns the plan with the first machine as this home's share."""
    return planned(params, available[:1])


def one_day_more(home: Home, params: Any) -> list[str]:
    """Returns assignments by which a night prepares a day more."""
    return [f"prepare.window_days={params.prepare.window_days + 1}"]


def note(home: Home) -> None:
    """Notes that a night has ended."""
    with (home.folder / "ended").open("a") as file:
        file.write("in time\n")


class Engine:
    """Takes no updates."""


def engine(recipe: Recipe, alive: Callable[[], None]) -> type[Engine] | None:
    """Returns the engine of jobs that ask for threads."""
    return Engine if recipe.threads == "auto" else None


def scaled(model: nn.Module, rate: float) -> nn.Module:
    """Returns the model after a layer that leaves out what lies above a share."""
    return nn.Sequential(nn.Hardtanh(-rate, rate), model)


def linear_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that are linear."""
    return [layer for layer in model.modules() if isinstance(layer, nn.Linear)]


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Follows no limit."""

    band_limits: bool


def guard(model: nn.Module, *, device: object, tuning: object, band_limits: bool) -> Guard:
    """Returns what is to follow a limit."""
    return Guard(band_limits=band_limits)


def whole(model: nn.Module, loss: Callable[..., Tensor], *, device: object) -> Callable[..., Tensor]:
    """Returns twice the loss of the model, whose weights it leaves whole."""
    return lambda batch: 2 * loss(batch)
