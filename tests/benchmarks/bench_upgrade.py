"""A home that the release before made goes on: three nights and a rollback by it, then a night by this one.

A live test is under way when this release comes, by what gate and routers of the release before wrote to
their log: this one reads the same users, answers, outcomes and shares, and ends the test. The night of such a
test goes on by its own checkout's code.

The home's params.yaml is the one that the release before read; it is migrated only after the first night by
this release, so both ways are tried. QUICK=1 runs two nights of the release before instead of three.
"""

import os
import subprocess
import sys
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.contract import params
from pipeline.contract.records import Verdict
from pipeline.experiment import traffic
from pipeline.storage import ledger
from pipeline.storage.traffic_log import open_log
from tests.benchmarks import frame

BEFORE = "02042c7"  # the release before
RELEASE = "this-release"  # the tag of what it is upgraded to
PARAMS = {
    "source": {"use": "pipeline.intake.shop:Shop", "start": "2026-01-01", "today": "2026-03-05",
               "num_customers": 300, "orders_per_day": 60, "num_items": 80},
    "workload": "pipeline.workloads.regression:Regression",
    "ingest": {"history_days": 40}, "profile": {"batch_sizes": [32]},
    "gate": {"fit_samples": 20, "margin": 5, "min_samples": 20},
}  # fmt: skip
NUM_ANSWERS = 200  # of the live test, half of them with outcomes
LIVE_TEST = """
import sys
from pipeline.serving.log import Exposure, Outcome, Traffic, open_log

log = open_log(sys.argv[1])
champion, challenger, number = map(int, sys.argv[2:])
log.set_traffic(Traffic(champion=champion, challenger=challenger, share=0.25, experiment="live"))
for place in range(number):
    new = place % 4 == 0
    log.expose(Exposure(
        id=f"e{place}", time=1000.0 + place, experiment="live", unit=log.unit_of(f"u{place}"),
        arm="challenger" if new else "champion", version=challenger if new else champion,
        share=0.25, propensity=0.25 if new else 0.75, items=("a", "b"), latency_s=0.01,
    ))
log.write([], [Outcome(exposure=f"e{place}", items=("b",), time=2000.0) for place in range(0, number, 2)])
print(log.unit_of("u7"))
"""
DAYS = ("2026-02-26", "2026-02-27", "2026-02-28", "2026-03-02", "2026-03-03")


def main() -> None:
    """Make the home, upgrade it, run two nights and a rollback, and count what goes on as before."""
    number = 2 if frame.QUICK else 3
    with frame.home() as home:
        git(home, "tag", RELEASE)
        git(home, "checkout", "--quiet", "-B", "main", BEFORE)
        adapt(home)
        for day in DAYS[:number]:
            frame.pipeline(home, "night", "--day", day)
        frame.pipeline(home, "rollback", "--reason", "to have one")
        champion = frame.champion_of(home)
        versions = range(1, number + 1)
        before = {version: facts(home, version) for version in versions}

        url = f"sqlite:///{home / 'var' / 'serving.db'}"
        unit = live_test(home, url, champion=champion, challenger=number)

        upgrade(home)
        os.environ["PIPELINE_HOME"] = str(home)
        frame.pipeline(home, "check")
        live = live_test_goes_on(home, url, unit, champion=champion, challenger=number)
        old = status(home)
        frame.pipeline(home, "night", "--day", DAYS[number])
        verdict = ledger.read_at(ledger.ledger_tip(), Verdict)
        assert verdict is not None
        frame.pipeline(home, "migrate")
        git(home, "commit", "--quiet", "--all", "--message=Migrate")
        frame.pipeline(home, "night", "--day", DAYS[number + 1])
        newest = ledger.read_at(ledger.ledger_tip(), Verdict)
        assert newest is not None
        audit = frame.pipeline(home, "audit", expect=None)
        report = frame.pipeline(home, "report").stdout.split()
        same = sum(facts(home, version) == before[version] for version in versions)
        print(*(f"{one.action}: {one.reason}" for one in (verdict, newest)), sep="\n")
        frame.pipeline(home, "rollback", "--to", str(champion), "--reason", "back to the release before")
        figures = live | {
            "nights of the release before in status": float(sum(old)),
            "judged against its champion": float(verdict.champion == champion),
            "judged as a refresh": float("refresh" in verdict.reason),
            "promoted": float(verdict.action == "promote"),
            "judged after migrate, as a refresh": float("refresh" in newest.reason),
            "versions that why shows as before": float(same),
            "audit exit status": float(audit.returncode),
            "pages of the report": float(sum(Path(path).stat().st_size > 0 for path in report)),
            "champion after rollback is its version": float(frame.champion_of(home) == champion),
        }  # fmt: skip
    frame.finish(
        "upgrade",
        figures,
        {
            "answers of the live test with their users and outcomes": ("==", NUM_ANSWERS),
            "live test as it was, then ended": ("==", 1),
            "nights of the release before in status": ("==", number),
            "judged against its champion": ("==", 1),
            "judged as a refresh": ("==", 1),
            "promoted": ("==", 1),
            "judged after migrate, as a refresh": ("==", 1),
            "versions that why shows as before": ("==", number),
            "audit exit status": ("==", 0),
            "pages of the report": ("==", 2),
            "champion after rollback is its version": ("==", 1),
        },
    )


def live_test(home: Path, url: str, *, champion: int, challenger: int) -> str:
    """Write a live test under way by the code of the home's release; the unit of one of its users."""
    words = [url, str(champion), str(challenger), str(NUM_ANSWERS)]
    done = subprocess.run(
        [sys.executable, "-c", LIVE_TEST, *words], cwd=home, check=True, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(home)},
    )  # fmt: skip
    return done.stdout.strip()


def live_test_goes_on(home: Path, url: str, unit: str, *, champion: int, challenger: int) -> dict[str, float]:
    """What this release reads of the live test, and whether it ends it."""
    log = open_log(url)
    before = log.traffic()
    answers = list(log.exposures("live"))
    whole = [
        one
        for place, one in enumerate(answers)
        if one.unit == log.unit_of(f"u{place}")
        and one.taken == (("b",) if place % 2 == 0 else None)
        and one.version == (challenger if place % 4 == 0 else champion)
    ]
    same = (before.champion, before.challenger, before.share) == (champion, challenger, 0.25)
    ended = traffic.end("live", params.load(home)) if same else False
    return {
        "answers of the live test with their users and outcomes": float(len(whole)),
        "live test as it was, then ended": float(
            same and ended and not log.traffic().experiment and unit == log.unit_of("u7")
        ),
    }


def git(home: Path, *words: str) -> None:
    """Run git in the home."""
    subprocess.run(["git", *words], cwd=home, check=True)


def adapt(home: Path) -> None:
    """Make the shop of params.yaml small, and commit it as a team would."""
    yaml, path = YAML(), home / "params.yaml"
    values = yaml.load(path.read_text())
    for section, content in PARAMS.items():
        if isinstance(content, dict) and section != "source":
            values.setdefault(section, {}).update(content)
        else:
            values[section] = content
    with path.open("w") as file:
        yaml.dump(values, file)
    git(home, "commit", "--quiet", "--all", "--message=Our own parameters")


def upgrade(home: Path) -> None:
    """Take this release, and keep the team's params.yaml."""
    git(home, "rm", "--quiet", "-r", ".")
    git(home, "checkout", "--quiet", RELEASE, "--", ".")
    git(home, "checkout", "--quiet", "HEAD", "--", "params.yaml")
    git(home, "add", "--all")
    git(home, "commit", "--quiet", "--message=Upgrade")


def facts(home: Path, version: int) -> list[str]:
    """What `why` says of a version's making: its data, code, night and scores."""
    text = frame.pipeline(home, "why", str(version)).stdout
    kept = ("night", "data", "model", "code", "recipe", "trained", "plan")
    return [line for line in text.splitlines() if line.split(maxsplit=1)[0] in kept]


def status(home: Path) -> list[bool]:
    """Whether each night of the release before is in the table that status prints."""
    text = frame.pipeline(home, "status").stdout
    return [day in text for day in DAYS]


if __name__ == "__main__":
    main()
