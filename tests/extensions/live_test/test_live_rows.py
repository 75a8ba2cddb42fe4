"""Users of predictions as judges: a real ledger, MLflow, router and log; the models are as planted."""

import contextlib
import json
import os
import time
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from daybreak.contract import records
from daybreak.contract.errors import NotYet
from daybreak.contract.record_types import Evaluation, Night, Training, Verdict
from daybreak.gate import watch
from daybreak.statistics.assignment import CHALLENGER
from daybreak.storage import branch, ledger
from daybreak.storage.exposures import Exposure, Outcome
from daybreak.storage.home import Home
from daybreak.storage.traffic_log import Log, open_log
from daybreak.workloads.served_rows import as_records
from tests.extensions.live_test.test_live_test import held_back
from tests.extensions.router.homes import add_version
from tests.extensions.router.moves import pass_time
from tests.extensions.router.running import running, until
from tests.statistics.streams import exposures, users
from tests.toy.nights import PARAMS, halfway, make_night
from tests.toy.stages import evaluate_night, gate_night, promote_night, register_night
from tests.workloads.payments import rows_of, trained

# MLflow 3.17 on SQLAlchemy 2.1, 2026-11-21
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")]

USE = "card_payments:Payments"
LIVE = PARAMS.replace(
    "smoke_test: {samples: 0}",
    "smoke_test: {samples: 0}\ngate: {scores: live}\n"
    "live_test: {ramp: [0.5], ramp_users: 60, ramp_hours: 0, outcome_hours: 5e-4, max_p99_rise_s: 9}",
)


def begin(home: Path, number: int, *, bias: float, text: str = LIVE) -> Night:
    """Stages up to register, of a night whose predictions are off by that much."""
    folder = make_night(
        home, number, weight=1.0, champion=ledger.champion_at(Home.here(), branch.ledger_tip(Home.here()))
    )
    os.chdir(folder)
    (folder / "params.yaml").write_text(text)
    night = replace(records.read(Night, records.RUN), decide_until=datetime.now(UTC) + timedelta(hours=2))
    records.write(night, records.RUN)
    training = records.read(Training, records.RUN)
    digest = trained(USE, seed=number, bias=bias)(folder)
    records.write(replace(training, model_digest=digest), records.RUN)
    evaluate_night()
    register_night()
    return night


def first(home: Path) -> None:
    """A champion that knows no better than how frequent frauds are."""
    add_version(home, 1, alter=trained(USE, seed=1, bias=-0.85))


def payments(number: int) -> list[tuple[dict[str, Any], int]]:
    """Payments of as many accounts, and whether each is a fraud."""
    rows = rows_of(date(2025, 1, 14), 2 * number)
    pairs = zip(as_records(rows.drop(["is_fraud"])), rows["is_fraud"].to_pylist(), strict=True)
    known = [(row, label) for row, label in pairs if label is not None][:number]
    return [({**row, "account": f"account {place}"}, label) for place, (row, label) in enumerate(known)]


def measured(log: Log, experiment: str, arm: str, *, within: tuple[float, float]) -> float:
    """The log loss of an arm by scikit-learn, of all that the log has; each user's counts within a range."""
    of_arm = [one for one in log.exposures.of(experiment) if one.arm == arm and one.taken and one.share]
    chance = [json.loads(one.predicted or "")["prediction"][0] for one in of_arm]
    labels = [int((one.taken or ("",))[0]) for one in of_arm]
    losses = [log_loss([label], [value], labels=[0, 1]) for label, value in zip(labels, chance, strict=True)]
    return float(np.clip(losses, *within).mean())


def test_a_worse_challenger_is_stopped_by_the_labels_of_what_it_predicted(home: Path) -> None:
    first(home)
    night = begin(home, 2, bias=4.0)
    live = records.read(Evaluation, records.RUN).live
    assert live
    assert (live.use, live.is_first) == ("daybreak.workloads.metrics:LogLoss", True)
    os.chdir(home)
    with running(home) as router:
        os.chdir(home / "nights" / night.id)
        with pytest.raises(NotYet):
            gate_night()
        until(lambda: router.get("health").json()["share"] == 0.5)
        for row, label in payments(300):
            status, answer = router.post("predict", {"rows": [row]})
            assert status == 200
            outcome = {"exposure": answer["exposure"], "user": row["account"], "labels": [label]}
            until(lambda outcome=outcome: router.post("outcomes", outcome)[0] == 200)
        decided: list[Verdict] = []

        def asked() -> bool:
            with contextlib.suppress(NotYet):
                decided.append(gate_night())
            return bool(decided)

        until(lambda: time.time() > max(one.time for one in router.log.exposures.of(night.id)) + 1.8)
        halfway()
        until(asked)
        verdict, log = decided[0], router.log
        assert verdict.action == "reject"
        assert verdict.live is not None
        assert verdict.live.num_challenger + verdict.live.num_champion == 300
        (broken,) = [check for check in verdict.live.checks if not check.ok]
        width = live.high - live.low
        within = (live.low - width, live.high + width)
        ours, theirs = (measured(log, night.id, arm, within=within) for arm in (CHALLENGER, "champion"))
        assert ours > theirs + 0.5
        assert broken.text.startswith(
            f"log loss {ours:.4f} with the challenger and {theirs:.4f} with the champion"
        )
        assert verdict.effect.mean == pytest.approx(theirs - ours, rel=0.05)
        assert verdict.reason.startswith("live: stopped by score: log loss ")


def test_watch_rolls_back_where_labels_prove_the_replaced_version_better(home: Path) -> None:
    log = open_log(f"sqlite:///{home / 'var' / 'serving.db'}")
    first(home)
    replay = LIVE.replace("scores: live", "scores: replay, margin: 9, min_samples: 5")
    night = begin(home, 2, bias=-0.85, text=replay)
    asked = gate_night()
    assert asked.action == "promote", asked.reason
    assert promote_night().version == 2
    ledger.commit_night(Home.here(), night, message="promote")
    os.chdir(home)
    settings = held_back()
    watch.watch(Home.here(), settings, settings.watch)
    assert (log.traffic.read().champion, log.traffic.read().challenger) == (2, 1)
    pass_time(log, 300)
    come(log, 300, chance=0.35)
    seen = watch.watch(Home.here(), settings, settings.watch)
    assert (seen.outcome, seen.serving) == ("kept", 2)
    assert "on live traffic 2 against 1: " in seen.reason
    come(log, 3000, chance=0.9)
    seen = watch.watch(Home.here(), settings, settings.watch)
    assert (seen.outcome, seen.serving, seen.predecessor) == ("rolled back", 2, 1)
    assert "score: log loss " in seen.reason


def come(log: Log, number: int, *, chance: float) -> None:
    """Payments of which none is a fraud; the version that serves says each is one with this chance."""
    traffic, start = log.traffic.read(), time.time() - 90
    shown: list[Exposure] = []
    for one in exposures(
        np.random.default_rng(number),
        users(number, number),
        share=traffic.share,
        experiment=traffic.experiment,
        start=start,
        apart_s=1e-3,
    ):
        said = 0.35 if one.arm == CHALLENGER else chance
        kept = json.dumps({"prediction": [said + 0.01 * (len(shown) % 3)]})
        shown.append(replace(one, items=(), predicted=kept, taken=None, taken_at=None))
    log.exposures.write(shown, [Outcome(exposure=one.id, items=("0",), time=one.time + 5) for one in shown])
