"""Does a person's word last? Sequences of nights, edits, rollbacks, rejections, approvals and lifted holds.

Each sequence is a home with a ledger in git and MLflow in SQLite, where nights and people take turns at
random. This file keeps its own account of who took back or rejected which recipe, and when; it reads none of
the product's holds. A promotion is against a person's word where its recipe is in that account, and neither
a person approved it nor its verdict proves it better on days that all came after the word. What a person
said has to be named by `status --json` as well. QUICK=1 tries a fifth of the sequences.
"""

import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks import frame
from daybreak import cli, commands
from daybreak.contract import params, records
from daybreak.contract.errors import NothingToDo, ReleaseError
from daybreak.contract.record_types import Approval, Champion, Evaluation, Night, Verdict, Version
from daybreak.gate import review
from daybreak.rollout import rollback
from daybreak.rollout.hold import WATCH
from daybreak.storage import branch, ledger, mlflow_client
from daybreak.storage.home import Home
from tests.toy import nights
from tests.toy.stages import judge_night, promote_night

NUM_SEQUENCES = 4 if frame.QUICK else 20
NUM_NIGHTS = 12
RECIPES = ("", "train: {epochs: 3}\n", "train: {epochs: 4}\n")  # edits of params.yaml
GATES = ("", "gate: {min_nights: 1}\n")  # a proof takes several nights, or one
BASE = nights.PARAMS
WHY = "worse on returns"
TARGETS = {
    "promoted against a person's word": ("==", 0.0),
    "words that the status does not name": ("==", 0.0),
    "words": (">=", 2.0 * NUM_SEQUENCES),
    "promoted by a new proof": (">=", 1.0),
    "promoted by approval": (">=", 1.0),
}


@dataclass
class Account:
    """What people said, by this file's own account."""

    words: dict[str, date] = field(default_factory=dict)  # newest day then, by recipe
    recipe_of: dict[int, str] = field(default_factory=dict)  # of versions
    served: list[int] = field(default_factory=list)  # oldest first
    count: Counter[str] = field(default_factory=Counter)


def main() -> None:
    """Try all sequences, and hold what came of them against the targets."""
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("fork").Pool(2) as pool:
        store = pool.apply(make_store, (Path(folder),))
        for count in pool.imap_unordered(partial(sequence, store=store), range(NUM_SEQUENCES)):
            total.update(count)
            print(".", end="", file=sys.stderr, flush=True)
    names = ("nights", "promotions", "words", *TARGETS)
    frame.finish("rollback_holds", {name: float(total[name]) for name in names}, TARGETS)


def make_store(folder: Path) -> Path:
    """Returns an empty MLflow, which takes long to make."""
    os.environ["DAYBREAK_HOME"] = str(folder)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    (folder / "var").mkdir()
    mlflow_client.create(Home.here())
    return folder / "var" / "mlflow.db"


def sequence(seed: int, store: Path) -> Counter[str]:
    """Runs the nights of a home, and what people say between and in them."""
    draw = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="daybreak-"))
    account = Account()
    try:
        home = make_home(folder / "home", store)
        gate = GATES[seed % len(GATES)]
        recipe = RECIPES[0]
        for number in range(NUM_NIGHTS):
            if number > 1 and draw.random() < 0.25:
                recipe = draw.choice(RECIPES)
            nights.PARAMS = BASE + gate + recipe
            weight = draw.choice((0.9, 0.9, 0.95, 1.0))
            night(home, number, weight=weight, draw=draw, account=account)
            if number:
                say(home, number, draw=draw, account=account)
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    return account.count


def make_home(home: Path, store: Path) -> Path:
    """Returns a home without a night."""
    os.environ["DAYBREAK_HOME"] = str(home)
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    (home / "var").mkdir(parents=True)
    shutil.copy(store, home / "var" / "mlflow.db")
    (home / ".dvc").mkdir()
    (home / ".dvc" / "config").write_text("")
    (home / ".gitignore").write_text("/nights/\n/var/\n/data/*\n")
    (home / "params.yaml").write_text(BASE)
    for words in (
        ["init", "--quiet", "--initial-branch=main"],
        ["config", "user.name", "A Benchmark"],
        ["config", "user.email", "bench@example.org"],
        ["add", "--all"],
        ["commit", "--quiet", "--message=Begin"],
    ):
        subprocess.run(["git", *words], cwd=home, check=True)
    return home


def night(home: Path, number: int, *, weight: float, draw: random.Random, account: Account) -> None:
    """Runs a night to its end; a person who is asked approves, rejects or says nothing."""
    champion = serving()
    os.chdir(nights.make_night(home, number, weight=weight, champion=champion))
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=2)
    records.write(replace(records.read(Night, records.RUN), decide_until=until), records.RUN)
    verdict = judge_night()
    account.count["nights"] += 1
    account.recipe_of[verdict.challenger] = verdict.recipe
    said = answer(verdict, draw=draw, account=account, day=nights.FIRST + timedelta(days=number))
    waits = verdict.approve_until is not None and said is None
    if waits:  # nobody answers until the end of the night
        over = datetime.now(UTC).replace(microsecond=0) - timedelta(seconds=1)
        records.write(replace(verdict, approve_until=over), records.RUN)
    try:
        made = promote_night()
    except (NothingToDo, ReleaseError):
        made = None
    if made:
        judged_promotion(verdict, said, account=account)
        account.served.append(made.version)
    ledger.commit_night(Home.here(), records.read(Night, records.RUN), message=f"{number}: {verdict.action}")


def answer(verdict: Verdict, *, draw: random.Random, account: Account, day: date) -> Approval | None:
    """Returns what a person who is asked says."""
    if verdict.approve_until is None or draw.random() < 0.6:
        return None
    reject = draw.random() < 0.5
    try:
        said = review.approve(
            Home.here(),
            records.read(Night, records.RUN),
            records.read(Version, records.RUN),
            verdict,
            by="ann",
            reason=WHY if reject else "the desk looked at it",
            reject=reject,
        )
    except (NothingToDo, ReleaseError):
        return None
    if reject:
        account.words[verdict.recipe] = day
        account.count["words"] += 1
    return said


def judged_promotion(verdict: Verdict, said: Approval | None, *, account: Account) -> None:
    """Counts a promotion, and whether it is against a person's word."""
    account.count["promotions"] += 1
    since = account.words.get(verdict.recipe)
    if since is None:
        return
    evaluation = records.read(Evaluation, records.RUN)
    is_new = bool(evaluation.days) and min(evaluation.days) > since
    if said and said.approved:
        account.count["promoted by approval"] += 1
    elif verdict.effect and verdict.effect.is_proven and is_new:
        account.count["promoted by a new proof"] += 1
    else:
        account.count["promoted against a person's word"] += 1
        print(f"{verdict.recipe}, taken back on {since}: {verdict.reason}")
    del account.words[verdict.recipe]


def say(home: Path, number: int, *, draw: random.Random, account: Account) -> None:
    """Lets a person, or the watch, do something after a night; then the status has to name what holds."""
    os.chdir(home)
    day, before = nights.FIRST + timedelta(days=number), serving()
    what = draw.choices(("nothing", "rollback", "watch", "lift"), (5, 3, 1, 1))[0]
    if what in ("rollback", "watch") and before and before.replaced:
        by, hold_days = ("ann", -1) if what == "rollback" else (WATCH, 0)
        with contextlib.suppress(ReleaseError, NothingToDo):
            back = rollback.rollback(
                Home.here(), params.load(home).register_, reason=WHY, by=by, hold_days=hold_days
            )
            since = account.served.index(back.version) + 1 if back.version in account.served else 0
            taken, account.served = account.served[since:], account.served[:since]
            if what == "rollback":
                account.words |= {account.recipe_of[version]: day for version in taken}
                account.count["words"] += 1
    elif what == "lift" and account.words:
        with contextlib.redirect_stdout(io.StringIO()):
            commands.lift(Home.here(), reason="it was the desk", by="bob")
        account.words.clear()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(["status", "--json"])
    named = {recipe for held in json.loads(out.getvalue())["holds"] for recipe in held["recipes"]}
    account.count["words that the status does not name"] += len(account.words.keys() - named)


def serving() -> Champion | None:
    """Returns the champion of the ledger."""
    return ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))


if __name__ == "__main__":
    main()
