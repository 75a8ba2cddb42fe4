"""A home that the release before made goes on: three nights and a rollback by it, then a night by this one.

The home's params.yaml is the one that the release before read; it is migrated only after the first night by
this release, so both ways are tried. QUICK=1 runs two nights of the release before instead of three.
"""

import os
import subprocess
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.contract.records import Verdict
from pipeline.storage import ledger
from tests.benchmarks import frame

BEFORE = "02042c7"  # the release before
PARAMS = {
    "source": {"use": "pipeline.intake.shop:Shop", "start": "2026-01-01", "today": "2026-03-05",
               "num_customers": 300, "orders_per_day": 60, "num_items": 80},
    "workload": "pipeline.workloads.regression:Regression",
    "ingest": {"history_days": 40}, "profile": {"batch_sizes": [32]},
    "gate": {"fit_samples": 20, "margin": 5},
}  # fmt: skip
DAYS = ("2026-02-26", "2026-02-27", "2026-02-28", "2026-03-02", "2026-03-03")


def main() -> None:
    """Make the home, upgrade it, run two nights and a rollback, and count what goes on as before."""
    number = 2 if frame.QUICK else 3
    with frame.home() as home:
        git(home, "checkout", "--quiet", "-B", "main", BEFORE)
        adapt(home)
        for day in DAYS[:number]:
            frame.pipeline(home, "night", "--day", day)
        frame.pipeline(home, "rollback", "--reason", "to have one")
        champion = frame.champion_of(home)
        versions = range(1, number + 1)
        before = {version: facts(home, version) for version in versions}

        upgrade(home)
        frame.pipeline(home, "check")
        old = status(home)
        frame.pipeline(home, "night", "--day", DAYS[number])
        os.environ["PIPELINE_HOME"] = str(home)
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
        frame.pipeline(home, "rollback", "--to", str(champion), "--reason", "back to the release before")
        print(*(f"{one.action}: {one.reason}" for one in (verdict, newest)), sep="\n")
        figures = {
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
    git(home, "checkout", "--quiet", "origin/HEAD", "--", ".")
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
