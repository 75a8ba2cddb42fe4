"""Does the disk of a home grow without end? Sixty nights of a small shop, each pruned at its end.

`night.keep_days` is five seconds here, so that all may be pruned but the three newest nights (`night.keep`),
what serves and what a rollback brings back. What a night then adds to the home must come to little more than
its records in git and MLflow, and its report there; it may leave no temporary file. Afterwards a rollback,
`why` of its version and `audit` must work as before.

The ledger of ten thousand nights is made by `git fast-import`, of commits as nights make them.
"""

import os
import resource
import statistics
import subprocess
import tempfile
from contextlib import chdir
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

from benchmarks import frame
from daybreak.contract import params
from daybreak.contract.formats import size
from daybreak.rollout.rollback import promotion_of, steps_back
from daybreak.storage import ledger
from daybreak.storage.home import Home

NUM_NIGHTS = 6 if frame.QUICK else 60
FIRST = date(2026, 1, 12)
KEPT = ["night.keep_days=0.00006", "night.keep=3"]
# A night for each day, and some promoted, few as the samples are; the smoke test leaves nothing on the disk.
NIGHTS = [
    "source.closed_weekday=null",
    "source.late_days={}",
    "gate.min_samples=5",
    "gate.margin=1",
    "smoke_test.samples=0",
]
LEDGERS = (10, 10_000)
KIND = {".git": "git", ".dvc": "DVC's cache", "nights": "folders of nights", "var": "MLflow and the rest"}


def main() -> None:
    """Run the nights, and hold what they leave against the targets."""
    with frame.home() as home, tempfile.TemporaryDirectory(prefix="daybreak-") as scratch:
        os.environ |= {"DAYBREAK_HOME": str(home), "TMPDIR": scratch}
        params.override(home, [*frame.SMALL, *KEPT, *NIGHTS], into=home)
        subprocess.run(["git", "commit", "--all", "--quiet", "-m", "keep little"], cwd=home, check=True)
        rows, freed, num_temporary = [], 0, []
        for number in range(NUM_NIGHTS):
            done = frame.pipeline(home, "night", "--day", str(FIRST + timedelta(days=number)))
            freed += "freed " in done.stderr
            rows.append(used(home))
            num_temporary.append(sum(len(names) + len(folders) for _, folders, names in os.walk(scratch)))
        frame.table(
            [
                {"night": n + 1, **{key: size(value) for key, value in row.items()}}
                for n, row in enumerate(rows)
                if (n + 1) % max(1, NUM_NIGHTS // 12) == 0
            ]
        )
        totals = [sum(row.values()) for row in rows]
        half = NUM_NIGHTS // 2
        added = [after - before for before, after in pairwise(totals)]
        releases = ledger.releases(Home.here())
        target = steps_back(releases, 1)
        frame.pipeline(home, "rollback", "--reason", "to see that it works")
        entry = ledger.history(Home.here(), limit=1)[0]
        back = entry.serving is not None and entry.serving.version == target
        why = frame.pipeline(home, "why", str(target)).stdout
        why_first = frame.pipeline(home, "why", str(releases[-1].serves)).stdout
        audit = frame.pipeline(home, "audit", expect=None)
        print(audit.stdout)
    del os.environ["TMPDIR"]
    lookups = {num: lookup_cpu_s(num) for num in LEDGERS}
    frame.finish(
        "disk",
        {
            "nights": float(NUM_NIGHTS),
            "promoted": float(len(releases)),
            "kB a night, first nights": statistics.fmean(added[: max(1, half // 3)]) / 1000,
            "kB a night, second half": (totals[-1] - totals[half]) / (NUM_NIGHTS - 1 - half) / 1000,
            "temporary files and folders after the first nights": num_temporary[max(1, half // 3)],
            "temporary files and folders at the end": num_temporary[-1],
            "MB of the home, half-way": totals[half] / 1e6,
            "MB of the home, at the end": totals[-1] / 1e6,
            "nights that freed something": freed,
            "rollback restored": float(back),
            "why answers": float("serv" in why and "serv" in why_first),
            "audit": audit.returncode,
            **{f"finding a rollback among {num:,} nights, CPU s": cpu_s for num, cpu_s in lookups.items()},
        },
        {
            "rollback restored": ("==", 1),
            "temporary files and folders at the end": ("<=", num_temporary[max(1, half // 3)]),
            "why answers": ("==", 1),
            "audit": ("==", 0),
            f"finding a rollback among {LEDGERS[1]:,} nights, CPU s": ("<=", lookups[LEDGERS[0]] + 0.5),
            **({} if frame.QUICK else {"kB a night, second half": ("<=", 200.0)}),
        },
    )


def used(home: Path) -> dict[str, int]:
    """Bytes of a home by kind; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    totals = dict.fromkeys(KIND.values(), 0)
    for top, kind in KIND.items():
        for folder, _, names in os.walk(home / top):
            for name in names:
                stat = Path(folder, name).lstat()
                if (stat.st_dev, stat.st_ino) not in seen:
                    seen[stat.st_dev, stat.st_ino] = 1
                    totals[kind] += stat.st_blocks * 512
    return totals


def lookup_cpu_s(num_nights: int) -> float:
    """CPU seconds to find which version a rollback brings back, in a ledger of so many promotions."""
    with tempfile.TemporaryDirectory(prefix="daybreak-") as name, chdir(name):
        os.environ["DAYBREAK_HOME"] = name
        subprocess.run(["git", "init", "--quiet"], check=True)
        lines = ["commit refs/heads/main", "mark :1", "committer A <a@example.org> 1 +0000", "data 4", "code"]
        for number in range(num_nights):
            message = f"night {number}\n\nNight: n{number}\nServes: {number + 1}\n"
            lines += [
                "commit refs/heads/nights",
                f"mark :{number + 2}",
                f"committer A <a@example.org> {number + 2} +0000",
                f"data {len(message)}",
                message,
                f"from :{number + 1}",
                *(["merge :1"] if number else []),
            ]
        text = "\n".join([*lines, ""])
        subprocess.run(["git", "fast-import", "--quiet"], input=text, text=True, check=True)
        before = cpu_s()
        releases = ledger.releases(Home.here())
        number = steps_back(releases, 1)
        assert promotion_of(releases, number).serves == num_nights - 1
        return cpu_s() - before


def cpu_s() -> float:
    """CPU seconds of this process and of those that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
