"""What the live test reads of params.yaml: its section `live_test`, and a key of `watch`."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from daybreak.contract.sections import Plug, Section


class OwnMetricParams(Section):
    """The metric that scores users where a team serves by itself."""

    name: str = Field(min_length=1)
    """Name of the metric, in sentences."""
    low: float
    """Lower end of the values of a user."""
    high: float
    """Upper end of the values of a user. Bets that stop a test early need a bounded score: values outside are
    cut off for them, and for the effect at `high - low` beyond either end."""
    margin: float = Field(gt=0)
    """How much worse a refresh may be, in the metric's unit."""
    higher_is_better: bool = True
    """Whether a higher value is better."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")
        return self


class LiveTestParams(Section):
    """How users meet a challenger in a live test, and what ends the test at once."""

    ramp: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field((0.01, 0.05, 0.25, 0.5), min_length=1)
    """Rising shares of users who meet the challenger, one after the other. An endpoint takes whole percent
    only."""
    challengers: int = Field(1, ge=1, le=4)
    """Challengers that users may meet at once, of nights that overlap. Each is shown to its own part of the
    users, one of so many; where these have to prove it, `gate.alpha` is divided by their number. An endpoint
    takes one."""
    shadow: float = Field(0, ge=0, le=1)
    """Share of requests to a router that are put to the challenger as well, without showing its answers,
    until `ramp_users` users were; only then the ramp begins. 0: it begins at once."""
    ramp_users: int = Field(200, ge=1)
    """Users who must have met the challenger at a share before the next share."""
    ramp_hours: float = Field(1, ge=0)
    """Hours at a share before the next share."""
    outcome_hours: float = Field(1, gt=0)
    """Hours after an answer in which a user's outcomes count. Raise it if users or labels come later."""
    max_errors: float = Field(0.01, gt=0, lt=1)
    """Guardrail: how much larger the challenger's share of a user's requests without an answer may be."""
    max_fallbacks: float = Field(0.05, gt=0, lt=1)
    """Guardrail: how much larger the challenger's share of a user's answers that are popular items may be."""
    max_attrition: float = Field(0.05, gt=0, lt=1)
    """Guardrail: how much larger the challenger's share of users who do not come back may be."""
    max_visits_per_unit: int = Field(1000, ge=1)
    """Visits of a user in a day above which the user counts as a program: it is left out, and the verdict
    says how many are."""
    novelty_hours: float = Field(0, ge=0)
    """Hours after a user's first answer in which the score does not count, as what is new attracts or annoys
    for a while. Less than `ramp_hours`, as users are scored at the share at which they came."""
    max_p99_rise_s: float = Field(0.1, gt=0)
    """Guardrail: seconds by which the challenger's P99 may be longer."""
    metric: OwnMetricParams | None = None
    """Metric that a team which serves by itself reports of its users. Empty: what routers and endpoints log
    scores them."""
    observations: Plug | None = None
    """Source of versions that users met and their outcomes, where a team serves by itself: `daybreak:Files`,
    `daybreak:Database`, or your own class. Empty: only rows that are posted to a router."""

    @model_validator(mode="after")
    def _ramp_climbs(self) -> Self:
        if list(self.ramp) != sorted(set(self.ramp)):
            raise ValueError(f"ramp {list(self.ramp)} does not climb")
        return self

    @model_validator(mode="after")
    def _novelty_passes_at_a_share(self) -> Self:
        if self.novelty_hours and self.novelty_hours >= self.ramp_hours:
            raise ValueError(
                f"novelty_hours {self.novelty_hours:g} is not below ramp_hours {self.ramp_hours:g}; "
                f"raise ramp_hours"
            )
        return self

    @model_validator(mode="after")
    def _observations_are_scored(self) -> Self:
        if self.observations and not self.metric:
            raise ValueError("observations are not scored without metric; name it, its range and its margin")
        return self


class HoldbackParams(Section):
    """Who meets an earlier version between nights."""

    holdback: float = Field(0, ge=0, le=0.5)
    """Share of users who stay with the anchor, the last version that was proven better; after a proof,
    with the version that was replaced. Where they do better, `watch` rolls back; 0: nobody is held
    back."""
