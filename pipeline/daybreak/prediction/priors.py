"""Holds what is known of update times before any night: priors.json, each with its source.

`python -m benchmarks.fit_priors` writes the file, from measurements of other
jobs on other machines; what is assumed stays as it is there.
Deviations are of logarithms, except for those of powers and of the sharing, which are plain.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import hypot
from typing import Any

NAMES = (
    "fixed",
    "per_sample",
    "one",
    "one_power",
    "two",
    "two_power",
    "many",
    "many_power",
    "overlap",
    "sharing",
)
NO_OVERLAP, NO_OVERLAP_SPREAD = -3.0, 0.5  # log(g - 1)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Prior means of the constants in step_time.py and their standard deviations, by name.

    Scales (fixed, per_sample, many) are relative to profile and roofline, one and two relative to many.
    """

    mean: tuple[float, ...]
    laboratory: tuple[float, ...]  # deviation between laboratories: trainer, cluster and year
    job: tuple[float, ...]  # deviation that all machines of a job share
    device: tuple[float, ...]  # that machines with the same device share, where another was profiled
    machine: tuple[float, ...]  # of one kind of machine, where another was profiled
    profiled: tuple[float, ...]  # of the machine that was profiled


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Amplitudes and reaches, in log T, of what the form leaves; u, q and v as in throughput.py."""

    compute: float  # u
    compute_reach: float  # in log m
    kernel: float  # q
    compute_offset: float  # of a placement
    sync: float  # v
    sync_reach: float  # in log K, log N and log w
    sync_batch_reach: float  # in log m
    sync_offset: float
    noise: float
    sync_noise: float


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """How the fixed part of a pass scales between GPUs, and how much less is known where one is none."""

    even: float  # FLOP/s * bytes/s, its root, where host and device share the fixed part of a pass evenly
    cpu_fixed: float  # deviation of the fixed part where one is no GPU, beyond that between GPUs


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """Deviations of logarithms that no measurement at hand gives; the file has the source of each."""

    repeated: float  # time of an update of the same job on the same machine again
    unseen: float  # time of an update on a machine that was not profiled, beyond the roofline
    night: float  # time of an update from one night to the next
    theory: float  # d of efficiency.py, plain


@dataclass(frozen=True, kw_only=True)
class Priors:
    """All priors of update times, and of samples by batch size."""

    constants: Constants
    residual: Residual
    roofline: Roofline
    assumed: Assumed

    def without_overlap(self) -> "Priors":
        """Returns the priors of a trainer that sums gradients after the pass that computed them."""

        def changed(values: tuple[float, ...], value: float) -> tuple[float, ...]:
            return tuple(value if name == "overlap" else old for name, old in zip(NAMES, values, strict=True))

        c = self.constants
        return Priors(
            constants=Constants(
                mean=changed(c.mean, NO_OVERLAP),
                laboratory=changed(c.laboratory, 0.0),
                job=changed(c.job, NO_OVERLAP_SPREAD),
                device=c.device,
                machine=changed(c.machine, 0.0),
                profiled=changed(c.profiled, 0.0),
            ),
            residual=self.residual,
            roofline=self.roofline,
            assumed=self.assumed,
        )

    def mean_of(self, name: str) -> float:
        """Returns the mean of a constant by its name."""
        return self.constants.mean[NAMES.index(name)]

    def spread_of(self, name: str) -> float:
        """Returns the deviation of a constant of a machine that was not profiled, by its name."""
        c, place = self.constants, NAMES.index(name)
        return hypot(c.laboratory[place], c.job[place], c.device[place], c.machine[place])


def of(facts: dict[str, Any]) -> Priors:
    """Returns the priors of such a file."""
    constants = {
        key: tuple(float(facts["constants"][key][name]) for name in NAMES)
        for key in Constants.__annotations__
    }
    assumed = {name: float(each["value"]) for name, each in facts["assumed"].items()}
    return Priors(
        constants=Constants(**constants),
        residual=Residual(**facts["residual"]),
        roofline=Roofline(**facts["roofline"]),
        assumed=Assumed(**assumed),
    )


@cache
def priors() -> Priors:
    """Returns the priors that nights use."""
    return of(json.loads(files("daybreak.prediction").joinpath("priors.json").read_text()))
