"""What the search reads of params.yaml: its section `search`."""

import math
import re
from typing import Any

from pydantic import Field, field_validator

from daybreak.contract.sections import Section, TrainParams
from daybreak.extensions.search.space import bounds

OF_TRAIN = ("epochs", "batch_size", "rate", "warmup", "decay")
WHOLE = [f"train.{name}" for name in OF_TRAIN if TrainParams.model_fields[name].annotation is int]
SCALAR = (str, int, float, bool, type(None))  # what Optuna tells apart
KEY = re.compile(rf"train\.({'|'.join(OF_TRAIN)})|workload\.(?!use$)\w+")


class SearchParams(Section):
    """Which settings are tried in the hours that a night leaves, and when the best is trained."""

    space: dict[str, tuple[Any, ...] | str] = Field(default_factory=dict)
    """Keys and their values: a list, or a range as `log(1e-4, 1e-2)`, `float(0, 0.5)` or `int(1, 20)`. A key
    is `train.epochs`, `batch_size`, `rate`, `warmup` or `decay`, or an argument of the workload, as
    `workload.hidden`. Empty: nothing is tried."""
    validation: float = Field(0.1, gt=0, lt=0.5)
    """Share of the samples, the newest before those held out, by which settings are compared."""
    tries: int = Field(100, ge=1)
    """Settings that are tried on the samples of a night, at most."""
    nights: int = Field(3, ge=2)
    """Nights on which settings must have been compared with today's before they are trained."""

    @field_validator("space", mode="before")
    @classmethod
    def _is_whole(cls, space: Any) -> Any:
        if isinstance(space, dict) and any(str(key).endswith(")") for key in space):
            raise ValueError("YAML ends a range within braces at its comma; quote it, as 'log(1e-4, 1e-2)'")
        return space

    @field_validator("space")
    @classmethod
    def _is_known(cls, space: dict[str, tuple[Any, ...] | str]) -> dict[str, tuple[Any, ...] | str]:
        for key, given in space.items():
            if not KEY.fullmatch(key):
                raise ValueError(
                    f"{key} is not searched; name train.{', train.'.join(OF_TRAIN)} or workload.ARGUMENT"
                )
            if isinstance(given, str):
                kind, low, high = bounds(key, given)
                if key in WHOLE and kind != "int":
                    raise ValueError(
                        f"{key} is a whole number, and {given} gives others; write "
                        f"int({math.ceil(low)}, {math.floor(high)}), or list values"
                    )
            elif others := [value for value in given if not isinstance(value, SCALAR)]:
                raise ValueError(
                    f"{key} lists {others[0]!r}; have the class take a word for it, and list words"
                )
            elif len(set(given)) < 2:
                raise ValueError(f"{key} lists {len(set(given))} value; list two at least, or a range")
        return space
