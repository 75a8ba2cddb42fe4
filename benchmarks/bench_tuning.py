"""Nights that search for settings, of examples whose rate was spoiled: how long until a better one serves?

Each example trains with a hundredth of its rate. Nights of days in a row search for a rate in the time that
they leave, of which each has a few tries. Counted are the nights until a version serves that was trained with
another rate, the nights that ended late, and the dollars. QUICK=1 plays six nights of one example.
"""

import re
import subprocess
import sys
import tempfile
from datetime import date, timedelta
from pathlib import Path

from benchmarks import frame
from benchmarks.bench_own import AUTHOR
from daybreak.contract import params, records
from daybreak.contract.record_types import Verdict
from daybreak.storage import ledger
from daybreak.storage.home import Home

EXAMPLES = ("demand", "fraud")
NIGHTS = 6 if frame.QUICK else 20
SPOILED = 2e-5
SETTINGS = [
    f"train.rate={SPOILED}",
    "train.cold_every=1",
    "search.space={train.rate: 'log(1e-5, 1e-2)'}",
    "search.tries=6",
    "gate.min_nights=2",
    "profile.batch_sizes=[256]",
    "smoke_test.samples=0",
]


def main() -> None:
    """Play the nights of each example."""
    figures: dict[str, float] = {}
    for name in EXAMPLES[:1] if frame.QUICK else EXAMPLES:
        with tempfile.TemporaryDirectory(prefix="daybreak-") as scratch:
            figures |= played(name, made(name, Path(scratch) / name))
    wanted = {
        f"{name}: nights that ended late": ("<=", 0.0)
        for name in EXAMPLES
        if any(name in key for key in figures)
    }
    frame.finish("tuning", figures, wanted)


def made(name: str, home: Path) -> Path:
    """The home of an example, made as its README says, with a spoiled rate."""
    readme = frame.ROOT / "pipeline/daybreak/examples" / name / "README.md"
    script = re.findall(r"```sh\n(.*?)```", readme.read_text(), re.S)[0].replace("~/", f"{home.parent}/")
    environment = frame.environment(home) | AUTHOR
    subprocess.run(["bash", "-euc", script], cwd=frame.ROOT, env=environment, check=True)
    params.override(home, SETTINGS, into=home)
    subprocess.run(["git", "commit", "-qam", "Spoil the rate"], cwd=home, env=environment, check=True)
    return home


def played(name: str, home: Path) -> dict[str, float]:
    """Figures of the nights of one home."""
    code = "from daybreak.storage.home import Home; print(max(Home.here().params.source.make().days()))"
    words = [sys.executable, "-c", code]  # in the home, whose modules the source is of
    newest = date.fromisoformat(
        subprocess.check_output(words, cwd=home, env=frame.environment(home), text=True).strip()
    )
    served_after = 0
    for number in range(1, NIGHTS + 1):
        day = newest - timedelta(days=NIGHTS - number)
        frame.pipeline(home, "night", "--day", str(day), "--trigger", "schedule")
        rate = params.load(home / "nights" / str(day)).train.rate
        verdict = records.read(Verdict, home / "nights" / str(day) / records.RUN)
        if not served_after and rate != SPOILED and verdict.action == "promote":
            served_after = number
    entries = list(ledger.history(Home(home)))
    late = [entry for entry in entries if entry.training and entry.training.stopped_by == "deadline"]
    return {
        f"{name}: nights until a better rate serves": float(served_after or NIGHTS + 1),
        f"{name}: nights that ended late": float(len(late)),
        f"{name}: dollars": sum(entry.training.cost_usd for entry in entries if entry.training),
    }


if __name__ == "__main__":
    main()
