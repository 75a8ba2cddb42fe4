"""Thirty real nights whose challengers meet users: a router on loopback, and baskets that were really bought.

Online Retail as in `nights`, but each challenger is judged by `gate.scores: live` alone. Users are the
customers who buy on the night's day or in the DAYS_AHEAD after it, each with that next basket of theirs: they
ask the router, which answers from what was known the night before, and tell it what they bought. They come in
passes; a user who met the champion may meet the challenger in the next. Held-out scores of the same night, on
the one day that is held out, are what the verdict is held against. Then a night whose model was trained on
shuffled labels, and that model promoted all the same, with users held back on the one before.

A day's customers are too few to ramp up from 1 %, so the ramp is 20 and 50 %, its steps last as long as their
users, and outcomes count for five seconds. Nights train on 90 days for one epoch, and skip the smoke test.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import requests

from benchmarks import frame
from benchmarks.bench_nights import BAD_WORKLOAD, SHORT, SOURCE, trading_days
from daybreak.contract import params, records
from daybreak.contract.record_types import Champion, Night, Verdict, Version
from daybreak.evaluation.scores import SCORES, read_scores
from daybreak.storage import ledger
from daybreak.storage.home import Home

NUM_NIGHTS = 3 if frame.QUICK else 30
DAYS_AHEAD = 21
WINDOW_S = 5.0
PORT = 18_181
MOST_LOOKS = 6  # four take all users through the ramp, at the fifth it is through
CLIENTS = 8
SETTINGS = [
    f"source={json.dumps(SOURCE)}",
    *SHORT,
    "ingest.history_days=90",
    "train.epochs=1",
    "smoke_test.samples=0",
    "gate.scores=live",
    "live_test.ramp=[0.2,0.5]",
    "live_test.ramp_users=150",
    "live_test.ramp_hours=0",
    f"live_test.outcome_hours={WINDOW_S / 3600}",
    "live_test.max_p99_rise_s=1",
    "serving.timeout_s=10",
    f"serving.port={PORT}",
    "serving.max_requests_per_s=0",
    "night.train_hours=1",
    "night.decide_hours=2",  # as much as its users can show, at 900 an hour
    "watch.holdback=0.25",
]
TARGETS = {
    "nights": ("==", NUM_NIGHTS),
    "nights that contradict the held-out scores": ("==", 0),
    "nights without a reason": ("==", 0),
    "bad model stopped by a guardrail": ("==", 1),
    "share at which it was stopped": ("==", 0.2),
    "promoted bad model rolled back by watch": ("==", 1),
    "share of the challenger after all": ("==", 0),
}


@dataclass(frozen=True)
class Visit:
    """A customer and what was bought next."""

    user: str
    items: tuple[str, ...]


def baskets() -> dict[str, list[tuple[date, tuple[str, ...]]]]:
    """What each customer bought, by day, oldest first."""
    import pyarrow.parquet as pq

    columns = SOURCE["columns"]
    assert isinstance(columns, dict)
    names = [columns[name] for name in ("customer", "item", "time", "quantity")]
    table = pq.read_table(str(SOURCE["url"]), columns=names).to_pandas()
    table = table[table[names[0]].notna() & (table[names[3]] > 0)]
    table["day"] = table[names[2]].dt.date
    by_customer: dict[str, list[tuple[date, tuple[str, ...]]]] = {}
    for (customer, day), items in table.groupby([names[0], "day"])[names[1]]:
        code = str(int(float(customer)))
        by_customer.setdefault(code, []).append((day, tuple(map(str, dict.fromkeys(items)))))
    return by_customer


def visits(bought: dict[str, list[tuple[date, tuple[str, ...]]]], day: date) -> list[Visit]:
    """Who buys from that day on, with the next basket, in the order in which they come."""
    coming = []
    for user, days in bought.items():
        then = next(((at, items) for at, items in days if at >= day), None)
        if then and then[0] <= day + timedelta(days=DAYS_AHEAD):
            coming.append((then[0], user, then[1]))
    return [Visit(user, items) for _, user, items in sorted(coming)]


@contextmanager
def router(home: Path) -> Iterator[str]:
    """The router of a home, at its address."""
    with (home / "var" / "router.log").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "daybreak", "serve"],
            cwd=home,
            env=frame.environment(home),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"http://127.0.0.1:{PORT}"
    finally:
        process.terminate()
        process.wait(30)


def until_it_follows(address: str, home: Path) -> None:
    """Wait until the router does what the traffic says, over the arrays of the newest night."""
    from daybreak.storage.traffic_log import open_log

    log = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    until = time.monotonic() + 120
    while time.monotonic() < until:
        wanted = log.traffic.read()
        try:
            health = requests.get(f"{address}/health", timeout=10).json()
        except requests.RequestException:
            health = {}
        if (
            health.get("ready")
            and health["arrays"] == ledger.commits(Home.here(), limit=1)[0].night
            and (health["share"], health["experiment"]) == (wanted.share, wanted.experiment)
        ):
            log.close()
            return
        time.sleep(0.2)
    raise RuntimeError(f"the router does not follow: {health}, wanted {wanted}")


def come(address: str, coming: Sequence[Visit]) -> None:
    """Let users come, each asking and telling what was bought, and wait until outcomes are closed."""

    def visit(one: Visit) -> None:
        with requests.Session() as session:
            shown = session.post(f"{address}/recommend", json={"user": one.user}, timeout=60)
            shown.raise_for_status()
            outcome = {"exposure": shown.json()["exposure"], "user": one.user, "items": one.items}
            for _ in range(20):  # the exposure may be on its way to the disk
                kept = session.post(f"{address}/outcomes", json=outcome, timeout=60)
                if kept.status_code != 404:
                    break
                time.sleep(0.1)
            kept.raise_for_status()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(visit, coming))
    time.sleep(WINDOW_S + 0.5)


def judged_live(home: Path, night: str, address: str, coming: Sequence[Visit]) -> Verdict:
    """Ask the gate, and let users come, until it has decided; at last the night is over."""
    halves = np.array_split(np.arange(len(coming)), 2)
    for look in range(MOST_LOOKS):
        if look == MOST_LOOKS - 1:
            end_of(home, night)
        asked = frame.pipeline(home, "gate", "--night", night, expect=None)
        if asked.returncode == 0:
            return records.read(Verdict, home / "nights" / night / records.RUN)
        if asked.returncode != 75:
            raise RuntimeError(asked.stderr)
        until_it_follows(address, home)
        come(address, [coming[place] for place in halves[look % 2]])
    raise AssertionError


def end_of(home: Path, night: str) -> None:
    """Let a night be over: the users that there are have all come, some more than once."""
    folder = home / "nights" / night / records.RUN
    opened = records.read(Night, folder)
    records.write(replace(opened, decide_until=datetime.now(opened.decide_until.tzinfo)), folder)


def held_out(home: Path, night: str) -> tuple[str, float]:
    """What the held-out scores say of a night, and the smallest effect that they can show."""
    from daybreak.gate.verdict import ACTIONS
    from daybreak.statistics.paired import Rules, detectable, judge
    from daybreak.statistics.result import Status

    scores = read_scores(home / "nights" / night / SCORES) or {}
    rules = Rules(alpha=0.05, margin=frame.MARGIN, min_samples=30, refresh=True)
    result = judge(scores.get("challenger"), scores.get("champion"), rules=rules)
    least = (
        detectable(sd=result.effect.sd, num_samples=result.effect.num_samples, alpha=0.05)
        if result.effect
        else 9
    )
    action = "inconclusive" if result.status is Status.INCONCLUSIVE else ACTIONS[result.status]
    return action, least


def one_night(
    home: Path, day: date, address: str, coming: Sequence[Visit], *, sets: Sequence[str] = ()
) -> dict[str, object]:
    """A night up to its version, its live judgement, and its end."""
    night = str(day)
    frame.pipeline(home, "night", "--day", night, "--until", "register", *frame.sets(list(sets)))
    verdict = judged_live(home, night, address, coming)
    frame.pipeline(home, "promote", "--night", night, expect=None)
    frame.pipeline(home, "close", "--night", night)
    offline, least = held_out(home, night)
    live = verdict.live
    assert live is not None
    action = "inconclusive" if verdict.inconclusive else verdict.action
    return {
        "day": night,
        "live": action,
        "effect": live.effect and live.effect.mean,
        "low": live.effect and live.effect.low,
        "high": live.effect and live.effect.high,
        "users": f"{live.num_challenger}/{live.num_champion}",
        "at share": live.share,
        "held-out": offline,
        "least held-out": least,
        "reason": live.reason,
        "foretold": live.foretold,
        "broken": sum(not check.ok for check in live.checks),
    }


def why_not(row: dict[str, object]) -> str:
    """Why live verdict and held-out scores do not say the same; "" where they do."""
    if row["live"] == row["held-out"]:
        return ""
    return (
        f"{row['day']}: live {row['live']}, held-out {row['held-out']}: {row['reason']} [{row['foretold']}]"
    )


def contradicts(row: dict[str, object]) -> bool:
    """Is one proven good and the other proven bad?"""
    return {row["live"], row["held-out"]} == {"promote", "reject"}


def promote_all_the_same(home: Path, day: date, sets: Sequence[str]) -> int:
    """A bad model of a night of its own, promoted as if somebody had overridden the gate; its version."""
    night = f"{day}-forced"
    frame.pipeline(
        home, "night", "--night", night, "--day", str(day), "--until", "register", *frame.sets(list(sets))
    )
    folder = home / "nights" / night / records.RUN
    version, champion = records.read(Version, folder), records.read(Champion, folder)
    verdict = Verdict(
        action="promote",
        champion=champion.version,
        challenger=version.number,
        reason="planted by the benchmark",
    )
    records.write(verdict, folder)
    frame.pipeline(home, "promote", "--night", night)
    frame.pipeline(home, "close", "--night", night)
    (home / "nights" / night / SCORES).unlink()  # so that users alone can tell
    return version.number


def main() -> None:
    """Run the nights, print them, and hold them against the targets."""
    days = trading_days(date(2011, 9, 1), NUM_NIGHTS + 3)
    bought = baskets()
    with frame.home() as home:
        os.environ["DAYBREAK_HOME"] = str(home)
        params.override(home, SETTINGS, into=home)
        subprocess.run(["git", "commit", "--all", "--quiet", "-m", "our own data"], cwd=home, check=True)
        began = time.monotonic()
        frame.pipeline(home, "night", "--day", str(days[0]))
        rows = []
        bad = [f"workload={BAD_WORKLOAD}"]
        with router(home) as address:
            until_it_follows(address, home)
            come(address, visits(bought, days[1]))
            for day in days[1 : NUM_NIGHTS + 1]:
                rows.append(one_night(home, day, address, visits(bought, day)))
                print(rows[-1], flush=True)
            elapsed_s = (time.monotonic() - began) / NUM_NIGHTS
            day = days[NUM_NIGHTS + 1]
            planted = one_night(home, day, address, visits(bought, day), sets=bad)
            print(planted, flush=True)
            before = frame.champion_of(home)
            forced = promote_all_the_same(home, days[NUM_NIGHTS + 2], bad)
            assert frame.champion_of(home) == forced
            frame.pipeline(home, "watch")
            until_it_follows(address, home)
            come(address, visits(bought, days[NUM_NIGHTS + 2] + timedelta(days=1)))
            watched = frame.pipeline(home, "watch").stdout
            after = frame.champion_of(home)
            until_it_follows(address, home)
            health = requests.get(f"{address}/health", timeout=10).json()
    shown = ("day", "live", "effect", "low", "high", "users", "at share", "held-out", "least held-out")
    frame.table([{key: row[key] for key in shown} for row in [*rows, planted]])
    reasons = [why_not(row) for row in rows]
    stopped = planted["live"] == "reject" and bool(planted["broken"])
    print(*filter(None, reasons), f"planted: {planted['reason']}", f"watch: {watched}", sep="\n")
    frame.finish(
        "replay",
        {
            "nights": len(rows),
            "seconds a night": elapsed_s,
            "nights that agree with the held-out scores": sum(not reason for reason in reasons),
            "of the others, inconclusive live": sum(
                bool(why_not(row)) and row["live"] == "inconclusive" for row in rows
            ),
            "nights that contradict the held-out scores": sum(map(contradicts, rows)),
            "nights without a reason": sum(not row["reason"] for row in rows),
            "promoted by live traffic": sum(row["live"] == "promote" for row in rows),
            "bad model stopped by a guardrail": float(stopped),
            "share at which it was stopped": float(str(planted["at share"])),
            "promoted bad model rolled back by watch": float(before == after != forced),
            "share of the challenger after all": health["share"],
        },
        TARGETS,
    )


if __name__ == "__main__":
    main()
