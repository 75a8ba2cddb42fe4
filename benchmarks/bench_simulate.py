"""How long does a simulated year take, and is a deadline missed in it? The command, as a person runs it.

Once with traces that are drawn, once with the recorded ones; 12 hours of work in 18, throughput within 20 %
of the plan, losses without notice. With QUICK=1 sixty nights, and the year's time by rule of three.
"""

import json
import tempfile
import time
from pathlib import Path

from benchmarks import frame
from daybreak.extensions.simulation.simulator import OPTIMUM, OURS

TRACES = frame.DATA / "spot" / "skynomad_h100_merged_rle.csv.gz"
NIGHTS = 60 if frame.QUICK else 365


def main() -> None:
    """Simulate both, and hold the figures against their targets."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name:
        for what, words in {"drawn": [], "recorded": ["--traces", str(TRACES)]}.items():
            seconds, policies = year(Path(name), words)
            ours, bought = policies[OURS], policies["all on-demand"]
            others = [
                row for key, row in policies.items() if key not in (OURS, OPTIMUM) and not row["num_missed"]
            ]
            figures |= {
                f"{what}: year s": seconds * 365 / NIGHTS,
                f"{what}: missed": ours["num_missed"],
                f"{what}: $ a night": ours["usd"],
                f"{what}: over the optimum %": 100 * ours["over_optimum"],
                f"{what}: share of all on-demand %": 100 * ours["usd"] / bought["usd"],
                f"{what}: over the best other %": 100 * (ours["usd"] / min(row["usd"] for row in others) - 1),
                f"{what}: preemptions": ours["num_losses"],
            }
    targets = {f"{what}: year s": ("<=", 60.0) for what in ("drawn", "recorded")}
    targets |= {f"{what}: missed": ("==", 0.0) for what in ("drawn", "recorded")}
    frame.finish("simulate", figures, targets)


def year(folder: Path, words: list[str]) -> tuple[float, dict[str, dict[str, float]]]:
    """Seconds of the command, and its row for each policy."""
    began = time.perf_counter()
    done = frame.pipeline(
        frame.ROOT,
        "simulate",
        "--nights",
        str(NIGHTS),
        "--json",
        "--plot",
        str(folder / "x.svg"),
        *words,
    )
    seconds = time.perf_counter() - began
    policies = json.loads(done.stdout)["policies"]
    print(*policies, sep="\n")
    return seconds, {row["policy"]: row for row in policies}


if __name__ == "__main__":
    main()
