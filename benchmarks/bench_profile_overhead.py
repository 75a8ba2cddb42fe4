"""What does profiling cost a night? On the default workload: a first profile, and one that is taken over.

The first night measures the machine and the job. The second has a day more of data, so DVC runs the stage
again, and the profile still stands: what is left is to see that nothing has changed. QUICK=1: a small shop.
"""

import time
from pathlib import Path

from benchmarks import frame
from daybreak.contract import params, records
from daybreak.contract.record_types import Profile

MOST_S, MOST_SHARE, REUSED_S = 180.0, 0.01, 2.0


def main() -> None:
    """Two nights up to the profile, and the figures against the targets."""
    assignments = frame.SMALL if frame.QUICK else []
    settings = params.override(frame.ROOT, assignments)
    days = sorted(settings.source.make().days())[-2:]
    with frame.home() as home:
        nights = [profiled(home, str(day), assignments) for day in days]
    (first_s, _), (again_s, again) = nights
    reused = again.evidence.get("reused", {})
    share = first_s / (settings.night.train_hours * 3600)
    frame.finish(
        "profile_overhead",
        {
            "profile s": first_s,
            "share of the training budget %": 100 * share,
            "taken over": float(bool(reused)),
            "profile that is taken over s": again_s,
            "of which beyond imports s": reused.get("elapsed_s", again_s),
        },
        {
            "profile s": ("<=", MOST_S),
            "share of the training budget %": ("<=", 100 * MOST_SHARE),
            "taken over": ("==", 1),
            "of which beyond imports s": ("<=", REUSED_S),
        },
    )


def profiled(home: Path, day: str, assignments: list[str]) -> tuple[float, Profile]:
    """Seconds of the stage profile of a night, with interpreter and DVC, and what it wrote."""
    frame.pipeline(home, "night", "--day", day, "--until", "prepare", *frame.sets(assignments))
    began = time.monotonic()
    frame.pipeline(home, "profile", "--night", day)
    return time.monotonic() - began, records.read(Profile, home / "nights" / day / records.RUN)


if __name__ == "__main__":
    main()
