"""Defines fleet.yaml: the homes that share one Airflow, MLflow, router and set of machines.

It lies in the home that leads. A home without it is by itself.
"""

from pathlib import Path
from typing import Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from daybreak.contract.errors import ParamsError
from daybreak.contract.sections import Section

FILE = "fleet.yaml"


class Fleet(Section):
    """What fleet.yaml says."""

    homes: tuple[str, ...] = ()
    """Folders of the other homes, from that of the file on."""
    machines: dict[str, PositiveInt] = Field(default_factory=dict)
    """How many machines of each name there are for all models together; of others there are as many as one
    asks for. Empty: nothing is shared, and each model plans as if it were alone."""
    budget_usd: float | None = Field(None, ge=0)
    """Dollars of an evening for all models together; empty: each has its own `night.budget_usd`."""
    usd_per_month: float | None = Field(None, gt=0)
    """Dollars of a calendar month, UTC, for all models together, spread over its evenings; empty: no
    limit."""
    value: dict[str, PositiveFloat] = Field(default_factory=dict)
    """What a model counts for beside the others, by its name; 1 where it is not named."""

    @model_validator(mode="after")
    def _are_shared(self) -> Self:
        if not self.machines and (self.budget_usd is not None or self.usd_per_month is not None):
            raise ValueError(
                "the dollars of several models are divided with the machines that they share; name these "
                "under machines, or set night.usd_per_month in each home"
            )
        return self


def load(lead: Path) -> Fleet:
    """Returns fleet.yaml of a home, checked; ParamsError names the key and what is wrong with it."""
    path = lead / FILE
    try:
        values = YAML(typ="safe", pure=True).load(path.read_text())
    except FileNotFoundError:
        return Fleet()
    except YAMLError as error:
        raise ParamsError(f"{path} is not YAML: {' '.join(str(error).split())}; fix it") from None
    try:
        return Fleet.model_validate(values or {})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or FILE
        raise ParamsError(f"{path}: {key}: {first['msg']}; docs/many-models.md says what it may be") from None
