"""Lets a validated run end on all training days: its last phase also trains on those of its validation.

Days that a run is validated on are the newest, and leaving them out costs quality where days change. So once
validation has decided, by patience or at the end of the main phase, the run goes on from the best weights:
over the newest samples, those that were left out and at least as many before them, mixed, so that the older
days are not forgotten; a long run comes to all samples again. The rate rises to half of its peak and falls to
0. The optimizer keeps what it has, and an average begins anew.

The best weights are kept beside until the phase is whole; a run that ends within it is judged by them. No
score can judge the phase, as its samples are all there are, so it is a tenth of the run.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from daybreak.contract.record_parts import Epoch
from daybreak.training.recipe import Recipe, Validation

if TYPE_CHECKING:
    from daybreak.training.validation import Validator

PEAK = 0.5  # of the rate


@dataclass(frozen=True, kw_only=True)
class MainPhase:
    """The main phase of a run, which is over."""

    identity: str  # of the job
    validator: "Validator"
    seen: int
    num_updates: int
    num_epochs: int  # begun
    stopped_by: Literal["finished", "validation"]
    noise_scale: float | None = None
    audit: dict[str, Any]  # as SampleAudit saves it
    epochs: tuple[Epoch, ...] = ()  # audited; of worker 0

    def save(self) -> dict[str, Any]:
        """Returns what a checkpoint of the last phase keeps, as JSON."""
        return {
            "seen": self.seen,
            "num_updates": self.num_updates,
            "num_epochs": self.num_epochs,
            "stopped_by": self.stopped_by,
            "noise_scale": self.noise_scale,
            "audit": self.audit,
        }

    @classmethod
    def load(cls, state: dict[str, Any], *, identity: str, validator: "Validator") -> "MainPhase":
        """Restores what `save` returned."""
        from daybreak.training.sample_audit import SampleAudit

        return cls(
            identity=identity,
            validator=validator,
            **state,
            epochs=SampleAudit.load(state["audit"]).proven(),
        )


def last_phase(recipe: Recipe, *, num_all: int) -> Recipe:
    """Returns the recipe of the last phase of a run, on the newest of all samples."""
    num_last = recipe.validation.num_last
    return replace(
        recipe,
        first_sample=max(0, num_all - num_last),
        num_samples=num_last,
        rate=replace(recipe.rate, peak=PEAK * recipe.rate.peak, schedule="linear", base_samples=0),
        validation=Validation(),
    )
